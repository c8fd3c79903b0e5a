//! Measures parsing of messages: MB/s with all address fields, subject, date, ids and texts decoded, compared with
//! mail-parser, in turns.
//!
//! `cargo bench -p posthaste-message --bench mime -- DIR [ROUNDS]` reads the `.eml` files below DIR into memory first. Without arguments, and under
//! `cargo test`, one round over `tests/corpus`, so that it cannot rot. `-- ours DIR 20` or `-- theirs DIR 20` runs one alone: for counting instructions.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mail_parser::{HeaderName, MessageParser, PartType};
use posthaste_message::mime::{Kind, Message, in_reply_to, message_id, references};

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let only = words.first().filter(|word| matches!(word.as_str(), "ours" | "theirs")).cloned();
    words.drain(..usize::from(only.is_some()));
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus");
    let dir = words.first().map_or(own, PathBuf::from);
    let rounds: u32 = words.get(1).map_or(1, |rounds| rounds.parse().expect("a number of rounds"));
    let mail = read(&dir);
    let octets: usize = mail.iter().map(Vec::len).sum();
    let parser = parser();
    let (mut ours_took, mut theirs_took) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..rounds {
        if only.as_deref() != Some("theirs") {
            let start = Instant::now();
            mail.iter().for_each(|message| _ = black_box(ours(message)));
            ours_took += start.elapsed();
        }
        if only.as_deref() != Some("ours") {
            let start = Instant::now();
            mail.iter().for_each(|message| _ = black_box(theirs(&parser, message)));
            theirs_took += start.elapsed();
        }
    }
    for (name, took) in [("ours", ours_took), ("mail-parser", theirs_took)] {
        if !took.is_zero() {
            let rate = octets as f64 * f64::from(rounds) / took.as_secs_f64() / 1e6;
            let each = took.as_secs_f64() * 1e6 / f64::from(rounds) / mail.len() as f64;
            println!(
                "{name}: {rate:.0} MB/s, {each:.1} us a message, {} messages, {octets} octets, {rounds} rounds",
                mail.len()
            );
        }
    }
}

fn read(dir: &Path) -> Vec<Vec<u8>> {
    let (mut mail, mut dirs) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "eml") {
                mail.push(fs::read(path).expect("a readable file"));
            }
        }
    }
    mail
}

/// Octets of all that was decoded.
fn ours(bytes: &[u8]) -> usize {
    let message = Message::parse(bytes);
    let charset = message.header_charset();
    let mut octets = 0;
    for field in message.root().header().fields() {
        octets += match field.name.len() {
            2 if field.is("To") || field.is("Cc") => field.addresses(charset).count(),
            4 if field.is("From") => field.addresses(charset).count(),
            4 if field.is("Date") => usize::from(field.date().is_some()),
            7 if field.is("Subject") || field.is("List-Id") => field.text(charset).len(),
            10 if field.is("Message-ID") => usize::from(message_id(field.value).is_some()),
            10 if field.is("References") => references(field.value).len(),
            11 if field.is("In-Reply-To") => in_reply_to(field.value).len(),
            _ => 0,
        };
    }
    for part in message.parts().filter(|part| part.kind() == Kind::Leaf) {
        octets += part.file_name().map_or(0, |name| name.len());
        octets += if part.media_type().starts_with("text/") { part.text().len() } else { part.decoded().len() };
    }
    octets
}

/// The parser as the index used it.
fn parser() -> MessageParser {
    MessageParser::new()
        .with_mime_headers()
        .with_date_headers()
        .with_address_headers()
        .with_message_ids()
        .header_text(HeaderName::Subject)
        .header_text(HeaderName::ListId)
        .header_text(HeaderName::ListPost)
        .header_received(HeaderName::Received)
        .default_header_raw()
}

fn theirs(parser: &MessageParser, bytes: &[u8]) -> usize {
    let Some(message) = parser.parse(bytes) else { return 0 };
    message
        .parts
        .iter()
        .map(|part| match &part.body {
            PartType::Text(text) | PartType::Html(text) => text.len(),
            PartType::Binary(octets) | PartType::InlineBinary(octets) => octets.len(),
            _ => 0,
        })
        .sum()
}
