//! A message's entry in the queue.

use std::sync::Arc;

use posthaste_intake::notify::{HANDED_ON, IN_MAILBOX, NEVER, SUCCESS};
use posthaste_spool::put_text;

use super::change::{OwedNotice, Status};
use super::clock::Secs;
use super::codec::{Fields, QueueDecodeError};

/// A message for the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queued {
    /// Time of reception.
    pub received: Secs,
    /// Earliest time of an attempt (RFC 4865 FUTURERELEASE); 0 for at once.
    pub not_before: Secs,
    /// Time of expiry; 0 for the maximum age of its schedule.
    pub expires: Secs,
    /// The sender's address; empty for none. It receives the notifications of all recipients.
    pub sender: Arc<str>,
    /// Recipients for which it leaves with another sender, if any.
    pub forwarded: Option<Box<Forwarded>>,
    /// True if it came with BODY=8BITMIME (RFC 6152).
    pub is_8bit: bool,
    /// True if its header needs SMTPUTF8 (RFC 6531).
    pub smtputf8: bool,
    /// True if its author may sign it: it is signed again if its header changes as it leaves.
    pub may_sign: bool,
    /// RET (RFC 3461 section 4.3).
    pub ret: Option<QueuedRet>,
    /// ENVID (RFC 3461 section 4.4), as received; empty for none.
    pub envid: Arc<str>,
    /// The tenant; empty for none.
    pub tenant: Arc<str>,
    /// The campaign; empty for none.
    pub campaign: Arc<str>,
    /// The pool of sources that it is sent from; empty for that of its tenant.
    pub pool: Arc<str>,
    /// The recipients, numbers ascending.
    pub recipients: Vec<QueuedRecipient>,
}

/// Recipients for which a message leaves with a rewritten sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarded {
    /// Address of that sender.
    pub sender: Arc<str>,
    /// The numbers of the recipients, ascending.
    pub numbers: Vec<u16>,
}

impl Forwarded {
    /// True if this number is among them.
    pub fn has(&self, number: u16) -> bool {
        self.numbers.binary_search(&number).is_ok()
    }
}

/// The part of the message that a DSN returns (RFC 3461 section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuedRet {
    /// The whole message.
    Full,
    /// The header only.
    Headers,
}

/// A recipient as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedRecipient {
    /// Number of the recipient within the message.
    pub number: u16,
    /// Address of the recipient.
    pub address: Arc<str>,
    /// ORCPT (RFC 3461 section 4.2), as received; empty for none.
    pub orcpt: Arc<str>,
    /// NOTIFY (RFC 3461 section 4.1): bits of [`posthaste_intake::notify`]; 0 if not given.
    pub notify: u8,
}

impl QueuedRecipient {
    /// A recipient without any parameter.
    pub fn plain(number: u16, address: impl Into<Arc<str>>) -> Self {
        QueuedRecipient { number, address: address.into(), orcpt: "".into(), notify: 0 }
    }

    /// The notice owed from the beginning, if the message was already delivered here.
    pub(super) fn owed(&self) -> Option<(OwedNotice, Status)> {
        let status = |enhanced| Status { code: 250, enhanced };
        match self.notify & (IN_MAILBOX | HANDED_ON) {
            0 => None,
            IN_MAILBOX => Some((OwedNotice::Delivered, status(1005))),
            _ => Some((OwedNotice::Relayed, status(0))),
        }
    }
}

const IS_8BIT: u8 = 1;
const SMTPUTF8: u8 = 2;
const RET_FULL: u8 = 4;
const RET_HEADERS: u8 = 8;
const HAS_FORWARDED: u8 = 16;
const MAY_SIGN: u8 = 32;
const FLAGS: u8 = IS_8BIT | SMTPUTF8 | RET_FULL | RET_HEADERS | HAS_FORWARDED | MAY_SIGN;
/// A bit beside those of NOTIFY.
const LEAVES_FROM_OTHER: u8 = 16;

impl Queued {
    /// A message without any parameter, of no tenant. Its recipients are numbered from 0.
    pub fn plain<A: Into<Arc<str>>>(received: Secs, sender: &str, addresses: impl IntoIterator<Item = A>) -> Self {
        let recipients = (0..).zip(addresses).map(|(number, to)| QueuedRecipient::plain(number, to)).collect();
        Queued { received, sender: sender.into(), recipients, ..Queued::default() }
    }

    /// The sender's address for a recipient; empty for none.
    pub fn leaves_from(&self, number: u16) -> &Arc<str> {
        match &self.forwarded {
            Some(forwarded) if forwarded.has(number) => &forwarded.sender,
            _ => &self.sender,
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let flag = |holds: bool, flag: u8| if holds { flag } else { 0 };
        let ret = match self.ret {
            None => 0,
            Some(QueuedRet::Full) => RET_FULL,
            Some(QueuedRet::Headers) => RET_HEADERS,
        };
        let more = flag(self.forwarded.is_some(), HAS_FORWARDED) | flag(self.may_sign, MAY_SIGN);
        out.push(flag(self.is_8bit, IS_8BIT) | flag(self.smtputf8, SMTPUTF8) | ret | more);
        [self.received, self.not_before, self.expires].iter().for_each(|secs| out.extend(secs.to_le_bytes()));
        let texts = [&self.sender, &self.envid, &self.tenant, &self.campaign, &self.pool];
        texts.into_iter().for_each(|text| put_text(out, text));
        if let Some(forwarded) = &self.forwarded {
            put_text(out, &forwarded.sender);
        }
        out.extend(u16::try_from(self.recipients.len()).expect("the number of recipients is checked").to_le_bytes());
        for recipient in &self.recipients {
            out.extend(recipient.number.to_le_bytes());
            let is_forwarded = self.forwarded.as_ref().is_some_and(|forwarded| forwarded.has(recipient.number));
            out.push(recipient.notify | flag(is_forwarded, LEAVES_FROM_OTHER));
            put_text(out, &recipient.address);
            put_text(out, &recipient.orcpt);
        }
    }

    pub(super) fn take(rest: &mut Fields<'_>) -> Result<Self, QueueDecodeError> {
        let flags = rest.u8()?;
        let ret = match flags & (RET_FULL | RET_HEADERS) {
            0 => None,
            RET_FULL => Some(QueuedRet::Full),
            RET_HEADERS => Some(QueuedRet::Headers),
            _ => return Err(QueueDecodeError::Unknown("RET")),
        };
        if flags & !FLAGS != 0 {
            return Err(QueueDecodeError::Unknown("flag"));
        }
        let received = rest.u32()?;
        let not_before = rest.u32()?;
        let expires = rest.u32()?;
        let sender = rest.text()?;
        let envid = rest.text()?;
        let tenant = rest.text()?;
        let campaign = rest.text()?;
        let pool = rest.text()?;
        let mut forwarded = match flags & HAS_FORWARDED {
            0 => None,
            _ => Some(Box::new(Forwarded { sender: rest.text()?, numbers: Vec::new() })),
        };
        let mut recipients: Vec<QueuedRecipient> = Vec::new();
        for _ in 0..rest.u16()? {
            let number = rest.u16()?;
            let mut notify = rest.u8()?;
            if let Some(forwarded) = forwarded.as_mut().filter(|_| notify & LEAVES_FROM_OTHER != 0) {
                forwarded.numbers.push(number);
                notify &= !LEAVES_FROM_OTHER;
            }
            if recipients.last().is_some_and(|last| last.number >= number) {
                return Err(QueueDecodeError::Order);
            }
            let here = notify & (IN_MAILBOX | HANDED_ON);
            let is_known = match here {
                0 => notify <= 15 && (notify & NEVER == 0 || notify == NEVER),
                IN_MAILBOX | HANDED_ON => notify == here | SUCCESS,
                _ => false,
            };
            if !is_known {
                return Err(QueueDecodeError::Unknown("NOTIFY"));
            }
            recipients.push(QueuedRecipient { number, notify, address: rest.text()?, orcpt: rest.text()? });
        }
        let [is_8bit, smtputf8, may_sign] = [IS_8BIT, SMTPUTF8, MAY_SIGN].map(|flag| flags & flag != 0);
        Ok(Queued {
            received,
            not_before,
            expires,
            sender,
            forwarded,
            is_8bit,
            smtputf8,
            may_sign,
            ret,
            envid,
            tenant,
            campaign,
            pool,
            recipients,
        })
    }
}
