//! A batch that is cancelled when it is on the disk: the store's next write says so, whatever else the spool does at that time.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_spool::{
    Batch, Body, Cancelled, Config, Consumer, Entry, FileSpool, Lsn, Published, Replayed, Spool, StoreKind, StreamId,
};

/// Holds whoever makes a checkpoint.
struct HoldsCheckpoints(Mutex<(Sender<()>, Receiver<()>)>);

impl Consumer for HoldsCheckpoints {
    fn published(&self, _: Published) {}

    fn advance_wanted(&self, _: Lsn) {}

    fn checkpoint_begins(&self) {
        let held = self.0.lock().unwrap();
        // At the end of the test nobody listens, and nothing is held.
        let _ = held.0.send(());
        let _ = held.1.recv();
    }
}

struct Fixture {
    machine: Machine,
    spool: FileSpool,
    stream: StreamId,
}

fn config(kind: StoreKind, keeper: bool) -> Config {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 6, ..Default::default() };
    let of_space = Config { free_bytes_min: 0, free_inodes_min: 0, scrub_bytes_per_sec: 0, ..Config::default() };
    // Each batch wants a checkpoint.
    Config { kind, ring, keeper, checkpoint_bytes: 1, ..of_space }
}

impl Fixture {
    fn new(kind: StoreKind) -> Self {
        let machine = Machine::new().unwrap();
        let (spool, _) = FileSpool::open(&machine.path().join("spool"), config(kind, true)).unwrap();
        let stream = spool.stream("a").unwrap();
        Fixture { machine, spool, stream }
    }

    fn batch(&self, payload: &'static str) -> Batch {
        let entry = Entry { stream: self.stream, needs_body: true, payload: payload.into() };
        Batch { entries: vec![entry], body: Body::inline(vec![payload.into()]) }
    }

    fn append(&self, payload: &'static str) {
        let (tell, told) = channel();
        self.spool.append(self.batch(payload), Box::new(move |outcome| tell.send(outcome).unwrap()));
        told.recv().unwrap().unwrap();
    }

    /// Holds the store's thread in the callback of a batch, from what is received on until what is returned is dropped.
    fn hold(&self, payload: &'static str) -> (Receiver<()>, Sender<()>) {
        let (tell, called) = channel();
        let (go_on, may_go_on) = channel::<()>();
        let then = move |outcome: Result<Lsn, _>| {
            outcome.unwrap();
            tell.send(()).unwrap();
            let _ = may_go_on.recv();
        };
        self.spool.append(self.batch(payload), Box::new(then));
        (called, go_on)
    }

    /// Cancels a batch between its sync and its publication.
    fn cancel_written(&self) -> Lsn {
        let (called, first) = self.hold("first");
        called.recv().unwrap();
        // In one commit with the next.
        let (called, second) = self.hold("second");
        let ticket = self.spool.append(self.batch("cancelled"), Box::new(|_| panic!("it was cancelled")));
        drop(first);
        called.recv().unwrap();
        let cancelled = ticket.cancel();
        drop(second);
        let Cancelled::Written(lsn) = cancelled else { panic!("{cancelled:?}") };
        lsn
    }

    /// The payloads that the stream is shown after a power cut at this moment.
    fn payloads_after_cut(&self, kind: StoreKind, seed: u64) -> Vec<String> {
        let recording = self.machine.recording();
        let cut = Cut { position: recording.events.len(), choice: Choice::Seed(seed) };
        let machine = Machine::boot(&recording.cut(cut), true, false).unwrap();
        let (spool, report) = FileSpool::open(&machine.path().join("spool"), config(kind, false)).unwrap();
        assert_eq!(report.damage, []);
        let mut payloads = Vec::new();
        spool
            .replay(self.stream, &mut |replayed| match replayed {
                Replayed::Entry { payload, .. } => payloads.push(String::from_utf8(payload.to_vec()).unwrap()),
                other => panic!("{other:?}"),
            })
            .unwrap();
        payloads
    }
}

#[test]
fn a_hung_keeper_does_not_bring_back_what_was_cancelled() {
    for kind in [StoreKind::Ring, StoreKind::Files] {
        let it = Fixture::new(kind);
        let (tell, is_held) = channel();
        let (go_on, may_go_on) = channel();
        let shown = it.spool.replay(it.stream, &mut |_| ()).unwrap();
        let holds = Arc::new(HoldsCheckpoints(Mutex::new((tell, may_go_on))));
        it.spool.attach(it.stream, shown, holds).unwrap();
        it.append("before");
        is_held.recv().unwrap();
        it.cancel_written();
        it.append("after");
        for seed in 0..4 {
            assert_eq!(it.payloads_after_cut(kind, seed), ["before", "first", "second", "after"], "{kind} {seed}");
        }
        drop((is_held, go_on));
        it.spool.abandon();
    }
}

#[test]
fn an_idle_store_writes_by_itself_that_a_batch_was_cancelled() {
    for kind in [StoreKind::Ring, StoreKind::Files] {
        let it = Fixture::new(kind);
        let cancelled = it.cancel_written();
        // The entry is a batch, too.
        while it.spool.stats().published <= cancelled {
            std::thread::yield_now();
        }
        for seed in 0..4 {
            assert_eq!(it.payloads_after_cut(kind, seed), ["first", "second"], "{kind} {seed}");
        }
        it.spool.abandon();
    }
}
