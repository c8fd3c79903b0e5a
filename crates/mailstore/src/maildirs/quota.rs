//! Quotas: limits on an account's mail (RFC 9208).

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::locks::lock;
use super::owner::Owner;
use crate::error::MailstoreError;
use crate::ledger::{MailLedger, MailLedgerError};
use crate::store::{QuotaLimits, QuotaTable, QuotaUse};

/// Recent usage of an account, cached for the recipients of one message.
#[derive(Debug, Clone, Copy)]
struct KnownUse {
    used: (u64, u64),
    at: Instant,
}

/// Lifetime of cached usage: mail that arrives meanwhile may exceed the quota.
const KNOWN_FOR: Duration = Duration::from_secs(1);
/// Minimum interval between looks at the directories of a full account. A look precedes a refusal: another program may
/// have removed mail.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Maximum accounts in the cache.
const KNOWN_MAX: usize = 10_000;
/// Percentage of its quota at which an account is logged.
const WARNED_PERCENT: u8 = 90;

#[derive(Debug, Default)]
pub(super) struct Quotas {
    table: RwLock<QuotaTable>,
    known: Mutex<HashMap<u32, KnownUse>>,
    /// Times of the last look at full accounts.
    looked: Mutex<HashMap<u32, Instant>>,
    /// Accounts that were logged as nearly full.
    warned: Mutex<HashSet<u32>>,
}

impl QuotaLimits {
    pub(super) fn allow(&self, (bytes, messages): (u64, u64)) -> bool {
        self.bytes.is_none_or(|most| bytes <= most) && self.messages.is_none_or(|most| messages <= most)
    }

    fn is_nearly_used(&self, (bytes, messages): (u64, u64)) -> bool {
        let near = |used: u64, most: Option<u64>| {
            most.is_some_and(|most| u128::from(used) * 100 >= u128::from(most) * u128::from(WARNED_PERCENT))
        };
        near(bytes, self.bytes) || near(messages, self.messages)
    }
}

impl Quotas {
    /// True if an account may be examined now.
    pub fn begin_look(&self, account: u32) -> bool {
        let (mut looked, now) = (lock(&self.looked), Instant::now());
        if looked.len() >= KNOWN_MAX {
            looked.clear();
        }
        let last = looked.insert(account, now);
        match last.filter(|last| now - *last < LOOK_EVERY) {
            Some(last) => {
                looked.insert(account, last);
                false
            }
            None => true,
        }
    }

    pub fn limits_of(&self, inbox: &str) -> QuotaLimits {
        *self.table.read().unwrap_or_else(PoisonError::into_inner).of(inbox)
    }

    /// Sets the limits.
    pub fn limit(&self, table: QuotaTable) {
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
        lock(&self.known).clear();
    }

    /// Reads the usage of an account anew when it is needed next.
    pub fn forget(&self, account: u32) {
        lock(&self.known).remove(&account);
    }

    /// Usage of an account, at most a second old.
    pub fn known_use(
        &self,
        ledger: &MailLedger,
        account: u32,
        limits: &QuotaLimits,
        inbox: &str,
    ) -> Result<(u64, u64), MailLedgerError> {
        let known = lock(&self.known).get(&account).copied();
        if let Some(known) = known.filter(|known| known.at.elapsed() < KNOWN_FOR) {
            return Ok(known.used);
        }
        let (at, used) = (Instant::now(), ledger.usage(account)?);
        let mut known = lock(&self.known);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(account, KnownUse { used, at });
        drop(known);
        self.warn(account, limits, used, inbox);
        Ok(used)
    }

    /// Logs a warning once, and again after there was room.
    fn warn(&self, account: u32, limits: &QuotaLimits, (bytes, messages): (u64, u64), inbox: &str) {
        let mut warned = lock(&self.warned);
        if !limits.is_nearly_used((bytes, messages)) {
            warned.remove(&account);
        } else if warned.insert(account) {
            tracing::warn!(mailbox = inbox, bytes, messages, "an account has used up nearly all of its quota");
        }
    }

    /// Refuses mail that would take an account over its quota. Blocks.
    pub fn check(
        &self,
        ledger: &MailLedger,
        owner: &Owner,
        (bytes, messages): (u64, u64),
    ) -> Result<(), MailstoreError> {
        let limits = self.limits_of(owner.path.as_str());
        if limits.is_none() {
            return Ok(());
        }
        let used = ledger.usage(owner.id).map_err(|error| MailstoreError::Unavailable(error.to_string()))?;
        self.warn(owner.id, &limits, used, owner.path.as_str());
        if limits.allow((used.0.saturating_add(bytes), used.1.saturating_add(messages))) {
            Ok(())
        } else {
            Err(MailstoreError::OverQuota)
        }
    }

    /// An account's usage with its limits; `None` without limits. Blocks.
    pub fn usage(&self, ledger: &MailLedger, owner: &Owner) -> Result<Option<QuotaUse>, MailstoreError> {
        let limits = self.limits_of(owner.path.as_str());
        if limits.is_none() {
            return Ok(None);
        }
        let used = ledger.usage(owner.id).map_err(|error| MailstoreError::Unavailable(error.to_string()))?;
        Ok(Some(QuotaUse { bytes: used.0, messages: used.1, limits }))
    }
}

/// The INBOX of the account that a Maildir belongs to.
pub(super) fn inbox_of(path: &str) -> &str {
    path.rsplit_once("/.").map_or(path, |(inbox, _)| inbox)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_used_is_nine_tenths_of_any_limit() {
        for (most, used) in [(1, 1), (3, 3), (50, 45), (199, 180), (1000, 900), (u64::MAX, u64::MAX)] {
            for limits in
                [QuotaLimits { bytes: Some(most), messages: None }, QuotaLimits { bytes: None, messages: Some(most) }]
            {
                assert!(limits.is_nearly_used((used, used)), "{used} of {most}");
                assert!(!limits.is_nearly_used((0, 0)), "none of {most}");
                let fewer = used.min(u64::try_from(u128::from(most) * 9 / 10).unwrap()).saturating_sub(1);
                assert!(!limits.is_nearly_used((fewer, fewer)), "{fewer} of {most}");
            }
        }
    }
}
