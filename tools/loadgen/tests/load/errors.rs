//! Every error is counted in its class.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use posthaste_loadgen::load::{Outcome, Pace, Pipelining, Plan};
use posthaste_loadgen::values::{Address, PerConnection};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::support::{agreeable, answer_lines, errors, go, plan, scripted, server};

/// Ten messages, one connection each, to `address`.
fn ten(address: SocketAddr, change: impl Fn(&mut Plan)) -> Outcome {
    let mut plan = plan(server(Address::Tcp(address)), 10);
    plan.per_connection = PerConnection::Count(std::num::NonZeroU64::MIN);
    plan.connections = 5;
    change(&mut plan);
    go(plan)
}

/// A server that is agreeable but for `line`, to whose start it says `reply`; an empty one closes the connection.
fn but(line: &'static str, reply: &'static str) -> SocketAddr {
    scripted(move |stream| {
        answer_lines(stream, "220 mx\r\n", |said| if said.starts_with(line) { reply.into() } else { agreeable(said) });
    })
}

fn check(line: &'static str, reply: &'static str, class: &str) {
    for pipelining in [Pipelining::Off, Pipelining::On, Pipelining::Ahead] {
        let outcome = ten(but(line, reply), |plan| plan.pipelining = pipelining);
        assert_eq!(errors(&outcome), [(class, 10)], "{line} {reply} {pipelining:?}");
        assert_eq!((outcome.total.acked, outcome.total.failed), (0, 10), "{line} {reply} {pipelining:?}");
    }
}

#[test]
fn replies_are_counted_by_command_and_code() {
    check("EHLO", "421 4.3.2 busy\r\n", "ehlo 421");
    check("MAIL", "451 4.3.0 later\r\n", "mail 451");
    check("MAIL", "421 4.3.2 closing\r\n", "mail 421");
    check("RCPT", "550 5.1.1 no\r\n", "rcpt 550");
    check("DATA", "452 4.3.1 no room\r\n", "data 452");
    check(".", "554 5.6.0 bad\r\n", "body 554");
    check("RCPT", "hello\r\n", "rcpt garbage");
}

#[test]
fn lost_connections_are_counted_by_stage() {
    check("EHLO", "", "ehlo closed");
    check("MAIL", "", "mail closed");
    check("DATA", "", "data closed");
    let outcome = ten(but(".", ""), |_| {});
    assert_eq!(errors(&outcome), [("body closed", 10)]);
    // Nobody knows whether the server has these.
    assert!((0..10).all(|number| outcome.ledger.get(number).uncertain == 1));
}

#[test]
fn a_refused_greeting_and_a_refused_connection_differ() {
    let outcome = ten(scripted(|stream| answer_lines(stream, "554 5.7.1 go away\r\n", |_| String::new())), |_| {});
    assert_eq!(errors(&outcome), [("greeting 554", 10)]);
    assert_eq!(outcome.errors[0].example, "554 5.7.1 go away");
    let (_held, closed) = refusing();
    assert_eq!(errors(&ten(closed, |_| {})), [("connect refused", 10)]);
}

#[test]
fn silence_is_a_timeout_at_its_stage() {
    let short = |plan: &mut Plan| {
        plan.timeout = Duration::from_millis(200);
        plan.pace.count = Some(1);
    };
    let silent = scripted(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    assert_eq!(errors(&ten(silent, short)), [("greeting timeout", 1)]);
    let given_up = |plan: &mut Plan| {
        plan.give_up = Duration::from_secs(2);
        plan.pace.count = Some(1);
    };
    let outcome = ten(silent, given_up);
    assert_eq!((outcome.gave_up, errors(&outcome)), (true, vec![("greeting timeout", 1)]));
    let silent_at_end = scripted(|stream| {
        answer_lines(stream, "220 mx\r\n", |said| match said {
            // As long as the test's process lives.
            "." => loop {
                std::thread::park();
            },
            said => agreeable(said),
        });
    });
    // Long enough for the answers that do come, on a busy machine too.
    let outcome = ten(silent_at_end, |plan| {
        plan.timeout = Duration::from_secs(10);
        plan.pace.count = Some(1);
    });
    assert_eq!(errors(&outcome), [("body timeout", 1)]);
    assert_eq!(outcome.ledger.get(0).uncertain, 1);
}

#[test]
fn a_server_that_is_not_there_ends_the_run() {
    let (_held, closed) = refusing();
    let outcome = ten(closed, |plan| {
        plan.per_connection = PerConnection::All;
        plan.give_up = Duration::from_millis(300);
    });
    assert!(outcome.gave_up);
    assert_eq!((outcome.total.acked, outcome.total.failed), (0, 0), "no message was begun");
    assert!(only(&outcome, "connect refused"), "{:?}", outcome.errors);
}

/// True if there are errors, all of one class.
fn only(outcome: &Outcome, class: &str) -> bool {
    errors(outcome).iter().map(|(class, _)| *class).eq([class])
}

/// An address that refuses connections. What comes with it is bound to it and does not listen: nobody else gets it.
fn refusing() -> (TcpListener, SocketAddr) {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let held = TcpListener::from(socket);
    let address = held.local_addr().unwrap();
    (held, address)
}

/// A server that turns everybody away, one after the other: on a busy machine a thread for each would keep some waiting.
fn unfriendly() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|mut stream| drop(stream.write_all(b"554 5.7.1 go away\r\n")));
    });
    address
}

#[test]
fn a_message_without_connection_fails_as_its_last_attempt() {
    // Nothing is known of an attempt that is cut off, but of the one before, for which each connection has time enough.
    let (_held, closed) = refusing();
    let unfriendly = unfriendly();
    std::thread::scope(|scope| {
        for (address, class) in [(closed, "connect refused"), (unfriendly, "greeting 554")] {
            for (connections, rate) in [(1, None), (5, None), (200, None), (5, Some(200.0)), (200, Some(2000.0))] {
                scope.spawn(move || {
                    let outcome = ten(address, |plan| {
                        plan.connections = connections;
                        plan.pace = Pace { rate, count: None, duration: Some(Duration::from_secs(60)), ..plan.pace };
                        plan.give_up = Duration::from_secs(8);
                    });
                    assert!(outcome.gave_up && outcome.total.failed > 0);
                    assert!(only(&outcome, class), "{connections} {rate:?}: {:?}", outcome.errors);
                });
            }
        }
    });
}

#[test]
fn an_attempt_in_flight_at_the_end_counts_unless_one_failed() {
    // Accepts by the backlog alone, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for per_connection in [PerConnection::All, PerConnection::Count(std::num::NonZeroU64::MIN)] {
        let outcome = ten(silent.local_addr().unwrap(), |plan| {
            plan.per_connection = per_connection;
            plan.give_up = Duration::from_secs(2);
        });
        assert!(outcome.gave_up && only(&outcome, "greeting timeout"), "{:?}", outcome.errors);
    }
}

#[test]
fn a_missing_extension_is_an_error_only_where_it_is_asked_for() {
    let plain = || {
        scripted(|stream| {
            answer_lines(stream, "220 mx\r\n", |said| {
                if said.starts_with("EHLO") { "250 mx\r\n".into() } else { agreeable(said) }
            });
        })
    };
    assert_eq!(ten(plain(), |plan| plan.pipelining = Pipelining::Ahead).total.acked, 10);
    assert_eq!(errors(&ten(plain(), |plan| plan.bdat = true)), [("ehlo not offered", 10)]);
}

#[test]
fn a_reply_without_an_end_is_given_up() {
    let endless = scripted(|mut stream| while stream.write_all(b"250-more and more and more\r\n").is_ok() {});
    assert_eq!(errors(&ten(endless, |_| {})), [("greeting garbage", 10)]);
}

#[test]
fn a_refused_message_leaves_the_session_usable() {
    // The server refuses DATA for the first message of each session and then wants RSET, as the standard has it.
    let picky = scripted(|stream| {
        let open = std::cell::Cell::new(false);
        let refused = std::cell::Cell::new(false);
        answer_lines(stream, "220 mx\r\n", |said| match said.split(' ').next().unwrap_or_default() {
            "MAIL" if open.replace(true) => "503 5.5.1 nested MAIL\r\n".into(),
            "RSET" => {
                open.set(false);
                "250 ok\r\n".into()
            }
            "." => {
                open.set(false);
                "250 ok\r\n".into()
            }
            "DATA" if !refused.replace(true) => "451 4.3.0 not now\r\n".into(),
            _ => agreeable(said),
        });
    });
    for pipelining in [Pipelining::Off, Pipelining::On, Pipelining::Ahead] {
        let outcome = ten(picky, |plan| {
            plan.connections = 1;
            plan.per_connection = PerConnection::All;
            plan.pipelining = pipelining;
        });
        assert_eq!((outcome.total.acked, outcome.total.failed), (9, 1), "{pipelining:?}: {:?}", outcome.errors);
        assert_eq!(errors(&outcome), [("data 451", 1)], "{pipelining:?}");
    }
}
