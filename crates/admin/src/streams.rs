//! Open streams of live events, and the readings of the event log that they share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::broadcast;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::token::TokenHash;
use crate::view::FollowEvents;

/// Number of open streams by token.
#[derive(Debug, Default)]
pub(crate) struct LiveStreams {
    pub open: Arc<Mutex<HashMap<TokenHash, usize>>>,
    pub readings: Readings,
}

/// Active readings of the log by tenant; `None`: the whole log.
#[derive(Debug, Default, Clone)]
pub(crate) struct Readings(Arc<Mutex<HashMap<Option<String>, broadcast::Sender<Bytes>>>>);

pub(crate) const STREAMS_MAX: usize = 32;
pub(crate) const TOKEN_STREAMS_MAX: usize = 4;
/// Interval between reads of the log.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum events of one read: a page shows the newest rows, not thousands a second.
const LOOK_EVENTS_MAX: usize = 500;
/// Maximum bytes of one read, except for the rest of its last event.
const LOOK_BYTES_MAX: usize = 128 << 10;
/// Maximum queued pieces: a slower client is disconnected. Clients share the pieces.
pub(crate) const PIECES_MAX: usize = 8;

/// A counted stream, until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    streams: Arc<Mutex<HashMap<TokenHash, usize>>>,
    of: TokenHash,
}

impl LiveStreams {
    /// Counts a stream. `None` if the server or this token has too many.
    pub fn place(&self, of: &TokenHash) -> Option<Place> {
        let mut streams = lock(&self.open);
        let all: usize = streams.values().sum();
        let own = streams.get(of).copied().unwrap_or_default();
        if all >= STREAMS_MAX || own >= TOKEN_STREAMS_MAX {
            return None;
        }
        streams.insert(*of, own + 1);
        Some(Place { streams: Arc::clone(&self.open), of: *of })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut streams = lock(&self.streams);
        match streams.get_mut(&self.of) {
            Some(count) if *count > 1 => *count -= 1,
            _ => _ = streams.remove(&self.of),
        }
    }
}

impl Readings {
    /// Subscribes to an active reading. `None` if there is none.
    pub fn join(&self, tenant: Option<&String>) -> Option<broadcast::Receiver<Bytes>> {
        lock(&self.0).get(&tenant.cloned()).map(broadcast::Sender::subscribe)
    }

    /// Starts a reading, unless another one has started meanwhile.
    pub fn begin(&self, tenant: Option<String>, events: Box<dyn FollowEvents>) -> broadcast::Receiver<Bytes> {
        let mut readings = lock(&self.0);
        if let Some(reading) = readings.get(&tenant) {
            return reading.subscribe();
        }
        let (pieces, first) = broadcast::channel(PIECES_MAX);
        readings.insert(tenant.clone(), pieces.clone());
        drop(readings);
        tokio::spawn(self.clone().read(tenant, events, pieces));
        first
    }

    /// Reads the log repeatedly until nobody listens.
    async fn read(self, tenant: Option<String>, mut events: Box<dyn FollowEvents>, pieces: broadcast::Sender<Bytes>) {
        loop {
            sleep(LOOK_INTERVAL).await;
            {
                let mut readings = lock(&self.0);
                if pieces.receiver_count() == 0 {
                    readings.remove(&tenant);
                    return;
                }
            }
            let read = spawn_blocking(move || {
                let lines = events.read(LOOK_EVENTS_MAX, LOOK_BYTES_MAX);
                (events, lines)
            });
            let Ok((again, lines)) = read.await else {
                // A panic, which the log has. Streams end as their pieces do.
                lock(&self.0).remove(&tenant);
                return;
            };
            events = again;
            if !lines.is_empty() {
                let text: String = lines.iter().map(|line| format!("data: {}\n\n", line.trim_end())).collect();
                let _ = pieces.send(text.into());
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
