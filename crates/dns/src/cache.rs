use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};

use tokio::sync::OnceCell;
use tokio::time::Instant;

/// Answers by name, each until its own expiry.
///
/// Of concurrent callers with the same name, one sends the query and the others wait for its answer. At most
/// `entries_max` names are kept, in two halves. When the younger half is full, it becomes the older one, and entries of
/// the old half that were not used since are dropped.
#[derive(Debug)]
pub struct Cache<V> {
    halves: Mutex<Halves<V>>,
    half_max: usize,
}

#[derive(Debug)]
struct Halves<V> {
    young: HashMap<String, Cell<V>>,
    old: HashMap<String, Cell<V>>,
}

/// A longer answer counts as none: strangers choose the names in the cache.
pub const ANSWER_BYTES_MAX: usize = 8 << 10;
/// Answers in the cache at most.
pub(super) const ANSWERS_MAX: usize = 20_000;

/// Filled by the first caller; if that one is cancelled, by the next.
type Cell<V> = Arc<OnceCell<(V, Instant)>>;

impl<V: Clone> Cache<V> {
    /// An empty cache.
    pub fn new(entries_max: usize) -> Cache<V> {
        let halves = Halves { young: HashMap::new(), old: HashMap::new() };
        Cache { halves: Mutex::new(halves), half_max: (entries_max / 2).max(1) }
    }

    /// The value of `name` valid at `now`. `look_up` returns it with its expiry.
    pub async fn get(&self, name: &str, now: Instant, look_up: impl Future<Output = (V, Instant)>) -> V {
        let cell = self.cell(name, now);
        cell.get_or_init(|| look_up).await.0.clone()
    }

    /// The last value of `name` with its expiry, which may have passed. `None`: never looked up, or a look-up is
    /// running.
    pub fn last(&self, name: &str) -> Option<(V, Instant)> {
        let halves = self.halves.lock().expect("no panic with the lock");
        halves.young.get(name).or_else(|| halves.old.get(name))?.get().cloned()
    }

    /// The value of `name` valid at `now`, if it needs no look-up. One that was not used for long is left to
    /// [`get`](Self::get), which keeps it.
    pub fn known(&self, name: &str, now: Instant) -> Option<V> {
        let halves = self.halves.lock().expect("no panic with the lock");
        let (value, until) = halves.young.get(name)?.get()?;
        (now < *until).then(|| value.clone())
    }

    fn cell(&self, name: &str, now: Instant) -> Cell<V> {
        let mut halves = self.halves.lock().expect("no panic with the lock");
        let is_valid = |cell: &&Cell<V>| cell.get().is_none_or(|(_, until)| now < *until);
        if let Some(cell) = halves.young.get(name).filter(is_valid) {
            return Arc::clone(cell);
        }
        let cell = halves.old.remove(name).filter(|cell| is_valid(&cell)).unwrap_or_default();
        if halves.young.len() >= self.half_max && !halves.young.contains_key(name) {
            halves.old = std::mem::take(&mut halves.young);
        }
        halves.young.insert(name.to_owned(), Arc::clone(&cell));
        cell
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let halves = self.halves.lock().unwrap();
        halves.young.len() + halves.old.len()
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn an_answer_is_used_until_its_time() {
        let (cache, start) = (Cache::new(10), Instant::now());
        let second = Duration::from_secs(1);
        let get = async |value: u32, now| cache.get("a", now, async move { (value, now + 10 * second) }).await;
        assert_eq!(cache.known("a", start), None);
        assert_eq!(get(1, start).await, 1);
        assert_eq!(cache.known("a", start), Some(1));
        assert_eq!(cache.known("a", start + 10 * second), None);
        assert_eq!(get(2, start + 10 * second - Duration::from_nanos(1)).await, 1);
        assert_eq!(get(3, start + 10 * second).await, 3);
        assert_eq!(get(4, start + 11 * second).await, 3);
    }

    #[tokio::test]
    async fn the_number_of_entries_is_bounded_and_those_in_use_stay() {
        let (cache, now) = (Cache::new(10), Instant::now());
        let until = now + Duration::from_secs(10);
        for number in 0..1000_u32 {
            cache.get(&number.to_string(), now, async { (number, until) }).await;
            assert_eq!(cache.get("used", now, async { (number, until) }).await, 0);
            assert!(cache.len() <= 10);
        }
        assert_eq!(cache.get("998", now, async { (5000, until) }).await, 998);
        assert_eq!(cache.get("1", now, async { (5000, until) }).await, 5000);
    }

    #[test]
    fn callers_share_a_lookup_that_outlives_a_cancelled_one() {
        let (cache, now) = (Cache::new(10), Instant::now());
        let asked = std::cell::Cell::new(0);
        let gate = tokio::sync::Semaphore::new(0);
        let get = async || {
            cache
                .get("a", now, async {
                    asked.set(asked.get() + 1);
                    gate.acquire().await.unwrap().forget();
                    (7, now + Duration::from_secs(1))
                })
                .await
        };
        let mut first = Box::pin(get());
        let mut others: Vec<_> = (0..1000).map(|_| Box::pin(get())).collect();
        assert!(poll(first.as_mut()).is_pending());
        assert!(others.iter_mut().all(|other| poll(other.as_mut()).is_pending()));
        assert_eq!(asked.get(), 1);
        drop(first);
        assert!(others.iter_mut().all(|other| poll(other.as_mut()).is_pending()));
        assert_eq!(asked.get(), 2);
        gate.add_permits(1);
        assert!(others.iter_mut().all(|other| poll(other.as_mut()) == Poll::Ready(7)));
        assert_eq!(asked.get(), 2);
    }
}
