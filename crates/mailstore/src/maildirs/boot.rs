//! One boot of the machine. Without a power cut a file system shows all changes, synced or not.

use std::sync::OnceLock;

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
