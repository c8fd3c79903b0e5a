//! Scenarios on a watched machine, and what recovers from their cuts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use posthaste_delivery::{Body, DeliveryError, DeliveryExecutor, Journaled, JournaledConfig, Message};
use posthaste_fsops::{Cut, Faults, Machine, Recording, Tree};
use posthaste_turns::{Random, in_turns};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::runtime::Runtime;

use crate::mail::{Expected, Kind, Letter, MAILBOXES, name_of};
use crate::reader::{Reader, Taken};

/// What is done, from the seed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    Journaled,
    /// In each life and each recovery some syncs fail, or all of a file system.
    FailingSync,
    /// In each life and each recovery some changes fail, of bytes or names, as on a full disk or a bad one.
    FailingWrite,
    /// With every third seed syncs fail, with another third changes.
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
    pub letters: Arc<[Arc<Letter>]>,
    pub recording: Recording,
    /// Acknowledged before the recording began.
    pub acknowledged: BTreeSet<u64>,
    /// What other programs took away.
    pub taken: Vec<Taken>,
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
            taken: Vec::new(),
        };
        let _told = Told(run.name());
        in_turns(seed, || match run.kind() {
            Kind::Journaled => journaled(&machine, &mut run),
            Kind::Standalone => standalone(&machine, &mut run),
        });
        nothing_past_the_door(&machine);
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

    fn has_failing_write(&self) -> bool {
        self.scenario == Scenario::FailingWrite || self.scenario == Scenario::Standalone && self.seed % 3 == 1
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
        let mut taken = BTreeMap::new();
        for entry in self.taken.iter().filter(|taken| taken.since <= position) {
            // Of what was first moved and then removed nothing needs to be there.
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

    /// Makes a cut and looks at what it has left; `Ok` with the recovery on record, `Err` with what is wrong and how to have it again.
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
            ..*self
        };
        let token = recovery.name();
        let _told = Told(token.clone());
        let looked_at = match self.kind() {
            Kind::Standalone => recovery.expected(0).check(&machine.path().join("mail")).map(drop),
            Kind::Journaled => in_turns(digest(&token), || recovery.recover(&machine, digest(&token))),
        };
        // The directory has another name each time.
        let root = machine.path().display().to_string();
        looked_at.map_err(|what| format!("{}; again with POSTHASTE_REPLAY={token}", what.replace(&root, "")))?;
        nothing_past_the_door(&machine);
        recovery.recording = machine.recording();
        Ok(recovery)
    }

    /// The server starts on what a cut has left, ends, and starts again, which must change nothing. One life before these is like any other.
    fn recover(&mut self, machine: &Machine, seed: u64) -> Result<(), String> {
        let mail = machine.path().join("mail");
        let mut random = Random::new(seed);
        unblock(machine);
        if random.below(2) == 0 {
            self.live(machine, &mut random, 1);
            self.recording = machine.recording();
        }
        let expected = self.expected(self.recording.events.len());
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

    /// A life of the executor, from a start to an end or a kill: mail in so many groups, checkpoints, a reader, and whatever fails.
    fn live(&mut self, machine: &Machine, random: &mut Random, groups: usize) {
        let faults = self.faults(machine, random);
        machine.set_faults(faults.clone());
        match Journaled::open(config(machine.path())) {
            Err(error) => assert!(faults != Faults::default(), "opens not where nothing fails: {error}"),
            Ok((journaled, _)) => {
                let runtime = runtime();
                let mut reader = Reader::default();
                (0..groups).for_each(|_| self.send_and_read(machine, random, (&runtime, &journaled), &mut reader));
                if random.below(2) == 0 {
                    machine.kill();
                }
                drop(journaled);
                // With it goes what others still did for the executor.
                drop(runtime);
                self.taken.extend(reader.end());
            }
        }
        machine.set_faults(Faults::default());
        machine.go_on();
    }

    fn send_and_read(
        &mut self,
        machine: &Machine,
        random: &mut Random,
        (runtime, journaled): (&Runtime, &Journaled),
        reader: &mut Reader,
    ) {
        let new = self.more_letters(1 + random.below(6));
        reader.letters = self.letters.clone();
        let choice = random.below(5);
        let mut random = Random::new(random.below(u64::MAX));
        std::thread::scope(|scope| {
            if choice == 0 {
                scope.spawn(|| reader.act(machine, &mut random));
            }
            send(runtime, machine, journaled, &new);
        });
        match choice {
            1 => drop(journaled.checkpoint()),
            2 => reader.act(machine, &mut random),
            _ => {}
        }
    }

    fn more_letters(&mut self, count: u64) -> Vec<Arc<Letter>> {
        let first = self.letters.len() as u64;
        let new: Vec<_> = (first..first + count).map(|number| Arc::new(Letter::new(self.seed, number))).collect();
        self.letters = self.letters.iter().chain(&new).cloned().collect();
        new
    }

    /// What goes wrong next.
    fn faults(&self, machine: &Machine, random: &mut Random) -> Faults {
        let mut faults = Faults::default();
        if matches!(self.scenario, Scenario::JournaledWithoutSyncs | Scenario::StandaloneWithoutSyncs) {
            return faults;
        }
        let (syncs, changes) = machine.counts();
        if self.has_failing_sync() {
            let first = syncs + 1 + random.below(20);
            faults.fail_syncs = (0..1 + random.below(3)).map(|_| first + random.below(8)).collect();
            let mail = std::fs::File::open(machine.path().join("mail").join(name_of(random.below(MAILBOXES))));
            if let (Ok(mail), 0) = (mail, random.below(4)) {
                faults.fail_syncs_on = posthaste_fsops::declared(mail).map(|declared| declared.device);
            }
        } else if self.has_failing_write() {
            let errno = if random.below(2) == 0 { Errno::IO } else { Errno::NOSPC };
            let first = changes + 1 + random.below(60);
            faults.fail_changes = Some((first..first + 1 + random.below(6), errno));
        }
        if random.below(3) == 0 {
            faults.kill_before = Some(syncs + changes + 1 + random.below(120));
        }
        faults
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

/// The record is complete.
fn nothing_past_the_door(machine: &Machine) {
    assert_eq!(machine.unrecorded().expect("it can be read"), Vec::<std::path::PathBuf>::new(), "past the door");
}

/// FNV-1a: another seed for each text.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
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

/// A journaled executor under way, for four lives; for two of them a mailbox cannot be written to.
fn journaled(machine: &Machine, run: &mut Run) {
    let mut random = Random::new(run.seed);
    block(machine);
    for life in 0..4 {
        if life == 2 {
            unblock(machine);
        }
        run.live(machine, &mut random, 4);
    }
}

/// Without the driver of sockets, which would wait in the kernel and not in turn.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

/// Hands over some messages at once and puts it on record which of them are durable, as soon as it is told.
fn send(runtime: &Runtime, machine: &Machine, journaled: &Journaled, letters: &[Arc<Letter>]) {
    let local = tokio::task::LocalSet::new();
    let one = async |letter: &Letter| {
        let mut message = letter.message();
        if letter.comes_in_pieces() && spool(journaled, &mut message).await.is_err() {
            return;
        }
        if journaled.deliver_message(message).await.is_ok() {
            machine.acknowledge(letter.number);
        }
    };
    local.block_on(runtime, at_once(letters.iter().map(|letter| one(letter))));
}

/// Waits for all of them.
async fn at_once(all: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut waiting: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        waiting.retain_mut(|each| each.as_mut().poll(context).is_pending());
        if waiting.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Hands over a body as it comes from a client that is slow.
async fn spool(journaled: &Journaled, message: &mut Message) -> Result<(), DeliveryError> {
    let mut writer = journaled.spool(message.body.len())?;
    if let Body::Memory(parts) = &message.body {
        for part in parts {
            writer.write(part).await?;
            writer.write_out().await?;
        }
    }
    message.body = Body::Spooled(writer.finish().await?);
    Ok(())
}

/// Two lives of a standalone executor: whatever it has said yes to is there, and nothing by halves, without any recovery.
fn standalone(machine: &Machine, run: &mut Run) {
    let mut random = Random::new(run.seed);
    for _ in 0..2 {
        machine.set_faults(run.faults(machine, &mut random));
        runtime().block_on(async {
            let executor = DeliveryExecutor::with_config(8, std::time::Duration::ZERO);
            let one = async |letter: &Letter| {
                let mut all = true;
                for mailbox in &letter.mailboxes {
                    let path = machine.path().join("mail").join(name_of(*mailbox));
                    all &= executor.deliver(path, letter.body()).await.is_ok();
                }
                if all {
                    machine.acknowledge(letter.number);
                }
            };
            for _ in 0..6 {
                let letters = run.more_letters(1 + random.below(8));
                at_once(letters.iter().map(|letter| one(letter))).await;
            }
            executor.shutdown().await;
        });
        machine.set_faults(Faults::default());
        machine.go_on();
    }
}
