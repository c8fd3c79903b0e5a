//! Any octets are a snapshot of the queue or not: no panic, memory in proportion to the octets, and what was restored is written as a snapshot of the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_queue::{Queue, QueueSnapshot, Schedules};

fuzz_target!(|data: &[u8]| {
    let Ok(queue) = Queue::restore(data, Schedules::default(), 1) else { return };
    let (mut snapshot, mut out) = (QueueSnapshot::begin(&queue), Vec::new());
    while snapshot.write(&queue, &mut out) {}
    let mut again = Queue::restore(&out[..], Schedules::default(), 1).expect("a snapshot of our own");
    assert_eq!((again.recipients(), again.seen()), (queue.recipients(), queue.seen()));
    assert_eq!(again.first_message(), queue.first_message());
    again.start(again.recorded());
    again.tick(again.recorded());
});
