//! Limits as the next hop sees them with a slow disk: a message counts at its MAIL, however long its body was read.

use std::sync::OnceLock;

use posthaste_hooked_spool::{HookedSpool, Hooks};
use posthaste_random::mix;

use super::shaping::{assert_within, rules, two_sites};
use super::*;

/// A disk that reads no body for a time from the first one on. Later reads are slow.
#[derive(Default)]
struct SlowDisk {
    first: OnceLock<Instant>,
}

impl Hooks for SlowDisk {
    fn read(&self, octets: u64) {
        let first = *self.first.get_or_init(Instant::now);
        let stalled = (first + STALL).saturating_duration_since(Instant::now());
        let nanos = mix(octets ^ first.elapsed().as_nanos() as u64) % 20_000_000;
        std::thread::sleep(stalled + Duration::from_nanos(nanos));
    }
}

const STALL: Duration = Duration::from_millis(2500);
const PER_SEC: f64 = 20.0;
const BURST: usize = 3;

#[test]
fn bodies_that_come_late_all_at_once_do_not_leave_so() {
    let sink = Sink::start();
    let slow = |dir| {
        let limits = rules(&format!("[default]\nconnections = 60\nmessage_rate = '{PER_SEC}/s, burst {BURST}'\n"));
        rig_over(
            dir,
            two_sites(),
            sink.port(),
            |spool| Arc::new(HookedSpool::new(spool, SlowDisk::default())),
            |config| (config.shaping, config.memory_bytes) = (limits, 0),
        )
    };
    let rig = slow(tempfile::tempdir().unwrap());
    rig.send_many(100, "bob@a.example");
    sink.wait_taken(40);
    assert_eq!(rig.relay.stats().deferred, 0, "a slow disk counts no attempt");
    // The spending of the first messages' tokens is forgotten.
    let rig = slow(rig.end());
    sink.wait_taken(100);
    // A second for a loaded machine. The stall alone gave tokens for twice as many.
    assert_within(&sink.mails(), PER_SEC, BURST, Duration::from_secs(1));
    rig.wait_empty();
    assert_eq!(rig.relay.stats().deferred, 0, "a limit counts no attempt");
}
