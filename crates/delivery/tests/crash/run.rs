//! Scenarios on a watched machine, and what recovers from their cuts.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use posthaste_delivery::{DeliveryExecutor, Journaled, JournaledConfig};
use posthaste_fsops::{Cut, Faults, Machine, Recording, Tree};
use posthaste_maildir::{Flags, Maildir, Subdir};
use posthaste_turns::{Random, in_turns};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::runtime::Runtime;

use crate::mail::{Expected, Kind, Letter, MAILBOXES, name_of};

/// What is done, from the seed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    Journaled,
    /// Once in each life but the first a sync fails.
    FailingSync,
    /// Once in each life but the first a write fails, as on a full disk or a bad one.
    FailingWrite,
    /// With every third seed a sync fails.
    Standalone,
    /// As they would be without any sync.
    JournaledWithoutSyncs,
    StandaloneWithoutSyncs,
}

const SCENARIOS: [(&str, Scenario); 6] = [
    ("journaled", Scenario::Journaled),
    ("failing-sync", Scenario::FailingSync),
    ("failing-write", Scenario::FailingWrite),
    ("standalone", Scenario::Standalone),
    ("journaled-without-syncs", Scenario::JournaledWithoutSyncs),
    ("standalone-without-syncs", Scenario::StandaloneWithoutSyncs),
];

/// A run on record, with all that is needed to judge a cut of it.
pub struct Run {
    pub scenario: Scenario,
    pub seed: u64,
    /// If it is a recovery: the cut that it recovers from, and those before.
    pub cuts: Vec<Cut>,
    /// What was handed over, by number.
    pub letters: Arc<[Letter]>,
    pub recording: Recording,
    /// Acknowledged before the recording began.
    pub acknowledged: BTreeSet<u64>,
    /// Entries that their owner removed, and from which event on they may be missing.
    pub removed: Vec<(u64, u64, usize)>,
}

/// What the file system is declared to be.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    pub syncfs_trusted: bool,
    pub ordered_log: bool,
    /// Where other file systems begin than the one that the journal is on.
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

/// Tells how a panic, wherever it came from, can be had again.
struct Told(String);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again with POSTHASTE_REPLAY={}", self.0);
        }
    }
}

impl Run {
    /// Makes it and puts it on record.
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
            removed: Vec::new(),
        };
        let _told = Told(run.name());
        let letters = in_turns(seed, || match run.kind() {
            Kind::Journaled => journaled(&machine, &mut run),
            Kind::Standalone => standalone(&machine, &run),
        });
        assert_eq!(machine.unrecorded().expect("it can be read"), Vec::<std::path::PathBuf>::new(), "past the door");
        run.letters = (0..letters).map(|number| Letter::new(seed, number)).collect();
        run.recording = machine.recording();
        if matches!(scenario, Scenario::JournaledWithoutSyncs | Scenario::StandaloneWithoutSyncs) {
            run.recording = run.recording.without_syncs(|_| true);
        }
        run
    }

    /// Which executor.
    pub fn kind(&self) -> Kind {
        match self.scenario {
            Scenario::Standalone | Scenario::StandaloneWithoutSyncs => Kind::Standalone,
            _ => Kind::Journaled,
        }
    }

    fn has_failing_sync(&self) -> bool {
        self.scenario == Scenario::FailingSync || self.scenario == Scenario::Standalone && self.seed.is_multiple_of(3)
    }

    /// What makes it again.
    pub fn name(&self) -> String {
        let (name, _) = SCENARIOS.iter().find(|(_, scenario)| *scenario == self.scenario).expect("all have names");
        let cuts: String = self.cuts.iter().map(|cut| format!("/{cut}")).collect();
        format!("{name}:{}{cuts}", self.seed)
    }

    /// What makes a cut of it again.
    pub fn token(&self, cut: Cut) -> String {
        format!("{}/{cut}", self.name())
    }

    fn expected(&self, position: usize) -> Expected {
        let removed = self.removed.iter().filter(|(_, _, from)| *from <= position);
        Expected {
            kind: self.kind(),
            letters: self.letters.clone(),
            acknowledged: self
                .acknowledged
                .iter()
                .copied()
                .chain(self.recording.acknowledged_before(position))
                .collect(),
            removed: removed.map(|&(number, mailbox, _)| (number, mailbox)).collect(),
            has_failed: self.has_failing_sync(),
        }
    }

    /// Makes a cut and looks at what it has left; `Ok` with the recovery on record, `Err` with what is wrong and how to have it again.
    pub fn examine(&self, cut: Cut) -> Result<Run, String> {
        let token = self.token(cut);
        let _told = Told(token.clone());
        let expected = self.expected(cut.position);
        let machine = Disk::of(self.seed).boot(&self.recording.cut(cut));
        let looked_at = match self.kind() {
            Kind::Standalone => expected.check(&machine.path().join("mail")).map(drop),
            Kind::Journaled => in_turns(digest(&token), || recover(&machine, &expected)),
        };
        // The directory has another name each time.
        let root = machine.path().display().to_string();
        looked_at.map_err(|what| format!("{}; again with POSTHASTE_REPLAY={token}", what.replace(&root, "")))?;
        Ok(Run {
            recording: machine.recording(),
            letters: expected.letters,
            acknowledged: expected.acknowledged,
            removed: expected.removed.into_iter().map(|(number, mailbox)| (number, mailbox, 0)).collect(),
            cuts: [&self.cuts[..], &[cut]].concat(),
            ..*self
        })
    }
}

/// Records the run that a token names, or the recovery.
pub fn recorded(token: &str) -> Result<Run, String> {
    let mut parts = token.split('/');
    let parse = |text: &str| {
        let (name, seed) = text.split_once(':')?;
        let (_, scenario) = SCENARIOS.iter().find(|(known, _)| *known == name)?;
        Some((*scenario, seed.parse().ok()?))
    };
    let named = parts.next().and_then(parse);
    let (scenario, seed) =
        named.ok_or_else(|| format!("{token:?} is no scenario with its seed, such as journaled:3"))?;
    parts.try_fold(Run::record(scenario, seed), |run, cut| run.examine(cut.parse()?))
}

/// Makes the very cut that a token names.
pub fn again(token: &str) -> Result<(), String> {
    recorded(token).map(drop)
}

/// FNV-1a: another seed for each text.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The server starts on what a cut has left, ends, and starts again, which must change nothing.
fn recover(machine: &Machine, expected: &Expected) -> Result<(), String> {
    let mail = machine.path().join("mail");
    unblock(machine);
    let mut before = None;
    for _ in 0..2 {
        let (journaled, report) =
            Journaled::open(config(machine.path())).map_err(|error| format!("opens not: {error}"))?;
        if let Some(damage) = report.damage.iter().find(|damage| damage.promised) {
            return Err(format!("promised mail is damaged: {damage:?}"));
        }
        let now = expected.check(&mail)?;
        drop(journaled);
        let ended = expected.check(&mail)?;
        if before.is_some_and(|before| before != now) || ended != now {
            return Err("a second start has changed the mailboxes".into());
        }
        before = Some(now);
    }
    Ok(())
}

fn config(dir: &Path) -> JournaledConfig {
    let journal = posthaste_journal::Config { segment_bytes: 64 << 10, max_segments: 8, ..Default::default() };
    JournaledConfig {
        journal,
        host: "rig.example".into(),
        inline_bytes_max: 4096,
        checkpoint_bytes: 48 << 10,
        ..JournaledConfig::new(dir.join("journal"), dir.join("mail"))
    }
}

fn blocked(machine: &Machine) -> std::path::PathBuf {
    machine.path().join("mail").join(name_of(0))
}

/// A file where a mailbox should be: its mail has to wait.
fn block(machine: &Machine) {
    let path = blocked(machine);
    let dirs = [path.parent().unwrap().parent().unwrap(), path.parent().unwrap()];
    for dir in dirs.into_iter().filter(|dir| !dir.exists()) {
        posthaste_fsops::mkdir(dir, Mode::RWXU).unwrap();
    }
    posthaste_fsops::open(&path, OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
}

fn unblock(machine: &Machine) {
    if blocked(machine).is_file() {
        posthaste_fsops::unlink(blocked(machine)).unwrap();
    }
}

/// A journaled executor under way, and how many messages it was handed: mail, a mailbox that cannot be written to, checkpoints, a reader, kills, and a sync or a write that fails.
fn journaled(machine: &Machine, run: &mut Run) -> u64 {
    let seed = run.seed;
    let runtime = runtime();
    let mut random = Random::new(seed);
    let mut letters = 0;
    block(machine);
    for life in 0..4 {
        if life == 2 {
            unblock(machine);
        }
        let (syncs, writes) = machine.counts();
        match run.scenario {
            Scenario::FailingSync if life > 0 => {
                machine.set_faults(Faults { fail_sync: Some(syncs + 1 + random.below(25)), ..Faults::default() });
            }
            Scenario::FailingWrite if life > 0 => {
                let errno = if random.below(2) == 0 { Errno::IO } else { Errno::NOSPC };
                let due = writes + 1 + random.below(40);
                machine.set_faults(Faults { fail_write: Some((due, errno)), ..Faults::default() });
            }
            _ => {}
        }
        let Ok((journaled, _)) = Journaled::open(config(machine.path())) else {
            let fails = matches!(run.scenario, Scenario::FailingSync | Scenario::FailingWrite);
            assert!(fails, "it opens where nothing fails");
            continue;
        };
        for _ in 0..4 {
            let group = letters..letters + 1 + random.below(6);
            letters = group.end;
            send(&runtime, machine, &journaled, seed, group);
            match random.below(4) {
                0 => drop(journaled.checkpoint()),
                1 => read_some(machine, seed, &mut random, &mut run.removed),
                _ => {}
            }
        }
        if random.below(2) == 0 {
            machine.kill();
        }
        drop(journaled);
        machine.go_on();
    }
    letters
}

/// Without the driver of sockets, which would wait in the kernel and not in turn.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

/// Hands over some messages at once and puts it on record which of them are durable, as soon as it is told.
fn send(runtime: &Runtime, machine: &Machine, journaled: &Journaled, seed: u64, numbers: std::ops::Range<u64>) {
    let local = tokio::task::LocalSet::new();
    let one = async |number| {
        if journaled.deliver_message(Letter::new(seed, number).message()).await.is_ok() {
            machine.acknowledge(number);
        }
    };
    let all = async {
        let mut waiting: Vec<_> = numbers.map(|number| Box::pin(one(number))).collect();
        std::future::poll_fn(|context| {
            waiting.retain_mut(|each| each.as_mut().poll(context).is_pending());
            if waiting.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    };
    local.block_on(runtime, all);
}

/// A mail program: it marks a message as seen, or removes it.
fn read_some(machine: &Machine, seed: u64, random: &mut Random, removed: &mut Vec<(u64, u64, usize)>) {
    let mailbox = random.below(MAILBOXES);
    let Ok(maildir) = Maildir::open(machine.path().join("mail").join(name_of(mailbox))) else { return };
    for (dir, name) in maildir.scan().expect("names").into_iter().take(2) {
        let Ok(Some(found)) = maildir.find(&name) else { continue };
        if random.below(3) == 0 {
            let text = String::from_utf8_lossy(&maildir.read(dir, &found.name).expect("a message")).into_owned();
            let number = text.lines().find_map(|line| line.strip_prefix("Number: ")).expect("a number of ours");
            let number = number.parse().expect("a number");
            debug_assert!(Letter::new(seed, number).mailboxes.contains(&mailbox));
            removed.push((number, mailbox, machine.position()));
            maildir.remove(dir, &found.name).expect("removed");
        } else if dir == Subdir::New {
            maildir.set_flags(&found, Flags::SEEN).expect("moved");
        }
    }
}

/// A standalone executor, and how many messages it was handed: whatever it has said yes to is there, and nothing by halves, without any recovery.
fn standalone(machine: &Machine, run: &Run) -> u64 {
    let seed = run.seed;
    let mut random = Random::new(seed);
    let mut letters = 0;
    if run.has_failing_sync() {
        machine.set_faults(Faults { fail_sync: Some(5 + random.below(20)), ..Faults::default() });
    }
    runtime().block_on(async {
        let executor = DeliveryExecutor::with_config(8, std::time::Duration::ZERO);
        for _ in 0..10 {
            let group = letters..letters + 1 + random.below(8);
            letters = group.end;
            let one = async |number| {
                let letter = Letter::new(seed, number);
                let mut all = true;
                for mailbox in &letter.mailboxes {
                    let path = machine.path().join("mail").join(name_of(*mailbox));
                    all &= executor.deliver(path, letter.body()).await.is_ok();
                }
                if all {
                    machine.acknowledge(number);
                }
            };
            let mut waiting: Vec<_> = group.map(|number| Box::pin(one(number))).collect();
            std::future::poll_fn(|context| {
                waiting.retain_mut(|each| each.as_mut().poll(context).is_pending());
                if waiting.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
        }
        executor.shutdown().await;
    });
    letters
}
