//! Bounds and times.

use std::sync::Arc;
use std::time::Duration;

use posthaste_units::BackOff;

use crate::notifier::RefusalNotifier;
use crate::observer::TransportObserver;

/// Bounds and times of the transports.
#[derive(Debug, Clone)]
pub struct Config {
    /// Our name in LHLO.
    pub host_name: String,
    /// Time limit of a program; then its process group is killed.
    pub program_time: Duration,
    /// Timeout of an LMTP server's reply, and of each write to it.
    pub lmtp_time: Duration,
    /// Time limit for the lock of a file.
    pub lock_time: Duration,
    /// Pauses after failures.
    pub retry: BackOff,
    /// An undeliverable message is held once it is older than this.
    pub max_age: Duration,
    /// Pause of a held message, and after a permanent refusal.
    pub held_pause: Duration,
    /// Bytes that may wait for one transport; beyond it
    /// [`Transports::check_transport`](crate::Transports::check_transport) refuses.
    pub pending_bytes_max: u64,
    /// Bytes that may wait for all transports.
    pub pending_bytes_max_all: u64,
    /// Memory for bodies on their way to LMTP servers.
    pub lmtp_bytes_max: u64,
    /// Time for which the drop of the last handle waits for work in progress.
    pub shutdown_patience: Duration,
    /// Receives the outcome of each target.
    pub observer: Option<Arc<dyn TransportObserver>>,
    /// Sends notices of refusals; without it there are none.
    pub notifier: Option<Arc<dyn RefusalNotifier>>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            host_name: "localhost".to_owned(),
            program_time: Duration::from_secs(1000),
            lmtp_time: Duration::from_secs(300),
            lock_time: Duration::from_secs(30),
            retry: BackOff::new(RETRY_FIRST, Duration::from_secs(1800)),
            max_age: Duration::from_secs(5 * 86_400),
            held_pause: Duration::from_secs(86_400),
            pending_bytes_max: 1 << 30,
            pending_bytes_max_all: 2 << 30,
            lmtp_bytes_max: 64 << 20,
            shutdown_patience: Duration::from_secs(30),
            observer: None,
            notifier: None,
        }
    }
}

/// The pause after the first failure.
pub(crate) const RETRY_FIRST: Duration = Duration::from_secs(5);
