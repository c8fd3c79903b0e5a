//! Scenarios on a watched machine, and what recovers from their cuts.

use std::collections::BTreeSet;
use std::path::Path;

use posthaste_delivery::{DeliveryExecutor, Journaled, JournaledConfig};
use posthaste_fsops::{Cut, Faults, Machine, Recording, Tree};
use posthaste_maildir::{Flags, Maildir, Subdir};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::mail::{Expected, Kind, Letter, MAILBOXES, Random, name_of};

/// A run on record, with all that is needed to judge a cut of it. A finding is kept as a file of this.
#[derive(Clone, Serialize, Deserialize)]
pub struct Run {
    pub kind: Kind,
    pub seed: u64,
    pub letters: u64,
    pub recording: Recording,
    pub disk: Disk,
    /// Acknowledged before the recording began.
    pub acknowledged: BTreeSet<u64>,
    /// Entries that their owner removed, and from which event on they may be missing.
    pub removed: Vec<(u64, u64, usize)>,
    pub has_failed: bool,
}

/// What the file system is declared to be.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Disk {
    pub syncfs_trusted: bool,
    pub ordered_log: bool,
}

impl Disk {
    /// Another kind for each seed.
    pub fn of(seed: u64) -> Self {
        Disk { syncfs_trusted: seed % 4 < 2, ordered_log: seed.is_multiple_of(2) }
    }

    fn boot(self, tree: &Tree) -> Machine {
        Machine::boot(tree, self.syncfs_trusted, self.ordered_log).expect("a directory")
    }
}

impl Run {
    fn expected(&self, position: usize) -> Expected {
        let removed = self.removed.iter().filter(|(_, _, from)| *from <= position);
        Expected {
            kind: self.kind,
            seed: self.seed,
            letters: self.letters,
            acknowledged: self
                .acknowledged
                .iter()
                .copied()
                .chain(self.recording.acknowledged_before(position))
                .collect(),
            removed: removed.map(|&(number, mailbox, _)| (number, mailbox)).collect(),
            has_failed: self.has_failed,
        }
    }

    /// Makes a cut and looks at what it has left; `Ok` with the recovery on record, `Err` with what is wrong.
    pub fn examine(&self, cut: Cut) -> Result<Run, String> {
        let expected = self.expected(cut.position);
        let machine = self.disk.boot(&self.recording.cut(cut));
        if self.kind == Kind::Standalone {
            expected.check(&machine.path().join("mail"))?;
        } else {
            recover(&machine, &expected)?;
        }
        Ok(Run {
            recording: machine.recording(),
            acknowledged: expected.acknowledged,
            removed: expected.removed.into_iter().map(|(number, mailbox)| (number, mailbox, 0)).collect(),
            ..*self
        })
    }
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
    for dir in [path.parent().unwrap().parent().unwrap(), path.parent().unwrap()] {
        posthaste_fsops::mkdir(dir, Mode::RWXU).unwrap();
    }
    posthaste_fsops::open(&path, OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
}

fn unblock(machine: &Machine) {
    if blocked(machine).is_file() {
        posthaste_fsops::unlink(blocked(machine)).unwrap();
    }
}

/// A journaled executor under way: mail, a mailbox that cannot be written to, checkpoints, a reader, kills, and with `failing` a sync that fails.
pub fn journaled(seed: u64, disk: Disk, failing: bool) -> Run {
    let machine = disk.boot(&Tree::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut random = Random::new(seed);
    let mut removed = Vec::new();
    let mut letters = 0;
    block(&machine);
    for life in 0..4 {
        if life == 2 {
            unblock(&machine);
        }
        if failing && life > 0 {
            let due = machine.counts().0 + 1 + random.below(25);
            machine.set_faults(Faults { fail_sync: Some(due), ..Faults::default() });
        }
        let Ok((journaled, _)) = Journaled::open(config(machine.path())) else {
            assert!(failing, "it opens where nothing fails");
            continue;
        };
        for _ in 0..4 {
            let group = letters..letters + 1 + random.below(6);
            letters = group.end;
            send(&runtime, &machine, &journaled, seed, group);
            match random.below(4) {
                0 => drop(journaled.checkpoint()),
                1 => read_some(&machine, seed, &mut random, &mut removed),
                _ => {}
            }
        }
        if random.below(2) == 0 {
            machine.kill();
        }
        drop(journaled);
        machine.go_on();
    }
    let run = Run {
        kind: Kind::Journaled,
        seed,
        letters,
        recording: machine.recording(),
        disk,
        acknowledged: BTreeSet::new(),
        removed,
        has_failed: failing,
    };
    assert_eq!(machine.unrecorded().expect("it can be read"), Vec::<std::path::PathBuf>::new(), "past the door");
    run
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

/// A standalone executor: whatever it has said yes to is there, and nothing by halves, without any recovery.
pub fn standalone(seed: u64, disk: Disk, failing: bool) -> Run {
    let machine = disk.boot(&Tree::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut random = Random::new(seed);
    let mut letters = 0;
    if failing {
        machine.set_faults(Faults { fail_sync: Some(5 + random.below(20)), ..Faults::default() });
    }
    runtime.block_on(async {
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
    assert_eq!(machine.unrecorded().expect("it can be read"), Vec::<std::path::PathBuf>::new(), "past the door");
    Run {
        kind: Kind::Standalone,
        seed,
        letters,
        recording: machine.recording(),
        disk,
        acknowledged: BTreeSet::new(),
        removed: Vec::new(),
        has_failed: failing,
    }
}
