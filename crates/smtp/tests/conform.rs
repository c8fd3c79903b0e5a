//! Replays the dialogues of `tests/conform` on the bare state machine and, with feature `tokio`, over a socket, at once and in
//! small packets with pauses.
//!
//! A line `C: text` is sent with CRLF, `C! text` unchanged. `S: code text` is a reply that begins so, `S: code ~text`
//! one that contains the text (`!~`: does not), `S: closed` the end of the connection. `\r`, `\n`, `\0`, `\xNN` and
//! `\\` are escapes. `@name value` sets a limit or the protocol.

mod common;
#[path = "common/escapes.rs"]
mod escapes;
#[cfg(feature = "tokio")]
#[path = "common/rules.rs"]
mod rules;

use std::path::Path;

use bytes::BytesMut;
use common::Host;
use escapes::unescape;
use posthaste_smtp::reply::ReplyParser;
use posthaste_smtp::server::Config;
use posthaste_smtp::{Protocol, Reply};

struct Trace {
    name: String,
    config: Config,
    steps: Vec<Step>,
}

enum Step {
    Send(Vec<u8>),
    Expect(String),
    Closed,
}

fn traces() -> Vec<Trace> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conform");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let traces: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "trace")).map(|p| read(&p)).collect();
    assert!(traces.len() >= 10, "only {} traces found", traces.len());
    traces
}

fn read(path: &Path) -> Trace {
    let mut trace = Trace {
        name: path.file_name().unwrap().to_string_lossy().into_owned(),
        config: Config::new("mx.example.org"),
        steps: Vec::new(),
    };
    for line in std::fs::read_to_string(path).unwrap().lines() {
        match line.split_at_checked(2).unwrap_or((line, "")) {
            ("", _) | ("# ", _) => {}
            ("C:" | "C!", rest) => {
                let (text, expected) = rest.split_once("  S: ").unwrap_or((rest, ""));
                let mut bytes = unescape(text.trim_start_matches(' ').trim_end_matches(' '));
                if line.starts_with("C:") {
                    bytes.extend_from_slice(b"\r\n");
                }
                trace.steps.push(Step::Send(bytes));
                if !expected.is_empty() {
                    trace.steps.push(Step::Expect(expected.trim().to_owned()));
                }
            }
            ("S:", " closed") => trace.steps.push(Step::Closed),
            ("S:", expected) => trace.steps.push(Step::Expect(expected.trim().to_owned())),
            (_, _) if line.starts_with('@') => configure(&mut trace.config, &line[1..]),
            _ => panic!("{}: {line}", trace.name),
        }
    }
    trace
}

fn configure(config: &mut Config, setting: &str) {
    match setting.split_once(' ').unwrap() {
        ("dsn", value) => config.dsn = value.parse().unwrap(),
        ("lenient_commands", value) => config.lenient_commands = value.parse().unwrap(),
        ("protocol", "lmtp") => config.protocol = Protocol::Lmtp,
        ("message_bytes", value) => config.limits.message_bytes = value.parse().unwrap(),
        ("recipients", value) => config.limits.recipients = value.parse().unwrap(),
        ("deferred_recipients", value) => config.limits.deferred_recipients = value.parse().unwrap(),
        ("forbidden_commands", "-") => config.forbidden_commands.clear(),
        ("errors", value) => config.limits.errors = value.parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn check(name: &str, expected: &str, reply: &Reply) {
    let fits = match (expected.split_once(" !~"), expected.split_once(" ~")) {
        (Some((code, text)), _) => reply.code().to_string() == code && !reply.text().contains(text),
        (None, Some((code, text))) => reply.code().to_string() == code && reply.text().contains(text),
        (None, None) => reply.to_string().starts_with(expected),
    };
    assert!(fits, "{name}: expected {expected:?}, got {reply}");
}

#[test]
fn dialogues_on_the_state_machine() {
    for trace in traces() {
        let mut host = Host::new(trace.config.clone());
        host.read(b"");
        let mut parser = ReplyParser::default();
        let mut replies = BytesMut::new();
        for step in &trace.steps {
            match step {
                Step::Send(bytes) => {
                    assert!(replies.is_empty(), "{}: a reply too many: {replies:?}", trace.name);
                    host.read(bytes);
                }
                Step::Expect(expected) => {
                    replies.extend_from_slice(&std::mem::take(&mut host.output));
                    let reply = parser.next(&mut replies).unwrap();
                    check(&trace.name, expected, &reply.unwrap_or_else(|| panic!("{}: no {expected}", trace.name)));
                }
                Step::Closed => assert!(host.closed, "{}: not closed", trace.name),
            }
        }
        assert!(replies.is_empty() && host.output.is_empty(), "{}: a reply too many", trace.name);
    }
}

#[cfg(feature = "tokio")]
mod over_a_socket {
    use super::rules::Rules;
    use super::*;
    use posthaste_smtp::driver::Server;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn dialogues_over_tcp() {
        replay(|bytes| vec![bytes]).await;
    }

    /// Late input is still a part of the dialogue: each line comes in two packets, and the server waits for each.
    #[tokio::test]
    async fn dialogues_in_many_packets() {
        replay(|bytes| {
            let lines = bytes.split_inclusive(|&b| b == b'\n');
            lines.flat_map(|line| <[&[u8]; 2]>::from(line.split_at(line.len() / 2))).collect()
        })
        .await;
    }

    async fn replay(packets: fn(&[u8]) -> Vec<&[u8]>) {
        for trace in traces() {
            let builder = Server::builder().config(trace.config.clone());
            let server = builder.listen("127.0.0.1:0").start(Rules).await.unwrap();
            let mut stream = TcpStream::connect(server.local_addrs()[0]).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let mut parser = ReplyParser::default();
            let mut replies = BytesMut::new();
            for step in &trace.steps {
                match step {
                    Step::Send(bytes) => {
                        for (index, packet) in packets(bytes).into_iter().enumerate() {
                            if index > 0 {
                                tokio::time::sleep(Duration::from_millis(2)).await;
                            }
                            // If the server has closed within the step, the trace's next expectation shows it.
                            let _ = stream.write_all(packet).await;
                        }
                    }
                    Step::Expect(expected) => {
                        let reply = loop {
                            if let Some(reply) = parser.next(&mut replies).unwrap() {
                                break reply;
                            }
                            let reading = tokio::time::timeout(Duration::from_secs(60), stream.read_buf(&mut replies));
                            let read = reading.await.unwrap_or_else(|_| panic!("{}: no {expected}", trace.name));
                            assert_ne!(read.unwrap(), 0, "{}: closed instead of {expected}", trace.name);
                        };
                        check(&trace.name, expected, &reply);
                    }
                    Step::Closed => assert_eq!(stream.read_buf(&mut replies).await.unwrap(), 0, "{}", trace.name),
                }
            }
            drop(stream);
            assert!(server.shutdown(Duration::from_secs(60)).await, "{}: session left over", trace.name);
        }
    }
}

#[test]
fn every_reply_of_the_dialogues_is_in_the_manual() {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/smtp.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let mut checked = 0;
    for trace in traces() {
        for step in trace.steps {
            let Step::Expect(reply) = step else { continue };
            let mut words = reply.split_whitespace();
            let (Some(code), Some(enhanced)) = (words.next(), words.next().filter(|word| word.contains('.'))) else {
                continue;
            };
            let reply = format!("{code} {enhanced}");
            assert!(manual.contains(&reply), "{reply}, as in {}, is missing in docs/smtp.md", trace.name);
            checked += 1;
        }
    }
    assert!(checked > 40, "only {checked} replies found");
}
