//! Mail that is built of its parts: texts, attachments, fields.

use posthaste_message::mime::{AddressList, DecodedAddress};
use posthaste_smtp::ForwardPath;
use posthaste_units::object::Object;
use serde::Deserialize;

use crate::mime::{Part, base64_lines, from_base64, mailbox, write_field, write_text_field};
use crate::template::{Piece, Place, Templates};

/// `content` as an object.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BuiltBody {
    text_body: Option<String>,
    html_body: Option<String>,
    subject: Option<String>,
    from: Option<Object<MailboxBody>>,
    reply_to: Option<Object<MailboxBody>>,
    #[serde(default)]
    headers: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    attachments: Vec<Object<AttachmentBody>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MailboxBody {
    email: String,
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttachmentBody {
    data: String,
    content_type: String,
    file_name: Option<String>,
    content_id: Option<String>,
    #[serde(default)]
    base64: bool,
}

/// Renders a text for one recipient.
type Render<'a> = &'a dyn Fn(&Piece) -> Result<String, String>;

/// Header fields that a request may not set: the server or the parts decide them.
const NOT_GIVEN: [&str; 9] = [
    "Received",
    "Return-Path",
    "DKIM-Signature",
    "Authentication-Results",
    "Bcc",
    "Resent-Bcc",
    "MIME-Version",
    "Content-Type",
    "Content-Transfer-Encoding",
];
/// Header fields that contain addresses.
const ADDRESSES: [&str; 6] = ["From", "Sender", "Reply-To", "To", "Cc", "Disposition-Notification-To"];
const FIELDS_MAX: usize = 100;
const ATTACHMENTS_MAX: usize = 100;

/// A message's parts, checked, with compiled templates.
#[derive(Debug)]
pub(crate) struct Built {
    /// Header fields, in output order.
    fields: Vec<(String, Piece)>,
    mailboxes: Vec<(&'static str, Piece, Option<Piece>)>,
    text: Option<Piece>,
    html: Option<Piece>,
    /// Attachments that the HTML displays.
    inline: Vec<Part>,
    attached: Vec<Part>,
}

impl Built {
    /// Validates all parts.
    ///
    /// # Errors
    /// The invalid part, and the reason.
    pub fn new(body: BuiltBody, templates: &mut Templates, is_static: bool) -> Result<Self, String> {
        let mut piece = |what: &str, place, text| templates.piece(&format!("content.{what}"), place, text, is_static);
        let mut fields = Vec::new();
        if body.headers.len() > FIELDS_MAX || body.attachments.len() > ATTACHMENTS_MAX {
            return Err(format!("content: at most {FIELDS_MAX} headers and {ATTACHMENTS_MAX} attachments"));
        }
        let given = |name: &str| body.headers.keys().any(|given| given.eq_ignore_ascii_case(name));
        let named =
            [("Subject", body.subject.is_some()), ("From", body.from.is_some()), ("Reply-To", body.reply_to.is_some())];
        if let Some((name, _)) = named.into_iter().find(|(name, is_there)| *is_there && given(name)) {
            return Err(format!("content.headers: {name} is given twice"));
        }
        let mut mailboxes = Vec::new();
        for (name, what, mailbox) in [("From", "from", body.from), ("Reply-To", "reply_to", body.reply_to)] {
            let Some(Object(MailboxBody { email, name: shown })) = mailbox else { continue };
            let email = piece(&format!("{what}.email"), Place::Header, email)?;
            let shown = shown.map(|shown| piece(&format!("{what}.name"), Place::Header, shown)).transpose()?;
            mailboxes.push((name, email, shown));
        }
        if let Some(subject) = body.subject {
            fields.push(("Subject".to_owned(), piece("subject", Place::Header, subject)?));
        }
        for (name, value) in body.headers {
            check_name(&name)?;
            let value = piece(&format!("headers.{name}"), Place::Header, value)?;
            if fields.iter().any(|(known, _): &(String, _)| known.eq_ignore_ascii_case(&name)) {
                return Err(format!("content.headers: {name} is given twice"));
            }
            fields.push((name, value));
        }
        let text = body.text_body.map(|text| piece("text_body", Place::Text, text)).transpose()?;
        let html = body.html_body.map(|html| piece("html_body", Place::Html, html)).transpose()?;
        let mut inline = Vec::new();
        let mut attached = Vec::new();
        for (index, Object(attachment)) in body.attachments.into_iter().enumerate() {
            let is_inline = attachment.content_id.is_some() && html.is_some();
            let part = part_of(attachment).map_err(|why| format!("content.attachments[{index}].{why}"))?;
            if is_inline { inline.push(part) } else { attached.push(part) }
        }
        if text.is_none() && html.is_none() && attached.is_empty() {
            return Err("content: text_body, html_body or attachments are needed".to_owned());
        }
        Ok(Self { fields, mailboxes, text, html, inline, attached })
    }

    /// The message for one recipient, with texts from `render`.
    ///
    /// # Errors
    /// A template fails, or makes an invalid field.
    pub fn message(&self, render: Render<'_>, to: (&ForwardPath, Option<&str>)) -> Result<String, String> {
        let mut out = String::new();
        for (name, email, shown) in &self.mailboxes {
            let email = render(email)?;
            let shown = shown.as_ref().map(render).transpose()?;
            let wrong = |why: &str| format!("content.{}: {why}", name.to_lowercase().replace('-', "_"));
            let path =
                ForwardPath::parse(&format!("<{email}>")).map_err(|error| wrong(&format!("{email}: {error}")))?;
            let address = path.address().ok_or_else(|| wrong("an address needs a domain"))?.to_string();
            let shown = shown.map(|shown| line(&shown)).transpose().map_err(wrong)?;
            write_field(&mut out, name, &mailbox(shown.as_deref(), &address)).map_err(wrong)?;
        }
        if !self.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("To")) {
            let (path, name) = to;
            let name = name.map(line).transpose().map_err(|why| format!("recipients: name: {why}"))?;
            write_field(&mut out, "To", &mailbox(name.as_deref(), &path.bare())).map_err(str::to_owned)?;
        }
        for (name, value) in &self.fields {
            let wrong = |why: &str| format!("content.headers.{name}: {why}");
            let value = line(&render(value)?).map_err(wrong)?;
            let written = if ADDRESSES.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                addresses(&value).and_then(|value| write_field(&mut out, name, &value))
            } else {
                write_text_field(&mut out, name, &value)
            };
            written.map_err(wrong)?;
        }
        out.push_str("MIME-Version: 1.0\r\n");
        out.push_str(&self.body(render)?.0);
        Ok(out)
    }

    /// Text and HTML as alternatives, HTML with its inline parts, and everything with attachments.
    fn body(&self, render: Render<'_>) -> Result<Part, String> {
        let text = self.text.as_ref().map(render).transpose()?;
        let html = self.html.as_ref().map(render).transpose()?;
        let text = text.map(|text| Part::text("plain", &text));
        let html = html.map(|html| Part::text("html", &html)).map(|html| {
            if self.inline.is_empty() {
                html
            } else {
                Part::several("related", 3, std::iter::once(html).chain(self.inline.iter().cloned()).collect())
            }
        });
        let body = match (text, html) {
            (Some(text), Some(html)) => Some(Part::several("alternative", 2, vec![text, html])),
            (text, html) => text.or(html),
        };
        let mut parts: Vec<Part> = body.into_iter().chain(self.attached.iter().cloned()).collect();
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => Part::several("mixed", 1, parts),
        })
    }
}

/// Validates a field name (RFC 5322 section 2.2) of a request.
fn check_name(name: &str) -> Result<(), String> {
    let is_name =
        !name.is_empty() && name.len() <= 76 && name.bytes().all(|octet| octet.is_ascii_graphic() && octet != b':');
    if !is_name {
        return Err(format!(
            "content.headers: `{}` is not a name of a field",
            name.chars().take(76).collect::<String>()
        ));
    }
    if NOT_GIVEN.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        Err(format!("content.headers: {name} is set by the server"))
    } else {
        Ok(())
    }
}

/// A value without line ends.
fn line(value: &str) -> Result<String, &'static str> {
    if value.contains(|char: char| char.is_control() && char != '\t') {
        Err("it has a control character")
    } else {
        Ok(value.replace('\t', " "))
    }
}

/// A list of addresses, each normalised.
fn addresses(value: &str) -> Result<String, &'static str> {
    let mut all = Vec::new();
    for address in AddressList::new(value.as_bytes(), None) {
        let DecodedAddress::Mailbox { name, address: Some(address) } = address else {
            return Err("an address is missing, or is a group");
        };
        let path = ForwardPath::parse(&format!("<{address}>")).map_err(|_| "this is not a list of addresses")?;
        if path.address().is_none() {
            return Err("an address needs a domain");
        }
        all.push(mailbox(name.as_deref(), &path.bare()));
    }
    if all.is_empty() { Err("there is no address in it") } else { Ok(all.join(", ")) }
}

fn part_of(attachment: AttachmentBody) -> Result<Part, String> {
    let AttachmentBody { data, content_type, file_name, content_id, base64 } = attachment;
    let octets = if base64 { from_base64(&data).ok_or("data: this is not base64")? } else { data.into_bytes() };
    let mut out = format!("Content-Type: {}\r\nContent-Transfer-Encoding: base64\r\n", content_type_of(&content_type)?);
    let name = file_name.map(|name| file_name_of(&name)).transpose()?.unwrap_or_default();
    let disposition = if content_id.is_some() { "inline" } else { "attachment" };
    write_field(&mut out, "Content-Disposition", &format!("{disposition}{name}"))
        .map_err(|why| format!("file_name: {why}"))?;
    if let Some(id) = content_id {
        let is_id = |octet: u8| octet.is_ascii_graphic() && !b"<>()\\\",;:".contains(&octet);
        if id.is_empty() || id.len() > 200 || !id.bytes().all(is_id) {
            return Err("content_id: write letters, digits and the like, without brackets".to_owned());
        }
        out.push_str(&format!("Content-ID: <{id}>\r\n"));
    }
    out.push_str("\r\n");
    out.push_str(&base64_lines(&octets));
    Ok(Part(out))
}

/// A type such as `image/png`, with its parameters.
fn content_type_of(text: &str) -> Result<&str, String> {
    let is_token = |text: &str| {
        !text.is_empty() && text.bytes().all(|octet| octet.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&octet))
    };
    let (kind, parameters) = text.split_once(';').unwrap_or((text, ""));
    let is_type = kind.trim().split_once('/').is_some_and(|(kind, subtype)| {
        is_token(kind) && is_token(subtype) && !["multipart", "message"].iter().any(|no| kind.eq_ignore_ascii_case(no))
    });
    let is_plain = parameters.bytes().all(|octet| octet.is_ascii_graphic() || octet == b' ');
    if is_type && is_plain && text.len() <= 200 {
        Ok(text.trim())
    } else {
        Err("content_type: a type such as image/png is needed".to_owned())
    }
}

/// The parameter `filename` (RFC 2183, RFC 2231).
fn file_name_of(name: &str) -> Result<String, String> {
    if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
        return Err("file_name: 1 to 200 octets without control characters".to_owned());
    }
    if name.is_ascii() {
        return Ok(format!("; filename=\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"")));
    }
    let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || b"-._".contains(&octet);
    let coded =
        name.bytes().map(|octet| if is_plain(octet) { char::from(octet).to_string() } else { format!("%{octet:02X}") });
    Ok(format!("; filename*=UTF-8''{}", coded.collect::<String>()))
}
