//! Every reply at every stage, and a connection that ends there: its scope, and the queue's reaction.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use posthaste_dns_stub::Zone;
use posthaste_relay::sender::{FixedRoute, RouteTls, opportunistic_tls};
use posthaste_relay::session::TlsPolicy;
use posthaste_smtp::sasl::Credentials;

use super::policies::{Files, TlsSink};
use super::sink::Sink;
use super::{LOOPBACK, outgoing, rig_with, schedules, wait};

/// The stage at which a host replies other than 2yz.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Greeting,
    Hello,
    StartTls,
    Handshake,
    Auth,
    Mail,
    Rcpt,
    Data,
    Dot,
}

/// The fate of a recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Becomes {
    /// The next host gets it at once, without a counted attempt.
    Next,
    Deferred(u16),
    Failed(u16),
    /// Like deferred; the host may have it.
    Unknown,
}

/// A host that answers well except at one stage; at RCPT only for the recipients `bad…`. Ends with the process.
struct Odd {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    taken: Arc<AtomicUsize>,
}

impl Odd {
    /// `reply`: none closes the connection.
    fn start(at: At, reply: Option<u16>) -> Odd {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let odd = Odd { address: listener.local_addr().unwrap(), connections: Arc::default(), taken: Arc::default() };
        let connections = odd.connections.clone();
        let taken = odd.taken.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::Relaxed);
                let taken = taken.clone();
                std::thread::spawn(move || serve(stream, at, reply, &taken));
            }
        });
        odd
    }
}

fn serve(mut stream: TcpStream, at: At, reply: Option<u16>, taken: &AtomicUsize) -> std::io::Result<()> {
    let mut input = BufReader::new(stream.try_clone()?);
    // False once the connection is to end.
    let mut say = |stage: Option<At>, usual: &str| -> std::io::Result<bool> {
        let Some(code) = reply.filter(|_| stage == Some(at)) else {
            if stage == Some(at) {
                return Ok(false);
            }
            stream.write_all(usual.as_bytes())?;
            return Ok(true);
        };
        stream.write_all(format!("{code} {}.3.0 odd\r\n", code / 100).as_bytes())?;
        Ok(code != 421)
    };
    let mut goes_on = say(Some(At::Greeting), "220 odd\r\n")?;
    let mut line = String::new();
    let mut recipients = 0;
    while goes_on {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            break;
        }
        goes_on = match line.get(..4).unwrap_or("") {
            "EHLO" | "HELO" => match at {
                At::StartTls | At::Handshake => say(Some(At::Hello), "250-odd\r\n250 STARTTLS\r\n")?,
                At::Auth => say(Some(At::Hello), "250-odd\r\n250 AUTH PLAIN\r\n")?,
                _ => say(Some(At::Hello), "250 odd\r\n")?,
            },
            // In place of a handshake it replies, or closes.
            "STAR" if at == At::Handshake => {
                say(None, "220 go\r\n")?;
                say(Some(At::Handshake), "")?;
                false
            }
            "STAR" => say(Some(At::StartTls), "220 go\r\n")?,
            "AUTH" => say(Some(At::Auth), "235 2.7.0 ok\r\n")?,
            "MAIL" => say(Some(At::Mail), "250 2.1.0 ok\r\n")?,
            "RCPT" => {
                let stage = line.contains("<bad").then_some(At::Rcpt);
                recipients += usize::from(!(at == At::Rcpt && stage.is_some()));
                say(stage, "250 2.1.5 ok\r\n")?
            }
            "DATA" if recipients == 0 => say(None, "554 5.5.1 no recipients\r\n")?,
            "DATA" if at == At::Data => say(Some(At::Data), "")?,
            "DATA" => {
                say(None, "354 go\r\n")?;
                while line != ".\r\n" {
                    line.clear();
                    if input.read_line(&mut line)? == 0 {
                        return Ok(());
                    }
                }
                let is_taken = at != At::Dot;
                taken.fetch_add(if is_taken { recipients } else { 0 }, Ordering::Relaxed);
                recipients = 0;
                say(Some(At::Dot), "250 2.0.0 ok\r\n")?
            }
            "RSET" => {
                recipients = 0;
                say(None, "250 ok\r\n")?
            }
            "QUIT" => return stream.write_all(b"221 bye\r\n"),
            _ => say(None, "250 ok\r\n")?,
        };
    }
    Ok(())
}

#[test]
fn each_reply_at_each_stage_has_its_scope() {
    use Becomes::{Deferred, Failed, Next, Unknown};
    let expected = [
        (At::Greeting, [Next, Next, Next, Next]),
        (At::Hello, [Next, Next, Next, Next]),
        (At::Mail, [Deferred(450), Failed(550), Next, Next]),
        (At::Rcpt, [Deferred(450), Failed(550), Next, Next]),
        (At::Data, [Deferred(450), Failed(550), Next, Next]),
        (At::Dot, [Deferred(450), Failed(550), Deferred(421), Unknown]),
    ];
    for (at, becomes) in expected {
        for (reply, becomes) in [Some(450), Some(550), Some(421), None].into_iter().zip(becomes) {
            check(at, reply, becomes);
        }
    }
}

fn check(at: At, reply: Option<u16>, becomes: Becomes) {
    let what = format!("{at:?} {reply:?}");
    let odd = Odd::start(at, reply);
    let second = Ipv4Addr::new(127, 0, 0, 2);
    let next = Sink::at((second, odd.address.port()).into());
    let zone = Zone::default().mx("a.example", 10, "mx1.example").mx("a.example", 20, "mx2.example");
    let zone = zone.a("mx1.example", LOOPBACK).a("mx2.example", second);
    let rig = rig_with(zone, odd.address.port(), |config| config.schedules = schedules(3600, 86_400));
    // Without notices of failures.
    let notify = posthaste_intake::notify::NEVER;
    rig.append(outgoing("ann@here.example", &["bad@a.example", "bob@a.example"], notify), "x\r\n");
    let of_bad = |log: &[String]| log.iter().find(|line| line.starts_with("bad@a.example")).cloned();
    wait(&what, || of_bad(&rig.log()).is_some() && rig.log().iter().any(|line| line.starts_with("bob@a.example")));
    let log = rig.log();
    let taken = odd.taken.load(Ordering::Relaxed);
    let said = match becomes {
        Becomes::Next => "bad@a.example delivered".to_owned(),
        Becomes::Deferred(code) => format!("bad@a.example deferred {code}"),
        Becomes::Failed(code) => format!("bad@a.example failed {code}"),
        Becomes::Unknown => "bad@a.example unknown 451".to_owned(),
    };
    assert_eq!(of_bad(&log), Some(said), "{what}: {log:?}");
    // A refusal of one recipient does not refuse the other.
    let is_of_recipient = at == At::Rcpt && becomes != Becomes::Next;
    assert_eq!(taken, usize::from(is_of_recipient), "{what}: {log:?}");
    let at_next: usize = next.taken().iter().map(|taken| taken.recipients.len()).sum();
    assert_eq!(at_next, if becomes == Becomes::Next { 2 } else { 0 }, "{what}: not at the next host: {log:?}");
    let waits = matches!(becomes, Becomes::Deferred(_) | Becomes::Unknown);
    let count = usize::from(waits) * if is_of_recipient { 1 } else { 2 };
    wait(&what, || {
        let mut attempts = Vec::new();
        rig.relay.waiting(&Default::default(), &mut |waiting| {
            attempts.push(waiting.state.attempts);
            true
        });
        attempts == vec![1; count]
    });
    assert!(!log.iter().any(|line| line.starts_with("unreachable")), "{what}: {log:?}");
}

#[test]
fn a_host_with_which_tls_or_a_login_fails_is_the_hosts_trouble() {
    for at in [At::StartTls, At::Handshake, At::Auth] {
        for reply in [Some(454), Some(554), Some(421), None] {
            check_opening(at, reply);
        }
    }
}

fn check_opening(at: At, reply: Option<u16>) {
    let what = format!("{at:?} {reply:?}");
    let odd = Odd::start(at, reply);
    let second = Ipv4Addr::new(127, 0, 0, 2);
    let address = (second, odd.address.port()).into();
    let zone = Zone::default().a("mx1.example", LOOPBACK).a("mx2.example", second);
    let is_login = at == At::Auth;
    let (tls, auth) = if is_login {
        (None, Some(Credentials::new("ann", "secret")))
    } else {
        let policy = TlsPolicy::Required;
        let config = opportunistic_tls().unwrap();
        (Some(RouteTls { policy, is_implicit: false, config, name: None }), None)
    };
    let route = |domain: &str, hosts: &[&str]| {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let domain = domain.to_owned();
        let tls = tls.clone();
        let auth = auth.clone();
        Arc::new(FixedRoute { domain, hosts, tls, auth, ..FixedRoute::new("", odd.address.port()) })
    };
    let files = Files::new("mx2.example");
    let (login, encrypted) = if is_login {
        (Some(Sink::at(address)), None)
    } else {
        (None, Some(TlsSink::at(address, Some(files.server(&files)))))
    };
    let rig = rig_with(zone, 1, |config| {
        config.schedules = schedules(3600, 86_400);
        config.shaping = super::shaping::rules("[default]\nfailures_before_pause = 1\n");
        config.routing.routes =
            vec![route("a.example", &["mx1.example", "mx2.example"]), route("b.example", &["mx1.example"])];
    });
    // The next host gets it at once.
    rig.send("ann@here.example", &["bob@a.example"], "x\r\n");
    rig.wait_empty();
    let came = match (&login, &encrypted) {
        (Some(sink), _) => {
            sink.taken().iter().map(|taken| (taken.logged_in == "ann", taken.recipients.len())).collect()
        }
        (_, Some(sink)) => sink.wait(1).iter().map(|came| (came.is_encrypted, 1)).collect::<Vec<_>>(),
        _ => unreachable!(),
    };
    assert_eq!(came, [(true, 1)], "{what}");
    let of_mail: Vec<_> = rig.log().into_iter().filter(|line| !line.starts_with("TLS ")).collect();
    assert_eq!(of_mail, ["bob@a.example delivered"], "{what}");
    assert_eq!(odd.connections.load(Ordering::Relaxed), 1, "{what}");
    // Without another host it waits, with no attempt counted.
    rig.send("ann@here.example", &["bob@b.example"], "x\r\n");
    wait(&what, || rig.log().iter().any(|line| line.starts_with("unreachable")));
    let mut attempts = Vec::new();
    rig.relay.waiting(&Default::default(), &mut |waiting| {
        attempts.push(waiting.state.attempts);
        true
    });
    assert_eq!((attempts, odd.taken.load(Ordering::Relaxed)), (vec![0], 0), "{what}: {:?}", rig.log());
    assert!(!rig.log().iter().any(|line| line.starts_with("bob@b.example")), "{what}: {:?}", rig.log());
}
