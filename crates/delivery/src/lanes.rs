//! One lane per mounted file system: a queue and its flushers. A hanging file system fills only its own lane.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use posthaste_intake::IntakeError;
use tokio::sync::{Semaphore, mpsc};

use crate::cache::Recent;
use crate::error::DeliveryError;
use crate::flusher::{Config, Request, Shared};

/// Maximum lanes; further file systems share them.
const LANES_MAX: usize = 64;
/// Remembered paths with their file systems, in each of two generations.
const PATHS_REMEMBERED: usize = 32 * 1024;
/// Concurrent first look-ups of paths. A hanging file system can hold this many; then only unknown paths wait.
const LOOKUPS_MAX: usize = 16;

/// Sorts requests into lanes, and starts a lane's threads with its first request.
#[derive(Debug)]
pub(crate) struct Lanes {
    config: Config,
    shared: Arc<Shared>,
    state: Mutex<State>,
    lookups: Arc<Semaphore>,
}

#[derive(Debug)]
struct State {
    senders: HashMap<u64, mpsc::Sender<Request>>,
    device_of: Recent<PathBuf, u64>,
    /// Held by every flusher: once all copies are dropped, all threads have ended. `None` after shutdown.
    alive: Option<mpsc::Sender<()>>,
}

impl Lanes {
    /// The lanes, and a receiver that ends when all their threads have.
    pub(crate) fn new(config: Config, shared: Arc<Shared>) -> (Self, mpsc::Receiver<()>) {
        let (alive, ended) = mpsc::channel(1);
        let state = State { senders: HashMap::new(), device_of: Recent::new(PATHS_REMEMBERED), alive: Some(alive) };
        (Self { config, shared, state: Mutex::new(state), lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)) }, ended)
    }

    /// The queue for `path`. A blocking thread looks up its file system the first time.
    pub(crate) async fn for_path(&self, path: &Path) -> Result<mpsc::Sender<Request>, DeliveryError> {
        let (known, forgotten) = {
            let mut state = self.lock();
            let (device, forgotten) = state.device_of.get(path);
            (device.copied(), forgotten)
        };
        drop(forgotten);
        let device = match known {
            Some(device) => device,
            None => {
                let device = self.look_up(path.to_owned()).await?;
                let forgotten = self.lock().device_of.insert(path.to_owned(), device);
                drop(forgotten);
                device
            }
        };
        self.sender(device)
    }

    /// Refuses further requests; the lanes end once they have flushed.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.alive = None;
        state.senders.clear();
    }

    async fn look_up(&self, path: PathBuf) -> Result<u64, DeliveryError> {
        // The permit stays with the blocking call: a caller that gives up on a hanging file system frees no place.
        let permit = self.lookups.clone().acquire_owned().await.map_err(|_| IntakeError::Closed)?;
        let look_up = move || {
            let device = device_of(&path);
            drop(permit);
            device
        };
        tokio::task::spawn_blocking(look_up)
            .await
            .map_err(|e| DeliveryError::Mailbox(io::Error::other(e)))?
            .map_err(DeliveryError::of_mailbox)
    }

    fn sender(&self, device: u64) -> Result<mpsc::Sender<Request>, DeliveryError> {
        let mut state = self.lock();
        let alive = state.alive.clone().ok_or(IntakeError::Closed)?;
        if let Some(sender) = state.senders.get(&device) {
            return Ok(sender.clone());
        }
        // A lane can serve any file system; separate lanes only prevent waiting for each other.
        let shared_lane = state.senders.values().next().filter(|_| state.senders.len() >= LANES_MAX);
        if let Some(sender) = shared_lane {
            return Ok(sender.clone());
        }
        let sender = self.shared.start_lane(&self.config, alive).map_err(DeliveryError::Mailbox)?;
        state.senders.insert(device, sender.clone());
        Ok(sender)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device of a directory, or of its nearest accessible parent. The flusher reports faults of the path itself.
fn device_of(path: &Path) -> io::Result<u64> {
    let absolute = std::path::absolute(path)?;
    let mut ancestors = absolute.ancestors();
    let device = ancestors.find_map(|ancestor| std::fs::metadata(ancestor).ok()).map(|found| found.dev());
    device.ok_or_else(|| io::ErrorKind::NotFound.into())
}
