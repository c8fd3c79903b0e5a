//! The time of leases.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The clock of this machine; tests use their own.
pub trait LeaseClock: Send + Sync {
    /// Time since an arbitrary moment. Never goes back, and includes suspension of the machine or the process.
    fn now(&self) -> Duration;

    /// Wall clock since 1970. Nothing depends on it; zero if the system has none.
    fn wall(&self) -> Duration {
        Duration::ZERO
    }
}

/// `CLOCK_BOOTTIME`.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootTime;

impl LeaseClock for BootTime {
    fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        Duration::new(now.tv_sec.try_into().unwrap_or_default(), now.tv_nsec.try_into().unwrap_or_default())
    }

    fn wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}
