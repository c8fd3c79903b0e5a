//! One message after the other: envelope, body, verdict.

use std::io::Write as _;
use std::time::Instant;

use super::super::failure::{Failure, Stage};
use super::super::plan::{Pipelining, Plan};
use super::super::replies::Reply;
use super::super::schedule::SendSlot;
use super::{Event, Expect, Session, Transaction, fate};
use crate::stamp::Id;
use crate::values::Protocol;

impl Session {
    /// Begins a message.
    pub fn begin(&mut self, turn: SendSlot, plan: &Plan) {
        assert!(self.is_idle(), "a message is begun while one is under way: {self:?}");
        self.current = Some(self.envelope(turn, plan));
    }

    /// Sends the body after 354, and the envelope of the next message.
    pub fn send_body(&mut self, next: Option<SendSlot>, plan: &Plan) {
        let current = self.current.as_mut().expect("354 belongs to a message");
        let id = Id { run: plan.run, number: current.turn.number };
        let message = plan.pool.pick(id.number);
        let text = self.output.text();
        let before = text.len();
        plan.pool.write_front(id, message, text);
        current.octets = (text.len() - before + message.plain.len()) as u64;
        current.body_sent = true;
        self.output.body(message.stuffed.clone());
        self.output.text().extend_from_slice(b".\r\n");
        self.expected.push_back(Expect::Verdict);
        if let Some(turn) = next {
            self.ahead = Some(self.envelope(turn, plan));
        }
    }

    /// True if the next message's envelope may follow this one's body at once.
    pub fn may_send_ahead(&self) -> bool {
        self.pipelining == Pipelining::Ahead && self.ahead.is_none()
    }

    /// Writes the commands of a message that may be sent at once.
    fn envelope(&mut self, turn: SendSlot, plan: &Plan) -> Transaction {
        let mut transaction = Transaction {
            turn,
            asked: 0,
            accepted: 0,
            verdicts_left: None,
            acked: 0,
            octets: 0,
            body_sent: false,
            is_void: false,
            failure: None,
        };
        self.begun += 1;
        if std::mem::take(&mut self.needs_reset) {
            self.command(b"RSET\r\n", Expect::Rset);
        }
        self.mail(turn.number, plan);
        if self.pipelining == Pipelining::Off {
            return transaction;
        }
        for index in 0..plan.recipients_per_message {
            self.rcpt(turn.number, index, plan);
        }
        transaction.asked = plan.recipients_per_message;
        if plan.bdat {
            self.bdat(&mut transaction, plan);
        } else {
            self.command(b"DATA\r\n", Expect::Data);
        }
        transaction
    }

    fn mail(&mut self, number: u64, plan: &Plan) {
        let message = plan.pool.pick(number);
        let text = self.output.text();
        write!(text, "MAIL FROM:<{}>", plan.sender).expect("a Vec takes everything");
        if self.extensions.size.is_some() {
            // An estimate is all that is asked for (RFC 1870 section 6.1).
            write!(text, " SIZE={}", message.plain.len() + 128).expect("a Vec takes everything");
        }
        if message.is_eight_bit && self.extensions.eight_bit_mime {
            text.extend_from_slice(b" BODY=8BITMIME");
        }
        text.extend_from_slice(b"\r\n");
        self.expected.push_back(Expect::Mail);
    }

    fn rcpt(&mut self, number: u64, index: usize, plan: &Plan) {
        let text = self.output.text();
        text.extend_from_slice(b"RCPT TO:<");
        plan.recipients.write(number, index, plan.recipients_per_message, text);
        text.extend_from_slice(b">\r\n");
        self.expected.push_back(Expect::Rcpt);
    }

    fn bdat(&mut self, transaction: &mut Transaction, plan: &Plan) {
        let id = Id { run: plan.run, number: transaction.turn.number };
        let message = plan.pool.pick(id.number);
        let mut front = Vec::with_capacity(128);
        plan.pool.write_front(id, message, &mut front);
        transaction.octets = (front.len() + message.plain.len()) as u64;
        transaction.body_sent = true;
        let text = self.output.text();
        write!(text, "BDAT {} LAST\r\n", transaction.octets).expect("a Vec takes everything");
        text.extend_from_slice(&front);
        self.output.body(message.plain.clone());
        self.expected.push_back(Expect::Verdict);
    }

    pub(super) fn after_mail(&mut self, reply: Reply<'_>, plan: &Plan) -> Event {
        let is_positive = reply.code / 100 == 2;
        let current = self.current.as_mut().expect("MAIL belongs to a message");
        if is_positive {
            self.needs_reset = true;
        } else {
            current.failure = Some(Failure::reply(Stage::Mail, reply.code, reply.wire));
        }
        match (self.pipelining, is_positive) {
            (Pipelining::Off, true) => {
                current.asked = 1;
                let number = current.turn.number;
                self.rcpt(number, 0, plan);
                Event::Wait
            }
            (Pipelining::Off, false) => self.finish(),
            _ => Event::Wait,
        }
    }

    pub(super) fn after_rcpt(&mut self, reply: Reply<'_>, plan: &Plan) -> Event {
        let current = self.current.as_mut().expect("RCPT belongs to a message");
        let has_mail = current.failure.as_ref().is_none_or(|failure| failure.class.stage != Stage::Mail);
        if reply.code / 100 == 2 {
            // A server that takes recipients for a sender it has refused is not believed.
            current.accepted += u16::from(has_mail);
        } else if has_mail {
            // Behind a refused MAIL the 503 to RCPT says nothing new.
            let failure = Failure::reply(Stage::Rcpt, reply.code, reply.wire);
            current.failure.get_or_insert_with(|| failure.clone());
            self.refusals.push(failure);
        }
        if self.pipelining != Pipelining::Off {
            return Event::Wait;
        }
        let number = current.turn.number;
        if current.asked < plan.recipients_per_message {
            let index = current.asked;
            current.asked += 1;
            self.rcpt(number, index, plan);
        } else if current.accepted == 0 {
            return self.finish();
        } else if plan.bdat {
            let mut current = self.current.take().expect("checked above");
            self.bdat(&mut current, plan);
            self.current = Some(current);
        } else {
            self.command(b"DATA\r\n", Expect::Data);
        }
        Event::Wait
    }

    pub(super) fn after_data(&mut self, reply: Reply<'_>) -> Event {
        let current = self.current.as_mut().expect("DATA belongs to a message");
        match (reply.code, current.accepted) {
            (354, 0) => {
                // Nobody was accepted and yet the server waits for a message: it gets an empty one (RFC 2920 section 3.1).
                current.is_void = true;
                self.command(b".\r\n", Expect::Verdict);
                Event::Wait
            }
            (354, _) => Event::SendBody,
            _ => {
                let failure = || Failure::reply(Stage::Data, reply.code, reply.wire);
                current.failure.get_or_insert_with(failure);
                self.finish()
            }
        }
    }

    pub(super) fn verdict(&mut self, reply: Reply<'_>, plan: &Plan) -> Event {
        let current = self.current.as_mut().expect("a verdict belongs to a message");
        let is_lmtp = plan.servers[self.server].protocol == Protocol::Lmtp;
        let each = if is_lmtp { 1 } else { current.accepted };
        let verdicts = if is_lmtp { current.accepted.max(1) } else { 1 };
        let left = current.verdicts_left.unwrap_or(verdicts) - 1;
        current.verdicts_left = Some(left);
        if reply.code / 100 == 2 && !current.is_void {
            current.acked += each.min(current.accepted);
        } else {
            let failure = || Failure::reply(Stage::Body, reply.code, reply.wire);
            current.failure.get_or_insert_with(failure);
        }
        if left > 0 {
            self.expected.push_front(Expect::Verdict);
            return Event::Wait;
        }
        // A verdict ends the transaction at the server as well, unless BDAT came without any recipient.
        self.needs_reset = current.accepted == 0;
        self.finish()
    }

    fn finish(&mut self) -> Event {
        let transaction = self.current.take().expect("a message is finished once");
        self.current = self.ahead.take();
        Event::Done(fate(transaction, 0, None))
    }

    /// Sets the due time of the message whose envelope went ahead: `now`, in a closed loop.
    pub fn reset_due(&mut self, now: Instant) {
        if let Some(current) = &mut self.current {
            current.turn.due = now;
        }
    }
}
