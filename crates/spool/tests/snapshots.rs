//! A stream whose snapshots are missing or damaged: it starts from the one before, or from nothing, and knows what it does not know.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::Bytes;
use posthaste_spool::{
    Batch, Body, Cancelled, ClosedFileSpool, ClosedSpool, Config, Entry, FileSpool, Lsn, Released, Replayed,
    SnapshotName, Spool, SpoolAdmin, StreamId,
};

fn config() -> Config {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 16, ..Default::default() };
    Config { ring, keeper: false, ..Config::default() }
}

/// A consumer whose state is the set of changes that it has seen, and of messages whose bodies it needs. With each LSN: whether it is a message.
struct Consumer {
    spool: FileSpool,
    stream: StreamId,
    other: StreamId,
    seen: BTreeSet<(u64, bool)>,
    count: u64,
}

/// The ring's thread is in a callback until this is dropped.
struct Held {
    called: Receiver<()>,
    _go_on: Sender<()>,
}

/// State that a consumer found at its start.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    unreadable: usize,
    uncertain: Option<u64>,
}

impl Consumer {
    fn open(dir: &Path) -> (Self, Found) {
        Self::open_damaged(dir, 0)
    }

    /// The opening tells of so much damage.
    fn open_damaged(dir: &Path, damaged: usize) -> (Self, Found) {
        let (spool, report) = FileSpool::open(dir, config()).unwrap();
        assert_eq!(report.damage.len() + report.mended.len(), damaged, "{report:?}");
        let [stream, other] = ["stream", "other"].map(|name| spool.stream(name).unwrap());
        let restored = spool.restore(stream).unwrap();
        let mut content = String::new();
        if let Some(mut from) = restored.snapshot {
            from.read_to_string(&mut content).unwrap();
        }
        let parse = |word: &str| (word[1..].parse().unwrap(), word.starts_with('m'));
        let mut seen: BTreeSet<(u64, bool)> = content.split_whitespace().map(parse).collect();
        // An older snapshot has messages that are done with since.
        seen.retain(|(lsn, is_message)| !is_message || spool.needs_body(stream, Lsn::new(*lsn)));
        let mut found = Found { unreadable: restored.unreadable.len(), uncertain: None };
        spool
            .replay(stream, &mut |replayed| match replayed {
                Replayed::Entry { lsn, needs_body, .. } => drop(seen.insert((lsn.get(), needs_body))),
                Replayed::Uncertain { through } => found.uncertain = Some(through.get()),
                damaged => panic!("{damaged:?}"),
            })
            .unwrap();
        (Consumer { spool, stream, other, seen, count: 0 }, found)
    }

    /// A message of so many bytes, or a change.
    fn append(&mut self, stream: StreamId, bytes: Option<usize>) -> u64 {
        let (tell, told) = channel();
        let batch = batch(stream, bytes);
        self.spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
        let lsn = told.recv().unwrap().unwrap().get();
        if stream == self.stream {
            self.seen.insert((lsn, bytes.is_some()));
        }
        lsn
    }

    /// As many messages, with a change after each.
    fn take(&mut self, count: usize) {
        for _ in 0..count {
            self.append(self.stream, Some(100));
            self.append(self.stream, None);
        }
    }

    /// Holds the ring's thread in the callback of a batch; waits for that with `called`.
    fn hold(&self) -> Held {
        let (tell, called) = channel();
        let (go_on, may_go_on) = channel::<()>();
        let then = move |outcome: Result<Lsn, _>| {
            outcome.unwrap();
            tell.send(()).unwrap();
            let _ = may_go_on.recv();
        };
        self.spool.append(batch(self.other, None), Box::new(then));
        Held { called, _go_on: go_on }
    }

    /// Cancels batches of the stream that are written, before as many messages and changes. The ring's thread is held before it can write that they do not
    /// count.
    fn cancel_written(&mut self, count: usize) -> Held {
        let first = self.hold();
        first.called.recv().unwrap();
        // All in one commit, so that they are written and not yet told.
        let second = self.hold();
        let append =
            |bytes, then: Box<dyn FnOnce(Result<Lsn, _>) + Send>| self.spool.append(batch(self.stream, bytes), then);
        let tickets = [Some(100), None].map(|bytes| append(bytes, Box::new(|_| panic!("cancelled"))));
        let (tell, told) = channel();
        for nth in 0..2 * count {
            let (tell, bytes) = (tell.clone(), (nth % 2 == 0).then_some(100));
            append(bytes, Box::new(move |outcome| tell.send((outcome.unwrap().get(), bytes.is_some())).unwrap()));
        }
        let held = self.hold();
        drop(first);
        second.called.recv().unwrap();
        for ticket in tickets {
            let cancelled = ticket.cancel();
            assert!(matches!(cancelled, Cancelled::Written(_)), "{cancelled:?}");
        }
        drop((second, tell));
        held.called.recv().unwrap();
        self.seen.extend(told.try_iter());
        held
    }

    /// Others' mail, which they have done with: it fills the ring.
    fn pass_by(&mut self, segments: usize) {
        for _ in 0..segments * 8 {
            let lsn = Lsn::new(self.append(self.other, Some(8 << 10)) + 1);
            self.spool.advance(self.other, lsn, None, Released { below: lsn, also: Vec::new() });
            if self.spool.file_stats().ring.segments_in_service > 8 {
                // As a keeper does that is short of room.
                self.spool.checkpoint().unwrap();
                self.spool.pack_oldest(2).unwrap();
                self.spool.checkpoint().unwrap();
            }
        }
    }

    /// A snapshot; all but the last few messages are done with.
    fn snapshot(&mut self, dir: &Path) -> PathBuf {
        self.count += 1;
        let name = SnapshotName::new(&format!("s-{}-{}", self.spool.stats().published, self.count)).unwrap();
        let last = self.seen.last().map_or(0, |(lsn, _)| *lsn);
        let messages = self.seen.iter().filter(|(_, is_message)| *is_message);
        let kept = messages.rev().nth(2).map_or(0, |(lsn, _)| *lsn);
        self.seen.retain(|(lsn, is_message)| !is_message || *lsn >= kept);
        let word = |(lsn, is_message): &(u64, bool)| format!("{}{lsn} ", if *is_message { 'm' } else { 'c' });
        let content: String = self.seen.iter().map(word).collect();
        self.spool.write_snapshot(&name, &mut |out| out.write_all(content.as_bytes())).unwrap();
        let released = Released { below: Lsn::new(kept), also: Vec::new() };
        self.spool.advance(self.stream, Lsn::new(last), Some(name.clone()), released);
        self.spool.checkpoint().unwrap();
        dir.join("snapshots").join(name.as_str())
    }
}

fn batch(stream: StreamId, bytes: Option<usize>) -> Batch {
    let entry = Entry { stream, needs_body: bytes.is_some(), payload: "x".into() };
    let body = bytes.map_or(Body::None, |bytes| Body::inline(vec![Bytes::from(vec![7; bytes])]));
    Batch { entries: vec![entry], body }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to)
        } else {
            // A segment that is made ahead may have got its name meanwhile.
            let _ = std::fs::copy(entry.path(), to);
        }
    }
}

fn spoil(path: &Path, how: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    match how {
        0 => return std::fs::remove_file(path).unwrap(),
        1 => bytes.truncate(bytes.len() / 2),
        2 => bytes.clear(),
        _ => {
            let at = how % bytes.len();
            bytes[at] ^= 4;
        }
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn the_snapshot_before_and_the_ring_say_the_same() {
    for how in 0..8 {
        let dir = tempfile::tempdir().unwrap();
        let (mut it, found) = Consumer::open(dir.path());
        assert_eq!(found, Found::default());
        it.take(5);
        it.snapshot(dir.path());
        it.take(5);
        it.pass_by(2);
        let last = it.snapshot(dir.path());
        it.take(5);
        let seen = it.seen.clone();
        it.spool.abandon();
        spoil(&last, how);
        // It stays so until a new one is there.
        for _ in 0..2 {
            let (it, found) = Consumer::open(dir.path());
            assert_eq!((&it.seen, found.uncertain), (&seen, None), "{how}");
            assert!(it.spool.wants_snapshot(it.stream));
            it.spool.checkpoint().unwrap();
            it.spool.abandon();
        }
        let (mut it, found) = Consumer::open(dir.path());
        assert_eq!(found.unreadable, 0, "it is left out");
        it.snapshot(dir.path());
        let seen = it.seen.clone();
        it.spool.abandon();
        let (it, found) = Consumer::open(dir.path());
        assert_eq!((&it.seen, found), (&seen, Found::default()), "{how}");
    }
}

#[test]
fn a_cancelled_batch_stays_away_with_an_older_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, killed) = (dir.path().join("spool"), dir.path().join("killed"));
    let (mut it, _) = Consumer::open(&spool);
    it.take(5);
    it.snapshot(&spool);
    // The entries that tell of it do not reach the disk before the kill; the checkpoint does.
    let held = it.cancel_written(5);
    let last = it.snapshot(&spool);
    copy(&spool, &killed);
    drop(held);
    let seen = it.seen.clone();
    it.spool.abandon();
    spoil(&killed.join("snapshots").join(last.file_name().unwrap()), 0);
    let (it, found) = Consumer::open(&killed);
    assert_eq!((&it.seen, found), (&seen, Found { unreadable: 1, uncertain: None }));
}

#[test]
fn a_cancelled_batch_stays_away_when_a_live_file_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, killed) = (dir.path().join("spool"), dir.path().join("killed"));
    let (mut it, _) = Consumer::open(&spool);
    it.take(5);
    let held = it.cancel_written(5);
    it.spool.checkpoint().unwrap();
    copy(&spool, &killed);
    drop(held);
    let seen = it.seen.clone();
    it.spool.abandon();
    let lose_live_files = || {
        for file in std::fs::read_dir(killed.join("live")).unwrap() {
            std::fs::write(file.unwrap().path(), "").unwrap();
        }
    };
    lose_live_files();
    let looked = ClosedFileSpool::open(&killed).unwrap();
    let of_stream = looked.inspect().unwrap().streams.into_iter().find(|stream| stream.name == "stream").unwrap();
    assert_eq!((of_stream.entries, of_stream.bodies), (seen.len() as u64, 10));
    drop(looked);
    let (mut it, found) = Consumer::open_damaged(&killed, 1);
    assert_eq!((&it.seen, found), (&seen, Found::default()));
    it.spool.checkpoint().unwrap();
    // The write after this batch makes up for its entries, and the next checkpoint names it no more.
    for _ in 0..2 {
        it.append(it.other, None);
    }
    it.spool.checkpoint().unwrap();
    it.spool.abandon();
    lose_live_files();
    let (it, found) = Consumer::open_damaged(&killed, 2);
    assert_eq!((&it.seen, found), (&seen, Found::default()));
}

#[test]
fn a_ring_that_has_lost_entries_makes_them_uncertain() {
    let dir = tempfile::tempdir().unwrap();
    let (mut it, _) = Consumer::open(dir.path());
    it.take(5);
    it.snapshot(dir.path());
    it.take(5);
    let last = it.snapshot(dir.path());
    let position = it.seen.last().unwrap().0;
    // Short of room, the ring keeps nothing for an older snapshot.
    it.pass_by(9);
    it.take(5);
    let seen = it.seen.clone();
    it.spool.abandon();
    spoil(&last, 0);
    let (it, found) = Consumer::open(dir.path());
    assert_eq!(found, Found { unreadable: 1, uncertain: Some(position) });
    let known = |(lsn, is_message): &&(u64, bool)| *is_message || *lsn > position;
    let known: BTreeSet<(u64, bool)> = seen.iter().filter(known).copied().collect();
    assert!(known.is_subset(&it.seen), "what still has its body, and what came since");
    assert!(it.seen.is_subset(&seen) && it.seen.len() < seen.len());
}

#[test]
fn without_any_snapshot_that_can_be_read_all_of_it_is_uncertain() {
    for how in [0, 1, 9] {
        let dir = tempfile::tempdir().unwrap();
        let (mut it, _) = Consumer::open(dir.path());
        it.take(5);
        let mut paths = vec![it.snapshot(dir.path())];
        it.pass_by(9);
        it.take(5);
        paths.push(it.snapshot(dir.path()));
        let position = it.seen.last().unwrap().0;
        it.take(5);
        let seen = it.seen.clone();
        it.spool.abandon();
        paths.iter().for_each(|path| spoil(path, how));
        for unreadable in [2, 0] {
            let (it, found) = Consumer::open(dir.path());
            assert_eq!(found, Found { unreadable, uncertain: Some(position) }, "{how}");
            let known = |(lsn, is_message): &&(u64, bool)| *is_message || *lsn > position;
            let known: BTreeSet<(u64, bool)> = seen.iter().filter(known).copied().collect();
            assert!(known.is_subset(&it.seen) && it.seen.is_subset(&seen), "{:?}", it.seen);
            assert!(it.spool.wants_snapshot(it.stream));
            it.spool.checkpoint().unwrap();
            it.spool.abandon();
        }
        let (mut it, _) = Consumer::open(dir.path());
        it.snapshot(dir.path());
        it.spool.abandon();
        assert_eq!(Consumer::open(dir.path()).1, Found::default(), "a new snapshot knows it all");
    }
}

#[test]
fn an_idle_stream_has_its_state_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (mut it, _) = Consumer::open(dir.path());
    assert!(!it.spool.wants_snapshot(it.stream), "there is nothing to lose");
    it.take(5);
    it.snapshot(dir.path());
    assert!(it.spool.wants_snapshot(it.stream));
    let last = it.snapshot(dir.path());
    assert!(!it.spool.wants_snapshot(it.stream));
    // Whatever becomes of the ring.
    it.pass_by(10);
    it.spool.checkpoint().unwrap();
    let seen = it.seen.clone();
    it.spool.abandon();
    spoil(&last, 0);
    let (it, found) = Consumer::open(dir.path());
    assert_eq!((&it.seen, found), (&seen, Found { unreadable: 1, uncertain: None }));
}

#[test]
fn others_mail_before_a_rare_entry_makes_nothing_uncertain() {
    // Without a checkpoint between the entry and its snapshot, and with one.
    for is_between in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut it, _) = Consumer::open(dir.path());
        it.take(5);
        it.snapshot(dir.path());
        it.snapshot(dir.path());
        for _ in 0..6 {
            it.pass_by(1);
            it.spool.checkpoint().unwrap();
        }
        assert!(!it.spool.wants_snapshot(it.stream));
        it.take(1);
        if is_between {
            it.spool.checkpoint().unwrap();
        }
        it.pass_by(1);
        let last = it.snapshot(dir.path());
        it.take(1);
        let seen = it.seen.clone();
        it.spool.abandon();
        spoil(&last, 0);
        let (it, found) = Consumer::open(dir.path());
        assert_eq!((&it.seen, found), (&seen, Found { unreadable: 1, uncertain: None }), "{is_between}");
    }
}

#[test]
fn verify_scrub_and_repair_read_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let (mut it, _) = Consumer::open(dir.path());
    it.take(5);
    it.snapshot(dir.path());
    it.take(5);
    let last = it.snapshot(dir.path());
    let seen = it.seen.clone();
    let scrub = |it: &Consumer| it.spool.scrub(&mut |_| std::ops::ControlFlow::Continue(())).unwrap().damage;
    assert_eq!(scrub(&it), []);
    it.spool.abandon();
    let whole = std::fs::read(&last).unwrap();
    let verified = || {
        let report = ClosedFileSpool::open(dir.path()).unwrap().verify().unwrap();
        report.damage.into_iter().map(|damage| damage.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(verified(), [""; 0]);
    for how in [0, 1, 5] {
        if how > 0 {
            std::fs::write(&last, &whole).unwrap();
            spoil(&last, how);
        } else {
            std::fs::remove_file(&last).unwrap();
        }
        let found = verified();
        assert!(found.len() == 1 && found[0].contains(&*last.file_name().unwrap().to_string_lossy()), "{found:?}");
    }
    let repaired = ClosedFileSpool::open(dir.path()).unwrap().repair().unwrap();
    assert_eq!((repaired.files.len(), repaired.failed), (1, vec![]));
    assert_eq!(verified(), [""; 0]);
    assert!(dir.path().join("kept").join(last.file_name().unwrap()).exists());
    let (mut it, found) = Consumer::open(dir.path());
    assert_eq!((&it.seen, found), (&seen, Found::default()), "it starts from the one before");
    // A scrub that finds one has its stream write another.
    let last = it.snapshot(dir.path());
    it.snapshot(dir.path());
    assert!(!it.spool.wants_snapshot(it.stream));
    spoil(&last, 6);
    assert_eq!(scrub(&it).len(), 1);
    assert_eq!(scrub(&it), []);
    assert!(it.spool.wants_snapshot(it.stream));
    it.snapshot(dir.path());
    it.spool.abandon();
    assert_eq!(verified(), [""; 0]);
}

#[test]
fn scrub_keeps_a_snapshot_that_the_disk_cannot_read() {
    let dir = tempfile::tempdir().unwrap();
    let (mut it, _) = Consumer::open(dir.path());
    it.take(5);
    it.snapshot(dir.path());
    let last = it.snapshot(dir.path());
    let seen = it.seen.clone();
    // Reading a directory fails, as a bad disk does.
    let aside = dir.path().join("aside");
    std::fs::rename(&last, &aside).unwrap();
    std::fs::create_dir(&last).unwrap();
    for _ in 0..2 {
        let found = it.spool.scrub(&mut |_| std::ops::ControlFlow::Continue(())).unwrap().damage;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].what.contains("cannot be read"), "{found:?}");
        assert!(!it.spool.wants_snapshot(it.stream));
    }
    std::fs::remove_dir(&last).unwrap();
    std::fs::rename(&aside, &last).unwrap();
    it.spool.checkpoint().unwrap();
    assert!(last.exists());
    it.spool.abandon();
    let (it, found) = Consumer::open(dir.path());
    assert_eq!((&it.seen, found), (&seen, Found::default()));
}

#[test]
fn a_snapshot_that_the_disk_cannot_read_leaves_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let (mut it, _) = Consumer::open(dir.path());
    it.take(5);
    let before = it.snapshot(dir.path());
    it.take(5);
    let last = it.snapshot(dir.path());
    it.take(5);
    let seen = it.seen.clone();
    it.spool.abandon();
    // Reading a directory fails, as a bad disk does.
    let fail = |path: &Path| {
        std::fs::rename(path, dir.path().join("aside")).unwrap();
        std::fs::create_dir(path).unwrap();
    };
    let answer = |path: &Path| {
        std::fs::remove_dir(path).unwrap();
        std::fs::rename(dir.path().join("aside"), path).unwrap();
    };
    // The one before is of no use while the last one can be read.
    fail(&before);
    let (it, found) = Consumer::open(dir.path());
    assert_eq!((&it.seen, found), (&seen, Found::default()));
    it.spool.abandon();
    answer(&before);
    fail(&last);
    let (mut it, found) = Consumer::open(dir.path());
    assert_eq!((&it.seen, found), (&seen, Found { unreadable: 1, uncertain: None }));
    assert!(it.spool.wants_snapshot(it.stream));
    it.snapshot(dir.path());
    let seen = it.seen.clone();
    it.spool.abandon();
    std::fs::remove_dir(&last).unwrap();
    let (it, found) = Consumer::open(dir.path());
    assert_eq!((&it.seen, found), (&seen, Found::default()), "a new one took its place");
    it.spool.abandon();
    // With no other one nobody knows whether the disk will read it later.
    for path in std::fs::read_dir(dir.path().join("snapshots")).unwrap().map(|entry| entry.unwrap().path()) {
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
    }
    let (spool, _) = FileSpool::open(dir.path(), config()).unwrap();
    let stream = spool.stream("stream").unwrap();
    assert!((0..2).all(|_| spool.restore(stream).is_err()), "it stays so");
}

#[test]
fn a_rebuilt_spool_is_uncertain_without_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let (mut it, _) = Consumer::open(&old);
    it.take(5);
    it.snapshot(&old);
    it.take(5);
    let seen = it.seen.clone();
    it.spool.abandon();
    ["checkpoint.0", "checkpoint.1"].iter().for_each(|name| std::fs::remove_file(old.join(name)).unwrap());
    ClosedFileSpool::rebuild(&old, &new).unwrap();
    let (mut it, found) = Consumer::open(&new);
    let last = seen.last().map(|(lsn, _)| *lsn);
    // Nobody knows any more what was released.
    assert_eq!((found, it.seen.len()), (Found { unreadable: 0, uncertain: last }, 20));
    assert!(seen.is_subset(&it.seen));
    let path = it.snapshot(&new);
    it.take(2);
    it.spool.abandon();
    spoil(&path, 0);
    // The new ring is whole, and knows nothing of the time before.
    let (_, found) = Consumer::open(&new);
    assert_eq!(found, Found { unreadable: 1, uncertain: last });
}
