//! Scenarios on a recorded machine, and recoveries from their cuts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use posthaste_fsops::{Cut, Machine, Recording, Tree};
use posthaste_turns::{Random, in_turns};

use crate::engine::Engine;
use crate::life::{logged, short, standalone, unblock};
use crate::mail::{Expected, Kind, Letter};
use crate::reader::Taken;

/// The kind of run, given a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Deliveries from the spool, for several lives.
    Local,
    /// One life with two messages and no faults: so short that all cuts can be made.
    Short,
    /// In each life and each recovery some syncs fail, or all of a file system.
    FailingSync,
    /// In each life and each recovery some changes of bytes or names fail, as on a full or bad disk.
    FailingWrite,
    /// With every third seed syncs fail, with another third changes.
    Standalone,
    /// `Local` without any sync.
    LocalWithoutSyncs,
    StandaloneWithoutSyncs,
}

const SCENARIOS: [(&str, Scenario); 7] = [
    ("local", Scenario::Local),
    ("short", Scenario::Short),
    ("failing-sync", Scenario::FailingSync),
    ("failing-write", Scenario::FailingWrite),
    ("standalone", Scenario::Standalone),
    ("local-without-syncs", Scenario::LocalWithoutSyncs),
    ("standalone-without-syncs", Scenario::StandaloneWithoutSyncs),
];

/// A recorded run, with everything needed to judge a cut of it.
pub struct Run {
    pub scenario: Scenario,
    pub seed: u64,
    /// For a recovery: the cut that it recovers from, and the earlier ones.
    pub cuts: Vec<Cut>,
    /// Letters handed over, by number.
    pub letters: Arc<[Arc<Letter>]>,
    pub recording: Recording,
    /// Acknowledged before the recording began.
    pub acknowledged: BTreeSet<u64>,
    /// Messages that other programs took away.
    pub taken: Vec<Taken>,
    /// A file system that was given up, and the change from which on: only a cut mounts it again.
    pub given_up: Option<(u64, u64)>,
}

/// Declared properties of the file system.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    pub syncfs_trusted: bool,
    pub ordered_log: bool,
    /// Mount points of file systems other than the spool's.
    pub mounts: &'static [&'static str],
}

impl Disk {
    /// Another kind for each seed.
    pub fn of(seed: u64) -> Self {
        let mounts = [&[][..], &["mail/rig/m1"], &["mail", "mail/rig/m2"]][(seed + seed / 3) as usize % 3];
        Disk { syncfs_trusted: seed % 4 < 2, ordered_log: seed.is_multiple_of(2), mounts }
    }

    fn boot(self, tree: &Tree) -> Machine {
        Machine::boot(tree, self.syncfs_trusted, self.ordered_log).expect("a directory")
    }
}

/// Prints how to repeat a panic, wherever it came from.
struct PrintReplayToken(String);

impl Drop for PrintReplayToken {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again with POSTHASTE_REPLAY={}", self.0);
        }
    }
}

impl Run {
    /// Makes a run and records it.
    pub fn record(scenario: Scenario, seed: u64) -> Run {
        let disk = Disk::of(seed);
        let machine = disk.boot(&Tree::with_mounts(disk.mounts));
        let mut run = Run {
            scenario,
            seed,
            cuts: Vec::new(),
            letters: Arc::default(),
            recording: machine.recording(),
            acknowledged: BTreeSet::new(),
            taken: Vec::new(),
            given_up: None,
        };
        let _told = PrintReplayToken(run.name());
        in_turns(seed, || match run.kind() {
            Kind::Standalone => standalone(&machine, &mut run),
            _ if scenario == Scenario::Short => short(&machine, &mut run),
            _ => logged(&machine, &mut run),
        });
        nothing_past_the_door(&machine);
        run.recording = machine.recording();
        if run.is_without_syncs() {
            run.recording = run.recording.without_syncs(|_| true);
        }
        run
    }

    /// The kind of executor.
    pub fn kind(&self) -> Kind {
        match self.scenario {
            Scenario::Standalone | Scenario::StandaloneWithoutSyncs => Kind::Standalone,
            _ => Kind::Local,
        }
    }

    pub fn has_failing_sync(&self) -> bool {
        let of_standalone = self.scenario == Scenario::Standalone && self.seed.is_multiple_of(3);
        of_standalone || self.scenario == Scenario::FailingSync
    }

    pub fn has_failing_write(&self) -> bool {
        let of_standalone = self.scenario == Scenario::Standalone && self.seed % 3 == 1;
        of_standalone || self.scenario == Scenario::FailingWrite
    }

    pub fn is_without_syncs(&self) -> bool {
        matches!(self.scenario, Scenario::LocalWithoutSyncs | Scenario::StandaloneWithoutSyncs)
    }

    /// The text that repeats the run.
    pub fn name(&self) -> String {
        let (name, _) = SCENARIOS.iter().find(|(_, scenario)| *scenario == self.scenario).expect("all have names");
        let cuts: String = self.cuts.iter().map(|cut| format!("/{cut}")).collect();
        format!("{name}:{}{cuts}", self.seed)
    }

    /// The text that repeats a cut of it.
    pub fn token(&self, cut: Cut) -> String {
        format!("{}/{cut}", self.name())
    }

    fn expected(&self, position: usize) -> Expected {
        let mut taken = BTreeMap::new();
        for entry in self.taken.iter().filter(|taken| taken.since <= position) {
            // A message first moved and then removed need not be there.
            *taken.entry((entry.number, entry.mailbox)).or_insert(true) &= entry.is_kept;
        }
        Expected {
            kind: self.kind(),
            letters: self.letters.clone(),
            acknowledged: self
                .acknowledged
                .iter()
                .copied()
                .chain(self.recording.acknowledged_before(position))
                .collect(),
            taken,
            has_failed: self.has_failing_sync(),
        }
    }

    /// Makes a cut and examines the result; `Ok` with the recorded recovery, `Err` with the fault and how to repeat it.
    pub fn examine(&self, cut: Cut) -> Result<Run, String> {
        let expected = self.expected(cut.position);
        let machine = Disk::of(self.seed).boot(&self.recording.cut(cut));
        let taken = expected.taken.into_iter();
        let mut recovery = Run {
            recording: machine.recording(),
            letters: expected.letters,
            acknowledged: expected.acknowledged,
            taken: taken.map(|((number, mailbox), is_kept)| Taken { number, mailbox, since: 0, is_kept }).collect(),
            cuts: [&self.cuts[..], &[cut]].concat(),
            given_up: None,
            ..*self
        };
        let token = recovery.name();
        let _told = PrintReplayToken(token.clone());
        let looked_at = match self.kind() {
            Kind::Standalone => recovery.expected(0).check(&machine.path().join("mail")).map(drop),
            _ => in_turns(digest(&token), || recovery.recover(&machine, digest(&token))),
        };
        // The directory has another name each time.
        let root = machine.path().display().to_string();
        looked_at.map_err(|what| format!("{}; again with POSTHASTE_REPLAY={token}", what.replace(&root, "")))?;
        nothing_past_the_door(&machine);
        recovery.recording = machine.recording();
        Ok(recovery)
    }

    /// Starts the server after a cut, ends it, and starts it again, which must change nothing. Before that, one
    /// ordinary life.
    fn recover(&mut self, machine: &Machine, seed: u64) -> Result<(), String> {
        let mail = machine.path().join("mail");
        let mut random = Random::new(seed);
        unblock(machine);
        if random.below(2) == 0 {
            self.live(machine, &mut random, 1);
            self.recording = machine.recording();
            if self.given_up.is_some() {
                // The next cut shows the content of that disk.
                return Ok(());
            }
        }
        let expected = self.expected(self.recording.events.len());
        let mut before = None;
        for _ in 0..2 {
            let opened = Engine::open(machine.path());
            let engine = opened.map_err(|error| format!("opens not: {error}"))?;
            let now = expected.check(&mail)?;
            engine.checkpoint();
            // Bodies that nobody needs must not stay.
            if let Some((stream, held)) = engine.held().into_iter().find(|(_, (_, bodies))| *bodies > 0) {
                return Err(format!("{stream} holds {held:?} for nothing"));
            }
            drop(engine);
            let ended = expected.check(&mail)?;
            if before.is_some_and(|before| before != now) || ended != now {
                return Err("a second start has changed the mailboxes".into());
            }
            before = Some(now);
        }
        Ok(())
    }
}

/// Records the run, or the recovery, named by a token.
pub fn recorded(token: &str) -> Result<Run, String> {
    let mut parts = token.split('/');
    let parse = |text: &str| {
        let (name, seed) = text.split_once(':')?;
        let (_, scenario) = SCENARIOS.iter().find(|(known, _)| *known == name)?;
        Some((*scenario, seed.parse().ok()?))
    };
    let named = parts.next().and_then(parse);
    let (scenario, seed) =
        named.ok_or_else(|| format!("{token:?} is not a scenario with its seed, such as local:3"))?;
    parts.try_fold(Run::record(scenario, seed), |run, cut| run.examine(cut.parse()?))
}

/// Makes the cut named by a token.
pub fn again(token: &str) -> Result<(), String> {
    recorded(token).map(drop)
}

/// The record is complete.
fn nothing_past_the_door(machine: &Machine) {
    assert_eq!(machine.unrecorded().expect("it can be read"), Vec::<std::path::PathBuf>::new(), "past the door");
}

/// FNV-1a: another seed for each text.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
