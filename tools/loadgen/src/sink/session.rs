//! One session without its socket: the protocol's state machine, with the rules for its answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use bytes::{Bytes, BytesMut};
use posthaste_smtp::server::{Event, Machine};
use posthaste_smtp::{Envelope, MessageOutcome, Protocol, RcptTo, Reply};

use super::counts::Tally;
use super::shared::Shared;
use super::stage::Stage;
use super::verdict::{Action, Verdict};
use crate::stamp;

/// The driver's next step after writing the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Read more.
    Read,
    /// Continue with the input so far.
    GoOn,
    /// Wait, then continue.
    Pause(Duration),
    /// Do the handshake, then call [`Session::tls_started`].
    StartTls,
    /// Close after the client had time to read the last reply.
    Close,
    /// Close at once.
    Drop,
}

pub(super) struct Session {
    machine: Machine,
    shared: Arc<Shared>,
    worker: usize,
    client: IpAddr,
    /// An answer held back by a delay.
    held: Option<Answer>,
    /// Envelope of the current message; kept only if a rule or the store needs it.
    envelope: Option<Envelope>,
    recipients: u64,
    octets: u64,
    kept: MessageSoFar,
    /// True if the message exceeds the memory for all messages.
    overflow: bool,
}

enum Answer {
    Greeting(Result<(), Reply>),
    Command(Stage, Result<(), Reply>),
    Message(MessageOutcome),
    Drop,
}

/// The message so far, if it is needed whole.
#[derive(Default)]
enum MessageSoFar {
    #[default]
    Nothing,
    /// A slice of the read buffer, which must be released by the end of the step.
    Borrowed(Bytes),
    Copied(Vec<u8>),
}

impl Session {
    pub fn new(shared: Arc<Shared>, worker: usize, client: IpAddr) -> Self {
        Self {
            machine: Machine::new(Arc::clone(&shared.protocol)),
            shared,
            worker,
            client,
            held: None,
            envelope: None,
            recipients: 0,
            octets: 0,
            kept: MessageSoFar::Nothing,
            overflow: false,
        }
    }

    /// The first step: sends the greeting, a refusal, or nothing.
    pub fn open(&mut self) -> NextStep {
        let verdict = self.shared.rules.judge_session(Stage::Connect);
        let answer = match verdict.action {
            Action::Accept => Answer::Greeting(Ok(())),
            Action::Refuse(reply) => Answer::Greeting(Err(reply)),
            Action::Drop => Answer::Drop,
        };
        self.give(answer, verdict.delay).unwrap_or(NextStep::GoOn)
    }

    /// Processes `input`; octets that cannot be processed yet stay in it. The session keeps no reference to its buffer.
    pub fn step(&mut self, input: &mut BytesMut) -> NextStep {
        let step = self.advance(input);
        if let MessageSoFar::Borrowed(bytes) = &self.kept {
            self.kept = MessageSoFar::Copied(bytes.to_vec());
        }
        step
    }

    /// The replies to be written.
    pub fn output(&mut self) -> &mut Vec<u8> {
        self.machine.output_mut()
    }

    /// True if the next input belongs to a message.
    pub fn is_in_body(&self) -> bool {
        self.machine.waiting() == posthaste_smtp::server::Waiting::Body
    }

    /// Continues after a completed handshake.
    pub fn tls_started(&mut self) {
        self.machine.tls_started();
    }

    /// Ends the session after an idle timeout, with a reply.
    pub fn time_out(&mut self) {
        self.machine.time_out();
    }

    fn advance(&mut self, input: &mut BytesMut) -> NextStep {
        if let Some(answer) = self.held.take()
            && let Some(step) = self.carry_out(answer)
        {
            return step;
        }
        loop {
            let step = match self.machine.step(input) {
                Event::NeedInput => Some(NextStep::Read),
                Event::Flush => Some(NextStep::GoOn),
                Event::Hello => {
                    let verdict = self.shared.rules.judge_session(Stage::Ehlo);
                    self.answer(Stage::Ehlo, verdict)
                }
                Event::Mail => {
                    let mail = self.machine.mail().expect("MAIL was asked about");
                    let verdict = self.shared.rules.judge_sender(&mail.reverse_path);
                    self.answer(Stage::Mail, verdict)
                }
                Event::Rcpt => {
                    let verdict = self.judge_rcpt();
                    self.answer(Stage::Rcpt, verdict)
                }
                Event::Data => {
                    let first = self.machine.envelope().and_then(|envelope| envelope.recipients.first());
                    let judge = |rcpt: &RcptTo| self.shared.rules.judge_recipient(Stage::Data, rcpt);
                    let verdict = first.map_or(Verdict::YES, judge);
                    self.answer(Stage::Data, verdict)
                }
                Event::BodyBegin(envelope) => {
                    self.begin(envelope);
                    None
                }
                Event::Body(bytes) => {
                    self.take(bytes);
                    None
                }
                Event::BodyEnd => self.end(),
                Event::BodyAborted(_) => {
                    self.forget();
                    self.tally().aborted.add(1);
                    None
                }
                Event::TransactionAborted(_) => None,
                Event::StartTls => Some(NextStep::StartTls),
                Event::Auth(_) => unreachable!("AUTH was not announced"),
                Event::Close => Some(NextStep::Close),
            };
            if let Some(step) = step {
                return step;
            }
        }
    }

    fn tally(&self) -> &Tally {
        &self.shared.tallies[self.worker]
    }

    fn judge_rcpt(&self) -> Verdict {
        let rules = &self.shared.rules;
        if !rules.applies(Stage::Rcpt) && self.shared.greylist.is_none() {
            return Verdict::YES;
        }
        let rcpt = self.machine.recipient().expect("RCPT was asked about");
        if let Some(ordered) = rules.ordered_answer(Stage::Rcpt, rcpt) {
            return ordered;
        }
        let verdict = rules.judge_domain(Stage::Rcpt, rcpt.forward_path.address());
        let (Some(greylist), Action::Accept) = (&self.shared.greylist, &verdict.action) else { return verdict };
        let sender = self.machine.mail().map_or(String::new(), |mail| mail.reverse_path.to_string());
        if !greylist.is_early(self.client, &sender, &rcpt.forward_path.to_string(), Instant::now()) {
            return verdict;
        }
        self.tally().greylisted.add(1);
        Verdict { action: Action::Refuse(rules.greylisted(rcpt)), ..verdict }
    }

    fn answer(&mut self, stage: Stage, verdict: Verdict) -> Option<NextStep> {
        let answer = match verdict.action {
            Action::Accept => Answer::Command(stage, Ok(())),
            Action::Refuse(reply) => Answer::Command(stage, Err(reply)),
            Action::Drop => Answer::Drop,
        };
        self.give(answer, verdict.delay)
    }

    fn give(&mut self, answer: Answer, delay: Duration) -> Option<NextStep> {
        if delay.is_zero() {
            return self.carry_out(answer);
        }
        self.held = Some(answer);
        Some(NextStep::Pause(delay))
    }

    fn carry_out(&mut self, answer: Answer) -> Option<NextStep> {
        match answer {
            Answer::Greeting(verdict) => {
                self.count_refusal(Stage::Connect, &verdict);
                self.machine.greet(verdict);
            }
            Answer::Command(stage, verdict) => {
                self.count_refusal(stage, &verdict);
                self.machine.answer(verdict);
            }
            Answer::Message(outcome) => self.finish(outcome),
            Answer::Drop => {
                self.tally().dropped.add(1);
                return Some(NextStep::Drop);
            }
        }
        None
    }

    fn count_refusal(&self, stage: Stage, verdict: &Result<(), Reply>) {
        if let Err(reply) = verdict {
            self.tally().refused(stage, reply.code());
        }
    }

    fn begin(&mut self, envelope: Envelope) {
        self.recipients = envelope.recipients.len() as u64;
        self.octets = 0;
        self.overflow = false;
        if self.shared.rules.applies(Stage::EndOfData) || self.shared.store.is_some() {
            self.envelope = Some(envelope);
        }
    }

    fn take(&mut self, bytes: Bytes) {
        self.octets += bytes.len() as u64;
        if !self.shared.keeps_bodies() || self.overflow {
            return;
        }
        if self.shared.held_octets.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len() > self.shared.held_octets_max
        {
            self.shared.held_octets.fetch_sub(bytes.len(), Ordering::Relaxed);
            self.drop_kept();
            self.overflow = true;
            self.machine.refuse_rest(&overflow());
            return;
        }
        self.kept = match std::mem::take(&mut self.kept) {
            MessageSoFar::Nothing => MessageSoFar::Borrowed(bytes),
            MessageSoFar::Borrowed(first) => MessageSoFar::Copied([first, bytes].concat()),
            MessageSoFar::Copied(mut whole) => {
                whole.extend_from_slice(&bytes);
                MessageSoFar::Copied(whole)
            }
        };
    }

    /// Decides about a complete message.
    fn end(&mut self) -> Option<NextStep> {
        if self.overflow {
            return self.give(Answer::Message(overflow()), Duration::ZERO);
        }
        let (Some(envelope), true) = (&self.envelope, self.shared.rules.applies(Stage::EndOfData)) else {
            return self.give(Answer::Message(accepted()), Duration::ZERO);
        };
        let rules = &self.shared.rules;
        let judge = |rcpt: &RcptTo| rules.judge_recipient(Stage::EndOfData, rcpt);
        let (outcome, delay) = match self.shared.protocol.protocol {
            Protocol::Smtp => {
                let verdict = envelope.recipients.first().map_or(Verdict::YES, judge);
                (verdict_reply(verdict.action).map(MessageOutcome::All), verdict.delay)
            }
            Protocol::Lmtp => {
                let verdicts: Vec<Verdict> = envelope.recipients.iter().map(judge).collect();
                let delay = verdicts.iter().map(|verdict| verdict.delay).max().unwrap_or_default();
                let replies = verdicts.into_iter().map(|verdict| verdict_reply(verdict.action)).collect();
                (Option::<Vec<Reply>>::map(replies, MessageOutcome::Each), delay)
            }
        };
        self.give(outcome.map_or(Answer::Drop, Answer::Message), delay)
    }

    /// Stores the message, enters it into the account, counts it and replies, in this order: an acknowledged message is
    /// always in the store.
    fn finish(&mut self, mut outcome: MessageOutcome) {
        let refusals: Vec<u16> = match &outcome {
            MessageOutcome::All(reply) => vec![reply.code()],
            MessageOutcome::Each(replies) => replies.iter().map(Reply::code).collect(),
        };
        for code in refusals.into_iter().filter(|code| *code >= 400) {
            self.tally().refused(Stage::EndOfData, code);
        }
        if outcome.is_accepted() {
            match self.keep() {
                Ok(()) => {
                    let tally = self.tally();
                    tally.messages.add(1);
                    tally.octets.add(self.octets);
                    tally.recipients.add(self.recipients);
                }
                Err(error) => {
                    self.tally().store_errors.add(1);
                    outcome = Reply::new(451, "4.3.0", format!("Could not store: {}", error.kind())).into();
                }
            }
        }
        self.forget();
        self.machine.finish(&outcome);
    }

    fn keep(&self) -> std::io::Result<()> {
        let message: &[u8] = match &self.kept {
            MessageSoFar::Nothing => &[],
            MessageSoFar::Borrowed(bytes) => bytes,
            MessageSoFar::Copied(bytes) => bytes,
        };
        if let (Some(store), Some(envelope)) = (&self.shared.store, &self.envelope) {
            store.keep(envelope, message, SystemTime::now())?;
        }
        if let (Some(ledger), Some(found)) = (&self.shared.ledger, stamp::find(message)) {
            ledger.enter(&found)?;
            self.tally().stamped.add(1);
            self.tally().altered.add(u64::from(!found.is_intact));
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.drop_kept();
        self.envelope = None;
    }

    fn drop_kept(&mut self) {
        let octets = match std::mem::take(&mut self.kept) {
            MessageSoFar::Nothing => return,
            MessageSoFar::Borrowed(bytes) => bytes.len(),
            MessageSoFar::Copied(bytes) => bytes.len(),
        };
        self.shared.held_octets.fetch_sub(octets, Ordering::Relaxed);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.drop_kept();
    }
}

fn overflow() -> MessageOutcome {
    Reply::new(452, "4.3.1", "Insufficient memory").into()
}

fn accepted() -> MessageOutcome {
    MessageOutcome::accepted("OK")
}

/// The reply for an action; `None` if the connection is to be dropped.
fn verdict_reply(action: Action) -> Option<Reply> {
    match action {
        Action::Accept => Some(Reply::ok("OK")),
        Action::Refuse(reply) => Some(reply),
        Action::Drop => None,
    }
}
