//! Shutdown: the sessions that it ends at once, and those that it waits for.

use std::sync::Arc;
use std::time::Duration;

use posthaste_smtp::BodyError;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::support::{LONG, RecordingHandler, Talk, local, start};

#[tokio::test]
async fn shutdown_ends_idle_sessions_at_once_and_others_when_done() {
    let (server, mut events) = start(local()).await;
    let address = server.local_addrs()[0];
    let mut idle = Talk::to(&server).await;
    idle.hear("220").await;
    let mut busy = Talk::to(&server).await;
    busy.open().await;
    let shutdown = tokio::spawn(server.shutdown(LONG));
    assert!(idle.hear("421").await.starts_with("421 4.3.2 "));
    idle.hear_close().await;
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    busy.say("text\r\n.\r\n").await.hear("421").await;
    busy.hear_close().await;
    assert_eq!(events.recv().await.unwrap().2.unwrap(), b"text\r\n");
    assert!(shutdown.await.unwrap());
}

#[tokio::test]
async fn no_transaction_begins_while_the_server_drains() {
    let hold = Arc::new(Notify::new());
    let (events, mut received) = mpsc::unbounded_channel();
    let server = local().start(RecordingHandler { events, hold: Some(Arc::clone(&hold)), stall: false }).await.unwrap();
    let address = server.local_addrs()[0];
    let mut talk = Talk::to(&server).await;
    talk.open().await;
    // The next message is in the same packet, so that the server never waits for it.
    talk.say("one\r\n.\r\nMAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nBDAT 3 LAST\r\ntwo").await;
    let shutdown = tokio::spawn(server.shutdown(LONG));
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    hold.notify_one();
    let heard = talk.hear("421").await;
    assert!(heard.starts_with("250 ") && heard.contains("\r\n421 4.3.2 "), "{heard}");
    assert_eq!(received.recv().await.unwrap().2.unwrap(), b"one\r\n");
    assert!(shutdown.await.unwrap());
    assert!(received.recv().await.is_none());
}

#[tokio::test]
async fn a_server_that_is_dropped_serves_on() {
    let (server, _events) = start(local()).await;
    let address = server.local_addrs()[0];
    drop(server);
    // Long enough for every task to have seen it.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let mut talk = Talk { stream: TcpStream::connect(address).await.unwrap() };
    talk.open().await;
    talk.say("text\r\n.\r\n").await.hear("250").await;
}

#[tokio::test]
async fn shutdown_does_not_wait_for_ever() {
    let (events, mut received) = mpsc::unbounded_channel();
    let server = local().start(RecordingHandler { events, hold: None, stall: true }).await.unwrap();
    let mut unfinished = Talk::to(&server).await;
    unfinished.open().await;
    let mut stalled = Talk::to(&server).await;
    stalled.open().await;
    stalled.say("text\r\n.\r\n").await;
    received.recv().await.unwrap().2.unwrap();
    assert!(!timeout(LONG, server.shutdown(Duration::from_millis(50))).await.expect("ends"));
    assert_eq!(received.recv().await.unwrap().2, Err(BodyError::ShuttingDown));
    // Nothing was promised: a dropped handler gives no reply.
    stalled.hear_close().await;
}
