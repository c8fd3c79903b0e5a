//! Silence, trickles, and clients that read nothing: every wait ends.

use std::time::Duration;

use posthaste_smtp::{BodyError, Limits, Timeouts};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::support::{LONG, Talk, fast, limited, local, start};

#[tokio::test]
async fn silence_and_trickle_end_a_session() {
    let limits = fast(|t| t.command = Duration::from_millis(200));
    let (server, _events) = start(limited(limits)).await;
    let mut silent = Talk::to(&server).await;
    silent.hear("220").await;
    assert!(silent.hear("421").await.starts_with("421 4.4.2 "));
    silent.hear_close().await;
    let mut trickle = Talk::to(&server).await;
    trickle.hear("220").await;
    let mut octets = 0;
    // Octets without an end of line do not extend the time.
    while timeout(Duration::from_millis(20), trickle.stream.readable()).await.is_err() {
        trickle.say("x").await;
        octets += 1;
        assert!(octets < 500, "a trickle holds the session");
    }
    trickle.hear("421").await;
}

#[tokio::test]
async fn silence_within_a_body_ends_it() {
    let limits = fast(|t| t.body_read = Duration::from_millis(100));
    let (server, mut events) = start(limited(limits)).await;
    let mut talk = Talk::to(&server).await;
    talk.open().await;
    talk.say("half a message").await.hear("421").await;
    assert_eq!(events.recv().await.unwrap().2, Err(BodyError::TimedOut));
}

#[tokio::test]
async fn a_refused_chunk_has_the_time_of_a_body() {
    let (server, mut events) = start(local()).await;
    let mut talk = Talk::to(&server).await;
    talk.hear("220").await;
    talk.say("EHLO client.example\r\n").await.hear("250").await;
    // Without a transaction, and with its octets in a packet of their own.
    talk.say("BDAT 6 LAST\r\n").await;
    assert!(timeout(Duration::from_millis(50), talk.stream.readable()).await.is_err(), "answered before it came");
    assert!(talk.say("QUIT\r\n").await.hear("503").await.starts_with("503 5.5.1 "));
    talk.say("MAIL FROM:<a@example.org>\r\nRCPT TO:<unknown@example.org>\r\nBDAT 4 LAST\r\n").await.hear("550").await;
    assert!(timeout(Duration::from_millis(50), talk.stream.readable()).await.is_err(), "answered before it came");
    assert!(talk.say("x\r\n\n").await.hear("554").await.starts_with("554 5.5.1 "));
    talk.say("QUIT\r\n").await.hear("221").await;
    assert!(server.shutdown(LONG).await);
    assert!(events.recv().await.is_none());
}

#[tokio::test]
async fn a_refused_chunk_cannot_be_spun_out() {
    let limits = fast(|t| t.body_total = Duration::from_millis(200));
    let (server, _events) = start(limited(limits)).await;
    let mut talk = Talk::to(&server).await;
    talk.hear("220").await;
    talk.say("BDAT 100000 LAST\r\n").await;
    let mut octets = 0;
    while timeout(Duration::from_millis(20), talk.stream.readable()).await.is_err() {
        talk.say("x").await;
        octets += 1;
        assert!(octets < 500, "a trickle holds the session");
    }
    assert!(talk.hear("421").await.starts_with("421 4.4.2 "));
}

#[tokio::test]
async fn a_message_in_chunks_cannot_be_spun_out() {
    let limits = fast(|t| t.body_total = Duration::from_millis(200));
    let (server, mut events) = start(limited(limits)).await;
    let mut talk = Talk::to(&server).await;
    talk.hear("220").await;
    talk.say("EHLO client.example\r\nMAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\n").await.hear("250").await;
    talk.say("BDAT 1\r\nx").await;
    // The time for a command has not passed, the time for the message has.
    assert!(talk.hear("421").await.contains("421 4.4.2 "));
    assert_eq!(events.recv().await.unwrap().2, Err(BodyError::TimedOut));
}

#[tokio::test]
async fn times_beyond_all_clocks_are_taken_for_long_ones() {
    let limits = Limits {
        timeouts: Timeouts {
            command: Duration::MAX,
            body_read: Duration::MAX,
            body_total: Duration::MAX,
            write: Duration::MAX,
            linger: Duration::MAX,
        },
        ..Limits::default()
    };
    let (server, _events) = start(limited(limits)).await;
    let mut talk = Talk::to(&server).await;
    talk.open().await;
    talk.say("text\r\n.\r\n").await.hear("250").await;
}

#[tokio::test]
async fn a_client_that_takes_no_replies_is_given_up() {
    let limits = Limits { idle_commands: u32::MAX, ..fast(|t| t.write = Duration::from_millis(200)) };
    let (server, _events) = start(limited(limits)).await;
    let mut deaf = Talk::to(&server).await;
    let commands = b"HELP\r\n".repeat(1000);
    let pouring = async {
        let mut sent = 0;
        while let Ok(written) = deaf.stream.write(&commands[sent % 6..]).await {
            sent += written;
        }
    };
    // When it is given up, its connection is reset, as nobody will read what it still sends.
    timeout(LONG, pouring).await.expect("given up in time");
    while server.connections() > 0 {
        tokio::task::yield_now().await;
    }
}
