//! kill -9 in a loop while the server sends mail on: everything acknowledged comes to the next hop, whole, and what is recorded as delivered is never
//! delivered again. The next hop outlives the kills.
//!
//! The only duplicates are those between the next hop's 250 and our record of it: a copy too many is no finding, two records of a delivery are one, and so are more copies after a kill
//! than outcomes may be unrecorded. Senders are told of what was refused, and of success where they ask for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use posthaste_loadgen::process::{Process, WaitError};
use posthaste_random::Random;
use serde_json::Value;

use super::notices::Notices;
use super::{lines_of, queue, recorded};
use crate::load::{DOMAIN, Load, Protocol, SENDER, Sent, message_of, messages, send_over};
use crate::rig::{Environment, RigError};
use crate::server::{ServerError, Setup};

/// What the loop has shown.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Relayed {
    pub times: u64,
    pub acknowledged: u64,
    /// Acknowledged, and not at the next hop.
    pub lost: u64,
    /// Copies too many, each of a delivery that no record tells of.
    pub duplicated: u64,
    /// The most of these that came after one kill.
    pub duplicated_max: u64,
    /// Recipients whose delivery is recorded twice.
    pub recorded_twice: u64,
    /// Altered on the way.
    pub half: u64,
    /// Recipients of which senders were told: delivered (NOTIFY=SUCCESS) or refused.
    pub told: u64,
    /// Recipients of acknowledged messages of which their senders were owed a word, and not told.
    pub untold: u64,
    /// Told once more.
    pub told_twice: u64,
    /// Starts without the last snapshot of the queue, which was damaged or removed: from the one before.
    pub without_last: u64,
    /// Lives in which the spool was short of space from the start.
    pub short_of_space: u64,
    /// Recipients, and among them notices, that were held at the last start: at work in several crashes, or uncertain. They were released.
    pub held: u64,
    pub held_notices: u64,
    /// Recipients that still waited at the end.
    pub left: u64,
    /// Starts after which recipients were held, since it is not known that they have had their mail. Nobody releases them before the end, so all starts after the first count.
    pub uncertain: u64,
    /// In words, whatever was wrong.
    pub findings: Vec<String>,
}

impl Relayed {
    /// Nothing was wrong, and there was something to look for.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.acknowledged > 0
    }
}

/// Starts the server, has it receive and send on, kills it at a random moment, `times` times over; then all is accounted for. The next hop refuses some recipients
/// for good and others for now, and ends sessions with 421 or without a word. Before some starts the last snapshot of the queue is damaged or removed; in some
/// lives the spool's disk is full. Notices go into a mailbox, with an odd seed to the next hop.
///
/// # Errors
/// See [`RigError`].
pub fn kill_relay(
    environment: &Environment,
    times: u64,
    seed: u64,
    mut progress: impl FnMut(u64),
) -> Result<Relayed, RigError> {
    let mut rng = Random::new(seed);
    let load = Load { body_bytes_max: 16 << 10, told_in_16: 3, ..Load::mixed(rng.next()) };
    let scratch = tempfile::Builder::new().prefix("powercut-relay-").tempdir_in(&environment.scratch)?;
    let mut sink = NextHop::start(&environment.program, scratch.path())?;
    let plain = Setup::plain(environment.program.clone(), scratch.path());
    let notices_to = (seed % 2 == 1).then(|| format!("{SENDER}@{DOMAIN}"));
    let setup = Setup { next_hop: Some(sink.address), notices_to, ..plain };
    let read_notices = || match setup.notices_to {
        Some(_) => Notices::read_maildir(&scratch.path().join(TAKEN)),
        None => Notices::read(&setup.mail()),
    };
    let (mut sent, mut relayed) = (Sent::default(), Relayed::default());
    while relayed.times < times && environment.go_on().is_ok() {
        let numbers = relayed.times * ROUND_MAX..(relayed.times + 1) * ROUND_MAX;
        let life = Duration::from_micros(20_000 + rng.below(400_000));
        if relayed.times > 0 && rng.one_in(4) {
            spoil_snapshots(&setup.spool().join("snapshots"), &mut rng)?;
        }
        let is_short = rng.one_in(6);
        relayed.short_of_space += u64::from(is_short);
        let server = match is_short {
            true => Setup { free_bytes_min: "1000TiB".to_owned(), ..setup.clone() }.start()?,
            false => setup.start()?,
        };
        relayed.note_start(&server.read_log());
        let ways = [(Protocol::Smtp, server.address), (Protocol::Chunking, server.address)];
        sent.add(std::thread::scope(|scope| {
            let load = &load;
            let sending = scope.spawn(move || send_over(&ways, load, CONNECTIONS, numbers, |_| ()));
            // The moment of death is what varies; nothing is waited for.
            std::thread::sleep(life);
            server.kill();
            sending.join().expect("the generator does not panic")
        }));
        relayed.note_copies(sink.look()?);
        relayed.times += 1;
        progress(relayed.times);
    }
    let promised: BTreeSet<u64> = sent.acknowledged.iter().copied().map(message_of).collect();
    relayed.acknowledged = messages(sent.acknowledged.iter().copied());
    let server = setup.start()?;
    relayed.note_start(&server.read_log());
    relayed.note_held(&queue::all(&setup.data)?);
    let begun = Instant::now();
    let notices = loop {
        queue::release_held(&setup.data)?;
        let arrived = sink.look()?;
        let is_complete = promised.iter().all(|number| load.is_refused(*number) || arrived.contains_key(number));
        if is_complete || begun.elapsed() > DELIVERY_MAX {
            let notices = read_notices()?;
            let is_told = notices.account(&load, promised.iter().copied()).0.is_empty();
            if is_told || begun.elapsed() > DELIVERY_MAX {
                break notices;
            }
        }
        std::thread::sleep(LOOK);
    };
    relayed.note_copies(sink.look()?);
    let left = queue::all(&setup.data)?;
    server.stop()?;
    relayed.add(&load, &promised, sink.look()?, &recorded(&setup.data.join("events"))?);
    relayed.add_notices(&load, &promised, &notices);
    relayed.left = left.len() as u64;
    if !relayed.findings.is_empty() {
        // What waited says what became of the rest.
        relayed.findings.extend(left.iter().take(LEFT_SHOWN).map(|line| format!("waits: {line}")));
        relayed.findings.push(format!("its files are kept in {}", scratch.keep().display()));
    }
    Ok(relayed)
}

/// Damages, cuts off or removes all snapshots of the queue but the oldest, if there are several: of the newest the checkpoint may know nothing yet.
fn spoil_snapshots(dir: &Path, rng: &mut Random) -> io::Result<()> {
    let mut snapshots = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("queue-") {
            snapshots.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    snapshots.sort();
    for (_, path) in snapshots.iter().skip(1) {
        match rng.below(3) {
            0 => std::fs::remove_file(path)?,
            1 => std::fs::File::options().write(true).open(path)?.set_len(rng.below(40))?,
            _ => {
                let mut octets = std::fs::read(path)?;
                let at = rng.below(octets.len().max(1) as u64) as usize;
                octets.get_mut(at).into_iter().for_each(|octet| *octet ^= 1 << rng.below(8));
                std::fs::write(path, octets)?;
            }
        }
    }
    Ok(())
}

impl Relayed {
    fn note_start(&mut self, log: &str) {
        self.without_last += u64::from(log.contains("a snapshot of the queue cannot be read"));
        self.uncertain += u64::from(log.contains("nobody knows whether they have had their mail"));
    }

    /// `waiting`: what waits after the last start.
    fn note_held(&mut self, waiting: &[Value]) {
        let held = waiting.iter().filter(|line| line["held_by"].is_string());
        self.held = held.clone().count() as u64;
        self.held_notices = held.filter(|line| line["sender"] == "").count() as u64;
    }

    /// To be called after each kill, with all that has come.
    fn note_copies(&mut self, arrived: &BTreeMap<u64, Arrived>) {
        let copies = arrived.values().map(|found| found.copies - 1).sum::<u64>();
        self.duplicated_max = self.duplicated_max.max(copies - self.duplicated);
        self.duplicated = copies;
    }

    fn add(
        &mut self,
        load: &Load,
        promised: &BTreeSet<u64>,
        arrived: &BTreeMap<u64, Arrived>,
        recorded: &BTreeMap<(u64, u64), u64>,
    ) {
        let is_lost = |number: &u64| !load.is_refused(*number) && !arrived.contains_key(number);
        let lost: Vec<u64> = promised.iter().copied().filter(is_lost).collect();
        let half: Vec<u64> = arrived.iter().filter(|(_, found)| !found.is_intact).map(|(number, _)| *number).collect();
        let twice: Vec<(u64, u64)> = recorded.iter().filter(|(_, times)| **times > 1).map(|(key, _)| *key).collect();
        self.lost += lost.len() as u64;
        self.half += half.len() as u64;
        self.recorded_twice += twice.len() as u64;
        self.note_copies(arrived);
        // A recipient that was held and released has been sent to again, which its operator was told.
        let is_twice = !twice.is_empty() && self.uncertain == 0;
        if !(lost.is_empty() && half.is_empty()) || is_twice {
            let seed = load.seed;
            self.findings.push(format!("series {seed:x}: lost {lost:?}, altered {half:?}, recorded twice {twice:?}"));
        }
        if self.duplicated_max > UNRECORDED_MAX && self.uncertain == 0 {
            self.findings.push(format!("{} copies too many after one kill", self.duplicated_max));
        }
    }

    fn add_notices(&mut self, load: &Load, promised: &BTreeSet<u64>, notices: &Notices) {
        let (untold, twice) = notices.account(load, promised.iter().copied());
        (self.told, self.untold, self.told_twice) = (notices.len(), untold.len() as u64, twice);
        if !untold.is_empty() {
            self.findings.push(format!("series {:x}: senders were not told of {untold:?}", load.seed));
        }
    }
}

/// A sink that keeps an account, and outlives the server.
struct NextHop {
    _process: Process,
    address: SocketAddr,
    account: PathBuf,
    /// Length of the account that was read, and its content.
    read: u64,
    arrived: BTreeMap<u64, Arrived>,
}

/// A message at the next hop.
#[derive(Debug, PartialEq, Eq)]
struct Arrived {
    copies: u64,
    is_intact: bool,
}

impl NextHop {
    fn start(program: &Path, dir: &Path) -> Result<Self, RigError> {
        let account = dir.join("sink.jsonl");
        let mut command = Command::new(program);
        command.args(["sink", "127.0.0.1:0", "--account"]).arg(&account).args(MOODS);
        command.arg("--store").arg(format!("maildir:{}", dir.join(TAKEN).display()));
        let mut process = Process::start(&mut command, &dir.join("sink"))?;
        let listens = |process: &Process| -> Option<SocketAddr> {
            process.log().split_once("sink listens on ")?.1.split_once('\n')?.0.parse().ok()
        };
        let address = process.wait_until(listens).map_err(|error| match error {
            WaitError::Ended { status, said } => ServerError::Ended { status: status.to_string(), log: said },
            slow => ServerError::Start(io::Error::other(slow)),
        })?;
        Ok(Self { _process: process, address, account, read: 0, arrived: BTreeMap::new() })
    }

    /// All that has come.
    fn look(&mut self) -> io::Result<&BTreeMap<u64, Arrived>> {
        let mut file = File::open(&self.account)?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let whole = text.iter().rposition(|octet| *octet == b'\n').map_or(0, |at| at + 1);
        self.read += whole as u64;
        for line in lines_of(&text[..whole]) {
            let Some(number) = line["id"].as_str().and_then(|id| id.split_once('.')?.1.parse().ok()) else { continue };
            let found = self.arrived.entry(number).or_insert(Arrived { copies: 0, is_intact: true });
            found.copies += 1;
            found.is_intact &= line["intact"] == true;
        }
        Ok(&self.arrived)
    }
}

/// Answers of the next hop beside those to addresses that it refuses: greylisting, 421, later, and no answer at all.
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
/// The Maildir of all that the next hop has taken.
const TAKEN: &str = "taken";
/// Lines of the queue in a finding.
const LEFT_SHOWN: usize = 10;
const CONNECTIONS: usize = 6;
/// Messages of one life at most; it is too short for that many.
const ROUND_MAX: u64 = 100_000;
/// How long the server may take for what is left at the end.
const DELIVERY_MAX: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_secs(1);
/// Outcomes that may be sent and not recorded. In the short lives here no second has more.
const UNRECORDED_MAX: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_altered_or_recorded_twice_is_found_and_a_copy_too_many_is_counted() {
        let load = Load::mixed(7);
        let check = |arrived: &[(u64, u64, bool)], recorded: &[(u64, u64)]| {
            let mut relayed = Relayed { acknowledged: 2, ..Relayed::default() };
            let arrived = arrived
                .iter()
                .map(|(number, copies, is_intact)| (*number, Arrived { copies: *copies, is_intact: *is_intact }));
            let recorded = recorded.iter().map(|(message, times)| ((*message, 0), *times)).collect();
            relayed.add(&load, &BTreeSet::from([1, 2]), &arrived.collect(), &recorded);
            (relayed.lost, relayed.duplicated, relayed.half, relayed.recorded_twice, relayed.is_clean())
        };
        assert_eq!(check(&[(1, 1, true), (2, 1, true), (3, 1, true)], &[(9, 1)]), (0, 0, 0, 0, true));
        assert_eq!(check(&[(1, 2, true), (2, 1, true)], &[]), (0, 1, 0, 0, true));
        assert_eq!(check(&[(1, 1, true)], &[]), (1, 0, 0, 0, false));
        assert_eq!(check(&[(1, 1, true), (2, 1, false)], &[]), (0, 0, 1, 0, false));
        assert_eq!(check(&[(1, 2, true), (2, 1, true)], &[(9, 2)]), (0, 1, 0, 1, false));
        assert_eq!(check(&[(1, 1002, true), (2, 1, true)], &[]), (0, 1001, 0, 0, false), "more than may be unrecorded");
    }

    #[test]
    fn what_was_refused_need_not_come_and_its_sender_is_told() {
        let load = Load { told_in_16: 3, ..Load::mixed(7) };
        let refused = (0..).find(|number| load.is_refused(*number)).unwrap();
        let mut relayed = Relayed { acknowledged: 1, ..Relayed::default() };
        relayed.add(&load, &BTreeSet::from([refused]), &BTreeMap::new(), &BTreeMap::new());
        assert!(relayed.is_clean());
        relayed.add_notices(&load, &BTreeSet::from([refused]), &Notices::default());
        assert_eq!((relayed.untold, relayed.is_clean()), (load.addresses(refused).len() as u64, false));
    }

    #[test]
    fn the_oldest_snapshot_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for seed in 0..20 {
            for name in ["queue-1-a", "queue-2-b", "other"] {
                std::fs::write(path(name), [7; 100]).unwrap();
                // Their times tell their order.
                let time = std::time::SystemTime::now() + Duration::from_secs(u64::from(name == "queue-2-b"));
                std::fs::File::options().write(true).open(path(name)).unwrap().set_modified(time).unwrap();
            }
            spoil_snapshots(dir.path(), &mut Random::new(seed)).unwrap();
            let is_whole = |name: &str| std::fs::read(path(name)).is_ok_and(|octets| octets == [7; 100]);
            assert_eq!(["queue-1-a", "queue-2-b", "other"].map(is_whole), [true, false, true], "{seed}");
        }
    }
}
