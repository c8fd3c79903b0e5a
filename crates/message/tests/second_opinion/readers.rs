//! Two readers of a message, and their differences.

use std::collections::BTreeSet;

use mail_parser::{MessageParser, MimeHeaders, PartType};
use posthaste_message::mime::{DecodedAddress, Kind, Message, message_id};

/// A reader's view of a message.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Read {
    pub subject: String,
    /// Addresses of From, To and Cc, in lower case, each once.
    pub addresses: BTreeSet<String>,
    pub date: Option<i64>,
    pub message_id: String,
    /// Media type and octets of all leaves; text without white space, in which readers differ.
    pub leaves: Vec<(String, Vec<u8>)>,
}

pub fn ours(bytes: &[u8]) -> Read {
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

fn addresses(found: impl Iterator<Item = DecodedAddress>) -> impl Iterator<Item = String> {
    found.filter_map(|address| match address {
        DecodedAddress::Mailbox { address, .. } => address.map(|address| address.to_lowercase()),
        _ => None,
    })
}

/// Without white space.
pub fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
}

pub fn mail_parsers(bytes: &[u8]) -> Option<Read> {
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

/// A kind of difference: its name, the reason why ours is right or as good, and its test.
pub type KindOf = (&'static str, &'static str, fn(&Case<'_>) -> bool);

/// A difference.
pub struct Case<'a> {
    pub bytes: &'a [u8],
    pub ours: &'a Read,
    pub theirs: &'a Read,
    /// `subject`, `addresses`, `date`, `message_id` or `leaves`.
    pub what: &'static str,
}

impl Case<'_> {
    /// Number of fields of that name in the header.
    pub fn count(&self, name: &str) -> usize {
        Message::parse(self.bytes).root().header().fields().filter(|field| field.is(name)).count()
    }

    pub fn value(&self, name: &str) -> Vec<u8> {
        let message = Message::parse(self.bytes);
        message.root().header().first(name).map(|field| field.value.to_vec()).unwrap_or_default()
    }

    pub fn any_part(&self, holds: impl Fn(&posthaste_message::mime::Part<'_, '_>) -> bool) -> bool {
        Message::parse(self.bytes).parts().any(|part| holds(&part))
    }
}

pub fn differences(ours: &Read, theirs: &Read) -> Vec<&'static str> {
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

pub fn shown(read: &Read, what: &str) -> String {
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
