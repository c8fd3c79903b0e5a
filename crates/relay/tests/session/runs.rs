//! Runs: pipelining, limits, times, reuse.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use posthaste_net::Stream;
use posthaste_relay::session::{
    Endpoint, Loss, OutgoingSession, RecipientFate, RunEnd, SessionOpenError, SessionSettings, SessionTimeouts,
};
use posthaste_smtp::Protocol;
use posthaste_smtp::client::{EightBit, Step};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, timeout};

use crate::support::{Act, At, List, Script, message, send_all, settings};

fn is_delivered(fate: &RecipientFate) -> bool {
    matches!(fate, RecipientFate::Delivered(_))
}

#[tokio::test(start_paused = true)]
async fn the_next_commands_are_in_the_write_of_the_dot() {
    let mut list = List::two();
    let (_, seen) = send_all(Script::default(), &mut list, &settings()).await;
    let next = b"end\r\n.\r\nMAIL FROM:<a@d>\r\nRCPT TO:<b@d>\r\nRCPT TO:<c@d>\r\nDATA\r\n";
    assert!(seen.reads.iter().any(|read| read.ends_with(next)), "{:?}", seen.lines);
    // EHLO, envelope, body and envelope, body, QUIT.
    assert_eq!(seen.reads.len(), 5);
    assert_eq!(seen.kept[0].body, b"Subject: 0\r\n\r\n.dot\r\nend");
}

#[tokio::test(start_paused = true)]
async fn a_session_may_move_between_threads() {
    let (stream, server) = Script::default().serve();
    let sending = async move {
        let mut session = OutgoingSession::open_over(stream, &settings()).await.unwrap();
        let mut list = List::two();
        assert!(matches!(session.run(&mut list).await, RunEnd::NoMore));
        session.quit().await;
    };
    // `spawn` demands a future that is `Send`.
    tokio::spawn(sending).await.unwrap();
    assert_eq!(server.await.unwrap().kept.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refused_message_is_reset_and_the_session_is_used_again() {
    let (stream, server) = Script::odd(At::Mail, 1, Act::Say("550 no\r\n".into())).serve();
    let mut session = OutgoingSession::open_over(stream, &settings()).await.unwrap();
    for round in 1..4 {
        let mut list = List::two();
        assert!(matches!(session.run(&mut list).await, RunEnd::NoMore));
        assert_eq!((session.finished(), list.fates.len()), (2 * round, 2));
        assert!(session.is_open());
        // Longer than a run may be idle: no step waits in between.
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    session.quit().await;
    let seen = server.await.unwrap();
    assert_eq!((seen.kept.len(), seen.lines.last().unwrap().as_str()), (5, "QUIT"));
    // One accepted sender without a recipient.
    let mut list = List { messages: [message(0, &["b"]), message(1, &["c"])].into(), ..List::default() };
    let (_, seen) = send_all(Script::odd(At::Rcpt, 0, Act::Say("550 no\r\n".into())), &mut list, &settings()).await;
    assert!(is_delivered(&list.fates[1].1[0]) && seen.lines.contains(&"RSET".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn recipients_above_the_servers_limit_are_told_apart() {
    let mut list = List { messages: [message(0, &["b", "c", "e"])].into(), ..List::default() };
    let script = Script::odd(At::Rcpt, 1, Act::Say("452 4.5.3 many\r\n".into()));
    let (end, _) = send_all(script, &mut list, &settings()).await;
    assert!(matches!(end, Ok(RunEnd::NoMore)), "{end:?}");
    let fates = &list.fates[0].1;
    assert!(is_delivered(&fates[0]) && matches!(&fates[1], RecipientFate::TooMany(reply) if reply.code() == 452));
    assert!(is_delivered(&fates[2]), "it was said already: {fates:?}");
    // If it is offered, no more are sent.
    let mut list = List { messages: [message(0, &["b", "c", "e"])].into(), ..List::default() };
    let script = Script { extensions: vec!["PIPELINING", "LIMITS RCPTMAX=1"], ..Script::default() };
    let (_, seen) = send_all(script, &mut list, &settings()).await;
    assert!(list.fates[0].1[1..].iter().all(|fate| matches!(fate, RecipientFate::TooMany(_))));
    assert_eq!(seen.lines.iter().filter(|line| line.starts_with("RCPT")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_session_has_as_many_messages_as_it_may() {
    for (extension, messages_max) in [("LIMITS MAILMAX=2", u64::MAX), ("HELP", 2)] {
        let script = Script { extensions: vec!["PIPELINING", extension], ..Script::default() };
        let mut list = List { messages: (0..3).map(|key| message(key, &["b"])).collect(), ..List::default() };
        let (end, seen) = send_all(script, &mut list, &SessionSettings { messages_max, ..settings() }).await;
        assert!(matches!(end, Ok(RunEnd::Full)), "{end:?}");
        assert_eq!((list.fates.len(), list.messages.len(), seen.kept.len()), (2, 1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_host_lacks_is_refused_before_anything_is_sent() {
    let script = Script { extensions: vec!["SIZE 10"], ..Script::default() };
    let mut list = List::two();
    let (_, seen) = send_all(script, &mut list, &settings()).await;
    assert!(list.fates.iter().flat_map(|(_, fates)| fates).all(|fate| fate.reply().code() == 552));
    assert_eq!(seen.lines, ["EHLO c.example", "QUIT"]);
    let mut eight_bit = List::two();
    eight_bit.messages[0].mail.body = posthaste_smtp::BodyType::EightBitMime;
    let refusing = SessionSettings { eight_bit: EightBit::Refuse, ..settings() };
    let (end, _) = send_all(Script::default(), &mut eight_bit, &refusing).await;
    assert!(matches!(end, Ok(RunEnd::NoMore)), "{end:?}");
    assert_eq!(eight_bit.fates[0].1[0].reply().code(), 554);
    assert!(is_delivered(&eight_bit.fates[1].1[0]));
}

#[tokio::test(start_paused = true)]
async fn lmtp_has_a_verdict_for_each_recipient() {
    let lmtp = SessionSettings { protocol: Protocol::Lmtp, ..settings() };
    let verdicts = Act::Say("250 kept\r\n452 full\r\n".into());
    let script = Script { odd: vec![(At::Dot, 0, verdicts.clone()), (At::Dot, 1, verdicts)], ..Script::default() };
    let mut list = List::two();
    let (end, seen) = send_all(script, &mut list, &lmtp).await;
    assert!(matches!(end, Ok(RunEnd::NoMore)), "{end:?}");
    assert_eq!(seen.lines[0], "LHLO c.example");
    for (_, fates) in &list.fates {
        assert!(
            is_delivered(&fates[0]) && matches!(&fates[1], RecipientFate::Deferred(reply, _) if reply.code() == 452)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn each_stage_has_its_time() {
    let seconds = Duration::from_secs;
    let timeouts = SessionTimeouts {
        greeting: seconds(11),
        hello: seconds(12),
        mail: seconds(13),
        rcpt: seconds(14),
        data: seconds(15),
        verdict: seconds(16),
        ..SessionTimeouts::default()
    };
    let stages = [(At::Greeting, 11), (At::Ehlo, 12), (At::Mail, 13), (At::Rcpt, 14), (At::Data, 15), (At::Dot, 16)];
    for (at, expected) in stages {
        let begun = Instant::now();
        let settings = SessionSettings { timeouts: timeouts.clone(), ..settings() };
        let (end, _) = send_all(Script::odd(at, 0, Act::Silence), &mut List::two(), &settings).await;
        let timed_out =
            matches!(end, Ok(RunEnd::Lost(Loss::TimedOut(_))) | Err(SessionOpenError::Lost(Loss::TimedOut(_))));
        assert!(timed_out, "{at:?}: {end:?}");
        assert_eq!(begun.elapsed().as_secs(), expected, "{at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn octets_that_make_no_reply_buy_no_time() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let begun = Instant::now();
    let server = tokio::spawn(async move {
        while theirs.write_all(b"220-wait\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    });
    let error = OutgoingSession::open_over(Stream::Unix(ours), &settings()).await.unwrap_err();
    assert!(matches!(error, SessionOpenError::Lost(Loss::TimedOut(Step::Greeting))), "{error}");
    assert_eq!(begun.elapsed().as_secs(), 300);
    server.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_ends_by_time_or_when_the_server_leaves() {
    let (stream, server) = Script::default().serve();
    let mut session = OutgoingSession::open_over(stream, &settings()).await.unwrap();
    let mut list = List { waits: true, ..List::two() };
    let begun = Instant::now();
    assert!(matches!(session.run(&mut list).await, RunEnd::Idle));
    assert_eq!((begun.elapsed(), list.fates.len()), (SessionTimeouts::default().idle, 2));
    session.quit().await;
    server.await.unwrap();
    // A server that has gone is noticed before a message is taken.
    for last in ["", "421 idle\r\n"] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let settings = settings();
        let leaving = async move {
            theirs.write_all(b"220 mx\r\n").await.unwrap();
            theirs.read_buf(&mut Vec::new()).await.unwrap();
            theirs.write_all(b"250 mx\r\n").await.unwrap();
            theirs
        };
        let (session, mut theirs) = tokio::join!(OutgoingSession::open_over(Stream::Unix(ours), &settings), leaving);
        let mut session = session.unwrap();
        theirs.write_all(last.as_bytes()).await.unwrap();
        drop(theirs);
        // The runtime polls its sockets once all tasks wait.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut list = List::two();
        assert!(matches!(session.run(&mut list).await, RunEnd::Lost(_)));
        assert_eq!((list.messages.len(), list.fates.len()), (2, 0));
        assert!(!session.is_open());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_heard_while_the_server_takes_no_more() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"220 mx\r\n250-mx\r\n250 PIPELINING\r\n").await.unwrap();
    let mut session = OutgoingSession::open_over(Stream::Unix(ours), &settings()).await.unwrap();
    let server = tokio::spawn(async move {
        theirs.write_all(b"250 ok\r\n250 ok\r\n354 go\r\n552 too much\r\n").await.unwrap();
        // Keeps the connection and reads nothing.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        drop(theirs);
    });
    let mut big = message(0, &["b"]);
    big.body = vec![Bytes::from(vec![b'x'; 4 << 20])];
    let mut list = List { messages: [big, message(1, &["b"])].into(), ..List::default() };
    let begun = Instant::now();
    let end = session.run(&mut list).await;
    assert!(matches!(end, RunEnd::Lost(Loss::TimedOut(_))), "{end:?}");
    assert_eq!(begun.elapsed(), SessionTimeouts::default().block);
    assert!(matches!(&list.fates[0].1[0], RecipientFate::Refused(reply, _) if reply.code() == 552), "{:?}", list.fates);
    assert!(list.fates[1..].iter().all(|(_, fates)| matches!(fates[0], RecipientFate::NotSent(_))));
    server.abort();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_ends_the_session() {
    let (stream, server) = Script::odd(At::Data, 0, Act::Silence).serve();
    let mut session = OutgoingSession::open_over(stream, &settings()).await.unwrap();
    timeout(Duration::from_secs(1), session.run(&mut List::two())).await.expect_err("nobody answers");
    assert!(!session.is_open());
    let mut list = List::two();
    assert!(matches!(session.run(&mut list).await, RunEnd::Lost(Loss::Over)));
    assert_eq!(list.messages.len(), 2);
    session.quit().await;
    assert!(server.await.unwrap().kept.is_empty());
}

#[tokio::test]
async fn endpoints_and_source_addresses() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::Tcp(listener.local_addr().unwrap());
    let from = |source: [u8; 4]| SessionSettings { source: Some(IpAddr::V4(Ipv4Addr::from(source))), ..settings() };
    let server = tokio::spawn(async move {
        let (stream, peer) = listener.accept().await.unwrap();
        (Script::default().over(Stream::Tcp(stream)).await, peer.ip())
    });
    let mut session = OutgoingSession::open(&endpoint, &from([127, 0, 0, 9])).await.unwrap();
    let mut list = List::two();
    assert!(matches!(session.run(&mut list).await, RunEnd::NoMore));
    session.quit().await;
    let (seen, peer) = server.await.unwrap();
    assert_eq!((seen.kept.len(), peer), (2, IpAddr::from([127, 0, 0, 9])));
    // An address that this machine does not have, and one of another family.
    let error = OutgoingSession::open(&endpoint, &from([192, 0, 2, 1])).await.unwrap_err();
    assert!(matches!(error, SessionOpenError::Source(_)), "{error}");
    let v6 = Endpoint::Tcp(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 25)));
    assert!(OutgoingSession::open(&v6, &from([127, 0, 0, 1])).await.is_err());
    let error = OutgoingSession::open(&endpoint, &settings()).await.unwrap_err();
    assert!(matches!(error, SessionOpenError::Lost(Loss::Io { step: Step::Connect, .. })), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lmtp");
    let listener = UnixListener::bind(&path).unwrap();
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        Script::default().over(Stream::Unix(stream)).await
    });
    OutgoingSession::open(&Endpoint::Unix(path), &settings()).await.unwrap().quit().await;
    assert_eq!(server.await.unwrap().lines, ["EHLO c.example", "QUIT"]);
}
