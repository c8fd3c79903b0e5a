//! A message as a person reads it: in the queue, or in a mailbox here.

use std::io::Read;

use posthaste_maildir::{MailRoot, MailboxPath, Subdir};
use posthaste_message::mime::Message;
use posthaste_relay::sender::Relay;
use posthaste_search::text::{extract_whole, html_parts, parts};
use posthaste_spool::Lsn;
use serde_json::{Value, json};

use super::Outcome;
use crate::receive::Receiver;

/// Header, text, source of HTML, names of attachments, and source. `mailbox`: where it was delivered, as the event log has it; empty: it waits for other hosts.
pub(super) fn mail(receiver: &Receiver, message: u64, mailbox: &str, is_brief: bool) -> Outcome {
    let octets = match mailbox {
        "" => of_queue(receiver.relay().ok_or(super::RELAYS_NOT)?, message)?,
        mailbox => of_mailbox(receiver, mailbox, message)?,
    };
    if is_brief {
        let read = extract_whole(&octets);
        return Ok(json!({ "done": 1, "mail": { "subject": cut(&read.subject), "from": cut(&read.from) } }));
    }
    Ok(json!({ "done": 1, "mail": as_read(&octets) }))
}

fn of_queue(relay: &Relay, message: u64) -> Result<Vec<u8>, String> {
    let pieces = relay.content(Lsn::new(message), SOURCE_BYTES_MAX).map_err(|error| error.to_string())?;
    let octets: Vec<u8> = pieces.iter().flatten().copied().take(SOURCE_BYTES_MAX as usize).collect();
    Ok(octets)
}

/// Looks for the file by the part of its name that follows from the message.
fn of_mailbox(receiver: &Receiver, mailbox: &str, message: u64) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{mailbox}: {error}");
    let path = MailboxPath::parse(mailbox).map_err(|error| format!("this is no mailbox: {error}"))?;
    let root = MailRoot::open(&receiver.settings().mail).map_err(failed)?;
    let maildir = root.existing_mailbox(&path).map_err(failed)?;
    let mut found: Option<(Subdir, String)> = None;
    for dir in [Subdir::New, Subdir::Cur] {
        let keep = |name: &str| {
            if found.is_none() && receiver.destinations().is_file_of(message, name) {
                found = Some((dir, name.to_owned()));
            }
        };
        maildir.for_each_name(dir, keep).map_err(failed)?;
    }
    let (dir, name) = found.ok_or_else(|| format!("the message is not in {mailbox} any more"))?;
    let mut octets = Vec::new();
    let file = maildir.open_message(dir, &name).map_err(failed)?;
    file.take(SOURCE_BYTES_MAX).read_to_end(&mut octets).map_err(failed)?;
    Ok(octets)
}

/// As JSON. HTML is text like everything else: nobody shows it as more.
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
    let files = parts(octets).into_iter().filter(|part| part.name.is_some()).take(FIELDS_MAX);
    let files: Vec<Value> =
        files.map(|part| json!({ "name": part.name, "type": part.media_type, "bytes": part.content.len() })).collect();
    json!({
        "header": header,
        "subject": cut(&read.subject),
        "text": cut(&read.body),
        "html": cut(&html_parts(octets)),
        "files": files,
        "source": cut(&String::from_utf8_lossy(octets)),
        "bytes": octets.len(),
        "cut": octets.len() as u64 == SOURCE_BYTES_MAX,
    })
}

/// The beginning of a text.
fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    text[..end].to_owned()
}

/// Of a message that is shown.
const SOURCE_BYTES_MAX: u64 = 4 << 20;
/// Of one text of it.
const TEXT_BYTES_MAX: usize = 1 << 20;
const FIELDS_MAX: usize = 200;
