//! A spool that is exported and imported as another kind is the same spool.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::channel;

use bytes::Bytes;
use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_spool::{
    Batch, Body, ClosedFileSpool, ClosedSpool, Config, Entry, ExportedEntry, ExportedStreams, FileSpool, FrontFields,
    ImportedBatch, Lsn, OpenError, Released, Replayed, SnapshotName, Spool, SpoolImport, StoreKind, StreamId,
};

/// All that were built.
fn kinds() -> impl Iterator<Item = StoreKind> + Clone {
    [StoreKind::Ring, StoreKind::Files, StoreKind::Fjall, StoreKind::Rocksdb].into_iter().filter(|kind| kind.is_built())
}

fn open(dir: &Path, kind: StoreKind) -> FileSpool {
    let (spool, report) = FileSpool::open(dir, Config { kind, keeper: false, ..Config::default() }).unwrap();
    assert_eq!(report.damage, []);
    spool
}

fn append(spool: &FileSpool, streams: &[(StreamId, bool)], body: Body) -> Lsn {
    let (tell, told) = channel();
    let entry = |&(stream, needs_body): &(StreamId, bool)| Entry { stream, needs_body, payload: "told".into() };
    let batch = Batch { entries: streams.iter().map(entry).collect(), body };
    spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap().unwrap()
}

/// One stream that has passed the first batches and holds some of their bodies, and one that has passed nothing.
fn fill(spool: &FileSpool) {
    let (one, two) = (spool.stream("one").unwrap(), spool.stream("two").unwrap());
    let front = || FrontFields::new("Received: from there\r\n").unwrap();
    let text = |n: u8, len| Bytes::from(vec![n; len]);
    let mut lsns = Vec::new();
    for n in 0..6 {
        lsns.push(append(spool, &[(one, true), (two, n % 2 == 0)], Body::Inline(front(), vec![text(n, 3000)])));
    }
    let mut upload = spool.upload(0).unwrap();
    upload.write(&text(9, 3 << 20)).unwrap();
    lsns.push(append(spool, &[(two, true)], Body::File(front(), upload.finish().unwrap())));
    lsns.push(append(spool, &[(one, false)], Body::None));
    lsns.push(append(spool, &[(one, true)], Body::inline(vec![])));
    let name = SnapshotName::new("one.1").unwrap();
    spool.write_snapshot(&name, &mut |out| out.write_all(b"the state")).unwrap();
    spool.advance(one, lsns[3], Some(name), Released { below: Lsn::ZERO, also: vec![lsns[0], lsns[2]] });
}

struct Exported {
    streams: ExportedStreams,
    snapshots: Vec<(SnapshotName, Vec<u8>)>,
    batches: Vec<(Lsn, Vec<ExportedEntry>, u32, Option<Bytes>)>,
}

fn export(dir: &Path) -> Exported {
    let closed = ClosedFileSpool::open(dir).unwrap();
    let streams = closed.streams();
    let files = streams.streams.iter().flat_map(|stream| &stream.snapshots).filter(|row| row.is_file);
    let content = |name: &SnapshotName| {
        let mut content = Vec::new();
        io::copy(&mut closed.snapshot(name).unwrap(), &mut content).unwrap();
        content
    };
    let snapshots = files.map(|row| row.name().unwrap()).map(|name| (name.clone(), content(&name))).collect();
    let mut batches = Vec::new();
    closed
        .export(&mut |batch| {
            let body = batch.body.map(|body| body.unwrap().read().unwrap());
            batches.push((batch.lsn, batch.entries, batch.front_len, body));
            ControlFlow::Continue(())
        })
        .unwrap();
    Exported { streams, snapshots, batches }
}

impl Exported {
    /// The first so many batches.
    fn put(&self, dir: &Path, kind: StoreKind, count: usize) -> Result<SpoolImport, OpenError> {
        let mut import = SpoolImport::begin(dir, kind, &self.streams)?;
        for (name, content) in &self.snapshots {
            import.snapshot(name, &mut &content[..])?;
        }
        for (lsn, entries, front_len, body) in self.batches.iter().take(count) {
            let mut bytes = body.as_deref().unwrap_or_default();
            let len = bytes.len() as u64;
            let body = body.is_some().then_some((&mut bytes as &mut dyn io::Read, len));
            import.batch(ImportedBatch { lsn: *lsn, entries: entries.clone(), front_len: *front_len, body })?;
        }
        Ok(import)
    }
}

/// All that a stream's owner can see.
type Seen = BTreeMap<String, (Lsn, Option<SnapshotName>, Vec<(Lsn, Bytes, bool, u64)>, Vec<(Lsn, Bytes)>)>;

fn seen(spool: &FileSpool, batches: &[Lsn]) -> Seen {
    let mut all = Seen::new();
    for stats in spool.streams() {
        let (position, snapshot) = spool.position(stats.id);
        let mut entries = Vec::new();
        let show = &mut |replayed: Replayed<'_>| match replayed {
            Replayed::Entry { lsn, payload, needs_body, body_len } => {
                entries.push((lsn, payload.clone(), needs_body, body_len));
            }
            other => panic!("{other:?}"),
        };
        spool.replay(stats.id, show).unwrap();
        let held = batches.iter().filter(|lsn| spool.needs_body(stats.id, **lsn));
        let body = |lsn: &Lsn| {
            assert_eq!(spool.entries(stats.id, *lsn).unwrap(), ["told"]);
            let len = entries.iter().find(|entry| entry.0 == *lsn).map_or(3022, |entry| entry.3);
            (*lsn, spool.read(*lsn, 0..len).unwrap())
        };
        let bodies = held.map(body).collect();
        all.insert(stats.name, (position, snapshot, entries, bodies));
    }
    all
}

#[test]
fn an_imported_spool_shows_what_the_exported_one_did() {
    for (from, to) in kinds().flat_map(|from| kinds().map(move |to| (from, to))) {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        let spool = open(&old, from);
        fill(&spool);
        drop(spool);
        let exported = export(&old);
        exported.put(&new, to, usize::MAX).unwrap().finish().unwrap();
        assert_eq!((StoreKind::of(&new), export(&new).batches), (Some(to), exported.batches.clone()));
        let lsns: Vec<Lsn> = exported.batches.iter().map(|batch| batch.0).collect();
        let (old, imported) = (open(&old, from), open(&new, to));
        let of_old = seen(&old, &lsns);
        assert_eq!((of_old["one"].2.len(), of_old["one"].3.len(), of_old["two"].2.len()), (4, 5, 7));
        assert_eq!(seen(&imported, &lsns), of_old, "{from} {to}");
        let name = of_old["one"].1.clone().unwrap();
        assert_eq!(io::read_to_string(imported.read_snapshot(&name).unwrap()).unwrap(), "the state");
        // It is a spool like any other.
        let one = imported.stream("one").unwrap();
        let next = append(&imported, &[(one, true)], Body::inline(vec!["new".into()]));
        assert!(next > old.stats().published && imported.stream("three").unwrap() > one);
        imported.checkpoint().unwrap();
        drop(imported);
        assert_eq!(open(&new, to).read(next, 0..3).unwrap(), "new");
    }
}

#[test]
fn an_interrupted_import_is_repeated_and_a_second_refused() {
    for kind in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        let spool = open(&old, StoreKind::Ring);
        fill(&spool);
        drop(spool);
        let exported = export(&old);
        let unfinished = exported.put(&new, kind, 3).unwrap();
        assert!(matches!(exported.put(&new, kind, 3).err(), Some(OpenError::Locked)), "one at a time");
        drop(unfinished);
        let opened = FileSpool::open(&new, Config { kind, ..Config::default() });
        assert!(matches!(opened.err(), Some(OpenError::Importing)));
        for look in [ClosedFileSpool::open, ClosedFileSpool::glance] {
            assert!(matches!(look(&new).err(), Some(OpenError::Importing)));
        }
        let rebuilt = ClosedFileSpool::rebuild(&new, &dir.path().join("rebuilt"));
        assert!(matches!(rebuilt.err(), Some(OpenError::Importing)));
        assert!(!dir.path().join("rebuilt").exists());
        // Of another kind, too.
        let other = kinds().find(|other| *other != kind).unwrap();
        exported.put(&new, other, usize::MAX).unwrap().finish().unwrap();
        assert_eq!(export(&new).batches, exported.batches);
        for kind in kinds() {
            let again = exported.put(&new, kind, usize::MAX).err();
            assert!(
                matches!(&again, Some(OpenError::Io(error)) if error.kind() == io::ErrorKind::AlreadyExists),
                "{again:?}"
            );
        }
        assert_eq!(export(&new).batches, exported.batches, "nothing was changed");
    }
}

#[test]
fn an_import_that_was_cut_anywhere_is_repeated_or_whole() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    let spool = open(&old, StoreKind::Ring);
    fill(&spool);
    drop(spool);
    // The numbers of another opening lie in another directory of `files`.
    let spool = open(&old, StoreKind::Ring);
    let two = spool.stream("two").unwrap();
    for _ in 0..2 {
        append(&spool, &[(two, true)], Body::inline(vec!["late".into()]));
    }
    drop(spool);
    let exported = export(&old);
    // The machine sees all writes of these kinds.
    for kind in [StoreKind::Ring, StoreKind::Files] {
        let machine = Machine::new().unwrap();
        exported.put(&machine.path().join("new"), kind, usize::MAX).unwrap().finish().unwrap();
        if kind == StoreKind::Files {
            assert_eq!(std::fs::read_dir(machine.path().join("new/files/00")).unwrap().count(), 2, "two directories");
        }
        let recording = machine.recording();
        let last = recording.events.len();
        for (position, seed) in (0..=last).flat_map(|position| (0..3).map(move |seed| (position, seed))) {
            let cut = Cut { position, choice: Choice::Seed(seed) };
            let left = Machine::boot(&recording.cut(cut), true, false).unwrap();
            let new = left.path().join("new");
            match exported.put(&new, kind, usize::MAX) {
                Ok(import) if position < last => import.finish().unwrap(),
                Ok(_) => panic!("{kind}: it had ended"),
                Err(OpenError::Io(error)) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{kind}, cut at {position}:s{seed} of {last}: {error}"),
            }
            assert!(export(&new).batches == exported.batches, "{kind}, cut at {position}:s{seed} of {last}");
        }
    }
}

#[test]
fn what_cannot_be_an_export_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    let spool = open(&old, StoreKind::Ring);
    fill(&spool);
    drop(spool);
    type Change = fn(&mut Exported);
    let changes: [Change; 7] = [
        |it| it.batches.swap(0, 1),
        |it| it.streams.last = it.batches[0].0,
        |it| it.streams.streams[0].id = 0,
        |it| it.streams.next_id = 1,
        |it| it.streams.streams[0].name = "another".to_owned(),
        |it| it.streams.streams[0].snapshots[0].name = "../x".to_owned(),
        |it| it.batches[0].2 = u32::MAX,
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        let mut exported = export(&old);
        change(&mut exported);
        let refused = exported.put(&dir.path().join(format!("{nth}")), StoreKind::Files, usize::MAX).err();
        assert!(
            matches!(&refused, Some(OpenError::Io(error)) if error.kind() == io::ErrorKind::InvalidData),
            "{nth}: {refused:?}"
        );
    }
}
