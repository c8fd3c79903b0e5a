//! kill -9 in a loop while the server relays. All acknowledged mail reaches the next hop whole, and mail recorded as
//! delivered is never delivered again. The next hop outlives the kills.
//!
//! Copies too many are counted: they came between the next hop's 250 and our record of it. Findings are these copies:
//! - of a message that was recorded as delivered;
//! - without a kill since the last one;
//! - after one kill more than outcomes may be unrecorded.
//!
//! Two records of one delivery are a finding, too. Senders are told of refusals, and of success where they ask for it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use posthaste_consumer::UNRECORDED_MAX;
use posthaste_random::Random;
use serde_json::Value;

use super::doubles::Doubles;
use super::notices::Notices;
use super::queue;
use super::sink::{Arrived, SinkHost};
use super::told::DeliveriesTold;
use crate::load::{DOMAIN, Load, Protocol, SENDER, Sent, message_of, messages, send_over};
use crate::rig::{Environment, RigError};
use crate::server::Setup;

/// Treatment of the queue's snapshots between a kill and the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotCare {
    /// They stay intact: no mail may become uncertain, and all extra copies are judged.
    Whole,
    /// Before every fourth start the last one is damaged or removed. Once mail is held as uncertain, extra copies are
    /// only counted, as the operator releases it.
    Spoiled,
}

/// Result of the loop.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Relayed {
    /// Name of the mail system.
    pub system: String,
    pub times: u64,
    pub acknowledged: u64,
    /// Acknowledged, but missing at the next hop.
    pub lost: u64,
    /// Extra copies of messages to one recipient.
    pub duplicated: u64,
    /// The most of these after one kill.
    pub duplicated_max: u64,
    /// The longest time between a copy and the next kill, in milliseconds, of messages that arrived again.
    pub before_kill_ms_max: u64,
    /// Messages that arrived again, although their delivery was recorded.
    pub sent_though_recorded: u64,
    /// Messages that arrived twice without a kill in between.
    pub twice_in_one_life: u64,
    /// Recipients whose delivery is recorded twice.
    pub recorded_twice: u64,
    /// Messages altered on the way.
    pub half: u64,
    /// Recipients for which senders got a notice: delivered (NOTIFY=SUCCESS) or refused.
    pub told: u64,
    /// Recipients of acknowledged messages for which a due notice is missing.
    pub untold: u64,
    /// Recipients for which the sender got a second notice.
    pub told_twice: u64,
    /// Starts without the last snapshot of the queue, which was damaged or removed: they used the one before.
    pub without_last: u64,
    /// Runs of the server in which the spool was short of space from the start.
    pub short_of_space: u64,
    /// Recipients, including those of notices, that were held at the last start: in flight in several crashes, or
    /// uncertain. They were released.
    pub held: u64,
    pub held_notices: u64,
    /// Recipients still waiting at the end.
    pub left: u64,
    /// Starts after which recipients were held because their delivery is uncertain. Nobody releases them before the
    /// end, so all starts after the first count.
    pub uncertain: u64,
    /// Descriptions of all findings.
    pub findings: Vec<String>,
}

impl Relayed {
    /// True if there were no findings, and some mail was expected.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.acknowledged > 0
    }
}

/// Starts the server, lets it receive and relay, and kills it at a random moment, `times` times; then accounts for all
/// mail. The next hop refuses some recipients permanently and others temporarily, and ends sessions with 421 or
/// silently. In some runs of the server the spool's disk is full. Notices go into a mailbox, or with an odd seed to the
/// next hop.
///
/// # Errors
/// See [`RigError`].
pub fn kill_relay(
    environment: &Environment,
    times: u64,
    seed: u64,
    care: SnapshotCare,
    mut progress: impl FnMut(u64),
) -> Result<Relayed, RigError> {
    let mut rng = Random::new(seed);
    let load = Load { body_bytes_max: 16 << 10, told_in_16: 3, ..Load::mixed(rng.next()) };
    let scratch = tempfile::Builder::new().prefix("powercut-relay-").tempdir_in(&environment.scratch)?;
    let mut sink = SinkHost::start(&environment.program, scratch.path())?;
    let plain = Setup::plain(environment.program.clone(), scratch.path());
    let notices_to = (seed % 2 == 1).then(|| format!("{SENDER}@{DOMAIN}"));
    let setup = Setup { kind: environment.spool_kind.clone(), next_hop: Some(sink.address), notices_to, ..plain };
    let mut told = DeliveriesTold::of(setup.data.join("events"));
    let mut relayed = Relayed { system: environment.system(true), ..Relayed::default() };
    let (mut sent, mut doubles) = (Sent::default(), Doubles::default());
    while relayed.times < times && environment.go_on().is_ok() {
        let numbers = relayed.times * ROUND_MAX..(relayed.times + 1) * ROUND_MAX;
        let life = Duration::from_micros(20_000 + rng.below(400_000));
        if relayed.times > 0 && care == SnapshotCare::Spoiled && rng.one_in(4) {
            spoil_snapshots(&setup.spool().join("snapshots"), &mut rng)?;
        }
        let is_short = rng.one_in(6);
        relayed.short_of_space += u64::from(is_short);
        let server = if is_short {
            Setup { free_bytes_min: "1000TiB".to_owned(), ..setup.clone() }.start()?
        } else {
            setup.start()?
        };
        relayed.note_start(&server.read_log());
        let ways = [(Protocol::Smtp, server.address), (Protocol::Chunking, server.address)];
        let mut ended = SystemTime::now();
        sent.add(std::thread::scope(|scope| {
            let load = &load;
            let sending = scope.spawn(move || send_over(&ways, load, CONNECTIONS, numbers, |_| ()));
            // The moment of death is what varies; nothing is waited for.
            std::thread::sleep(life);
            ended = SystemTime::now();
            server.kill();
            sending.join().expect("the generator does not panic")
        }));
        sink.wait_until_alone()?;
        told.look()?;
        doubles.note(&load, sink.look()?, told.settled(&load), ended);
        relayed.times += 1;
        progress(relayed.times);
    }
    let promised: BTreeSet<u64> = sent.acknowledged.iter().copied().map(message_of).collect();
    relayed.acknowledged = messages(sent.acknowledged.iter().copied());
    let server = setup.start()?;
    relayed.note_start(&server.read_log());
    relayed.note_held(&queue::all(&setup.data)?);
    let notices = send_the_rest(&setup, &load, &promised, &mut sink)?;
    let left = queue::all(&setup.data)?;
    server.stop()?;
    told.look()?;
    doubles.note(&load, sink.look()?, told.settled(&load), SystemTime::now());
    relayed.add(&load, &promised, sink.look()?);
    relayed.judge(&load, care, &doubles, &told.twice());
    relayed.add_notices(&load, &promised, &notices);
    relayed.left = left.len() as u64;
    if !relayed.findings.is_empty() {
        // What waited says what became of the rest.
        relayed.findings.extend(left.iter().take(LEFT_SHOWN).map(|line| format!("waits: {line}")));
        relayed.findings.push(format!("its files are kept in {}", scratch.keep().display()));
    }
    Ok(relayed)
}

/// Releases held mail until all promised mail and all notices have arrived, or until the time limit. Returns the
/// notices.
fn send_the_rest(
    setup: &Setup,
    load: &Load,
    promised: &BTreeSet<u64>,
    sink: &mut SinkHost,
) -> Result<Notices, RigError> {
    let begun = Instant::now();
    loop {
        queue::release_held(&setup.data)?;
        let arrived = sink.look()?;
        let is_complete = promised.iter().all(|number| load.is_refused(*number) || arrived.contains_key(number));
        if is_complete || begun.elapsed() > DELIVERY_MAX {
            let notices = match setup.notices_to {
                Some(_) => Notices::read_maildir(&sink.taken)?,
                None => Notices::read(&setup.mail())?,
            };
            let is_told = notices.account(load, promised.iter().copied()).0.is_empty();
            if is_told || begun.elapsed() > DELIVERY_MAX {
                return Ok(notices);
            }
        }
        std::thread::sleep(LOOK);
    }
}

/// Damages, truncates or removes all snapshots of the queue but the oldest, if there are several: the checkpoint may
/// not refer to the newest yet.
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
        self.uncertain += u64::from(log.contains("it is unknown if they have their mail"));
    }

    /// Counts the held recipients. `waiting`: the queue after the last start.
    fn note_held(&mut self, waiting: &[Value]) {
        let held = waiting.iter().filter(|line| line["held_by"].is_string());
        self.held = held.clone().count() as u64;
        self.held_notices = held.filter(|line| line["sender"] == "").count() as u64;
    }

    fn add(&mut self, load: &Load, promised: &BTreeSet<u64>, arrived: &BTreeMap<u64, Arrived>) {
        let is_lost = |number: &u64| !load.is_refused(*number) && !arrived.contains_key(number);
        let lost: Vec<u64> = promised.iter().copied().filter(is_lost).collect();
        let half: Vec<u64> = arrived.iter().filter(|(_, found)| !found.is_intact).map(|(number, _)| *number).collect();
        self.lost += lost.len() as u64;
        self.half += half.len() as u64;
        if !(lost.is_empty() && half.is_empty()) {
            self.findings.push(format!("series {:x}: lost {lost:?}, altered {half:?}", load.seed));
        }
    }

    /// Adds the findings. `twice`: deliveries that are recorded twice.
    fn judge(&mut self, load: &Load, care: SnapshotCare, doubles: &Doubles, twice: &[(u64, u64)]) {
        self.duplicated = doubles.copies;
        self.duplicated_max = doubles.copies_max;
        self.before_kill_ms_max = doubles.before_kill_max.as_millis() as u64;
        self.sent_though_recorded = doubles.recorded.len() as u64;
        self.twice_in_one_life = doubles.in_one_life.len() as u64;
        self.recorded_twice = twice.len() as u64;
        let mut find = |what: String| self.findings.push(format!("series {:x}: {what}", load.seed));
        if care == SnapshotCare::Whole && self.uncertain + self.without_last > 0 {
            find("a snapshot that nobody has damaged was not enough".to_owned());
        }
        // A recipient that was held and released has been sent to again, which its operator was told.
        if self.uncertain > 0 {
            return;
        }
        let Doubles { recorded, in_one_life, copies_max, .. } = doubles;
        if !twice.is_empty() || !recorded.is_empty() || !in_one_life.is_empty() {
            find(format!(
                "recorded twice {twice:?}, sent though recorded {recorded:?}, sent twice in one life {in_one_life:?}"
            ));
        }
        // No second of these short lives records more.
        if *copies_max > UNRECORDED_MAX {
            find(format!("{copies_max} copies too many after one kill"));
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

/// Limit on lines of the queue in a finding.
const LEFT_SHOWN: usize = 10;
const CONNECTIONS: usize = 6;
/// Limit on messages of one run of the server, which is too short for that many.
const ROUND_MAX: u64 = 100_000;
/// Time limit for the deliveries left at the end.
const DELIVERY_MAX: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_or_altered_is_found() {
        let load = Load::mixed(7);
        let check = |arrived: &[(u64, bool)]| {
            let mut relayed = Relayed { acknowledged: 2, ..Relayed::default() };
            let arrived = arrived.iter().map(|(number, is_intact)| {
                (*number, Arrived { copies: 1, is_intact: *is_intact, last: SystemTime::UNIX_EPOCH })
            });
            relayed.add(&load, &BTreeSet::from([1, 2]), &arrived.collect());
            (relayed.lost, relayed.half, relayed.is_clean())
        };
        assert_eq!(check(&[(1, true), (2, true), (3, true)]), (0, 0, true));
        assert_eq!(check(&[(1, true)]), (1, 0, false));
        assert_eq!(check(&[(1, true), (2, false)]), (0, 1, false));
    }

    #[test]
    fn doubles_are_findings_unless_mail_is_uncertain() {
        let load = Load::mixed(7);
        let check = |care, uncertain, doubles: &Doubles, twice: &[(u64, u64)]| {
            let mut relayed = Relayed { acknowledged: 2, uncertain, ..Relayed::default() };
            relayed.judge(&load, care, doubles, twice);
            relayed.is_clean()
        };
        let doubles = |change: fn(&mut Doubles)| {
            let mut doubles = Doubles::default();
            change(&mut doubles);
            doubles
        };
        let within = doubles(|found| (found.copies, found.copies_max) = (2000, UNRECORDED_MAX));
        assert!(check(SnapshotCare::Whole, 0, &within, &[]));
        let wrong = [
            doubles(|found| found.copies_max = UNRECORDED_MAX + 1),
            doubles(|found| found.recorded = BTreeSet::from([1])),
            doubles(|found| found.in_one_life = BTreeSet::from([1])),
        ];
        for care in [SnapshotCare::Whole, SnapshotCare::Spoiled] {
            assert!(wrong.iter().all(|doubles| !check(care, 0, doubles, &[])));
            assert!(!check(care, 0, &within, &[(70, 0)]), "recorded twice");
        }
        assert!(wrong.iter().all(|doubles| check(SnapshotCare::Spoiled, 1, doubles, &[(70, 0)])));
        assert!(!check(SnapshotCare::Whole, 1, &within, &[]), "nothing may be uncertain");
    }

    #[test]
    fn what_was_refused_need_not_come_and_its_sender_is_told() {
        let load = Load { told_in_16: 3, ..Load::mixed(7) };
        let refused = (0..).find(|number| load.is_refused(*number)).unwrap();
        let mut relayed = Relayed { acknowledged: 1, ..Relayed::default() };
        relayed.add(&load, &BTreeSet::from([refused]), &BTreeMap::new());
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
