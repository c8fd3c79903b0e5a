//! Idempotency keys: their log, which is opened on demand, and a request with its key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use posthaste_consumer::StreamOpenError;
use posthaste_inject::Refusal;
use posthaste_inject::keys::{
    FoundKey, Indexes, KEY_STREAM, KeyId, KeyLog, KeyRefusal, KeyReport, RunningKey, body_digest,
};
use posthaste_spool::{Entry, Spool};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::compose::{blocking, is_long};
use super::refusal::Refused;
use crate::lifecycle::{Ending, OnFailure, Service, end_blocking};
use crate::receive::handler::Receiver;

/// The log of keys. A server without such requests has no stream for them.
#[derive(Clone)]
pub(crate) struct InjectKeys(Arc<Shared>);

struct Shared {
    spool: Arc<dyn Spool>,
    log: OnceCell<KeyLog>,
}

/// A request that holds its key.
pub(super) struct KeyedRequest {
    keys: InjectKeys,
    pub running: RunningKey,
}

impl InjectKeys {
    /// Opens the log if its stream exists: a stream without a consumer keeps its entries in the spool.
    pub async fn start(receiver: &Receiver) -> Self {
        let spool = Arc::clone(receiver.destinations().intake().spool());
        let keys = Self(Arc::new(Shared { log: OnceCell::new(), spool }));
        let is_known = keys.0.spool.streams().iter().any(|stream| stream.name == KEY_STREAM);
        if is_known && let Err(error) = keys.log().await {
            let help = "requests with an Idempotency-Key are refused; the next one tries again";
            receiver.destinations().stuck().add(KEY_STREAM, &error, help);
        }
        keys
    }

    async fn log(&self) -> Result<&KeyLog, StreamOpenError> {
        let open = || async {
            let spool = Arc::clone(&self.0.spool);
            let opened = spawn_blocking(move || KeyLog::open(spool)).await;
            let (log, report) =
                opened.map_err(std::io::Error::from).map_err(StreamOpenError::io("the keys of requests"))??;
            tell(&report);
            Ok(log)
        };
        self.0.log.get_or_try_init(open).await
    }

    /// Begins a request with a key. Returns its body.
    pub(super) async fn begin(
        &self,
        token: &[u8; 32],
        (path, key): (&str, &str),
        body: Vec<u8>,
    ) -> Result<(FoundKey, Vec<u8>), Refused> {
        let log = self.log().await.map_err(|error| {
            tracing::error!(error = error.to_string(), "Idempotency-Keys cannot be read");
            Refused { status: 503, why: "Idempotency-Keys cannot be read now".to_owned() }
        })?;
        let (digest, body) = blocking(is_long(body.len()), move || (body_digest(&body), body)).await?;
        let found = log.begin(KeyId::new(token, path, key), digest).map_err(|refusal| {
            let status = match refusal {
                KeyRefusal::Running => 409,
                KeyRefusal::OtherBody => 422,
                KeyRefusal::TooMany => 503,
            };
            Refused { status, why: refusal.to_string() }
        })?;
        Ok((found, body))
    }

    pub(super) fn keyed(&self, running: RunningKey) -> KeyedRequest {
        KeyedRequest { keys: self.clone(), running }
    }

    /// Ends it with the server.
    pub fn service(&self) -> impl Service + use<> {
        KeyService(self.clone())
    }
}

impl KeyedRequest {
    /// The entry of a batch that settles these of `total` recipients.
    pub fn entry(&self, total: u32, settled: Indexes, failed: BTreeMap<u32, Refusal>) -> Entry {
        let log = self.keys.0.log.get().expect("it was opened before a request could begin");
        log.entry(&self.running.settles(total, settled, failed, log.now()))
    }
}

fn tell(report: &KeyReport) {
    let KeyReport { unreadable, damaged, uncertain } = report;
    if unreadable.is_empty() && damaged.is_empty() && uncertain.is_none() {
        return;
    }
    for snapshot in unreadable {
        let (file, what) = (&*snapshot.place, &*snapshot.what);
        tracing::error!(file, what, "a snapshot of the Idempotency-Keys cannot be read");
    }
    if damaged.is_empty() && uncertain.is_none() {
        // The snapshot before and the log have had all of them.
        return;
    }
    let snapshots = unreadable.len();
    let batches = damaged.len();
    let through = uncertain.map(tracing::field::display);
    tracing::error!(
        snapshots,
        batches,
        through,
        "some Idempotency-Keys are lost: a repeated request may be accepted twice"
    );
}

struct KeyService(InjectKeys);

impl Service for KeyService {
    fn name(&self) -> &'static str {
        "keys of requests"
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("keys of requests stay in the spool")
    }

    fn stop(self: Box<Self>, _: Instant) -> Ending<'static> {
        end_blocking(move || {
            if let Some(log) = self.0.0.log.get() {
                log.end();
            }
        })
    }

    fn poll_failed(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}
