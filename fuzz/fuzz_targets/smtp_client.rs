//! Any octets from a server, split anywhere, give a client the same outcomes: no panic, a verdict on each recipient, no more said than
//! the messages need, and nobody is told that a message was taken whose end was never sent.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use posthaste_smtp::Reply;
use posthaste_smtp::client::{Config, Event, Machine, MessageBody, Outcome, Transfer};
use posthaste_smtp::command::{MailFrom, RcptTo};
use posthaste_smtp::server::Protocol;
use posthaste_smtp::{ForwardPath, ReversePath};

fuzz_target!(|data: &[u8]| {
    let [how, cut, wire @ ..] = data else { return };
    let whole = converse(*how, [wire].into_iter());
    let pieces = converse(*how, wire.chunks(usize::from(*cut).max(1)));
    // What lies behind the reply to STARTTLS is an attack if it is there at once, and so is a verdict that comes with 354.
    if how & STARTTLS == 0 && !whole.1 {
        assert_eq!(whole, pieces);
    }
});

const LMTP: u8 = 1;
const STREAMED: u8 = 2;
const STARTTLS: u8 = 4;
const BDAT: u8 = 8;
const AT_ONCE: u8 = 16;
const ABSENT: u8 = 32;
const MESSAGES: usize = 3;
const BODY: &[u8] = b"Subject: hello\r\n\r\n.one line\r\nand another";
/// EHLO, HELO and QUIT, and for each message RSET, MAIL, four RCPT with all that they may say, and the body's command.
const SAID_MAX: usize = 200 + MESSAGES * (1000 + BODY.len());

/// The outcome of each message, and whether the session ended in an error.
fn converse<'a>(how: u8, mut pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Outcome>, bool) {
    let config = Config {
        protocol: if how & LMTP > 0 { Protocol::Lmtp } else { Protocol::Smtp },
        transfer: match (how & BDAT > 0, how & AT_ONCE > 0) {
            (false, _) => Transfer::Data,
            (true, false) => Transfer::Bdat,
            (true, true) => Transfer::BdatAtOnce,
        },
        ..Config::new("client.example")
    };
    let recipients: Vec<RcptTo> = ["<a@x.example>", "<b@x.example>", "<é@x.example>", "<\"c d\"@[192.0.2.1]>"]
        .map(|path| RcptTo::new(ForwardPath::parse(path).expect("an address")))
        .to_vec();
    let (mut client, mut input) = (Machine::new(config).expect("a good name"), BytesMut::new());
    let (mut outcomes, mut sent, mut said, mut ends, mut tls) = (Vec::new(), 0, 0, 0, how & STARTTLS > 0);
    let next = |client: &mut Machine, sent: &mut usize| {
        *sent += 1;
        let body = match (how & ABSENT > 0, how & STREAMED > 0) {
            // A question in front of messages.
            (true, _) if *sent == 1 => MessageBody::Absent,
            (_, true) => MessageBody::Streamed,
            (_, false) => MessageBody::Whole(vec![Bytes::from_static(&BODY[..20]), Bytes::from_static(&BODY[20..])]),
        };
        if *sent <= MESSAGES && client.may_send() {
            client.send(MailFrom::new(ReversePath::Null), recipients.clone(), body)
        } else {
            client.quit()
        }
    };
    loop {
        let event = client.step(&mut input);
        let output = client.take_output().concat();
        said += output.len();
        ends += output.windows(BODY_END.len()).filter(|octets| *octets == BODY_END).count();
        assert!(said <= SAID_MAX, "{said} octets were said");
        match event {
            Ok(Event::NeedInput) => match pieces.next() {
                Some(piece) => input.extend_from_slice(piece),
                None => return given_up(client, outcomes),
            },
            Ok(Event::Ready) if std::mem::take(&mut tls) => client.start_tls(),
            Ok(Event::Ready) => next(&mut client, &mut sent),
            Ok(Event::TlsReady) => client.tls_started(),
            Ok(Event::SendBody) => {
                client.body(Bytes::from_static(BODY));
                client.body_end();
            }
            Ok(Event::Sent(outcome)) => {
                assert_eq!(outcome.recipients.len(), recipients.len());
                outcomes.push(outcome);
                let taken = outcomes.iter().filter(|sent| sent.recipients.iter().any(|one| one.is_delivered()));
                assert!(taken.count() <= ends, "a message was taken before its end: {outcomes:?}");
                if !client.is_closed() {
                    next(&mut client, &mut sent);
                }
            }
            Ok(Event::Closed) => return (outcomes, false),
            Err(_) => {
                let (outcomes, _) = given_up(client, outcomes);
                return (outcomes, true);
            }
        }
    }
}

/// The last words of the body, which are sent once for each message.
const BODY_END: &[u8] = b"and another";

fn given_up(mut client: Machine, mut outcomes: Vec<Outcome>) -> (Vec<Outcome>, bool) {
    outcomes.extend(client.abort(&Reply::new(421, "4.4.2", "connection lost")));
    (outcomes, false)
}
