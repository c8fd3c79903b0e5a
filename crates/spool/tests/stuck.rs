//! A consumer that does not come back is named: nothing is accepted meanwhile.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use posthaste_spool::{Batch, Body, Config, Consumer, Entry, FileSpool, Lsn, Published, Spool};
use posthaste_watch::{Became, Watch, Watcher};

/// Tells that it is called, and waits until it may go on.
struct Hangs(Mutex<(Sender<()>, Receiver<()>)>);

impl Consumer for Hangs {
    fn published(&self, _: Published) {
        let held = self.0.lock().unwrap();
        held.0.send(()).unwrap();
        let _ = held.1.recv();
    }

    fn advance_wanted(&self, _: Lsn) {}
}

#[test]
fn the_rings_thread_is_missed_in_a_consumer_or_a_callback() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = FileSpool::open(dir.path(), Config { keeper: false, ..Config::default() }).unwrap();
    let stream = spool.stream("slow").unwrap();
    let shown = spool.replay(stream, &mut |_| ()).unwrap();
    let (called, is_called) = channel();
    let (go_on, may_go_on) = channel();
    spool.attach(stream, shown, Arc::new(Hangs(Mutex::new((called, may_go_on))))).unwrap();
    let (tell, told) = channel();
    let (answer, answered) = channel::<()>();
    let entry = Entry { stream, needs_body: false, payload: "for you".into() };
    let then = move |outcome| {
        tell.send(outcome).unwrap();
        let _ = answered.recv();
    };
    let begun = Instant::now();
    let look = |secs| {
        let found = spool.look_for_stuck(begun + Duration::from_secs(secs));
        found.into_iter().map(|found| (found.states, found.what)).collect::<Vec<_>>()
    };
    assert_eq!(look(0), []);
    spool.append(Batch { entries: vec![entry], body: Body::None }, Box::new(then));
    is_called.recv().unwrap();
    assert_eq!((look(1), look(31)), (vec![], vec![]));
    let name = "commits of the spool > stream slow > showing a batch to its consumer";
    assert_eq!(look(32), [(name.to_owned(), Became::Stuck)]);
    assert_eq!(look(33), [], "once");
    go_on.send(()).unwrap();
    told.recv().unwrap().unwrap();
    assert_eq!(look(34), [(name.to_owned(), Became::WentOn)]);
    let name = "commits of the spool > calling those who wait for the batch";
    assert_eq!(look(65), [(name.to_owned(), Became::Stuck)]);
    drop(answer);
}

#[test]
fn a_consumer_that_hangs_in_replay_is_found_by_the_watch() {
    let dir = tempfile::tempdir().unwrap();
    let watch = Watch::default();
    let config = Config { keeper: false, watch: watch.clone(), ..Config::default() };
    let (spool, _) = FileSpool::open(dir.path(), config).unwrap();
    let stream = spool.stream("slow").unwrap();
    let (tell, told) = channel();
    let entry = Entry { stream, needs_body: false, payload: "for you".into() };
    spool.append(Batch { entries: vec![entry], body: Body::None }, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap().unwrap();
    let (called, is_called) = channel();
    let (go_on, may_go_on) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let may_go_on = may_go_on;
            spool.replay(stream, &mut |_| {
                called.send(()).unwrap();
                may_go_on.recv().unwrap();
            })
        });
        is_called.recv().unwrap();
        // As a server that is still opening its consumers.
        let (watcher, begun) = (Watcher::of(watch.clone()), Instant::now());
        let look = |secs| {
            let found = watcher.look(begun + Duration::from_secs(secs));
            found.into_iter().map(|found| (found.states, found.what)).collect::<Vec<_>>()
        };
        assert_eq!((look(0), look(60)), (vec![], vec![]));
        let name = "replay of the spool > stream slow > showing an entry to its consumer";
        assert_eq!(look(61), [(name.to_owned(), Became::Stuck)]);
        go_on.send(()).unwrap();
    });
}
