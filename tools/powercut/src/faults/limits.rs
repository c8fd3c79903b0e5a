//! Faults of the machine around the server: clock jumps, exhausted descriptors.

use std::net::TcpStream;
use std::path::{Path, PathBuf};

use super::{Problems, until, wrong};
use crate::account::account;
use crate::disk::Disk;
use crate::image::Image;
use crate::load::{Client, Load, send};
use crate::relay::hop::{Manner, NextHop};
use crate::relay::{recorded, told};
use crate::rig::{Environment, RigError};
use crate::server::{Running, Setup};

/// The wall clock jumps by years, forwards and back, under load and between two runs of the server. Timers use another
/// clock.
pub fn clock_jumps(environment: &Environment) -> Result<Problems, RigError> {
    let mut problems = local_mail_while_the_clock_jumps(environment)?;
    problems.extend(relayed_mail_while_the_clock_jumps(environment)?);
    Ok(problems)
}

fn local_mail_while_the_clock_jumps(environment: &Environment) -> Result<Problems, RigError> {
    let scratch = tempfile::Builder::new().prefix("powercut-clock-").tempdir_in(&environment.scratch)?;
    let clock = WallClock::new(scratch.path())?;
    let set = |offset| clock.set(offset);
    let setup = Setup { through: clock.through(), ..plain(environment, scratch.path()) };
    let load = Load::mixed(41);
    let mut problems = Problems::new();
    let mut sent = crate::load::Sent::default();
    let mut next = 0;
    for jumps in [["+10y", "-10y", "+0"], ["-400d", "+1h", "-1h"]] {
        let server = setup.start()?;
        for jump in jumps {
            let numbers = next..next + 100;
            next = numbers.end;
            let during = std::thread::scope(|scope| {
                let sending = scope.spawn(|| send(&load, server.address, 4, numbers, |_| ()));
                set(jump)?;
                Ok::<_, RigError>(sending.join().expect("the generator does not panic"))
            })?;
            sent.add(during);
        }
        let all = || Ok(account(&setup.mail(), &load, sent.acknowledged.iter().copied())?.lost.is_empty());
        problems.extend(until("all mail is delivered", all)?);
        server.stop()?;
    }
    // Who waits for a timer of the wrong clock waits an hour at least, and gives up long before.
    problems.extend(super::unexpected(&sent, ""));
    if sent.acknowledged.len() as u64 != next {
        problems.push(format!("{} of {next} messages were acknowledged", sent.acknowledged.len()));
    }
    // That it really jumped, or nothing was shown: names begin with the time of reception.
    let far =
        files(&setup.mail()).any(|name| name.split('.').next().and_then(|secs| secs.parse().ok()) > Some(FAR_SECS));
    if !far {
        problems.push("no file has the time that the clock was set to".to_owned());
    }
    problems.extend(wrong("at the end", &account(&setup.mail(), &load, sent.acknowledged.iter().copied())?));
    Ok(problems)
}

/// Mail deferred by the next hop is retried on schedule and does not expire when the clock jumps. It jumps while the mail
/// waits, and between two runs of the server.
fn relayed_mail_while_the_clock_jumps(environment: &Environment) -> Result<Problems, RigError> {
    let scratch = tempfile::Builder::new().prefix("powercut-clock-").tempdir_in(&environment.scratch)?;
    let clock = WallClock::new(scratch.path())?;
    let load = Load { large_one_in: 1 << 40, body_bytes_max: 16 << 10, ..Load::mixed(43) };
    let hop = NextHop::start(&load, &Disk::new(Image::zeros(0)), Manner::Busy)?;
    let plain = plain(environment, scratch.path());
    let setup = Setup { through: clock.through(), next_hop: Some(hop.address), ..plain };
    let events = setup.data.join("events");
    let (mut problems, mut recipients, mut next) = (Problems::new(), 0, 0);
    let is_all_delivered = |recipients| Ok(recorded(&events)?.len() as u64 == recipients);
    for (during, between) in [("+400d", "-400d"), ("-30d", "+90d"), ("+0", "+0")] {
        hop.set(Manner::Busy);
        let server = setup.start()?;
        let sent = send(&load, server.address, 2, next..next + 20, |_| ());
        next += 20;
        problems.extend(super::unexpected(&sent, ""));
        recipients += load.entries(&sent.acknowledged);
        let waiting = recipients - recorded(&events)?.len() as u64;
        let is_put_off = |more: u64| {
            let before = hop.put_off();
            until("mail that waits is tried again", || Ok(hop.put_off() >= before + more))
        };
        problems.extend(is_put_off(waiting)?);
        clock.set(during)?;
        problems.extend(is_put_off(2 * waiting)?);
        server.stop()?;
        clock.set(between)?;
        let server = setup.start()?;
        hop.set(Manner::Open);
        problems.extend(until("all mail is at the next hop", || is_all_delivered(recipients))?);
        server.stop()?;
    }
    for event in ["expired", "bounced"] {
        let told = told(&events, event)?;
        if !told.is_empty() {
            problems.push(format!("{} recipients have {event}", told.len()));
        }
    }
    let twice = recorded(&events)?.values().filter(|times| **times > 1).count();
    if twice > 0 {
        problems.push(format!("{twice} recipients were delivered twice"));
    }
    problems.extend(hop.altered());
    Ok(problems)
}

/// A wall clock for one server.
struct WallClock {
    library: PathBuf,
    file: PathBuf,
}

impl WallClock {
    /// Starts with the right time.
    fn new(dir: &Path) -> Result<Self, RigError> {
        let library = faketime().ok_or_else(|| RigError::Unavailable("libfaketime is not installed".to_owned()))?;
        let clock = WallClock { library, file: dir.join("clock") };
        clock.set("+0")?;
        Ok(clock)
    }

    /// Offset of the clock, ahead of the real one or behind it.
    fn set(&self, offset: &str) -> std::io::Result<()> {
        // Renamed into place, since the library reads it at each call.
        let new = self.file.with_extension("new");
        std::fs::write(&new, offset).and_then(|()| std::fs::rename(&new, &self.file))
    }

    /// The command in front of the server's.
    fn through(&self) -> Vec<String> {
        vec![
            "env".to_owned(),
            format!("LD_PRELOAD={}", self.library.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "DONT_FAKE_MONOTONIC=1".to_owned(),
        ]
    }
}

fn faketime() -> Option<PathBuf> {
    let dirs = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    dirs.iter().map(|dir| Path::new(dir).join("faketime/libfaketimeMT.so.1")).find(|file| file.exists())
}

fn files(mail: &Path) -> impl Iterator<Item = String> {
    let users = std::fs::read_dir(mail.join(crate::load::DOMAIN)).into_iter().flatten().flatten();
    let new = users.flat_map(|user| std::fs::read_dir(user.path().join("Maildir/new")).into_iter().flatten().flatten());
    new.map(|file| file.file_name().to_string_lossy().into_owned())
}

/// Connections take every descriptor of the server; connected clients go on sending, and once the others leave all is
/// as before.
pub fn descriptors_exhausted(environment: &Environment) -> Result<Problems, RigError> {
    let scratch = tempfile::Builder::new().prefix("powercut-descriptors-").tempdir_in(&environment.scratch)?;
    let limit = format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}");
    let setup = Setup { through: vec!["prlimit".to_owned(), limit], ..plain(environment, scratch.path()) };
    let load = Load::mixed(42);
    let server = setup.start()?;
    let mut problems = Problems::new();
    let mut sent = send(&load, server.address, 4, 0..100, |_| ());
    let mut early = Client::connect(server.address)?;
    let mut idle: Vec<TcpStream> = Vec::new();
    for _ in 0..2 * DESCRIPTORS {
        idle.push(TcpStream::connect(server.address)?);
    }
    problems.extend(until("the descriptors have run out", || have_run_out(&server, &idle))?);
    for number in 100..200 {
        let letter = load.letter(number);
        match early.send(&letter) {
            Ok(reply) if reply.starts_with('2') => sent.acknowledged.push(number),
            // A body that needs a file of its own may be put off; nothing else may happen.
            Ok(reply) if reply.starts_with("452") && letter.octets.len() > IN_MEMORY_BYTES => {
                sent.refused.push((number, reply));
            }
            Ok(reply) => problems.push(format!("message {number} was answered {reply:?}")),
            Err(error) => {
                problems.push(format!("the connection that was there before broke: {error}"));
                break;
            }
        }
    }
    drop(idle);
    let served = || Ok(Client::connect(server.address).is_ok());
    problems.extend(until("new clients are served again", served)?);
    let after = send(&load, server.address, 4, 200..300, |_| ());
    problems.extend(super::unexpected(&after, ""));
    sent.add(after);
    let all = || Ok(account(&setup.mail(), &load, sent.acknowledged.iter().copied())?.lost.is_empty());
    problems.extend(until("all mail is delivered", all)?);
    server.stop()?;
    problems.extend(wrong("at the end", &account(&setup.mail(), &load, sent.acknowledged.iter().copied())?));
    Ok(problems)
}

/// True if all descriptors are in use, or a client got a reply that says so.
fn have_run_out(server: &Running, idle: &[TcpStream]) -> Result<bool, RigError> {
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid()))?.count();
    let was_told = idle.iter().any(|stream| {
        let mut reply = [0; 3];
        let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut reply));
        peeked.is_ok() && reply == *b"421"
    });
    Ok(was_told || open >= DESCRIPTORS)
}

/// A server on a directory of its own, outside the disks of the rig.
fn plain(environment: &Environment, scratch: &Path) -> Setup {
    Setup::plain(environment.program.clone(), scratch)
}

/// Enough for the start and a handful of clients.
const DESCRIPTORS: usize = 100;
/// A smaller body is kept in memory: only a larger one can be deferred for want of a file.
const IN_MEMORY_BYTES: usize = 1 << 20;
/// In the year 2033: later than the real clock, earlier than the one that has jumped ten years.
const FAR_SECS: u64 = 2_000_000_000;
