//! Panics of workers and of the scheduler, which only a bug can cause: here a spool that panics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_hooked_spool::{HookedSpool, Hooks};
use posthaste_intake::Destination as _;
use posthaste_spool::{Batch, Body, FileSpool, Spool};
use posthaste_units::BackOff;

use crate::{Config, Failure, Target, TransportEvent, TransportEvents, TransportMessage, Transports};

/// Long enough for a machine with other work; nothing is measured with it.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Default)]
struct Panics {
    /// So many reads.
    reads: AtomicU64,
    advances: AtomicBool,
}

impl Hooks for Panics {
    fn read(&self, _: u64) {
        let left = self.reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        assert!(left.is_err(), "this test wants a panic");
    }

    fn advance(&self) {
        assert!(!self.advances.load(Ordering::Relaxed), "this test wants a panic");
    }
}

struct World {
    transports: Transports,
    spool: Arc<HookedSpool<Panics>>,
    events: Receiver<TransportEvent>,
    dir: tempfile::TempDir,
}

impl World {
    /// If `tell_panics`, each event panics after it was recorded.
    fn new(tell_panics: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = posthaste_spool::Config::default();
        settings.ring.segment_bytes = 4 << 20;
        let (spool, _) = FileSpool::open(&dir.path().join("spool"), settings).unwrap();
        let spool = Arc::new(HookedSpool::new(spool, Panics::default()));
        let (tell, events) = channel();
        let tell = Mutex::new(tell);
        let tell = TransportEvents::new(move |event| {
            let sent = tell.lock().map(|tell| tell.send(event));
            assert!(!tell_panics || sent.is_err(), "this test wants a panic");
        });
        let moment = Duration::from_millis(10);
        let config = Config { retry: BackOff::new(moment, moment), ..Config::default() };
        let (transports, _) = Transports::open(spool.clone(), config, tell).unwrap();
        World { transports, spool, events, dir }
    }

    fn send(&self, transport: &str) {
        let recipient: Arc<str> = "a@example.org".into();
        let target = Target {
            transport: transport.into(),
            recipient: recipient.clone(),
            original: recipient,
            detail: "".into(),
        };
        let message =
            TransportMessage { sender: "s@example.net".into(), is_8bit: false, smtputf8: false, targets: vec![target] };
        let body = Body::inline(vec![Bytes::from_static(b"text\r\n")]);
        let (tell, told) = channel();
        let batch = Batch { entries: vec![self.transports.entry(message)], body };
        self.spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
        told.recv().unwrap().unwrap();
    }

    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_panic_costs_one_attempt_and_is_told_once_by_target() {
    let world = World::new(false);
    let file = world.dir.path().join("file");
    for transport in ["|/bin/cat", file.to_str().unwrap()] {
        world.spool.hooks.reads.store(2, Ordering::Relaxed);
        let before = world.transports.stats().delivered;
        world.send(transport);
        for attempt in 1..=2 {
            let TransportEvent::Failed { transport: of, recipient, attempts, failure, is_new, error, .. } =
                world.events.recv_timeout(PATIENCE).expect("an event")
            else {
                panic!("another event");
            };
            assert_eq!((&*of, &*recipient, attempts), (transport, "a@example.org", attempt));
            assert_eq!((failure, is_new), (Failure::Panicked, attempt == 1));
            assert!(error.contains("a bug: this test wants a panic"), "{error}");
        }
        world.until("it is delivered", || world.transports.stats().delivered == before + 1);
    }
    assert!(std::fs::read_to_string(file).unwrap().ends_with("\ntext\n\n"));
}

#[test]
fn a_worker_that_panics_after_its_attempt_is_counted_as_ended() {
    let world = World::new(true);
    let dir = world.dir.path().join("busy");
    // No file can be there: nothing can be delivered.
    std::fs::create_dir(&dir).unwrap();
    world.send(dir.to_str().unwrap());
    assert!(matches!(world.events.recv_timeout(PATIENCE), Ok(TransportEvent::Unavailable { attempts: 1, .. })));
    std::fs::remove_dir(&dir).unwrap();
    world.until("the next worker delivers it", || world.transports.stats().delivered == 1);
    assert!(std::fs::read_to_string(&dir).unwrap().ends_with("\ntext\n\n"));
}

#[test]
fn the_end_of_the_scheduler_is_noticed() {
    let world = World::new(false);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(world.transports.poll_failed(&mut cx).is_pending());
    world.spool.hooks.advances.store(true, Ordering::Relaxed);
    world.send("|/bin/true");
    world.until("it is noticed", || world.transports.poll_failed(&mut cx) == Poll::Ready(()));
    // What ends it does not panic in its turn.
    world.spool.hooks.advances.store(false, Ordering::Relaxed);
}
