//! Times in seconds since 1970, as entries have them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970; times before 1970 or after 2106 are clamped.
pub(super) fn secs(time: SystemTime) -> u32 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

/// The present time.
pub(super) fn now_secs() -> u32 {
    secs(SystemTime::now())
}
