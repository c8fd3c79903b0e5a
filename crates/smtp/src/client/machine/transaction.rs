//! One message of a client session: its commands as far ahead as may be, its replies, its outcome.

use bytes::Bytes;

use super::{Expect, Machine, WINDOW_COMMANDS};
use crate::client::{Extensions, MessageBody, Outcome, RecipientOutcome, Stage, Stuffer, Transfer};
use crate::command::{BodyType, MailFrom, RcptTo, is_orcpt, is_xtext};
use crate::reply::Reply;
use crate::server::Protocol;

impl Machine {
    pub(super) fn transaction_reply(&mut self, expected: Expect, reply: Reply) {
        let transaction = self.transaction.as_mut().expect("the reply belongs to a transaction");
        match expected {
            Expect::Reset if reply.is_positive() => self.needs_reset = false,
            Expect::Reset => {
                // RSET cannot fail (RFC 5321 section 4.1.1.5); a server where it does is given up, not the message.
                self.closed = true;
                self.decide_rest(&Reply::new(451, "4.5.0", "Server refused RSET"), Stage::Mail);
            }
            Expect::Mail if reply.is_positive() => self.needs_reset = true,
            Expect::Mail => self.decide_rest(&reply, Stage::Mail),
            Expect::Rcpt(index) if reply.is_positive() => transaction.accepted.push_back(index),
            Expect::Rcpt(index) => {
                transaction.outcomes[index].get_or_insert(RecipientOutcome { reply, stage: Stage::Rcpt });
            }
            Expect::Data if reply.code() == 354 => self.begin_data(),
            Expect::Data => {
                self.decide_rest(&reply, Stage::Data);
            }
            Expect::Verdict => self.verdict(reply),
            other => {
                unreachable!("{other:?} is no part of a transaction")
            }
        }
        self.advance();
    }

    /// The verdict on the body: one for all in SMTP, one for each accepted recipient in LMTP.
    fn verdict(&mut self, reply: Reply) {
        self.needs_reset = false;
        let transaction = self.transaction.as_mut().expect("a verdict has a transaction");
        match (self.config.protocol, transaction.accepted.pop_front()) {
            (Protocol::Lmtp, Some(index)) => {
                transaction.outcomes[index].get_or_insert(RecipientOutcome { reply, stage: Stage::Body });
                if !transaction.accepted.is_empty() {
                    self.expected.push_front(Expect::Verdict);
                }
            }
            (Protocol::Smtp, Some(index)) => {
                for index in std::iter::once(index).chain(std::mem::take(&mut transaction.accepted)) {
                    let outcome = RecipientOutcome { reply: reply.clone(), stage: Stage::Body };
                    transaction.outcomes[index].get_or_insert(outcome);
                }
            }
            // Nobody was accepted: all is decided already.
            (_, None) => {}
        }
    }

    /// Sends what can be sent now.
    pub(super) fn advance(&mut self) {
        loop {
            let may_send = self.extensions.pipelining && self.expected.len() < WINDOW_COMMANDS;
            if !(may_send || self.expected.is_empty()) {
                return;
            }
            let Some(transaction) = self.transaction.as_mut() else { return };
            if transaction.outcomes.iter().all(Option::is_some) {
                return;
            }
            if self.needs_reset && !transaction.mail_sent {
                if self.expected.contains(&Expect::Reset) {
                    return;
                }
                self.command(b"RSET\r\n", Expect::Reset);
            } else if !transaction.mail_sent {
                transaction.mail_sent = true;
                let line = mail_line(&transaction.mail, &self.extensions);
                self.command(line.as_bytes(), Expect::Mail);
            } else if transaction.asked < transaction.recipients.len() {
                let index = transaction.asked;
                transaction.asked += 1;
                if transaction.outcomes[index].is_some() {
                    continue;
                }
                let line = rcpt_line(&transaction.recipients[index], &self.extensions);
                self.command(line.as_bytes(), Expect::Rcpt(index));
            } else if !transaction.body_commanded && self.may_command_body() {
                self.command_body();
            } else {
                return;
            }
        }
    }

    /// DATA may be pipelined behind the recipients; BDAT carries the body and waits for one that was accepted.
    fn may_command_body(&self) -> bool {
        let transaction = self.transaction.as_ref().expect("a body has a transaction");
        !transaction.chunked || self.expected.is_empty() || self.config.transfer == Transfer::BdatAtOnce
    }

    fn command_body(&mut self) {
        let transaction = self.transaction.as_mut().expect("a body has a transaction");
        transaction.body_commanded = true;
        if !transaction.chunked {
            return self.command(b"DATA\r\n", Expect::Data);
        }
        let MessageBody::Whole(chunks) = std::mem::replace(&mut transaction.body, MessageBody::Streamed) else {
            unreachable!("a chunked body is whole")
        };
        let size: usize = chunks.iter().map(Bytes::len).sum();
        self.command(format!("BDAT {size} LAST\r\n").as_bytes(), Expect::Verdict);
        self.flush_text();
        self.out.extend(chunks);
    }

    /// 354 came.
    fn begin_data(&mut self) {
        let transaction = self.transaction.as_mut().expect("DATA has a transaction");
        let mut stuffer = Stuffer::default();
        let chunks = match std::mem::replace(&mut transaction.body, MessageBody::Streamed) {
            // Nobody was accepted, yet DATA was (RFC 2920 section 3.1): an empty message, whose verdict means nothing.
            _ if transaction.accepted.is_empty() => Vec::new(),
            MessageBody::Whole(chunks) => chunks,
            MessageBody::Streamed => {
                transaction.stuffer = Some(stuffer);
                return;
            }
        };
        self.flush_text();
        for chunk in chunks {
            stuffer.push(chunk, &mut |piece| self.out.push(piece));
        }
        stuffer.finish(&mut |piece| self.out.push(piece));
        self.expected.push_back(Expect::Verdict);
    }

    /// The outcome, once every recipient has one and no reply is outstanding.
    pub(super) fn take_outcome(&mut self) -> Option<Outcome> {
        let transaction = self.transaction.as_mut()?;
        if !self.expected.is_empty() || !transaction.outcomes.iter().all(Option::is_some) {
            return None;
        }
        let recipients = self.transaction.take()?.outcomes.into_iter().flatten().collect();
        Some(Outcome { recipients })
    }

    pub(super) fn decide_rest(&mut self, reply: &Reply, stage: Stage) {
        let Some(transaction) = self.transaction.as_mut() else { return };
        transaction.stuffer = None;
        for outcome in &mut transaction.outcomes {
            outcome.get_or_insert_with(|| RecipientOutcome { reply: reply.clone(), stage });
        }
    }

    /// Sees that no address goes out that the server was not told to expect (RFC 6531 section 3.3).
    pub(super) fn settle_utf8(&mut self) {
        let Some(transaction) = self.transaction.as_mut() else { return };
        let needs = |rcpt: &RcptTo| !rcpt.forward_path.is_ascii();
        let mail = &mut transaction.mail;
        mail.smtputf8 |= !mail.reverse_path.is_ascii();
        if self.extensions.smtputf8 {
            mail.smtputf8 |= transaction.recipients.iter().any(needs);
            return;
        }
        // Without it a message for others can still go to them.
        let all = mail.smtputf8;
        for (rcpt, outcome) in transaction.recipients.iter().zip(&mut transaction.outcomes) {
            if all || needs(rcpt) {
                let reply = Reply::new(550, "5.6.7", "Server does not offer SMTPUTF8, which is needed here");
                *outcome = Some(RecipientOutcome { reply, stage: Stage::Local });
            }
        }
    }
}

pub(super) fn stage(expected: Expect) -> Stage {
    match expected {
        Expect::Rcpt(_) => Stage::Rcpt,
        Expect::Data => Stage::Data,
        Expect::Verdict => Stage::Body,
        _ => Stage::Mail,
    }
}

fn mail_line(mail: &MailFrom, extensions: &Extensions) -> String {
    let mut mail = mail.clone();
    mail.size = mail.size.filter(|_| extensions.size.is_some());
    if !extensions.eight_bit_mime {
        // Servers that do not say so take octets above 127 all the same; dropping the message would help nobody.
        mail.body = BodyType::SevenBit;
    }
    if !extensions.dsn {
        mail.ret = None;
        mail.envid = None;
    }
    // What is not xtext could smuggle a command in; such a value was not made by our parser and is left out.
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
