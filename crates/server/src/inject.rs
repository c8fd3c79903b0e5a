//! Mail in by HTTP: from the body of a request to messages that are received, and the answer.

use std::io::{BufReader, Cursor};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use posthaste_admin::{ClientAddress, InjectReply, Token};
use posthaste_inject::{InjectAnswer, InjectMessage, InjectRequest, InvalidRequest};
use posthaste_pickup::{Facts, Submission, SubmitError};
use posthaste_smtp::driver::Peer;
use posthaste_smtp::{BodyType, ForwardPath, MailFrom, Reply, ReversePath};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet, spawn_blocking};

use crate::ids::unix_micros;
use crate::receive::{InjectedBody, Receiver};
use posthaste_config::Config;
use crate::renders::{PART_TIME, RenderFailure, Rendering, Renders};

/// Takes messages of requests. Clones share it.
#[derive(Clone)]
pub(crate) struct InjectDoor(Arc<Shared>);

struct Shared {
    receiver: Receiver,
    bounds: RwLock<Bounds>,
    sessions: AtomicU64,
    /// Memory for messages that are made of requests, in KiB.
    room: Arc<Semaphore>,
    room_kib: u32,
    renders: Renders,
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
#[derive(Debug)]
struct Refused {
    status: u16,
    why: String,
}

impl From<Refused> for InjectReply {
    fn from(refused: Refused) -> Self {
        let Refused { status, why } = refused;
        InjectReply { status, body: json!({ "error": why }).to_string(), retry_secs: retry_secs(status) }
    }
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

impl InjectDoor {
    pub fn new(receiver: Receiver, config: &Config) -> Self {
        let room_kib = u32::try_from(config.limits.process.memory_bytes >> 12).unwrap_or(u32::MAX).max(ROOM_KIB_MIN);
        let room_kib = room_kib.min(ROOM_KIB_MAX);
        Self(Arc::new(Shared {
            receiver,
            bounds: RwLock::new(Bounds::of(config)),
            sessions: AtomicU64::new(0),
            room: Arc::new(Semaphore::new(room_kib as usize)),
            room_kib,
            renders: Renders::new(std::thread::available_parallelism().map_or(1, usize::from)),
        }))
    }

    pub fn reload(&self, config: &Config) {
        *self.0.bounds.write().unwrap_or_else(PoisonError::into_inner) = Bounds::of(config);
    }

    /// Receives the mail of a request: all of it is checked before the first message is received, then the messages are received at once and share the syncs of the spool.
    /// The answer counts a recipient as a success once its message is durable.
    pub async fn inject(&self, token: &Token, client: ClientAddress, body: Vec<u8>) -> InjectReply {
        let bounds = self.0.bounds.read().unwrap_or_else(PoisonError::into_inner).clone();
        let rendering = self.0.renders.begin();
        let (request, sizes) = match checked(&rendering, body, &bounds).await {
            Ok(checked) => checked,
            Err(refused) => return refused.into(),
        };
        let bounds = Arc::new(bounds);
        let peer = Peer::Token { name: token.name().into(), client: client.0 };
        let mut answers: Vec<Option<InjectAnswer>> = vec![None; sizes.len()];
        let mut receiving = JoinSet::new();
        for (index, bytes) in sizes.into_iter().enumerate() {
            let kib = u32::try_from(bytes >> 9).unwrap_or(u32::MAX).clamp(MESSAGE_KIB_MIN, self.0.room_kib);
            let room = Arc::clone(&self.0.room).acquire_many_owned(kib).await.expect("it is never closed");
            let (door, request, bounds, peer) = (self.clone(), Arc::clone(&request), Arc::clone(&bounds), peer.clone());
            let rendering = self.0.renders.begin();
            receiving.spawn(async move {
                let answer = door.receive(request, rendering, index, (bounds, peer)).await;
                drop(room);
                answer.map(|answer| (index, answer))
            });
            while let Some(done) = receiving.try_join_next() {
                note(&mut answers, done);
            }
        }
        while let Some(done) = receiving.join_next().await {
            note(&mut answers, done);
        }
        let mut answer = InjectAnswer::default();
        for (index, of_message) in answers.into_iter().enumerate() {
            match of_message {
                Some(of_message) => answer.add(of_message),
                None => request.recipients_of(index).for_each(|path| answer.failed(path, &not_received())),
            }
        }
        let status = answer.status();
        InjectReply { status, body: answer.to_json(), retry_secs: retry_secs(status) }
    }

    /// Receives one message of a request. `None`: it could not be made, which it was before.
    async fn receive(
        &self,
        request: Arc<InjectRequest>,
        rendering: Rendering,
        index: usize,
        (bounds, peer): (Arc<Bounds>, Peer),
    ) -> Option<InjectAnswer> {
        let id = self.0.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        let has_templates = request.has_templates();
        let compose = move |may_go_on: &dyn Fn() -> bool| {
            composed(request.sender.clone(), request.message(index, may_go_on)?, &bounds, id)
        };
        let composed = match has_templates {
            true => rendering.again(compose).await.ok()?,
            false => spawn_blocking(move || compose(&|| true)).await.ok()?,
        };
        let Composed { mail, recipients, body } = composed.ok()?;
        let mut answer = InjectAnswer::default();
        self.0.receiver.inject((id, peer), mail, recipients, body, &mut answer).await;
        Some(answer)
    }
}

/// A panic, which the log has, costs its message only.
fn note(answers: &mut [Option<InjectAnswer>], done: Result<Option<(usize, InjectAnswer)>, JoinError>) {
    if let Ok(Some((index, answer))) = done {
        answers[index] = Some(answer);
    }
}

fn not_received() -> Reply {
    Reply::new(451, "4.3.0", "The message could not be received, try again later")
}

fn retry_secs(status: u16) -> Option<u16> {
    matches!(status, 429 | 503).then_some(RETRY_SECS)
}

/// Makes each message of a request once, and returns its octets. Whatever is checked of one request gives way to others now and then.
async fn checked(
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
fn composed(sender: ReversePath, message: InjectMessage, bounds: &Bounds, id: u64) -> Result<Composed, Refused> {
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
/// A large message is alone if it takes all of the room.
const ROOM_KIB_MIN: u32 = 16 << 10;
const ROOM_KIB_MAX: u32 = 1 << 24;
const MESSAGE_KIB_MIN: u32 = 16;
/// Until a full spool or a quota may have room again.
const RETRY_SECS: u16 = 10;
