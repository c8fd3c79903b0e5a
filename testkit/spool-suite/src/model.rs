//! Any interleaving of appends, cancels, advances, releases, snapshots, moves, checkpoints, reopening, kills and power cuts equals a list of batches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::channel;

use bytes::Bytes;
use posthaste_spool::{
    AppendError, Batch, Body, Cancelled, Entry, Lsn, ReadError, Released, Replayed, SnapshotName, Spool, StreamId,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::SpoolKind;

#[derive(Debug, Clone)]
enum Step {
    /// Appends entries for these streams, each with or without the body; the body's kind and size.
    Append {
        entries: Vec<(usize, bool)>,
        body: BodyKind,
        cancel: bool,
    },
    /// Percentage of the seen entries to advance over, and bodies to release: those below that position, and every
    /// so-many-th.
    Advance {
        stream: usize,
        share: u64,
        below: u64,
        each: u64,
        snapshot: bool,
    },
    Checkpoint,
    Move(usize),
    Reopen,
    /// Kills without a last checkpoint.
    Kill,
    /// Kills; the seed decides the fate of unsynced data.
    Cut(u64),
    Look,
}

#[derive(Debug, Clone, Copy)]
enum BodyKind {
    None,
    Inline(usize),
    File(usize),
}

const STREAMS: usize = 3;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let entries = prop::collection::vec((0..STREAMS, any::<bool>()), 1..4);
    let body = prop_oneof![
        1 => Just(BodyKind::None),
        5 => (0usize..30_000).prop_map(BodyKind::Inline),
        1 => (1usize..300_000).prop_map(BodyKind::File),
    ];
    let append = (entries, body, prop::bool::weighted(0.1)).prop_map(|(entries, body, cancel)| Step::Append {
        entries,
        body,
        cancel,
    });
    let advance = (0..STREAMS, 0u64..120, 0u64..120, 1u64..5, any::<bool>())
        .prop_map(|(stream, share, below, each, snapshot)| Step::Advance { stream, share, below, each, snapshot });
    let step = prop_oneof![
        20 => append,
        4 => advance,
        2 => Just(Step::Checkpoint),
        3 => (0usize..4).prop_map(Step::Move),
        1 => Just(Step::Reopen),
        1 => Just(Step::Kill),
        1 => any::<u64>().prop_map(Step::Cut),
        1 => Just(Step::Look),
    ];
    prop::collection::vec(step, 1..80)
}

/// An appended batch.
struct Expected {
    entries: Vec<(usize, bool, Bytes)>,
    body: Vec<u8>,
}

/// Batches and bodies that a stream still needs.
#[derive(Clone, Default, Debug, PartialEq)]
struct Needs {
    position: u64,
    entries: BTreeSet<u64>,
    bodies: BTreeSet<u64>,
    early: BTreeSet<u64>,
    below: u64,
    snapshot: Option<SnapshotName>,
}

impl Needs {
    fn advance(&mut self, position: u64, snapshot: Option<SnapshotName>, released: &Released) {
        self.position = self.position.max(position);
        self.snapshot = snapshot;
        self.entries = self.entries.split_off(&(self.position + 1));
        self.early.extend(released.also.iter().map(|lsn| lsn.get()));
        self.below = self.below.max(released.below.get());
        let (position, below, early) = (self.position, self.below, &self.early);
        self.bodies.retain(|lsn| *lsn > position || *lsn >= below && !early.contains(lsn));
    }
}

struct Run<K: SpoolKind> {
    spool: Option<K::Spool>,
    place: K,
    streams: Vec<StreamId>,
    batches: BTreeMap<u64, Expected>,
    needs: Vec<Needs>,
    /// State at the last checkpoint.
    durable: Vec<Needs>,
    through: u64,
    count: usize,
}

impl<K: SpoolKind> Run<K> {
    fn new() -> Self {
        let mut place = K::new();
        let spool = place.open();
        let streams: Vec<_> = (0..STREAMS).map(|n| spool.stream(&format!("stream {n}")).unwrap()).collect();
        // A stream begins where it is registered; some kinds have batches of their own before that.
        let begins = |stream: &StreamId| Needs { position: spool.position(*stream).0.get(), ..Needs::default() };
        let needs: Vec<_> = streams.iter().map(begins).collect();
        Run {
            spool: Some(spool),
            place,
            streams,
            batches: BTreeMap::new(),
            durable: needs.clone(),
            needs,
            through: 0,
            count: 0,
        }
    }

    fn spool(&self) -> &K::Spool {
        self.spool.as_ref().unwrap()
    }

    fn append(&mut self, entries: &[(usize, bool)], body: BodyKind, cancel: bool) {
        self.count += 1;
        let count = self.count;
        let bytes = |len| (0..len).map(|at: usize| (at * 31 + count * 7 + at / 256) as u8).collect::<Vec<u8>>();
        let (body, content) = match body {
            BodyKind::None => (Body::None, Vec::new()),
            BodyKind::Inline(len) => {
                let content = bytes(len);
                let (one, two) = content.split_at(len / 3);
                (Body::inline(vec![Bytes::copy_from_slice(one), Bytes::copy_from_slice(two)]), content)
            }
            BodyKind::File(len) => {
                let (mut upload, content) = (self.spool().upload(0).unwrap(), bytes(len));
                upload.write(&content).unwrap();
                (Body::file(upload.finish().unwrap()), content)
            }
        };
        let entries: Vec<_> = entries
            .iter()
            .enumerate()
            .map(|(nth, (stream, needs))| (*stream, *needs, Bytes::from(format!("{count}.{nth}"))))
            .collect();
        let batch = Batch {
            entries: entries
                .iter()
                .map(|(stream, needs_body, payload)| Entry {
                    stream: self.streams[*stream],
                    needs_body: *needs_body,
                    payload: payload.clone(),
                })
                .collect(),
            body,
        };
        let (tell, told) = channel();
        let ticket = self.spool().append(batch, Box::new(move |outcome| tell.send(outcome).unwrap()));
        match if cancel { ticket.cancel() } else { Cancelled::TooLate } {
            Cancelled::TooLate => {}
            cancelled => {
                assert!(told.recv().is_err(), "a cancelled batch is not told");
                if let Cancelled::Written(lsn) = cancelled {
                    // From here on it never comes back: the entry that says so is part of the next write.
                    while self.spool().stats().published < lsn {
                        std::thread::yield_now();
                    }
                }
                return;
            }
        }
        match told.recv().unwrap() {
            Ok(lsn) => {
                let lsn = lsn.get();
                for (stream, needs_body, _) in &entries {
                    self.needs[*stream].entries.insert(lsn);
                    if *needs_body {
                        self.needs[*stream].bodies.insert(lsn);
                    }
                }
                self.batches.insert(lsn, Expected { entries, body: content });
            }
            Err(AppendError::Full(_)) => {
                self.place.move_data(self.spool(), 2);
                self.checkpoint();
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn checkpoint(&mut self) {
        self.spool().checkpoint().unwrap();
        self.durable = self.needs.clone();
        self.through = self.spool().stats().published.get();
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Append { entries, body, cancel } => self.append(entries, *body, *cancel),
            Step::Advance { stream, share, below, each, snapshot } => {
                let lsns: Vec<u64> = self.batches.keys().copied().collect();
                let at = |share: u64| match lsns.get((lsns.len() as u64 * share / 100) as usize) {
                    Some(lsn) => *lsn,
                    None => self.spool().stats().published.get(),
                };
                let position = if lsns.is_empty() { 0 } else { at(*share) };
                let also = lsns.iter().copied().filter(|lsn| (lsn + 1).is_multiple_of(*each + 1)).map(Lsn::new);
                let released = Released { below: Lsn::new(at(*below)), also: also.collect() };
                let snapshot = snapshot.then(|| self.snapshot());
                let id = self.streams[*stream];
                self.spool().advance(id, Lsn::new(position), snapshot.clone(), released.clone());
                self.needs[*stream].advance(position, snapshot, &released);
            }
            Step::Checkpoint => self.checkpoint(),
            Step::Move(way) => self.place.move_data(self.spool(), *way),
            Step::Reopen => {
                self.through = self.spool().stats().published.get();
                self.spool = None;
                self.durable = self.needs.clone();
                self.reopen();
            }
            Step::Kill => {
                let spool = self.spool.take().unwrap();
                self.place.kill(spool);
                self.killed();
                self.reopen();
            }
            Step::Cut(seed) => {
                let spool = self.spool.take().unwrap();
                self.place.cut_power(spool, *seed);
                self.killed();
                self.reopen();
            }
            Step::Look => self.look(),
        }
    }

    /// Models a kill, which leaves exactly the state that survives any power cut.
    fn killed(&mut self) {
        // What came after the checkpoint is there again; what was let go since is needed again.
        for (stream, needs) in self.durable.iter().enumerate() {
            let mut needs = needs.clone();
            // Of what a stream was not ready to let go the spool knows nothing any more: it will hear of it again.
            (needs.early, needs.below) = (BTreeSet::new(), 0);
            for (lsn, batch) in self.batches.range(self.through + 1..) {
                for (_, needs_body, _) in batch.entries.iter().filter(|entry| entry.0 == stream) {
                    needs.entries.insert(*lsn);
                    if *needs_body {
                        needs.bodies.insert(*lsn);
                    }
                }
            }
            self.needs[stream] = needs;
        }
    }

    /// Writes a snapshot under a new name.
    fn snapshot(&mut self) -> SnapshotName {
        self.count += 1;
        let name = SnapshotName::new(&format!("s{}", self.count)).unwrap();
        self.spool().write_snapshot(&name, &mut |out| out.write_all(name.as_str().as_bytes())).unwrap();
        name
    }

    fn reopen(&mut self) {
        let spool = self.place.open();
        for needs in self.needs.iter_mut().chain(&mut self.durable) {
            (needs.early, needs.below) = (BTreeSet::new(), 0);
        }
        self.spool = Some(spool);
        self.look();
    }

    fn look(&self) {
        let spool = self.spool();
        for (stream, needs) in self.needs.iter().enumerate() {
            let mut seen = Vec::new();
            spool
                .replay(self.streams[stream], &mut |replayed| match replayed {
                    Replayed::Entry { lsn, payload, needs_body, body_len } => {
                        seen.push((lsn.get(), payload.clone(), needs_body, body_len));
                    }
                    other => panic!("{other:?}"),
                })
                .unwrap();
            let of_batch = |lsn: &u64| {
                let batch = &self.batches[lsn];
                let of_stream = batch.entries.iter().filter(move |entry| entry.0 == stream);
                let len = if self.is_body_needed(*lsn) { Some(batch.body.len() as u64) } else { None };
                of_stream.map(|(_, needs, payload)| (*lsn, payload.clone(), *needs, len)).collect::<Vec<_>>()
            };
            let expected: Vec<_> = needs.entries.iter().flat_map(of_batch).collect();
            assert_eq!(seen.len(), expected.len());
            for (seen, expected) in seen.iter().zip(&expected) {
                assert_eq!((seen.0, &seen.1, seen.2), (expected.0, &expected.1, expected.2));
                assert!(expected.3.is_none_or(|len| len == seen.3), "{seen:?} {expected:?}");
            }
            let (_, snapshot) = spool.position(self.streams[stream]);
            assert_eq!(snapshot, needs.snapshot);
            let content = |name: &SnapshotName| std::io::read_to_string(spool.read_snapshot(name).unwrap()).unwrap();
            assert!(snapshot.is_none_or(|name| content(&name) == name.as_str()));
            let stats = &spool.streams()[stream];
            assert_eq!((stats.position.get(), stats.bodies), (needs.position, needs.bodies.len() as u64));
            for lsn in &needs.bodies {
                let said: Vec<_> = of_batch(lsn).into_iter().map(|(_, payload, ..)| payload).collect();
                assert_eq!(
                    spool.entries(self.streams[stream], Lsn::new(*lsn)).unwrap(),
                    said,
                    "also behind the position"
                );
                let body = &self.batches[lsn].body;
                let len = body.len() as u64;
                for range in [0..len, len / 3..len / 2] {
                    let read = spool.read(Lsn::new(*lsn), range.clone()).unwrap();
                    assert_eq!(read, body[range.start as usize..range.end as usize], "{lsn}");
                }
                let beyond = spool.read(Lsn::new(*lsn), 0..len + 1);
                assert!(matches!(beyond, Err(ReadError::OutOfRange { len: told, .. }) if told == len), "{beyond:?}");
            }
        }
    }

    fn is_body_needed(&self, lsn: u64) -> bool {
        self.needs.iter().any(|needs| needs.bodies.contains(&lsn))
    }

    /// Checks that no data are left once nobody needs any.
    fn end(mut self) {
        self.look();
        let last = self.spool().stats().published;
        for stream in 0..STREAMS {
            let released = Released { below: Lsn::new(last.get() + 1), also: Vec::new() };
            self.spool().advance(self.streams[stream], last, None, released.clone());
            self.needs[stream].advance(last.get(), None, &released);
        }
        self.place.move_data(self.spool(), 0);
        // What was refused or cancelled waits for a second one.
        (0..3).for_each(|_| self.checkpoint());
        self.place.check_empty(self.spool());
    }
}

fn cases() -> u32 {
    std::env::var("POSTHASTE_SPOOL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40)
}

/// Runs as many cases as `POSTHASTE_SPOOL_CASES`, else 40.
///
/// # Panics
/// If they differ.
pub fn any_interleaving_equals_a_list_of_batches<K: SpoolKind>() {
    let config = ProptestConfig { cases: cases(), max_shrink_time: 60_000, ..ProptestConfig::default() };
    let run = |steps: Vec<Step>| {
        let mut run = Run::<K>::new();
        steps.iter().for_each(|step| run.step(step));
        run.end();
        Ok(())
    };
    TestRunner::new(config).run(&steps(), run).unwrap_or_else(|error| panic!("{error}"));
}
