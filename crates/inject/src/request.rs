//! The request: validated mail and recipients, and the resulting messages.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use memchr::{memchr, memchr_iter, memchr3_iter, memmem};
use minijinja::Value as Variable;
use minijinja::value::Object as Lookup;
use posthaste_smtp::{ForwardPath, ReversePath};
use posthaste_units::object::Object;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::built::{Built, BuiltBody};
use crate::json;
use crate::schedule::{Schedule, ScheduleBody};
use crate::template::{MayGoOn, Piece, Place, Templates, is_fixed};

/// Mail to inject.
#[derive(Debug)]
pub struct InjectRequest {
    /// The envelope's sender, checked.
    pub sender: ReversePath,
    recipients: Vec<Recipient>,
    content: Content,
    templates: Templates,
    /// Substitutions of the request, shared by all messages.
    substitutions: Variable,
    names_client: bool,
    schedule: Schedule,
}

#[derive(Debug)]
struct Recipient {
    path: ForwardPath,
    name: Option<String>,
    substitutions: Map<String, Value>,
}

#[derive(Debug)]
enum Content {
    /// A validated message, the same for all recipients.
    Whole(InjectMessage),
    /// A message made for each recipient: the header with its empty line, and the rest.
    Each(Piece, Piece),
    Built(Box<Built>),
}

/// One message of a request. Clones share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectMessage {
    /// The message (RFC 5322). All lines end in CRLF, or all in LF.
    pub content: Bytes,
    /// Its octets with CRLF line ends.
    pub wire_bytes: u64,
}

/// Why a request is refused, with the name of the invalid part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRequest(String);

/// Maximum recipients of a request.
pub const RECIPIENTS_MAX: usize = 10_000;
/// Maximum recipients of one message.
const BATCH_RECIPIENTS_MAX: usize = 1000;
/// Octets of the substitutions of a recipient, or of the request, with [`VALUE_BYTES`] for each value.
const SUBSTITUTIONS_BYTES_MAX: usize = 256 << 10;
/// Memory of a value besides its text.
const VALUE_BYTES: usize = 64;
/// Maximum memory of a request's values before any of it is parsed, without their texts.
const REQUEST_VALUES_BYTES_MAX: usize = 128 << 20;
/// Maximum octets of a request that is parsed on the async thread.
const QUICK_BYTES_MAX: usize = 64 << 10;
/// Maximum values of such a request, including commas in its texts.
const QUICK_VALUES_MAX: usize = 500;
/// Memory of an object with one member.
const OBJECT_BYTES: usize = 640;
/// Maximum depth of nested lists and objects.
const DEPTH_MAX: usize = 32;
/// Maximum characters of a line that an error shows.
const LINE_CHARS_SHOWN: usize = 60;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestBody {
    envelope_sender: String,
    recipients: Vec<Object<RecipientBody>>,
    content: ContentBody,
    #[serde(default)]
    substitutions: Map<String, Value>,
    #[serde(default)]
    template_dialect: Dialect,
    /// KumoMTA's options for answers before mail is durable. They have no effect: mail is durable before each answer.
    #[serde(default, rename = "deferred_generation")]
    _deferred_generation: bool,
    #[serde(default, rename = "deferred_spool")]
    _deferred_spool: bool,
    trace_headers: Option<Object<TraceBody>>,
    schedule: Option<Object<ScheduleBody>>,
}

/// KumoMTA's trace options. Underscored ones are accepted without effect.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceBody {
    #[serde(default)]
    received_header: bool,
    #[serde(default)]
    supplemental_header: bool,
    #[serde(rename = "header_name")]
    _header_name: Option<String>,
    #[serde(rename = "include_meta_names")]
    _include_meta_names: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipientBody {
    email: String,
    name: Option<String>,
    #[serde(default)]
    substitutions: Map<String, Value>,
}

/// Template dialects. Handlebars is refused by its name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
enum Dialect {
    #[default]
    Jinja,
    Static,
}

/// The whole message as a text, or its parts.
enum ContentBody {
    Whole(String),
    Parts(Box<BuiltBody>),
}

impl<'de> Deserialize<'de> for ContentBody {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> serde::de::Visitor<'de> for Either {
            type Value = ContentBody;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a message as a text, or an object with its parts")
            }

            fn visit_str<E>(self, text: &str) -> Result<ContentBody, E> {
                Ok(ContentBody::Whole(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<ContentBody, E> {
                Ok(ContentBody::Whole(text))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<ContentBody, A::Error> {
                let parts = BuiltBody::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                Ok(ContentBody::Parts(Box::new(parts)))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl InjectRequest {
    /// True for a body that parses in about 100 µs: few octets, few values, no templates to compile. May be false for
    /// some that do.
    pub fn is_quick(body: &[u8]) -> bool {
        // Also in texts: commas there count, too.
        let mut values = memchr3_iter(b'{', b'[', b',', body);
        // A mark of a template, or one that JSON may spell in its own way.
        let is_mark = |at: usize| body[at] == b'{' && matches!(body.get(at + 1), Some(b'{' | b'%' | b'#' | b'\\'));
        body.len() <= QUICK_BYTES_MAX
            && values.by_ref().take(QUICK_VALUES_MAX).all(|at| !is_mark(at))
            && values.next().is_none()
            && memmem::find(body, b"\\u007").is_none()
    }

    /// Parses a JSON request. Its templates are compiled, but not rendered yet.
    ///
    /// # Errors
    /// Invalid JSON, an unsupported key, or invalid mail.
    pub fn parse(body: &[u8]) -> Result<Self, InvalidRequest> {
        // Few octets have few values: they need not be counted.
        if body.len() > REQUEST_VALUES_BYTES_MAX / OBJECT_BYTES && values_bytes(body) > REQUEST_VALUES_BYTES_MAX {
            return Err(InvalidRequest("the request has too many values".to_owned()));
        }
        let body: RequestBody = json::read(body).map_err(InvalidRequest)?;
        if body.recipients.is_empty() || body.recipients.len() > RECIPIENTS_MAX {
            return Err(InvalidRequest(format!("recipients: 1 to {RECIPIENTS_MAX}")));
        }
        let trace = body.trace_headers.map(|Object(trace)| trace).unwrap_or_default();
        if trace.supplemental_header {
            let why = "trace_headers.supplemental_header: true is not taken: complaints are known by the return path";
            return Err(InvalidRequest(why.to_owned()));
        }
        let sender = ReversePath::parse(&format!("<{}>", body.envelope_sender));
        let sender = sender.map_err(|error| InvalidRequest(format!("envelope_sender: {error}")))?;
        if matches!(sender, ReversePath::Local(_)) {
            return Err(InvalidRequest("envelope_sender: an address needs a domain".to_owned()));
        }
        let schedule = body.schedule.map(|Object(schedule)| schedule).unwrap_or_default();
        let schedule = Schedule::new(schedule).map_err(InvalidRequest)?;
        let of_request = check_substitutions("", &body.substitutions)?;
        let mut of_recipients = 0;
        let mut recipients = Vec::with_capacity(body.recipients.len());
        for (index, Object(recipient)) in body.recipients.into_iter().enumerate() {
            let (recipient, bytes) = Recipient::new(index, recipient)?;
            recipients.push(recipient);
            of_recipients = of_recipients.max(bytes);
        }
        let mut templates = Templates::new(recipients.len(), of_request + of_recipients);
        let is_static = body.template_dialect == Dialect::Static;
        let content = match body.content {
            ContentBody::Parts(parts) => {
                Built::new(*parts, &mut templates, is_static).map(|built| Content::Built(Box::new(built)))
            }
            ContentBody::Whole(text) => whole(text, &mut templates, is_static),
        };
        let content = content.map_err(InvalidRequest)?;
        if matches!(content, Content::Whole(_)) {
            let mut seen = HashSet::new();
            recipients.retain(|recipient| seen.insert(recipient.path.to_string()));
        }
        let substitutions = Variable::from_serialize(body.substitutions);
        let names_client = trace.received_header;
        Ok(Self { sender, recipients, content, templates, substitutions, names_client, schedule })
    }

    /// True if the Received field names the client.
    pub fn names_client(&self) -> bool {
        self.names_client
    }

    /// The earliest attempt and the expiry.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// True if its messages need templates, which take time.
    pub fn has_templates(&self) -> bool {
        self.templates.has_any()
    }

    /// Number of messages of the request.
    pub fn messages(&self) -> usize {
        match self.content {
            Content::Whole(_) => self.recipients.len().div_ceil(BATCH_RECIPIENTS_MAX),
            Content::Each(..) | Content::Built(_) => self.recipients.len(),
        }
    }

    /// One of its messages, counted from 0 and made on each call. `may_go_on` is called before each template, which
    /// takes about a second at most.
    ///
    /// # Errors
    /// A template fails or makes invalid mail; or `may_go_on` returned false.
    ///
    /// # Panics
    /// The index is too large.
    pub fn message(&self, index: usize, may_go_on: MayGoOn<'_>) -> Result<InjectMessage, InvalidRequest> {
        let made = self.made_for(&self.recipients[index], may_go_on);
        made.map_err(|why| InvalidRequest(format!("{why}, for recipients[{index}]")))
    }

    /// Number of distinct recipients. Parsing the same request again gives them the same indexes.
    pub fn recipients(&self) -> u32 {
        self.recipients.len() as u32
    }

    /// A recipient by its index.
    ///
    /// # Panics
    /// The index is too large.
    pub fn recipient(&self, index: u32) -> &ForwardPath {
        &self.recipients[index as usize].path
    }

    /// The indexes of one message's recipients.
    pub fn indexes_of(&self, message: usize) -> Range<u32> {
        let each = match self.content {
            Content::Whole(_) => BATCH_RECIPIENTS_MAX,
            Content::Each(..) | Content::Built(_) => 1,
        };
        let first = message * each;
        first as u32..(first + each).min(self.recipients.len()) as u32
    }

    fn made_for(&self, recipient: &Recipient, may_go_on: MayGoOn<'_>) -> Result<InjectMessage, String> {
        let variables = || Variables::of(recipient, &self.substitutions);
        let made = match &self.content {
            Content::Whole(message) => return Ok(message.clone()),
            Content::Built(built) => {
                let variables = variables();
                let render = |piece: &Piece| self.templates.render(piece, &variables, may_go_on);
                built.message(&render, (&recipient.path, recipient.name.as_deref()))?
            }
            Content::Each(header, text) => {
                let variables = variables();
                let mut made = self.templates.render(header, &variables, may_go_on)?;
                made.push_str(&self.templates.render(text, &variables, may_go_on)?);
                // Values may have line ends of another kind than the text around them.
                made.replace("\r\n", "\n")
            }
        };
        InjectMessage::new(made.into_bytes())
    }
}

impl Recipient {
    /// Checks a recipient; returns it with the memory of its substitutions.
    fn new(index: usize, body: RecipientBody) -> Result<(Self, usize), InvalidRequest> {
        let RecipientBody { email, name, substitutions } = body;
        let wrong = |why: String| InvalidRequest(format!("recipients[{index}].email: {why}"));
        let path = ForwardPath::parse(&format!("<{email}>")).map_err(|error| wrong(error.to_string()))?;
        if path.address().is_none() {
            return Err(wrong("an address needs a domain".to_owned()));
        }
        let bytes = check_substitutions(&format!("recipients[{index}]."), &substitutions)?;
        Ok((Self { path, name, substitutions }, bytes))
    }
}

/// The variables of a recipient's template: its address and name, its substitutions, then those of the request, which
/// all recipients share.
#[derive(Debug)]
struct Variables {
    email: Variable,
    name: Option<Variable>,
    own: Variable,
    of_request: Variable,
}

impl Variables {
    fn of(recipient: &Recipient, of_request: &Variable) -> Variable {
        Variable::from_object(Self {
            email: recipient.path.bare().into(),
            name: recipient.name.as_deref().map(Variable::from),
            own: Variable::from_serialize(&recipient.substitutions),
            of_request: of_request.clone(),
        })
    }
}

impl Lookup for Variables {
    fn get_value(self: &Arc<Self>, key: &Variable) -> Option<Variable> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Variable> {
        match (key, &self.name) {
            ("email", _) => Some(self.email.clone()),
            ("name", Some(name)) => Some(name.clone()),
            _ => {
                let given = |of: &Variable| of.get_attr(key).ok().filter(|found| !found.is_undefined());
                given(&self.own).or_else(|| given(&self.of_request))
            }
        }
    }
}

/// Upper bound of the memory of a JSON text's values, without their strings. Few octets can contain many values:
/// `[{"":0},{"":0}]`.
fn values_bytes(json: &[u8]) -> usize {
    let mut bytes = 0_usize;
    let mut is_text = false;
    let mut is_escaped = false;
    for octet in json {
        match octet {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            _ if is_text => {}
            b',' | b'[' => bytes += VALUE_BYTES,
            b'{' => bytes += OBJECT_BYTES,
            _ => {}
        }
    }
    bytes
}

/// Checks the memory of substitutions.
fn check_substitutions(of: &str, substitutions: &Map<String, Value>) -> Result<usize, InvalidRequest> {
    fn bytes(value: &Value, depth: usize) -> Option<usize> {
        let within = depth.checked_sub(1)?;
        Some(match value {
            Value::String(text) => VALUE_BYTES + text.len(),
            Value::Array(items) => VALUE_BYTES + items.iter().map(|item| bytes(item, within)).sum::<Option<usize>>()?,
            Value::Object(map) => VALUE_BYTES + of_map(map, within)?,
            Value::Null | Value::Bool(_) | Value::Number(_) => VALUE_BYTES,
        })
    }
    fn of_map(map: &Map<String, Value>, depth: usize) -> Option<usize> {
        map.iter().map(|(key, value)| Some(key.len() + bytes(value, depth)?)).sum()
    }
    match of_map(substitutions, DEPTH_MAX) {
        Some(bytes @ ..=SUBSTITUTIONS_BYTES_MAX) => Ok(bytes),
        Some(_) => Err(InvalidRequest(format!("{of}substitutions: more than {SUBSTITUTIONS_BYTES_MAX} bytes"))),
        None => Err(InvalidRequest(format!("{of}substitutions: deeper than {DEPTH_MAX}"))),
    }
}

/// A whole message; its header and its text are two templates.
fn whole(text: String, templates: &mut Templates, is_static: bool) -> Result<Content, String> {
    if is_static || is_fixed(&text) {
        return InjectMessage::new(text.into_bytes()).map(Content::Whole);
    }
    bare_newlines(text.as_bytes()).map_err(|why| format!("content: {why}"))?;
    let empty = |line_end: &str| {
        if text.starts_with(line_end) {
            Some(line_end.len())
        } else {
            text.find(&line_end.repeat(2)).map(|at| at + 2 * line_end.len())
        }
    };
    let end = empty("\r\n").or_else(|| empty("\n")).unwrap_or(text.len());
    let header = templates.piece("content: header", Place::Header, text[..end].to_owned(), is_static)?;
    let rest = templates.piece("content: text", Place::Text, text[end..].to_owned(), is_static)?;
    Ok(Content::Each(header, rest))
}

impl InjectMessage {
    fn new(content: Vec<u8>) -> Result<Self, String> {
        let bare = bare_newlines(&content).map_err(|why| format!("content: {why}"))?;
        check_header(&content).map_err(|why| format!("content: {why}"))?;
        Ok(Self { wire_bytes: content.len() as u64 + bare, content: content.into() })
    }
}

/// Checks that each line up to the first empty one begins or continues a field (RFC 5322 section 2.2).
///
/// White space before a colon must not be written (section 4.5), and a line `From ` belongs to a mailbox file: other servers would see another header.
fn check_header(content: &[u8]) -> Result<(), String> {
    for (index, line) in content.split(|&octet| octet == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(first) = line.first() else { return Ok(()) };
        let goes_on = index > 0 && matches!(first, b' ' | b'\t');
        if !goes_on && !begins_field(line) {
            let text: String = String::from_utf8_lossy(line).chars().take(LINE_CHARS_SHOWN).collect();
            return Err(format!("line {} is not a header field: {text:?}", index + 1));
        }
    }
    Ok(())
}

fn begins_field(line: &[u8]) -> bool {
    let colon = line.iter().position(|&octet| octet == b':');
    colon.is_some_and(|end| end > 0 && line[..end].iter().all(u8::is_ascii_graphic))
}

/// Checks that all lines end in LF alone, or none. Text that two servers might read as different messages is refused.
fn bare_newlines(content: &[u8]) -> Result<u64, &'static str> {
    if memchr(0, content).is_some() {
        return Err("it has a NUL");
    }
    // Three counts that run many octets at a time: a search for the next of three octets stops twice at each line.
    let count = |octet: u8| memchr_iter(octet, content).count();
    let crs = count(b'\r');
    let lfs = count(b'\n');
    let crlfs = content.iter().zip(&content[1.min(content.len())..]).filter(|pair| *pair == (&b'\r', &b'\n')).count();
    match (crs, lfs) {
        _ if crlfs < crs => Err("it has a bare CR"),
        _ if 0 < crlfs && crlfs < lfs => Err("some lines end in CRLF and some in LF"),
        _ => Ok((lfs - crlfs) as u64),
    }
}

#[cfg(test)]
mod tests;
