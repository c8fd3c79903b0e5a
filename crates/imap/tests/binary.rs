//! BINARY[n] has the octets that the reader of MIME decodes, for all parts of the corpus.

use std::path::{Path, PathBuf};

use posthaste_imap::session::ImapConfig;
use posthaste_mailstore::FakeMessage;
use posthaste_message::mime::{Encoding, Kind, Message, Part};

use crate::common::Host;

/// `POSTHASTE_CORPUS`, else the larger corpus beside the repository, else the project's own.
fn corpus() -> Vec<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let beside = repository.join("../shared/corpus");
    let named = std::env::var_os("POSTHASTE_CORPUS").filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = named.unwrap_or(if beside.is_dir() { beside } else { repository.join("tests/corpus") });
    let (mut files, mut dirs) = (Vec::new(), vec![dir]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
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

fn to_crlf(text: Vec<u8>) -> Vec<u8> {
    if text.contains(&b'\r') {
        text
    } else {
        text.split_inclusive(|&octet| octet == b'\n').fold(Vec::new(), |wire, line| {
            let line = line.strip_suffix(b"\n").map_or(line.to_vec(), |line| [line, b"\r\n"].concat());
            [wire, line].concat()
        })
    }
}

/// Parts without parts, by their numbers. `is_entity`: the root of a message.
fn leaves<'m, 'a>(part: Part<'m, 'a>, number: &[u32], is_entity: bool, found: &mut Vec<(Vec<u32>, Part<'m, 'a>)>) {
    let below = |at: usize| [number, &[at as u32 + 1]].concat();
    match part.kind() {
        Kind::Multipart => part.children().enumerate().for_each(|(at, child)| leaves(child, &below(at), false, found)),
        Kind::Message if !is_entity => {
            part.children().take(1).for_each(|root| leaves(root, number, true, found));
        }
        Kind::Message => {}
        Kind::Leaf => found.push((if is_entity { below(0) } else { number.to_vec() }, part)),
    }
}

fn literal(octets: &[u8], mark: &str) -> Vec<u8> {
    match octets.len() {
        0 => b"\"\"".to_vec(),
        len => [format!("{mark}{{{len}}}\r\n").as_bytes(), octets].concat(),
    }
}

/// True for base64 that nobody has damaged.
fn is_clean(encoding: Encoding, body: &[u8]) -> bool {
    let is_known = |octet: &u8| octet.is_ascii_alphanumeric() || b"+/= \t\r\n".contains(octet);
    encoding != Encoding::Base64 || body.iter().all(is_known)
}

/// The answer about one part.
fn expected(number: &str, part: &Part<'_, '_>) -> (Vec<u8>, bool) {
    let (encoding, decoded) = (part.encoding(), part.decoded());
    let named = part.header().first("Content-Transfer-Encoding");
    let is_unknown = named.is_some_and(|named| Encoding::is_unknown(named.value));
    if is_unknown || encoding == Encoding::Uuencode || !is_clean(encoding, part.body()) {
        let answer = format!(
            "(BINARY.SIZE[{number}] 0 BINARY[{number}] NIL BINARY[{number}]<3> NIL)\r\n\
             a NO [UNKNOWN-CTE] Some parts cannot be decoded\r\n"
        );
        return (answer.into_bytes(), false);
    }
    let mark = if encoding != Encoding::Identity && decoded.contains(&0) { "~" } else { "" };
    let some = &decoded[decoded.len().min(3)..decoded.len().min(8)];
    let size = format!("(BINARY.SIZE[{number}] {} BINARY[{number}] ", decoded.len());
    let origin = format!(" BINARY[{number}]<3> ");
    let end = b")\r\na OK FETCH completed\r\n";
    (
        [size.as_bytes(), &literal(&decoded, mark), origin.as_bytes(), &literal(some, mark), end].concat(),
        encoding != Encoding::Identity,
    )
}

#[test]
fn parts_of_the_corpus_come_decoded() {
    let (mut decoded, mut count) = (0, 0);
    for file in corpus() {
        let wire = to_crlf(std::fs::read(&file).unwrap());
        // A message with a NUL is not taken.
        if wire.is_empty() || wire.contains(&0) {
            continue;
        }
        let mut host = Host::new(ImapConfig::new("mail.example.org"), true);
        host.store.create("Corpus");
        host.store.add("Corpus", FakeMessage::new(wire.clone()));
        host.read(b"x LOGIN ann secret\r\ny SELECT Corpus\r\n");
        let message = Message::parse(&wire);
        let mut parts = Vec::new();
        leaves(message.root(), &[], true, &mut parts);
        for (number, part) in parts.iter().take(50) {
            let number = number.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
            host.output.clear();
            let items = format!("BINARY.SIZE[{number}] BINARY.PEEK[{number}] BINARY.PEEK[{number}]<3.5>");
            host.read(format!("a FETCH 1 ({items})\r\n").as_bytes());
            let (expected, is_decoded) = expected(&number, part);
            let found = host.output.strip_prefix(b"* 1 FETCH ").unwrap();
            let shown = |octets: &[u8]| octets[..octets.len().min(300)].escape_ascii().to_string();
            assert!(found == expected, "{} {number}:\n{}\n{}", file.display(), shown(found), shown(&expected));
            (count, decoded) = (count + 1, decoded + usize::from(is_decoded));
        }
    }
    assert!(count >= 40 && decoded >= 3, "{count} parts, {decoded} of them decoded");
}
