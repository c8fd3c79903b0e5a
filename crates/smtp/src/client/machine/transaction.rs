//! One message of a client session: commands sent as far ahead as possible, replies, outcome.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;

use super::{Expect, Machine, WINDOW_COMMANDS};
use crate::client::stuff::whole_lines;
use crate::client::{
    ClientError, EightBit, Extensions, MessageBody, Outcome, RecipientOutcome, Stage, Step, Stuffer, Transfer,
};
use crate::command::{BodyType, MailFrom, RcptTo, is_orcpt, is_xtext};
use crate::reply::{Reply, ShortReply};
use crate::server::Protocol;

#[derive(Debug)]
pub(super) struct Transaction {
    mail: MailFrom,
    recipients: Vec<RcptTo>,
    outcomes: Vec<Option<RecipientOutcome>>,
    body: MessageBody,
    chunked: bool,
    /// Its commands without a reply so far.
    pub(super) awaited: usize,
    /// Recipients whose RCPT was sent.
    asked: usize,
    /// Recipients with an accepted RCPT and no verdict yet.
    accepted: VecDeque<usize>,
    any_accepted: bool,
    mail_sent: bool,
    /// MAIL was sent before the verdict on the last message.
    is_ahead: bool,
    body_commanded: bool,
    pub(super) stuffer: Option<Stuffer>,
    /// Position of the message's end in the output.
    end: Option<u64>,
}

impl Transaction {
    /// True if MAIL may follow its end. After BDAT without a recipient it would be refused.
    fn may_be_followed(&self) -> bool {
        self.end.is_some() && (!self.chunked || self.any_accepted)
    }

    fn is_decided(&self) -> bool {
        self.outcomes.iter().all(Option::is_some)
    }

    fn has_body(&self) -> bool {
        !matches!(self.body, MessageBody::Absent)
    }

    fn decide_rest(&mut self, reply: &ShortReply, stage: Stage, lost: bool) {
        self.stuffer = None;
        for outcome in &mut self.outcomes {
            outcome.get_or_insert_with(|| RecipientOutcome { reply: reply.clone(), stage, lost });
        }
    }

    fn decide(&mut self, index: usize, reply: ShortReply, stage: Stage) {
        self.outcomes[index].get_or_insert(RecipientOutcome { reply, stage, lost: false });
    }
}

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
                unreachable!("{other:?} is no part of a transaction")
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

    /// True if MAIL of a message [sent](Machine::send) now would go out now, after RSET at most. None is in flight, or
    /// the last one was given to its end.
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

impl Transaction {
    /// True if the reply fits the command. If not, server and client are out of step, and no later reply can be
    /// trusted.
    fn is_sensible(&self, expected: Expect, reply: &Reply, written: u64) -> bool {
        match expected {
            Expect::Data => reply.code() == 354 || reply.code() >= 400,
            // No server can have accepted a message whose end was not sent.
            Expect::Verdict if reply.is_positive() => self.end.is_some_and(|end| end <= written),
            // The server still has the last transaction open: that says nothing about this one.
            Expect::Mail if reply.code() == 503 => !self.is_ahead,
            _ => reply.code() / 100 != 3,
        }
    }

    fn rcpt_reply(&mut self, index: usize, reply: ShortReply) {
        if reply.is_positive() {
            // A server that takes recipients for a refused sender is not trusted.
            if !self.has_body() {
                self.decide(index, reply, Stage::Rcpt);
            } else if self.outcomes[index].is_none() {
                self.any_accepted = true;
                self.accepted.push_back(index);
            }
            return;
        }
        // RFC 5321 section 4.5.3.1.10. A code about the address or the mailbox (RFC 3463 sections 3.2, 3.3) is no such
        // limit.
        let of_recipient = reply.enhanced().is_some_and(|code| matches!(code.subject, 1 | 2));
        if !(matches!(reply.code(), 452 | 552) && self.any_accepted && !of_recipient) {
            return self.decide(index, reply, Stage::Rcpt);
        }
        self.decide(index, reply.clone(), Stage::TooMany);
        for index in self.asked..self.recipients.len() {
            self.decide(index, reply.clone(), Stage::TooMany);
        }
    }

    /// Refuses parts that the server does not offer, and keeps back addresses that need SMTPUTF8 without it (RFC 6531
    /// section 3.3).
    fn settle(&mut self, extensions: &Extensions, eight_bit: EightBit) {
        self.settle_utf8(extensions);
        let size = self.mail.size.unwrap_or(0);
        if let Some(Some(limit)) = extensions.size.filter(|limit| limit.is_some_and(|limit| limit < size)) {
            let text = format!("Message has {size} octets, and the server takes {limit}");
            self.decide_rest(&Reply::new(552, "5.3.4", text).into(), Stage::Local, false);
        }
        let is_eight_bit = self.mail.body == BodyType::EightBitMime && !extensions.eight_bit_mime;
        if is_eight_bit && eight_bit == EightBit::Refuse {
            let reply = Reply::new(554, "5.6.3", "Server does not offer 8BITMIME, which is needed here");
            self.decide_rest(&reply.into(), Stage::Local, false);
        }
        if self.mail.hold.is_some() && !extensions.future_release || self.mail.expires.is_some() && !extensions.expires
        {
            let reply = Reply::new(550, "5.5.4", "Server does not offer to hold mail back, which is asked for");
            self.decide_rest(&reply.into(), Stage::Local, false);
        }
        let at_least_one =
            |most: Option<u64>| most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX).max(1));
        let most = at_least_one(extensions.recipients_max);
        if most < self.recipients.len() {
            let open = self.outcomes.iter_mut().filter(|outcome| outcome.is_none());
            open.skip(most).for_each(|outcome| *outcome = Some(too_many()));
        }
        let most = at_least_one(extensions.recipient_domains_max);
        if most < self.recipients.len() {
            self.settle_domains(most);
        }
    }

    /// Defers recipients in more domains than the server takes at once.
    fn settle_domains(&mut self, most: usize) {
        let mut domains = HashSet::new();
        for (recipient, outcome) in self.recipients.iter().zip(&mut self.outcomes) {
            let domain = recipient.forward_path.address().map(|address| address.domain().to_string().to_lowercase());
            if outcome.is_some() || domains.contains(&domain) {
                continue;
            }
            if domains.len() < most {
                domains.insert(domain);
            } else {
                *outcome = Some(too_many());
            }
        }
    }

    fn settle_utf8(&mut self, extensions: &Extensions) {
        let needs = |rcpt: &RcptTo| !rcpt.forward_path.is_ascii();
        let mail = &mut self.mail;
        if !extensions.smtputf8 {
            // Only a domain has another form (RFC 6531 section 3.2).
            if let Some(path) = mail.reverse_path.to_ascii() {
                mail.reverse_path = path;
            }
            for rcpt in &mut self.recipients {
                if let Some(path) = rcpt.forward_path.to_ascii() {
                    rcpt.forward_path = path;
                }
            }
        }
        mail.smtputf8 |= !mail.reverse_path.is_ascii();
        if extensions.smtputf8 {
            mail.smtputf8 |= self.recipients.iter().any(needs);
            return;
        }
        // Without it the message can still go to the other recipients.
        let all = mail.smtputf8;
        for (rcpt, outcome) in self.recipients.iter().zip(&mut self.outcomes) {
            if all || needs(rcpt) {
                let reply = Reply::new(550, "5.6.7", "Server does not offer SMTPUTF8, which is needed here");
                *outcome = Some(RecipientOutcome { reply: reply.into(), stage: Stage::Local, lost: false });
            }
        }
    }
}

/// The server announced by LIMITS that more would be refused.
fn too_many() -> RecipientOutcome {
    let reply = Reply::new(452, "4.5.3", "Server takes no more recipients at once");
    RecipientOutcome { reply: reply.into(), stage: Stage::TooMany, lost: false }
}

fn stage(expected: Expect) -> Stage {
    match expected {
        Expect::Rcpt(_) => Stage::Rcpt,
        Expect::Data => Stage::Data,
        Expect::Verdict => Stage::Verdict,
        _ => Stage::Mail,
    }
}

fn mail_line(mail: &MailFrom, extensions: &Extensions) -> String {
    let mut mail = mail.clone();
    mail.size = mail.size.filter(|_| extensions.size.is_some());
    if !extensions.eight_bit_mime {
        // Servers without 8BITMIME accept octets above 127 all the same; dropping the message would help nobody.
        mail.body = BodyType::SevenBit;
    }
    if !extensions.dsn {
        mail.ret = None;
        mail.envid = None;
    }
    // Other text could smuggle a command in. Our parser makes no such value, so it is omitted.
    mail.envid = mail.envid.filter(|envid| is_xtext(envid));
    mail.auth = mail.auth.filter(|auth| is_xtext(auth) && !extensions.auth.is_empty());
    format!("{mail}\r\n")
}

fn rcpt_line(rcpt: &RcptTo, extensions: &Extensions) -> String {
    let mut line = RcptTo::new(rcpt.forward_path.clone());
    if extensions.dsn {
        line.notify = rcpt.notify;
        line.orcpt = rcpt.orcpt.clone().filter(|orcpt| is_orcpt(orcpt));
    }
    format!("{line}\r\n")
}
