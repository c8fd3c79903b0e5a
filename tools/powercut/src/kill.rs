//! kill -9 in a loop. This is not a power cut, so the page cache stays; the server's report after each start must be
//! right.

use std::time::Duration;

use posthaste_random::Random;

use crate::account::{Account, account};
use crate::load::{Load, Sent, messages, send_over};
use crate::rig::{Environment, RigError, SEGMENTS_MIN};
use crate::server::Setup;

/// Result of a series of kills.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Killed {
    /// Name of the mail system.
    pub system: String,
    pub times: u64,
    pub acknowledged: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub half: u64,
    /// Descriptions of all findings.
    pub findings: Vec<String>,
}

/// Starts the server, loads it and kills it at a random moment, `times` times; every [`SERIES`] times all mail is
/// accounted for. When interrupted, it accounts for the mail so far and ends.
///
/// # Errors
/// See [`RigError`]; a server that does not start again is a finding and no error.
pub fn kill(
    environment: &Environment,
    times: u64,
    seed: u64,
    mut progress: impl FnMut(&Killed),
) -> Result<Killed, RigError> {
    let mut killed = Killed { system: environment.system(false), ..Killed::default() };
    let mut rng = Random::new(seed);
    while killed.times < times && environment.go_on().is_ok() {
        let load = Load { body_bytes_max: 16 << 10, ..Load::mixed(rng.next()) };
        let before = killed.times;
        match series(environment, &load, &mut rng, times, &mut killed, &mut progress) {
            Err(error) if error.is_finding() => {
                killed.findings.push(format!("series {:x}, kill {}: {error}", load.seed, killed.times - before));
                // It will not come up the next time either, or wait a minute to say so.
                break;
            }
            done => done?,
        }
    }
    Ok(killed)
}

fn series(
    environment: &Environment,
    load: &Load,
    rng: &mut Random,
    times: u64,
    killed: &mut Killed,
    progress: &mut impl FnMut(&Killed),
) -> Result<(), RigError> {
    let scratch = tempfile::Builder::new().prefix("powercut-kill-").tempdir_in(&environment.scratch)?;
    let plain = Setup::plain(environment.program.clone(), scratch.path());
    let setup = Setup { kind: environment.spool_kind.clone(), spool_segments: SEGMENTS_MIN, ..plain };
    let mut sent = Sent::default();
    for round in 0..SERIES.min(times - killed.times) {
        if environment.go_on().is_err() {
            break;
        }
        // Numbers are never used twice: what was sent and not acknowledged may have been kept.
        let numbers = round * ROUND_MAX..(round + 1) * ROUND_MAX;
        let life = Duration::from_micros(1000 + rng.below(200_000));
        sent.add(live_and_die(&setup, load, numbers, life)?);
        killed.times += 1;
        progress(killed);
    }
    setup.start()?.stop()?;
    let found = account(&setup.mail(), load, sent.acknowledged.iter().copied())?;
    killed.add(&sent, &found, load.seed);
    Ok(())
}

fn live_and_die(setup: &Setup, load: &Load, numbers: std::ops::Range<u64>, life: Duration) -> Result<Sent, RigError> {
    let server = setup.start()?;
    let ways = server.ways();
    Ok(std::thread::scope(|scope| {
        let sending = scope.spawn(move || send_over(&ways, load, CONNECTIONS, numbers, |_| ()));
        // The moment of death is what varies; nothing is waited for.
        std::thread::sleep(life);
        server.kill();
        sending.join().expect("the generator does not panic")
    }))
}

impl Killed {
    /// True if there were no findings, and some mail was expected.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.acknowledged > 0
    }

    fn add(&mut self, sent: &Sent, found: &Account, seed: u64) {
        self.acknowledged += messages(sent.acknowledged.iter().copied());
        self.lost += found.lost.len() as u64;
        self.duplicated += found.duplicated.len() as u64;
        self.half += found.half.len() as u64;
        if !found.is_clean() {
            self.findings.push(format!("series {seed:x}: {found}"));
        }
    }
}

/// Kills before all mail is accounted for.
pub const SERIES: u64 = 50;
/// Two for each protocol.
const CONNECTIONS: usize = 6;
/// Limit on messages of one run of the server, which is too short for that many.
const ROUND_MAX: u64 = 100_000;
