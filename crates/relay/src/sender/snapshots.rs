//! Progress of the stream: snapshots of the queue, and release of bodies no longer needed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use posthaste_spool::{Lsn, Released, SnapshotName};
use tokio::time::{Instant, timeout};

use super::shared::Shared;
use posthaste_queue::QueueSnapshot;

/// Writes snapshots until the relay ends. Runs beside the dispatcher: a large queue takes seconds.
pub(super) async fn run(shared: Arc<Shared>) {
    let worker = shared.watch.worker("snapshots of the queue", &["", "writing one"], PATIENCE);
    let mut due = Instant::now() + EVERY;
    let mut wanted_at = Instant::now();
    let mut is_told = false;
    while !shared.is_ending() {
        let now = Instant::now();
        let is_wanted = shared.is_snapshot_wanted.load(Ordering::Acquire);
        if now >= due || is_wanted && now >= wanted_at {
            worker.pulse().step(1);
            let writing = shared.clone();
            let written = tokio::task::spawn_blocking(move || advance(&writing)).await;
            worker.pulse().step(0);
            match written {
                Ok(Ok(true)) => is_told = false,
                // A disk that stays full is reported once.
                Ok(Err(error)) if !std::mem::replace(&mut is_told, true) => {
                    shared.warn(
                        shared.spool.stats().published,
                        &format!("the snapshot of the queue cannot be written; retrying: {error}"),
                    );
                }
                _ => {}
            }
            // A large queue slows snapshots down: they take a tenth of the time at most, a fifth while the ring needs
            // space.
            let took = now.elapsed();
            let now = Instant::now();
            (due, wanted_at) = (now + EVERY.max(took * 9), now + took * 4);
        }
        let _ = timeout(LOOK_EVERY, shared.snapshot_wanted.notified()).await;
    }
}

/// Interval of snapshots, after which settled recipients need no replay and their bodies are released.
const EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A slower snapshot is reported.
const PATIENCE: Duration = Duration::from_secs(120);

/// Writes a snapshot of the queue and releases settled messages; false if nothing has changed. Blocks.
///
/// # Errors
/// An error of writing the snapshot: nothing is released, and the next call retries.
pub(super) fn advance(shared: &Arc<Shared>) -> io::Result<bool> {
    shared.is_snapshot_wanted.store(false, Ordering::Release);
    let (mut snapshot, settled, first) = {
        let mut queue = shared.queue();
        (QueueSnapshot::begin(&queue), queue.take_released(), queue.first_message())
    };
    let position = snapshot.position();
    // An idle queue is written twice: if one copy is lost, the other has the same content.
    let is_new = position != shared.spool.position(shared.stream).0 || !settled.is_empty();
    if !is_new && !shared.spool.wants_snapshot(shared.stream) {
        return Ok(false);
    }
    // A fresh name: the spool may be about to remove an earlier file.
    let unique = shared.snapshots.fetch_add(1, Ordering::Relaxed);
    let name = SnapshotName::new(&format!("queue-{position}-{unique:x}")).expect("letters and digits are a name");
    let written = shared.spool.write_snapshot(&name, &mut |out| {
        let mut part = Vec::new();
        loop {
            part.clear();
            let has_more = snapshot.write(&shared.queue(), &mut part);
            if !has_more {
                return out.write_all(&shared.outcomes.replies.write());
            }
            out.write_all(&part)?;
        }
    });
    if let Err(error) = written {
        shared.queue().not_released(settled);
        return Err(error);
    }
    let behind = Lsn::new(position.get() + 1);
    let below = first.map_or(behind, |first| first.min(behind));
    let also = settled.into_iter().filter(|message| *message >= below).collect();
    shared.spool.advance(shared.stream, position, Some(name), Released { below, also });
    Ok(true)
}
