//! Names of copied messages' files.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use posthaste_maildir::{Host, UniqueName};

/// Maximum octets of all entries of a COPY or MOVE. Small in tests, to reach it.
const ENTRY_BYTES_MAX: usize = if cfg!(test) { 64 << 10 } else { 32 << 20 };
/// Maximum entry octets of a message without its name: in *new*, and as a range in *gone*.
const MESSAGE_BYTES: usize = 60;
/// Maximum octets of a name without the host: seconds, LSN, nonce, count, sizes, and separators.
const NAME_BYTES: usize = 112;

/// Generates unique names for copies.
pub(super) struct CopyNames {
    host: Host,
    nonce: u32,
    count: AtomicU64,
}

impl CopyNames {
    pub fn new() -> Self {
        // Seeded by the kernel.
        let nonce = RandomState::new().hash_one(std::process::id()) as u32;
        Self { host: Host::of_this_machine(), nonce, count: AtomicU64::new(0) }
    }

    /// A new unique name with the copied file's mark for line ends.
    pub fn next(&self, secs: u32, lsn: u64, is_own: bool, (disk_size, wire_size): (u64, u64)) -> UniqueName {
        let (count, nonce) = (self.count.fetch_add(1, Ordering::Relaxed), self.nonce);
        let unique = if is_own { format!("J{lsn:x}R{nonce:08x}T{count}") } else { format!("C{count}R{nonce:08x}") };
        UniqueName::new(secs.into(), &unique, &self.host, disk_size, wire_size)
    }

    /// True if an entry for `copies` would be too long.
    pub fn are_too_many(&self, copies: usize) -> bool {
        copies.saturating_mul(MESSAGE_BYTES + NAME_BYTES + self.host.as_str().len()) > ENTRY_BYTES_MAX
    }
}
