//! LMTP servers as they are, and as they must not be.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::tests::{World, quick};
use crate::{Config, ERROR_BYTES_MAX, Failure, TransportEvent};

/// An LMTP server that does what a script says with each connection: after how many replies it closes.
struct Scripted {
    address: String,
    /// Each transaction's commands and body.
    heard: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Scripted {
    /// `replies` is asked for each line; `None` closes the connection.
    fn start(replies: impl Fn(usize, &str) -> Option<String> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("lmtp:{}", listener.local_addr().unwrap());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let all = heard.clone();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { return };
                let _ = serve(stream, number, &replies, &all);
            }
        });
        Scripted { address, heard }
    }
}

fn serve(
    stream: TcpStream,
    number: usize,
    replies: &impl Fn(usize, &str) -> Option<String>,
    heard: &Mutex<Vec<Vec<String>>>,
) -> std::io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut lines = BufReader::new(stream).lines();
    let say = |out: &mut TcpStream, line: &str| match replies(number, line) {
        Some(reply) => out.write_all(reply.as_bytes()).map(|()| true),
        None => Ok(false),
    };
    if !say(&mut out, "")? {
        return Ok(());
    }
    let (mut transaction, mut is_body) = (Vec::new(), false);
    while let Some(line) = lines.next().transpose()? {
        transaction.push(line.clone());
        if is_body && line != "." {
            continue;
        }
        is_body = line == "DATA";
        if !say(&mut out, &line)? {
            return Ok(());
        }
        if line == "." || line.starts_with("LHLO") || line == "QUIT" {
            heard.lock().unwrap().push(std::mem::take(&mut transaction));
        }
    }
    Ok(())
}

/// The replies of a server that takes everything; `recipients` replies after the body.
fn good(line: &str, recipients: usize) -> String {
    match line.split([' ', ':']).next().unwrap() {
        "" => "220 lmtp ready\r\n".to_owned(),
        "LHLO" => "250-lmtp\r\n250 PIPELINING\r\n".to_owned(),
        "DATA" => "354 go\r\n".to_owned(),
        "." => "250 2.0.0 kept\r\n".repeat(recipients),
        "QUIT" => "221 bye\r\n".to_owned(),
        _ => "250 ok\r\n".to_owned(),
    }
}

#[test]
fn a_server_gets_one_transaction_for_all_recipients() {
    let server = Scripted::start(|_, line| Some(good(line, 2)));
    let world = World::new(Config::default());
    let to = &server.address;
    world.send(&[(to, "a+x@example.org"), (to, "b@example.org")], b"Subject: x\r\n\r\n.dot\r\n");
    world.until_delivered(2);
    world.until("it says QUIT", || server.heard.lock().unwrap().len() == 3);
    let heard = server.heard.lock().unwrap().clone();
    assert_eq!(heard[0], ["LHLO localhost"]);
    let expected = [
        "MAIL FROM:<s@example.net>",
        "RCPT TO:<a+x@example.org>",
        "RCPT TO:<b@example.org>",
        "DATA",
        "Subject: x",
        "",
        "..dot",
        ".",
    ];
    assert_eq!(heard[1], expected);
    assert_eq!(heard[2], ["QUIT"]);
}

#[test]
fn a_server_that_drops_connections_gets_the_message_at_last() {
    for stage in ["", "LHLO", "MAIL", "RCPT", "DATA", "."] {
        let server = Scripted::start(move |connection, line| {
            let drops = connection < 2 && line.split([' ', ':']).next() == Some(stage);
            (!drops).then(|| good(line, 1))
        });
        let world = World::new(quick());
        world.send(&[(&server.address, "a@example.org")], b"text\r\n");
        assert!(matches!(world.event(), TransportEvent::Unavailable { attempts: 1, .. }), "{stage}");
        world.until_delivered(1);
        world.until("it is told", || matches!(world.event(), TransportEvent::Recovered { .. }));
    }
}

#[test]
fn each_recipient_has_its_verdict_and_a_bad_one_blocks_nobody() {
    let server = Scripted::start(|_, line| {
        Some(match line {
            "RCPT TO:<gone@example.org>" => "550 5.1.1 no such user\r\n".to_owned(),
            "RCPT TO:<full@example.org>" => "452 4.2.2 full\r\n".to_owned(),
            "RCPT TO:<late@example.org>" => "250 ok\r\n".to_owned(),
            line => good(line, 1),
        })
    });
    let world = World::new(Config::default());
    let to = &server.address;
    world.send(&[(to, "gone@example.org"), (to, "full@example.org"), (to, "good@example.org")], b"text\r\n");
    let mut events = [world.event(), world.event()];
    events.sort_by_key(|event| matches!(event, TransportEvent::Failed { failure: Failure::Temporary, .. }));
    let [
        TransportEvent::Failed { failure: Failure::Refused, recipient, error, .. },
        TransportEvent::Failed { recipient: full, error: later, .. },
    ] = &events
    else {
        panic!("{events:?}")
    };
    assert_eq!((&**recipient, &**error), ("gone@example.org", "RCPT: 550 5.1.1 no such user"));
    assert_eq!((&**full, &**later), ("full@example.org", "RCPT: 452 4.2.2 full"));
    world.until_delivered(1);
    world.send(&[(to, "good@example.org")], b"text\r\n");
    world.until_delivered(2);
}

#[test]
fn a_server_that_does_not_answer_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let world = World::new(Config { lmtp_time: Duration::from_millis(300), ..Config::default() });
    let to = format!("lmtp:{}", listener.local_addr().unwrap());
    world.send(&[(&to, "a@example.org")], b"text\r\n");
    let TransportEvent::Unavailable { error, .. } = world.event() else { panic!("it says nothing") };
    assert!(error.contains("timed out"), "{error}");
}

#[test]
fn a_421_is_told_with_the_stage_that_it_answers() {
    for (stage, told) in [
        ("", "greeting: 421 4.3.2 closing"),
        ("LHLO", "LHLO: 421 4.3.2 closing"),
        ("MAIL", "MAIL: 421 4.3.2 closing"),
        ("RCPT", "RCPT: 421 4.3.2 closing"),
        ("DATA", "DATA: 421 4.3.2 closing"),
        (".", "message: 421 4.3.2 closing"),
    ] {
        let server = Scripted::start(move |connection, line| {
            let closes = connection == 0 && line.split([' ', ':']).next() == Some(stage);
            Some(if closes { "421 4.3.2 closing\r\n".to_owned() } else { good(line, 1) })
        });
        let world = World::new(quick());
        world.send(&[(&server.address, "a@example.org")], b"text\r\n");
        match world.event() {
            TransportEvent::Unavailable { transport, error, .. } => {
                assert_eq!((&*transport, &*error), (&*server.address, told))
            }
            event => panic!("{stage}: {event:?}"),
        }
        world.until_delivered(1);
    }
}

#[test]
fn what_is_kept_of_a_reply_is_bounded() {
    let server = Scripted::start(|_, line| {
        Some(match line.split([' ', ':']).next() {
            Some("RCPT") => format!("{}450 4.2.1 end\r\n", format!("450-4.2.1 {}\r\n", "y".repeat(900)).repeat(60)),
            _ => good(line, 1),
        })
    });
    let world = World::new(Config::default());
    world.send(&[(&server.address, "a@example.org")], b"text\r\n");
    let TransportEvent::Failed { error, .. } = world.event() else { panic!("450 is not a refusal") };
    assert!(error.starts_with("RCPT: 450") && error.len() < 2 * ERROR_BYTES_MAX, "{}", error.len());
    world.until("it is listed", || {
        let mut kept = None;
        world.transports.waiting(&mut |target| {
            kept = target.why;
            std::ops::ControlFlow::Continue(())
        });
        kept.is_some_and(|why| why.starts_with("RCPT: 450") && why.len() < 2 * ERROR_BYTES_MAX)
    });
}
