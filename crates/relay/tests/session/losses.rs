//! Connections lost at each octet, in each direction.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use posthaste_net::Stream;
use posthaste_relay::session::{Halt, Loss, OutgoingSession, RecipientFate, RunEnd, SessionOpenError, SessionSettings};
use posthaste_smtp::Protocol;
use posthaste_smtp::client::Transfer;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

use crate::support::{List, Script, Seen, message, send_all, send_over, settings};
use crate::tls::Site;

/// Checks that each recipient of each message has one fate, true about the server.
fn check(list: &List, seen: &Seen, taken: usize, what: &str) {
    assert_eq!(list.fates.len(), taken, "{what}: {:?}", list.fates);
    for (at, (key, fates)) in list.fates.iter().enumerate() {
        assert_eq!((*key, fates.len()), (at, 2), "{what}");
        let subject = format!("Subject: {key}\r\n");
        let kept: Vec<_> = seen.kept.iter().filter(|kept| kept.body.starts_with(subject.as_bytes())).collect();
        assert!(kept.len() <= 1, "{what}: sent twice");
        for (number, fate) in fates.iter().enumerate() {
            match fate {
                RecipientFate::Delivered(_) => assert!(kept[0].acknowledged > number, "{what}: {fate:?}"),
                RecipientFate::NotSent(_) => assert!(kept.is_empty(), "{what}: {fate:?}"),
                RecipientFate::Unknown(_) => {
                    assert!(kept.first().is_none_or(|kept| kept.acknowledged <= number), "{what}: {fate:?}");
                }
                _ => panic!("{what}: {fate:?}"),
            }
        }
    }
}

/// The transport of messages.
struct Way {
    name: &'static str,
    extensions: &'static [&'static str],
    settings: SessionSettings,
    /// With TLS.
    site: Option<Site>,
}

impl Way {
    async fn send(&self, script: Script, list: &mut List) -> (Result<RunEnd, SessionOpenError>, Seen) {
        let script = Script { extensions: self.extensions.to_vec(), ..script };
        match &self.site {
            Some(site) => {
                let (stream, server) = site.serve_encrypted(script);
                send_over(stream, server, list, &self.settings).await
            }
            None => send_all(script, list, &self.settings).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_lost_at_each_octet() {
    let site = Site::new();
    let encrypted = site.settings_from_the_first_octet();
    let with = |transfer: Transfer, protocol: Protocol| SessionSettings { transfer, protocol, ..settings() };
    let way = |name, extensions, settings| Way { name, extensions, settings, site: None };
    let pipelined: &[_] = &["PIPELINING"];
    let chunked: &[_] = &["PIPELINING", "CHUNKING"];
    for way in [
        way("one by one", &[], settings()),
        way("DATA", pipelined, settings()),
        way("BDAT one by one", &["CHUNKING"], with(Transfer::Bdat, Protocol::Smtp)),
        way("BDAT", chunked, with(Transfer::Bdat, Protocol::Smtp)),
        way("BDAT at once", chunked, with(Transfer::BdatAtOnce, Protocol::Smtp)),
        way("LMTP", pipelined, with(Transfer::Data, Protocol::Lmtp)),
        way("LMTP with BDAT", chunked, with(Transfer::Bdat, Protocol::Lmtp)),
        Way { site: Some(site), ..way("TLS", pipelined, encrypted) },
    ] {
        let mut list = List::two();
        let (_, whole) = way.send(Script::default(), &mut list).await;
        check(&list, &whole, 2, way.name);
        assert!(list.fates.iter().flat_map(|(_, fates)| fates).all(|fate| matches!(fate, RecipientFate::Delivered(_))));
        let mut unknown = 0;
        for (octets, is_read) in [(whole.read, true), (whole.written, false)] {
            for cut in 0..octets {
                let (reads, writes) = if is_read { (cut, usize::MAX) } else { (usize::MAX, cut) };
                let mut list = List::two();
                let (end, seen) = way.send(Script { reads, writes, ..Script::default() }, &mut list).await;
                let taken = 2 - list.messages.len();
                let what = format!("{}, after {reads} octets read or {writes} written", way.name);
                assert!(end.is_ok() || taken == 0, "{what}: {end:?}");
                check(&list, &seen, taken, &what);
                unknown += list.fates.iter().filter(|(_, fates)| matches!(fates[0], RecipientFate::Unknown(_))).count();
            }
        }
        assert!(unknown > 10, "{}: {unknown}", way.name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_halted_session_writes_nothing_more() {
    let mut unopened = 0;
    let mut unsent = 0;
    for steps in 0.. {
        let left = AtomicUsize::new(steps);
        let take = move || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        let settings = SessionSettings { halt: Some(Halt::new(move || take().is_err())), ..settings() };
        let mut list = List::two();
        let (end, seen) = send_all(Script::default(), &mut list, &settings).await;
        assert_eq!(list.fates.len(), 2 - list.messages.len(), "after {steps} steps");
        for (key, fates) in &list.fates {
            let subject = format!("Subject: {key}\r\n");
            let kept = seen.kept.iter().filter(|kept| kept.body.starts_with(subject.as_bytes())).count();
            match &fates[0] {
                RecipientFate::NotSent(_) => {
                    unsent += 1;
                    assert_eq!(kept, 0, "after {steps} steps");
                }
                // Its verdict is not awaited.
                RecipientFate::Unknown(_) => assert!(kept <= 1, "after {steps} steps"),
                RecipientFate::Delivered(_) => assert_eq!(kept, 1, "after {steps} steps"),
                fate => panic!("{fate:?} after {steps} steps"),
            }
        }
        match end {
            Err(SessionOpenError::Lost(Loss::Halted)) => {
                unopened += 1;
                assert!(steps > 0 || seen.read == 0, "{:?}", seen.lines);
            }
            Ok(RunEnd::Lost(Loss::Halted)) => {}
            Ok(RunEnd::NoMore) => break,
            end => panic!("{end:?} after {steps} steps"),
        }
        assert!(!seen.lines.contains(&"QUIT".to_owned()), "after {steps} steps");
    }
    assert!(unopened > 1 && unsent > 2, "{unopened} {unsent}");
}

#[tokio::test(start_paused = true)]
async fn a_halted_session_begins_no_handshake() {
    let settings = SessionSettings { halt: Some(Halt::new(|| true)), ..Site::new().settings_from_the_first_octet() };
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let opened = OutgoingSession::open_over(Stream::Unix(ours), &settings).await;
    assert!(matches!(opened, Err(SessionOpenError::Lost(Loss::Halted))), "{opened:?}");
    let mut seen = Vec::new();
    theirs.read_to_end(&mut seen).await.unwrap();
    assert!(seen.is_empty(), "{} octets", seen.len());
}

/// TLS encrypts more than the socket takes at once; what it holds back has not left this process.
#[tokio::test(start_paused = true)]
async fn a_message_whose_end_tls_holds_back_was_not_sent() {
    const RECORD: usize = 16 << 10;
    let site = Site::new();
    let send = async |reads: usize| {
        let (stream, server) = site.serve_encrypted(Script { reads, ..Script::default() });
        let Stream::Unix(socket) = &stream else { unreachable!() };
        // The kernel's minimum, a few KiB: less than the last record of the message.
        set_socket_send_buffer_size(socket, 1).unwrap();
        let mut big = message(0, &["b", "c"]);
        big.body = vec![Bytes::from_static(b"Subject: 0\r\n\r\n"), Bytes::from("x".repeat(2 * RECORD + 10_000))];
        let mut list = List { messages: [big].into(), ..List::default() };
        let (_, seen) = send_over(stream, server, &mut list, &site.settings_from_the_first_octet()).await;
        check(&list, &seen, 1, &format!("after {reads} octets"));
        (list.fates.remove(0).1.remove(0), seen)
    };
    let (fate, whole) = send(usize::MAX).await;
    assert!(matches!(fate, RecipientFate::Delivered(_)), "{fate:?}");
    let commands = whole.lines.iter().take_while(|line| *line != "DATA").map(|line| line.len() + 2).sum::<usize>();
    let begin = commands + "DATA\r\n".len();
    let end = whole.read - "QUIT\r\n".len();
    // The server has a whole record before it reads its first octet.
    for cut in [begin, begin + 1, begin + RECORD, begin + RECORD + 1, begin + 2 * RECORD] {
        let (fate, _) = send(cut).await;
        assert!(matches!(fate, RecipientFate::NotSent(_)), "{cut} of {begin}..{end}: {fate:?}");
    }
    for cut in [begin + 2 * RECORD + 1, end - 1] {
        let (fate, _) = send(cut).await;
        assert!(matches!(fate, RecipientFate::Unknown(_)), "{cut} of {begin}..{end}: {fate:?}");
    }
}
