//! Every message of the corpus goes through a real server by SMTP and comes out of the Maildir unchanged, except for
//! trace fields and line ends. Or it is refused with the reply that `docs/smtp.md` names.
//!
//! A file with no CR is text as a mail client has it, and goes over the wire with CRLF. Any other file is taken to be in
//! wire form already and is sent as it is. Refused are, by default:
//!
//! | what is in it | reply | why |
//! | --- | --- | --- |
//! | a CR or LF that is not part of CRLF | 550 5.6.11 | programs differ in what it means, which is how messages are smuggled |
//! | NUL | 550 5.6.0 | RFC 5322 section 4 forbids it, and many programs end the text there |
//! | 50 or more Received fields | 554 5.4.6 | a loop |

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::support::{ANYBODY, Reply, Server};
use posthaste_message::{HeaderScan, MAX_HOPS};

#[test]
fn every_message_of_the_corpus_comes_out_as_it_went_in() {
    let corpus = corpus_dir();
    let files = messages_in(&corpus);
    assert!(files.len() >= 40, "only {} messages in {}", files.len(), corpus.display());
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let (mut kept, mut refused) = (Vec::new(), 0);
    for (number, file) in files.iter().enumerate() {
        let wire = to_wire(std::fs::read(file).unwrap());
        let user = format!("m{number}");
        let to = format!("{user}@example.org");
        let reply = client.try_message("sender@example.net", &[&to], &wire).unwrap();
        match reasons_to_refuse(&wire).as_slice() {
            [] => {
                assert_eq!(reply.code, 250, "{}: {reply:?}", file.display());
                kept.push((file, user, wire));
            }
            reasons => {
                assert_reply_is_one_of(&reply, reasons, file);
                refused += 1;
            }
        }
    }
    for (file, user, wire) in &kept {
        let stored = &server.wait_for_mail("example.org", user, 1)[0];
        assert_eq!(to_crlf(stored.without_trace()), *wire, "{}", file.display());
        assert_sizes_in_name(&stored.name, &stored.bytes);
    }
    server.stop();
    // Past the capture of test output: which corpus was used matters also when all is well.
    let _ = writeln!(
        std::io::stderr(),
        "corpus: {} messages of {} kept unchanged, {refused} refused as documented",
        kept.len(),
        corpus.display()
    );
}

/// `POSTHASTE_CORPUS`, else the larger corpus beside the repository, else the project's own.
pub fn corpus_dir() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if let Some(named) = std::env::var_os("POSTHASTE_CORPUS").filter(|value| !value.is_empty()) {
        return PathBuf::from(named);
    }
    let beside = repository.join("../shared/corpus");
    if beside.is_dir() { beside } else { repository.join("tests/corpus") }
}

pub fn messages_in(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "eml") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Data between DATA and the final dot, dots not yet doubled. It ends in CRLF unless it is empty.
pub fn to_wire(file: Vec<u8>) -> Vec<u8> {
    let mut wire = if file.contains(&b'\r') { file } else { to_crlf(&file) };
    if !wire.is_empty() && !wire.ends_with(b"\r\n") {
        wire.extend_from_slice(b"\r\n");
    }
    wire
}

/// Each LF becomes CRLF; input that has CRs already is returned as it is.
pub fn to_crlf(text: &[u8]) -> Vec<u8> {
    if text.contains(&b'\r') {
        return text.to_vec();
    }
    let mut wire = Vec::with_capacity(text.len() + text.len() / 40);
    for line in text.split_inclusive(|&b| b == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(line) => wire.extend_from_slice(&[line, b"\r\n"].concat()),
            None => wire.extend_from_slice(line),
        }
    }
    wire
}

fn reasons_to_refuse(wire: &[u8]) -> Vec<&'static str> {
    let crlf_removed: Vec<u8> = String::from_utf8_lossy(wire).replace("\r\n", "").into_bytes();
    let mut reasons = Vec::new();
    if crlf_removed.contains(&b'\r') || crlf_removed.contains(&b'\n') {
        reasons.push("550 5.6.11 ");
    }
    if wire.contains(&0) {
        reasons.push("550 5.6.0 ");
    }
    let mut header = HeaderScan::default();
    header.push(wire);
    if header.finish().hops >= MAX_HOPS {
        reasons.push("554 5.4.6 ");
    }
    reasons
}

#[track_caller]
fn assert_reply_is_one_of(reply: &Reply, reasons: &[&str], file: &Path) {
    let line = format!("{} {}", reply.code, reply.text);
    assert!(reasons.iter().any(|reason| line.starts_with(reason)), "{}: {line}, not {reasons:?}", file.display());
}

/// `S=` is the size of the file, `W=` its size with CRLF line ends.
#[track_caller]
fn assert_sizes_in_name(name: &str, bytes: &[u8]) {
    let size = |key: &str| {
        let value = name.split([',', ':']).find_map(|part| part.strip_prefix(key));
        value.and_then(|value| value.parse::<usize>().ok()).unwrap_or_else(|| panic!("{key} in {name}"))
    };
    assert_eq!(size("S="), bytes.len(), "{name}");
    assert_eq!(size("W="), to_crlf(bytes).len(), "{name}");
}
