//! The messages of a request, as they are received.

use std::io::{BufReader, Cursor};
use std::sync::Arc;
use std::time::Instant;

use posthaste_inject::{InjectMessage, InjectRequest, InvalidRequest};
use posthaste_pickup::{Facts, Submission, SubmitError};
use posthaste_smtp::{BodyType, ForwardPath, MailFrom, ReversePath};
use tokio::task::spawn_blocking;

use super::senders::AllowedSenders;
use crate::ids::unix_micros;
use crate::receive::InjectedBody;
use crate::renders::{PART_TIME, RenderFailure, Rendering};
use posthaste_config::Config;

#[derive(Clone)]
pub(super) struct Bounds {
    /// The domain of a new Message-ID.
    origin: String,
    header_bytes: u64,
    /// `None`: no limit.
    message_bytes: Option<u64>,
    /// `None`: mail may be from anybody.
    pub senders: Option<Arc<AllowedSenders>>,
}

impl Bounds {
    pub fn of(config: &Config) -> Self {
        let limits = &config.limits.session;
        Self {
            origin: config.pickup.origin.clone(),
            header_bytes: limits.header_bytes,
            message_bytes: Some(limits.message_bytes).filter(|&bytes| bytes > 0),
            senders: None,
        }
    }
}

/// A message that can be received.
pub(super) struct Composed {
    pub mail: MailFrom,
    pub recipients: Vec<ForwardPath>,
    pub body: InjectedBody,
}

/// A request of which nothing is received.
#[derive(Debug)]
pub(super) struct Refused {
    pub status: u16,
    pub why: String,
}

impl From<InvalidRequest> for Refused {
    fn from(error: InvalidRequest) -> Self {
        Self { status: 400, why: error.to_string() }
    }
}

impl From<RenderFailure> for Refused {
    fn from(failure: RenderFailure) -> Self {
        match failure {
            RenderFailure::Busy => Self { status: 503, why: "too many templates are rendered now".to_owned() },
            RenderFailure::Panicked => Self { status: 500, why: "the request could not be read".to_owned() },
        }
    }
}

/// Makes each message of a request once, and returns its octets. Whatever is checked of one request gives way to others now and then.
pub(super) async fn checked(
    rendering: &Rendering,
    body: Vec<u8>,
    bounds: &Bounds,
) -> Result<(Arc<InjectRequest>, Vec<u64>), Refused> {
    let parse = move || InjectRequest::parse(&body).map(Arc::new);
    let request = spawn_blocking(parse).await.map_err(|_| RenderFailure::Panicked)??;
    let mut sizes = Vec::with_capacity(request.messages());
    while sizes.len() < request.messages() {
        let (of_part, bounds) = (Arc::clone(&request), bounds.clone());
        let check = move |may_go_on: &dyn Fn() -> bool| checked_part(&of_part, sizes, &bounds, may_go_on);
        sizes = match request.has_templates() {
            true => rendering.part(check).await??,
            false => spawn_blocking(move || check(&|| true)).await.map_err(|_| RenderFailure::Panicked)??,
        };
    }
    Ok((request, sizes))
}

/// Makes messages behind those whose octets are known, for [`PART_TIME`].
fn checked_part(
    request: &InjectRequest,
    mut sizes: Vec<u64>,
    bounds: &Bounds,
    may_go_on: &dyn Fn() -> bool,
) -> Result<Vec<u64>, Refused> {
    let (begun, mut all) = (Instant::now(), sizes.iter().sum::<u64>());
    while sizes.len() < request.messages() && (begun.elapsed() < PART_TIME || !request.has_templates()) {
        let message = request.message(sizes.len(), may_go_on)?;
        sizes.push(message.wire_bytes);
        all += message.wire_bytes;
        if all > REQUEST_BYTES_MAX {
            let why = format!("the messages of the request are larger than {REQUEST_BYTES_MAX} bytes together");
            return Err(Refused { status: 413, why });
        }
        composed(request.sender.clone(), message, bounds, 0)?;
    }
    Ok(sizes)
}

/// The message as it is received: lines end in CRLF, Bcc is out, and Date, From and Message-ID are there.
pub(super) fn composed(
    sender: ReversePath,
    message: InjectMessage,
    bounds: &Bounds,
    id: u64,
) -> Result<Composed, Refused> {
    let InjectMessage { recipients, content, wire_bytes } = message;
    if let Some(limit) = bounds.message_bytes.filter(|&limit| wire_bytes > limit) {
        return Err(Refused { status: 413, why: format!("content: larger than {limit} bytes") });
    }
    let facts = Facts {
        origin: bounds.origin.clone(),
        header_bytes_max: bounds.header_bytes,
        message_bytes_max: None,
        unix_secs: unix_micros() / 1_000_000,
        unique: format!("{}.{id}.http", unix_micros()),
    };
    let submission = Submission {
        sender: sender.bare(),
        recipients: recipients.iter().map(ToString::to_string).collect(),
        dot_is_text: true,
        ..Submission::default()
    };
    let is_ascii = content.is_ascii();
    let input = BufReader::with_capacity(InjectedBody::READ_BYTES, Cursor::new(content));
    let (completed, text) = submission.read_header(input, &facts).map_err(|error| {
        let status = if matches!(error, SubmitError::HeaderTooLarge { .. }) { 413 } else { 400 };
        Refused { status, why: format!("content: {error}") }
    })?;
    if let Some(senders) = &bounds.senders {
        senders.check(&sender, &completed.header)?;
    }
    let mut mail = completed.head.mail;
    (mail.reverse_path, mail.size) = (sender, Some(wire_bytes));
    if !is_ascii {
        mail.body = BodyType::EightBitMime;
    }
    mail.smtputf8 |= !completed.header.is_ascii();
    Ok(Composed { mail, recipients, body: InjectedBody::new(completed.header, text) })
}

/// Octets of all messages of a request.
const REQUEST_BYTES_MAX: u64 = 1 << 30;
