//! LIST over the names of an account.

use std::collections::{BTreeMap, BTreeSet};

use crate::name::{MailboxName, SpecialUse};
use crate::pattern::NamePattern;
use crate::row::MailboxId;
use crate::store::{Asked, ListOptions, ListedMailbox, MailAccount, MailboxListing};

/// What a list has of these mailboxes; all of them count as subscribed.
pub(crate) fn listed(mailboxes: &BTreeMap<MailboxName, MailboxId>, patterns: &[NamePattern]) -> Vec<ListedMailbox> {
    let above = |name: &MailboxName| std::iter::successors(name.parent(), MailboxName::parent).collect::<Vec<_>>();
    let parents: BTreeSet<MailboxName> = mailboxes.keys().flat_map(above).collect();
    let names: BTreeSet<&MailboxName> = mailboxes.keys().chain(&parents).collect();
    let matching = names.into_iter().filter(|name| patterns.iter().any(|pattern| pattern.matches(name)));
    let mut listed: Vec<ListedMailbox> = matching
        .map(|name| ListedMailbox {
            id: mailboxes.get(name).copied(),
            special_use: SpecialUse::of_name(name).filter(|_| mailboxes.contains_key(name)),
            has_children: parents.contains(name),
            subscribed: mailboxes.contains_key(name),
            status: None,
            name: name.clone(),
        })
        .collect();
    listed.sort_by(|a, b| a.name.list_order(&b.name));
    listed
}

/// A list whose numbers are looked up when its turn comes.
pub(crate) struct AccountListing<'a> {
    account: &'a dyn MailAccount,
    options: ListOptions,
    left: std::vec::IntoIter<ListedMailbox>,
}

impl<'a> AccountListing<'a> {
    pub fn new(account: &'a dyn MailAccount, options: ListOptions, mut listed: Vec<ListedMailbox>) -> Self {
        listed.retain(|mailbox| mailbox.subscribed || !options.subscribed);
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
