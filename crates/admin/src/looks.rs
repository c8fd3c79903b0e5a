//! Cached state of the server, shared by all pages.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};

use crate::view::{Attention, Urgency};

/// A cached reading of the server's state, shared by all pages.
#[derive(Debug)]
pub(crate) struct Cached<T> {
    last: Mutex<Option<Look<T>>>,
    /// The running read, and its start.
    running: AsyncMutex<Option<(Instant, JoinHandle<T>)>>,
}

#[derive(Debug)]
pub(crate) struct Look<T> {
    at: Instant,
    took: Duration,
    found: Arc<T>,
}

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self { last: Mutex::new(None), running: AsyncMutex::new(None) }
    }
}

impl<T: Send + Sync + 'static> Cached<T> {
    /// Returns the cached result if it is recent, else reads it again. One read runs at a time, and reads take at most
    /// a hundredth of the time. `None` on a timeout: the read continues, and the next caller gets it. So a hanging disk
    /// blocks only one thread.
    pub async fn get(&self, look: impl FnOnce() -> T + Send + 'static) -> Option<Arc<T>> {
        timeout(LOOK_PATIENCE, async {
            let mut under_way = self.running.lock().await;
            if under_way.is_none()
                && let Some(Look { at, took, found }) = &*self.last()
                && at.elapsed() < (*took * LOOK_SHARE).clamp(LOOK_AGE, LOOK_AGE_MAX)
            {
                return Some(Arc::clone(found));
            }
            let (at, running) = under_way.get_or_insert_with(|| (Instant::now(), spawn_blocking(look)));
            let (at, found) = (*at, running.await);
            *under_way = None;
            // Fails only by a panic, which the log has.
            let found = Arc::new(found.ok()?);
            *self.last() = Some(Look { at, took: at.elapsed(), found: Arc::clone(&found) });
            Some(found)
        })
        .await
        .ok()
        .flatten()
    }

    /// The cached result of any age, if reading it took long; else `None`. Does not wait.
    pub fn last_if_long(&self) -> Option<Arc<T>> {
        self.last().as_ref().filter(|look| look.took > LONG_LOOK).map(|look| Arc::clone(&look.found))
    }

    fn last(&self) -> MutexGuard<'_, Option<Look<T>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads that take longer count as long: a queue with some thousand destinations does.
const LONG_LOOK: Duration = Duration::from_millis(2);
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum age of a cached result: pages ask each second.
const LOOK_AGE: Duration = Duration::from_millis(900);
const LOOK_SHARE: u32 = 100;
/// Maximum age of a result that took long to read, such as from a slow disk.
const LOOK_AGE_MAX: Duration = Duration::from_secs(60);

/// The time at which each attention was first seen.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<HashMap<(Urgency, String), u64>>);

impl Seen {
    /// Sets `since` of each attention to the time it was first seen without a gap. `now` is in seconds since 1970.
    pub fn date(&self, found: &mut [Attention], now: u64) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *seen);
        for attention in found {
            let key = (attention.urgency, attention.about.clone());
            let since = before.get(&key).copied().unwrap_or(now);
            attention.since = Some(since);
            seen.insert(key, since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_somebody_is_dated_from_when_it_was_first_seen() {
        let seen = Seen::default();
        let check = |names: &[&str], now, expected: &[u64]| {
            let mut found: Vec<_> = names
                .iter()
                .map(|name| Attention::new(Urgency::Warning, name, format!("{name} at {now}"), ""))
                .collect();
            seen.date(&mut found, now);
            assert_eq!(found.iter().filter_map(|found| found.since).collect::<Vec<_>>(), expected);
        };
        check(&["a", "b"], 1, &[1, 1]);
        check(&["b", "c"], 2, &[1, 2]);
        check(&["a", "b"], 3, &[3, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_takes_long_is_taken_seldom() {
        let cached = Cached::default();
        let look = |number: u32| move || number;
        assert_eq!(cached.get(look(1)).await.as_deref(), Some(&1));
        assert_eq!(cached.get(look(2)).await.as_deref(), Some(&1), "all pages share it");
        tokio::time::advance(LOOK_AGE).await;
        assert_eq!(cached.get(look(3)).await.as_deref(), Some(&3));
        let took = Duration::from_millis(500);
        *cached.last() = Some(Look { at: Instant::now(), took, found: Arc::new(4) });
        tokio::time::advance(took * LOOK_SHARE - Duration::from_secs(1)).await;
        assert_eq!(cached.get(look(5)).await.as_deref(), Some(&4));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(cached.get(look(6)).await.as_deref(), Some(&6));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_long_look_a_scrape_waits_for_none() {
        let cached = Cached::default();
        assert_eq!(cached.last_if_long(), None);
        let looked = |took| Some(Look { at: Instant::now(), took, found: Arc::new(1) });
        *cached.last() = looked(LONG_LOOK);
        assert_eq!(cached.last_if_long(), None, "a short one is taken anew");
        *cached.last() = looked(LONG_LOOK * 2);
        let _under_way = cached.running.lock().await;
        tokio::time::advance(LOOK_AGE_MAX * 2).await;
        assert_eq!(cached.last_if_long().as_deref(), Some(&1), "while the next is under way");
    }

    #[tokio::test]
    async fn a_look_that_hangs_holds_one_thread() {
        let cached = Arc::new(Cached::default());
        let (release, released) = std::sync::mpsc::channel::<()>();
        let begun = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let first = begun.clone();
        let hanging = move || {
            first.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let _ = released.recv();
            1
        };
        assert!(timeout(Duration::from_millis(50), cached.get(hanging)).await.is_err(), "whoever asked has gone");
        for _ in 0..3 {
            let more = begun.clone();
            let another = move || more.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            assert!(timeout(Duration::from_millis(20), cached.get(another)).await.is_err());
        }
        release.send(()).unwrap();
        assert_eq!(cached.get(|| 2).await.as_deref(), Some(&1), "the look under way is everybody's");
        assert_eq!(begun.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
}
