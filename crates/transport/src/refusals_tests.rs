//! Each refusal is told once, whatever comes in between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_intake::Destination as _;
use posthaste_spool::{Batch, Body, Entry, Spool};

use crate::notifier::{RefusalNotifier, RefusedMail, Telling};
use crate::tests::World;
use crate::{Config, Failure, TransportEvent};

const PATIENCE: Duration = Duration::from_secs(120);

/// Notices go into a spool, unless they cannot be kept.
#[derive(Default)]
struct Notices {
    spool: Mutex<Option<Arc<dyn Spool>>>,
    asked: Mutex<Option<Sender<RefusedMail>>>,
    panics: AtomicBool,
    nobody: AtomicBool,
}

impl std::fmt::Debug for Notices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notices")
    }
}

impl Notices {
    fn new() -> (Arc<Self>, Receiver<RefusedMail>) {
        let (tell, asked) = channel();
        let notices = Notices { asked: Mutex::new(Some(tell)), ..Notices::default() };
        (Arc::new(notices), asked)
    }

    /// From now on they can be kept.
    fn keep_in(&self, spool: Arc<dyn Spool>) {
        *self.spool.lock().unwrap() = Some(spool);
    }

    fn forget_spool(&self) {
        *self.spool.lock().unwrap() = None;
    }
}

impl RefusalNotifier for Notices {
    fn tell(&self, refused: RefusedMail, told: Entry) -> Telling {
        self.asked.lock().unwrap().as_ref().unwrap().send(refused).unwrap();
        assert!(!self.panics.swap(false, Ordering::Relaxed), "this test wants a panic");
        if self.nobody.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(Ok(false)));
        }
        let Some(spool) = self.spool.lock().unwrap().clone() else {
            return Box::pin(std::future::ready(Err("no room".to_owned())));
        };
        let (tell, kept) = tokio::sync::oneshot::channel();
        let batch = Batch { entries: vec![told], body: Body::None };
        spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
        Box::pin(async move { kept.await.unwrap().map(|_| true).map_err(|error| error.to_string()) })
    }
}

fn config(notices: &Arc<Notices>) -> Config {
    Config { notifier: Some(notices.clone()), ..Config::default() }
}

fn refused(world: &World) {
    loop {
        match world.event() {
            TransportEvent::Failed { failure: Failure::Refused, .. } => return,
            TransportEvent::NotTold { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_refusal_is_told_after_a_restart_if_it_could_not_be_before() {
    let (notices, asked) = Notices::new();
    let world = World::new(config(&notices));
    let program = world.script("test -e DIR/slow && exec sleep 1000; echo unknown; exit 67");
    let id = world.send(&[(&program, "a@example.org")], b"text\r\n");
    let first = asked.recv_timeout(PATIENCE).unwrap();
    assert_eq!(
        (first.id, &*first.sender, &*first.original, &*first.recipient, &*first.reply),
        (id, "s@example.net", "As+Given@example.org", "a@example.org", "/bin/sh: exit status 67: unknown")
    );
    assert_eq!(asked.recv_timeout(PATIENCE).unwrap(), first, "it is tried again");
    refused(&world);
    // Its next attempt takes long: what is told comes from the record of the first.
    std::fs::write(world.path("slow"), "").unwrap();
    let quick_end = Config { shutdown_patience: Duration::from_millis(10), ..config(&notices) };
    let world = world.again(quick_end.clone());
    while asked.try_recv().is_ok() {}
    notices.keep_in(world.spool.clone());
    assert_eq!(asked.recv_timeout(PATIENCE).unwrap(), first);
    world.until("it is recorded", || world.transports.queues().are_all_told());
    while asked.try_recv().is_ok() {}
    notices.forget_spool();
    std::fs::remove_file(world.path("slow")).unwrap();
    // Refused once more, it owes nothing.
    let world = world.again(quick_end);
    refused(&world);
    world.transports.retry();
    refused(&world);
    assert!(world.transports.queues().are_all_told() && asked.try_recv().is_err());
}

#[test]
fn what_is_written_down_anew_says_who_was_told() {
    let (notices, asked) = Notices::new();
    let world = World::new(config(&notices));
    notices.keep_in(world.spool.clone());
    let last = world.send(&[(&world.script("exit 67"), "a@example.org")], b"text\r\n");
    asked.recv_timeout(PATIENCE).unwrap();
    world.until("it is recorded", || world.transports.queues().are_all_told());
    let stream = || world.spool.streams().into_iter().find(|stream| stream.name == crate::STREAM).unwrap();
    world.until("it is passed", || {
        world.transports.want(posthaste_spool::Lsn::new(last));
        stream().position.get() > last
    });
    refused(&world);
    notices.forget_spool();
    let world = world.again(config(&notices));
    refused(&world);
    assert!(world.transports.queues().are_all_told() && asked.try_recv().is_err());
}

#[test]
fn a_panic_of_the_notifier_is_retried_and_no_address_recorded() {
    let (notices, asked) = Notices::new();
    let world = World::new(config(&notices));
    notices.panics.store(true, Ordering::Relaxed);
    notices.nobody.store(true, Ordering::Relaxed);
    world.send(&[(&world.script("exit 67"), "a@example.org")], b"text\r\n");
    let first = asked.recv_timeout(PATIENCE).unwrap();
    assert_eq!(asked.recv_timeout(PATIENCE).unwrap(), first);
    world.until("it is recorded", || world.transports.queues().are_all_told());
    refused(&world);
    let world = world.again(config(&notices));
    refused(&world);
    assert!(world.transports.queues().are_all_told() && asked.try_recv().is_err());
}
