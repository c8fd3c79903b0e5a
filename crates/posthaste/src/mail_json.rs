//! A message in the format of `notmuch show --format=json`.

use std::borrow::Cow;

use posthaste_message::mime::{DecodedAddress, Encoding, Header, Kind, Message as Mail, Part};
use serde_json::{Map, Value, json};

/// Parts that are printed with their content.
#[derive(Clone, Copy)]
pub struct Contents {
    pub html: bool,
}

/// Maximum depth of enclosed parts in the output.
const DEPTH_MAX: usize = 100;

/// Header fields in notmuch's output.
const FIELDS: [&str; 6] = ["Subject", "From", "To", "Cc", "Bcc", "Reply-To"];

/// The header fields of a message, decoded.
pub fn headers(mail: &Mail<'_>, header: &Header<'_>) -> Map<String, Value> {
    let mut out = Map::new();
    for name in FIELDS {
        let text = match name {
            "Subject" => header.first(name).map(|field| field.text(mail.header_charset()).trim().to_owned()),
            _ => Some(address_field(mail, header, name)).filter(|text| !text.is_empty()),
        };
        match text {
            Some(text) => drop(out.insert(name.to_owned(), text.into())),
            // These are always told.
            None if matches!(name, "Subject" | "From") => drop(out.insert(name.to_owned(), "".into())),
            None => {}
        }
    }
    out.insert("Date".to_owned(), date(header).into());
    out
}

/// The date in the header, unfolded.
pub fn date(header: &Header<'_>) -> String {
    let date = header.first("Date").map(|field| field.text(None).into_owned()).unwrap_or_default();
    date.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// All fields of a name, joined into one list of addresses.
pub fn address_field(mail: &Mail<'_>, header: &Header<'_>, name: &str) -> String {
    let rows: Vec<String> =
        addresses(mail, header, name).into_iter().map(|(name, address)| full(&name, &address)).collect();
    rows.join(", ")
}

/// Names and addresses in all fields of a name.
pub fn addresses(mail: &Mail<'_>, header: &Header<'_>, name: &str) -> Vec<(String, String)> {
    let charset = mail.header_charset();
    let fields = header.fields().filter(|field| field.is(name));
    let all = fields.flat_map(|field| field.addresses(charset).collect::<Vec<_>>());
    let one = |address| match address {
        DecodedAddress::Mailbox { name, address } => Some((name.unwrap_or_default(), address.unwrap_or_default())),
        DecodedAddress::Group(_) | DecodedAddress::GroupEnd => None,
    };
    all.filter_map(one).collect()
}

/// `"Doe, A" <a@x>`.
pub fn full(name: &str, address: &str) -> String {
    // What is special in a phrase (RFC 5322 section 3.2.3).
    let is_special = |c: char| "()<>[]:;@\\,.\"".contains(c);
    match (name, address) {
        ("", address) => address.to_owned(),
        (name, "") => name.to_owned(),
        (name, address) if name.contains(is_special) => {
            format!("\"{}\" <{address}>", name.replace('\\', "\\\\").replace('"', "\\\""))
        }
        (name, address) => format!("{name} <{address}>"),
    }
}

/// The whole body: a list of the message's root part.
pub fn body(mail: &Mail<'_>, contents: Contents) -> Value {
    json!([tell(mail, mail.root(), contents, 0)])
}

/// notmuch's number of a part: position in the order of beginnings, from 1.
pub fn number(part: Part<'_, '_>) -> usize {
    part.index() + 1
}

/// One part, with those inside it.
pub fn part(mail: &Mail<'_>, part: Part<'_, '_>, contents: Contents) -> Value {
    tell(mail, part, contents, 0)
}

fn tell(mail: &Mail<'_>, part: Part<'_, '_>, contents: Contents, depth: usize) -> Value {
    let mut out = Map::new();
    out.insert("id".to_owned(), number(part).into());
    out.insert("content-type".to_owned(), part.media_type().into());
    if let Some(disposition) = part.disposition().filter(|word| word == "attachment" || word == "inline") {
        out.insert("content-disposition".to_owned(), disposition.into());
    }
    if let Some(name) = part.file_name() {
        out.insert("filename".to_owned(), name.into());
    }
    let is_html = part.media_type() == "text/html";
    match part.kind() {
        _ if depth > DEPTH_MAX => {}
        Kind::Multipart => {
            let children = part.children().map(|child| tell(mail, child, contents, depth + 1));
            out.insert("content".to_owned(), children.collect());
        }
        Kind::Message => {
            let enclosed = part.children().map(|root| {
                json!({"headers": headers(mail, &root.header()), "body": [tell(mail, root, contents, depth + 1)]})
            });
            out.insert("content".to_owned(), enclosed.collect());
        }
        Kind::Leaf if part.media_type().starts_with("text/") && (!is_html || contents.html) => {
            out.insert("content".to_owned(), text(part).into());
        }
        Kind::Leaf => {
            let encoding = match part.encoding() {
                Encoding::Base64 => Some("base64"),
                Encoding::QuotedPrintable => Some("quoted-printable"),
                Encoding::Uuencode => Some("uuencode"),
                Encoding::Identity => None,
            };
            out.extend(encoding.map(|encoding| ("content-transfer-encoding".to_owned(), encoding.into())));
            // As it stands in the message, which costs no decoding.
            out.insert("content-length".to_owned(), part.body().len().into());
        }
    }
    Value::Object(out)
}

/// A text part, with LF.
pub fn text(part: Part<'_, '_>) -> String {
    match part.text() {
        text if text.contains('\r') => text.replace("\r\n", "\n"),
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(text) => text,
    }
}

/// The part with notmuch's number.
pub fn part_by_number<'m, 'a>(mail: &'m Mail<'a>, wanted: usize) -> Option<Part<'m, 'a>> {
    mail.parts().find(|part| number(*part) == wanted)
}
