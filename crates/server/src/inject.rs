//! Mail in by HTTP: from the body of a request to messages that are received, and the answer.

use std::io::{BufReader, Cursor};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use posthaste_admin::{ClientAddress, InjectReply, Token};
use posthaste_inject::{InjectAnswer, InjectRequest};
use posthaste_pickup::{Facts, Submission, SubmitError};
use posthaste_smtp::driver::Peer;
use posthaste_smtp::{BodyType, ForwardPath, MailFrom};
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::config::Config;
use crate::ids::unix_micros;
use crate::receive::{InjectedBody, Receiver};

/// Takes messages of requests.
pub(crate) struct InjectDoor {
    receiver: Receiver,
    bounds: RwLock<Bounds>,
    sessions: AtomicU64,
}

#[derive(Clone)]
struct Bounds {
    /// The domain of a new Message-ID.
    origin: String,
    header_bytes: u64,
    /// `None`: no limit.
    message_bytes: Option<u64>,
}

impl Bounds {
    fn of(config: &Config) -> Self {
        let limits = &config.limits.session;
        Self {
            origin: config.pickup.origin.clone(),
            header_bytes: limits.header_bytes,
            message_bytes: Some(limits.message_bytes).filter(|&bytes| bytes > 0),
        }
    }
}

/// A message that can be received.
struct Composed {
    mail: MailFrom,
    recipients: Vec<ForwardPath>,
    body: InjectedBody,
}

/// A request of which nothing is received.
struct Refused {
    status: u16,
    why: String,
}

impl InjectDoor {
    pub fn new(receiver: Receiver, config: &Config) -> Self {
        Self { receiver, bounds: RwLock::new(Bounds::of(config)), sessions: AtomicU64::new(0) }
    }

    pub fn reload(&self, config: &Config) {
        *self.bounds.write().unwrap_or_else(PoisonError::into_inner) = Bounds::of(config);
    }

    /// Receives the message of a request. The answer counts a recipient as a success once the message is durable for it.
    pub async fn inject(&self, token: &Token, client: ClientAddress, body: Vec<u8>) -> InjectReply {
        let bounds = self.bounds.read().unwrap_or_else(PoisonError::into_inner).clone();
        let id = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        let compose = move || composed(body, &bounds, id);
        let composed = spawn_blocking(compose).await.unwrap_or_else(|_| {
            // A panic, which the log has.
            Err(Refused { status: 500, why: "the request could not be read".to_owned() })
        });
        let Composed { mail, recipients, body } = match composed {
            Ok(composed) => composed,
            Err(Refused { status, why }) => {
                return InjectReply { status, body: json!({ "error": why }).to_string(), retry_secs: None };
            }
        };
        let peer = Peer::Token { name: token.name().into(), client: client.0 };
        let mut answer = InjectAnswer::default();
        self.receiver.inject((id, peer), mail, recipients, body, &mut answer).await;
        let status = answer.status();
        InjectReply { status, body: answer.to_json(), retry_secs: matches!(status, 429 | 503).then_some(RETRY_SECS) }
    }
}

/// The message as it is received: lines end in CRLF, Bcc is out, and Date, From and Message-ID are there.
fn composed(body: Vec<u8>, bounds: &Bounds, id: u64) -> Result<Composed, Refused> {
    let request = InjectRequest::parse(&body).map_err(|error| Refused { status: 400, why: error.to_string() })?;
    drop(body);
    let InjectRequest { sender, recipients, content, wire_bytes } = request;
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
    let mut mail = completed.head.mail;
    (mail.reverse_path, mail.size) = (sender, Some(wire_bytes));
    if !is_ascii {
        mail.body = BodyType::EightBitMime;
    }
    mail.smtputf8 |= !completed.header.is_ascii();
    Ok(Composed { mail, recipients, body: InjectedBody::new(completed.header, text) })
}

/// Until a full spool or a quota may have room again.
const RETRY_SECS: u16 = 10;
