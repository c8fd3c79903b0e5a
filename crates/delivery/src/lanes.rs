//! One lane for each mounted file system: a queue and its flushers. A file system that hangs fills its own lane only.

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

/// Lanes at most; file systems beyond that share them.
const LANES_MAX: usize = 64;
/// Paths whose file system is remembered, in each of two generations.
const PATHS_REMEMBERED: usize = 32 * 1024;
/// Paths looked at for the first time at once. If a file system hangs, it can hold this many, and then only paths not yet known wait.
const LOOKUPS_MAX: usize = 16;

/// Sorts requests into lanes and starts a lane's threads with its first request.
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
    /// Held by every flusher; when all copies are gone, all threads have ended. `None` once shut down.
    alive: Option<mpsc::Sender<()>>,
}

impl Lanes {
    /// The lanes, and what tells when all of their threads have ended.
    pub(crate) fn new(config: Config, shared: Arc<Shared>) -> (Self, mpsc::Receiver<()>) {
        let (alive, ended) = mpsc::channel(1);
        let state = State { senders: HashMap::new(), device_of: Recent::new(PATHS_REMEMBERED), alive: Some(alive) };
        (Self { config, shared, state: Mutex::new(state), lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)) }, ended)
    }

    /// The queue for `path`. The first time it is asked for, its file system is looked up on a blocking thread.
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

    /// No more requests; the lanes end when they have flushed what they hold.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.alive = None;
        state.senders.clear();
    }

    async fn look_up(&self, path: PathBuf) -> Result<u64, DeliveryError> {
        // The permit goes with the blocking call, so a caller that gives up on a file system that hangs frees no place.
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
        // A lane serves any file system rightly; that each has its own only keeps them from waiting for each other.
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

/// The device of a directory, or of the nearest one above it that can be looked at. Whatever is wrong with the path itself, the flusher will say.
fn device_of(path: &Path) -> io::Result<u64> {
    let absolute = std::path::absolute(path)?;
    let mut ancestors = absolute.ancestors();
    let device = ancestors.find_map(|ancestor| std::fs::metadata(ancestor).ok()).map(|found| found.dev());
    device.ok_or_else(|| io::ErrorKind::NotFound.into())
}
