//! One message of a caller, as a destination.

use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_intake::{BodyFacts, Destination, Mail, Reserved, Reserving};
use posthaste_spool::{Entry, Lsn};

use super::core::Core;
use super::message::{LineEnds, MailboxTarget};
use super::report::LocalReceipt;

/// One message with its own mailboxes and entries.
pub(super) struct OneMessage<'a> {
    pub core: &'a Core,
    pub targets: Vec<MailboxTarget>,
    pub line_ends: LineEnds,
    /// Time of reception, in seconds since 1970.
    pub secs: u64,
    pub also: Vec<Entry>,
}

impl OneMessage<'_> {
    pub fn receipt(&self, lsn: Lsn) -> LocalReceipt {
        let nonce = self.core.nonce;
        let host = self.core.host.clone();
        let targets = self.targets.len() as u16;
        LocalReceipt { id: lsn.get(), secs: self.secs, nonce, host, targets }
    }
}

impl Destination for OneMessage<'_> {
    fn reserve<'a>(&'a self, _: &'a Mail<'a>, body: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a> {
        self.core.reserve(self.targets.iter().cloned(), self.line_ends, self.secs, None, body, reserved);
        reserved.entries.extend_from_slice(&self.also);
        Reserving::Done(Ok(()))
    }
}

pub(super) fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Most mailboxes of one message.
pub(super) const TARGETS_MAX: usize = u16::MAX as usize;
