//! Messages of a client session: commands sent as far ahead as possible, replies, outcomes.

use std::collections::VecDeque;

use bytes::Bytes;

use super::Machine;
use super::transaction::{Expect, Transaction, mail_line, rcpt_line, stage};
use crate::client::stuff::whole_lines;
use crate::client::{ClientError, MessageBody, Outcome, Stage, Step, Stuffer, Transfer};
use crate::command::{MailFrom, RcptTo};
use crate::reply::{Reply, ShortReply};
use crate::server::Protocol;

impl Machine {
    pub(super) fn begin(&mut self, mut mail: MailFrom, recipients: Vec<RcptTo>, body: MessageBody) {
        let chunks = self.extensions.chunking && self.config.transfer != Transfer::Data;
        let body = match body {
            MessageBody::Whole(pieces) if chunks => MessageBody::Whole(whole_lines(pieces)),
            body => body,
        };
        if let MessageBody::Whole(pieces) = &body {
            mail.size = Some(pieces.iter().map(|piece| piece.len() as u64).sum());
        }
        let mut transaction = Transaction {
            outcomes: vec![None; recipients.len()],
            chunked: chunks && matches!(body, MessageBody::Whole(_)),
            mail,
            recipients,
            body,
            awaited: 0,
            asked: 0,
            accepted: VecDeque::new(),
            any_accepted: false,
            mail_sent: false,
            is_ahead: false,
            body_commanded: false,
            stuffer: None,
            end: None,
        };
        transaction.settle(&self.extensions, self.config.eight_bit);
        self.transactions.push_back(transaction);
        self.advance();
    }

    /// A reply to the transaction in front.
    pub(super) fn transaction_reply(&mut self, expected: Expect, reply: ShortReply) -> Result<(), ClientError> {
        let transaction = &mut self.transactions[0];
        if !transaction.is_sensible(expected, &reply, self.out.written()) {
            self.expected.push_front(expected);
            return Err(ClientError::Unexpected { step: self.awaits(), reply });
        }
        transaction.awaited -= 1;
        match expected {
            _ if reply.code() == 421 => {
                transaction.decide_rest(&reply, stage(expected), false);
                let step = match expected {
                    Expect::Reset => Step::Reset,
                    Expect::Rcpt(_) => Step::Rcpt,
                    Expect::Data => Step::Data,
                    Expect::Verdict => Step::Body,
                    _ => Step::Mail,
                };
                self.farewell = Some((step, reply.clone()));
                self.close(&reply);
            }
            Expect::Reset if reply.is_positive() => self.needs_reset = false,
            // RSET cannot fail (RFC 5321 section 4.1.1.5). If it does, the server is given up, not the message.
            Expect::Reset => {
                let refused = Reply::new(451, "4.5.0", "Server refused RSET").into();
                transaction.decide_rest(&refused, Stage::Mail, true);
                self.farewell = Some((Step::Reset, reply));
                self.close(&refused);
            }
            Expect::Mail if reply.is_positive() => self.needs_reset = true,
            Expect::Mail => transaction.decide_rest(&reply, Stage::Mail, false),
            Expect::Rcpt(index) => transaction.rcpt_reply(index, reply),
            Expect::Data if reply.code() == 354 => self.begin_data(),
            Expect::Data => transaction.decide_rest(&reply, Stage::Data, false),
            Expect::Verdict => self.verdict(reply),
            other => {
                unreachable!("{other:?} is not part of a transaction")
            }
        }
        self.advance();
        Ok(())
    }

    /// The verdict on the body: one for all in SMTP, one for each accepted recipient in LMTP.
    fn verdict(&mut self, reply: ShortReply) {
        let transaction = &mut self.transactions[0];
        // BDAT without a recipient is refused, which does not end the transaction (RFC 3030 section 2).
        self.needs_reset &= transaction.chunked && !transaction.any_accepted;
        match (self.config.protocol, transaction.accepted.pop_front()) {
            (Protocol::Lmtp, Some(index)) => {
                transaction.decide(index, reply, Stage::Verdict);
                if !transaction.accepted.is_empty() {
                    transaction.awaited += 1;
                    self.expected.push_front(Expect::Verdict);
                }
            }
            (Protocol::Smtp, Some(index)) => {
                for index in std::iter::once(index).chain(std::mem::take(&mut transaction.accepted)) {
                    transaction.decide(index, reply.clone(), Stage::Verdict);
                }
            }
            // No recipient was accepted: all is decided already.
            (_, None) => {}
        }
    }

    /// True if [`send`](Machine::send) would write the MAIL command at once, after RSET at most. Then no message is in
    /// flight, or the last one was passed completely.
    pub fn may_mail(&self) -> bool {
        self.may_send() && self.transactions.iter().all(Transaction::may_be_followed)
    }

    /// Sends as much as possible, one transaction after the other.
    pub(super) fn advance(&mut self) {
        let mut index = 0;
        while index < self.transactions.len() && !self.closed && self.advance_one(index) {
            index += 1;
        }
    }

    /// Sends as much as possible of a transaction. True if the next may follow.
    fn advance_one(&mut self, index: usize) -> bool {
        loop {
            let transaction = &mut self.transactions[index];
            if transaction.end.is_some() {
                return self.extensions.pipelining && transaction.may_be_followed();
            }
            let may_send = self.extensions.pipelining && self.expected.len() < WINDOW_COMMANDS;
            if transaction.is_decided() || !(may_send || self.expected.is_empty()) {
                return false;
            }
            if !transaction.mail_sent {
                // The last message ends its transaction, whatever its verdict.
                if index == 0 && self.needs_reset {
                    if !self.expected.contains(&Expect::Reset) {
                        self.transaction_command(index, b"RSET\r\n", Expect::Reset);
                    }
                    return false;
                }
                transaction.mail_sent = true;
                transaction.is_ahead = index > 0;
                let line = mail_line(&transaction.mail, &self.extensions);
                self.transaction_command(index, line.as_bytes(), Expect::Mail);
            } else if transaction.asked < transaction.recipients.len() {
                let recipient = transaction.asked;
                transaction.asked += 1;
                if transaction.outcomes[recipient].is_none() {
                    let line = rcpt_line(&transaction.recipients[recipient], &self.extensions);
                    self.transaction_command(index, line.as_bytes(), Expect::Rcpt(recipient));
                }
            } else if !transaction.body_commanded && transaction.has_body() && self.may_command_body(index) {
                self.command_body(index);
            } else {
                return false;
            }
        }
    }

    fn transaction_command(&mut self, index: usize, line: &[u8], expected: Expect) {
        self.transactions[index].awaited += 1;
        self.command(line, expected);
    }

    /// True if DATA or BDAT may be sent: DATA may be pipelined after the recipients; BDAT carries the body and waits
    /// for an accepted one.
    fn may_command_body(&self, index: usize) -> bool {
        let transaction = &self.transactions[index];
        !transaction.chunked || transaction.awaited == 0 || self.config.transfer == Transfer::BdatAtOnce
    }

    fn command_body(&mut self, index: usize) {
        let transaction = &mut self.transactions[index];
        transaction.body_commanded = true;
        if !transaction.chunked {
            return self.transaction_command(index, b"DATA\r\n", Expect::Data);
        }
        let MessageBody::Whole(pieces) = std::mem::replace(&mut transaction.body, MessageBody::Streamed) else {
            unreachable!("a chunked body is whole")
        };
        let size: usize = pieces.iter().map(Bytes::len).sum();
        self.transaction_command(index, format!("BDAT {size} LAST\r\n").as_bytes(), Expect::Verdict);
        pieces.into_iter().for_each(|piece| self.out.piece(piece));
        self.transactions[index].end = Some(self.out.end());
    }

    /// Handles 354.
    fn begin_data(&mut self) {
        let transaction = &mut self.transactions[0];
        let mut stuffer = Stuffer::default();
        let pieces = match std::mem::replace(&mut transaction.body, MessageBody::Streamed) {
            // No recipient was accepted, yet DATA was (RFC 2920 section 3.1): an empty message, whose verdict is
            // ignored.
            _ if transaction.accepted.is_empty() => Vec::new(),
            MessageBody::Whole(pieces) => pieces,
            MessageBody::Streamed => {
                transaction.stuffer = Some(stuffer);
                return;
            }
            MessageBody::Absent => unreachable!("no DATA without a body"),
        };
        for piece in pieces {
            stuffer.push(piece, &mut |piece| self.out.piece(piece));
        }
        self.end_data(stuffer);
    }

    pub(super) fn end_data(&mut self, stuffer: Stuffer) {
        stuffer.finish(&mut |piece| self.out.piece(piece));
        let transaction = &mut self.transactions[0];
        transaction.end = Some(self.out.end());
        transaction.awaited += 1;
        self.expected.push_back(Expect::Verdict);
    }

    /// The outcome of the first transaction, once every recipient has one and no reply is outstanding.
    pub(super) fn take_outcome(&mut self) -> Option<Outcome> {
        let done = self.transactions.pop_front_if(|front| front.awaited == 0 && front.is_decided())?;
        self.advance();
        Some(Outcome { recipients: done.outcomes.into_iter().flatten().collect() })
    }

    /// Ends the session without further replies: undecided recipients are lost.
    pub(super) fn close(&mut self, reply: &ShortReply) {
        let step = self.awaits();
        for (index, transaction) in self.transactions.iter_mut().enumerate() {
            let stage = match step {
                _ if transaction.end.is_some_and(|end| end <= self.out.written()) => Stage::Verdict,
                _ if index > 0 => Stage::Mail,
                Step::Rcpt => Stage::Rcpt,
                Step::Data => Stage::Data,
                Step::Body => Stage::Body,
                _ => Stage::Mail,
            };
            transaction.decide_rest(reply, stage, true);
            transaction.awaited = 0;
        }
        self.closed = true;
        self.expected.clear();
    }
}

/// Commands sent ahead of their replies: enough to hide the round trip, few enough that the replies fit the sockets'
/// buffers while nobody reads them.
const WINDOW_COMMANDS: usize = 100;
