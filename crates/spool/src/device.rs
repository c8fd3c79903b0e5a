//! The device under the spool, and what a failed sync says of it.

use std::fmt;
use std::io;
use std::sync::OnceLock;

use rustix::io::Errno;

/// Every file of the spool counts as lying on the ring's device: an EIO of any sync may mean that the device has dropped what the ring wrote, too.
#[derive(Default)]
pub(crate) struct Device {
    poison: OnceLock<Box<dyn Fn(String) + Send + Sync>>,
}

impl Device {
    /// Called once, when there is a ring that can be poisoned.
    pub fn set_poison(&self, poison: impl Fn(String) + Send + Sync + 'static) {
        let is_first = self.poison.set(Box::new(poison)).is_ok();
        assert!(is_first, "a device belongs to one ring");
    }

    /// Hands on the outcome of a sync or a write. EIO poisons the ring; a full disk or a missing descriptor does not.
    pub fn watch<T>(&self, what: &str, outcome: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &outcome
            && error.raw_os_error() == Some(Errno::IO.raw_os_error())
            && let Some(poison) = self.poison.get()
        {
            poison(format!("{what}: {error}"));
        }
        outcome
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Device")
    }
}
