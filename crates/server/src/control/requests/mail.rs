//! A message for display: from the queue, or from a mailbox here.

use std::collections::BTreeMap;
use std::io::Read;

use posthaste_control::{DeliveredMail, MessagePlace, SUBJECTS_MAX};
use posthaste_maildir::{MailRoot, MailboxPath, Maildir, Subdir};
use posthaste_message::mime::Message;
use posthaste_relay::sender::Relay;
use posthaste_search::text::{TextPart, extract_whole, html_parts, parts};
use posthaste_spool::Lsn;
use serde_json::{Value, json};

use super::answering::{Answer, Outcome};
use super::asker::Asker;
use super::cat::in_pieces;
use crate::receive::handler::Receiver;

/// Header, text, source of HTML, names of attachments, and source.
pub(super) fn mail(receiver: &Receiver, asker: &Asker, place: &MessagePlace) -> Outcome {
    let octets = octets_of(receiver, asker, place, SOURCE_BYTES_MAX)?;
    Ok(json!({ "done": 1, "mail": as_read(&octets) }))
}

/// The octets of an attached file, by its index.
pub(super) fn file(
    receiver: &Receiver,
    asker: &Asker,
    place: &MessagePlace,
    number: u32,
    answer: Answer<'_>,
) -> Outcome {
    let octets = octets_of(receiver, asker, place, FILE_SOURCE_BYTES_MAX)?;
    if octets.len() as u64 == FILE_SOURCE_BYTES_MAX {
        return Err(format!(
            "the message is larger than {FILE_SOURCE_BYTES_MAX} bytes: save its files with a mail program"
        ));
    }
    let all = parts(&octets);
    let part = files_in(&all).nth(number as usize).ok_or("the message has no such file")?;
    if part.content.len() > FILE_BYTES_MAX {
        return Err(format!("the file is larger than {FILE_BYTES_MAX} bytes: save it with a mail program"));
    }
    Ok(in_pieces(std::iter::once(&*part.content), answer))
}

fn octets_of(receiver: &Receiver, asker: &Asker, place: &MessagePlace, bytes_max: u64) -> Result<Vec<u8>, String> {
    let MessagePlace { message, mailbox, name } = place;
    match (*message, mailbox.as_str(), name.as_str()) {
        (Some(message), "", "") => of_queue(&super::queues::relay_with(receiver, message)?, asker, message, bytes_max),
        (Some(message), mailbox, "") => of_mailbox(receiver, mailbox, message, bytes_max),
        (None, mailbox, name) if !mailbox.is_empty() && !name.is_empty() => {
            let failed = |error: std::io::Error| format!("{mailbox}: {error}");
            let maildir = maildir_of(receiver, mailbox)?;
            let found = maildir.find(name).map_err(failed)?;
            let found = found.ok_or_else(|| format!("the message is not in {mailbox} any more"))?;
            read_file(&maildir, found.dir, &found.name, bytes_max).map_err(failed)
        }
        _ => Err("a message's number, or a mailbox and the name of a file in it".to_owned()),
    }
}

/// The files of a message, in the order of its page.
fn files_in<'a>(parts: &'a [TextPart<'a>]) -> impl Iterator<Item = &'a TextPart<'a>> {
    parts.iter().filter(|part| part.name.is_some()).take(FIELDS_MAX)
}

/// Lists each mailbox once, for all requested messages in it. Messages that no longer exist have no line.
pub(super) fn subjects(receiver: &Receiver, of: &[DeliveredMail], answer: Answer<'_>) -> Outcome {
    if of.len() > SUBJECTS_MAX {
        return Err(format!("at most {SUBJECTS_MAX} messages"));
    }
    let mut by_mailbox: BTreeMap<&str, Vec<Lsn>> = BTreeMap::new();
    of.iter().for_each(|of| by_mailbox.entry(&of.mailbox).or_default().push(of.message));
    let mut done = 0;
    for (mailbox, messages) in by_mailbox {
        // A mailbox that is gone is like its messages.
        let Ok((maildir, files)) = files_of(receiver, mailbox, &messages) else { continue };
        for (message, (dir, name)) in files {
            let Ok(file) = maildir.open_message(dir, &name) else { continue };
            let mut header = Vec::new();
            if file.take(HEADER_BYTES_MAX).read_to_end(&mut header).is_err() {
                continue;
            }
            let parsed = Message::parse(&header);
            let field = |name: &[u8]| {
                let mut fields = parsed.root().header().fields();
                let field = fields.find(|field| field.name.eq_ignore_ascii_case(name));
                field.map_or_else(String::new, |field| short(&field.text(parsed.header_charset())))
            };
            let line = json!({
                "message": message,
                "mailbox": mailbox,
                "subject": field(b"subject"),
                "from": field(b"from"),
                "to": field(b"to"),
            });
            done += 1;
            if !answer(line) {
                break;
            }
        }
    }
    Ok(json!({ "done": done }))
}

fn of_queue(relay: &Relay, asker: &Asker, message: Lsn, bytes_max: u64) -> Result<Vec<u8>, String> {
    let pieces = asker.content(relay, message, bytes_max)?;
    let octets: Vec<u8> = pieces.iter().flatten().copied().take(bytes_max as usize).collect();
    Ok(octets)
}

/// Files of messages by the constant part of their names.
type FilesOf = BTreeMap<Lsn, (Subdir, String)>;

fn maildir_of(receiver: &Receiver, mailbox: &str) -> Result<Maildir, String> {
    let failed = |error: std::io::Error| format!("{mailbox}: {error}");
    let path = MailboxPath::parse(mailbox).map_err(|error| format!("this is not a mailbox: {error}"))?;
    let root = MailRoot::open(&receiver.settings().mail).map_err(failed)?;
    root.existing_mailbox(&path).map_err(failed)
}

fn read_file(maildir: &Maildir, dir: Subdir, name: &str, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut octets = Vec::new();
    maildir.open_message(dir, name)?.take(bytes_max).read_to_end(&mut octets)?;
    Ok(octets)
}

fn files_of(receiver: &Receiver, mailbox: &str, messages: &[Lsn]) -> Result<(Maildir, FilesOf), String> {
    let failed = |error: std::io::Error| format!("{mailbox}: {error}");
    let maildir = maildir_of(receiver, mailbox)?;
    let mut found = FilesOf::new();
    for dir in [Subdir::New, Subdir::Cur] {
        let keep = |name: &str| {
            let of = messages.iter().find(|message| receiver.destinations().is_file_of(**message, name));
            if let Some(message) = of {
                found.entry(*message).or_insert_with(|| (dir, name.to_owned()));
            }
        };
        maildir.for_each_name(dir, keep).map_err(failed)?;
    }
    Ok((maildir, found))
}

fn of_mailbox(receiver: &Receiver, mailbox: &str, message: Lsn, bytes_max: u64) -> Result<Vec<u8>, String> {
    let (maildir, mut files) = files_of(receiver, mailbox, &[message])?;
    let (dir, name) = files.remove(&message).ok_or_else(|| format!("the message is not in {mailbox} any more"))?;
    read_file(&maildir, dir, &name, bytes_max).map_err(|error| format!("{mailbox}: {error}"))
}

/// The message as JSON. HTML is passed as plain text, never to be rendered.
fn as_read(octets: &[u8]) -> Value {
    let message = Message::parse(octets);
    let fields = message.root().header();
    let header: Vec<[String; 2]> = fields
        .fields()
        .take(FIELDS_MAX)
        .map(|field| {
            let name = String::from_utf8_lossy(field.name).into_owned();
            [name, cut(&field.text(message.header_charset()))]
        })
        .collect();
    let read = extract_whole(octets);
    let all = parts(octets);
    let files: Vec<Value> = files_in(&all)
        .map(|part| json!({ "name": part.name, "type": part.media_type, "bytes": part.content.len() }))
        .collect();
    json!({
        "header": header,
        "subject": cut(&read.subject),
        "text": cut(&text_of(octets).unwrap_or(read.body)),
        "html": cut(&html_parts(octets)),
        "files": files,
        "source": cut(&String::from_utf8_lossy(octets)),
        "bytes": octets.len(),
        "cut": octets.len() as u64 == SOURCE_BYTES_MAX,
    })
}

/// Plain text that is not an attachment. `None`: there is none, or only in a charset other than UTF-8, which the index's
/// reader decodes.
fn text_of(octets: &[u8]) -> Option<String> {
    let is_plain = |part: &TextPart<'_>| part.media_type == "text/plain" && part.name.is_none() && !part.is_attachment;
    let parts = parts(octets);
    let plain: Option<Vec<&str>> =
        parts.iter().filter(|part| is_plain(part)).map(|part| str::from_utf8(&part.content).ok()).collect();
    plain.filter(|texts| !texts.is_empty()).map(|texts| texts.join("\n"))
}

/// The beginning of a field in a list.
pub(super) fn short(text: &str) -> String {
    text.chars().take(FIELD_CHARS_MAX).collect()
}

/// The beginning of a text.
fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    text[..end].to_owned()
}

/// Maximum octets of a displayed message.
const SOURCE_BYTES_MAX: u64 = 4 << 20;
/// Maximum octets of a message from which a file is saved.
const FILE_SOURCE_BYTES_MAX: u64 = 16 << 20;
/// Maximum octets of a file, which as base64 must fit into an answer.
const FILE_BYTES_MAX: usize = 6_000_000;
/// Maximum octets of a text of it.
const TEXT_BYTES_MAX: usize = 1 << 20;
const FIELDS_MAX: usize = 200;
/// Octets of a message's beginning, for its subject.
const HEADER_BYTES_MAX: u64 = 64 << 10;
const FIELD_CHARS_MAX: usize = 300;
