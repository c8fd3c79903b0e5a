//! The sink that a relaying server sends to: a process of its own that outlives the server, and keeps all accepted mail
//! in a Maildir.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use posthaste_loadgen::process::{PATIENCE, Process, WaitError};
use posthaste_loadgen::stamp;

use crate::rig::RigError;
use crate::server::ServerError;

/// A running sink.
pub(super) struct SinkHost {
    _process: Process,
    /// Address of its listener.
    pub address: SocketAddr,
    /// The Maildir of all accepted mail: each message is in it before its reply leaves.
    pub taken: PathBuf,
    seen: BTreeSet<OsString>,
    arrived: BTreeMap<u64, Arrived>,
}

/// A message at the sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrived {
    pub copies: u64,
    pub is_intact: bool,
    /// Time of the newest copy.
    pub last: SystemTime,
}

impl SinkHost {
    /// Starts it in `dir`.
    ///
    /// # Errors
    /// Errors of its start.
    pub fn start(program: &Path, dir: &Path) -> Result<Self, RigError> {
        let taken = dir.join("taken");
        let mut command = Command::new(program);
        command.args(["sink", "127.0.0.1:0"]).args(MOODS);
        command.arg("--store").arg(format!("maildir:{}", taken.display()));
        let mut process = Process::start(&mut command, &dir.join("sink"))?;
        let listens = |process: &Process| -> Option<SocketAddr> {
            process.log().split_once("sink listens on ")?.1.split_once('\n')?.0.parse().ok()
        };
        let address = process.wait_until(listens).map_err(|error| match error {
            WaitError::Ended { status, said } => ServerError::Ended { status: status.to_string(), log: said },
            slow => ServerError::Start(io::Error::other(slow)),
        })?;
        Ok(Self { _process: process, address, taken, seen: BTreeSet::new(), arrived: BTreeMap::new() })
    }

    /// All mail accepted so far, by the number of the message. Notices have none.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn look(&mut self) -> io::Result<&BTreeMap<u64, Arrived>> {
        for entry in std::fs::read_dir(self.taken.join("new"))? {
            let entry = entry?;
            if !self.seen.insert(entry.file_name()) {
                continue;
            }
            let Some(found) = stamp::find(&std::fs::read(entry.path())?) else { continue };
            let at = entry.metadata()?.modified()?;
            let new = Arrived { copies: 0, is_intact: true, last: at };
            let arrived = self.arrived.entry(found.id.number).or_insert(new);
            arrived.copies += 1;
            arrived.is_intact &= found.is_intact;
            arrived.last = arrived.last.max(at);
        }
        Ok(&self.arrived)
    }

    /// Waits until it has read all that a killed server had sent: only then [`look`](Self::look) returns all mail of
    /// that server.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] after a minute.
    pub fn wait_until_alone(&self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while has_connections(&std::fs::read_to_string("/proc/net/tcp")?, self.address.port()) {
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "connections of a killed server stay open"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// True if the kernel's table of sockets has a connection at this port that can still be read from.
fn has_connections(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_here = words.next().is_some_and(|local| local.ends_with(&format!(":{port:04X}")));
        is_here && words.nth(1).is_some_and(|state| [ESTABLISHED, CLOSE_WAIT].contains(&state))
    })
}

/// TCP states as in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";
const CLOSE_WAIT: &str = "08";
/// Options for its answers besides the refusals by address: greylisting, temporary refusals, no answer, and 421 after
/// many messages.
const MOODS: [&str; 13] = [
    "--seed=1",
    "--greylist",
    "300ms",
    "--tempfail",
    "connect=5",
    "--tempfail",
    "rcpt=10",
    "--tempfail",
    "end-of-data=5",
    "--drop",
    "data=3",
    "--messages-max",
    "25",
];
const LOOK: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_count_until_they_have_been_read_to_the_end() {
        let line = |local: &str, remote: &str, state: &str| {
            format!(
                "  sl  local_address rem_address   st\n   0: 0100007F:{local} 0100007F:{remote} {state} 00000000:00000000\n"
            )
        };
        let check = |local, remote, state| has_connections(&line(local, remote, state), 0x1A2B);
        assert!(check("1A2B", "8000", "01") && check("1A2B", "8000", "08"));
        assert!(!check("1A2B", "0000", "0A"), "it listens");
        assert!(!check("1A2B", "8000", "06"), "closed by both");
        assert!(!check("8000", "1A2B", "01"), "the other end");
    }
}
