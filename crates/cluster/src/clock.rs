//! The time of leases.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The time of this machine. Tests have one of their own.
pub trait LeaseClock: Send + Sync {
    /// Time since some moment. Never goes back, and goes on while the machine is suspended or the process stopped.
    fn now(&self) -> Duration;

    /// Time since 1970 by the machine's clock, which operators set. Nothing is decided by it; zero without one.
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
