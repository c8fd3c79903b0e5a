//! Names for messages in the log and in Received.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Makes unique names from the server's start time and a counter.
pub(crate) struct Ids {
    begun: String,
    next: AtomicU64,
}

impl Ids {
    pub fn new() -> Self {
        Self { begun: base36(unix_micros().unsigned_abs()), next: AtomicU64::new(1) }
    }

    pub fn next(&self) -> String {
        format!("{}.{}", self.begun, base36(self.next.fetch_add(1, Ordering::Relaxed)))
    }
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(char::from_digit((number % 36) as u32, 36).expect("a digit below 36"));
        number /= 36;
        if number == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

/// Microseconds since 1970.
pub(crate) fn unix_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_base_36() {
        assert_eq!([0, 35, 36, 46655, 46656].map(base36), ["0", "z", "10", "zzz", "1000"]);
    }
}
