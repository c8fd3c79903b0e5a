//! A look at a spool that nobody has open.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::channel;

use bytes::Bytes;
use posthaste_spool::{
    Batch, Body, ClosedSpool, Config, Entry, ExportedBody, FileSpool, Lsn, OpenError, Released, Spool, StreamId,
};

fn config() -> Config {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 8, ..Default::default() };
    Config { ring, keeper: false, ..Config::default() }
}

fn append(spool: &FileSpool, streams: &[StreamId], body: Body) -> Lsn {
    let (tell, told) = channel();
    let entry = |stream: &StreamId| Entry { stream: *stream, needs_body: true, payload: "for you".into() };
    let batch = Batch { entries: streams.iter().map(entry).collect(), body };
    spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap().unwrap()
}

/// One pack that was adopted, one that was copied, batches in the ring, a large body, and some behind the checkpoint. Returns the LSNs and the large one.
fn spool(dir: &Path) -> (Vec<Lsn>, Lsn) {
    let (spool, _) = FileSpool::open(dir, config()).unwrap();
    let [one, other] = ["one", "other"].map(|name| spool.stream(name).unwrap());
    let body = |n: u8| Body::Inline(vec![Bytes::from(vec![n; 7000])]);
    let lsns: Vec<Lsn> = (0..30).map(|n| append(&spool, &[one, other], body(n))).collect();
    spool.pack_oldest(1).unwrap();
    let released = Released { below: lsns[15], also: Vec::new() };
    spool.advance(one, lsns[29], None, Released { below: Lsn::new(lsns[29].get() + 1), also: Vec::new() });
    spool.advance(other, lsns[11], None, released);
    spool.pack_oldest(1).unwrap();
    let mut upload = spool.upload().unwrap();
    upload.write(&[77; 400_000]).unwrap();
    let large = append(&spool, &[one], Body::File(upload.finish().unwrap()));
    spool.checkpoint().unwrap();
    let last = append(&spool, &[other], body(30));
    spool.abandon();
    (lsns.into_iter().chain([last]).collect(), large)
}

fn exported(closed: &ClosedSpool) -> Vec<(Lsn, usize, Vec<u8>)> {
    let mut all = Vec::new();
    closed
        .export(&mut |batch| {
            let body = match batch.body {
                None => Vec::new(),
                Some(Err(what)) => what.into_bytes(),
                Some(Ok(ExportedBody::Memory(bytes))) => bytes.to_vec(),
                Some(Ok(ExportedBody::File(path, len))) => std::fs::read(path).unwrap()[..len as usize].to_vec(),
            };
            all.push((batch.lsn, batch.entries.len(), body));
            ControlFlow::Continue(())
        })
        .unwrap();
    all
}

#[test]
fn it_shows_what_is_where_and_gives_out_what_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let (lsns, large) = spool(dir.path());
    let closed = ClosedSpool::open(dir.path()).unwrap();
    assert!(matches!(FileSpool::open(dir.path(), config()), Err(OpenError::Locked)));
    let shown = closed.inspect().unwrap();
    assert_eq!(shown.damage, []);
    assert_eq!(shown.streams.iter().map(|stream| stream.name.as_str()).collect::<Vec<_>>(), ["one", "other"]);
    assert_eq!((shown.streams[0].entries, shown.streams[0].bodies), (1, 1));
    // The last one lies behind the checkpoint.
    assert_eq!((shown.streams[1].entries, shown.streams[1].bodies), (19, 19));
    assert_eq!((shown.last, shown.large.len()), (lsns[30], 1));
    assert!(!shown.packs.is_empty() && !shown.segments.is_empty());
    let needed: u64 = shown.packs.iter().chain(&shown.segments).map(|place| place.needed).sum();
    assert_eq!(needed, 20, "18 that wait, the one behind the checkpoint and the large one");
    let all = exported(&closed);
    let expected: Vec<_> = lsns.iter().enumerate().skip(12).map(|(n, lsn)| (*lsn, n)).collect();
    let small: Vec<_> = all.iter().filter(|(lsn, ..)| *lsn != large).collect();
    assert_eq!(small.len(), expected.len());
    for ((lsn, entries, body), (expected, n)) in small.into_iter().zip(expected) {
        assert_eq!((*lsn, *entries, &body[..]), (expected, 1, &[n as u8; 7000][..]));
    }
    assert!(all.iter().any(|(lsn, _, body)| *lsn == large && body[..] == [77; 400_000][..]));
    let verified = closed.verify().unwrap();
    assert!(verified.damage.is_empty() && verified.read >= 20, "{verified:?}");
}

#[test]
fn a_damaged_index_is_found_and_written_anew_from_its_pack() {
    let dir = tempfile::tempdir().unwrap();
    let (lsns, _) = spool(dir.path());
    let before = exported(&ClosedSpool::open(dir.path()).unwrap());
    let indexes: Vec<_> = std::fs::read_dir(dir.path().join("packs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "index"))
        .collect();
    for index in &indexes {
        std::fs::write(index, b"damaged").unwrap();
    }
    let closed = ClosedSpool::open(dir.path()).unwrap();
    assert_eq!(closed.verify().unwrap().damage.len(), indexes.len());
    assert!(exported(&closed).len() < before.len());
    assert_eq!(closed.repair().unwrap().len(), indexes.len());
    drop(closed);
    let closed = ClosedSpool::open(dir.path()).unwrap();
    assert_eq!(closed.verify().unwrap().damage, []);
    assert_eq!(exported(&closed), before);
    assert_eq!(closed.repair().unwrap(), Vec::<String>::new());
    drop(closed);
    let (spool, report) = FileSpool::open(dir.path(), config()).unwrap();
    assert_eq!(report.damage, []);
    assert_eq!(spool.read(lsns[15], 0..7000).unwrap(), [15; 7000][..]);
}

#[test]
fn a_directory_without_a_spool_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let opened = ClosedSpool::open(dir.path());
    assert!(matches!(opened, Err(OpenError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound));
}
