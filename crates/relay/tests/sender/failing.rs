//! Hosts that end sessions too early: how often they are connected to; and a working site continues.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use posthaste_queue::Waits;
use posthaste_relay::sender::{OutgoingSource, Pool, Routing};

use super::shaping::rules;
use super::*;

/// Where a host ends a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Never,
    Accept,
    Greeting,
    Ehlo,
    /// Directly after its reply to EHLO.
    Hello,
    StartTls,
    Auth,
    Mail,
    Rcpt,
    Data,
    Dot,
}

/// A host that replies at a stage, if at all, and closes there.
pub struct Ending {
    pub address: SocketAddr,
    pub connected: Arc<Mutex<Vec<Instant>>>,
    taken: Arc<AtomicUsize>,
}

pub type Act = fn(usize) -> (At, &'static str);

impl Ending {
    /// `act`: its action for the connection of this number.
    pub fn start(act: Act) -> Ending {
        Ending::at((LOOPBACK, 0).into(), act)
    }

    pub fn at(address: SocketAddr, act: Act) -> Ending {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let ending = Ending { address, connected: Arc::default(), taken: Arc::default() };
        let connected = ending.connected.clone();
        let taken = ending.taken.clone();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                connected.lock().unwrap().push(Instant::now());
                let taken = taken.clone();
                std::thread::spawn(move || drop(serve(stream, act(number), &taken)));
            }
        });
        ending
    }

    pub fn connections(&self) -> usize {
        self.connected.lock().unwrap().len()
    }

    /// Checks that since `begun` no more connections came than `free`, and two in each second. It may see them late.
    fn assert_paced(&self, begun: Instant, free: u32) {
        let connected = self.connected.lock().unwrap();
        for (number, at) in (1..).zip(connected.iter()).skip(free as usize) {
            let earliest = Duration::from_millis(990) * ((number - free - 1) / 2);
            assert!(*at - begun >= earliest, "number {number} after {:?}", *at - begun);
        }
    }
}

fn serve(mut stream: TcpStream, act: (At, &str), taken: &AtomicUsize) -> std::io::Result<()> {
    let (at, last) = act;
    if at == At::Accept {
        return Ok(());
    }
    let mut input = BufReader::new(stream.try_clone()?);
    let mut stage = At::Greeting;
    let mut usual = "220 ending\r\n";
    loop {
        if stage == at {
            let before = if at == At::Hello { usual } else { "" };
            stream.write_all(format!("{before}{last}").as_bytes())?;
            // A close with unread octets would be a reset, and whether there are any yet is a race.
            stream.shutdown(Shutdown::Write)?;
            return std::io::copy(&mut input, &mut std::io::sink()).map(drop);
        }
        stream.write_all(usual.as_bytes())?;
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        (stage, usual) = match line.get(..4).unwrap_or("") {
            "EHLO" if at == At::Ehlo => (At::Ehlo, ""),
            "EHLO" if at == At::StartTls => (At::Hello, "250-ending\r\n250 STARTTLS\r\n"),
            "STAR" => (At::StartTls, ""),
            "EHLO" if at == At::Auth => (At::Hello, "250-ending\r\n250 AUTH PLAIN\r\n"),
            "EHLO" => (At::Hello, "250 ending\r\n"),
            "AUTH" => (At::Auth, ""),
            "MAIL" => (At::Mail, "250 2.1.0 ok\r\n"),
            "RCPT" => (At::Rcpt, "250 2.1.5 ok\r\n"),
            "DATA" if at == At::Data => (At::Data, ""),
            "DATA" => {
                stream.write_all(b"354 go\r\n")?;
                while line != ".\r\n" {
                    line.clear();
                    if input.read_line(&mut line)? == 0 {
                        return Ok(());
                    }
                }
                taken.fetch_add(usize::from(at != At::Dot), Ordering::Relaxed);
                (At::Dot, "250 2.0.0 taken\r\n")
            }
            "QUIT" => return stream.write_all(b"221 bye\r\n"),
            _ => (At::Never, "250 ok\r\n"),
        };
    }
}

/// A rig that pauses for an hour after so many failures, with one connection at a time.
fn rig(ending: &Ending, failures_before_pause: u32) -> Rig {
    let shaping = rules(&format!("[default]\nfailures_before_pause = {failures_before_pause}\n"));
    rig_with(zone(), ending.address.port(), |config| {
        config.schedules = schedules(3600, 86_400);
        (config.site_pause_secs, config.site_connections_max, config.shaping) = (3600, 1, shaping);
    })
}

impl Rig {
    pub fn unreachable(&self) -> Option<String> {
        self.log().into_iter().find(|line| line.starts_with("unreachable"))
    }

    pub fn attempts(&self) -> Vec<u8> {
        let mut attempts = Vec::new();
        self.relay.waiting(&Filter::default(), &mut |waiting| {
            assert!(!matches!(waiting.state.waits, Waits::Busy), "{waiting:?}");
            attempts.push(waiting.state.attempts);
            true
        });
        attempts
    }
}

fn check_failing(act: Act, reason: &str) {
    let (at, last) = act(0);
    let what = format!("{at:?} {last:?}");
    let ending = Ending::start(act);
    let rig = rig(&ending, 3);
    let messages = if at == At::Dot { 3 } else { 1 };
    let begun = Instant::now();
    (0..messages).for_each(|_| rig.send("ann@here.example", &["bob@a.example"], "x\r\n"));
    wait(&what, || rig.unreachable().is_some());
    assert_eq!(ending.connections(), 3, "{what}: {:?}", rig.log());
    ending.assert_paced(begun, 0);
    let said = rig.unreachable().unwrap();
    assert!(said.contains("mx.a.example") && said.contains(reason), "{what}: {said}");
    wait(&what, || rig.relay.stats().deferred == if at == At::Dot { 3 } else { 0 });
    // More mail changes nothing during the pause.
    rig.send("ann@here.example", &["eve@a.example"], "x\r\n");
    wait(&what, || rig.attempts().len() == messages + 1);
    assert_eq!((ending.connections(), rig.relay.stats().connections), (3, 0), "{what}");
}

#[test]
fn a_refused_login_begins_a_pause_at_once() {
    let ending = Ending::start(|_| (At::Auth, "535 5.7.8 no\r\n"));
    let rig = rig_with(zone(), 1, |config| {
        config.schedules = schedules(3600, 86_400);
        (config.site_pause_secs, config.site_connections_max) = (3600, 1);
        let auth = Some(posthaste_smtp::sasl::Credentials::new("ann", "wrong"));
        config.routing.routes =
            vec![FixedRoute { auth, ..FixedRoute::new("[127.0.0.1]", ending.address.port()) }.into()];
    });
    rig.send("ann@here.example", &["bob@any.example"], "x\r\n");
    wait("it pauses", || rig.unreachable().is_some_and(|line| line.contains("535 5.7.8 no")));
    assert_eq!(ending.connections(), 1);
    let is_told = |line: &String| line.starts_with("bob@any.example ") && line.ends_with(" AUTH: 535 5.7.8 no");
    wait("it is told", || rig.log.interrupted.lock().unwrap().iter().any(is_told));
}

#[test]
fn sessions_that_end_at_any_stage_back_off_and_say_why() {
    check_failing(|_| (At::Accept, ""), "before the greeting");
    check_failing(|_| (At::Greeting, "421 4.3.2 go away\r\n"), "go away");
    check_failing(|_| (At::Greeting, "554 5.3.2 no mail here\r\n"), "no mail here");
    check_failing(|_| (At::Hello, ""), "the server closed the connection");
    check_failing(|_| (At::Mail, ""), "before the reply to MAIL");
    check_failing(|_| (At::Mail, "421 4.3.2 go away\r\n"), "go away (MAIL)");
    check_failing(|_| (At::Rcpt, ""), "before the reply to RCPT");
    check_failing(|_| (At::Rcpt, "421 4.3.2 go away\r\n"), "go away (RCPT)");
    check_failing(|_| (At::Data, ""), "before the reply to DATA");
    check_failing(|_| (At::Data, "421 4.3.2 go away\r\n"), "go away (DATA)");
    check_failing(|_| (At::Dot, ""), "before the verdict");
    check_failing(|_| (At::Rcpt, "no reply\r\n"), "no reply code");
}

#[test]
fn a_fifth_of_failing_sessions_delays_nothing_for_long() {
    let ending = Ending::start(|number| match number % 10 {
        0 => (At::Greeting, "421 4.7.0 too many connections\r\n"),
        5 => (At::Hello, ""),
        _ => (At::Never, ""),
    });
    let shaping = rules("[default]\nmessages_per_connection = 2\n");
    let rig = rig_with(zone(), ending.address.port(), |config| {
        (config.site_pause_secs, config.shaping) = (3600, shaping);
    });
    (0..100).for_each(|_| rig.send("ann@here.example", &["bob@a.example"], "x\r\n"));
    rig.wait_empty();
    assert_eq!((rig.relay.stats().delivered, rig.relay.stats().deferred), (100, 0));
    assert_eq!(rig.unreachable(), None);
    assert_eq!(ending.taken.load(Ordering::Relaxed), 100);
}

#[test]
fn greylisting_does_not_pause_and_does_not_reset() {
    let ending = Ending::start(|_| (At::Rcpt, "450 4.7.1 greylisted\r\n"));
    let rig = rig(&ending, 2);
    (0..10).for_each(|_| rig.send("ann@here.example", &["bob@a.example"], "x\r\n"));
    wait("all are put off", || rig.relay.stats().deferred == 10);
    assert_eq!((rig.unreachable(), ending.connections()), (None, 10), "each has put one off");
    // The other recipients of a message are tried as often as those of any message that loses connections.
    let ending = Ending::start(|_| (At::Rcpt, "450 4.7.1 greylisted\r\n"));
    let rig = self::rig(&ending, 2);
    let to: Vec<String> = (0..50).map(|number| format!("bob{number}@a.example")).collect();
    rig.send("ann@here.example", &to.iter().map(|to| &**to).collect::<Vec<_>>(), "x\r\n");
    wait("all are put off", || rig.relay.stats().deferred == 50);
    assert!(rig.unreachable().is_none() && ending.connections() <= 5, "{:?}", ending.connected);
    // Between two failures it has no effect.
    let ending = Ending::start(|number| match number {
        1..=3 => (At::Rcpt, "450 4.7.1 greylisted\r\n"),
        _ => (At::Greeting, "421 4.3.2 go away\r\n"),
    });
    let rig = self::rig(&ending, 2);
    (0..4).for_each(|_| rig.send("ann@here.example", &["bob@a.example"], "x\r\n"));
    wait("it pauses", || rig.unreachable().is_some());
    assert_eq!((ending.connections(), rig.relay.stats().deferred), (5, 3));
    // An accepted message does reset it.
    let ending = Ending::start(|number| match number {
        1 => (At::Never, ""),
        _ => (At::Greeting, "421 4.3.2 go away\r\n"),
    });
    let rig = self::rig(&ending, 2);
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    rig.wait_empty();
    wait("its connection has ended", || rig.relay.stats().connections == 0);
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    wait("it pauses", || rig.unreachable().is_some());
    assert_eq!(ending.connections(), 4);
}

#[test]
fn a_recipient_too_many_does_not_excuse_a_lost_session() {
    /// Takes one recipient, defers the others, and closes before the message.
    fn few(mut stream: TcpStream) -> std::io::Result<()> {
        let mut input = BufReader::new(stream.try_clone()?);
        let mut recipients = 0;
        stream.write_all(b"220 few\r\n")?;
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 || line.starts_with("DATA") {
                return Ok(());
            }
            recipients += usize::from(line.starts_with("RCPT"));
            stream.write_all(if recipients > 1 { b"452 4.5.3 too many\r\n" } else { b"250 ok\r\n" })?;
        }
    }
    let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::Relaxed);
            std::thread::spawn(move || drop(few(stream)));
        }
    });
    let shaping = rules("[default]\nfailures_before_pause = 3\n");
    let rig = rig_with(zone(), port, |config| {
        (config.site_pause_secs, config.site_connections_max, config.shaping) = (3600, 1, shaping);
    });
    rig.send("ann@here.example", &["bob@a.example", "eve@a.example", "joe@a.example"], "x\r\n");
    wait("it pauses", || rig.unreachable().is_some());
    assert_eq!(connections.load(Ordering::Relaxed), 3);
}

#[test]
fn open_sessions_go_on_in_a_pause() {
    // One connection at a time.
    let ending = Ending::start(|number| match number {
        0 => (At::Never, ""),
        _ => (At::Greeting, "421 4.7.0 too many connections\r\n"),
    });
    let shaping = rules("[default]\nfailures_before_pause = 1\n");
    let rig = rig_with(zone(), ending.address.port(), |config| {
        (config.site_pause_secs, config.shaping) = (3600, shaping);
        config.timeouts.idle = Duration::from_secs(600);
    });
    let scope = posthaste_shaping::MailScope::Domain("a.example".into());
    rig.relay.suspend(scope.clone(), None, &Originator::default()).unwrap();
    (0..50).for_each(|_| rig.send("ann@here.example", &["bob@a.example"], "x\r\n"));
    rig.relay.resume(scope, &Originator::default()).unwrap();
    rig.wait_empty();
    wait("another connection was tried", || rig.unreachable().is_some());
    // Mail in the pause goes by the open session.
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    rig.wait_empty();
    assert_eq!(ending.taken.load(Ordering::Relaxed), 51);
}

#[test]
fn sources_share_the_two_connections_of_a_failing_site() {
    let ending = Ending::start(|_| (At::Accept, ""));
    let source = |octet| OutgoingSource {
        ipv4: Some(Ipv4Addr::new(127, 0, 0, octet)),
        ..OutgoingSource::new(&format!("s{octet}"))
    };
    let sources: Vec<OutgoingSource> = (11..15).map(source).collect();
    let of_pool = sources.iter().map(|source| (source.name.clone(), 1)).collect();
    let pools = vec![Pool { name: "all".to_owned(), tenants: None, sources: of_pool }];
    let rig = rig_with(zone(), ending.address.port(), |config| {
        (config.schedules, config.site_connections_max) = (schedules(3600, 86_400), 1);
        config.shaping = rules("[default]\nfailures_before_pause = 100\n");
        config.routing = Routing { sources, pools, ..Routing::default() };
    });
    rig.dns.hold();
    let begun = Instant::now();
    (0..40).for_each(|number| rig.send("ann@here.example", &[&format!("r{number}@a.example")], "x\r\n"));
    rig.dns.release();
    wait("they have failed often", || ending.connections() >= 14);
    // Each source learns it from its own first session.
    ending.assert_paced(begun, 6);
}
