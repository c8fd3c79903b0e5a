//! Whatever octets a server says, cut anywhere: a session ends, each recipient of each message that it took has one fate, in order, and none is delivered whose end
//! was not sent.
#![no_main]

use std::collections::VecDeque;
use std::task::{Context, Poll};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use posthaste_net::Stream;
use posthaste_relay::session::{OutgoingMessage, OutgoingSession, RecipientFate, SessionSettings, Traffic};
use posthaste_smtp::client::Transfer;
use posthaste_smtp::{ForwardPath, MailFrom, Protocol, RcptTo, ReversePath};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const LMTP: u8 = 1;
const BDAT: u8 = 2;
const AT_ONCE: u8 = 4;
const ONE_MESSAGE: u8 = 8;
const MESSAGES: usize = 4;
const RECIPIENTS: usize = 3;

struct List {
    left: VecDeque<OutgoingMessage<usize>>,
    fates: Vec<(usize, Vec<RecipientFate>)>,
}

impl Traffic for List {
    type Key = usize;

    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<OutgoingMessage<usize>>> {
        Poll::Ready(self.left.pop_front())
    }

    fn finished(&mut self, key: usize, fates: Vec<RecipientFate>) {
        self.fates.push((key, fates));
    }
}

fn message(key: usize) -> OutgoingMessage<usize> {
    let recipient = |name: &str| RcptTo::new(ForwardPath::parse(name).expect("an address"));
    OutgoingMessage {
        key,
        mail: MailFrom::new(ReversePath::parse("<a@d.example>").expect("an address")),
        recipients: ["<b@x.example>", "<c@x.example>", "<\"d e\"@[192.0.2.1]>"].map(recipient).to_vec(),
        body: vec![Bytes::from(format!("Subject: {key}\r\n\r\n.dot\r\n")), Bytes::from(format!("the end of {key}"))],
    }
}

fuzz_target!(|data: &[u8]| {
    let [how, cut, wire @ ..] = data else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(converse(*how, usize::from(*cut).max(1), wire.to_vec()));
});

async fn converse(how: u8, cut: usize, wire: Vec<u8>) {
    let mut settings = SessionSettings::new("client.example");
    if how & LMTP > 0 {
        settings.protocol = Protocol::Lmtp;
    }
    settings.transfer = match (how & BDAT > 0, how & AT_ONCE > 0) {
        (false, _) => Transfer::Data,
        (true, false) => Transfer::Bdat,
        (true, true) => Transfer::BdatAtOnce,
    };
    if how & ONE_MESSAGE > 0 {
        settings.messages_max = 1;
    }
    let (ours, theirs) = UnixStream::pair().expect("a socket");
    let (mut read, mut write) = theirs.into_split();
    let hearing = tokio::spawn(async move {
        let mut heard = Vec::new();
        let _ = read.read_to_end(&mut heard).await;
        heard
    });
    let saying = tokio::spawn(async move {
        for piece in wire.chunks(cut) {
            if write.write_all(piece).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        let _ = write.shutdown().await;
    });
    let mut list = List { left: (0..MESSAGES).map(message).collect(), fates: Vec::new() };
    if let Ok(mut session) = OutgoingSession::open_over(Stream::Unix(ours), &settings).await {
        session.run(&mut list).await;
        session.quit().await;
    }
    saying.await.expect("it has spoken");
    let heard = hearing.await.expect("it has heard");
    assert_eq!(list.fates.len() + list.left.len(), MESSAGES, "a message without fates");
    for (at, (key, fates)) in list.fates.iter().enumerate() {
        assert_eq!((*key, fates.len()), (at, RECIPIENTS));
        let end = format!("the end of {key}").into_bytes();
        let ends = heard.windows(end.len()).filter(|octets| *octets == end).count();
        assert!(ends <= 1, "message {key} was sent {ends} times");
        assert!(ends == 1 || !fates.iter().any(|fate| matches!(fate, RecipientFate::Delivered(_))), "{key}: {fates:?}");
    }
}
