//! The scopes of a queue's mail, and their form in entries.

use std::sync::Arc;

use posthaste_shaping::{Label, Place, Scope};
use posthaste_spool::put_text;

use super::QueueName;
use super::codec::{Fields, QueueDecodeError};

impl QueueName {
    /// All scopes that cover its mail, if it goes to this site.
    pub(super) fn scopes(&self, site: Option<Arc<str>>) -> impl Iterator<Item = Scope> {
        let QueueName { tenant, campaign, domain, .. } = self.clone();
        let labels = [Label::Tenant(tenant.clone()), Label::Campaign(campaign.clone())];
        let places = std::iter::once(Place::Domain(domain.clone())).chain(site.clone().map(Place::Site));
        let both = places.flat_map(move |place| labels.clone().map(|label| Scope::At(label, place.clone())));
        let alone = [Scope::Tenant(tenant), Scope::Campaign(campaign), Scope::Domain(domain)];
        alone.into_iter().chain(site.map(Scope::Site)).chain(both)
    }

    /// True if the scope covers its mail, wherever its domain is routed. Sites are not known here.
    pub(super) fn is_in(&self, scope: &Scope) -> bool {
        self.scopes(None).any(|covering| covering == *scope)
    }
}

pub(super) fn put_scope(out: &mut Vec<u8>, scope: &Scope) {
    let (kind, name, place) = match scope {
        Scope::Tenant(name) => (0, name, None),
        Scope::Campaign(name) => (1, name, None),
        Scope::Domain(name) => (2, name, None),
        Scope::Site(name) => (3, name, None),
        Scope::At(Label::Tenant(name), Place::Domain(place)) => (4, name, Some(place)),
        Scope::At(Label::Tenant(name), Place::Site(place)) => (5, name, Some(place)),
        Scope::At(Label::Campaign(name), Place::Domain(place)) => (6, name, Some(place)),
        Scope::At(Label::Campaign(name), Place::Site(place)) => (7, name, Some(place)),
    };
    out.push(kind);
    put_text(out, name);
    place.into_iter().for_each(|place| put_text(out, place));
}

pub(super) fn take_scope(rest: &mut Fields<'_>) -> Result<Scope, QueueDecodeError> {
    let kind = rest.u8()?;
    let name = rest.text()?;
    match kind {
        0 => Ok(Scope::Tenant(name)),
        1 => Ok(Scope::Campaign(name)),
        2 => Ok(Scope::Domain(name)),
        3 => Ok(Scope::Site(name)),
        4 => Ok(Scope::At(Label::Tenant(name), Place::Domain(rest.text()?))),
        5 => Ok(Scope::At(Label::Tenant(name), Place::Site(rest.text()?))),
        6 => Ok(Scope::At(Label::Campaign(name), Place::Domain(rest.text()?))),
        7 => Ok(Scope::At(Label::Campaign(name), Place::Site(rest.text()?))),
        _ => Err(QueueDecodeError::Unknown("scope")),
    }
}
