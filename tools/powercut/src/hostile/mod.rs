//! Hostile clients, and clients that look hostile. Each case has its own server and an honest client that only sends
//! mail. In cases about IMAP and POP3 another one only reads.
//!
//! In every case the honest client is served, and none of its waits reaches a second. On a busy machine the limit is a
//! hundred times the time of a message without an attack. The server's memory stays below the case's ceiling. When the
//! attack is over it has as many sockets open as before. Needs no root.

mod cases;
mod crowds;
mod readers;
mod sessions;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::account::account;
use crate::load::{Client, Load, Sent};
use crate::rig::{Environment, RigError};
use crate::server::{Running, Setup};

/// A case: an attack, or clients that look like one.
pub struct Case {
    /// Name on the command line.
    pub name: &'static str,
    /// The promise in addition to those of every case.
    pub promise: &'static str,
    /// Limit on the server's memory (VmHWM), in MiB.
    pub memory_mib_max: u64,
    /// True if the server indexes its mail meanwhile.
    indexed: bool,
    /// True if it is about IMAP and POP3: the server has listeners for them, and an honest client reads, too.
    reads: bool,
    run: fn(&Attack) -> Result<Vec<String>, RigError>,
}

/// All cases.
pub const ALL: [Case; 20] = [
    Case {
        name: "slow-senders",
        promise: "all stay connected, one octet a second each, in every state",
        memory_mib_max: 512,
        indexed: false,
        reads: false,
        run: crowds::slow_senders,
    },
    Case {
        name: "bursts",
        promise: "many connect at once, a message each: every one is served within a second, connecting included",
        memory_mib_max: 256,
        indexed: false,
        reads: false,
        run: crowds::bursts,
    },
    Case {
        name: "flood",
        promise: "connections that come and go as fast as they can: whoever waits for it is greeted within a second",
        memory_mib_max: 256,
        indexed: false,
        reads: false,
        run: crowds::flood,
    },
    Case {
        name: "endless-command",
        promise: "500, and no memory",
        memory_mib_max: 96,
        indexed: false,
        reads: false,
        run: cases::endless_command,
    },
    Case {
        name: "endless-line",
        promise: "a body of one line beyond the limit is 552",
        memory_mib_max: 96,
        indexed: false,
        reads: false,
        run: cases::endless_line,
    },
    Case {
        name: "header-100-mb",
        promise: "552",
        memory_mib_max: 96,
        indexed: false,
        reads: false,
        run: cases::large_header,
    },
    Case {
        name: "million-to",
        promise: "552",
        memory_mib_max: 96,
        indexed: false,
        reads: false,
        run: cases::million_to,
    },
    Case {
        name: "mime-10000-deep",
        promise: "kept as it is",
        memory_mib_max: 96,
        indexed: false,
        reads: false,
        run: cases::nested,
    },
    Case {
        name: "mime-indexed",
        promise: "the same, parsed by the search, and found",
        memory_mib_max: 192,
        indexed: true,
        reads: false,
        run: cases::nested_indexed,
    },
    Case {
        name: "half-closed",
        promise: "whoever stops sending gets his replies, and his session ends",
        memory_mib_max: 96,
        indexed: false,
        reads: false,
        run: cases::half_closed,
    },
    Case {
        name: "reset-anywhere",
        promise: "RST at every octet of a dialogue leaves no descriptor behind",
        memory_mib_max: 96,
        indexed: false,
        reads: false,
        run: cases::reset_anywhere,
    },
    Case {
        name: "never-reads",
        promise: "replies that nobody reads pile up nowhere",
        memory_mib_max: 96,
        indexed: false,
        reads: false,
        run: cases::never_reads,
    },
    Case {
        name: "look-alikes",
        promise: "nothing but CRLF.CRLF ends a message",
        memory_mib_max: 96,
        indexed: false,
        reads: false,
        run: cases::look_alikes,
    },
    Case {
        name: "read-slowly",
        promise: "a message of 16 MiB is held in memory for nobody; who reads an octet a second is served",
        // 200 times the message would be 3 GiB. It does not grow with the readers: 179 MiB with 50, 199 to 250 with 200.
        memory_mib_max: 384,
        indexed: false,
        reads: true,
        run: readers::slow,
    },
    Case {
        name: "read-endless",
        promise: "a line without an end is refused by IMAP and POP3, or cut off",
        memory_mib_max: 144,
        indexed: false,
        reads: true,
        run: readers::endless_line,
    },
    Case {
        name: "read-literals",
        promise: "no literal beyond the limits is asked for, nor kept",
        memory_mib_max: 144,
        indexed: false,
        reads: true,
        run: readers::literals,
    },
    Case {
        name: "read-halves",
        promise: "halves of commands, an octet a second: the others read and send",
        memory_mib_max: 384,
        indexed: false,
        reads: true,
        run: readers::halves,
    },
    Case {
        name: "read-pipelines",
        promise: "commands whose answers nobody reads pile up nowhere",
        memory_mib_max: 144,
        indexed: false,
        reads: true,
        run: readers::pipelines,
    },
    Case {
        name: "read-sessions",
        promise: "sessions that do nothing, in each state: the others read and send, and they are answered when they ask",
        memory_mib_max: 384,
        indexed: false,
        reads: true,
        run: sessions::idle,
    },
    Case {
        name: "read-files",
        promise: "files that another program puts into a selected mailbox, 200 for each of a crowd: all become messages",
        memory_mib_max: 384,
        indexed: false,
        reads: true,
        run: sessions::files,
    },
];

/// Result of one case.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Shown {
    pub case: &'static str,
    pub promise: &'static str,
    /// Peak memory of the server, in KiB.
    pub memory_kib: u64,
    pub memory_mib_max: u64,
    /// Time of a message of the honest client without an attack, connecting included: median, in microseconds.
    pub plain_us: u64,
    /// Messages of the honest client during the attack, and the longest time of one.
    pub honest_messages: u64,
    pub honest_wait_ms_max: u64,
    /// The longest wait of a member of a crowd that must be served too, connecting included; 0 without such a crowd.
    pub crowd_wait_ms_max: u64,
    /// Limit on waits.
    pub wait_ms_allowed: u64,
    pub problems: Vec<String>,
}

/// Intensity of the attacks.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Connections in a crowd.
    pub crowd: usize,
    /// Time that a crowd stays.
    pub stay: Duration,
}

/// A server under attack.
pub(crate) struct Attack {
    pub server: Running,
    pub setup: Setup,
    pub size: Size,
    /// The longest wait of a member of a crowd that must be served.
    pub wait_max: Mutex<Duration>,
}

impl Attack {
    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Records the wait of a member of the crowd that must be served.
    pub fn waited(&self, wait: Duration) {
        let mut longest = self.wait_max.lock().expect("a wait");
        *longest = wait.max(*longest);
    }
}

impl Case {
    /// Runs the case.
    ///
    /// # Errors
    /// See [`RigError`]; a broken promise is no error.
    pub fn run(&self, environment: &Environment, size: Size) -> Result<Shown, RigError> {
        let scratch = tempfile::Builder::new().prefix("powercut-hostile-").tempdir_in(&environment.scratch)?;
        let setup = Setup {
            indexed: self.indexed,
            passwords: self.reads.then(|| scratch.path().join("passwords")),
            limits: "memory_bytes = 33554432\nconnections = 20000\nconnections_per_address = 20000\n".to_owned(),
            ..Setup::plain(environment.program.clone(), scratch.path())
        };
        readers::write_passwords(&setup)?;
        let server = setup.start()?;
        let sockets_before = sockets(&server)?;
        let load = Load { large_one_in: u64::MAX, body_bytes_max: 8 << 10, ..Load::mixed(51) };
        let mut honest = Honest { load: &load, address: server.address, sent: Sent::default() };
        let mut plain = honest.send_some(PLAIN);
        let attack = Attack { server, setup, size, wait_max: Mutex::default() };
        let done = AtomicBool::new(false);
        let (outcome, waits) = std::thread::scope(|scope| {
            let beside = scope.spawn(|| honest.send_until(&done));
            let outcome = (self.run)(&attack);
            done.store(true, Ordering::Release);
            (outcome, beside.join().expect("the honest client does not panic"))
        });
        let mut problems = broken_off(outcome)?;
        problems.extend(still_open(&attack.server, sockets_before)?);
        let memory_kib = peak_memory_kib(&attack.server)?;
        plain.extend(honest.send_some(PLAIN));
        let Attack { server, setup, wait_max: crowd_wait_max, .. } = attack;
        if let Err(error) = server.stop() {
            problems.push(error.to_string());
        }
        if memory_kib > self.memory_mib_max << 10 {
            problems.push(format!("the server took {memory_kib} KiB, above {} MiB", self.memory_mib_max));
        }
        let plain = median(plain);
        let allowed = WAIT_MAX.max(WAIT_TIMES_PLAIN * plain);
        let wait_max = waits.iter().max().copied().unwrap_or_default();
        let crowd_wait_max = crowd_wait_max.into_inner().expect("a wait");
        for (who, wait) in [("the honest client", wait_max), ("one of the crowd", crowd_wait_max)] {
            if wait >= allowed {
                problems.push(format!("{who} waited {} ms, {} are allowed", wait.as_millis(), allowed.as_millis()));
            }
        }
        let Sent { acknowledged, refused, .. } = honest.sent;
        problems.extend(refused.first().map(|(number, reply)| format!("honest message {number}: {reply}")));
        let found = account(&setup.mail(), &load, acknowledged.iter().copied())?;
        // Other files are the attacker's.
        if !found.lost.is_empty() || !found.duplicated.is_empty() {
            problems.push(format!("lost {:?}, duplicated {:?}", found.lost, found.duplicated));
        }
        Ok(Shown {
            case: self.name,
            promise: self.promise,
            memory_kib,
            memory_mib_max: self.memory_mib_max,
            plain_us: plain.as_micros() as u64,
            honest_messages: waits.len() as u64,
            honest_wait_ms_max: wait_max.as_millis() as u64,
            crowd_wait_ms_max: crowd_wait_max.as_millis() as u64,
            wait_ms_allowed: allowed.as_millis() as u64,
            problems,
        })
    }
}

/// A client that only sends mail: a message every [`HONEST_PACE`], each over a connection of its own.
struct Honest<'a> {
    load: &'a Load,
    address: SocketAddr,
    sent: Sent,
}

impl Honest<'_> {
    /// Sends one message, and returns the time it took.
    fn send(&mut self) -> Duration {
        let number = (self.sent.acknowledged.len() + self.sent.refused.len()) as u64;
        let begun = Instant::now();
        match Client::connect(self.address).and_then(|mut client| client.send(&self.load.letter(number))) {
            Ok(reply) if reply.starts_with('2') => self.sent.acknowledged.push(number),
            Ok(reply) => self.sent.refused.push((number, reply)),
            Err(error) => self.sent.refused.push((number, error.to_string())),
        }
        begun.elapsed()
    }

    fn send_some(&mut self, count: usize) -> Vec<Duration> {
        (0..count).map(|_| self.send_and_rest()).collect()
    }

    /// Sends until `done`, at least one message.
    fn send_until(&mut self, done: &AtomicBool) -> Vec<Duration> {
        let mut waits = vec![self.send_and_rest()];
        while !done.load(Ordering::Acquire) {
            waits.push(self.send_and_rest());
        }
        waits
    }

    fn send_and_rest(&mut self) -> Duration {
        let wait = self.send();
        std::thread::sleep(HONEST_PACE);
        wait
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn peak_memory_kib(server: &Running) -> Result<u64, RigError> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().map_err(|_| std::io::Error::other("no VmHWM in status").into())
}

/// An attack that the server interrupts is a finding, unless this machine ran out of resources.
fn broken_off(outcome: Result<Vec<String>, RigError>) -> Result<Vec<String>, RigError> {
    let ours = [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL].map(|errno| Some(errno.raw_os_error()));
    match outcome {
        Err(RigError::Io(error)) if !ours.contains(&error.raw_os_error()) => {
            Ok(vec![format!("the attack broke off: {error}")])
        }
        other => other,
    }
}

/// Checks that the server has as many sockets as before once all clients have gone.
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

/// Number of the server's open sockets. Mailboxes that it keeps open do not count.
fn sockets(server: &Running) -> Result<usize, RigError> {
    let dir = Path::new("/proc").join(server.pid().to_string()).join("fd");
    let links = std::fs::read_dir(dir)?.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    Ok(links.filter(|link| link.as_os_str().as_encoded_bytes().starts_with(b"socket:")).count())
}

const HONEST_PACE: Duration = Duration::from_millis(20);
/// Messages of the honest client before the attack, and again after it.
const PLAIN: usize = 15;
/// Limit on waits of clients to be served, where a message without an attack takes at most a hundredth of it.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// On slower machines the limit is this multiple of the time of a message.
const WAIT_TIMES_PLAIN: u32 = 100;
/// Time for the server to notice that a client has gone, or to keep a promise.
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
