//! Mail in by HTTP: from the body of a request to messages that are received, and the answer.

mod compose;
mod keys;
mod refusal;
mod senders;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use posthaste_admin::{INJECT_PATH, InjectCall, InjectReply};
#[cfg(feature = "cluster")]
pub(crate) use posthaste_inject::keys::KEY_STREAM;
use posthaste_inject::keys::{FoundKey, KeyOutcome};
use posthaste_inject::{InjectAnswer, InjectRequest, Refusal};
use posthaste_smtp::Reply;
use posthaste_smtp::driver::Peer;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet, spawn_blocking};

use self::compose::{Bounds, CheckedRequest, Composed, blocking, checked, composed, is_long};
pub(crate) use self::keys::InjectKeys;
use self::keys::KeyedRequest;
use self::refusal::Refused;
use self::senders::AllowedSenders;
use crate::receive::handler::{InjectedMail, Outcomes, Receiver};
use crate::services::renders::{RenderFailure, Rendering, Renders};
use posthaste_config::Config;

/// Takes messages of requests. Clones share it.
#[derive(Clone)]
pub(crate) struct Injector(Arc<Shared>);

struct Shared {
    receiver: Receiver,
    keys: InjectKeys,
    bounds: RwLock<Bounds>,
    sessions: AtomicU64,
    /// Memory for messages made from requests, in KiB.
    room: Arc<Semaphore>,
    room_kib: u32,
    renders: Renders,
}

impl From<Refused> for InjectReply {
    fn from(refused: Refused) -> Self {
        let Refused { status, why } = refused;
        InjectReply { body: json!({ "error": why }).to_string(), ..InjectReply::of(status) }
    }
}

/// A request that was checked.
struct Delivery {
    injector: Injector,
    request: Arc<InjectRequest>,
    /// Octets of its messages.
    sizes: Vec<u64>,
    only: Option<Composed>,
    bounds: Arc<Bounds>,
    peer: Peer,
    tenant: Option<Arc<str>>,
    key: Option<Arc<KeyedRequest>>,
    /// The client waits for the answer.
    is_asked: Arc<AtomicBool>,
}

/// Signals that the client has disconnected, or has its answer.
struct Asking(Arc<AtomicBool>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Injector {
    pub fn new(receiver: Receiver, keys: InjectKeys, config: &Config) -> Self {
        let room_kib = u32::try_from(config.limits.process.memory_bytes >> 12).unwrap_or(u32::MAX).max(ROOM_KIB_MIN);
        let room_kib = room_kib.min(ROOM_KIB_MAX);
        Self(Arc::new(Shared {
            receiver,
            keys,
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

    /// Receives the mail of a request. The whole request is validated before the first message is received. Then the
    /// messages are received concurrently, and share the syncs of the spool. A recipient counts as a success once its
    /// message is durable.
    pub async fn inject(&self, call: InjectCall<'_>) -> InjectReply {
        self.answer(call).await.unwrap_or_else(InjectReply::from)
    }

    async fn answer(&self, call: InjectCall<'_>) -> Result<InjectReply, Refused> {
        let InjectCall { token, client, key, body, share } = call;
        let mut bounds = self.0.bounds.read().unwrap_or_else(PoisonError::into_inner).clone();
        bounds.senders = AllowedSenders::of(token, self.0.receiver.settings()).map(Arc::new);
        let tenant = token.tenant().map(Arc::from);
        let (key, body) = match key {
            None => (None, body),
            Some(key) => match self.0.keys.begin(token.hash(), (INJECT_PATH, key), body).await? {
                (FoundKey::Complete(outcome), body) => return replayed(body, outcome).await,
                (FoundKey::Open(running), body) => (Some(Arc::new(self.0.keys.keyed(running))), body),
            },
        };
        let rendering = self.0.renders.begin();
        let CheckedRequest { request, sizes, only } = checked(&rendering, body, &bounds, self.next_session()).await?;
        let is_asked = Arc::new(AtomicBool::new(true));
        let asking = Asking(Arc::clone(&is_asked));
        let peer = Peer::Token { name: token.name().into(), client: client.0 };
        let bounds = Arc::new(bounds);
        let delivery = Delivery { injector: self.clone(), request, sizes, only, bounds, peer, tenant, key, is_asked };
        let reply = if delivery.key.is_some() {
            // Messages under way are finished although the client leaves: until then nobody knows what a repeated request has left to do.
            let run = async move {
                let reply = delivery.run().await;
                drop(share);
                reply
            };
            tokio::spawn(run).await.map_err(|_| RenderFailure::Panicked)?
        } else {
            delivery.run().await
        };
        drop(asking);
        Ok(reply)
    }

    /// Receives one message of a request, for the recipients with these indexes. `None`: it could not be made, although
    /// it was before.
    async fn receive(
        &self,
        request: Arc<InjectRequest>,
        composed: Option<Composed>,
        (indexes, received_id): (Vec<u32>, String),
        (peer, tenant): (Peer, Option<Arc<str>>),
        key: Option<Arc<KeyedRequest>>,
    ) -> Option<Outcomes> {
        let (names_client, total) = (request.names_client(), request.recipients());
        let recipients = indexes.into_iter().map(|index| (index, request.recipient(index).clone())).collect();
        drop(request);
        let Composed { id, mail, body, .. } = composed?;
        let injected = InjectedMail { id, received_id, peer, mail, recipients, body, names_client, tenant };
        let Some(key) = key else { return Some(self.0.receiver.inject(injected, None).await) };
        let settles = |settled, failed| key.entry(total, settled, failed);
        Some(self.0.receiver.inject(injected, Some(&settles)).await)
    }

    /// Makes a message again. `None`: the client has disconnected.
    async fn made_again(
        &self,
        request: Arc<InjectRequest>,
        (number, bytes): (usize, u64),
        rendering: Rendering,
        bounds: Arc<Bounds>,
    ) -> Option<Composed> {
        let (id, has_templates) = (self.next_session(), request.has_templates());
        let compose = move |may_go_on: &dyn Fn() -> bool| composed(&request, number, may_go_on, &bounds, id);
        let composed = if has_templates {
            rendering.again(compose).await
        } else {
            blocking(is_long(bytes as usize), move || compose(&|| true)).await
        };
        composed.ok()?.ok()
    }

    fn next_session(&self) -> u64 {
        self.0.sessions.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Delivery {
    /// Receives the remaining messages, and answers for all recipients.
    async fn run(self) -> InjectReply {
        let Self { injector, request, sizes, mut only, bounds, peer, tenant, key, is_asked } = self;
        let before = key.as_ref().map(|key| key.running.before().clone()).unwrap_or_default();
        let mut outcomes = Outcomes::new();
        let mut receiving = JoinSet::new();
        let request_id = injector.0.receiver.new_id();
        let is_single = sizes.len() == 1;
        for (number, bytes) in sizes.into_iter().enumerate() {
            let left: Vec<u32> = request.indexes_of(number).filter(|index| !before.settled.has(*index)).collect();
            if left.is_empty() {
                continue;
            }
            let kib = u32::try_from(bytes >> 9).unwrap_or(u32::MAX).clamp(MESSAGE_KIB_MIN, injector.0.room_kib);
            let room = Arc::clone(&injector.0.room).acquire_many_owned(kib).await.expect("it is never closed");
            if !is_asked.load(Ordering::Relaxed) {
                break;
            }
            let received_id = format!("{request_id}.{}", number + 1);
            let (of_message, request, bounds, key) =
                (injector.clone(), Arc::clone(&request), Arc::clone(&bounds), key.clone());
            let (only, peer, tenant) = (only.take(), peer.clone(), tenant.clone());
            let receive = async move {
                let composed = match only {
                    Some(only) => Some(only),
                    None => {
                        let rendering = of_message.0.renders.begin();
                        of_message.made_again(Arc::clone(&request), (number, bytes), rendering, bounds).await
                    }
                };
                let of_request = (left, received_id);
                let outcomes = of_message.receive(request, composed, of_request, (peer, tenant), key).await;
                drop(room);
                outcomes
            };
            if is_single {
                // Another task would only wake this one.
                note(&mut outcomes, Ok(receive.await));
                break;
            }
            receiving.spawn(receive);
            while let Some(done) = receiving.try_join_next() {
                note(&mut outcomes, done);
            }
        }
        while let Some(done) = receiving.join_next().await {
            note(&mut outcomes, done);
        }
        let failed_before = before.failed.into_iter().map(|(index, refusal)| (index, Err(refusal)));
        outcomes.extend(failed_before);
        let missing = Err(Refusal::of(&Reply::new(451, "4.3.0", "The message could not be received, try again later")));
        reply(&request, |index| match outcomes.get(&index) {
            Some(outcome) => outcome.as_ref(),
            None if before.settled.has(index) => Ok(&()),
            None => missing.as_ref(),
        })
    }
}

/// Notes a panic, which is logged and costs only its message.
fn note(outcomes: &mut Outcomes, done: Result<Option<Outcomes>, JoinError>) {
    outcomes.extend(done.ok().flatten().into_iter().flatten());
}

/// The answer to a request whose recipients are all settled.
async fn replayed(body: Vec<u8>, outcome: KeyOutcome) -> Result<InjectReply, Refused> {
    let parsed = spawn_blocking(move || InjectRequest::parse(&body)).await;
    let request = parsed.map_err(|_| RenderFailure::Panicked)??;
    let reply = reply(&request, |index| outcome.failed.get(&index).map_or(Ok(&()), Err));
    Ok(InjectReply { is_replayed: true, ..reply })
}

fn reply<'a>(request: &InjectRequest, outcome: impl Fn(u32) -> Result<&'a (), &'a Refusal>) -> InjectReply {
    let mut answer = InjectAnswer::default();
    for index in 0..request.recipients() {
        match outcome(index) {
            Ok(()) => answer.accepted(1),
            Err(refusal) => answer.failed(request.recipient(index), refusal),
        }
    }
    InjectReply { body: answer.to_json(), ..InjectReply::of(answer.status()) }
}

/// Minimum memory: a large message may use all of it, alone.
const ROOM_KIB_MIN: u32 = 16 << 10;
const ROOM_KIB_MAX: u32 = 1 << 24;
const MESSAGE_KIB_MIN: u32 = 16;
