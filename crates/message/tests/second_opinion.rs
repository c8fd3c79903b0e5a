//! Two other readers over all corpora: mail-parser, and Python's `email` where there is one (`CI_REQUIRE_PEERS=1`: there must be).
//!
//! Every difference falls into a kind that was judged once; the kinds with their reasons are [`KINDS`]. A difference of no kind fails the test, and so
//! does a kind that nothing shows any more: what the project's own corpus lacks is in [`OWN`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mail_parser::{MessageParser, MimeHeaders, PartType};
use posthaste_message::mime::{Address, Encoding, Kind, Message, message_id};

/// What a reader makes of a message.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read {
    subject: String,
    /// Addresses of From, To and Cc, in lower case, each once.
    addresses: BTreeSet<String>,
    date: Option<i64>,
    message_id: String,
    /// Media type and octets of all leaves; of text without white space, in which readers differ.
    leaves: Vec<(String, Vec<u8>)>,
}

fn ours(bytes: &[u8]) -> Read {
    let message = Message::parse(bytes);
    let charset = message.header_charset();
    let mut read = Read::default();
    for field in message.root().header().fields() {
        match String::from_utf8_lossy(field.name).to_ascii_lowercase().as_str() {
            "subject" if read.subject.is_empty() => read.subject = squeezed(&field.text(charset)),
            "from" | "to" | "cc" => read.addresses.extend(addresses(field.addresses(charset))),
            "date" if read.date.is_none() => read.date = field.date().map(|date| date.unix_secs()),
            "message-id" if read.message_id.is_empty() => read.message_id = message_id(field.value).unwrap_or_default(),
            _ => {}
        }
    }
    for part in message.parts().filter(|part| part.kind() == Kind::Leaf) {
        let media_type = part.media_type().into_owned();
        let is_text = media_type.starts_with("text/") || media_type.starts_with("multipart/");
        let octets = if is_text { squeezed(&part.text()).into_bytes() } else { part.decoded().into_owned() };
        read.leaves.push((media_type, octets));
    }
    read
}

fn addresses(found: impl Iterator<Item = Address>) -> impl Iterator<Item = String> {
    found.filter_map(|address| match address {
        Address::Mailbox { address, .. } => address.map(|address| address.to_lowercase()),
        _ => None,
    })
}

/// Without white space.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
}

fn mail_parsers(bytes: &[u8]) -> Option<Read> {
    let message = MessageParser::default().parse(bytes)?;
    let lists = [message.from(), message.to(), message.cc()];
    let mailboxes = lists.into_iter().flatten().flat_map(|list| list.iter()).filter_map(|one| one.address());
    let mut read = Read {
        subject: squeezed(message.subject().unwrap_or("")),
        addresses: mailboxes.map(str::to_lowercase).collect(),
        date: message.date().filter(|date| date.is_valid()).map(|date| date.to_timestamp()),
        message_id: message.message_id().unwrap_or("").to_owned(),
        leaves: Vec::new(),
    };
    let mut levels = vec![message.parts.iter()];
    while let Some(level) = levels.last_mut() {
        let Some(part) = level.next() else {
            levels.pop();
            continue;
        };
        let kind = part.content_type().map(|kind| match kind.subtype() {
            Some(subtype) => format!("{}/{subtype}", kind.ctype()).to_lowercase(),
            None => kind.ctype().to_lowercase(),
        });
        let kind = kind.unwrap_or_else(|| "text/plain".to_owned());
        match &part.body {
            PartType::Text(text) | PartType::Html(text) => read.leaves.push((kind, squeezed(text).into_bytes())),
            PartType::Binary(octets) | PartType::InlineBinary(octets) => read.leaves.push((kind, octets.to_vec())),
            PartType::Message(message) => levels.push(message.parts.iter()),
            PartType::Multipart(_) => {}
        }
    }
    Some(read)
}

/// A kind of difference: its name, why ours is right or as good, and whether a difference is of it.
type KindOf = (&'static str, &'static str, fn(&Case<'_>) -> bool);

/// A difference.
struct Case<'a> {
    bytes: &'a [u8],
    ours: &'a Read,
    theirs: &'a Read,
    /// `subject`, `addresses`, `date`, `message_id` or `leaves`.
    what: &'static str,
}

impl Case<'_> {
    /// How often a field stands in the header.
    fn count(&self, name: &str) -> usize {
        Message::parse(self.bytes).root().header().fields().filter(|field| field.is(name)).count()
    }

    fn value(&self, name: &str) -> Vec<u8> {
        let message = Message::parse(self.bytes);
        message.root().header().first(name).map(|field| field.value.to_vec()).unwrap_or_default()
    }

    fn any_part(&self, holds: impl Fn(&posthaste_message::mime::Part<'_, '_>) -> bool) -> bool {
        Message::parse(self.bytes).parts().any(|part| holds(&part))
    }
}

#[path = "second_opinion/kinds.rs"]
mod kinds;
use kinds::{KINDS, OWN, PYTHON_KINDS};

fn differences(ours: &Read, theirs: &Read) -> Vec<&'static str> {
    [
        ("subject", ours.subject != theirs.subject),
        ("addresses", ours.addresses != theirs.addresses),
        ("date", ours.date != theirs.date),
        ("message_id", ours.message_id != theirs.message_id),
        ("leaves", ours.leaves != theirs.leaves),
    ]
    .into_iter()
    .filter_map(|(what, differs)| differs.then_some(what))
    .collect()
}

/// Judges all differences; returns how many there are of each kind.
fn judge(kinds: &[KindOf], mail: &[(PathBuf, Vec<u8>)], theirs: &[Option<Read>]) -> BTreeMap<&'static str, usize> {
    let mut counts: BTreeMap<&'static str, usize> = kinds.iter().map(|(name, ..)| (*name, 0)).collect();
    let mut unknown = Vec::new();
    for ((path, bytes), theirs) in mail.iter().zip(theirs) {
        let Some(theirs) = theirs else { continue };
        let ours = ours(bytes);
        for what in differences(&ours, theirs) {
            let case = Case { bytes, ours: &ours, theirs, what };
            match kinds.iter().find(|(_, _, is)| is(&case)) {
                Some((name, ..)) => *counts.get_mut(name).unwrap() += 1,
                None => unknown.push(format!(
                    "{}: {what}\n  ours:   {}\n  theirs: {}",
                    path.display(),
                    shown(&ours, what),
                    shown(theirs, what)
                )),
            }
        }
    }
    assert!(unknown.is_empty(), "{} differences of no kind that was judged:\n{}", unknown.len(), unknown.join("\n"));
    counts
}

fn shown(read: &Read, what: &str) -> String {
    let text = match what {
        "subject" => read.subject.clone(),
        "addresses" => format!("{:?}", read.addresses),
        "date" => format!("{:?}", read.date),
        "message_id" => read.message_id.clone(),
        _ => read
            .leaves
            .iter()
            .map(|(kind, octets)| {
                format!("{kind} {} {}; ", octets.len(), octets[..octets.len().min(60)].escape_ascii())
            })
            .collect(),
    };
    text.chars().take(600).collect()
}

fn corpora() -> Vec<(PathBuf, Vec<u8>)> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut dirs = vec![project.join("tests/corpus")];
    let beside = project.join("../shared/corpus");
    dirs.extend(std::env::var_os("POSTHASTE_CORPUS").map(PathBuf::from).or(beside.is_dir().then_some(beside)));
    let mut files = BTreeSet::new();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "eml") {
                files.insert(path);
            }
        }
    }
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// All messages, those of [`OWN`] in files of a directory of their own.
fn all_mail(own: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut mail = corpora();
    for (number, bytes) in OWN.iter().enumerate() {
        let path = own.join(format!("own-{number}.eml"));
        fs::write(&path, bytes).unwrap();
        mail.push((path, bytes.to_vec()));
    }
    mail
}

#[test]
fn mail_parser_differs_in_ways_that_were_judged() {
    let own = tempfile::tempdir().unwrap();
    let mail = all_mail(own.path());
    let theirs: Vec<Option<Read>> =
        mail.iter().map(|(_, bytes)| std::panic::catch_unwind(|| mail_parsers(bytes)).ok().flatten()).collect();
    report(&judge(&KINDS, &mail, &theirs));
}

#[test]
fn pythons_email_differs_in_ways_that_were_judged() {
    let Ok(mut python) = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/second_opinion/read.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
    else {
        assert!(std::env::var_os("CI_REQUIRE_PEERS").is_none(), "python3 is missing");
        eprintln!("python3 is missing: nothing compared");
        return;
    };
    let own = tempfile::tempdir().unwrap();
    let mail = all_mail(own.path());
    let mut input = python.stdin.take().unwrap();
    let names: Vec<String> = mail.iter().map(|(path, _)| path.display().to_string()).collect();
    let writer = std::thread::spawn(move || input.write_all((names.join("\n") + "\n").as_bytes()).unwrap());
    let output = python.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    let theirs: Vec<Option<Read>> = String::from_utf8(output.stdout).unwrap().lines().map(python_read).collect();
    assert_eq!(theirs.len(), mail.len());
    report(&judge(&PYTHON_KINDS, &mail, &theirs));
}

fn report(counts: &BTreeMap<&'static str, usize>) {
    counts.iter().for_each(|(name, count)| eprintln!("{count:>5} {name}"));
    let gone: Vec<&str> = counts.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
    assert!(gone.is_empty(), "kinds that nothing shows any more: {gone:?}");
}

/// A line of `read.py`: `null` where Python raised an exception.
fn python_read(line: &str) -> Option<Read> {
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    let text = |name: &str| value[name].as_str().unwrap_or("").to_owned();
    let list = |name: &str| value[name].as_array().cloned().unwrap_or_default();
    if value.is_null() {
        return None;
    }
    Some(Read {
        subject: squeezed(&text("subject")),
        addresses: list("addresses").iter().filter_map(|one| one.as_str()).map(str::to_lowercase).collect(),
        date: value["date"].as_i64(),
        message_id: text("message_id"),
        leaves: list("leaves")
            .iter()
            .map(|leaf| {
                let kind = leaf[0].as_str().unwrap_or("").to_owned();
                let content = leaf[1].as_str().unwrap_or("");
                let is_text = leaf[2].as_bool() == Some(true);
                let octets = if is_text {
                    squeezed(content).into_bytes()
                } else {
                    Encoding::Base64.decode(content.as_bytes()).into_owned()
                };
                (kind, octets)
            })
            .collect(),
    })
}
