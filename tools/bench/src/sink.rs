//! Our own sink, as a process of its own.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use posthaste_loadgen::process::Process;

use crate::suite::SideError;

/// A running `posthaste sink`; ended when dropped.
#[derive(Debug)]
pub struct Sink {
    process: Process,
    pub address: SocketAddr,
}

impl Sink {
    pub const DURABILITY: &str = "discards";

    /// Starts `program sink` on a free port.
    ///
    /// # Errors
    /// When it does not come to listen.
    pub fn start(program: &Path, dir: &Path) -> Result<Self, SideError> {
        Self::start_with(program, dir, &[])
    }

    /// The same, with an account of what it accepts in the file `account`.
    ///
    /// # Errors
    /// When it does not come to listen.
    pub fn start_with_account(program: &Path, dir: &Path, account: &Path) -> Result<Self, SideError> {
        Self::start_with(program, dir, &["--account".as_ref(), account.as_os_str()])
    }

    /// The same, with a file of rules for its replies.
    ///
    /// # Errors
    /// When it does not come to listen.
    pub fn start_with_rules(program: &Path, dir: &Path, account: &Path, rules: &Path) -> Result<Self, SideError> {
        let options = ["--account".as_ref(), account.as_os_str(), "--rules".as_ref(), rules.as_os_str()];
        Self::start_with(program, dir, &options)
    }

    fn start_with(program: &Path, dir: &Path, options: &[&OsStr]) -> Result<Self, SideError> {
        let mut command = Command::new(program);
        command.args(["sink", "127.0.0.1:0"]).args(options);
        let mut process =
            Process::start(&mut command, &dir.join("sink")).map_err(SideError::failed("posthaste sink"))?;
        let listening = |process: &Process| -> Option<SocketAddr> {
            let log = process.log();
            let (_, behind) = log.split_once("sink listens on ")?;
            behind.split_once('\n')?.0.parse().ok()
        };
        let address = process.wait_until(listening).map_err(SideError::failed("posthaste sink"))?;
        Ok(Self { process, address })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
