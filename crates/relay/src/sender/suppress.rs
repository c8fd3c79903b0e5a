//! Checks of outgoing mail: the suppression list, before each attempt and before a connection; and signed senders.

use std::sync::Arc;

use posthaste_smtp::{Reply, ReversePath};

use super::bounces::wall_secs;
use super::messages::Envelope;
use super::observer::AttemptResult;
use super::shared::Shared;
use super::site::Site;
use super::status::{ReplyPlace, keys_of};
use crate::classify::line_of;
use crate::originals::Original;
use crate::return_path::VerifyError;
use crate::session::Scope;
use crate::suppression::{Source, Suppressed, SuppressionError};
use posthaste_queue::{Outcome, Prefer, Take, Taken, Transaction};

impl Shared {
    /// Ends the recipients of a transaction that are on the list, and leaves the others. Without a list this costs
    /// nothing; with one it may read from the disk.
    ///
    /// # Errors
    /// The list cannot be read, so nobody knows who is on it.
    pub fn end_suppressed(
        self: &Arc<Self>,
        transaction: &mut Transaction,
        envelope: &Envelope,
    ) -> Result<(), SuppressionError> {
        let Some(list) = self.config.bounces.suppressed() else { return Ok(()) };
        let address = |taken: &Taken| envelope.recipient(taken.number).map_or("", |recipient| &*recipient.address);
        let addresses = transaction.recipients.iter().map(address);
        let found = list.find_each(&envelope.queued.tenant, addresses, wall_secs())?;
        if found.iter().all(Option::is_none) {
            return Ok(());
        }
        let (mut left, mut changes) = (Vec::with_capacity(transaction.recipients.len()), Vec::new());
        for ((key, taken), entry) in keys_of(transaction).zip(&transaction.recipients).zip(found) {
            let Some(entry) = entry else {
                left.push(*taken);
                continue;
            };
            let Some(change) = self.queue().finish(key, Outcome::Suppressed) else { continue };
            let (result, reply, host) = (AttemptResult::Suppressed, reply_for(&entry), Arc::from(""));
            let place = ReplyPlace::of(&host);
            changes.push((change, self.attempted(key, Some(envelope), taken.attempts, result, place, reply)));
        }
        self.record_told(changes);
        transaction.recipients = left;
        Ok(())
    }

    /// Ends waiting mail of a site that is on the list, up to the first that is not. True if there is such mail.
    /// Blocks.
    pub fn has_unsuppressed(self: &Arc<Self>, site: &Site) -> bool {
        while self.config.bounces.suppressed().is_some()
            && !self.is_ending()
            && self.outcomes.recorder.budget.may_begin()
        {
            let ready = site.state().ready;
            let take = Take { prefer: Prefer::First, recipients_max: self.config.recipients_max, across_domains: true };
            let next = self.queue().next(ready, take);
            let Some(mut transaction) = next else { return false };
            let is_asked = match self.messages.envelope(transaction.message) {
                Ok(envelope) => self.end_suppressed(&mut transaction, &envelope).is_ok(),
                Err(_) => false,
            };
            if !is_asked || !transaction.recipients.is_empty() {
                // Back to the front. The attempt reports any error.
                let keys: Vec<_> = keys_of(&transaction).map(|key| (key, Outcome::Untried)).collect();
                self.finish(keys);
                return true;
            }
        }
        true
    }

    /// Puts a recipient refused for good on the list, if wanted, and if the reply is certainly about the address.
    pub fn suppress_bounced(&self, envelope: &Envelope, number: u16, reply: &Reply, scope: Scope, is_alone: bool) {
        let bounces = &self.config.bounces;
        let is_of_recipient = scope == Scope::Recipient || scope == Scope::Accepted && is_alone;
        if !bounces.suppress_bounces || !is_of_recipient {
            return;
        }
        let classes = bounces.classes.now();
        let class = classes.classify_reply(reply);
        if let Some(recipient) = envelope.recipient(number).filter(|_| class.is_address_bad()) {
            let reason = format!("{}: {}", class.name(), line_of(reply));
            bounces.suppress(Source::Bounce, &envelope.queued.tenant, &recipient.address, reason);
        }
    }

    /// The signed sender of a transaction, which then has one recipient; `None` if its sender stays.
    pub fn signed_sender(&self, transaction: &Transaction, envelope: &Envelope) -> Option<ReversePath> {
        let signed = self.config.bounces.return_path.as_ref()?;
        let (key, queued) = (keys_of(transaction).next()?, &envelope.queued);
        // A signed sender already leads back by itself; a chain of them would be unbounded.
        let is_signed =
            |(local_part, domain): (&str, &str)| signed.verify(local_part, domain) != Err(VerifyError::NotOurs);
        if queued.sender.is_empty() || queued.sender.rsplit_once('@').is_some_and(is_signed) {
            return None;
        }
        let original = Original {
            tenant: queued.tenant.to_string(),
            sender: queued.sender.to_string(),
            recipient: envelope.recipient(key.number)?.address.to_string(),
        };
        ReversePath::parse(&format!("<{}>", signed.sign(key, &original))).ok()
    }

    /// Makes durable the entries fed to the list, and the originals of signed senders. Blocks.
    pub fn flush_bounces(&self) {
        let published = self.spool.stats().published;
        if let Some(signed) = self.config.bounces.return_path.as_ref().filter(|signed| signed.is_fed())
            && let Err(error) = signed.flush()
        {
            self.warn(published, &error.to_string());
        }
        let Some(list) = self.config.bounces.suppressions.as_ref().filter(|list| list.is_fed()) else { return };
        match list.flush(wall_secs()) {
            Ok(0) => {}
            Ok(dropped) => self.warn(
                published,
                &format!("{dropped} addresses did not get on the suppression list, as too many came at once"),
            ),
            Err(error) => self.warn(published, &error.to_string()),
        }
    }
}

/// The reply for the log; no client sees it.
fn reply_for(entry: &Suppressed) -> Reply {
    let source = match entry.source {
        Source::Operator => "operator",
        Source::Bounce => "bounce",
        Source::Complaint => "complaint",
    };
    let reason: String = entry.reason.chars().filter(|c| matches!(c, ' '..='~')).take(200).collect();
    Reply::new(550, "5.7.1", format!("on the suppression list ({source}) {reason}").trim_end().to_owned())
}
