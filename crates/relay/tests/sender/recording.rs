//! A spool that takes no records: meanwhile sent mail stays within a bound, and nothing else is sent again after a
//! restart.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use posthaste_hooked_spool::{HookedSpool, Hooks};
use posthaste_spool::{AppendError, Then};

use super::*;

/// The spool's answer to an append.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Well,
    Poisoned,
    Full,
    /// One message more has space, then only small entries.
    OneBody,
    /// Only small entries have space.
    NoBodies,
    /// It neither takes nor refuses.
    Hung,
}

#[derive(Default)]
struct Disk {
    mode: Mutex<Mode>,
    held: Mutex<Vec<(Then, AppendError)>>,
    /// Another stream's sync has failed.
    is_poisoned: AtomicBool,
    /// Parts of bodies that were read.
    reads: AtomicUsize,
    refusals: AtomicUsize,
}

struct On(Arc<Disk>);

impl Hooks for On {
    fn append(&self, batch: &Batch) -> Result<(), AppendError> {
        let mut mode = self.0.mode.lock().unwrap();
        match *mode {
            Mode::Well => Ok(()),
            Mode::Poisoned => Err(AppendError::Poisoned("EIO".into())),
            Mode::NoBodies | Mode::OneBody if matches!(batch.body, Body::None) => Ok(()),
            Mode::OneBody => {
                *mode = Mode::NoBodies;
                Ok(())
            }
            Mode::Full | Mode::NoBodies => {
                self.0.refusals.fetch_add(1, Ordering::Relaxed);
                Err(AppendError::Full("no segment is left".into()))
            }
            Mode::Hung => Err(AppendError::Closed),
        }
    }

    fn then(&self, then: Then) -> Then {
        if *self.0.mode.lock().unwrap() != Mode::Hung {
            return then;
        }
        let disk = self.0.clone();
        Box::new(move |outcome| disk.held.lock().unwrap().push((then, outcome.unwrap_err())))
    }

    fn read(&self, octets: u64) {
        // An octet beyond the end asks for the length of a body.
        self.0.reads.fetch_add(usize::from(octets > 1), Ordering::Relaxed);
    }

    fn poisoned(&self) -> Option<Arc<str>> {
        self.0.is_poisoned.load(Ordering::Relaxed).then(|| "EIO".into())
    }
}

impl Disk {
    fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        held.into_iter().for_each(|(then, error)| then(Err(error)));
    }

    fn rig(self: &Arc<Self>, port: u16) -> Rig {
        let hooks = On(self.clone());
        rig_over(
            tempfile::tempdir().unwrap(),
            zone(),
            port,
            |spool| Arc::new(HookedSpool::new(spool, hooks)),
            |config| config.site_connections_max = CONNECTIONS,
        )
    }
}

impl Rig {
    /// Queues messages, which leave from the first call of [`Disk::set`] on, with `dns` released.
    fn queue(&self, messages: usize) {
        self.dns.hold();
        let mut told = Vec::new();
        for number in 0..messages {
            let entry = self.relay.entry(outgoing("ann@here.example", &[&format!("r{number}@a.example")], 0));
            let batch = Batch { entries: vec![entry], body: Body::inline(vec!["x\r\n".into()]) };
            let (tell, this) = std::sync::mpsc::channel();
            self.spool.append(batch, Box::new(move |outcome| tell.send(outcome).unwrap()));
            told.push(this);
        }
        told.into_iter().for_each(|this| assert!(this.recv().unwrap().is_ok()));
    }

    /// Ends like a kill: the spool keeps its present state.
    fn kill(self, disk: &Disk) -> tempfile::TempDir {
        let Rig { spool, relay, back, dir, .. } = self;
        relay.end_by(Instant::now());
        drop((relay, back));
        // Appends without an answer hold the spool.
        disk.held.lock().unwrap().clear();
        drop(spool);
        dir
    }

    fn said(&self, what: &str) -> usize {
        self.log().iter().filter(|line| line.starts_with(what)).count()
    }
}

/// Number of notices that a sink has taken.
fn notices(sink: &Sink) -> usize {
    sink.taken().iter().filter(|taken| taken.sender.is_empty()).count()
}

fn unrecorded_in_flight() -> usize {
    // Each session has two messages in flight at most.
    2 * CONNECTIONS
}

const CONNECTIONS: usize = 4;

#[test]
fn on_a_poisoned_spool_sending_stops_at_once() {
    let sink = Sink::start();
    let disk = Arc::<Disk>::default();
    let rig = disk.rig(sink.port());
    rig.queue(300);
    disk.set(Mode::Poisoned);
    rig.dns.release();
    wait("it is told", || rig.said("Poisoned") == 1);
    wait("the connections end", || rig.relay.stats().connections == 0);
    let sent = sink.taken().len();
    assert!((1..=unrecorded_in_flight()).contains(&sent), "{sent} sent");
    // Mail that comes meanwhile is not sent either.
    let log = rig.log.clone();
    let rig = rig_in(rig.kill(&disk), zone(), sink.port(), |_| ());
    rig.wait_empty();
    assert_eq!(log.lines.lock().unwrap().iter().filter(|line| line.starts_with("Poisoned")).count(), 1, "one line");
    assert_eq!(sink.taken().len(), 300 + sent, "those alone are sent twice");
}

#[test]
fn a_spool_that_another_stream_has_poisoned_stops_it_too() {
    let sink = Sink::start();
    let disk = Arc::<Disk>::default();
    let rig = disk.rig(sink.port());
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    rig.wait_empty();
    disk.is_poisoned.store(true, Ordering::Relaxed);
    wait("it is told", || rig.said("Poisoned") == 1);
    rig.send("ann@here.example", &["eve@a.example"], "x\r\n");
    wait("the connections end", || rig.relay.stats().connections == 0);
    assert_eq!((sink.taken().len(), rig.relay.stats().recipients), (1, 1));
}

/// Dialogue of a host up to the message's end: each reply, and how the command before it begins.
const DIALOGUE: [(&str, &str); 8] = [
    ("", "220 held"),
    ("EHLO", "250-held\r\n250 AUTH PLAIN"),
    ("AUTH", "235 2.7.0 ok"),
    ("MAIL", "250 2.1.0 ok"),
    ("RCPT", "250 2.1.5 ok"),
    ("DATA", "354 go"),
    ("x", ""),
    (".", "250 2.0.0 taken"),
];

/// Holds its reply of this number until it is released. Then returns the client's further output.
fn held_at(held: usize) -> (u16, Receiver<()>, Sender<()>, Receiver<String>) {
    let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (hold, is_held) = channel();
    let (release, is_released) = channel();
    let (tell, rest) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        drop(listener);
        let mut input = BufReader::new(stream.try_clone().unwrap());
        for (number, (command, reply)) in DIALOGUE.iter().enumerate().take(held + 1) {
            let mut line = String::new();
            if !command.is_empty() {
                input.read_line(&mut line).unwrap();
            }
            assert!(line.starts_with(command), "{line} for {command}");
            if number == held {
                hold.send(()).unwrap();
                is_released.recv().unwrap();
            }
            if !reply.is_empty() {
                stream.write_all(format!("{reply}\r\n").as_bytes()).unwrap();
            }
        }
        let mut more = String::new();
        // A reset counts like an end.
        let _ = input.read_to_string(&mut more);
        tell.send(more).unwrap();
    });
    (port, is_held, release, rest)
}

#[test]
fn poison_ends_a_session_before_its_next_octet() {
    for (held, (command, _)) in DIALOGUE.iter().enumerate().filter(|(_, (command, _))| *command != "x") {
        let disk = Arc::<Disk>::default();
        let (port, is_held, release, rest) = held_at(held);
        let hooks = On(disk.clone());
        let wrap = |spool| -> Arc<dyn Spool> { Arc::new(HookedSpool::new(spool, hooks)) };
        let rig = rig_over(tempfile::tempdir().unwrap(), zone(), 1, wrap, |config| {
            let auth = Some(Credentials::new("ann", "secret"));
            config.routing.routes = vec![FixedRoute { auth, ..FixedRoute::new("[127.0.0.1]", port) }.into()];
        });
        rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
        is_held.recv_timeout(Duration::from_secs(60)).expect(command);
        disk.is_poisoned.store(true, Ordering::Relaxed);
        release.send(()).unwrap();
        assert_eq!(rest.recv_timeout(Duration::from_secs(60)).expect(command), "", "after {command}");
        wait("the connections end", || rig.relay.stats().connections == 0);
        assert_eq!(rig.relay.stats().recipients, 1, "{command}");
    }
}

#[test]
fn while_a_record_hangs_only_the_bound_is_sent() {
    let sink = Sink::start();
    let disk = Arc::<Disk>::default();
    let rig = disk.rig(sink.port());
    rig.queue(1500);
    disk.set(Mode::Hung);
    rig.dns.release();
    wait("it is told", || rig.said("Stopped") == 1);
    wait("no message is under way", || rig.relay.stats().connections == 0);
    let sent = sink.taken().len();
    assert!((1000..1000 + unrecorded_in_flight()).contains(&sent), "{sent} sent");
    let rig = rig_in(rig.kill(&disk), zone(), sink.port(), |_| ());
    rig.wait_empty();
    assert_eq!(sink.taken().len(), 1500 + sent, "those alone are sent twice");
}

#[test]
fn what_was_sent_while_the_ring_refused_is_recorded_later() {
    let sink = Sink::start();
    let disk = Arc::<Disk>::default();
    let rig = disk.rig(sink.port());
    rig.queue(300);
    disk.set(Mode::Full);
    rig.dns.release();
    wait("it is told", || rig.said("Stopped") == 1);
    let sent = sink.taken().len();
    assert!((1..=unrecorded_in_flight()).contains(&sent), "{sent} sent");
    disk.set(Mode::Well);
    rig.wait_empty();
    wait("it is told", || rig.said("GoesOn") == 1);
    assert_eq!((sink.taken().len(), rig.said("Stopped")), (300, 1), "each once");
}

#[test]
fn what_the_ring_refuses_until_the_end_is_recorded_at_the_end() {
    let sink = Sink::start();
    let disk = Arc::<Disk>::default();
    let rig = disk.rig(sink.port());
    rig.queue(30);
    disk.set(Mode::Full);
    rig.dns.release();
    wait("it is told", || rig.said("Stopped") == 1);
    let sent = sink.taken().len();
    let relay = rig.relay.clone();
    let ending = std::thread::spawn(move || relay.end_by(Instant::now() + Duration::from_secs(600)));
    // In its last second the dispatcher repeats it once.
    let before = disk.refusals.load(Ordering::Relaxed);
    wait("it is repeated", || disk.refusals.load(Ordering::Relaxed) > before + 5 || ending.is_finished());
    disk.set(Mode::Well);
    ending.join().unwrap();
    let rig = rig_in(rig.kill(&disk), zone(), sink.port(), |_| ());
    rig.wait_empty();
    assert_eq!((sent > 0, sink.taken().len()), (true, 30), "each once");
}

#[test]
fn a_refusal_is_recorded_while_others_are_under_way() {
    let sink = Sink::start();
    let disk = Arc::<Disk>::default();
    let rig = disk.rig(sink.port());
    rig.send("ann@a.example", &["no1@a.example", "never@a.example"], "x\r\n");
    wait("the refusal is recorded", || rig.relay.stats().owed_notices == 1);
    disk.set(Mode::Full);
    let rig = rig_in(rig.kill(&disk), zone(), sink.port(), |_| ());
    assert_eq!((rig.relay.stats().recipients, rig.relay.stats().owed_notices), (1, 1));
    // Its notice waits for that one.
    let never = Filter { recipient: Some("never@a.example".to_owned()), ..Filter::default() };
    rig.relay.act(&never, QueueAction::Delete, &Reply::new(554, "5.0.0", ""), &Originator::default()).unwrap();
    rig.flush();
    // The queue is empty for a moment while the notice that is owed becomes a message.
    wait("the notice is sent", || notices(&sink) == 1);
    rig.wait_empty();
    assert_eq!((sink.rcpts("no1@a.example"), notices(&sink)), (1, 1), "not tried again, and told once");
    let rig = rig_in(rig.end(), zone(), sink.port(), |_| ());
    rig.wait_empty();
    assert_eq!(notices(&sink), 1);
}

#[test]
fn a_success_is_recorded_while_no_notice_fits() {
    for is_killed in [false, true] {
        let sink = Sink::start();
        let disk = Arc::<Disk>::default();
        let mut rig = disk.rig(sink.port());
        rig.dns.hold();
        rig.send_asking("ann@a.example", &["bob@a.example"], "x\r\n", notify::SUCCESS);
        disk.set(Mode::NoBodies);
        rig.dns.release();
        wait("it is recorded", || (rig.relay.stats().recipients, rig.relay.stats().owed_notices) == (0, 1));
        assert_eq!(notices(&sink), 0);
        if is_killed {
            rig = rig_in(rig.kill(&disk), zone(), sink.port(), |_| ());
        }
        disk.set(Mode::Well);
        // The queue is empty for a moment while the notice that is owed becomes a message.
        wait("the notice is sent", || notices(&sink) == 1);
        rig.wait_empty();
        assert_eq!((sink.rcpts("bob@a.example"), notices(&sink)), (1, 1));
    }
}

#[test]
fn a_success_here_is_owed_by_the_batch_of_its_message() {
    for is_killed in [false, true] {
        let sink = Sink::start();
        let disk = Arc::<Disk>::default();
        let mut rig = disk.rig(sink.port());
        disk.set(Mode::OneBody);
        let mut message = outgoing("ann@a.example", &["bob@a.example", "eve@x.example", "list@x.example"], 0);
        message.recipients[1].notify = notify::SUCCESS | notify::IN_MAILBOX;
        message.recipients[2].notify = notify::SUCCESS | notify::HANDED_ON;
        rig.append(message, "Subject: here\r\n\r\nx\r\n");
        wait("a notice is tried", || disk.refusals.load(Ordering::Relaxed) > 0);
        wait("the other host has it", || (rig.relay.stats().recipients, rig.relay.stats().owed_notices) == (0, 2));
        assert_eq!(notices(&sink), 0);
        if is_killed {
            rig = rig_in(rig.kill(&disk), zone(), sink.port(), |_| ());
        }
        disk.set(Mode::Well);
        wait("both are sent", || notices(&sink) == 2);
        rig.wait_empty();
        let taken = sink.taken().into_iter().filter(|taken| taken.sender.is_empty());
        let told: String = taken.map(|taken| String::from_utf8(taken.body).unwrap()).collect();
        for (recipient, action, status) in [("eve", "delivered", "2.1.5"), ("list", "relayed", "2.0.0")] {
            let said =
                format!("Final-Recipient: rfc822; {recipient}@x.example\r\nAction: {action}\r\nStatus: {status}\r\n");
            assert_eq!(told.matches(&said).count(), 1, "{told}");
        }
        assert_eq!(told.matches("Subject: here\r\n").count(), 2, "{told}");
        let asked = ["bob@a.example", "eve@x.example", "list@x.example"].map(|address| sink.rcpts(address));
        assert_eq!((asked, notices(&sink)), ([1, 0, 0], 2));
    }
}

#[test]
fn a_success_here_survives_a_kill_that_follows_its_batch() {
    let sink = Sink::start();
    let Rig { spool, relay, back, dir, .. } = rig_with(zone(), sink.port(), |_| ());
    let mut message = outgoing("ann@a.example", &["eve@x.example"], 0);
    message.recipients[0].notify = notify::SUCCESS | notify::IN_MAILBOX;
    let entry = relay.entry(message);
    relay.end_by(Instant::now());
    drop((relay, back));
    let (tell, told) = channel();
    let batch = Batch { entries: vec![entry], body: Body::inline(vec!["Subject: x\r\n\r\nx\r\n".into()]) };
    spool.append(batch, Box::new(move |outcome| tell.send(outcome).unwrap()));
    told.recv().unwrap().unwrap();
    drop(spool);
    let rig = rig_in(dir, zone(), sink.port(), |_| ());
    wait("the notice is sent", || notices(&sink) == 1);
    rig.wait_empty();
    assert_eq!((sink.rcpts("eve@x.example"), notices(&sink)), (0, 1));
}

#[test]
fn many_notices_that_find_no_room_are_made_later() {
    let sink = Sink::start();
    let disk = Arc::<Disk>::default();
    let rig = disk.rig(sink.port());
    rig.dns.hold();
    for _ in 0..200 {
        rig.send("ann@a.example", &["no1@a.example"], "x\r\n");
    }
    disk.set(Mode::NoBodies);
    rig.dns.release();
    wait("all are recorded", || (rig.relay.stats().recipients, rig.relay.stats().owed_notices) == (0, 200));
    wait("some are tried", || rig.back.written.lock().unwrap().len() > 2);
    let tried = rig.back.written.lock().unwrap().len();
    assert!(tried < 100, "{tried} are tried, one after the other");
    assert_eq!(rig.log().iter().filter(|line| line.contains("cannot be notified yet")).count(), 1, "{:?}", rig.log());
    disk.set(Mode::Well);
    wait("all notices are sent", || notices(&sink) == 200);
    rig.wait_empty();
    assert_eq!((sink.rcpts("no1@a.example"), notices(&sink)), (200, 200));
}

#[test]
fn a_body_leaves_memory_with_its_last_first_attempt() {
    let sink = Sink::start();
    let disk = Arc::<Disk>::default();
    let rig = disk.rig(sink.port());
    let reads = || disk.reads.load(Ordering::Relaxed);
    rig.send("ann@here.example", &["bob@a.example"], "once\r\n");
    rig.wait_empty();
    assert_eq!(reads(), 0, "the first attempt reads memory");
    rig.send("ann@here.example", &["later@a.example", "eve@a.example"], "twice\r\n");
    rig.wait_empty();
    assert_eq!((reads(), sink.rcpts("later@a.example"), sink.taken().len()), (1, 2, 3), "the second the spool");
}
