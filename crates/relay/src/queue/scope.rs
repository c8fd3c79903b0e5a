//! Scopes: the mail that a temporary command applies to.

use std::borrow::Cow;
use std::sync::Arc;

use posthaste_spool::put_text;

use super::QueueName;
use super::codec::{DecodeError, Fields};

/// The mail that can be suspended, slowed down or diverted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// A tenant's mail.
    Tenant(Arc<str>),
    /// A campaign, of any tenant.
    Campaign(Arc<str>),
    /// Mail to a domain, in lower case.
    Domain(Arc<str>),
    /// Mail to a set of MX hosts.
    Site(Arc<str>),
    /// A tenant's or campaign's mail to one place only.
    At(Label, Place),
}

/// A label of the sender. Empty: mail without one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label {
    /// A tenant.
    Tenant(Arc<str>),
    /// A campaign, of any tenant.
    Campaign(Arc<str>),
}

/// The target of mail.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// To a domain, in lower case.
    Domain(Arc<str>),
    /// To a set of MX hosts.
    Site(Arc<str>),
}

impl Scope {
    /// All scopes that cover a queue's mail, if it goes to this site.
    pub(super) fn of(name: &QueueName, site: Option<Arc<str>>) -> impl Iterator<Item = Scope> {
        let QueueName { tenant, campaign, domain, .. } = name.clone();
        let labels = [Label::Tenant(tenant.clone()), Label::Campaign(campaign.clone())];
        let places = std::iter::once(Place::Domain(domain.clone())).chain(site.clone().map(Place::Site));
        let both = places.flat_map(move |place| labels.clone().map(|label| Scope::At(label, place.clone())));
        let alone = [Scope::Tenant(tenant), Scope::Campaign(campaign), Scope::Domain(domain)];
        alone.into_iter().chain(site.map(Scope::Site)).chain(both)
    }

    /// True if it covers a queue's mail, wherever its domain is routed. Sites are not known here.
    pub(super) fn has(&self, name: &QueueName) -> bool {
        Scope::of(name, None).any(|scope| scope == *self)
    }

    /// True if it depends on the route of a domain.
    pub fn has_site(&self) -> bool {
        matches!(self, Self::Site(_) | Self::At(_, Place::Site(_)))
    }

    /// Its kind, such as `tenant` or `tenant at site`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tenant(_) => "tenant",
            Self::Campaign(_) => "campaign",
            Self::Domain(_) => "domain",
            Self::Site(_) => "site",
            Self::At(Label::Tenant(_), Place::Domain(_)) => "tenant at domain",
            Self::At(Label::Tenant(_), Place::Site(_)) => "tenant at site",
            Self::At(Label::Campaign(_), Place::Domain(_)) => "campaign at domain",
            Self::At(Label::Campaign(_), Place::Site(_)) => "campaign at site",
        }
    }

    /// Its name, such as `news` or `news at example.net`.
    pub fn name(&self) -> Cow<'_, str> {
        match self {
            Self::Tenant(name) | Self::Campaign(name) | Self::Domain(name) | Self::Site(name) => (&**name).into(),
            Self::At(label, place) => format!("{} at {}", label.name(), place.name()).into(),
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let (kind, name, place) = match self {
            Self::Tenant(name) => (0, name, None),
            Self::Campaign(name) => (1, name, None),
            Self::Domain(name) => (2, name, None),
            Self::Site(name) => (3, name, None),
            Self::At(Label::Tenant(name), Place::Domain(place)) => (4, name, Some(place)),
            Self::At(Label::Tenant(name), Place::Site(place)) => (5, name, Some(place)),
            Self::At(Label::Campaign(name), Place::Domain(place)) => (6, name, Some(place)),
            Self::At(Label::Campaign(name), Place::Site(place)) => (7, name, Some(place)),
        };
        out.push(kind);
        put_text(out, name);
        place.into_iter().for_each(|place| put_text(out, place));
    }

    pub(super) fn take(rest: &mut Fields<'_>) -> Result<Self, DecodeError> {
        let (kind, name) = (rest.u8()?, rest.text()?);
        match kind {
            0 => Ok(Self::Tenant(name)),
            1 => Ok(Self::Campaign(name)),
            2 => Ok(Self::Domain(name)),
            3 => Ok(Self::Site(name)),
            4 => Ok(Self::At(Label::Tenant(name), Place::Domain(rest.text()?))),
            5 => Ok(Self::At(Label::Tenant(name), Place::Site(rest.text()?))),
            6 => Ok(Self::At(Label::Campaign(name), Place::Domain(rest.text()?))),
            7 => Ok(Self::At(Label::Campaign(name), Place::Site(rest.text()?))),
            _ => Err(DecodeError::Unknown("scope")),
        }
    }
}

impl Label {
    fn name(&self) -> &str {
        match self {
            Self::Tenant(name) | Self::Campaign(name) if name.is_empty() => "(none)",
            Self::Tenant(name) | Self::Campaign(name) => name,
        }
    }
}

impl Place {
    /// The domain or the site.
    pub fn name(&self) -> &Arc<str> {
        match self {
            Self::Domain(name) | Self::Site(name) => name,
        }
    }
}
