//! The greylist's memory of first attempts, of bounded size.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::rule_file::GreylistRule;

/// Remembers first attempts by a hash of client address, sender and recipient. The hash is keyed, so that no client can
/// collide with another's entry on purpose.
#[derive(Debug)]
pub(super) struct Greylist {
    rule: GreylistRule,
    hasher: RandomState,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    first: HashMap<u64, Instant>,
    order: VecDeque<u64>,
}

impl Greylist {
    pub fn new(rule: GreylistRule) -> Self {
        Self { rule, hasher: RandomState::new(), seen: Mutex::default() }
    }

    /// True if the attempt is too early: the first one was less than the rule's wait ago.
    pub fn is_early(&self, client: IpAddr, sender: &str, recipient: &str, now: Instant) -> bool {
        let key = self.hasher.hash_one((client, sender, recipient));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = seen.first.get(&key) {
            return now.saturating_duration_since(*first) < self.rule.wait;
        }
        if seen.order.len() >= self.rule.entries
            && let Some(oldest) = seen.order.pop_front()
        {
            seen.first.remove(&oldest);
        }
        seen.first.insert(key, now);
        seen.order.push_back(key);
        self.rule.wait > Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_attempt_waits_and_the_oldest_is_forgotten() {
        let list = Greylist::new(GreylistRule { wait: Duration::from_secs(5), entries: 2 });
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let try_as = |client: [u8; 4], rcpt, secs| list.is_early(client.into(), "s@a.example", rcpt, at(secs));
        assert!(try_as([192, 0, 2, 1], "r@b.example", 0));
        assert!(try_as([192, 0, 2, 1], "r@b.example", 4));
        assert!(!try_as([192, 0, 2, 1], "r@b.example", 5));
        assert!(try_as([192, 0, 2, 2], "r@b.example", 5), "another client");
        assert!(try_as([192, 0, 2, 1], "q@b.example", 6), "another recipient; the first is forgotten");
        assert!(try_as([192, 0, 2, 1], "r@b.example", 9));
        assert_eq!(list.seen.lock().unwrap().first.len(), 2);
    }
}
