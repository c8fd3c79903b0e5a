//! A writer of the log that does not go on is named.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use posthaste_events::{ArrivalFacts, Config, Event, EventKind, EventLog, ReceivedEvent};
use posthaste_hooked_spool::{HookedSpool, Hooks};
use posthaste_spool::{Batch, Body, FileSpool, Spool};
use posthaste_watch::Became;

/// Its first call to let the log advance does not come back before it may.
struct Hangs(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl Hooks for Hangs {
    fn advance(&self) {
        let held = self.0.lock().unwrap().take();
        if let Some((called, may_go_on)) = held {
            called.send(()).unwrap();
            let _ = may_go_on.recv();
        }
    }
}

#[test]
fn a_writer_that_waits_for_a_disk_is_named_once() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = FileSpool::open(&dir.path().join("spool"), posthaste_spool::Config::default()).unwrap();
    let (called, is_called) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let spool = Arc::new(HookedSpool::new(spool, Hangs(Mutex::new(Some((called, may_go_on))))));
    let log = EventLog::open(spool.clone(), Config::new(dir.path().join("events"))).unwrap();
    let recorder = log.recorder();
    is_called.recv().unwrap();
    let begun = Instant::now();
    let look = |secs| {
        let found = spool.look_for_stuck(begun + Duration::from_secs(secs));
        // Workers of the spool go on, but perhaps not between two looks.
        let of_log = found.into_iter().filter(|found| found.states.starts_with("event-log"));
        of_log.map(|found| (found.states, found.what)).collect::<Vec<_>>()
    };
    let name = "event-log > syncing its file";
    assert_eq!((look(0), look(60)), (vec![], vec![]));
    assert_eq!(look(61), [(name.to_owned(), Became::Stuck)]);
    drop(go_on);
    let facts = ArrivalFacts { id: "1".into(), ..ArrivalFacts::default() };
    let event = Event { at_us: 1, kind: EventKind::Received(ReceivedEvent { facts, ..ReceivedEvent::default() }) };
    let entries = recorder.entry(&event).into_iter().collect();
    spool.append(Batch { entries, body: Body::None }, Box::new(|_| ()));
    let end = Instant::now() + Duration::from_secs(60);
    while log.stats().lines == 0 {
        assert!(Instant::now() < end, "nothing is written");
        std::thread::yield_now();
    }
    assert_eq!(look(62), [(name.to_owned(), Became::WentOn)]);
}
