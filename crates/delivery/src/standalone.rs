//! Standalone mode: syncs the Maildir files themselves.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use posthaste_intake::IntakeError;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::error::{DeliveryError, MessageId};
use crate::flusher::{Config, Request, Shared};
use crate::lanes::Lanes;
use crate::stats::DeliveryStats;

/// Shared by all clones. Dropping the last one drops the lanes' senders, which ends the flushers once their queues are
/// empty.
#[derive(Debug, Clone)]
pub(crate) struct Standalone {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    lanes: Lanes,
    shared: Arc<Shared>,
    ended: Mutex<mpsc::Receiver<()>>,
}

impl Standalone {
    pub(crate) fn new(config: Config) -> Self {
        let shared = Arc::new(Shared::default());
        let (lanes, ended) = Lanes::new(config, shared.clone());
        Self { inner: Arc::new(Inner { lanes, shared, ended: Mutex::new(ended) }) }
    }

    pub(crate) async fn deliver(&self, path: &Path, body: Bytes) -> Result<MessageId, DeliveryError> {
        let lane = self.inner.lanes.for_path(path).await?;
        let (reply, outcome) = oneshot::channel();
        let request = Request { path: path.into(), body, reply, queued: Instant::now() };
        lane.send(request).await.map_err(|_| IntakeError::Closed)?;
        drop(lane);
        // The flusher answers every request, so a missing answer means that it has ended.
        outcome.await.unwrap_or(Err(IntakeError::Closed.into()))
    }

    pub(crate) fn stats(&self) -> DeliveryStats {
        self.inner.shared.stats()
    }

    pub(crate) async fn shutdown(&self) {
        self.inner.lanes.close();
        // `recv` returns `None` once the last flusher has dropped its sender; further calls return at once.
        while self.inner.ended.lock().await.recv().await.is_some() {}
    }
}
