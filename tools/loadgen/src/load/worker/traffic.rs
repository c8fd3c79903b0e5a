//! Traffic on an open connection: moves octets, follows replies, begins the next message.

use std::time::Instant;

use super::super::failure::{Cause, Failure, Stage};
use super::super::schedule::{Claim, SendSlot};
use super::super::session::Event;
use super::{BACKOFF_FIRST, Flow, Live, Worker, count};
use crate::load::connection::ReadOutcome;
use crate::values::PerConnection;

impl Worker {
    /// Handles readiness of a slot's socket.
    pub(super) fn ready_event(&mut self, slot: usize, is_readable: bool, is_closed: bool) {
        let Some(mut live) = self.slots[slot].live.take() else { return };
        let result = self.drive(slot, &mut live, is_readable, is_closed);
        self.put_back(slot, live, result);
    }

    pub(super) fn flush(&mut self, slot: usize) {
        let Some(mut live) = self.slots[slot].live.take() else { return };
        let stage = live.session.stage();
        let result = live.connection.write(live.session.output(), stage).map(|_| Flow::Stay);
        self.put_back(slot, live, result);
    }

    fn put_back(&mut self, slot: usize, live: Box<Live>, result: Result<Flow, Failure>) {
        match result {
            Ok(Flow::Stay) if live.session.is_over() => self.closed(slot, live, None),
            Ok(Flow::Stay) => self.slots[slot].live = Some(live),
            Ok(Flow::Close) => self.closed(slot, live, None),
            Err(failure) => self.closed(slot, live, Some(failure)),
        }
    }

    fn drive(&mut self, slot: usize, live: &mut Live, is_readable: bool, is_closed: bool) -> Result<Flow, Failure> {
        if !live.connection.finish_connect()? {
            return Ok(Flow::Stay);
        }
        live.quiet_since = Instant::now();
        if (is_readable || is_closed) && self.read(slot, live, is_closed)? == Flow::Close {
            return Ok(Flow::Close);
        }
        let stage = live.session.stage();
        live.connection.write(live.session.output(), stage)?;
        if live.session.speaks_first() && live.is_connecting && !live.connection.is_handshaking() {
            self.follow(slot, live, Event::Ready, 0)?;
            live.connection.write(live.session.output(), stage)?;
        }
        Ok(Flow::Stay)
    }

    /// Reads and processes input; `is_closed`: until its end, as no further event will come.
    fn read(&mut self, slot: usize, live: &mut Live, is_closed: bool) -> Result<Flow, Failure> {
        loop {
            let stage = if live.connection.is_handshaking() { Stage::Tls } else { live.session.stage() };
            let got = match live.connection.read(stage, is_closed) {
                // The server closes after QUIT, with or without an answer.
                Err(_) if live.session.is_quitting() => return Ok(Flow::Close),
                got => got?,
            };
            if self.take_replies(slot, live)? == Flow::Close {
                return Ok(Flow::Close);
            }
            if got == ReadOutcome::Nothing {
                return Ok(Flow::Stay);
            }
        }
    }

    fn take_replies(&mut self, slot: usize, live: &mut Live) -> Result<Flow, Failure> {
        let mut taken = 0;
        let mut flow = Flow::Stay;
        loop {
            let input = &live.connection.input()[taken..];
            if input.is_empty() {
                break;
            }
            let Some((octets, event)) = live.session.take(input, &self.plan)? else { break };
            taken += octets;
            for refusal in live.session.take_refusals() {
                count(&mut self.tick, refusal);
            }
            let rest = live.connection.input().len() - taken;
            flow = self.follow(slot, live, event, rest)?;
            if flow == Flow::Close {
                break;
            }
        }
        live.connection.consume(taken);
        Ok(flow)
    }

    fn follow(&mut self, slot: usize, live: &mut Live, event: Event, rest: usize) -> Result<Flow, Failure> {
        match event {
            Event::Wait => {}
            Event::Ready => {
                self.established(slot, live);
                match self.slots[slot].pending.take() {
                    Some(turn) => live.session.begin(turn, &self.plan),
                    None => self.next_message(slot, live),
                }
            }
            Event::StartTls if rest > 0 => {
                // Plain text after the reply to STARTTLS would be taken for encrypted (RFC 3207 section 6).
                return Err(Failure::new(Stage::StartTls, Cause::Garbage, "octets after the reply to STARTTLS"));
            }
            Event::StartTls => {
                live.connection.start_tls(&self.plan.servers[self.slots[slot].server], &self.plan)?;
                live.session.mail().tls_started(&self.plan);
            }
            Event::SendBody => {
                let next = self.claim_ahead(live);
                live.session.mail().send_body(next, &self.plan);
            }
            Event::Done(fate) => {
                if let Some(outages) = self.plan.outages.as_ref().filter(|_| fate.acked > 0) {
                    outages.acknowledged(live.opened);
                }
                self.record(fate);
                if live.session.is_closing() {
                    return Ok(Flow::Close);
                }
                if live.session.is_idle() {
                    self.next_message(slot, live);
                } else if self.plan.pace.rate.is_none() {
                    live.session.reset_due(Instant::now());
                }
            }
            Event::Again(turn) => {
                self.repeat(slot, turn);
                return Ok(Flow::Close);
            }
            Event::Closed => return Ok(Flow::Close),
        }
        Ok(Flow::Stay)
    }

    fn established(&mut self, slot: usize, live: &mut Live) {
        live.is_connecting = false;
        self.connecting -= 1;
        self.ready += 1;
        self.last_ready = Instant::now();
        self.tick.sessions += 1;
        self.slots[slot].backoff = BACKOFF_FIRST;
        self.slots[slot].last_failure = None;
    }

    fn may_carry_more(&self, live: &Live) -> bool {
        match self.plan.per_connection {
            PerConnection::All => true,
            PerConnection::Count(count) => live.session.begun() < count.get(),
        }
    }

    fn claim_ahead(&self, live: &Live) -> Option<SendSlot> {
        // An idle slot would be passed over.
        if !live.session.may_send_ahead() || !self.may_carry_more(live) || !self.idle.is_empty() {
            return None;
        }
        match self.schedule.claim(Instant::now()) {
            Claim::Message(turn) => Some(turn),
            Claim::NotBefore(_) | Claim::Finished => None,
        }
    }

    fn next_message(&mut self, slot: usize, live: &mut Live) {
        if !self.may_carry_more(live) {
            return live.session.quit();
        }
        if !self.idle.is_empty() {
            // Others wait for a message that is not due; nobody overtakes them.
            return self.idle.push_back(slot);
        }
        match self.schedule.claim(Instant::now()) {
            Claim::Message(turn) => live.session.begin(turn, &self.plan),
            Claim::NotBefore(_) => self.idle.push_back(slot),
            Claim::Finished => {
                self.slots[slot].is_finished = true;
                live.session.quit();
            }
        }
    }
}
