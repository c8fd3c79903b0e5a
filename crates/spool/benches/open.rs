//! Measures appends, a checkpoint, an opening and a replay with many batches that a stream still needs, 300 B each, most of them in packs.
//! Leaves out large bodies and reads. `cargo test` runs it tiny so it cannot rot; `cargo bench -p posthaste-spool -- 1000000` runs it whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use posthaste_spool::{AppendError, Batch, Body, Config, Entry, FileSpool, Replayed, Spool};

fn main() {
    let count = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(2000u64);
    let dir = tempfile::tempdir().expect("a directory");
    let ring = posthaste_ring::Config { segment_bytes: 8 << 20, max_segments: 8, ..Default::default() };
    let config = Config { ring, ..Config::default() };
    let (spool, _) = FileSpool::open(dir.path(), config.clone()).expect("it opens");
    let stream = spool.stream("stuck").expect("a stream");
    let body = Bytes::from(vec![7; 200]);

    let (done, begun) = (Arc::new(AtomicU64::new(0)), Instant::now());
    for sent in 0..count {
        while sent - done.load(Ordering::Relaxed) >= WINDOW {
            std::thread::yield_now();
        }
        let told = done.clone();
        let entry = Entry { stream, needs_body: true, payload: Bytes::from_static(b"somebody@example.org") };
        let batch = Batch { entries: vec![entry], body: Body::Inline(vec![body.clone()]) };
        spool.append(
            batch,
            Box::new(move |outcome| match outcome {
                Ok(_) | Err(AppendError::Full(_)) => drop(told.fetch_add(1, Ordering::Relaxed)),
                Err(error) => panic!("{error}"),
            }),
        );
    }
    while done.load(Ordering::Relaxed) < count {
        std::thread::yield_now();
    }
    let appended = begun.elapsed();
    let begun = Instant::now();
    spool.checkpoint().expect("a checkpoint");
    let checkpoint = begun.elapsed();
    let stats = spool.streams();
    spool.abandon();

    let begun = Instant::now();
    let (spool, _) = FileSpool::open(dir.path(), config).expect("it opens");
    let opened = begun.elapsed();
    let (mut shown, begun) = (0u64, Instant::now());
    let visit = &mut |replayed: Replayed<'_>| shown += u64::from(matches!(replayed, Replayed::Entry { .. }));
    spool.replay(stream, visit).expect("a replay");
    let replayed = begun.elapsed();
    assert_eq!((shown, shown), (stats[0].entries, stats[0].bodies));
    println!(
        "{shown} of {count} batches in {} packs: appended {appended:.1?}, checkpoint {checkpoint:.1?}, opened {opened:.1?}, replayed {replayed:.1?}",
        spool.stats().packs
    );
}

/// Batches under way.
const WINDOW: u64 = 256;
