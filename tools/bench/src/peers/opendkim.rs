//! OpenDKIM, the milter that signs mail for Postfix.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use posthaste_loadgen::process::{Process, free_address};

use super::{program, write};
use crate::suite::SideError;

/// A running OpenDKIM; stopped when dropped.
#[derive(Debug)]
pub struct OpenDkim {
    _process: Process,
    /// Address of its milter.
    pub address: SocketAddr,
}

impl OpenDkim {
    /// Starts it on a free port. It signs mail of `domain` that comes from this machine with the key in the file `key` (PEM).
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start(dir: &Path, domain: &str, key: &Path) -> Result<Self, SideError> {
        let address = free_address().map_err(SideError::failed("a free port"))?;
        let file = dir.join("opendkim.conf");
        write(&file, &configuration(address, domain, key))?;
        let mut command = Command::new(program("opendkim", "opendkim")?);
        command.arg("-f").arg("-x").arg(&file);
        let mut process = Process::start(&mut command, &dir.join("opendkim")).map_err(SideError::failed("opendkim"))?;
        process.wait_until_it_listens(address).map_err(SideError::failed("opendkim"))?;
        Ok(Self { _process: process, address })
    }
}

/// Signatures of the form of ours.
fn configuration(address: SocketAddr, domain: &str, key: &Path) -> String {
    format!(
        "Socket inet:{}@{}\nMode s\nDomain {domain}\nSelector bench\nKeyFile {}\nRequireSafeKeys no\n\
         Canonicalization relaxed/relaxed\nSignatureAlgorithm rsa-sha256\nOversignHeaders From,To,Cc,Subject,Date,Message-ID,Reply-To\n\
         InternalHosts 127.0.0.1\nBackground no\nSyslog no\n",
        address.port(),
        address.ip(),
        key.display()
    )
}
