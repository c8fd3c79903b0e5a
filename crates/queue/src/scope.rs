//! The scopes of a queue's mail, and their form in entries.

use std::sync::Arc;

use posthaste_shaping::{DomainOrSite, Label, MailScope};
use posthaste_spool::put_text;

use super::codec::{Fields, QueueDecodeError};
use super::destinations::QueueName;

impl QueueName {
    /// All scopes that cover its mail, if it goes to this site.
    pub(super) fn scopes(&self, site: Option<Arc<str>>) -> impl Iterator<Item = MailScope> {
        let QueueName { tenant, campaign, domain, .. } = self.clone();
        let labels = [Label::Tenant(tenant.clone()), Label::Campaign(campaign.clone())];
        let places = std::iter::once(DomainOrSite::Domain(domain.clone())).chain(site.clone().map(DomainOrSite::Site));
        let both = places.flat_map(move |place| labels.clone().map(|label| MailScope::At(label, place.clone())));
        let alone = [MailScope::Tenant(tenant), MailScope::Campaign(campaign), MailScope::Domain(domain)];
        alone.into_iter().chain(site.map(MailScope::Site)).chain(both)
    }

    /// True if the scope covers its mail, wherever its domain is routed. Sites are not known here.
    pub(super) fn is_in(&self, scope: &MailScope) -> bool {
        self.scopes(None).any(|covering| covering == *scope)
    }
}

pub(super) fn put_scope(out: &mut Vec<u8>, scope: &MailScope) {
    let (kind, name, place) = match scope {
        MailScope::Tenant(name) => (0, name, None),
        MailScope::Campaign(name) => (1, name, None),
        MailScope::Domain(name) => (2, name, None),
        MailScope::Site(name) => (3, name, None),
        MailScope::At(Label::Tenant(name), DomainOrSite::Domain(place)) => (4, name, Some(place)),
        MailScope::At(Label::Tenant(name), DomainOrSite::Site(place)) => (5, name, Some(place)),
        MailScope::At(Label::Campaign(name), DomainOrSite::Domain(place)) => (6, name, Some(place)),
        MailScope::At(Label::Campaign(name), DomainOrSite::Site(place)) => (7, name, Some(place)),
    };
    out.push(kind);
    put_text(out, name);
    place.into_iter().for_each(|place| put_text(out, place));
}

pub(super) fn take_scope(rest: &mut Fields<'_>) -> Result<MailScope, QueueDecodeError> {
    let kind = rest.u8()?;
    let name = rest.text()?;
    match kind {
        0 => Ok(MailScope::Tenant(name)),
        1 => Ok(MailScope::Campaign(name)),
        2 => Ok(MailScope::Domain(name)),
        3 => Ok(MailScope::Site(name)),
        4 => Ok(MailScope::At(Label::Tenant(name), DomainOrSite::Domain(rest.text()?))),
        5 => Ok(MailScope::At(Label::Tenant(name), DomainOrSite::Site(rest.text()?))),
        6 => Ok(MailScope::At(Label::Campaign(name), DomainOrSite::Domain(rest.text()?))),
        7 => Ok(MailScope::At(Label::Campaign(name), DomainOrSite::Site(rest.text()?))),
        _ => Err(QueueDecodeError::Unknown("scope")),
    }
}
