//! LIST over the names of an account.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Asked;
use crate::name::{MailboxName, SpecialUse};
use crate::pattern::NamePattern;
use crate::row::MailboxId;
use crate::store::{ListOptions, ListedMailbox, MailAccount, MailboxListing};

/// A name of an account: a mailbox, a subscription, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NamedMailbox {
    /// The mailbox; `None` for a name that is only subscribed.
    pub id: Option<MailboxId>,
    pub special_use: Option<SpecialUse>,
    pub subscribed: bool,
}

/// Matching names, with parent names that have no mailbox.
pub(crate) fn listed(mailboxes: &BTreeMap<MailboxName, NamedMailbox>, patterns: &[NamePattern]) -> Vec<ListedMailbox> {
    let above = |name: &MailboxName| std::iter::successors(name.parent(), MailboxName::parent).collect::<Vec<_>>();
    let parents_of = |is_meant: fn(&NamedMailbox) -> bool| -> BTreeSet<MailboxName> {
        mailboxes.iter().filter(|(_, mailbox)| is_meant(mailbox)).flat_map(|(name, _)| above(name)).collect()
    };
    let parents = parents_of(|mailbox| mailbox.id.is_some());
    let above_subscribed = parents_of(|mailbox| mailbox.subscribed);
    let names: BTreeSet<&MailboxName> = mailboxes.keys().chain(&parents).chain(&above_subscribed).collect();
    let matching = names.into_iter().filter(|name| patterns.iter().any(|pattern| pattern.matches(name)));
    let mut listed: Vec<ListedMailbox> = matching
        .map(|name| {
            let NamedMailbox { id, special_use, subscribed } = mailboxes.get(name).copied().unwrap_or_default();
            ListedMailbox {
                name: name.clone(),
                id,
                special_use,
                has_children: parents.contains(name),
                subscribed,
                subscribed_below: above_subscribed.contains(name),
                status: None,
            }
        })
        .collect();
    listed.sort_by(|a, b| a.name.list_order(&b.name));
    listed
}

/// A list whose counters are looked up one by one.
pub(crate) struct AccountListing<'a> {
    account: &'a dyn MailAccount,
    options: ListOptions,
    left: std::vec::IntoIter<ListedMailbox>,
}

impl<'a> AccountListing<'a> {
    pub fn new(account: &'a dyn MailAccount, options: ListOptions, mut listed: Vec<ListedMailbox>) -> Self {
        listed.retain(|mailbox| {
            if options.subscribed {
                mailbox.subscribed || options.recursive && mailbox.subscribed_below
            } else {
                // A subscription alone makes no mailbox.
                mailbox.id.is_some() || mailbox.has_children
            }
        });
        Self { account, options, left: listed.into_iter() }
    }
}

impl MailboxListing for AccountListing<'_> {
    fn next(&mut self) -> Asked<'_, Option<ListedMailbox>> {
        Box::pin(async move {
            let Some(mut next) = self.left.next() else { return Ok(None) };
            if let (true, Some(id)) = (self.options.status, next.id) {
                next.status = self.account.status(id).await.ok();
            }
            Ok(Some(next))
        })
    }
}
