//! The messages of a request, in their received form.

use std::sync::Arc;
use std::time::Instant;

use posthaste_inject::{InjectMessage, InjectRequest};
use posthaste_pickup::{Facts, Reading, SubmitError, complete_header};
use posthaste_smtp::command::Hold;
use posthaste_smtp::{BodyType, MailFrom};
use posthaste_units::A_YEAR;
use tokio::task::spawn_blocking;

use super::refusal::Refused;
use super::senders::AllowedSenders;
use crate::ids::unix_micros;
use crate::receive::handler::{BodyOctets, InjectedBody};
use crate::services::renders::{PART_TIME, RenderFailure, Rendering};
use posthaste_config::Config;

#[derive(Clone)]
pub(super) struct Bounds {
    /// The domain of a new Message-ID.
    origin: String,
    header_bytes: u64,
    /// `None`: unlimited.
    message_bytes: Option<u64>,
    /// `None`: any sender.
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
    /// Number of its session.
    pub id: u64,
    /// Octets on the wire.
    pub bytes: u64,
    pub mail: MailFrom,
    pub body: InjectedBody,
}

/// A request with valid messages only.
pub(super) struct CheckedRequest {
    pub request: Arc<InjectRequest>,
    /// Octets of each message.
    pub sizes: Vec<u64>,
    /// The only message, unless a template makes it. Others are made again in turn, so that only one is in memory.
    pub only: Option<Composed>,
}

/// Parses a request and makes each of its messages once, the first for the session `id`. The work of one request yields
/// to others regularly.
pub(super) async fn checked(
    rendering: &Rendering,
    body: Vec<u8>,
    bounds: &Bounds,
    id: u64,
) -> Result<CheckedRequest, Refused> {
    let (bytes, is_quick) = (body.len(), InjectRequest::is_quick(&body));
    let parse = move || InjectRequest::parse(&body).map(Arc::new);
    let request = blocking(!is_quick, parse).await??;
    let latest = unix_micros() / 1_000_000 + A_YEAR as i64;
    if request.schedule().first_attempt.is_some_and(|first| first > latest) {
        return Err(Refused { status: 400, why: "schedule.first_attempt: a year ahead at most".to_owned() });
    }
    if request.messages() == 1 && !request.has_templates() {
        let (of_request, bounds) = (Arc::clone(&request), bounds.clone());
        let only = blocking(is_long(bytes), move || composed(&of_request, 0, &|| true, &bounds, id)).await??;
        return Ok(CheckedRequest { sizes: vec![only.bytes], only: Some(only), request });
    }
    let mut sizes = Vec::with_capacity(request.messages());
    while sizes.len() < request.messages() {
        let (of_part, bounds) = (Arc::clone(&request), bounds.clone());
        let check = move |may_go_on: &dyn Fn() -> bool| checked_part(&of_part, sizes, &bounds, may_go_on);
        sizes = if request.has_templates() {
            rendering.part(check).await??
        } else {
            spawn_blocking(move || check(&|| true)).await.map_err(|_| RenderFailure::Panicked)??
        };
    }
    Ok(CheckedRequest { request, sizes, only: None })
}

/// Runs work inline if it is short, as another thread would take longer to be notified; else on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(
    is_long: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RenderFailure> {
    if is_long { spawn_blocking(work).await.map_err(|_| RenderFailure::Panicked) } else { Ok(work()) }
}

/// True if one pass over this many octets is worth another thread.
pub(super) fn is_long(bytes: usize) -> bool {
    bytes > AT_ONCE_BYTES_MAX
}

/// Makes further messages, after those with known size, for [`PART_TIME`].
fn checked_part(
    request: &InjectRequest,
    mut sizes: Vec<u64>,
    bounds: &Bounds,
    may_go_on: &dyn Fn() -> bool,
) -> Result<Vec<u64>, Refused> {
    let (begun, mut all) = (Instant::now(), sizes.iter().sum::<u64>());
    while sizes.len() < request.messages() && (begun.elapsed() < PART_TIME || !request.has_templates()) {
        let Composed { bytes, .. } = composed(request, sizes.len(), may_go_on, bounds, 0)?;
        sizes.push(bytes);
        all += bytes;
        if all > REQUEST_BYTES_MAX {
            let why = format!("the messages of the request are larger than {REQUEST_BYTES_MAX} bytes together");
            return Err(Refused { status: 413, why });
        }
    }
    Ok(sizes)
}

/// One message of a request in its received form: CRLF line ends, without Bcc, with Date, From and Message-ID.
pub(super) fn composed(
    request: &InjectRequest,
    number: usize,
    may_go_on: &dyn Fn() -> bool,
    bounds: &Bounds,
    id: u64,
) -> Result<Composed, Refused> {
    let InjectMessage { content, wire_bytes } = request.message(number, may_go_on)?;
    if let Some(limit) = bounds.message_bytes.filter(|&limit| wire_bytes > limit) {
        return Err(Refused { status: 413, why: format!("content: larger than {limit} bytes") });
    }
    let now = unix_micros();
    let facts = Facts {
        origin: bounds.origin.clone(),
        header_bytes_max: bounds.header_bytes,
        message_bytes_max: None,
        unix_secs: now / 1_000_000,
        unique: format!("{now}.{id}.http"),
    };
    let (is_ascii, has_crlf) = (content.is_ascii(), wire_bytes == content.len() as u64);
    let read = Reading::begin(BodyOctets(content), false, facts.header_bytes_max);
    let (header, text) = read.map_err(|error| {
        let status = if matches!(error, SubmitError::HeaderTooLarge { .. }) { 413 } else { 400 };
        Refused { status, why: format!("content: {error}") }
    })?;
    let header = complete_header(&header, &request.sender, None, &facts);
    if let Some(senders) = &bounds.senders {
        senders.check(&request.sender, &header)?;
    }
    let mut mail = MailFrom::new(request.sender.clone());
    let schedule = request.schedule();
    // A time that has passed holds nothing up, so mailboxes here can have it.
    let hold = schedule.first_attempt.filter(|&first| first > now / 1_000_000).map(Hold::Until);
    (mail.size, mail.hold, mail.expires) = (Some(wire_bytes), hold, schedule.expires);
    if !is_ascii {
        mail.body = BodyType::EightBitMime;
    }
    let mut recipients = request.indexes_of(number).map(|index| request.recipient(index));
    mail.smtputf8 = !request.sender.is_ascii() || !header.is_ascii() || recipients.any(|path| !path.is_ascii());
    Ok(Composed { id, bytes: wire_bytes, mail, body: InjectedBody::new(header, text, has_crlf) })
}

/// Octets of inline work: about 100 µs.
const AT_ONCE_BYTES_MAX: usize = 64 << 10;
/// Octets of all messages of a request.
const REQUEST_BYTES_MAX: u64 = 1 << 30;
