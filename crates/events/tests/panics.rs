//! A panic in a thread of the log, which only a bug can cause: here a spool that panics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_events::{Config, Event, EventKind, EventLog, LeftOut, Notice};
use posthaste_hooked_spool::{HookedSpool, Hooks};
use posthaste_spool::{AppendError, Batch, FileSpool};

const PATIENCE: Duration = Duration::from_secs(60);

type Spool = HookedSpool<Panics>;

#[derive(Default)]
struct Panics {
    appends: AtomicBool,
    advances: AtomicBool,
}

impl Hooks for Panics {
    fn append(&self, _: &Batch) -> Result<(), AppendError> {
        assert!(!self.appends.load(Ordering::Relaxed), "this test wants a panic");
        Ok(())
    }

    fn advance(&self) {
        assert!(!self.advances.load(Ordering::Relaxed), "this test wants a panic");
    }
}

/// Checks a log of which one thread panics.
fn check(break_it: impl FnOnce(&Panics), thread: &str) {
    let dir = tempfile::tempdir().unwrap();
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 8, ..Default::default() };
    let config = posthaste_spool::Config { ring, ..posthaste_spool::Config::default() };
    let (spool, _) = FileSpool::open(&dir.path().join("spool"), config).unwrap();
    let spool = Arc::new(Spool::new(spool, Panics::default()));
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let notice = Arc::new(move |notice| drop(tell.lock().unwrap().send(notice)));
    let moment = Duration::from_millis(10);
    let config = Config { notice, sync_interval: moment, ..Config::new(dir.path().join("events")) };
    let log = EventLog::open(spool.clone(), config).unwrap();
    let recorder = log.recorder();
    let event = Event::now(EventKind::LeftOut(LeftOut { refused: 1, others: 0 }));
    // It has begun well.
    recorder.note(&event);
    while log.stats().lines == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    break_it(&spool.hooks);
    recorder.note(&event);
    let Notice::Panicked { thread: panicked } = told.recv_timeout(PATIENCE).expect("it is noticed") else {
        panic!("another notice");
    };
    assert_eq!(panicked, thread);
    // Callers go on, and nothing is piled up in the spool.
    let before = log.stats().left_out;
    assert!(recorder.entry(&event).is_none());
    recorder.note(&event);
    assert_eq!(log.stats().left_out, before + 2);
    spool.hooks.appends.store(false, Ordering::Relaxed);
    spool.hooks.advances.store(false, Ordering::Relaxed);
    assert!(log.end(PATIENCE), "nobody waits for a thread that is gone");
}

#[test]
fn a_panic_of_the_thread_that_gathers_is_noticed() {
    check(|spool| spool.appends.store(true, Ordering::Relaxed), "event-notes");
}

#[test]
fn a_panic_of_the_thread_that_writes_is_noticed() {
    check(|spool| spool.advances.store(true, Ordering::Relaxed), "event-log");
}
