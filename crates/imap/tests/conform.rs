//! Replays the dialogues of `tests/conform` on the bare state machine, in one piece and octet by octet, and, with feature `tokio`, over a socket.
//!
//! `C: text` is sent with CRLF, `C! text` as it stands; `S: line` is the next line of the answer, with `…` at its end the beginning of it; `S:
//! closed` is the end. `\r`, `\n` and `\xNN` are escapes. `@remote` comes from another machine, `@starttls` offers TLS, `@scram`
//! SCRAM-SHA-256, `@bound` with that -PLUS; `@dot` and `@inbox` have names with `.` and `INBOX.`.

use std::path::Path;

use posthaste_imap::session::{ImapConfig, NameForm};

use crate::common::Host;

struct Trace {
    name: String,
    trusted: bool,
    scram: bool,
    bound: bool,
    starttls: bool,
    names: NameForm,
    steps: Vec<Step>,
}

enum Step {
    Send(Vec<u8>),
    Expect(Vec<u8>),
    Closed,
}

fn unescape(text: &str) -> Vec<u8> {
    let (mut octets, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('\\') {
        octets.extend_from_slice(before.as_bytes());
        let (octet, used) = match after.as_bytes().first() {
            Some(b'r') => (b'\r', 1),
            Some(b'n') => (b'\n', 1),
            Some(b'x') => (u8::from_str_radix(&after[1..3], 16).unwrap(), 3),
            _ => (b'\\', 0),
        };
        octets.push(octet);
        rest = &after[used..];
    }
    octets.extend_from_slice(rest.as_bytes());
    octets
}

fn traces() -> Vec<Trace> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conform");
    let traces: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| read(&entry.unwrap().path())).collect();
    assert!(traces.len() >= 8, "only {} traces found", traces.len());
    traces
}

fn read(path: &Path) -> Trace {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let (names, steps) = (NameForm::Slash, Vec::new());
    let mut trace = Trace { name, trusted: true, scram: false, bound: false, starttls: false, names, steps };
    for line in std::fs::read_to_string(path).unwrap().lines() {
        match line.split_at_checked(2).unwrap_or((line, "")) {
            ("", _) | ("# ", _) => {}
            ("C:", text) => {
                trace.steps.push(Step::Send([unescape(text.strip_prefix(' ').unwrap_or("")), b"\r\n".into()].concat()))
            }
            ("C!", text) => trace.steps.push(Step::Send(unescape(text.strip_prefix(' ').unwrap_or("")))),
            ("S:", " closed") => trace.steps.push(Step::Closed),
            ("S:", text) => trace.steps.push(Step::Expect(unescape(text.strip_prefix(' ').unwrap_or("")))),
            _ if line == "@remote" => trace.trusted = false,
            _ if line == "@scram" => trace.scram = true,
            _ if line == "@bound" => trace.bound = true,
            _ if line == "@starttls" => trace.starttls = true,
            _ if line == "@dot" => trace.names = NameForm::Dot,
            _ if line == "@inbox" => trace.names = NameForm::DotBelowInbox,
            _ => panic!("{}: {line}", trace.name),
        }
    }
    trace
}

fn config(trace: &Trace) -> ImapConfig {
    let mut config = ImapConfig::new("mail.example.org");
    (config.starttls, config.compress, config.names) = (trace.starttls, true, trace.names);
    config
}

fn check(name: &str, expected: &[u8], output: &mut Vec<u8>) {
    let shown = |text: &[u8]| text.escape_ascii().to_string();
    let Some(end) = output.windows(2).position(|pair| pair == b"\r\n") else {
        panic!("{name}: no {}, but {}", shown(expected), shown(output))
    };
    let line: Vec<u8> = output.drain(..end + 2).take(end).collect();
    let fits = match expected.strip_suffix("…".as_bytes()) {
        Some(start) => line.starts_with(start),
        None => line == expected,
    };
    assert!(fits, "{name}: expected\n{}\ngot\n{}\n{}", shown(expected), shown(&line), shown(output));
}

fn replay(piece: usize) {
    for trace in traces() {
        let mut host = Host::offering(config(&trace), trace.trusted, trace.scram);
        host.machine.bind_channel(trace.bound.then_some([9; 32]));
        for step in &trace.steps {
            match step {
                Step::Send(octets) => {
                    assert!(host.output.is_empty(), "{}: too much: {}", trace.name, host.output.escape_ascii());
                    octets.chunks(piece).for_each(|octets| host.read(octets));
                }
                Step::Expect(expected) => check(&trace.name, expected, &mut host.output),
                Step::Closed => assert!(host.closed, "{}: not closed", trace.name),
            }
        }
        assert!(host.output.is_empty(), "{}: too much: {}", trace.name, host.output.escape_ascii());
    }
}

#[test]
fn dialogues_on_the_state_machine() {
    replay(usize::MAX);
}

#[test]
fn dialogues_octet_by_octet() {
    replay(1);
}

#[cfg(feature = "tokio")]
mod over_a_socket {
    use std::sync::Arc;
    use std::time::Duration;

    use posthaste_imap::driver::{Authenticator, ImapService};
    use posthaste_imap::session::{ImapCredentials, LoginRefusal};
    use posthaste_net::{Connection, CurrentPhase, Grant, Peer, Service, Stream};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::*;
    use crate::common;

    struct Judge;

    impl Authenticator for Judge {
        async fn login(&self, _: &Peer, credentials: ImapCredentials) -> Result<Grant, LoginRefusal> {
            common::judge(&credentials).map(Grant::from)
        }
    }

    #[tokio::test]
    async fn dialogues_over_a_socket() {
        // Without a certificate there is no handshake, and a nonce of SCRAM is another each time.
        for trace in traces().into_iter().filter(|trace| !trace.starttls && !trace.scram) {
            let (ours, mut client) = UnixStream::pair().unwrap();
            let remote = "192.0.2.7:1000".parse().unwrap();
            let local = "192.0.2.1:143".parse().unwrap();
            let peer = if trace.trusted { Peer::Unix } else { Peer::Tcp { remote, local } };
            let service = ImapService::new(Arc::new(common::store()), Judge, config(&trace));
            let phase = Arc::new(CurrentPhase::default());
            let connection = Connection { id: 1, stream: Stream::Unix(ours), peer, phase };
            let serving = tokio::spawn(async move { service.serve(connection).await });
            let mut output = Vec::new();
            let mut greeting = Vec::new();
            for step in &trace.steps {
                match step {
                    Step::Send(octets) => client.write_all(octets).await.unwrap(),
                    Step::Closed => assert_eq!(client.read_buf(&mut output).await.unwrap(), 0, "{}", trace.name),
                    Step::Expect(expected) => {
                        while greeting.is_empty() || !output.windows(2).any(|pair| pair == b"\r\n") {
                            let read = client.read_buf(&mut output);
                            let read = tokio::time::timeout(Duration::from_secs(60), read).await;
                            assert_ne!(read.unwrap().unwrap(), 0, "{}: {}", trace.name, expected.escape_ascii());
                            if greeting.is_empty() && output.ends_with(b"\r\n") {
                                greeting = std::mem::take(&mut output);
                                assert!(greeting.starts_with(b"* OK [CAPABILITY IMAP4rev1 "));
                            }
                        }
                        check(&trace.name, expected, &mut output);
                    }
                }
            }
            assert!(output.is_empty(), "{}: too much", trace.name);
            drop(client);
            serving.await.unwrap();
        }
    }
}
