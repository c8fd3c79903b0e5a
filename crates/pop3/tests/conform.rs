//! Replays the dialogues of `tests/conform` on the bare state machine, in one piece and octet by octet.
//!
//! `C: text` is sent with CRLF, `C! text` as it stands; `S: line` is the next line of the answer, with `…` at its end the beginning of it; `S:
//! closed` is the end. `\r`, `\n`, `\xNN` and `\\` are escapes. `@remote` comes from another machine, `@stls` offers TLS, `@removes` removes what is
//! deleted, `@fails` fails to, `@scram` offers SCRAM-SHA-256.

use std::path::Path;

use posthaste_pop3::session::Pop3Config;

use crate::common::{Host, Removal};

struct Trace {
    name: String,
    trusted: bool,
    scram: bool,
    stls: bool,
    removal: Removal,
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
            _ => (b'\\', 1),
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
    let mut trace =
        Trace { name, trusted: true, scram: false, stls: false, removal: Removal::Impossible, steps: Vec::new() };
    for line in std::fs::read_to_string(path).unwrap().lines() {
        match line.split_at_checked(2).unwrap_or((line, "")) {
            ("", _) | ("# ", _) => {}
            ("C:", text) => {
                trace.steps.push(Step::Send([unescape(text.strip_prefix(' ').unwrap_or("")), b"\r\n".into()].concat()))
            }
            ("C!", text) => trace.steps.push(Step::Send(unescape(text.strip_prefix(' ').unwrap_or("")))),
            ("S:", " closed") => trace.steps.push(Step::Closed),
            ("S:", text) => trace.steps.push(Step::Expect(unescape(text.strip_prefix(' ').unwrap_or("")))),
            _ => match line {
                "@remote" => trace.trusted = false,
                "@scram" => trace.scram = true,
                "@stls" => trace.stls = true,
                "@removes" => trace.removal = Removal::Works,
                "@fails" => trace.removal = Removal::Fails,
                _ => panic!("{}: {line}", trace.name),
            },
        }
    }
    trace
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
        let mut config = Pop3Config::new("mail.example.org");
        config.stls = trace.stls;
        let mut host = Host::offering(config, trace.trusted, trace.scram);
        host.removal = trace.removal;
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
