//! kill -9 in a loop while the server sends mail on: everything acknowledged comes to the next hop, whole, and what is recorded as delivered is never
//! delivered again. The next hop outlives the kills.
//!
//! The only duplicates are those between the next hop's 250 and our record of it: a copy too many is no finding, two records of a delivery are one.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use posthaste_loadgen::process::{Process, WaitError};
use posthaste_random::Random;

use super::{lines, recorded};
use crate::load::{Load, Protocol, Sent, message_of, messages, send_over};
use crate::rig::{Environment, RigError, SEGMENTS_MIN};
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
    /// Recipients whose delivery is recorded twice.
    pub recorded_twice: u64,
    /// Altered on the way.
    pub half: u64,
    /// In words, whatever was wrong.
    pub findings: Vec<String>,
}

impl Relayed {
    /// Nothing was wrong, and there was something to look for.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.acknowledged > 0
    }
}

/// Starts the server, has it receive and send on, kills it at a random moment, `times` times over; then all is accounted for.
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
    let load = Load { body_bytes_max: 16 << 10, ..Load::mixed(rng.next()) };
    let scratch = tempfile::Builder::new().prefix("powercut-relay-").tempdir_in(&environment.scratch)?;
    let sink = NextHop::start(&environment.program, scratch.path())?;
    let plain = Setup::plain(environment.program.clone(), scratch.path());
    let setup = Setup { spool_segments: SEGMENTS_MIN, next_hop: Some(sink.address), ..plain };
    let (mut sent, mut relayed) = (Sent::default(), Relayed::default());
    while relayed.times < times && environment.go_on().is_ok() {
        let numbers = relayed.times * ROUND_MAX..(relayed.times + 1) * ROUND_MAX;
        let life = Duration::from_micros(20_000 + rng.below(400_000));
        let server = setup.start()?;
        let ways = [(Protocol::Smtp, server.address), (Protocol::Chunking, server.address)];
        sent.add(std::thread::scope(|scope| {
            let load = &load;
            let sending = scope.spawn(move || send_over(&ways, load, CONNECTIONS, numbers, |_| ()));
            // The moment of death is what varies; nothing is waited for.
            std::thread::sleep(life);
            server.kill();
            sending.join().expect("the generator does not panic")
        }));
        relayed.times += 1;
        progress(relayed.times);
    }
    let promised: HashSet<u64> = sent.acknowledged.iter().copied().map(message_of).collect();
    relayed.acknowledged = messages(sent.acknowledged.iter().copied());
    let server = setup.start()?;
    // What was at work in several crashes may be held.
    let mut release = Command::new(&environment.program);
    release.args(["queue", "release", "--held", "--config"]).arg(scratch.path().join("posthaste.toml")).output()?;
    let begun = Instant::now();
    let arrived = loop {
        let arrived = sink.arrived()?;
        let is_complete = promised.iter().all(|number| arrived.contains_key(number));
        if is_complete || begun.elapsed() > DELIVERY_MAX {
            break arrived;
        }
        std::thread::sleep(LOOK);
    };
    server.stop()?;
    relayed.add(&promised, &arrived, &recorded(&setup.data.join("events"))?, load.seed);
    Ok(relayed)
}

impl Relayed {
    fn add(
        &mut self,
        promised: &HashSet<u64>,
        arrived: &BTreeMap<u64, Arrived>,
        recorded: &BTreeMap<(u64, u64), u64>,
        seed: u64,
    ) {
        let mut lost: Vec<u64> = promised.iter().copied().filter(|number| !arrived.contains_key(number)).collect();
        lost.sort_unstable();
        let half: Vec<u64> = arrived.iter().filter(|(_, found)| !found.is_intact).map(|(number, _)| *number).collect();
        let twice: Vec<(u64, u64)> = recorded.iter().filter(|(_, times)| **times > 1).map(|(key, _)| *key).collect();
        self.lost += lost.len() as u64;
        self.half += half.len() as u64;
        self.recorded_twice += twice.len() as u64;
        self.duplicated += arrived.values().map(|found| found.copies - 1).sum::<u64>();
        if !(lost.is_empty() && half.is_empty() && twice.is_empty()) {
            self.findings.push(format!("series {seed:x}: lost {lost:?}, altered {half:?}, recorded twice {twice:?}"));
        }
    }
}

/// A sink that keeps an account, and outlives the server.
struct NextHop {
    _process: Process,
    address: SocketAddr,
    account: PathBuf,
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
        command.args(["sink", "127.0.0.1:0", "--account"]).arg(&account);
        let mut process = Process::start(&mut command, &dir.join("sink"))?;
        let listens = |process: &Process| -> Option<SocketAddr> {
            process.log().split_once("sink listens on ")?.1.split_once('\n')?.0.parse().ok()
        };
        let address = process.wait_until(listens).map_err(|error| match error {
            WaitError::Ended { status, said } => ServerError::Ended { status: status.to_string(), log: said },
            slow => ServerError::Start(io::Error::other(slow)),
        })?;
        Ok(Self { _process: process, address, account })
    }

    fn arrived(&self) -> io::Result<BTreeMap<u64, Arrived>> {
        let mut arrived: BTreeMap<u64, Arrived> = BTreeMap::new();
        for line in lines(&self.account)? {
            let Some(number) = line["id"].as_str().and_then(|id| id.split_once('.')?.1.parse().ok()) else { continue };
            let found = arrived.entry(number).or_insert(Arrived { copies: 0, is_intact: true });
            found.copies += 1;
            found.is_intact &= line["intact"] == true;
        }
        Ok(arrived)
    }
}

const CONNECTIONS: usize = 6;
/// Messages of one life at most; it is too short for that many.
const ROUND_MAX: u64 = 100_000;
/// How long the server may take for what is left at the end.
const DELIVERY_MAX: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_altered_or_recorded_twice_is_found_and_a_copy_too_many_is_counted() {
        let check = |arrived: &[(u64, u64, bool)], recorded: &[(u64, u64)]| {
            let mut relayed = Relayed { acknowledged: 2, ..Relayed::default() };
            let arrived = arrived
                .iter()
                .map(|(number, copies, is_intact)| (*number, Arrived { copies: *copies, is_intact: *is_intact }));
            let recorded = recorded.iter().map(|(message, times)| ((*message, 0), *times)).collect();
            relayed.add(&HashSet::from([1, 2]), &arrived.collect(), &recorded, 7);
            (relayed.lost, relayed.duplicated, relayed.half, relayed.recorded_twice, relayed.is_clean())
        };
        assert_eq!(check(&[(1, 1, true), (2, 1, true), (3, 1, true)], &[(9, 1)]), (0, 0, 0, 0, true));
        assert_eq!(check(&[(1, 2, true), (2, 1, true)], &[]), (0, 1, 0, 0, true));
        assert_eq!(check(&[(1, 1, true)], &[]), (1, 0, 0, 0, false));
        assert_eq!(check(&[(1, 1, true), (2, 1, false)], &[]), (0, 0, 1, 0, false));
        assert_eq!(check(&[(1, 2, true), (2, 1, true)], &[(9, 2)]), (0, 1, 0, 1, false));
    }
}
