//! Intake that waits as the spool asks does not run into a full ring, however slow the consumer is. In simulated time, so on any machine.

use std::sync::mpsc::channel;
use std::time::Duration;

use bytes::Bytes;
use posthaste_spool::{AppendError, Batch, Body, Config, Entry, FileSpool, Lsn, PAUSE_MAX, Released, Spool, StreamId};

const SEGMENT: u64 = 64 << 10;
const STEP: Duration = Duration::from_millis(1);

struct World {
    _dir: tempfile::TempDir,
    spool: FileSpool,
    stream: StreamId,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ring = posthaste_ring::Config { segment_bytes: SEGMENT, max_segments: 64, ..Default::default() };
        let config = Config { ring, keeper: false, ..Config::default() };
        let (spool, _) = FileSpool::open(dir.path(), config).unwrap();
        let stream = spool.stream("a").unwrap();
        World { _dir: dir, spool, stream }
    }

    fn append(&self) -> Result<Lsn, AppendError> {
        let (tell, told) = channel();
        let entry = Entry { stream: self.stream, needs_body: true, payload: "x".into() };
        let batch = Batch { entries: vec![entry], body: Body::inline(vec![Bytes::from_static(&[7; 3500])]) };
        self.spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
        told.recv().unwrap()
    }

    /// The consumer has dealt with everything up to there.
    fn release(&self, through: Lsn) {
        let released = Released { below: Lsn::new(through.get() + 1), also: Vec::new() };
        self.spool.advance(self.stream, through, None, released);
        self.spool.checkpoint().unwrap();
    }

    /// So many connections send one message after the other; the consumer takes so many a second. What was accepted, and how many were refused.
    fn run(&self, secs: u64, connections: usize, per_sec: u64, is_slowed: bool) -> (u64, u64) {
        let mut next = vec![Duration::ZERO; connections];
        let (mut accepted, mut refused, mut taken) = (Vec::new(), 0, 0);
        let mut now = Duration::ZERO;
        while now < Duration::from_secs(secs) {
            for at in next.iter_mut().filter(|at| **at <= now) {
                match self.append() {
                    Ok(lsn) => accepted.push(lsn),
                    Err(AppendError::Full(_)) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
                let pause = if is_slowed { self.spool.pressure().pause(false) } else { Duration::ZERO };
                assert!(pause <= PAUSE_MAX);
                *at = now + pause.max(Duration::from_millis(10));
            }
            if now.as_millis().is_multiple_of(200) {
                taken = (now.as_millis() as u64 * per_sec / 1000).min(accepted.len() as u64);
                if taken > 0 {
                    self.release(accepted[taken as usize - 1]);
                }
            }
            now += STEP;
        }
        assert!(taken > 0);
        (accepted.len() as u64, refused)
    }
}

#[test]
fn intake_faster_than_the_consumer_slows_down_unrefused() {
    let (_, refused) = World::new().run(2, 10, 100, false);
    assert!(refused > 0, "without pauses the ring overflows");
    for connections in [10, 40] {
        let (accepted, refused) = World::new().run(10, connections, 100, true);
        assert_eq!(refused, 0, "{connections} connections");
        assert!(
            (1500..=2050).contains(&accepted),
            "{accepted}: as many as the consumer takes, and most of a ring of a thousand"
        );
    }
}

#[test]
fn intake_below_the_speed_of_the_consumer_waits_for_nothing() {
    let world = World::new();
    let mut last = Lsn::ZERO;
    for nth in 0..1000 {
        assert_eq!(world.spool.pressure().pause(true), Duration::ZERO);
        last = world.append().unwrap();
        if nth % 50 == 0 {
            world.release(last);
        }
    }
    world.release(last);
}

#[test]
fn a_ring_that_is_opened_full_presses_at_once() {
    let world = World::new();
    while world.append().is_ok() {}
    assert!(world.spool.pressure().pause(false) > PAUSE_MAX / 2, "{:?}", world.spool.pressure());
    let World { _dir: dir, spool, .. } = world;
    drop(spool);
    let ring = posthaste_ring::Config { segment_bytes: SEGMENT, max_segments: 64, ..Default::default() };
    let (spool, _) = FileSpool::open(dir.path(), Config { ring, keeper: false, ..Config::default() }).unwrap();
    assert!(spool.pressure().pause(false) > PAUSE_MAX / 2, "{:?}", spool.pressure());
}
