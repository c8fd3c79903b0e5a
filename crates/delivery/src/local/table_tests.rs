//! Table and history against a simple world: files in the page cache, on the disk or lost, and a log cut short by a
//! kill.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use posthaste_spool::Lsn;
use posthaste_turns::Random;

use super::entry::{LocalEntry, MailboxDelivery, Removal, Visible};
use super::history::History;
use super::message::{LineEnds, MailboxTarget};
use super::table::{Key, State, Table, Taken, Task, memory_of};
use crate::session::{SessionTag, TAG_BYTES};

/// The true state of a target's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum File {
    Absent,
    /// Whole in the page cache.
    Cached,
    /// Readable, but never on the disk: a sync has failed.
    Lost,
    Durable,
    /// Partly on the disk, after a power cut.
    Torn,
    /// Removed by its owner.
    Taken,
    /// Its mailbox was removed: it must not be written any more.
    Removed,
}

struct World {
    random: Random,
    log: Vec<LocalEntry>,
    /// Durable entries of the log.
    durable: usize,
    /// Positions returned since the last checkpoint; a kill may go back to one of them.
    positions: Vec<Lsn>,
    session: u8,
    files: BTreeMap<Key, File>,
    table: Table<()>,
    queued: BTreeSet<Key>,
    waiting: BTreeSet<Key>,
    /// Visible, and not noted yet.
    unnoted: Vec<Key>,
    /// Targets being written; true if a sync has failed meanwhile.
    writing: HashMap<Key, (Task, bool)>,
    /// The entry of a sync's beginning, the targets it covers, and the page cache then.
    sync: Option<(Lsn, Vec<Key>, Vec<Key>)>,
}

impl World {
    fn new(seed: u64) -> Self {
        World {
            random: Random::new(seed),
            log: Vec::new(),
            durable: 0,
            positions: vec![Lsn::ZERO],
            session: 1,
            files: BTreeMap::new(),
            table: Table::default(),
            queued: BTreeSet::new(),
            waiting: BTreeSet::new(),
            unnoted: Vec::new(),
            writing: HashMap::new(),
            sync: None,
        }
    }

    fn tag(&self) -> SessionTag {
        SessionTag([self.session; TAG_BYTES])
    }

    fn append(&mut self, entry: LocalEntry) -> Lsn {
        self.log.push(entry);
        let lsn = Lsn::new(self.log.len() as u64);
        self.table.saw(lsn);
        lsn
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.random.below(one_in) == 0
    }

    fn pick(&mut self, keys: impl IntoIterator<Item = Key>) -> Option<Key> {
        let keys: Vec<Key> = keys.into_iter().collect();
        (!keys.is_empty()).then(|| keys[self.random.below(keys.len() as u64) as usize])
    }

    fn receive(&mut self) {
        let count = 1 + self.random.below(2) as u16;
        let target =
            |number: u16| (number, MailboxTarget { mailbox: format!("m{number}").into(), prefix: Bytes::new() });
        let deliver = MailboxDelivery {
            secs: 1,
            internal_date: 1,
            nonce: 2,
            host: "h".into(),
            line_ends: LineEnds::AsGiven,
            body: None,
            large: None,
            targets: (0..count).map(target).collect(),
        };
        let lsn = self.append(LocalEntry::Deliver(deliver.clone()));
        // It was acknowledged.
        self.durable = self.log.len();
        let targets = (0..count).map(|number| (number, State::Queued, Task::Write));
        self.table.insert(lsn, lsn, Arc::new(deliver), 10, None, targets);
        for number in 0..count {
            self.queued.insert((lsn, number));
            self.files.insert((lsn, number), File::Absent);
        }
    }

    fn take(&mut self) {
        let Some(key) = self.pick(self.queued.clone()) else { return };
        self.queued.remove(&key);
        let Taken { task, is_removed, .. } = self.table.take(key);
        assert_eq!(is_removed, self.files[&key] == File::Removed, "{key:?}");
        if is_removed {
            self.table.gave_up(key);
            return;
        }
        self.writing.insert(key, (task, false));
    }

    /// Finishes a thread's work on a file.
    fn finish(&mut self) {
        let Some(key) = self.pick(self.writing.keys().copied().collect::<BTreeSet<_>>()) else { return };
        let (task, overlapped) = self.writing.remove(&key).expect("picked");
        let fails = self.chance(5);
        let before = self.files[&key];
        let after = match (task, before) {
            (Task::Write, File::Absent) => File::Cached,
            (Task::Write, _) => panic!("{key:?} is written without a look: {before:?}"),
            (Task::LookFirst, File::Lost) if !overlapped => panic!("{key:?} reads well and is believed"),
            (Task::LookFirst, File::Cached | File::Durable | File::Lost) => before,
            // It was visible before: its owner has removed it.
            (Task::RenewIfThere, File::Taken) => File::Taken,
            (Task::RenewIfThere, File::Absent) => panic!("{key:?} was never there and is not written"),
            _ => File::Cached,
        };
        let is_new = after == File::Cached && !(task == Task::LookFirst && before == File::Cached);
        let lost = is_new && overlapped && self.chance(2);
        if fails {
            // It may have been published before another step failed.
            if is_new && self.chance(2) {
                self.files.insert(key, if lost { File::Lost } else { after });
            }
            self.table.failed(key);
            self.waiting.insert(key);
            return;
        }
        self.files.insert(key, if lost { File::Lost } else { after });
        if self.table.written(key) {
            self.unnoted.push(key);
        } else {
            self.queued.insert(key);
        }
    }

    fn note(&mut self) {
        let targets = std::mem::take(&mut self.unnoted);
        if !targets.is_empty() {
            self.append(LocalEntry::Visible(Visible { session: self.tag(), targets }));
        }
    }

    fn begin_sync(&mut self) {
        if self.sync.is_some() || !self.table.has_visible() {
            return;
        }
        let covered = self.table.sync_begins();
        if self.chance(8) {
            return self.table.sync_did_not_begin(covered);
        }
        self.note();
        let begun = self.append(LocalEntry::SyncBegun { session: self.tag() });
        self.durable = self.log.len();
        let cached = self.files.iter().filter(|(_, file)| **file == File::Cached).map(|(key, _)| *key).collect();
        self.sync = Some((begun, covered, cached));
    }

    fn sync_writes(&mut self, cached: &[Key]) {
        for key in cached {
            if self.files[key] == File::Cached {
                self.files.insert(*key, File::Durable);
            }
        }
    }

    /// Loses the page cache, all of it or some.
    fn sync_loses(&mut self) {
        let cached: Vec<Key> =
            self.files.iter().filter(|(_, file)| **file == File::Cached).map(|(key, _)| *key).collect();
        for key in cached {
            if !self.chance(3) {
                self.files.insert(key, File::Lost);
            }
        }
    }

    fn end_sync(&mut self) {
        let Some((begun, covered, cached)) = self.sync.take() else { return };
        if self.chance(3) {
            self.sync_loses();
            self.writing.values_mut().for_each(|(_, overlapped)| *overlapped = true);
            // A note taken before may still be appended.
            if self.chance(3) {
                self.note();
            }
            self.unnoted.clear();
            self.queued.extend(self.table.sync_failed(begun));
        } else {
            // A file rewritten meanwhile was not written by the sync.
            self.sync_writes(&cached);
            self.append(LocalEntry::Synced { begun });
            self.table.synced(&covered);
        }
        if self.chance(3) {
            self.carry();
        }
        self.advance();
    }

    fn carry(&mut self) {
        let mut through = Lsn::new(self.random.below(self.log.len() as u64 + 1));
        let in_doubt = self.table.is_in_doubt();
        if in_doubt {
            through = self.append(LocalEntry::SyncBegun { session: self.tag() });
        }
        let (mut after, step) = (Lsn::ZERO, self.random.below(2000));
        for removal in self.table.old_removals(through) {
            let entry = self.append(LocalEntry::Removal(removal.clone()));
            self.table.removed(entry, removal);
        }
        loop {
            let laggards = self.table.laggards(through, after, step);
            let Some(last) = laggards.last() else { break };
            after = last.body.expect("it is an older one").lsn;
            for deliver in laggards {
                let body = deliver.body.expect("it is an older one").lsn;
                // Another thread runs in between.
                if self.chance(4) {
                    self.take();
                }
                let entry = self.append(LocalEntry::Deliver(deliver));
                assert!(self.table.carried(body, entry));
            }
        }
        self.durable = self.log.len();
        if in_doubt {
            self.table.doubt_carried(through);
        }
    }

    fn advance(&mut self) {
        self.table.all_is_carried();
        let (below, also) = self.table.take_released();
        let released = |key: &Key| key.0 < below || also.contains(&key.0);
        for (key, file) in self.files.iter().filter(|(key, _)| released(key)) {
            assert!(
                matches!(file, File::Durable | File::Taken | File::Removed),
                "the body of {key:?} is let go: {file:?}"
            );
        }
        self.positions.push(self.table.position());
    }

    fn kill(&mut self, power_goes: bool) {
        self.unnoted.clear();
        if let Some((_, _, cached)) = self.sync.take() {
            match self.random.below(3) {
                0 => self.sync_writes(&cached),
                1 => self.sync_loses(),
                _ => {}
            }
        }
        for key in std::mem::take(&mut self.writing).into_keys() {
            if self.files[&key] == File::Absent && self.chance(2) {
                self.files.insert(key, File::Cached);
            }
        }
        let kept = self.durable + self.random.below((self.log.len() - self.durable) as u64 + 1) as usize;
        // Numbers assigned again later must not occur in kept entries.
        for entry in &mut self.log[kept..] {
            *entry = LocalEntry::Synced { begun: Lsn::ZERO };
        }
        self.durable = self.log.len();
        if power_goes {
            self.session += 1;
            let keys: Vec<Key> = self.files.keys().copied().collect();
            for key in keys {
                let after = match (self.files[&key], self.random.below(3)) {
                    (File::Cached | File::Lost | File::Torn, 0) => File::Absent,
                    (File::Cached | File::Lost | File::Torn, 1) => File::Torn,
                    (File::Cached, _) => File::Durable,
                    (File::Lost, _) => File::Torn,
                    (file, _) => file,
                };
                self.files.insert(key, after);
            }
        }
        let position = self.positions[self.random.below(self.positions.len() as u64) as usize];
        self.positions = vec![position];
        let mut history = History::default();
        for (at, entry) in self.log.iter().enumerate().skip(position.get() as usize) {
            history.show(Lsn::new(at as u64 + 1), &entry.encode(), 10);
        }
        let (table, queued) = history.end(self.tag());
        self.table = table;
        (self.queued, self.waiting) = (queued.into_iter().collect(), BTreeSet::new());
        for (key, file) in &self.files {
            match (self.table.state(*key), file) {
                (None, File::Durable | File::Taken | File::Removed) | (Some(State::Queued), _) => {}
                (Some(State::Visible), File::Cached | File::Durable | File::Taken | File::Removed) => {}
                (state, file) => panic!("{key:?} is {file:?} and stands as {state:?}"),
            }
        }
    }

    /// Removes a visible message, as its owner.
    fn owner_takes(&mut self) {
        let is_visible = |(key, _): &(&Key, &File)| self.table.state(**key).is_none_or(|state| state == State::Visible);
        let visible: Vec<Key> = self.files.iter().filter(is_visible).map(|(key, _)| *key).collect();
        if let Some(key) = self.pick(visible).filter(|key| self.files[key] != File::Removed) {
            self.files.insert(key, File::Taken);
        }
    }

    /// Removes a mailbox, once no thread works at it.
    fn remove(&mut self) {
        let number = self.random.below(2) as u16;
        if self.writing.keys().any(|key| key.1 == number) {
            return;
        }
        let removal = Removal { before: None, mailbox: format!("m{number}").into() };
        let entry = self.append(LocalEntry::Removal(removal.clone()));
        self.durable = self.log.len();
        self.table.removed(entry, removal);
        self.files.iter_mut().filter(|(key, _)| key.1 == number).for_each(|(_, file)| *file = File::Removed);
    }

    fn step(&mut self) {
        match self.random.below(46) {
            0..8 => self.receive(),
            8..18 => self.take(),
            18..28 => self.finish(),
            28..31 => self.begin_sync(),
            31..35 => self.end_sync(),
            35 => {
                if let Some(key) = self.pick(self.waiting.clone()) {
                    self.waiting.remove(&key);
                    self.table.try_again(key);
                    self.queued.insert(key);
                }
            }
            36 => {
                if let Some(key) = self.pick(self.queued.clone()) {
                    self.queued.remove(&key);
                    self.table.put_off(key);
                    self.waiting.insert(key);
                }
            }
            37 => self.owner_takes(),
            38 => self.kill(false),
            39..44 => self.note(),
            44 => self.remove(),
            _ => {
                let power_goes = self.chance(2);
                self.kill(power_goes);
            }
        }
    }

    /// Ends all failures.
    fn drain(&mut self) {
        for _ in 0..10_000 {
            let waiting = std::mem::take(&mut self.waiting);
            for key in waiting {
                self.table.try_again(key);
                self.queued.insert(key);
            }
            self.take();
            self.finish();
            self.begin_sync();
            if self.queued.is_empty() && self.writing.is_empty() {
                self.end_sync();
            }
            if self.table.len() == 0 {
                break;
            }
        }
        self.advance();
        assert_eq!((self.table.len(), self.table.position()), (0, Lsn::new(self.log.len() as u64)));
        for (key, file) in &self.files {
            assert!(matches!(file, File::Durable | File::Taken | File::Removed), "{key:?} is {file:?} in the end");
        }
    }
}

#[test]
fn after_any_fault_only_durable_entries_are_released() {
    for seed in 0..SEEDS {
        let told = PrintSeed(seed);
        let mut world = World::new(seed);
        for _ in 0..60 + world.random.below(200) {
            world.step();
        }
        world.drain();
        std::mem::forget(told);
    }
}

const SEEDS: u64 = 1000;

/// Prints the seed of a panic.
struct PrintSeed(u64);

impl Drop for PrintSeed {
    fn drop(&mut self) {
        eprintln!("seed {}", self.0);
    }
}

#[test]
fn laggards_come_in_bounded_steps_and_none_is_left_out() {
    let mut world = World::new(1);
    (0..100).for_each(|_| world.receive());
    let (through, mut after, mut found, mut steps) = (Lsn::new(90), Lsn::ZERO, Vec::new(), 0);
    loop {
        let laggards = world.table.laggards(through, after, STEP_BYTES);
        let Some(last) = laggards.last() else { break };
        let all_but_last = &laggards[..laggards.len() - 1];
        assert!(all_but_last.iter().map(|deliver| memory_of(deliver, 0)).sum::<u64>() < STEP_BYTES);
        let bodies = laggards.iter().map(|deliver| deliver.body.expect("it is an older one").lsn);
        after = last.body.expect("it is an older one").lsn;
        found.extend(bodies);
        steps += 1;
    }
    assert_eq!(found, (1..=90).map(Lsn::new).collect::<Vec<_>>());
    assert!(steps > 5, "{steps}");
    // A message larger than a step is a step by itself.
    assert_eq!(world.table.laggards(through, Lsn::ZERO, 0).len(), 1);
}

const STEP_BYTES: u64 = 4000;
