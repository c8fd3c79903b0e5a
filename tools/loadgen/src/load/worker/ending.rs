//! Ends of connections and messages: in order, by an error, or by a timeout.

use std::time::{Duration, Instant};

use super::super::failure::{Cause, Failure, Stage};
use super::super::http;
use super::super::schedule::SendSlot;
use super::super::session::Fate;
use super::{
    BACKOFF_FIRST, BACKOFF_LAST, Live, OUTAGE_BACKOFF, OUTAGE_BACKOFF_PER_SLOT, QUIT_PATIENCE, Record, Worker, count,
};

impl Worker {
    /// Handles the end of a connection: deliberate, or by `failure`.
    pub(super) fn closed(&mut self, slot: usize, mut live: Box<Live>, failure: Option<Failure>) {
        if live.is_connecting {
            self.connecting -= 1;
        } else {
            self.ready -= 1;
            self.last_ready = Instant::now();
        }
        let was_idle = live.session.is_idle();
        let Some(failure) = failure else {
            let pause = self.slots[slot].pending.map(repeat_pause);
            return self.free(slot, pause);
        };
        let is_explained = self.is_explained(live.opened, &failure, live.session.in_flight());
        let mut has_counted = is_explained;
        for mut fate in live.session.lost(&failure, &self.plan) {
            if http::is_repeated(fate.turn, &self.plan) {
                self.repeat(slot, fate.turn);
                has_counted = true;
                continue;
            }
            let is_of_this = fate.failure.as_ref().is_some_and(|counted| counted.class == failure.class);
            has_counted |= is_of_this;
            if is_explained && is_of_this {
                fate.failure = None;
                self.record_as(fate, true);
            } else {
                self.record(fate);
            }
        }
        if live.is_connecting {
            return self.no_connection(slot, failure, is_explained);
        }
        if !has_counted {
            count(&mut self.tick, failure);
        }
        // A slot that waits for its turn stays in the queue, and connects when the turn comes.
        if !(was_idle && self.idle.contains(&slot)) {
            let backoff = self.slots[slot].pending.map_or(self.slots[slot].backoff, repeat_pause);
            self.free(slot, Some(backoff));
        }
    }

    /// Sends the message again, with the same key.
    pub(super) fn repeat(&mut self, slot: usize, mut turn: SendSlot) {
        turn.repeats += 1;
        self.tick.repeated += 1;
        self.slots[slot].pending = Some(turn);
    }

    /// Handles a failed attempt at a session. The message that waited for it has failed, or waits on during a
    /// deliberate outage (`is_away`).
    pub(super) fn no_connection(&mut self, slot: usize, failure: Failure, is_away: bool) {
        if is_away {
            let pause = OUTAGE_BACKOFF.max(OUTAGE_BACKOFF_PER_SLOT * self.slots.len() as u32);
            return self.free(slot, Some(pause));
        }
        self.slots[slot].last_failure = Some(failure.clone());
        // With keys a message waits until the server is back, or the run is given up.
        let is_repeated = self.plan.injecting.repeats;
        match self.slots[slot].pending.take_if(|_| !is_repeated) {
            Some(turn) => {
                self.record(Fate { turn, acked: 0, uncertain: 0, octets: 0, failure: Some(failure) });
            }
            None if self.slots[slot].pending.is_some() => {}
            None => count(&mut self.tick, failure),
        }
        let backoff = self.slots[slot].backoff;
        self.slots[slot].backoff = (backoff * 2).min(BACKOFF_LAST);
        self.free(slot, Some(backoff));
    }

    /// Frees a slot without a connection for the next message, after a pause if there was an error.
    fn free(&mut self, slot: usize, pause: Option<Duration>) {
        if self.slots[slot].is_finished {
            self.unfinished -= 1;
            return;
        }
        match pause {
            Some(pause) => self.retries.push((Instant::now() + pause, slot)),
            None => self.make_available(slot),
        }
    }

    pub(super) fn record(&mut self, fate: Fate) {
        self.record_as(fate, false);
    }

    /// `is_broken`: by a deliberate kill of the server.
    fn record_as(&mut self, fate: Fate, is_broken: bool) {
        let now = Instant::now();
        self.tick.records.push(Record {
            number: fate.turn.number,
            acked: fate.acked,
            uncertain: fate.uncertain,
            octets: fate.octets,
            is_measured: fate.turn.is_measured,
            is_failed: fate.acked == 0 && !is_broken,
            is_broken: fate.acked == 0 && is_broken,
            done: now.saturating_duration_since(self.schedule.start),
            latency: now.saturating_duration_since(fate.turn.due),
        });
        // Refused recipients have been counted one by one.
        if let Some(failure) = fate.failure.filter(|failure| failure.class.stage != Stage::Rcpt || is_lost(failure)) {
            count(&mut self.tick, failure);
        }
    }

    /// Looks for timeouts.
    pub(super) fn sweep(&mut self, now: Instant) {
        let is_over = self.schedule.is_over(now, self.plan.drain);
        let (is_away, back) = self.plan.outages.as_ref().map_or((false, None), |outages| outages.state());
        let since = self.last_ready.max(back.unwrap_or(self.last_ready));
        let is_hopeless = self.ready == 0 && !is_away && now.saturating_duration_since(since) > self.plan.give_up;
        if is_over || is_hopeless {
            self.tick.gave_up |= !is_over;
            return self.abandon(is_over);
        }
        for slot in 0..self.slots.len() {
            let Some(live) = &self.slots[slot].live else { continue };
            let waits = live.is_connecting || live.session.is_waiting();
            let patience = if live.session.is_quitting() { QUIT_PATIENCE } else { self.plan.timeout };
            if waits && now.saturating_duration_since(live.quiet_since) > patience {
                let live = self.slots[slot].live.take().expect("looked at before");
                let failure = Failure::new(stage_of(&live), Cause::Timeout, "no answer in time");
                let failure = (!live.session.is_quitting()).then_some(failure);
                self.closed(slot, live, failure);
            }
        }
    }

    /// Ends at once: messages in flight, or waiting for a connection, have failed. If the slot's last attempt at a
    /// connection failed, that is the reason given.
    fn abandon(&mut self, is_over: bool) {
        let text = if is_over { "still under way when the run was over" } else { "the run was given up" };
        for slot in 0..self.slots.len() {
            self.slots[slot].is_finished = true;
            let last_failure = self.slots[slot].last_failure.take();
            if let Some(live) = self.slots[slot].live.take() {
                let is_known = live.is_connecting && last_failure.is_some();
                let is_idle = live.session.in_flight() == 0 && self.slots[slot].pending.is_none();
                let has_ended_well = live.session.is_quitting() || is_over && is_idle;
                let failure =
                    (!has_ended_well && !is_known).then(|| Failure::new(stage_of(&live), Cause::Timeout, text));
                self.closed(slot, live, failure);
            }
            if let Some(turn) = self.slots[slot].pending.take() {
                let no_attempt =
                    || Failure::new(Stage::Connect, Cause::Timeout, "no connection before the run was over");
                let failure = Some(last_failure.unwrap_or_else(no_attempt));
                let uncertain = http::uncertain(turn, &self.plan);
                self.record(Fate { turn, acked: 0, uncertain, octets: 0, failure });
            }
        }
        self.unfinished = 0;
    }
}

/// Pause before a message is sent again.
fn repeat_pause(turn: SendSlot) -> Duration {
    let doublings = u32::from(turn.repeats.saturating_sub(1).min(16));
    (BACKOFF_FIRST * 2_u32.pow(doublings)).min(BACKOFF_LAST)
}

/// The step that a connection waits for.
fn stage_of(live: &Live) -> Stage {
    match (live.connection.is_connected(), live.connection.is_handshaking()) {
        (false, _) => Stage::Connect,
        (true, true) => Stage::Tls,
        (true, false) => live.session.stage(),
    }
}

/// True if the message was lost with its connection during RCPT, so that no refusal has counted it.
fn is_lost(failure: &Failure) -> bool {
    !matches!(failure.class.cause, Cause::Reply(code) if code != 421)
}
