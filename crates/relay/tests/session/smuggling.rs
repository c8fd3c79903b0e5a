//! Text that looks like the end of a message is sent as a part of it: our own server takes each body as one message.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use posthaste_relay::session::{Endpoint, OutgoingSession, RecipientFate, RunEnd};
use posthaste_smtp::client::Transfer;
use posthaste_smtp::driver::{Handler, IncomingBody, Server, Session as ServerSession};
use posthaste_smtp::server::Config;
use posthaste_smtp::{Envelope, MessageOutcome, RcptTo, Reply};

use crate::support::{List, message, settings};

/// The messages that a server has accepted, in order.
#[derive(Default)]
pub struct Keeper(Mutex<Vec<Vec<u8>>>);

impl Keeper {
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

pub struct Shared(pub Arc<Keeper>);

impl Handler for Shared {
    type State = ();
    type Transaction = ();

    async fn rcpt(&self, _: &mut ServerSession, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
        Ok(())
    }

    async fn message(&self, _: &mut ServerSession, _: (), _: Envelope, body: &mut IncomingBody<'_>) -> MessageOutcome {
        let mut whole = Vec::new();
        while let Some(piece) = body.chunk().await {
            match piece {
                Ok(piece) => whole.extend_from_slice(&piece),
                Err(error) => return error.reply().into(),
            }
        }
        self.0.0.lock().unwrap().push(whole);
        MessageOutcome::accepted("kept")
    }
}

/// Turns bare CR and LF into CRLF, and completes the last line.
pub fn mended(body: &[u8], ends_line: bool) -> Vec<u8> {
    let mut whole = Vec::new();
    for (at, octet) in body.iter().enumerate() {
        match octet {
            b'\r' => whole.extend_from_slice(b"\r\n"),
            b'\n' if at > 0 && body[at - 1] == b'\r' => {}
            b'\n' => whole.extend_from_slice(b"\r\n"),
            other => whole.push(*other),
        }
    }
    if ends_line && !whole.ends_with(b"\r\n") {
        whole.extend_from_slice(b"\r\n");
    }
    whole
}

#[tokio::test]
async fn nothing_that_is_sent_ends_early() {
    let keeper = Arc::new(Keeper::default());
    let server = Server::builder().config(Config::new("mx.example.org")).listen("127.0.0.1:0");
    let server = server.start(Shared(Arc::clone(&keeper))).await.unwrap();
    let address = server.local_addrs()[0];
    let ends = ["\n", "\r", "\r\n", "\r\r\n", "\n\r", ""];
    let smuggled = "MAIL FROM:<evil@d>\r\nRCPT TO:<b@d>\r\nDATA\r\nevil\r\n";
    let mut bodies = vec![b".".to_vec(), b"..".to_vec(), b".\r\n".to_vec(), b"\n.\n".to_vec(), b"\r.\r".to_vec()];
    for (before, behind) in ends.iter().flat_map(|before| ends.map(|behind| (before, behind))) {
        for dots in [".", "..", ".\0", "\0."] {
            let body = format!("a: b\r\n\r\nfirst{before}{dots}{behind}{smuggled}{before}{dots}{behind}");
            bodies.push(body.into_bytes());
        }
    }
    for transfer in [Transfer::Data, Transfer::Bdat, Transfer::BdatAtOnce] {
        for piece_bytes in [1, 7, usize::MAX] {
            let mut settings = settings();
            settings.transfer = transfer;
            let mut list = List::default();
            for (key, body) in bodies.iter().enumerate() {
                let mut message = message(key, &["b"]);
                message.body = body.chunks(piece_bytes.min(body.len())).map(Bytes::copy_from_slice).collect();
                list.messages.push_back(message);
            }
            let mut session = OutgoingSession::open(&Endpoint::Tcp(address), &settings).await.unwrap();
            assert!(matches!(session.run(&mut list).await, RunEnd::NoMore));
            session.quit().await;
            let mut kept = keeper.take().into_iter();
            for (body, (_, fates)) in bodies.iter().zip(&list.fates) {
                let shown = body.escape_ascii();
                // NUL is up to the server's policy; it was refused as one message, which matters here.
                if body.contains(&0) && matches!(fates[0], RecipientFate::Refused(..)) {
                    continue;
                }
                assert!(matches!(fates[0], RecipientFate::Delivered(_)), "{shown}: {:?}", fates[0]);
                let expected = mended(body, transfer == Transfer::Data);
                let got = kept.next().expect("a message");
                assert_eq!(got.escape_ascii().to_string(), expected.escape_ascii().to_string());
            }
            assert_eq!(kept.next(), None, "more messages than were sent");
        }
    }
    assert!(server.shutdown(Duration::from_secs(60)).await);
}
