//! Which messages wait for which mailboxes, and when each mailbox is tried again. Bookkeeping alone: it reads no clock and
//! touches no disk.
//!
//! A mailbox that cannot be written to is tried with one message, after 1 s, 2 s, 4 s and so on to 5 min. When that one gets
//! through, each of the others is tried once. Each time it is the turn of the message that was tried the longest ago, so one that can never be
//! written holds up no other.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::report::{RecoveredMailbox, Waiting, WaitingMailbox};

/// A target that a message has not reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Missing {
    pub number: u16,
    pub mailbox: Arc<str>,
}

/// A message some of whose targets wait.
pub(super) struct Deferred {
    /// The targets that wait. The others are visible, but perhaps not durable.
    pub missing: Vec<Missing>,
    /// How many targets its record in the journal names.
    pub targets: usize,
    /// How many syncs of the mail had failed before the first of its targets was delivered.
    pub era: u64,
    bytes: u64,
    memory_bytes: u64,
    attempts: u32,
    error: Arc<str>,
    // It is being tried; for one thing at a time, so that nobody else looks at its record.
    under_way: bool,
}

impl Deferred {
    /// Whether the record names targets that wait no more.
    pub fn is_partial(&self) -> bool {
        self.missing.len() < self.targets
    }

    fn waits_for(&self, mailbox: &str) -> bool {
        self.missing.iter().any(|missing| &*missing.mailbox == mailbox)
    }
}

/// A mailbox that messages wait for.
struct Broken {
    // Each with the number of its last try, and in the order of those.
    messages: HashMap<u64, u64>,
    by_try: BTreeSet<(u64, u64)>,
    bytes: u64,
    // Messages that have got into it since it was in trouble.
    delivered: u64,
    attempts: u32,
    due: Instant,
    // The message that is tried for all.
    probe: Option<u64>,
    // It can be written to again: whatever was last tried before this try is tried once more.
    release_before: Option<u64>,
    error: Arc<str>,
}

/// How an attempt at some targets of one message ended.
pub(super) struct Attempt {
    pub id: u64,
    pub reached: Vec<Missing>,
    /// With what hindered each.
    pub failed: Vec<(Missing, Arc<str>)>,
    /// Bytes of the message's body.
    pub bytes: u64,
    /// Bytes that the message takes in memory when it is tried.
    pub memory_bytes: u64,
    /// As in [`Deferred`].
    pub targets: usize,
    /// As in [`Deferred`].
    pub era: u64,
}

/// What is to be tried again.
pub(super) struct Again<P> {
    pub id: u64,
    pub numbers: Vec<u16>,
    pub era: u64,
    pub permit: P,
}

/// A mailbox that was tried in vain, and when it will be tried next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub mailbox: Arc<str>,
    pub attempts: u32,
    pub due: Instant,
    pub error: Arc<str>,
}

#[derive(Default)]
pub(super) struct WaitingMail {
    messages: HashMap<u64, Deferred>,
    mailboxes: HashMap<Arc<str>, Broken>,
    tries: u64,
    bytes_max: u64,
    // Mailboxes that more than `bytes_max` bytes wait for.
    overfull: usize,
    // Mailboxes that nothing waits for any more, until somebody asks.
    recovered: Vec<RecoveredMailbox>,
}

impl WaitingMail {
    /// A mailbox counts as overfull when more than `bytes_max` bytes wait for it.
    pub fn new(bytes_max: u64) -> Self {
        WaitingMail { bytes_max, ..WaitingMail::default() }
    }

    /// How many mailboxes are.
    pub fn overfull(&self) -> usize {
        self.overfull
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub fn get(&self, id: u64) -> Option<&Deferred> {
        self.messages.get(&id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Deferred> {
        self.messages.get_mut(&id)
    }

    /// Messages with their ids, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Deferred)> {
        self.messages.iter().map(|(&id, deferred)| (id, deferred))
    }

    /// Bytes that wait for a mailbox.
    pub fn bytes_for(&self, mailbox: &str) -> u64 {
        self.mailboxes.get(mailbox).map_or(0, |broken| broken.bytes)
    }

    /// All of it, for people, in no order.
    pub fn list(&self) -> Vec<Waiting> {
        let waiting = |(&id, deferred): (&u64, &Deferred)| Waiting {
            id,
            mailboxes: deferred.missing.iter().map(|missing| missing.mailbox.clone()).collect(),
            bytes: deferred.bytes,
            attempts: deferred.attempts,
            error: deferred.error.clone(),
        };
        self.messages.iter().map(waiting).collect()
    }

    /// How much waits for each mailbox, in the order of their names.
    pub fn by_mailbox(&self) -> Vec<WaitingMailbox> {
        let waiting = |(mailbox, broken): (&Arc<str>, &Broken)| WaitingMailbox {
            mailbox: mailbox.clone(),
            messages: broken.messages.len(),
            bytes: broken.bytes,
            attempts: broken.attempts,
            error: broken.error.clone(),
        };
        let mut all: Vec<WaitingMailbox> = self.mailboxes.iter().map(waiting).collect();
        all.sort_by(|a, b| a.mailbox.cmp(&b.mailbox));
        all
    }

    /// The mailboxes that have got all that waited for them, since this was asked last.
    pub fn take_recovered(&mut self) -> Vec<RecoveredMailbox> {
        std::mem::take(&mut self.recovered)
    }

    /// Every mailbox that mail waits for.
    pub fn troubles(&self) -> impl Iterator<Item = Trouble> {
        self.mailboxes.iter().map(|(mailbox, broken)| broken.trouble(mailbox))
    }

    /// Enters how an attempt ended. Returns whether all targets of the message have been reached, and which mailboxes are in more
    /// trouble than before.
    pub fn enter(&mut self, attempt: Attempt, now: Instant) -> (bool, Vec<Trouble>) {
        let Attempt { id, reached, failed, bytes, memory_bytes, targets, era } = attempt;
        let known = self.messages.remove(&id);
        if known.is_none() && failed.is_empty() {
            self.went_through(&reached, now);
            return (true, Vec::new());
        }
        let mut deferred = known.unwrap_or_else(|| Deferred {
            missing: Vec::new(),
            targets,
            era,
            bytes,
            memory_bytes,
            attempts: 0,
            error: "".into(),
            under_way: false,
        });
        (deferred.under_way, deferred.era) = (false, era);
        deferred.attempts += 1;
        deferred.missing.retain(|missing| !reached.contains(missing));
        for (missing, error) in &failed {
            if !deferred.missing.contains(missing) {
                deferred.missing.push(missing.clone());
            }
            deferred.error = format!("{}: {error}", missing.mailbox).into();
        }
        self.tries += 1;
        let mut troubles = Vec::new();
        for (missing, error) in failed {
            troubles.extend(self.failed(id, &deferred, &missing.mailbox, error, now));
        }
        self.went_through(&reached, now);
        for missing in reached.iter().filter(|missing| !deferred.waits_for(&missing.mailbox)) {
            self.no_longer_waits(id, deferred.bytes, &missing.mailbox, now);
        }
        let done = deferred.missing.is_empty();
        if !done {
            self.messages.insert(id, deferred);
        }
        (done, troubles)
    }

    /// Mail that was just accepted has reached mailboxes. Where other mail waits for one, that is tried again soon, and the pauses begin anew.
    fn went_through(&mut self, reached: &[Missing], now: Instant) {
        if self.mailboxes.is_empty() {
            return;
        }
        for missing in reached {
            if let Some(broken) = self.mailboxes.get_mut(&missing.mailbox) {
                broken.due = broken.due.min(now + RETRY_FIRST);
                broken.attempts = 1;
            }
        }
    }

    fn failed(
        &mut self,
        id: u64,
        deferred: &Deferred,
        mailbox: &Arc<str>,
        error: Arc<str>,
        now: Instant,
    ) -> Option<Trouble> {
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
        if broken.tried(id, self.tries) {
            let was = broken.bytes > self.bytes_max;
            broken.bytes += deferred.bytes;
            self.overfull += usize::from(!was && broken.bytes > self.bytes_max);
        }
        let was_probe = broken.probe == Some(id);
        // What had been queued before the first failure was known says nothing new about the mailbox.
        if !was_probe && broken.attempts > 0 {
            return None;
        }
        broken.probe = broken.probe.filter(|_| !was_probe);
        broken.due = now + RETRY_FIRST.saturating_mul(1 << broken.attempts.min(16)).min(RETRY_MAX);
        broken.attempts += 1;
        broken.error = error;
        Some(broken.trouble(mailbox))
    }

    /// A message that waited for a mailbox has got into it.
    fn no_longer_waits(&mut self, id: u64, bytes: u64, mailbox: &str, now: Instant) {
        let Some(broken) = self.mailboxes.get_mut(mailbox) else { return };
        let Some(tried) = broken.messages.remove(&id) else { return };
        broken.by_try.remove(&(tried, id));
        let was = broken.bytes > self.bytes_max;
        broken.bytes = broken.bytes.saturating_sub(bytes);
        self.overfull -= usize::from(was && broken.bytes <= self.bytes_max);
        broken.delivered += 1;
        if broken.messages.is_empty() {
            let recovered = self.mailboxes.remove_entry(mailbox);
            if let Some((mailbox, Broken { delivered, .. })) =
                recovered.filter(|_| self.recovered.len() < RECOVERED_MAX)
            {
                self.recovered.push(RecoveredMailbox { mailbox, messages: delivered });
            }
        } else if broken.probe == Some(id) {
            broken.probe = None;
            broken.attempts = 1;
            broken.due = now + RETRY_FIRST;
            broken.release_before = Some(self.tries);
        }
    }

    /// Takes what is to be tried now, each with what `room` gives for its bytes in memory; when it gives nothing the rest has to wait.
    pub fn due<P>(&mut self, now: Instant, mut room: impl FnMut(u64) -> Option<P>) -> Vec<Again<P>> {
        let mut all = Vec::new();
        // First the mailboxes of which one message is tried: many messages for one of them leave no room for those.
        for releasing in [false, true] {
            for (mailbox, broken) in &mut self.mailboxes {
                if broken.release_before.is_some() != releasing {
                    continue;
                }
                while let Some(id) = broken.next(now, &self.messages) {
                    let deferred = self.messages.get_mut(&id).expect("what waits for a mailbox is known");
                    let Some(permit) = room(deferred.memory_bytes) else { return all };
                    deferred.under_way = true;
                    self.tries += 1;
                    broken.tried(id, self.tries);
                    // The last of those that are released may be followed by the one that is tried for the rest.
                    if broken.release_before.is_none() {
                        broken.probe = Some(id);
                    }
                    let numbers = deferred.missing.iter().filter(|missing| missing.mailbox == *mailbox);
                    let numbers = numbers.map(|missing| missing.number).collect();
                    all.push(Again { id, numbers, era: deferred.era, permit });
                }
            }
        }
        all
    }

    /// A message that was to be tried could not be: it is tried later.
    pub fn not_tried(&mut self, id: u64, why: Arc<str>, now: Instant) {
        let Some(deferred) = self.messages.get_mut(&id) else { return };
        (deferred.under_way, deferred.error) = (false, why);
        for missing in &deferred.missing {
            if let Some(broken) = self.mailboxes.get_mut(&missing.mailbox)
                && broken.probe == Some(id)
            {
                broken.probe = None;
                broken.due = now + RETRY_FIRST;
            }
        }
    }
}

impl Broken {
    fn trouble(&self, mailbox: &Arc<str>) -> Trouble {
        Trouble { mailbox: mailbox.clone(), attempts: self.attempts, due: self.due, error: self.error.clone() }
    }

    /// Notes the number of a message's last try; true if the message is new.
    fn tried(&mut self, id: u64, number: u64) -> bool {
        let before = self.messages.insert(id, number);
        if let Some(before) = before {
            self.by_try.remove(&(before, id));
        }
        self.by_try.insert((number, id));
        before.is_none()
    }

    /// The message to be tried now.
    fn next(&mut self, now: Instant, messages: &HashMap<u64, Deferred>) -> Option<u64> {
        let is_free = |id: u64| messages.get(&id).is_some_and(|deferred| !deferred.under_way);
        let longest_ago = self.by_try.iter().copied().find(|&(_, id)| is_free(id));
        if let Some(before) = self.release_before {
            match longest_ago {
                Some((tried, id)) if tried <= before => return Some(id),
                // What is under way for another mailbox has its turn with the next probe.
                _ => self.release_before = None,
            }
        }
        match self.probe.is_none() && self.due <= now {
            true => longest_ago.map(|(_, id)| id),
            false => None,
        }
    }
}

/// Mailboxes of which it is remembered that they have recovered.
const RECOVERED_MAX: usize = 10_000;
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use posthaste_turns::Random;

    use super::*;

    struct Clock {
        mail: WaitingMail,
        now: Instant,
    }

    impl Clock {
        fn new() -> Self {
            Clock { mail: WaitingMail::default(), now: Instant::now() }
        }

        fn pass(&mut self, secs: u64) {
            self.now += Duration::from_secs(secs);
        }

        /// An attempt of a message at mailboxes, given with their numbers and whether it got there.
        fn attempt(&mut self, id: u64, outcomes: &[(u16, &str, bool)]) -> bool {
            let missing = |number: u16, mailbox: &str| Missing { number, mailbox: mailbox.into() };
            let reached = outcomes.iter().filter(|(_, _, reached)| *reached);
            let failed = outcomes.iter().filter(|(_, _, reached)| !reached);
            let attempt = Attempt {
                id,
                reached: reached.map(|&(number, mailbox, _)| missing(number, mailbox)).collect(),
                failed: failed.map(|&(number, mailbox, _)| (missing(number, mailbox), "no space".into())).collect(),
                bytes: 10,
                memory_bytes: 7,
                targets: outcomes.len(),
                era: 0,
            };
            self.mail.enter(attempt, self.now).0
        }

        /// Ids of what is tried now.
        fn due(&mut self) -> Vec<u64> {
            let mut ids: Vec<u64> =
                self.mail.due(self.now, |_| Some(())).into_iter().map(|again: Again<()>| again.id).collect();
            ids.sort_unstable();
            ids
        }
    }

    #[test]
    fn a_broken_mailbox_is_tried_with_one_message_and_the_others_follow_when_it_gets_through() {
        let mut clock = Clock::new();
        for id in 0..1000 {
            assert!(!clock.attempt(id, &[(0, "bad", false)]));
        }
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
            assert!(!clock.attempt(due[0], &[(0, "bad", false)]));
        }
        assert_eq!(tried, (0..11).collect::<Vec<_>>(), "each time another");
        clock.pass(300);
        assert_eq!(clock.due(), [11]);
        assert!(clock.attempt(11, &[(0, "bad", true)]));
        let rest = clock.due();
        assert_eq!(rest.len(), 999);
        for id in rest {
            assert!(clock.attempt(id, &[(0, "bad", true)]));
        }
        assert!(clock.mail.is_empty() && clock.mail.troubles().next().is_none());
    }

    #[test]
    fn a_message_that_can_never_be_written_holds_up_no_other() {
        let mut clock = Clock::new();
        for id in 0..10 {
            clock.attempt(id, &[(0, "box", false)]);
        }
        let mut tries_of_the_bad_one = 0;
        for _ in 0..60 {
            clock.pass(1);
            for id in clock.due() {
                tries_of_the_bad_one += u32::from(id == 0);
                clock.attempt(id, &[(0, "box", id != 0)]);
            }
        }
        assert_eq!(clock.mail.len(), 1, "all others got through");
        assert!((3..10).contains(&tries_of_the_bad_one), "{tries_of_the_bad_one} in a minute");
    }

    #[test]
    fn what_could_not_be_tried_says_why_and_is_tried_later() {
        let mut clock = Clock::new();
        clock.attempt(1, &[(0, "box", false)]);
        clock.pass(1);
        assert_eq!(clock.due(), [1]);
        clock.mail.not_tried(1, "cannot be read".into(), clock.now);
        assert_eq!(&*clock.mail.list()[0].error, "cannot be read");
        assert_eq!(clock.due(), []);
        clock.pass(1);
        assert_eq!(clock.due(), [1]);
    }

    #[test]
    fn mail_that_gets_through_has_the_waiting_tried_soon() {
        let mut clock = Clock::new();
        clock.attempt(1, &[(0, "box", false)]);
        for _ in 0..12 {
            clock.pass(300);
            assert_eq!(clock.due(), [1]);
            clock.attempt(1, &[(0, "box", false)]);
        }
        assert!(clock.attempt(2, &[(0, "box", true)]));
        clock.pass(1);
        assert_eq!(clock.due(), [1]);
        clock.attempt(1, &[(0, "box", false)]);
        clock.pass(2);
        assert_eq!(clock.due(), [1], "the pauses begin anew");
    }

    #[test]
    fn a_message_for_several_broken_mailboxes_is_tried_for_one_at_a_time_and_is_done_with_the_last() {
        let mut clock = Clock::new();
        clock.attempt(1, &[(0, "a", false), (1, "b", false), (2, "good", true)]);
        assert!(clock.mail.get(1).expect("it waits").is_partial());
        clock.pass(1);
        assert_eq!(clock.due(), [1]);
        let first = clock.mail.mailboxes.iter().find(|(_, broken)| broken.probe.is_some()).expect("one is tried").0;
        let (first, second) = if &**first == "a" { ((0, "a"), (1, "b")) } else { ((1, "b"), (0, "a")) };
        assert!(!clock.attempt(1, &[(first.0, first.1, true)]));
        assert_eq!(clock.due(), [1]);
        assert!(clock.attempt(1, &[(second.0, second.1, true)]));
        assert!(clock.mail.is_empty());
    }

    #[test]
    fn bytes_are_counted_for_each_mailbox_and_given_back() {
        let mut clock = Clock::new();
        clock.attempt(1, &[(0, "a", false), (1, "b", false)]);
        clock.attempt(2, &[(0, "a", false)]);
        clock.attempt(2, &[(0, "a", false)]);
        assert_eq!((clock.mail.bytes_for("a"), clock.mail.bytes_for("b")), (20, 10));
        clock.attempt(1, &[(0, "a", true)]);
        assert_eq!((clock.mail.bytes_for("a"), clock.mail.bytes_for("b")), (10, 10));
        clock.attempt(2, &[(0, "a", true)]);
        assert_eq!((clock.mail.bytes_for("a"), clock.mail.bytes_for("b")), (0, 10));
    }

    #[test]
    fn what_there_is_no_room_for_is_tried_when_there_is() {
        let mut clock = Clock::new();
        for id in 0..5 {
            clock.attempt(id, &[(0, "box", false)]);
        }
        clock.pass(1);
        assert!(clock.mail.due(clock.now, |_| None::<()>).is_empty());
        let probe = clock.due();
        assert_eq!(probe.len(), 1);
        clock.attempt(probe[0], &[(0, "box", true)]);
        let mut room = 3;
        let some = clock.mail.due(clock.now, |bytes| {
            assert_eq!(bytes, 7, "of memory");
            room -= 1;
            (room >= 0).then_some(())
        });
        assert_eq!(some.len(), 3);
        assert_eq!(clock.due().len(), 1);
    }

    #[test]
    fn many_messages_for_one_mailbox_take_no_room_from_the_probes_of_others() {
        let mut clock = Clock::new();
        for id in 0..100 {
            clock.attempt(id, &[(0, "large", false)]);
        }
        clock.pass(1);
        let probe = clock.due();
        clock.attempt(probe[0], &[(0, "large", true)]);
        for id in 100..110 {
            clock.attempt(id, &[(0, &format!("small {id}"), false)]);
        }
        clock.pass(1);
        let mut room = 20;
        let first = clock.mail.due(clock.now, |_| {
            room -= 1;
            (room >= 0).then_some(())
        });
        assert_eq!(first.iter().filter(|again| again.id >= 100).count(), 10, "each of the others has its turn");
        assert_eq!(first.len(), 20);
    }

    #[test]
    fn behind_those_that_are_released_one_message_alone_is_tried() {
        let mut clock = Clock::new();
        clock.attempt(0, &[(0, "box", false)]);
        clock.attempt(1, &[(0, "box", false)]);
        clock.pass(1);
        assert_eq!(clock.due(), [0]);
        assert!(clock.attempt(0, &[(0, "box", true)]));
        for id in 2..10 {
            clock.attempt(id, &[(0, "box", false)]);
        }
        // There was no room for message 1 until the next one was due as well.
        clock.pass(1);
        assert_eq!(clock.due(), [1, 2]);
    }

    #[test]
    fn whatever_has_failed_for_a_while_all_mail_arrives_and_no_pause_is_longer_than_that_while() {
        const MAILBOXES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
        const TICK: Duration = Duration::from_millis(200);
        for seed in 0..1000 {
            let mut chance = Random::new(seed);
            let mut clock = Clock::new();
            let (outage, slowness, tries_at_once) = (1 + chance.below(300), 1 + chance.below(20), 1 + chance.below(40));
            let mut broken = [true; MAILBOXES.len()];
            let mut under_way: Vec<(u64, Vec<u16>)> = Vec::new();
            let (mut tick, mut idle) = (0, 0);
            while tick < outage || !under_way.is_empty() || !clock.mail.is_empty() {
                clock.now += TICK;
                if tick < outage {
                    broken.iter_mut().for_each(|broken| *broken ^= chance.below(30) == 0);
                    let mut numbers: Vec<u16> = (0..=chance.below(4)).map(|_| chance.below(8) as u16).collect();
                    numbers.sort_unstable();
                    numbers.dedup();
                    under_way.push((tick, numbers));
                } else {
                    broken = [false; MAILBOXES.len()];
                    idle = if under_way.is_empty() { idle + 1 } else { 0 };
                    // Each pause is as long as those before it together, and 1 s.
                    assert!(idle <= outage + 10, "seed {seed}: {:?}", clock.mail.list());
                }
                tick += 1;
                let mut room = tries_at_once.saturating_sub(under_way.len() as u64);
                let again: Vec<Again<()>> = clock.mail.due(clock.now, |_| {
                    room = room.checked_sub(1)?;
                    Some(())
                });
                under_way.extend(again.into_iter().map(|again| (again.id, again.numbers)));
                under_way.retain(|(id, numbers)| {
                    let ended = chance.below(slowness) == 0;
                    let outcome =
                        |&number: &u16| (number, MAILBOXES[usize::from(number)], !broken[usize::from(number)]);
                    if ended {
                        clock.attempt(*id, &numbers.iter().map(outcome).collect::<Vec<_>>());
                    }
                    !ended
                });
            }
            assert!(clock.mail.mailboxes.is_empty(), "seed {seed}");
        }
    }
}
