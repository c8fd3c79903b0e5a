//! Acceptance with destinations that record their calls.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use posthaste_hooked_spool::{HookedSpool, Hooks};
use posthaste_spool::{AppendError, Batch, Entry, FileSpool, FrontFields, Spool, StreamId};

use super::*;

/// The events, in order.
type Notes = Arc<Mutex<Vec<String>>>;

fn note(notes: &Notes, what: impl Into<String>) {
    notes.lock().unwrap().push(what.into());
}

/// Notes appends, and refuses them on request.
struct Appends {
    notes: Notes,
    refusals: AtomicU64,
}

impl Hooks for Appends {
    fn append(&self, batch: &Batch) -> Result<(), AppendError> {
        let payloads = batch.entries.iter().map(|entry| String::from_utf8_lossy(&entry.payload).into_owned());
        note(&self.notes, format!("append {}", payloads.collect::<Vec<_>>().join(" ")));
        match self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Err(AppendError::Full("a test says so".into())),
            Err(_) => Ok(()),
        }
    }
}

/// A destination with a stream of its own.
struct Noted {
    name: &'static str,
    stream: StreamId,
    notes: Notes,
    waits: bool,
    refuses: AtomicBool,
    units: u64,
    stamped: AtomicU64,
}

/// Notes its end.
struct Dropped(Notes, String);

impl Drop for Dropped {
    fn drop(&mut self) {
        note(&self.0, self.1.clone());
    }
}

impl Noted {
    fn take(&self, body: BodyFacts, reserved: &mut Reserved) -> Result<(), NotTaken> {
        let what = if body.large.is_some() { " of a file" } else { "" };
        note(&self.notes, format!("{} reserves{what}", self.name));
        if self.refuses.load(Ordering::Relaxed) {
            let text = "not now".into();
            return Err(NotTaken {
                cause: NotTakenCause::PlaceFull,
                code: 452,
                status: "4.3.1",
                text,
                about: None,
                why: "a test".into(),
            });
        }
        let entry = Entry { stream: self.stream, needs_body: true, payload: Bytes::from_static(self.name.as_bytes()) };
        reserved.entries.push(entry);
        reserved.units += self.units;
        reserved.pins.push(Arc::new(Dropped(self.notes.clone(), format!("{} unpins", self.name))));
        Ok(())
    }
}

impl Destination for Noted {
    fn reserve<'a>(&'a self, _: &'a Mail<'a>, body: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a> {
        if self.waits {
            return Reserving::Waiting(Box::pin(async move {
                tokio::task::yield_now().await;
                self.take(body, reserved)
            }));
        }
        Reserving::Done(self.take(body, reserved))
    }

    fn stamp<'a>(&'a self, entries: &mut [Entry]) -> Option<Box<dyn Guard + 'a>> {
        let number = self.stamped.fetch_add(1, Ordering::Relaxed);
        let own = entries.iter_mut().filter(|entry| entry.stream == self.stream);
        own.for_each(|entry| entry.payload = format!("{}{number}", self.name).into());
        note(&self.notes, format!("{} stamps", self.name));
        Some(Box::new(Dropped(self.notes.clone(), format!("{} unlocks", self.name))))
    }
}

struct Rig {
    intake: Intake,
    spool: Arc<HookedSpool<Appends>>,
    destinations: Vec<Arc<Noted>>,
    notes: Notes,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new(config: Config) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (spool, _) = FileSpool::open(dir.path(), posthaste_spool::Config::default()).expect("opens");
        let notes = Notes::default();
        let spool = Arc::new(HookedSpool::new(spool, Appends { notes: notes.clone(), refusals: 0.into() }));
        let destination = |name: &'static str, waits: bool| {
            let stream = spool.stream(name).expect("a stream");
            let (notes, refuses, stamped) = (notes.clone(), AtomicBool::new(false), AtomicU64::new(0));
            Arc::new(Noted { name, stream, notes, waits, refuses, units: 1, stamped })
        };
        let destinations = vec![destination("a", false), destination("b", true)];
        Rig { intake: Intake::new(spool.clone(), config), spool, destinations, notes, dir }
    }

    async fn accept(&self, text: &str) -> Result<Receipt, IntakeError> {
        let body = GatheredBody::Memory(vec![Bytes::copy_from_slice(text.as_bytes())]);
        self.intake.accept(&self.destinations, &Mail::default(), body).await
    }

    fn notes(&self) -> Vec<String> {
        std::mem::take(&mut self.notes.lock().unwrap())
    }

    /// Returns units, like destinations that are done with a message.
    fn let_go(&self) {
        self.destinations.iter().for_each(|one| drop(self.intake.budget().taken_over(one.units)));
    }
}

#[tokio::test]
async fn stamps_are_made_in_order_and_held_for_the_append() {
    let rig = Rig::new(Config::default());
    let receipt = rig.accept("x").await.expect("accepted");
    let given: Vec<_> = receipt.entries.iter().map(|entry| entry.payload.clone()).collect();
    assert_eq!(given, ["a0", "b0"], "the receipt has what each was given");
    let expected = ["a reserves", "b reserves", "a stamps", "b stamps", "append a0 b0", "a unlocks", "b unlocks"];
    let notes = rig.notes();
    assert_eq!(notes[..7], expected);
    assert_eq!(notes[7..], ["a unpins", "b unpins"]);
    assert!(rig.spool.needs_body(rig.destinations[1].stream, receipt.lsn));
    assert_eq!(rig.intake.accepted(), 1);
    assert!(!rig.intake.budget().is_whole(), "the destinations have it in memory");
    rig.let_go();
    assert!(rig.intake.budget().is_whole());
}

#[tokio::test]
async fn a_message_without_octets_takes_no_memory() {
    let rig = Rig::new(Config::default());
    let accept = |front: FrontFields| async {
        let mail = Mail { front, ..Mail::default() };
        rig.intake.accept(&rig.destinations, &mail, GatheredBody::Memory(Vec::new())).await.expect("accepted");
        rig.intake.budget().is_whole()
    };
    assert!(accept(FrontFields::default()).await, "there is no body that a destination could let go of");
    assert!(!accept(FrontFields::new("Received: x\r\n").expect("a field")).await);
    rig.let_go();
    assert!(rig.intake.budget().is_whole());
}

#[tokio::test]
async fn a_refusal_of_one_destination_is_one_of_all() {
    let rig = Rig::new(Config::default());
    rig.destinations[1].refuses.store(true, Ordering::Relaxed);
    let refused = rig.accept("x").await;
    assert!(matches!(&refused, Err(IntakeError::NotTaken(why)) if why.code == 452), "{refused:?}");
    assert_eq!(rig.notes(), ["a reserves", "b reserves", "a unpins"]);
    assert!(rig.intake.budget().is_whole());
    assert_eq!(rig.spool.stats().published, posthaste_spool::Lsn::ZERO);
}

#[tokio::test]
async fn a_batch_that_waits_for_room_is_stamped_anew() {
    let rig = Rig::new(Config::default());
    rig.spool.hooks.refusals.store(1, Ordering::Relaxed);
    let receipt = rig.accept("x").await.expect("accepted");
    assert_eq!(receipt.entries[0].payload, "a1");
    let notes = rig.notes();
    let reserved = notes.iter().filter(|what| what.contains("reserves")).count();
    let unpinned = notes.iter().position(|what| what.contains("unpins"));
    let last = notes.iter().rposition(|what| what.starts_with("append a1 b1"));
    assert_eq!(reserved, 2, "once each: {notes:?}");
    assert!(unpinned > last, "what was reserved is kept for the second try: {notes:?}");
    rig.let_go();
    assert!(rig.intake.budget().is_whole(), "the first try has given its memory back");
}

#[tokio::test]
async fn without_room_a_message_is_refused_and_the_next_at_once() {
    let rig = Rig::new(Config { room_patience: Duration::from_millis(30), ..Config::default() });
    rig.spool.hooks.refusals.store(u64::MAX, Ordering::Relaxed);
    assert!(matches!(rig.accept("x").await, Err(IntakeError::Full(_))));
    let tries = rig.notes().iter().filter(|what| what.starts_with("append")).count();
    assert!(tries > 1, "{tries}");
    assert!(matches!(rig.accept("x").await, Err(IntakeError::Full(_))));
    assert_eq!(rig.notes().iter().filter(|what| what.starts_with("append")).count(), 2, "again after one look");
    assert!(rig.intake.budget().is_whole());
}

#[tokio::test]
async fn the_first_message_behind_a_full_spool_is_accepted() {
    let rig = Rig::new(Config { room_patience: Duration::from_millis(30), ..Config::default() });
    rig.spool.hooks.refusals.store(u64::MAX, Ordering::Relaxed);
    assert!(matches!(rig.accept("x").await, Err(IntakeError::Full(_))));
    // As after space was made, which the spool's keeper has not seen yet.
    rig.spool.hooks.refusals.store(1, Ordering::Relaxed);
    rig.accept("x").await.expect("accepted");
    rig.let_go();
}

#[tokio::test]
async fn a_cancelled_message_gives_back_all_it_had() {
    let rig = Rig::new(Config::default());
    rig.spool.hooks.refusals.store(u64::MAX, Ordering::Relaxed);
    let body = GatheredBody::Memory(vec![Bytes::from_static(b"x")]);
    let appended = async {
        while !rig.notes.lock().unwrap().iter().any(|what| what.starts_with("append")) {
            tokio::task::yield_now().await;
        }
    };
    let outcome = rig.intake.accept_unless(&rig.destinations, &Mail::default(), body, appended).await;
    assert!(matches!(outcome, Err(IntakeError::Cancelled)), "{outcome:?}");
    let notes = rig.notes();
    assert!(notes.ends_with(&["a unpins".to_owned(), "b unpins".to_owned()]), "{notes:?}");
    assert!(rig.intake.budget().is_whole());
    rig.spool.hooks.refusals.store(0, Ordering::Relaxed);
    let body = GatheredBody::Memory(vec![Bytes::from_static(b"x")]);
    rig.intake.accept_unless(&rig.destinations, &Mail::default(), body, pending()).await.expect("wanted");
}

#[tokio::test]
async fn what_no_memory_could_hold_goes_to_a_file() {
    let mut rig = Rig::new(Config { backlog_bytes: 8 << 10, inline_bytes_max: 10_000, ..Config::default() });
    rig.accept(&"x".repeat(20_000)).await.expect("accepted");
    assert_eq!(rig.notes()[..2], ["a reserves of a file", "b reserves of a file"]);
    assert_eq!(rig.spool.stats().large_bodies, 1);
    for one in &mut rig.destinations {
        Arc::get_mut(one).expect("nobody else has it").units = 5;
    }
    // Each destination alone would fit.
    rig.accept("x").await.expect("accepted");
    let notes = rig.notes();
    let reserved: Vec<_> = notes.iter().filter(|what| what.contains("reserves")).collect();
    assert_eq!(reserved, ["a reserves", "b reserves", "a reserves of a file", "b reserves of a file"]);
    assert_eq!(rig.spool.stats().large_bodies, 2);
    assert!(rig.intake.budget().is_whole(), "a file takes no memory");
}

#[tokio::test]
async fn front_fields_are_the_beginning_of_every_message() {
    let rig = Rig::new(Config { inline_bytes_max: 10_000, ..Config::default() });
    let front = FrontFields::new("Received: from there\r\n by here\r\n").expect("lines");
    for text in ["text\r\n".to_owned(), "text\r\n".repeat(5000)] {
        let body = GatheredBody::Memory(vec![Bytes::copy_from_slice(text.as_bytes())]);
        let mail = Mail { front: front.clone(), ..Mail::default() };
        let receipt = rig.intake.accept(&rig.destinations, &mail, body).await.expect("accepted");
        let whole = [front.bytes(), text.as_bytes()].concat();
        assert!(rig.spool.read(receipt.lsn, 0..whole.len() as u64).expect("read") == whole);
    }
    assert_eq!(rig.spool.stats().large_bodies, 1);
}

#[tokio::test]
async fn facts_of_a_large_body_count_its_front_fields() {
    let rig = Rig::new(Config::default());
    let front = FrontFields::new("Received: from there\r\n by here\r\n").expect("lines");
    for (text, with_crlf, lone_lfs) in [("a\r\nb\r\n", 2, 0), ("a\nb\n", 0, 2)] {
        let mut writer = rig.intake.upload(0).expect("room");
        writer.write(text.as_bytes()).await.expect("written");
        let body = GatheredBody::Large(writer.finish().await.expect("synced"));
        let large = |front: &FrontFields| body.facts(front).large.expect("in a file");
        let (bare, behind) = (large(&FrontFields::default()), large(&front));
        assert_eq!((bare.crlfs, bare.lone_lfs), (with_crlf, lone_lfs));
        // With front fields there are CRs, so the rest is sent as it is.
        assert_eq!((behind.crlfs, behind.lone_lfs, behind.is_lossless), (with_crlf + 2, 0, bare.is_lossless));
        assert_eq!(body.facts(&front).len, (front.len() + text.len()) as u64);
    }
}

#[tokio::test]
async fn nothing_is_accepted_behind_the_end() {
    let rig = Rig::new(Config::default());
    rig.intake.end(std::time::Instant::now());
    assert!(matches!(rig.accept("x").await, Err(IntakeError::Closed)));
    assert!(rig.spool.stats().checkpoints > 0);
}

#[tokio::test]
async fn stalled_bodies_hold_no_room_however_much_they_announced() {
    let rig = Rig::new(Config::default());
    let space = rustix::fs::statvfs(rig.dir.path()).expect("statvfs");
    // What others write to this disk meanwhile is far less.
    let announced = space.f_bavail * space.f_frsize / 2;
    let mut stalled = Vec::new();
    for _ in 0..100 {
        let mut writer = rig.intake.upload(announced).expect("room for what has come");
        writer.write(&[b'x'; 300_000]).await.expect("written");
        writer.pause();
        stalled.push(writer);
    }
    rig.intake.wait_for_room(announced).await.expect("room for another");
    assert!(matches!(rig.intake.upload(3 * announced), Err(IntakeError::Full(_))));
    for writer in &mut stalled {
        writer.write(&[b'x'; 300_000]).await.expect("goes on");
    }
    drop(stalled);
    assert_eq!(std::fs::read_dir(rig.dir.path().join("bodies")).expect("a spool").count(), 0);
}
