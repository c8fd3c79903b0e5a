//! Postfix's smtp-sink, which accepts all mail and discards it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use posthaste_loadgen::process::{Process, free_address};

use super::{is_root, program};
use crate::suite::SideError;

/// A running smtp-sink.
#[derive(Debug)]
pub struct SmtpSink {
    process: Process,
    pub address: SocketAddr,
}

impl SmtpSink {
    pub const DURABILITY: &str = "discards";

    /// Starts it on a free port, for up to `connections` at a time.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start(dir: &Path, connections: usize) -> Result<Self, SideError> {
        let address = free_address().map_err(SideError::failed("a free port"))?;
        let mut command = Command::new(program("smtp-sink", "postfix")?);
        if is_root() {
            // It refuses to run as root.
            command.args(["-u", "nobody"]);
        }
        // 256 connections unless it is told; what follows the address is the backlog.
        command.args(["-m", &connections.max(256).to_string(), &address.to_string(), "4096"]);
        let failed = SideError::failed("smtp-sink");
        let mut process = Process::start(&mut command, &dir.join("smtp-sink")).map_err(failed)?;
        process.wait_until_it_listens(address).map_err(SideError::failed("smtp-sink"))?;
        Ok(Self { process, address })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
