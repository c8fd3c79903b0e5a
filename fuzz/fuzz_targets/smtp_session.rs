//! Any session, split anywhere, gives the same replies and the same messages; memory stays bounded; nothing panics.
#![no_main]

use std::sync::Arc;

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use posthaste_smtp::server::{Config, Event, Machine};
use posthaste_smtp::{BareNewlines, LongLines, MessageOutcome, NulOctets, Protocol, Reply};

fuzz_target!(|data: &[u8]| {
    // The first octet chooses protocol and policies, the second how the rest is cut.
    let [settings, cut, session @ ..] = data else { return };
    let mut config = Config::new("mx.example.org");
    config.protocol = if settings & 1 == 0 { Protocol::Smtp } else { Protocol::Lmtp };
    config.bare_newlines =
        [BareNewlines::Reject, BareNewlines::Fix, BareNewlines::Accept][usize::from(settings >> 1) % 3];
    config.nul_octets = if settings & 16 == 0 { NulOctets::Reject } else { NulOctets::Accept };
    config.long_lines = if settings & 32 == 0 { LongLines::Accept } else { LongLines::Reject };
    config.limits.message_bytes = 4096;
    config.limits.header_bytes = 1024;
    config.limits.discard_bytes = 1 << 20;
    let config = Arc::new(config);
    let whole = run(&config, &[session]);
    let piece = usize::from(*cut).max(1);
    let pieces: Vec<&[u8]> = session.chunks(piece).collect();
    assert_eq!(whole, run(&config, &pieces), "pieces of {piece}");
});

#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    replies: Vec<u8>,
    messages: Vec<Vec<u8>>,
    closed: bool,
}

fn run(config: &Arc<Config>, pieces: &[&[u8]]) -> Heard {
    let mut machine = Machine::new(Arc::clone(config));
    let mut heard = Heard::default();
    let mut input = BytesMut::new();
    let mut body: Option<Vec<u8>> = None;
    machine.greet(Ok(()));
    heard.replies.append(machine.output_mut());
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            match machine.step(&mut input) {
                Event::NeedInput => break,
                Event::Flush => heard.replies.append(machine.output_mut()),
                Event::Mail => machine.answer(Ok(())),
                Event::Rcpt => {
                    let unknown = machine.recipient().is_some_and(|rcpt| rcpt.to_string().contains("unknown"));
                    machine.answer(if unknown { Err(Reply::new(550, "5.1.1", "No")) } else { Ok(()) });
                }
                Event::BodyBegin(envelope) => {
                    assert!(!envelope.recipients.is_empty(), "a body without recipients");
                    body = Some(Vec::new());
                }
                Event::Body(bytes) => {
                    let body = body.as_mut().expect("a body has begun");
                    body.extend_from_slice(&bytes);
                    assert!(body.len() <= 4096, "a body of {} octets", body.len());
                }
                Event::BodyEnd => {
                    heard.messages.push(body.take().expect("a body has begun"));
                    machine.finish(&MessageOutcome::accepted("kept"));
                }
                Event::BodyAborted(_) => body = None,
                Event::Close => {
                    heard.closed = true;
                    heard.replies.append(machine.output_mut());
                    return heard;
                }
                event @ (Event::Hello | Event::Data | Event::StartTls | Event::Auth(_)) => {
                    panic!("{event:?} was not announced")
                }
            }
        }
        assert!(input.len() <= 16 << 10, "{} octets wait", input.len());
        heard.replies.append(machine.output_mut());
    }
    heard
}
