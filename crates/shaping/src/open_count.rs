//! Bounds of what is open at a time. `posthaste_units::Bucket` limits rates.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts what is open at a time, such as connections. Several limits may share one count.
#[derive(Debug, Default)]
pub struct OpenCount {
    open: AtomicU32,
}

/// One of an [`OpenCount`], until it is dropped.
#[derive(Debug)]
pub struct Opened {
    count: Arc<OpenCount>,
}

impl OpenCount {
    /// Counts one more, unless `most` are open already.
    pub fn open(self: &Arc<Self>, most: u32) -> Option<Opened> {
        let more = |open: u32| (open < most).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Opened { count: self.clone() })
    }

    /// Number of open ones.
    pub fn count(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.count.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_allowed_are_open() {
        let (count, most_seen) = (Arc::new(OpenCount::default()), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        if let Some(_opened) = count.open(2) {
                            most_seen.fetch_max(count.count(), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert!((1..=2).contains(&most_seen.into_inner()));
        assert_eq!(count.count(), 0);
        let two = (count.open(2).unwrap(), count.open(2).unwrap());
        assert!(count.open(2).is_none() && count.open(3).is_some());
        drop(two);
        assert_eq!(count.count(), 0);
    }
}
