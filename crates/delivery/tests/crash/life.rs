//! Events in the life of an executor, from a start to an end or a kill.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use posthaste_delivery::DeliveryExecutor;
use posthaste_fsops::{Faults, Machine};
use posthaste_turns::Random;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::runtime::Runtime;

use crate::engine::Engine;
use crate::mail::{Letter, MAILBOXES, name_of};
use crate::reader::Reader;
use crate::run::Run;

impl Run {
    /// A life of the executor, from a start to an end or a kill: mail in `groups`, checkpoints, a reader, and faults.
    pub fn live(&mut self, machine: &Machine, random: &mut Random, groups: usize) {
        // An opening makes many syncs: if one of them always failed, few lives would get any further.
        let opens_well = random.below(4) != 0;
        let mut faults = if opens_well {
            Faults { read_only: self.given_up, ..Faults::default() }
        } else {
            self.faults(machine, random)
        };
        machine.set_faults(faults.clone());
        match Engine::open(machine.path()) {
            Err(error) => {
                let may_fail = faults != Faults::default() || self.is_without_syncs();
                assert!(may_fail, "opens not where nothing fails: {error}");
            }
            Ok(engine) => {
                if opens_well {
                    faults = self.faults(machine, random);
                    machine.set_faults(faults.clone());
                }
                let runtime = runtime();
                let mut reader = Reader::default();
                (0..groups).for_each(|_| self.send_and_read(machine, random, (&runtime, &engine), &mut reader));
                if random.below(2) == 0 {
                    machine.kill();
                }
                drop(engine);
                // Ends other tasks' work for the executor.
                drop(runtime);
                self.taken.extend(reader.end());
            }
        }
        self.end(machine, &faults);
    }

    /// Ends the faults for the next life, except those that only a cut ends.
    fn end(&mut self, machine: &Machine, faults: &Faults) {
        self.given_up = faults.read_only.filter(|(_, from)| machine.counts().1 >= *from);
        machine.set_faults(Faults::default());
        machine.go_on();
    }

    fn send_and_read(
        &mut self,
        machine: &Machine,
        random: &mut Random,
        (runtime, engine): (&Runtime, &Engine),
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
            send(runtime, machine, engine, &new);
        });
        match choice {
            1 => engine.checkpoint(),
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

    /// The next faults.
    fn faults(&self, machine: &Machine, random: &mut Random) -> Faults {
        let mut faults = Faults { read_only: self.given_up, ..Faults::default() };
        if self.is_without_syncs() {
            return faults;
        }
        let (syncs, changes) = machine.counts();
        // One life of three has no faults: a spool that refuses writes after the first failure holds little.
        if self.has_failing_sync() && random.below(3) > 0 {
            let first = syncs + 1 + random.below(20);
            faults.fail_syncs = (0..1 + random.below(3)).map(|_| first + random.below(8)).collect();
            let mail = std::fs::File::open(machine.path().join("mail").join(name_of(random.below(MAILBOXES))));
            let device = mail.ok().and_then(posthaste_fsops::declared).map(|declared| declared.device);
            match random.below(4) {
                0 => faults.fail_syncs_on = device,
                1 if faults.read_only.is_none() => {
                    faults.read_only = device.map(|device| (device, changes + 1 + random.below(60)))
                }
                _ => {}
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

fn blocked(machine: &Machine) -> PathBuf {
    machine.path().join("mail").join(name_of(0))
}

/// Puts a file in the place of a mailbox: its mail must wait.
fn block(machine: &Machine) {
    let path = blocked(machine);
    let dirs = [path.parent().unwrap().parent().unwrap(), path.parent().unwrap()];
    for dir in dirs.into_iter().filter(|dir| !dir.exists()) {
        posthaste_fsops::mkdir(dir, Mode::RWXU).unwrap();
    }
    posthaste_fsops::open(&path, OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
}

pub fn unblock(machine: &Machine) {
    if blocked(machine).is_file() {
        posthaste_fsops::unlink(blocked(machine)).unwrap();
    }
}

/// An executor with a spool, for four lives; during two of them one mailbox is unwritable.
pub fn logged(machine: &Machine, run: &mut Run) {
    let mut random = Random::new(run.seed);
    block(machine);
    for life in 0..4 {
        if life == 2 {
            unblock(machine);
        }
        run.live(machine, &mut random, 4);
    }
}

/// One life of it, with two messages.
pub fn short(machine: &Machine, run: &mut Run) {
    let engine = Engine::open(machine.path()).expect("nothing fails");
    for _ in 0..2 {
        let new = run.more_letters(1);
        send(&runtime(), machine, &engine, &new);
    }
    // Its end makes a checkpoint.
    drop(engine);
}

/// A runtime without the driver of sockets, which would wait in the kernel instead of in turn.
pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

/// Hands over some messages at once, and records the durable ones as soon as they are reported.
pub fn send(runtime: &Runtime, machine: &Machine, engine: &Engine, letters: &[Arc<Letter>]) {
    let local = tokio::task::LocalSet::new();
    local.block_on(runtime, at_once(letters.iter().map(|letter| engine.send(machine, letter))));
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

/// Two lives of a standalone executor: all acknowledged mail is there, whole, without any recovery.
pub fn standalone(machine: &Machine, run: &mut Run) {
    let mut random = Random::new(run.seed);
    for _ in 0..2 {
        let faults = run.faults(machine, &mut random);
        machine.set_faults(faults.clone());
        runtime().block_on(async {
            let executor = DeliveryExecutor::with_config(8, Duration::ZERO);
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
        run.end(machine, &faults);
    }
}
