//! A spool that takes no records: a bounded number is delivered meanwhile, and nothing else again after a restart.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_hooked_spool::{HookedSpool, Hooks};
use posthaste_spool::{AppendError, Batch, Body, FileSpool, OpenError, Spool, Then};

use crate::{Config, Target, TransportEvent, TransportEvents, TransportMessage, Transports};

const PATIENCE: Duration = Duration::from_secs(120);
/// Concurrent deliveries of one program.
const WORKERS: usize = 4;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Well,
    /// Records are refused.
    Poisoned,
    /// Also those who ask are told of it.
    Dead,
    Full,
    /// Records are neither taken nor refused.
    Hung,
}

#[derive(Default)]
struct Disk(Mutex<Mode>, AtomicUsize);

struct On(Arc<Disk>);

impl Hooks for On {
    fn append(&self, batch: &Batch) -> Result<(), AppendError> {
        match *self.0.0.lock().unwrap() {
            _ if !matches!(batch.body, Body::None) => Ok(()),
            Mode::Well => Ok(()),
            Mode::Poisoned | Mode::Dead => Err(AppendError::Poisoned("EIO".into())),
            Mode::Full => {
                self.0.1.fetch_add(1, Ordering::Relaxed);
                Err(AppendError::Full("no segment is left".into()))
            }
            Mode::Hung => Err(AppendError::Closed),
        }
    }

    fn poisoned(&self) -> Option<Arc<str>> {
        (*self.0.0.lock().unwrap() == Mode::Dead).then(|| "EIO".into())
    }

    fn then(&self, then: Then) -> Then {
        let is_hung = *self.0.0.lock().unwrap() == Mode::Hung;
        Box::new(move |outcome| {
            if !is_hung || !matches!(outcome, Err(AppendError::Closed)) {
                then(outcome);
            }
        })
    }
}

struct World {
    transports: Transports,
    spool: Arc<HookedSpool<On>>,
    disk: Arc<Disk>,
    events: Receiver<TransportEvent>,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    fn at(dir: tempfile::TempDir) -> Self {
        let mut settings = posthaste_spool::Config::default();
        settings.ring.segment_bytes = 4 << 20;
        // A program that another test starts has the lock for a moment.
        let mut opened = None;
        until("the lock is free", || {
            opened = match FileSpool::open(&dir.path().join("spool"), settings.clone()) {
                Err(OpenError::Locked) => None,
                opened => Some(opened.unwrap().0),
            };
            opened.is_some()
        });
        let spool = opened.expect("it is open");
        let disk = Arc::<Disk>::default();
        let spool = Arc::new(HookedSpool::new(spool, On(disk.clone())));
        let (tell, events) = channel();
        let tell = Mutex::new(tell);
        let tell = TransportEvents::new(move |event| drop(tell.lock().unwrap().send(event)));
        let (transports, _) = Transports::open(spool.clone(), Config::default(), tell).unwrap();
        World { transports, spool, disk, events, dir }
    }

    fn set(&self, mode: Mode) {
        *self.disk.0.lock().unwrap() = mode;
    }

    /// One message for so many recipients of a program.
    fn send(&self, targets: usize) {
        self.send_to(&format!("|/bin/sh -c \"echo $RECIPIENT >> {}/out\"", self.dir.path().display()), targets);
    }

    fn send_to(&self, transport: &str, targets: usize) {
        let target = |number: usize| {
            let recipient: Arc<str> = format!("r{number}@example.org").into();
            let original = recipient.clone();
            Target { transport: transport.into(), recipient, original, detail: "".into() }
        };
        let targets = (0..targets).map(target).collect();
        let message = TransportMessage { sender: "s@example.net".into(), is_8bit: false, smtputf8: false, targets };
        let body = Body::inline(vec![Bytes::from_static(b"text\r\n")]);
        let (tell, told) = channel();
        let batch = Batch { entries: vec![self.transports.entry(message)], body };
        self.spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
        told.recv().unwrap().unwrap();
    }

    fn delivered(&self) -> usize {
        let out = std::fs::read_to_string(self.dir.path().join("out")).unwrap_or_default();
        out.lines().count()
    }

    fn until_stopped(&self) -> TransportEvent {
        let event = self.events.recv_timeout(PATIENCE).expect("an event");
        until("no worker is left", || self.transports.queues().workers() == 0);
        assert_eq!(self.transports.stats().delivered as usize, self.delivered());
        event
    }

    fn until_empty(&self) {
        until("all is delivered", || self.transports.stats().messages == 0);
    }

    /// As after a kill.
    fn again(self) -> Self {
        let World { transports, spool, dir, .. } = self;
        transports.0.end_by(Instant::now());
        drop(transports);
        Arc::into_inner(spool).expect("nobody else has it").spool.abandon();
        Self::at(dir)
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn on_a_poisoned_spool_delivery_stops_at_once() {
    let world = World::new();
    world.set(Mode::Poisoned);
    world.send(30);
    let event = world.until_stopped();
    assert!(matches!(&event, TransportEvent::NotRecorded { is_final: true, .. }), "{event:?}");
    let before = world.delivered();
    assert!((1..=WORKERS).contains(&before), "{before}");
    assert!(world.events.try_recv().is_err(), "it is told once");
    let world = world.again();
    world.until_empty();
    assert_eq!(world.delivered(), 30 + before, "those alone are delivered twice");
}

/// An LMTP server that waits with its answer to DATA, and says what came after that.
fn lmtp_server(asked: Sender<()>, answer: Receiver<bool>) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("lmtp:{}", listener.local_addr().unwrap());
    let server = move || -> std::io::Result<String> {
        let mut stream = listener.accept()?.0;
        let mut lines = BufReader::new(stream.try_clone()?);
        stream.write_all(b"220 lmtp\r\n")?;
        loop {
            let mut line = String::new();
            lines.read_line(&mut line)?;
            if line.starts_with("DATA") {
                asked.send(()).unwrap();
                if answer.recv().unwrap() {
                    stream.write_all(b"354 go\r\n")?;
                }
                // A close with an unread reply is a reset.
                let mut rest = Vec::new();
                stream.set_read_timeout(Some(PATIENCE / 4))?;
                if lines.read_to_end(&mut rest).is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                    rest.extend(b"(open)");
                }
                return Ok(String::from_utf8(rest).unwrap());
            }
            stream.write_all(b"250 ok\r\n")?;
        }
    };
    (address, std::thread::spawn(move || server().unwrap()))
}

#[test]
fn poison_cuts_lmtp_sessions_before_the_next_octet() {
    for is_answered in [true, false] {
        let world = World::new();
        let ((tell, asked), (answers, answer)) = (channel(), channel());
        let (address, server) = lmtp_server(tell, answer);
        world.send_to(&address, 1);
        asked.recv_timeout(PATIENCE).unwrap();
        world.set(Mode::Dead);
        answers.send(is_answered).unwrap();
        assert_eq!(server.join().unwrap(), "", "{is_answered}: not even QUIT");
        let event = world.events.recv_timeout(PATIENCE).expect("an event");
        assert!(matches!(&event, TransportEvent::NotRecorded { is_final: true, .. }), "{event:?}");
        until("no worker is left", || world.transports.queues().workers() == 0);
        assert!(world.events.try_recv().is_err(), "it is told once");
    }
}

#[test]
fn what_was_delivered_while_the_ring_refused_is_recorded_later() {
    let world = World::new();
    world.set(Mode::Full);
    world.send(30);
    let event = world.until_stopped();
    assert!(matches!(&event, TransportEvent::NotRecorded { is_final: false, .. }), "{event:?}");
    let before = world.delivered();
    assert!((1..=WORKERS).contains(&before), "{before}");
    world.set(Mode::Well);
    world.until_empty();
    assert_eq!((world.delivered(), world.events.recv_timeout(PATIENCE)), (30, Ok(TransportEvent::RecordedAgain)));
    let world = world.again();
    assert_eq!((world.transports.stats().messages, world.delivered()), (0, 30));
}

#[test]
fn what_the_ring_refuses_until_the_end_is_recorded_at_the_end() {
    let world = World::new();
    world.set(Mode::Full);
    world.send(1);
    world.until_stopped();
    let World { transports, spool, disk, dir, .. } = world;
    let refusals = || disk.1.load(Ordering::Relaxed);
    let before = refusals();
    let ending = std::thread::spawn(move || drop(transports));
    until("it is repeated", || refusals() > before + 5 || ending.is_finished());
    *disk.0.lock().unwrap() = Mode::Well;
    ending.join().unwrap();
    Arc::into_inner(spool).expect("nobody else has it").spool.abandon();
    let world = World::at(dir);
    assert_eq!((world.transports.stats().messages, world.delivered()), (0, 1));
}

#[test]
fn while_records_hang_only_the_bound_is_delivered() {
    let world = World::new();
    world.set(Mode::Hung);
    world.send(1100);
    let event = world.until_stopped();
    assert!(matches!(&event, TransportEvent::NotRecorded { is_final: false, .. }), "{event:?}");
    let before = world.delivered();
    assert!((1000..1000 + WORKERS).contains(&before), "{before}");
    let world = world.again();
    world.until_empty();
    assert_eq!(world.delivered(), 1100 + before);
}
