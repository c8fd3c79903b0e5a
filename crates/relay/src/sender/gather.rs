//! Failures of one message within a minute are told in one notification.
//!
//! A failure waits only while other recipients of its message are still to be settled. It is recorded together with its notification: until then the recipient is
//! busy, and after a crash it is tried again.

use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_spool::Lsn;
use tokio::time::Instant;

use super::messages::Envelope;
use super::shared::Shared;
use super::tell::Told;
use crate::queue::Key;

/// Failures that are to be told, by message.
#[derive(Default)]
pub(super) struct Gathered(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: HashMap<Lsn, Waiting>,
    /// Failures of all of them.
    count: usize,
}

struct Waiting {
    since: Instant,
    envelope: Arc<Envelope>,
    told: Vec<Told>,
}

impl Shared {
    /// Records changes of one message with a notification of them, in one batch: at once, failures within a minute.
    pub fn tell(self: &Arc<Self>, message: Lsn, envelope: Arc<Envelope>, told: Vec<Told>) {
        let (failed, others): (Vec<Told>, Vec<Told>) = told.into_iter().partition(Told::is_failure);
        if !others.is_empty() {
            self.tell_now(message, envelope.clone(), others);
        }
        if failed.is_empty() {
            return;
        }
        let mut state = self.gathered.0.lock().expect("what is to be told");
        state.count += failed.len();
        let is_crowded = state.count > GATHERED_MAX;
        let waiting = state.waiting.entry(message).or_insert_with(|| {
            // The end waits for it.
            self.recorder.begin();
            Waiting { since: Instant::now(), envelope, told: Vec::new() }
        });
        waiting.told.extend(failed);
        // Of a message to many the next second decides.
        let is_small = waiting.envelope.queued.recipients.len() <= LOOKED_AT_ONCE;
        if is_crowded || self.is_ending() || is_small && !self.has_others(message, waiting) {
            self.let_go(&mut state, message);
        }
    }

    /// Tells what has waited long enough, or for which nothing more can come; `all` of it at the end. To be called each second.
    pub fn tell_gathered(self: &Arc<Self>, all: bool) {
        let mut state = self.gathered.0.lock().expect("what is to be told");
        let is_due = |(message, waiting): (&Lsn, &Waiting)| {
            let is_old = all || waiting.since.elapsed() >= GATHERED_FOR;
            (is_old || !self.has_others(*message, waiting)).then_some(*message)
        };
        let due: Vec<Lsn> = state.waiting.iter().filter_map(is_due).collect();
        due.into_iter().for_each(|message| self.let_go(&mut state, message));
    }

    fn let_go(self: &Arc<Self>, state: &mut State, message: Lsn) {
        let Some(Waiting { envelope, told, .. }) = state.waiting.remove(&message) else { return };
        state.count -= told.len();
        self.tell_now(message, envelope, told);
        self.recorder.end();
    }

    /// Whether recipients of the message are not settled yet, besides those that wait here.
    fn has_others(&self, message: Lsn, waiting: &Waiting) -> bool {
        let here: HashSet<u16> = waiting.told.iter().map(Told::number).collect();
        let queue = self.queue();
        let mut others =
            waiting.envelope.queued.recipients.iter().filter(|recipient| !here.contains(&recipient.number));
        others.any(|recipient| queue.show(Key { message, number: recipient.number }).is_some())
    }
}

/// A failure waits so long for others.
const GATHERED_FOR: Duration = Duration::from_secs(60);
/// So many wait; the next ones are told at once.
const GATHERED_MAX: usize = 10_000;
/// Recipients of a message of which all are looked at with each failure.
const LOOKED_AT_ONCE: usize = 100;
