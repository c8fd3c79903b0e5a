//! One boot of the machine. Without a power cut a file system shows all changes, synced or not.

use std::sync::OnceLock;

use posthaste_maildir::tree::Stamp;

/// An id of the present boot; empty if unknown.
pub(super) fn boot_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default())
}

/// Like [`boot_id`], as a number; `None` if unknown.
pub(super) fn boot_number() -> Option<u64> {
    let digits: String = boot_id().chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).ok()?;
    Some((number >> 64) as u64 ^ number as u64)
}

/// Stamps as a head has them: times and inodes, the latter mixed with the number of the boot.
pub(super) type SealedStamps = [(i64, u64); 2];

pub(super) fn sealed(stamps: [Stamp; 2]) -> Option<SealedStamps> {
    let boot = boot_number()?;
    Some(stamps.map(|stamp| (stamp.mtime_ns, stamp.inode ^ boot)))
}
