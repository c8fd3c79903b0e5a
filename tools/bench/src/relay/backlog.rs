//! A spool with a queue of millions of deferred recipients, written directly, without SMTP, as the server would have
//! left it.

use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::SystemTime;

use bytes::Bytes;
use posthaste_queue::{Change, Queue, QueueEntry, QueueSnapshot, Queued, RecipientKey, Schedules, Secs, Status, What};
use posthaste_random::Random;
use posthaste_relay::sender::STREAM;
use posthaste_spool::{Batch, Body, Config, Entry, FileSpool, Lsn, Released, Replayed, SnapshotName, Spool as _};

use crate::suite::SideError;

/// Usual number of destinations in the queue.
pub const DOMAINS: u64 = 100_000;
/// A short ring, so that most waiting messages are in packs, as with bodies of the usual size and other mail among
/// them.
const RING_SEGMENTS: usize = 16;
/// Batches that wait for their commit at the same time.
const UNDER_WAY: usize = 8192;
/// Earliest retry: later than the end of any run, so that no delivery is tried.
const NEXT_SECS_LEAST: Secs = 6 * 3600;
const NEXT_SECS_SPREAD: u64 = 12 * 3600;

/// Writes `count` messages of one recipient each, to `domains` destinations in turn, into the spool in `dir`, each
/// deferred once.
///
/// # Errors
/// Errors of the spool.
pub fn write(dir: &Path, count: u64, domains: u64) -> Result<(), SideError> {
    let mut config = Config::default();
    config.ring.max_segments = RING_SEGMENTS;
    let (spool, _) = FileSpool::open(dir, config).map_err(SideError::failed("spool"))?;
    let stream = spool.stream(STREAM).map_err(SideError::failed("stream of the queue"))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as Secs);
    let mut queue = Queue::new(Schedules::default(), 1);
    let mut random = Random::new(count);
    let (tell, told) = sync_channel(UNDER_WAY);
    let mut kept = |number: u64, lsn: Lsn| {
        queue.apply(lsn, &QueueEntry::Queued(message(number, domains, now)));
        let next = now + NEXT_SECS_LEAST + random.below(NEXT_SECS_SPREAD) as Secs;
        let what = What::Deferred { attempts: 1, next, status: Status { code: 450, enhanced: 2001 } };
        let changes = vec![Change { key: RecipientKey { message: lsn, number: 0 }, what }];
        queue.apply(lsn, &QueueEntry::Changes { at: now, changes });
    };
    let (mut sent, mut done) = (0, 0);
    while done < count {
        if sent < count && sent - done < UNDER_WAY as u64 {
            let payload = QueueEntry::Queued(message(sent, domains, now)).encode().into();
            let entries = vec![Entry { stream, needs_body: true, payload }];
            let tell = tell.clone();
            spool.append(
                Batch { entries, body: Body::inline(vec![body(sent, domains)]) },
                Box::new(move |outcome| drop(tell.send(outcome))),
            );
            sent += 1;
            continue;
        }
        // They are acknowledged in their order.
        let lsn = told.recv().expect("one is under way").map_err(SideError::failed("append to the spool"))?;
        kept(done, lsn);
        done += 1;
    }
    let mut snapshot = QueueSnapshot::begin(&queue);
    let position = snapshot.position();
    let name = SnapshotName::new(&format!("queue-{position}")).expect("letters and digits are a name");
    let written = spool.write_snapshot(&name, &mut |out| {
        let mut part = Vec::new();
        while snapshot.write(&queue, &mut part) {
            out.write_all(&part)?;
            part.clear();
        }
        Ok(())
    });
    written.map_err(SideError::failed("snapshot of the queue"))?;
    let below = queue.first_message().unwrap_or(position);
    spool.advance(stream, position, Some(name), Released { below, also: Vec::new() });
    spool.checkpoint().map_err(SideError::failed("checkpoint"))
}

/// Number of recipients in the queue of a spool that no server has open.
///
/// # Errors
/// Errors of the spool, and invalid content in it.
pub fn count(dir: &Path) -> Result<u64, SideError> {
    let (spool, _) = FileSpool::open(dir, Config::default()).map_err(SideError::failed("spool"))?;
    let stream = spool.stream(STREAM).map_err(SideError::failed("stream of the queue"))?;
    let mut queue = match spool.position(stream).1 {
        Some(name) => {
            let snapshot = spool.read_snapshot(&name).map_err(SideError::failed("snapshot of the queue"))?;
            Queue::restore(snapshot, Schedules::default(), 1).map_err(SideError::failed("snapshot of the queue"))?
        }
        None => Queue::new(Schedules::default(), 1),
    };
    let mut damaged = 0;
    let shown = spool.replay(stream, &mut |replayed| match replayed {
        Replayed::Entry { lsn, payload, .. } => match QueueEntry::decode(payload) {
            Ok(entry) => queue.apply(lsn, &entry),
            Err(_) => damaged += 1,
        },
        _ => damaged += 1,
    });
    shown.map_err(SideError::failed("replay of the queue"))?;
    match damaged {
        0 => Ok(queue.recipients()),
        damaged => Err(SideError::Failed(format!("{damaged} entries of the queue cannot be read"))),
    }
}

fn message(number: u64, domains: u64, now: Secs) -> Queued {
    Queued::plain(now, "bench@here.example", [format!("user{number}@domain-{}.example", number % domains)])
}

/// A small body: ten million of them are on the disk.
fn body(number: u64, domains: u64) -> Bytes {
    format!(
        "From: <bench@here.example>\r\nTo: <user{number}@domain-{}.example>\r\nSubject: {number}\r\n\r\nThis waits.\r\n",
        number % domains
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_waits() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 300, 7).unwrap();
        assert_eq!(count(dir.path()).unwrap(), 300);
    }
}
