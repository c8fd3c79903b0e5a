//! DATA, BDAT and the verdict on a message.

use bytes::{Bytes, BytesMut};
use posthaste_message::address::ReversePath;

use super::Machine;
use super::state::{Body, State};
use crate::command::MailFrom;
use crate::reply::Reply;
use crate::scan::Scanner;
use crate::server::{Abort, Envelope, Event, MessageOutcome, Protocol};

impl Machine {
    pub(super) fn begin_data(&mut self) -> Option<Event> {
        if self.transaction.as_ref().is_some_and(|t| t.body.is_some()) {
            return self.error(503, "5.5.1", "BDAT and DATA do not mix");
        }
        if let Some(refusal) = self.body_refusal(false) {
            self.refuse(&refusal);
            return None;
        }
        if self.config.asks_data {
            self.state = State::AnswerData;
            return Some(Event::Data);
        }
        self.ask_for_body();
        None
    }

    pub(super) fn ask_for_body(&mut self) {
        self.out.extend_from_slice(b"354 End data with <CR><LF>.<CR><LF>\r\n");
        self.open_body(true);
        self.state = State::Data;
    }

    /// Begins a chunk. A refused one is still read to its last octet (RFC 3030 section 2).
    pub(super) fn begin_chunk(&mut self, size: u64, last: bool) -> Option<Event> {
        let refusal = self.body_refusal(true);
        if refusal.is_none() && self.transaction.as_ref().is_some_and(|t| t.body.is_none()) {
            self.open_body(false);
        }
        let body = self.transaction.as_ref().and_then(|t| t.body.as_ref()).filter(|_| refusal.is_none());
        let to_discard = body.map_or(size, |body| body.scanner.unwanted_bytes(size));
        if to_discard > self.config.limits.discard_bytes {
            self.close_with(&Reply::new(552, "5.3.4", "Chunk is too large to be discarded, closing"));
            return self.reset(Abort::Closed);
        }
        self.bodies += u64::from(refusal.is_some());
        self.state = State::Chunk { left: size, size, last, refusal: refusal.map(Box::new) };
        None
    }

    /// The reason why no body may begin now.
    pub(super) fn body_refusal(&self, chunk: bool) -> Option<Reply> {
        let smtp = self.config.protocol == Protocol::Smtp;
        match &self.transaction {
            None => Some(Reply::new(503, "5.5.1", "MAIL and RCPT come first")),
            Some(_) if chunk && !self.extended => Some(Reply::new(503, "5.5.1", "BDAT needs EHLO")),
            Some(t) if t.recipients > 0 => None,
            // RFC 5321 section 3.3. In LMTP it is always 503 (RFC 2033 section 4.2).
            Some(t) if t.refused && smtp => Some(Reply::new(554, "5.5.1", "No valid recipients")),
            Some(_) => Some(Reply::new(503, "5.5.1", "RCPT comes first")),
        }
    }

    pub(super) fn open_body(&mut self, dots: bool) {
        let scanner = Scanner::new(self.config.body_policy(), dots);
        let transaction = self.transaction.as_mut().expect("a body has a transaction");
        let announced = transaction.envelope.mail.size;
        transaction.body = Some(Body { scanner, begun: false, aborted: false, announced, refusal: None });
        self.bodies += 1;
    }

    /// The first event of a body.
    pub(super) fn begin_body(&mut self) -> Option<Event> {
        let transaction = self.transaction.as_mut()?;
        let body = transaction.body.as_mut().filter(|body| !body.begun)?;
        body.begun = true;
        let mail = MailFrom::new(ReversePath::Null);
        let empty = Envelope { mail, recipients: Vec::new() };
        Some(Event::BodyBegin(std::mem::replace(&mut transaction.envelope, empty)))
    }

    pub(super) fn data(&mut self, input: &mut BytesMut) -> Option<Event> {
        let body = self.transaction.as_mut().and_then(|t| t.body.as_mut()).expect("DATA has a body");
        let scanned = body.scanner.scan(input);
        if scanned.ended {
            self.state = State::Complete;
        }
        self.piece(scanned.bytes)
    }

    pub(super) fn chunk_is_done(&self) -> bool {
        matches!(self.state, State::Chunk { left: 0, .. })
    }

    pub(super) fn chunk(&mut self, input: &mut BytesMut) -> Option<Event> {
        let State::Chunk { left, size, last, refusal } = &mut self.state else { unreachable!("not in a chunk") };
        let take = (*left).min(input.len() as u64);
        *left -= take;
        let left = *left;
        let size = *size;
        let last = *last;
        let mut part = input.split_to(take as usize);
        if refusal.is_some() {
            if left == 0 {
                let reply = refusal.take();
                self.state = State::Command;
                self.refuse(&reply.expect("a refusal"));
            }
            return None;
        }
        let body = self.transaction.as_mut().and_then(|t| t.body.as_mut()).expect("BDAT has a body");
        let mut bytes = body.scanner.scan(&mut part).bytes;
        if left == 0 && last {
            let tail = body.scanner.finish();
            if !tail.is_empty() {
                bytes = [&bytes[..], &tail].concat().into();
            }
            self.state = State::Complete;
        }
        let event = self.piece(bytes);
        if left == 0 && !last && !matches!(self.state, State::Closed) {
            self.state = State::Command;
            let body = self.transaction.as_ref().and_then(|t| t.body.as_ref()).expect("BDAT has a body");
            let refusal = body.scanner.fault().map(|error| error.reply()).or_else(|| body.refusal.as_deref().cloned());
            match refusal {
                // Sent for each chunk; those already in the pipeline are skipped in the same way.
                Some(refusal) => self.refuse(&refusal),
                None => self.write(format_args!("250 2.0.0 {size} octets received\r\n")),
            }
        }
        event
    }

    /// Returns octets of a message, or notices that they are no longer wanted.
    pub(super) fn piece(&mut self, bytes: Bytes) -> Option<Event> {
        let transaction = self.transaction.as_mut().expect("a piece has a transaction");
        let body = transaction.body.as_mut().expect("a piece has a body");
        let complete = matches!(self.state, State::Complete);
        let Some(error) = body.scanner.fault() else {
            return (!bytes.is_empty()).then_some(Event::Body(bytes));
        };
        let too_much = body.scanner.unwanted_bytes(0) > self.config.limits.discard_bytes;
        let first = !std::mem::replace(&mut body.aborted, true);
        if too_much {
            self.transaction = None;
            self.close_with(&Reply::new(552, "5.3.4", "Too much data after a refused message, closing"));
        } else if complete {
            self.state = State::Command;
            self.conclude(&MessageOutcome::All(error.reply()));
        }
        first.then_some(Event::BodyAborted(error))
    }

    /// Refuses the rest of a message: its fate is known before its end, and it goes to nobody. Chunks that end from now
    /// on get the refusal instead of 250 (RFC 3030 section 2), until the last one brings [`Event::BodyEnd`]. Changes
    /// nothing within DATA, or if a recipient is accepted.
    pub fn refuse_rest(&mut self, outcome: &MessageOutcome) {
        let body = self.transaction.as_mut().and_then(|t| t.body.as_mut());
        let refusal = outcome.single();
        // A 421 is sent at the end, and closes the session.
        if let Some(body) = body.filter(|_| !outcome.is_accepted() && refusal.code() != 421) {
            body.refusal = Some(Box::new(refusal.into_owned()));
        }
    }

    /// Answers [`Event::BodyEnd`]: with one reply, or in LMTP with one for each recipient.
    ///
    /// # Panics
    /// Without a question, or if a verdict is a 3yz reply.
    pub fn finish(&mut self, outcome: &MessageOutcome) {
        assert!(matches!(self.state, State::Outcome), "finished in {:?}", self.state);
        assert!(outcome.is_final(), "finished with {outcome:?}");
        self.state = State::Command;
        if outcome.is_accepted() {
            self.messages += 1;
            self.errors = 0;
            self.deferred_recipients = 0;
            self.idle_commands = 0;
        }
        self.conclude(outcome);
    }

    /// Ends the transaction with its replies.
    pub(super) fn conclude(&mut self, outcome: &MessageOutcome) {
        let recipients = self.transaction.take().map_or(0, |t| t.recipients);
        if self.config.protocol == Protocol::Smtp {
            let reply = &*outcome.single();
            return match reply.code() {
                421 => self.close_with(reply),
                _ if reply.is_positive() => reply.write(&mut self.out),
                _ => self.refuse(reply),
            };
        }
        for index in 0..recipients {
            let reply = outcome.of_recipient(index);
            reply.write(&mut self.out);
            if reply.code() == 421 {
                // After the replies to all.
                self.state = State::Closed;
            }
        }
        if !outcome.is_accepted() && !matches!(self.state, State::Closed) {
            self.count_error();
        }
    }

    /// A suitable size for the next read, in octets: small for commands; for bodies it grows with the octets received,
    /// up to the announced size. An announcement can be false, so alone it counts only up to a medium body.
    pub fn read_bytes_hint(&self) -> usize {
        const COMMANDS: u64 = 4 << 10;
        const SMALL_BODY: u64 = 16 << 10;
        const MEDIUM_BODY: u64 = 64 << 10;
        const LARGE_BODY: u64 = 256 << 10;
        /// Allowance for removed dots, and the last one.
        const DOTS: u64 = 1 << 10;
        /// Allowance for the command after a chunk.
        const COMMAND: u64 = 512;
        let body = self.transaction.as_ref().and_then(|t| t.body.as_ref());
        let received = body.map_or(0, |body| body.scanner.size());
        let earned = |least: u64| received.saturating_mul(4).clamp(least, LARGE_BODY);
        let bytes = match (&self.state, body) {
            (State::Chunk { left, .. }, _) => left.saturating_add(COMMAND).min(earned(MEDIUM_BODY)).max(COMMANDS),
            (State::Data, Some(body)) => match body.announced.and_then(|all| all.checked_sub(received)) {
                Some(left) => left.saturating_add(DOTS).min(earned(MEDIUM_BODY)),
                None => earned(SMALL_BODY),
            },
            _ => COMMANDS,
        };
        bytes as usize
    }
}
