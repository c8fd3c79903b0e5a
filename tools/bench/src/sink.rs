//! Our own sink in a process of its own.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use posthaste_loadgen::process::Process;

use crate::suite::SideError;

/// A running `posthaste sink`; stopped when dropped.
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
    /// When it does not start to listen.
    pub fn start(program: &Path, dir: &Path) -> Result<Self, SideError> {
        Self::start_with(program, dir, &[])
    }

    /// Like [`start`](Self::start), with an account of accepted mail in the file `account`.
    ///
    /// # Errors
    /// When it does not start to listen.
    pub fn start_with_account(program: &Path, dir: &Path, account: &Path) -> Result<Self, SideError> {
        Self::start_with(program, dir, &["--account".as_ref(), account.as_os_str()])
    }

    /// Like [`start_with_account`](Self::start_with_account), with a file of rules for its replies.
    ///
    /// # Errors
    /// When it does not start to listen.
    pub fn start_with_rules(program: &Path, dir: &Path, account: &Path, rules: &Path) -> Result<Self, SideError> {
        let options = ["--account".as_ref(), account.as_os_str(), "--rules".as_ref(), rules.as_os_str()];
        Self::start_with(program, dir, &options)
    }

    /// Like [`start`](Self::start), with counts each `interval`.
    ///
    /// # Errors
    /// When it does not start to listen.
    pub fn start_telling(program: &Path, dir: &Path, interval: &str) -> Result<Self, SideError> {
        Self::start_at(program, dir, interval, &[])
    }

    fn start_with(program: &Path, dir: &Path, options: &[&OsStr]) -> Result<Self, SideError> {
        Self::start_at(program, dir, TOLD_EVERY, options)
    }

    fn start_at(program: &Path, dir: &Path, interval: &str, options: &[&OsStr]) -> Result<Self, SideError> {
        let mut command = Command::new(program);
        command.args(["sink", "127.0.0.1:0", "--interval", interval]).args(options);
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

    /// Messages accepted since its start, as it told last.
    pub fn accepted(&self) -> u64 {
        whole_lines(&self.process.log()).rev().find_map(accepted).unwrap_or(0)
    }

    /// Number of connections since its start.
    ///
    /// # Errors
    /// When it does not report them.
    pub fn connections(&mut self) -> Result<Connections, SideError> {
        let before = told(&self.process.log()).count();
        let next = move |process: &Process| told(&process.log()).skip(before).last();
        self.process.wait_until(next).map_err(SideError::failed("posthaste sink"))
    }
}

/// Counts of connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connections {
    pub all: u64,
    /// The most open at the same time.
    pub most: u64,
}

impl Connections {
    /// Figures of a round: the connections it opened, and the most open at the same time in all rounds so far.
    pub fn since(self, before: Self) -> [(String, f64); 2] {
        [("sink_most", self.most), ("sink_opened", self.all - before.all)]
            .map(|(key, value)| (key.to_owned(), value as f64))
    }
}

/// The messages accepted by a line of its log.
fn accepted(line: &str) -> Option<u64> {
    line.split_once(" accepted,")?.0.rsplit_once(' ')?.1.parse().ok()
}

/// The last line may be one that is being written.
fn whole_lines(log: &str) -> std::str::Lines<'_> {
    log.rsplit_once('\n').map_or("", |(whole, _)| whole).lines()
}

/// Parses the complete lines of its log.
fn told(log: &str) -> impl Iterator<Item = Connections> {
    whole_lines(log).filter_map(|line| {
        let (all, most) = line.rsplit_once("; ")?.1.split_once(" connections in all, ")?;
        Some(Connections { all: all.parse().ok()?, most: most.strip_suffix(" at a time")?.parse().ok()? })
    })
}

const TOLD_EVERY: &str = "200ms";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_tell_of_connections() {
        let log = "posthaste: sink listens on 127.0.0.1:25\n\
                   5 messages/s, 0.1 MB/s, 2 connections; 5 accepted, 0 refused, 0 dropped; 3 connections in all, 2 at a time\n\
                   5 messages/s, 0.1 MB/s, 2 connections; 9 accepted, 0 refused, 0 dropped; 70 connections in all, 20 at";
        let found: Vec<Connections> = told(log).collect();
        assert_eq!(found, [Connections { all: 3, most: 2 }]);
        assert_eq!(log.lines().map(accepted).collect::<Vec<_>>(), [None, Some(5), Some(9)]);
        assert_eq!(told("").count() + told("x; y\n").count(), 0);
        let figures = Connections { all: 70, most: 20 }.since(found[0]);
        assert_eq!(figures.map(|(key, value)| format!("{key} {value}")), ["sink_most 20", "sink_opened 67"]);
    }
}
