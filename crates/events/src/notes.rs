//! Events without a waiting caller: collected and appended together, because each batch costs a write to the spool's
//! device. Bounded: those beyond the bound are counted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use posthaste_spool::{Batch, Body, Entry, Spool, StreamId};

use crate::config::Notice;
use crate::entry;
use crate::event::{Event, EventKind, LeftOut};
use crate::inbox::Inbox;
use crate::writer::Figures;

#[derive(Default)]
pub(crate) struct Notes {
    state: Mutex<State>,
    changed: Condvar,
    /// True if more wait in the spool than allowed.
    pub is_over: AtomicBool,
    /// True if a thread of the log has panicked, so nothing bounds the waiting events.
    pub has_failed: AtomicBool,
    /// Events left out since the opening.
    pub left_out: AtomicU64,
}

#[derive(Default)]
struct State {
    events: BytesMut,
    refused: usize,
    others: usize,
    /// Lines that the others have.
    other_lines: u64,
    left_out: LeftOut,
    stop: bool,
}

impl State {
    fn is_empty(&self) -> bool {
        self.refused + self.others == 0 && self.left_out == LeftOut::default()
    }
}

impl Notes {
    fn state(&self) -> MutexGuard<'_, State> {
        // Callers are never held up, not even by a bug of the log.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if events are left out.
    pub fn leaves_out(&self) -> bool {
        self.is_over.load(Ordering::Relaxed) || self.has_failed.load(Ordering::Relaxed)
    }

    /// Takes an event, or counts it.
    pub fn add(&self, event: &Event) {
        let is_refusal = event.is_refusal();
        let mut guard = self.state();
        let state = &mut *guard;
        let count = if is_refusal { &mut state.refused } else { &mut state.others };
        if *count >= NOTES_MAX || self.leaves_out() {
            return self.leave_out(state, is_refusal, event.lines());
        }
        *count += 1;
        if !is_refusal {
            state.other_lines += event.lines();
        }
        let wakes = state.refused + state.others == 1;
        entry::put(&mut state.events, event);
        drop(guard);
        if wakes {
            self.changed.notify_all();
        }
    }

    /// Counts lines of events that were not appended.
    pub fn lost(&self, lines: u64) {
        self.leave_out(&mut self.state(), false, lines);
    }

    fn leave_out(&self, state: &mut State, refusals: bool, lines: u64) {
        let count = if refusals { &mut state.left_out.refused } else { &mut state.left_out.others };
        *count += lines;
        self.left_out.fetch_add(lines, Ordering::Relaxed);
    }

    pub fn stop(&self) {
        self.state().stop = true;
        self.changed.notify_all();
    }

    /// Appends notes until it is stopped, one batch at a time and at a limited rate; then the rest.
    pub fn run(&self, spool: &dyn Spool, stream: StreamId, behind: &Behind) {
        loop {
            let waited = {
                let empty = |state: &mut State| state.is_empty() && !state.stop;
                self.changed.wait_timeout_while(self.state(), LOOK_INTERVAL, empty)
            };
            let state = waited.expect("nothing panics while it is held").0;
            let gathering = |state: &mut State| !state.stop;
            let waited = self.changed.wait_timeout_while(state, GATHER, gathering);
            let mut state = waited.expect("nothing panics while it is held").0;
            let stop = state.stop;
            if behind.is_over(spool, stream) {
                let refused = state.refused;
                let other_lines = state.other_lines;
                (state.events, state.refused, state.others, state.other_lines) = (BytesMut::new(), 0, 0, 0);
                self.leave_out(&mut state, true, refused as u64);
                self.leave_out(&mut state, false, other_lines);
                let left_out = if stop { std::mem::take(&mut state.left_out) } else { LeftOut::default() };
                drop(state);
                if !self.is_over.swap(true, Ordering::Relaxed) {
                    (behind.notice)(Notice::LeavingOut);
                }
                if stop {
                    // Once in each life, so that the log tells of it when it can be written again.
                    append(spool, stream, left_out, &[]);
                    return;
                }
                self.wait_for_stop();
                continue;
            }
            if self.is_over.swap(false, Ordering::Relaxed) {
                (behind.notice)(Notice::Recording);
            }
            if !state.is_empty() {
                let State { events, refused, other_lines, left_out, .. } =
                    std::mem::replace(&mut *state, State { stop, ..State::default() });
                drop(state);
                if !append(spool, stream, left_out, &events) {
                    let refused = refused as u64;
                    let mut state = self.state();
                    state.left_out.refused += left_out.refused + refused;
                    state.left_out.others += left_out.others + other_lines;
                    self.left_out.fetch_add(refused + other_lines, Ordering::Relaxed);
                    drop(state);
                    if stop || self.wait_for_stop() {
                        return;
                    }
                }
            }
            if stop {
                return;
            }
        }
    }

    /// Waits for one interval, or until it is stopped. True if it was stopped.
    fn wait_for_stop(&self) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), LOOK_INTERVAL, |state| !state.stop);
        waited.expect("nothing panics while it is held").0.stop
    }
}

/// Appends events as one batch and waits for the outcome. True if the batch is durable.
fn append(spool: &dyn Spool, stream: StreamId, left_out: LeftOut, events: &[u8]) -> bool {
    let mut payload = entry::begin();
    if left_out != LeftOut::default() {
        entry::put(&mut payload, &Event::now(EventKind::LeftOut(left_out)));
    }
    payload.extend_from_slice(events);
    let entry = Entry { stream, needs_body: false, payload: payload.freeze() };
    let (tell, told) = channel();
    spool.append(Batch { entries: vec![entry], body: Body::None }, Box::new(move |outcome| drop(tell.send(outcome))));
    matches!(told.recv(), Ok(Ok(_)))
}

/// State of a writer that may have more to do than it can.
pub(crate) struct Behind {
    pub inbox: Arc<Inbox>,
    pub figures: Arc<Figures>,
    pub pending_max: u64,
    /// Called when the bound is reached, and when there is room again.
    pub notice: Arc<dyn Fn(Notice) + Send + Sync>,
}

impl Behind {
    fn is_over(&self, spool: &dyn Spool, stream: StreamId) -> bool {
        // Otherwise all that is not written is in the inbox, which has a bound of its own.
        let is_behind = self.figures.is_behind.load(Ordering::Relaxed) || self.inbox.has_overflowed();
        is_behind && spool.streams().iter().any(|stats| stats.id == stream && stats.entries > self.pending_max)
    }
}

/// Maximum events in one batch: refusals, and as many others.
const NOTES_MAX: usize = 1000;
/// Time for collecting events: at most five batches a second.
const GATHER: Duration = Duration::from_millis(200);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
