//! Unwritable mailboxes, their waiting mail, and the time of the next try. Bookkeeping only: reads no clock and touches
//! no disk.
//!
//! A mailbox is tried with one message, after 1 s, 2 s, 4 s and so on up to 5 min. Once that message gets through, each
//! of the others is tried once. Each try takes the message whose last try is oldest, so a message that can never be
//! written does not hold up the others.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_units::BackOff;

use super::mounts::is_at_or_below;
use super::table::Key;

/// A mailbox with waiting messages.
struct Broken {
    /// Each message with the number of its last try, and its bytes; includes those being tried.
    messages: HashMap<Key, (u64, u64)>,
    /// Messages not being tried, in the order of their last tries.
    by_try: BTreeSet<(u64, Key)>,
    bytes: u64,
    /// Messages delivered to it since its trouble began.
    delivered: u64,
    attempts: u32,
    due: Instant,
    /// The message that is tried on behalf of all.
    probe: Option<Key>,
    /// Set once the mailbox is writable again: messages last tried before this number are tried once more.
    release_before: Option<u64>,
    error: Arc<str>,
}

/// Facts about a mailbox after a failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TroubleState {
    pub messages: usize,
    pub bytes: u64,
    pub attempts: u32,
    pub due: Instant,
    pub error: Arc<str>,
}

#[derive(Default)]
pub(crate) struct Troubles {
    mailboxes: HashMap<Arc<str>, Broken>,
    tries: u64,
    bytes: u64,
    /// Recovered mailboxes not reported yet, with the number of messages that waited.
    recovered: Vec<(Arc<str>, u64)>,
}

impl Troubles {
    /// Facts about a mailbox, if mail waits for it.
    pub fn of(&self, mailbox: &str) -> Option<TroubleState> {
        self.mailboxes.get(mailbox).map(Broken::known)
    }

    /// All mailboxes that mail waits for.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, TroubleState)> {
        self.mailboxes.iter().map(|(mailbox, broken)| (mailbox, broken.known()))
    }

    /// True if a message is known to wait for a mailbox.
    pub fn has(&self, mailbox: &str, key: Key) -> bool {
        self.mailboxes.get(mailbox).is_some_and(|broken| broken.messages.contains_key(&key))
    }

    /// Total bytes of mail for unwritable mailboxes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The mailboxes that received all waiting mail since the last call.
    pub fn take_recovered(&mut self) -> Vec<(Arc<str>, u64)> {
        std::mem::take(&mut self.recovered)
    }

    /// Notes a failed attempt, or that none was made because the mailbox hangs. True if the mailbox is in more trouble
    /// than before.
    pub fn failed(&mut self, mailbox: &Arc<str>, key: Key, bytes: u64, error: &Arc<str>, now: Instant) -> bool {
        self.tries += 1;
        let broken = self.mailboxes.entry(mailbox.clone()).or_insert_with(|| Broken {
            messages: HashMap::new(),
            by_try: BTreeSet::new(),
            bytes: 0,
            delivered: 0,
            attempts: 0,
            due: now,
            probe: None,
            release_before: None,
            error: error.clone(),
        });
        match broken.messages.insert(key, (self.tries, bytes)) {
            Some((tried, _)) => drop(broken.by_try.remove(&(tried, key))),
            None => {
                broken.bytes += bytes;
                self.bytes += bytes;
            }
        }
        broken.by_try.insert((self.tries, key));
        let was_probe = broken.probe == Some(key);
        // A failure of mail queued before the first failure was known says nothing new about the mailbox.
        if !was_probe && broken.attempts > 0 {
            return false;
        }
        broken.probe = broken.probe.filter(|_| !was_probe);
        broken.attempts += 1;
        broken.due = now + RETRY.after(broken.attempts);
        broken.error = error.clone();
        true
    }

    /// Notes a message that reached a mailbox, waiting or not. Other mail that waits for it is retried soon, and the
    /// pauses begin anew.
    pub fn reached(&mut self, mailbox: &str, key: Key, now: Instant) {
        let Some(broken) = self.mailboxes.get_mut(mailbox) else { return };
        let Some((tried, bytes)) = broken.messages.remove(&key) else {
            broken.due = broken.due.min(now + RETRY_FIRST);
            broken.attempts = 1;
            return;
        };
        broken.by_try.remove(&(tried, key));
        broken.bytes -= bytes;
        self.bytes -= bytes;
        broken.delivered += 1;
        if broken.messages.is_empty() {
            let recovered = self.mailboxes.remove_entry(mailbox).filter(|_| self.recovered.len() < RECOVERED_MAX);
            self.recovered.extend(recovered.map(|(mailbox, broken)| (mailbox, broken.delivered)));
        } else if broken.probe == Some(key) {
            broken.probe = None;
            broken.attempts = 1;
            broken.due = now + RETRY_FIRST;
            broken.release_before = Some(self.tries);
        }
    }

    /// Notes that a message was given up: it no longer waits, and says nothing about the mailbox.
    pub fn gave_up(&mut self, mailbox: &str, key: Key, now: Instant) {
        let Some(broken) = self.mailboxes.get_mut(mailbox) else { return };
        let Some((tried, bytes)) = broken.messages.remove(&key) else { return };
        broken.by_try.remove(&(tried, key));
        broken.bytes -= bytes;
        self.bytes -= bytes;
        if broken.probe == Some(key) {
            (broken.probe, broken.due) = (None, now);
        }
        if broken.messages.is_empty() {
            self.mailboxes.remove(mailbox);
        }
    }

    /// Makes each message for a mailbox, and for those below it, due for one try now.
    pub fn release(&mut self, path: &str, now: Instant) {
        for (_, broken) in self.mailboxes.iter_mut().filter(|(mailbox, _)| is_at_or_below(mailbox, path)) {
            (broken.due, broken.release_before) = (now, Some(self.tries));
        }
    }

    /// Makes each mailbox due now, because a shared obstacle is gone.
    pub fn try_all(&mut self, now: Instant) {
        self.mailboxes.values_mut().for_each(|broken| broken.due = broken.due.min(now));
    }

    /// Takes the messages due now, `most` at most.
    pub fn due(&mut self, now: Instant, most: usize) -> Vec<Key> {
        let mut all = Vec::new();
        // Mailboxes tried with one message come first: many messages for one mailbox must not leave them out.
        for releasing in [false, true] {
            for broken in self.mailboxes.values_mut() {
                if broken.release_before.is_some() == releasing {
                    while all.len() < most
                        && let Some(key) = broken.next(now)
                    {
                        all.push(key);
                    }
                }
            }
        }
        all
    }
}

impl Broken {
    fn known(&self) -> TroubleState {
        let messages = self.messages.len();
        let bytes = self.bytes;
        TroubleState { messages, bytes, attempts: self.attempts, due: self.due, error: self.error.clone() }
    }

    /// The next message to try.
    fn next(&mut self, now: Instant) -> Option<Key> {
        let longest_ago = self.by_try.first().copied();
        if let Some(before) = self.release_before {
            match longest_ago {
                Some((tried, key)) if tried <= before => {
                    self.by_try.pop_first();
                    return Some(key);
                }
                _ => self.release_before = None,
            }
        }
        if self.probe.is_some() || self.due > now {
            return None;
        }
        let (_, key) = self.by_try.pop_first()?;
        self.probe = Some(key);
        Some(key)
    }
}

/// Maximum recovered mailboxes that are remembered.
const RECOVERED_MAX: usize = 10_000;
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY: BackOff = BackOff::new(RETRY_FIRST, Duration::from_secs(300));

#[cfg(test)]
mod tests {
    use posthaste_spool::Lsn;
    use posthaste_turns::Random;

    use super::*;

    struct Clock {
        mail: Troubles,
        now: Instant,
    }

    impl Clock {
        fn new() -> Self {
            Clock { mail: Troubles::default(), now: Instant::now() }
        }

        fn pass(&mut self, secs: u64) {
            self.now += Duration::from_secs(secs);
        }

        fn attempt(&mut self, id: u64, mailbox: &str, reached: bool) {
            let key = (Lsn::new(id), 0);
            if reached {
                self.mail.reached(mailbox, key, self.now);
            } else {
                self.mail.failed(&mailbox.into(), key, 10, &"no space".into(), self.now);
            }
        }

        fn due_of(&mut self, most: usize) -> Vec<u64> {
            let mut ids: Vec<u64> = self.mail.due(self.now, most).into_iter().map(|(lsn, _)| lsn.get()).collect();
            ids.sort_unstable();
            ids
        }

        fn due(&mut self) -> Vec<u64> {
            self.due_of(usize::MAX)
        }
    }

    #[test]
    fn a_broken_mailbox_is_probed_by_one_message() {
        let mut clock = Clock::new();
        (0..1000).for_each(|id| clock.attempt(id, "bad", false));
        assert_eq!(clock.due(), [], "not before its time");
        let mut tried: Vec<u64> = Vec::new();
        for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            clock.pass(wait - 1);
            assert_eq!(clock.due(), [], "a second before {wait} have passed");
            clock.pass(1);
            let due = clock.due();
            assert_eq!(due.len(), 1, "after {wait} seconds");
            assert_eq!(clock.due(), [], "one at a time");
            tried.extend(&due);
            clock.attempt(due[0], "bad", false);
        }
        assert_eq!(tried, (0..11).collect::<Vec<_>>(), "each time another");
        clock.pass(300);
        assert_eq!(clock.due(), [11]);
        clock.attempt(11, "bad", true);
        let rest = clock.due();
        assert_eq!(rest.len(), 999);
        rest.into_iter().for_each(|id| clock.attempt(id, "bad", true));
        assert_eq!((clock.mail.iter().count(), clock.mail.bytes()), (0, 0));
        assert_eq!(clock.mail.take_recovered(), [("bad".into(), 1000)]);
    }

    #[test]
    fn a_message_that_can_never_be_written_holds_up_no_other() {
        let mut clock = Clock::new();
        (0..10).for_each(|id| clock.attempt(id, "box", false));
        let mut tries_of_the_bad_one = 0;
        for _ in 0..60 {
            clock.pass(1);
            for id in clock.due() {
                tries_of_the_bad_one += u32::from(id == 0);
                clock.attempt(id, "box", id != 0);
            }
        }
        assert_eq!(clock.mail.of("box").map(|known| known.messages), Some(1), "all others got through");
        assert!((3..10).contains(&tries_of_the_bad_one), "{tries_of_the_bad_one} in a minute");
    }

    #[test]
    fn mail_that_gets_through_has_the_waiting_tried_soon() {
        let mut clock = Clock::new();
        clock.attempt(1, "box", false);
        for _ in 0..12 {
            clock.pass(300);
            assert_eq!(clock.due(), [1]);
            clock.attempt(1, "box", false);
        }
        clock.attempt(2, "box", true);
        clock.pass(1);
        assert_eq!(clock.due(), [1]);
        clock.attempt(1, "box", false);
        clock.pass(2);
        assert_eq!(clock.due(), [1], "the pauses begin anew");
    }

    #[test]
    fn bytes_are_counted_once_for_each_mailbox_and_given_back() {
        let mut clock = Clock::new();
        let bytes = |clock: &Clock| (clock.mail.of("a").map_or(0, |known| known.bytes), clock.mail.bytes());
        clock.attempt(1, "a", false);
        clock.attempt(1, "b", false);
        clock.attempt(2, "a", false);
        clock.attempt(2, "a", false);
        assert_eq!(bytes(&clock), (20, 30));
        clock.attempt(1, "a", true);
        assert_eq!(bytes(&clock), (10, 20));
        clock.attempt(2, "a", true);
        assert_eq!(bytes(&clock), (0, 10));
    }

    #[test]
    fn mail_for_one_mailbox_takes_no_room_from_other_probes() {
        let mut clock = Clock::new();
        (0..100).for_each(|id| clock.attempt(id, "large", false));
        clock.pass(1);
        let probe = clock.due();
        clock.attempt(probe[0], "large", true);
        (100..110).for_each(|id| clock.attempt(id, &format!("small {id}"), false));
        clock.pass(1);
        let first = clock.due_of(20);
        assert_eq!(first.iter().filter(|id| **id >= 100).count(), 10, "each of the others has its turn");
        assert_eq!(first.len(), 20);
    }

    #[test]
    fn the_end_of_a_common_trouble_ends_the_wait_of_all_mailboxes() {
        let mut clock = Clock::new();
        for id in 0..10 {
            (0..8).for_each(|_| clock.attempt(id, &format!("box {id}"), false));
        }
        clock.mail.try_all(clock.now);
        assert_eq!(clock.due(), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn behind_those_that_are_released_one_message_alone_is_tried() {
        let mut clock = Clock::new();
        clock.attempt(0, "box", false);
        clock.attempt(1, "box", false);
        clock.pass(1);
        assert_eq!(clock.due(), [0]);
        clock.attempt(0, "box", true);
        (2..10).for_each(|id| clock.attempt(id, "box", false));
        // There was no room for message 1 until the next one was due as well.
        clock.pass(1);
        assert_eq!(clock.due(), [1, 2]);
    }

    #[test]
    fn all_mail_arrives_after_any_trouble_and_pauses_are_bounded() {
        const MAILBOXES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
        const TICK: Duration = Duration::from_millis(200);
        for seed in 0..1000 {
            let mut chance = Random::new(seed);
            let mut clock = Clock::new();
            let (outage, slowness, tries_at_once) = (1 + chance.below(300), 1 + chance.below(20), 1 + chance.below(40));
            let mut broken = [true; MAILBOXES.len()];
            let mut under_way: Vec<Key> = Vec::new();
            let (mut tick, mut idle) = (0, 0);
            while tick < outage || !under_way.is_empty() || clock.mail.iter().count() > 0 {
                clock.now += TICK;
                if tick < outage {
                    broken.iter_mut().for_each(|broken| *broken ^= chance.below(30) == 0);
                    under_way.push((Lsn::new(tick), chance.below(8) as u16));
                } else {
                    broken = [false; MAILBOXES.len()];
                    idle = if under_way.is_empty() { idle + 1 } else { 0 };
                    // Each pause is as long as all earlier ones together, plus 1 s.
                    assert!(idle <= outage + 10, "seed {seed}");
                }
                tick += 1;
                let room = (tries_at_once as usize).saturating_sub(under_way.len());
                under_way.extend(clock.mail.due(clock.now, room));
                under_way.retain(|&(lsn, number)| {
                    let ended = chance.below(slowness) == 0;
                    let (mailbox, now) = (MAILBOXES[usize::from(number)], clock.now);
                    match (ended, broken[usize::from(number)]) {
                        (false, _) => {}
                        (true, false) => clock.mail.reached(mailbox, (lsn, number), now),
                        (true, true) => drop(clock.mail.failed(&mailbox.into(), (lsn, number), 1, &"no".into(), now)),
                    }
                    !ended
                });
            }
            assert_eq!(clock.mail.bytes(), 0, "seed {seed}");
        }
    }
}
