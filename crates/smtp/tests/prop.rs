//! Laws over generated input. A failure prints its smallest case.

use bytes::{Bytes, BytesMut};
use posthaste_smtp::client::{self, Event, MessageBody, Transfer};
use posthaste_smtp::reply::ReplyParser;
use posthaste_smtp::server::Config;
use posthaste_smtp::{
    Address, BareNewlines, ForwardPath, LongLines, MailFrom, NulOctets, Protocol, RcptTo, Reply, ReversePath, command,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::common::{Host, Message};

/// Pieces of sessions: good, bad and ugly.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let fixed: Vec<&[u8]> = vec![
        b"EHLO client.example\r\n",
        b"HELO client.example\r\n",
        b"LHLO client.example\r\n",
        b"MAIL FROM:<a@example.org>\r\n",
        b"MAIL FROM:<a@example.org> SIZE=10 BODY=8BITMIME SMTPUTF8\r\n",
        b"MAIL FROM:<blocked@example.org>\r\n",
        b"RCPT TO:<b@example.org>\r\n",
        b"RCPT TO:<b@example.org> NOTIFY=NEVER\r\n",
        b"RCPT TO:<unknown@example.org>\r\n",
        b"RCPT TO:<broken@example.org>\r\n",
        b"RCPT TO:<goaway@example.org>\r\n",
        b"DATA\r\n",
        b"BDAT 5\r\n",
        b"BDAT 0 LAST\r\n",
        b"BDAT 20 LAST\r\n",
        b"BDAT 60\r\n",
        b"BDAT x\r\n",
        b"RSET\r\n",
        b"NOOP\r\n",
        b"QUIT\r\n",
        b"VRFY x\r\n",
        b"STARTTLS\r\n",
        b"AUTH PLAIN\r\n",
        b"Subject: x\r\n\r\n",
        b"text\r\n",
        b"..stuffed\r\n",
        b"\r\n.\r\n",
        b".\r\n",
        b"\n.\n",
        b"\r.\r",
        b"\r\n.\r",
        b"\r\n",
        b"\r",
        b"\n",
        b".",
        b"\0",
        b"\xff",
        b"12345",
    ];
    prop_oneof![
        12 => select(fixed).prop_map(<[u8]>::to_vec),
        // A transaction that succeeds, so that sessions get anywhere.
        3 => Just(b"EHLO c\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<b@c.example>\r\nDATA\r\n".to_vec()),
        2 => Just(b"EHLO c\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<b@c.example>\r\nBDAT 7\r\n".to_vec()),
        1 => (1..800_usize).prop_map(|n| vec![b'x'; n]),
        1 => vec(any::<u8>(), 0..20),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    let bare = select(vec![BareNewlines::Reject, BareNewlines::Fix, BareNewlines::Accept]);
    let nul = select(vec![NulOctets::Reject, NulOctets::Accept]);
    let long = select(vec![LongLines::Reject, LongLines::Accept]);
    (bare, nul, long, any::<bool>(), any::<bool>()).prop_map(|(bare_newlines, nul_octets, long_lines, lmtp, tight)| {
        let protocol = if lmtp { Protocol::Lmtp } else { Protocol::Smtp };
        let mut config = Config { bare_newlines, nul_octets, long_lines, protocol, ..Config::new("mx.example.org") };
        if tight {
            config.limits.message_bytes = 50;
            config.limits.header_bytes = 20;
            config.limits.text_line_bytes = 12;
            config.limits.discard_bytes = 300;
            config.limits.recipients = 2;
            config.limits.errors = 6;
            config.limits.idle_commands = 8;
            config.limits.messages = Some(2);
        }
        config
    })
}

fn replay<'a>(config: &Config, reads: impl IntoIterator<Item = &'a [u8]>) -> (String, Vec<Message>, bool) {
    let mut host = Host::new(config.clone());
    host.read(b"");
    for read in reads {
        host.read(read);
        assert!(host.input.len() < 12_288, "the machine leaves at most a line in the buffer");
    }
    (String::from_utf8_lossy(&host.output).into_owned(), host.messages, host.closed)
}

fn split<'a>(bytes: &'a [u8], cuts: &[Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

/// Text that often looks like an end of data.
fn body_chunks() -> impl Strategy<Value = Vec<Bytes>> {
    let tokens: Vec<&'static [u8]> =
        vec![b"\r\n", b".", b"\r", b"\n", b"a", b"Subject: x", b"..", b"\r\n.\r\n", b"\r\n."];
    let chunk = vec(select(tokens), 0..8).prop_map(|tokens| Bytes::from(tokens.concat()));
    vec(chunk, 0..6)
}

/// The expected message: the same with whole line ends.
fn mended(chunks: &[Bytes], complete_last_line: bool) -> Vec<u8> {
    let text = chunks.concat();
    let mut out = Vec::new();
    for (at, &octet) in text.iter().enumerate() {
        match octet {
            b'\r' => out.extend_from_slice(b"\r\n"),
            b'\n' if at > 0 && text[at - 1] == b'\r' => {}
            b'\n' => out.extend_from_slice(b"\r\n"),
            _ => out.push(octet),
        }
    }
    if complete_last_line && !out.is_empty() && !out.ends_with(b"\r\n") {
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Cases for a few seconds, or the number in `PROPTEST_CASES`.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(2000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_of_any_session_gives_the_same_replies_and_bodies(
        config in config(),
        pieces in vec(piece(), 0..40),
        cuts in vec(any::<Index>(), 0..30),
    ) {
        let wire = pieces.concat();
        let whole = replay(&config, [&wire[..]]);
        prop_assert_eq!(&replay(&config, split(&wire, &cuts)), &whole);
        prop_assert_eq!(&replay(&config, wire.chunks(1)), &whole);
    }

    #[test]
    fn what_a_client_sends_is_what_a_server_keeps(
        chunks in body_chunks(),
        transfer in select(vec![Transfer::Data, Transfer::Bdat, Transfer::BdatAtOnce]),
        lmtp in any::<bool>(),
        streamed in any::<bool>(),
        names in vec(select(vec!["b", "unknown", "full", "broken", "c"]), 1..6),
        cuts in vec(any::<Index>(), 0..6),
    ) {
        let protocol = if lmtp { Protocol::Lmtp } else { Protocol::Smtp };
        let mut host = Host::new(Config { protocol, ..Config::new("mx.example.org") });
        host.read(b"");
        let config = client::Config { protocol, transfer, ..client::Config::new("client.example") };
        let mut client = client::Machine::new(config).unwrap();
        let mut input = BytesMut::new();
        let mut outcome = None;
        let rcpts: Vec<_> = names.iter()
            .map(|name| RcptTo::new(ForwardPath::parse(&format!("<{name}@example.org>")).unwrap()))
            .collect();
        let body = if streamed { MessageBody::Streamed } else { MessageBody::Whole(chunks.clone()) };
        loop {
            input.extend_from_slice(&std::mem::take(&mut host.output));
            match client.step(&mut input).unwrap() {
                Event::NeedInput => {
                    let wire = client.take_output().concat();
                    prop_assert!(!wire.is_empty(), "nobody has anything to say");
                    for read in split(&wire, &cuts) {
                        host.read(read);
                    }
                }
                Event::Ready => client.send(MailFrom::new(ReversePath::Null), rcpts.clone(), body.clone()),
                Event::SendBody => {
                    chunks.iter().for_each(|chunk| client.body(chunk.clone()));
                    client.body_end();
                }
                Event::Sent(sent) => {
                    outcome = Some(sent);
                    client.quit();
                }
                Event::Closed => break,
                Event::TlsReady => unreachable!(),
            }
        }
        let outcome = outcome.unwrap();
        for (name, recipient) in names.iter().zip(&outcome.recipients) {
            let any_kept = names.iter().any(|name| matches!(*name, "b" | "c"));
            let kept = match *name {
                "b" | "c" => true,
                // SMTP has one verdict for all, positive if any is.
                "broken" => !lmtp && any_kept,
                _ => false,
            };
            prop_assert_eq!(recipient.is_delivered(), kept, "{}: {:?}", name, recipient);
        }
        let accepted = names.iter().any(|name| matches!(*name, "b" | "c" | "broken"));
        prop_assert_eq!(host.messages.len(), usize::from(accepted));
        if accepted {
            let chunked = transfer != Transfer::Data && !streamed;
            prop_assert_eq!(host.messages[0].body.as_deref(), Ok(&mended(&chunks, !chunked)[..]));
        }
    }

    #[test]
    fn parsers_take_any_octets(octets in vec(any::<u8>(), 0..200), text in "\\PC{0,80}") {
        let _ = command::parse(&octets);
        for verb in ["MAIL FROM:", "RCPT TO:", "MAIL FROM:<", "RCPT TO:<a@b> ORCPT=", "EHLO ", "BDAT ", "AUTH "] {
            let _ = command::parse([verb.as_bytes(), &octets].concat().as_slice());
            let _ = command::parse(format!("{verb}{text}").as_bytes());
        }
        let _ = Address::parse(&text);
        let _ = ReplyParser::default().next(&mut BytesMut::from(&octets[..]));
    }

    #[test]
    fn an_address_survives_writing_and_reading(local in "[ -~é]{1,20}", domain in select(vec!["x", "a.example", "[192.0.2.1]", "[IPv6:::1]"])) {
        let quoted: String = local.chars().flat_map(|c| match c {
            '"' | '\\' => vec!['\\', c],
            c => vec![c],
        }).collect();
        let address = Address::parse(&format!("\"{quoted}\"@{domain}")).unwrap();
        prop_assert_eq!(address.local_part(), &local);
        prop_assert_eq!(&Address::parse(&address.to_string()).unwrap(), &address);
        for path in [ReversePath::Address(address), ReversePath::parse(&format!("<\"{quoted}\">")).unwrap()] {
            let line = MailFrom { smtputf8: true, ..MailFrom::new(path) };
            let text = line.to_string();
            prop_assert_eq!(command::parse(text.as_bytes()), Ok(command::Command::Mail(line)));
        }
    }

    #[test]
    fn a_reply_survives_writing_and_reading(code in 200..600_u16, lines in vec("[ -~é]{0,700}", 1..4), cuts in vec(any::<Index>(), 0..5)) {
        let reply = Reply::new(code, "", lines.join("\n"));
        let mut wire = Vec::new();
        reply.write(&mut wire);
        let mut parser = ReplyParser::default();
        let mut input = BytesMut::new();
        let mut read = None;
        for part in split(&wire, &cuts) {
            input.extend_from_slice(part);
            read = parser.next(&mut input).unwrap().or(read);
        }
        let read = read.expect("a whole reply");
        prop_assert_eq!(read.code(), code);
        // Text that begins like an enhanced code is read as one.
        if read.enhanced().is_none() {
            prop_assert_eq!(read.text().replace('\n', ""), lines.concat());
        }
    }
}
