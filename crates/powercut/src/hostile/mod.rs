//! Clients that mean harm, or look like it: each case runs against a server of its own, with somebody beside it who only wants to send mail.
//!
//! What must hold in every case: the honest client is served, none of its waits reaches a second, the server's memory stays under the
//! ceiling that the case states, and when all are gone it has as many sockets open as before. Needs no root.

mod cases;
mod crowds;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::account::account;
use crate::load::{Client, Load, Sent};
use crate::rig::{Environment, RigError};
use crate::server::{Running, Setup};

/// A way to be hostile.
pub struct Case {
    /// Its name on the command line.
    pub name: &'static str,
    /// What must hold beside what always must.
    pub promise: &'static str,
    /// The server's memory at most (VmHWM), in MiB.
    pub memory_mib_max: u64,
    run: fn(&Attack) -> Result<Vec<String>, RigError>,
}

/// All cases.
pub const ALL: [Case; 12] = [
    Case {
        name: "slow-senders",
        promise: "all stay connected, one octet a second each, in every state",
        memory_mib_max: 512,
        run: crowds::slow_senders,
    },
    Case {
        name: "bursts",
        promise: "many connections at once, a message each: every one is served within a second",
        memory_mib_max: 256,
        run: crowds::bursts,
    },
    Case {
        name: "flood",
        promise: "connections that come and go as fast as they can",
        memory_mib_max: 256,
        run: crowds::flood,
    },
    Case { name: "endless-command", promise: "500, and no memory", memory_mib_max: 96, run: cases::endless_command },
    Case {
        name: "endless-line",
        promise: "a body of one line beyond the limit is 552",
        memory_mib_max: 96,
        run: cases::endless_line,
    },
    Case { name: "header-100-mb", promise: "552", memory_mib_max: 96, run: cases::large_header },
    Case { name: "million-to", promise: "552", memory_mib_max: 96, run: cases::million_to },
    Case { name: "mime-10000-deep", promise: "kept as it is", memory_mib_max: 96, run: cases::nested },
    Case {
        name: "half-closed",
        promise: "whoever stops sending gets his replies, and his session ends",
        memory_mib_max: 96,
        run: cases::half_closed,
    },
    Case {
        name: "reset-anywhere",
        promise: "RST at every octet of a dialogue leaves no descriptor behind",
        memory_mib_max: 96,
        run: cases::reset_anywhere,
    },
    Case {
        name: "never-reads",
        promise: "replies that nobody reads pile up nowhere",
        memory_mib_max: 96,
        run: cases::never_reads,
    },
    Case {
        name: "look-alikes",
        promise: "nothing but CRLF.CRLF ends a message",
        memory_mib_max: 96,
        run: cases::look_alikes,
    },
];

/// What a case has shown.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Shown {
    pub case: &'static str,
    pub promise: &'static str,
    /// The most memory that the server had, in KiB.
    pub memory_kib: u64,
    pub memory_mib_max: u64,
    /// Messages of the honest client, and the longest that one of them took, connecting included.
    pub honest_messages: u64,
    pub honest_wait_ms_max: u64,
    pub problems: Vec<String>,
}

/// How hard it gets.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Connections of a crowd.
    pub crowd: usize,
    /// How long a crowd stays.
    pub stay: Duration,
    /// What no honest client may wait.
    pub wait_max: Duration,
}

/// A server under attack.
pub(crate) struct Attack {
    pub server: Running,
    pub setup: Setup,
    pub size: Size,
}

impl Attack {
    pub fn address(&self) -> SocketAddr {
        self.server.address
    }
}

impl Case {
    /// Runs it.
    ///
    /// # Errors
    /// See [`RigError`]; a promise that does not hold is no error.
    pub fn run(&self, environment: &Environment, size: Size) -> Result<Shown, RigError> {
        let scratch = tempfile::Builder::new().prefix("powercut-hostile-").tempdir_in(&environment.scratch)?;
        let setup = Setup {
            limits: "memory_bytes = 33554432\nconnections = 20000\nconnections_per_address = 20000\n".to_owned(),
            ..Setup::plain(environment.program.clone(), scratch.path())
        };
        let server = setup.start()?;
        let sockets_before = sockets(&server)?;
        let attack = Attack { server, setup, size };
        let load = Load { large_one_in: u64::MAX, body_bytes_max: 8 << 10, ..Load::mixed(51) };
        let done = AtomicBool::new(false);
        let (outcome, honest) = std::thread::scope(|scope| {
            let honest = scope.spawn(|| send_honestly(&load, attack.address(), &done));
            let outcome = (self.run)(&attack);
            done.store(true, Ordering::Release);
            (outcome, honest.join().expect("the honest client does not panic"))
        });
        let mut problems = broken_off(outcome)?;
        problems.extend(still_open(&attack.server, sockets_before)?);
        let memory_kib = peak_memory_kib(&attack.server)?;
        let Attack { server, setup, .. } = attack;
        if let Err(error) = server.stop() {
            problems.push(error.to_string());
        }
        if memory_kib > self.memory_mib_max << 10 {
            problems.push(format!("the server took {memory_kib} KiB, above {} MiB", self.memory_mib_max));
        }
        if honest.wait_max >= size.wait_max {
            problems.push(format!("the honest client waited {} ms", honest.wait_max.as_millis()));
        }
        problems.extend(honest.refused.first().map(|(number, reply)| format!("honest message {number}: {reply}")));
        let found = account(&setup.mail(), &load, honest.acknowledged.iter().copied())?;
        // Other files are the attacker's.
        if !found.lost.is_empty() || !found.duplicated.is_empty() {
            problems.push(format!("lost {:?}, duplicated {:?}", found.lost, found.duplicated));
        }
        Ok(Shown {
            case: self.name,
            promise: self.promise,
            memory_kib,
            memory_mib_max: self.memory_mib_max,
            honest_messages: honest.acknowledged.len() as u64,
            honest_wait_ms_max: honest.wait_max.as_millis() as u64,
            problems,
        })
    }
}

/// Sends a message every [`HONEST_PACE`] until told to stop, and at least one, each over a connection of its own.
fn send_honestly(load: &Load, address: SocketAddr, done: &AtomicBool) -> Sent {
    let mut sent = Sent::default();
    for number in 0.. {
        let begun = Instant::now();
        match Client::connect(address).and_then(|mut client| client.send(&load.letter(number))) {
            Ok(reply) if reply.starts_with('2') => sent.acknowledged.push(number),
            Ok(reply) => sent.refused.push((number, reply)),
            Err(error) => sent.refused.push((number, error.to_string())),
        }
        sent.wait_max = sent.wait_max.max(begun.elapsed());
        if done.load(Ordering::Acquire) {
            break;
        }
        std::thread::sleep(HONEST_PACE);
    }
    sent
}

fn peak_memory_kib(server: &Running) -> Result<u64, RigError> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid().as_raw_nonzero()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().map_err(|_| std::io::Error::other("no VmHWM in status").into())
}

/// An attack that the server did not let come to its end has found something, unless it is this machine that has run out.
fn broken_off(outcome: Result<Vec<String>, RigError>) -> Result<Vec<String>, RigError> {
    let ours = [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL].map(|errno| Some(errno.raw_os_error()));
    match outcome {
        Err(RigError::Io(error)) if !ours.contains(&error.raw_os_error()) => {
            Ok(vec![format!("the attack broke off: {error}")])
        }
        other => other,
    }
}

/// Once everybody has gone the server has the sockets that it had before anybody came.
fn still_open(server: &Running, before: usize) -> Result<Option<String>, RigError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = sockets(server)?;
        if now == before {
            return Ok(None);
        }
        if Instant::now() > deadline {
            return Ok(Some(format!("{now} sockets are open when all have gone, {before} before")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sockets that the server has open. Mailboxes that it keeps open do not count.
fn sockets(server: &Running) -> Result<usize, RigError> {
    let dir = Path::new("/proc").join(server.pid().as_raw_nonzero().to_string()).join("fd");
    let links = std::fs::read_dir(dir)?.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    Ok(links.filter(|link| link.as_os_str().as_encoded_bytes().starts_with(b"socket:")).count())
}

const HONEST_PACE: Duration = Duration::from_millis(20);
/// What the server is given to see that somebody has gone, or to do what it has promised.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attack_that_the_server_breaks_off_has_found_something() {
        let io = |errno: Errno| Err(RigError::Io(std::io::Error::from(errno)));
        assert_eq!(broken_off(io(Errno::PIPE)).unwrap().len(), 1);
        assert_eq!(broken_off(io(Errno::CONNREFUSED)).unwrap().len(), 1);
        assert!(broken_off(io(Errno::MFILE)).is_err());
        assert!(broken_off(Err(RigError::Interrupted)).is_err());
        assert!(broken_off(Ok(Vec::new())).unwrap().is_empty());
    }
}
