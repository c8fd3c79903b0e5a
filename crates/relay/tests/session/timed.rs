//! Traffic with timed messages, and slow traffic.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use posthaste_net::Stream;
use posthaste_relay::session::{OutgoingMessage, OutgoingSession, RecipientFate, RunEnd, Traffic};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Sleep;

use crate::support::{List, Script, message, settings};

/// Counts the messages given.
struct Counted {
    list: List,
    given: Arc<AtomicUsize>,
    is_timed: bool,
}

impl Traffic for Counted {
    type Key = usize;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<OutgoingMessage<usize>>> {
        self.given.fetch_add(1, Ordering::Relaxed);
        self.list.poll_next(cx)
    }

    fn is_timed(&self) -> bool {
        self.is_timed
    }

    fn finished(&mut self, key: usize, fates: Vec<RecipientFate>) {
        self.list.finished(key, fates);
    }
}

/// Messages that a session has asked for when the server has read half of the first body, which fits into no socket.
async fn asked_for_amid_a_body(is_timed: bool) -> usize {
    const BODY: usize = 16 << 20;
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let given = Arc::new(AtomicUsize::new(0));
    let counter = given.clone();
    let server = tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        theirs.write_all(b"220 mx\r\n").await.unwrap();
        for reply in ["250-mx\r\n250 PIPELINING\r\n", "250 ok\r\n250 ok\r\n354 go\r\n"] {
            assert!(theirs.read(&mut buffer).await.unwrap() > 0);
            theirs.write_all(reply.as_bytes()).await.unwrap();
        }
        let mut read = 0;
        while read < BODY / 2 {
            read += theirs.read(&mut buffer).await.unwrap();
        }
        let asked = counter.load(Ordering::Relaxed);
        // The next envelope follows the final dot, without a reply to it.
        let mut end = Vec::new();
        while !end.ends_with(b"DATA\r\n") {
            let count = theirs.read(&mut buffer).await.unwrap();
            assert!(count > 0);
            end = [&end[end.len().saturating_sub(10)..], &buffer[..count]].concat();
        }
        theirs.write_all(b"250 kept\r\n250 ok\r\n250 ok\r\n354 go\r\n").await.unwrap();
        while !end.ends_with(b"\r\n.\r\n") {
            let count = theirs.read(&mut buffer).await.unwrap();
            end.extend_from_slice(&buffer[..count]);
        }
        theirs.write_all(b"250 kept\r\n").await.unwrap();
        asked
    });
    let first = OutgoingMessage { body: vec![Bytes::from(b"0123456\r\n".repeat(BODY / 9))], ..message(0, &["b"]) };
    let list = List { messages: [first, message(1, &["b"])].into(), ..List::default() };
    let mut traffic = Counted { list, given, is_timed };
    let mut session = OutgoingSession::open_over(Stream::Unix(ours), &settings()).await.unwrap();
    assert!(matches!(session.run(&mut traffic).await, RunEnd::NoMore));
    assert!(traffic.list.fates.iter().all(|(_, fates)| matches!(fates[0], RecipientFate::Delivered(_))));
    assert_eq!(traffic.list.fates.len(), 2);
    server.await.unwrap()
}

#[tokio::test]
async fn a_timed_message_is_asked_for_when_it_can_be_written() {
    assert_eq!(asked_for_amid_a_body(false).await, 2, "so that both are in one write");
    assert_eq!(asked_for_amid_a_body(true).await, 1);
}

/// Needs longer than a session may be idle.
struct Slow(Pin<Box<Sleep>>, List);

impl Traffic for Slow {
    type Key = usize;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<OutgoingMessage<usize>>> {
        match self.0.as_mut().poll(cx) {
            Poll::Ready(()) => self.1.poll_next(cx),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_idle(&self) -> bool {
        self.1.messages.is_empty()
    }

    fn finished(&mut self, key: usize, fates: Vec<RecipientFate>) {
        self.1.finished(key, fates);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_is_not_idle_while_a_message_is_on_its_way() {
    let (stream, server) = Script::default().serve();
    let mut settings = settings();
    settings.timeouts.idle = Duration::from_secs(1);
    let mut session = OutgoingSession::open_over(stream, &settings).await.unwrap();
    let list = List { waits: true, ..List::two() };
    let mut traffic = Slow(Box::pin(tokio::time::sleep(Duration::from_secs(30))), list);
    assert!(matches!(session.run(&mut traffic).await, RunEnd::Idle));
    assert_eq!(traffic.1.fates.len(), 2);
    drop(session);
    assert_eq!(server.await.unwrap().kept.len(), 2);
}
