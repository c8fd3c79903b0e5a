//! Any octets are an entry of the queue or not; what was read is written as octets that say the same, and a queue takes whatever entries come, in any order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_queue::{Queue, QueueEntry, QueueSnapshot, Schedules, Selection};
use posthaste_spool::Lsn;

fuzz_target!(|data: &[u8]| {
    let mut queue = Queue::new(Schedules::default(), 1);
    let mut lsn = 0;
    for piece in entries(data) {
        let Ok(entry) = QueueEntry::decode(piece) else { continue };
        assert_eq!(QueueEntry::decode(&entry.encode()).as_ref(), Ok(&entry));
        lsn += 1;
        queue.apply(Lsn::new(lsn), &entry);
    }
    let recipients = queue.recipients();
    // A snapshot of it gives the same.
    let (mut snapshot, mut out) = (QueueSnapshot::begin(&queue), Vec::new());
    while snapshot.write(&queue, &mut out) {}
    let mut restored = Queue::restore(&out[..], Schedules::default(), 1).expect("a snapshot of our own");
    assert_eq!(restored.recipients(), recipients);
    assert_eq!((restored.seen(), restored.first_message()), (queue.seen(), queue.first_message()));
    for queue in [&mut queue, &mut restored] {
        queue.start(queue.recorded());
        queue.tick(queue.recorded().saturating_add(60));
    }
    let (mut from, mut listed) = (None, 0);
    loop {
        let (keys, next, _) = queue.select(&Selection::default(), from);
        for key in keys {
            assert_eq!(queue.show(key).map(|state| state.attempts), restored.show(key).map(|state| state.attempts));
            listed += 1;
        }
        from = next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(listed, recipients);
});

/// Each has its length in front.
fn entries(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = data.split_first_chunk::<2>()?;
        let (piece, rest) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
        data = rest;
        Some(piece)
    })
}
