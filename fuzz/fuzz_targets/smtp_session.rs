//! Any session, split anywhere, gives the same replies and the same messages; memory stays bounded; nothing panics; nothing is asked that was
//! not to be asked, no credentials are taken in the clear, and nothing from before STARTTLS is known behind it.
#![no_main]

use std::sync::Arc;

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use posthaste_smtp::server::{AuthStep, Config, Event, Machine};
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
    let secure = settings & 64 != 0;
    config.starttls = secure;
    config.auth_mechanisms = if secure { vec!["PLAIN".into(), "LOGIN".into()] } else { Vec::new() };
    config.auth_needs_tls = settings & 8 == 0;
    config.dsn = settings & 4 != 0;
    (config.asks_hello, config.asks_data) = (settings & 128 != 0, settings & 128 != 0);
    config.limits.message_bytes = 4096;
    config.limits.header_bytes = 1024;
    config.limits.discard_bytes = 1 << 20;
    let config = Arc::new(config);
    let mut whole = run(&config, &[session]);
    // What comes in one piece with STARTTLS ends the session: there it matters where a line is cut off.
    let mut lines = vec![session];
    if secure {
        lines = session.split_inclusive(|&octet| octet == b'\n').collect();
        whole = run(&config, &lines);
    }
    let piece = usize::from(*cut).max(1);
    let pieces: Vec<&[u8]> = lines.iter().flat_map(|line| line.chunks(piece)).collect();
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
                Event::Hello => {
                    assert!(config.asks_hello);
                    let unwelcome = machine.helo().expect("who said hello has a name").contains("unwelcome");
                    machine.answer(if unwelcome { Err(Reply::new(550, "5.7.1", "No")) } else { Ok(()) });
                    assert_eq!(machine.helo().is_none(), unwelcome);
                }
                Event::StartTls => {
                    assert!(config.starttls && !machine.is_tls() && input.is_empty());
                    heard.replies.append(machine.output_mut());
                    machine.tls_started();
                    assert!(machine.is_tls() && !machine.is_authenticated() && machine.helo().is_none());
                    assert!(!machine.is_extended() && machine.envelope().is_none());
                }
                Event::Auth(step) => {
                    assert!(machine.is_tls() || !config.auth_needs_tls);
                    assert!(!machine.is_authenticated() && machine.mail().is_none());
                    answer_auth(&mut machine, config, &step);
                }
                Event::Mail => {
                    assert!(machine.helo().is_some());
                    machine.answer(Ok(()));
                }
                Event::Rcpt => {
                    let unknown = machine.recipient().is_some_and(|rcpt| rcpt.to_string().contains("unknown"));
                    machine.answer(if unknown { Err(Reply::new(550, "5.1.1", "No")) } else { Ok(()) });
                }
                Event::Data => {
                    assert!(config.asks_data);
                    let many = machine.envelope().expect("a transaction is open").recipients.len() > 2;
                    machine.answer(if many { Err(Reply::new(451, "4.7.1", "Later")) } else { Ok(()) });
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
                Event::TransactionAborted(_) => assert!(body.is_none() && machine.envelope().is_none()),
                Event::Close => {
                    heard.closed = true;
                    heard.replies.append(machine.output_mut());
                    return heard;
                }
            }
        }
        assert!(input.len() <= 16 << 10, "{} octets wait", input.len());
        heard.replies.append(machine.output_mut());
    }
    heard
}

/// Whoever gives nothing at once is asked; `bad` is no password, and behind `more` another question comes.
fn answer_auth(machine: &mut Machine, config: &Config, step: &AuthStep) {
    let said = match step {
        AuthStep::Begin { mechanism, initial } => {
            assert!(config.auth_mechanisms.contains(mechanism), "{mechanism:?}");
            initial.as_deref()
        }
        AuthStep::Response(text) => Some(&**text),
    };
    match said {
        None => machine.auth_challenge(""),
        Some(text) if text.contains("more") => machine.auth_challenge("bW9yZQ=="),
        Some(text) if text.contains("bad") => machine.auth_done(Err(Reply::new(535, "5.7.8", "No"))),
        Some(_) => {
            machine.auth_done(Ok(()));
            assert!(machine.is_authenticated());
        }
    }
}
