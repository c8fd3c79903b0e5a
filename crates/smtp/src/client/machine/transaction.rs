//! One message of a client session: its recipients, and their outcomes by the replies.

use std::collections::{HashSet, VecDeque};

use crate::client::{EightBit, Extensions, MessageBody, RecipientOutcome, Stage, Stuffer};
use crate::command::{BodyType, MailFrom, RcptTo, is_orcpt, is_xtext};
use crate::reply::{Reply, ShortReply};

/// The command that a reply answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    Greeting,
    Hello,
    Helo,
    Tls,
    /// LOGIN's question for the name.
    AuthUser,
    /// LOGIN's question for the password.
    AuthPassword,
    /// The server's first message of SCRAM.
    #[cfg(feature = "scram")]
    ScramFirst,
    /// The server's last message of SCRAM.
    #[cfg(feature = "scram")]
    ScramLast,
    Auth,
    Reset,
    Mail,
    Rcpt(usize),
    Data,
    /// The verdict on the message; in LMTP one of several.
    Verdict,
    Quit,
}

#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) mail: MailFrom,
    pub(super) recipients: Vec<RcptTo>,
    pub(super) outcomes: Vec<Option<RecipientOutcome>>,
    pub(super) body: MessageBody,
    pub(super) chunked: bool,
    /// Number of its commands that await a reply.
    pub(super) awaited: usize,
    /// Recipients whose RCPT was sent.
    pub(super) asked: usize,
    /// Recipients with an accepted RCPT and no verdict yet.
    pub(super) accepted: VecDeque<usize>,
    pub(super) any_accepted: bool,
    pub(super) mail_sent: bool,
    /// MAIL was sent before the verdict on the last message.
    pub(super) is_ahead: bool,
    pub(super) body_commanded: bool,
    pub(super) stuffer: Option<Stuffer>,
    /// Position of the message's end in the output.
    pub(super) end: Option<u64>,
}

impl Transaction {
    /// True if MAIL may follow its end. After BDAT without a recipient it would be refused.
    pub(super) fn may_be_followed(&self) -> bool {
        self.end.is_some() && (!self.chunked || self.any_accepted)
    }

    pub(super) fn is_decided(&self) -> bool {
        self.outcomes.iter().all(Option::is_some)
    }

    pub(super) fn has_body(&self) -> bool {
        !matches!(self.body, MessageBody::Absent)
    }

    pub(super) fn decide_rest(&mut self, reply: &ShortReply, stage: Stage, lost: bool) {
        self.stuffer = None;
        for outcome in &mut self.outcomes {
            outcome.get_or_insert_with(|| RecipientOutcome { reply: reply.clone(), stage, lost });
        }
    }

    pub(super) fn decide(&mut self, index: usize, reply: ShortReply, stage: Stage) {
        self.outcomes[index].get_or_insert(RecipientOutcome { reply, stage, lost: false });
    }

    /// True if the reply fits the command. If not, server and client are out of step, and no later reply can be
    /// trusted.
    pub(super) fn is_sensible(&self, expected: Expect, reply: &Reply, written: u64) -> bool {
        match expected {
            Expect::Data => reply.code() == 354 || reply.code() >= 400,
            // No server can have accepted a message whose end was not sent.
            Expect::Verdict if reply.is_positive() => self.end.is_some_and(|end| end <= written),
            // The server still has the last transaction open: that says nothing about this one.
            Expect::Mail if reply.code() == 503 => !self.is_ahead,
            _ => reply.code() / 100 != 3,
        }
    }

    pub(super) fn rcpt_reply(&mut self, index: usize, reply: ShortReply) {
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
    pub(super) fn settle(&mut self, extensions: &Extensions, eight_bit: EightBit) {
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
        // Without this recipient the message can still go to the others.
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

pub(super) fn stage(expected: Expect) -> Stage {
    match expected {
        Expect::Rcpt(_) => Stage::Rcpt,
        Expect::Data => Stage::Data,
        Expect::Verdict => Stage::Verdict,
        _ => Stage::Mail,
    }
}

pub(super) fn mail_line(mail: &MailFrom, extensions: &Extensions) -> String {
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

pub(super) fn rcpt_line(rcpt: &RcptTo, extensions: &Extensions) -> String {
    let mut line = RcptTo::new(rcpt.forward_path.clone());
    if extensions.dsn {
        line.notify = rcpt.notify;
        line.orcpt = rcpt.orcpt.clone().filter(|orcpt| is_orcpt(orcpt));
    }
    format!("{line}\r\n")
}
