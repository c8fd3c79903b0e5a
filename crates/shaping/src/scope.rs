//! Scopes: the mail that a temporary command applies to.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Sections that apply to a domain, for [`ShapingRules::of_site`](super::ShapingRules::of_site).
pub type Sections = BTreeSet<u32>;

/// The mail that can be suspended, slowed down or diverted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MailScope {
    /// A tenant's mail.
    Tenant(Arc<str>),
    /// A campaign, of any tenant.
    Campaign(Arc<str>),
    /// Mail to a domain, in lower case.
    Domain(Arc<str>),
    /// Mail to a set of MX hosts.
    Site(Arc<str>),
    /// A tenant's or campaign's mail to one place only.
    At(Label, DomainOrSite),
}

/// A label of the sender. Empty: mail without one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label {
    /// A tenant.
    Tenant(Arc<str>),
    /// A campaign, of any tenant.
    Campaign(Arc<str>),
}

/// The domain or site that mail goes to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DomainOrSite {
    /// A domain, in lower case.
    Domain(Arc<str>),
    /// A set of MX hosts.
    Site(Arc<str>),
}

impl MailScope {
    /// True if it depends on the route of a domain.
    pub fn has_site(&self) -> bool {
        matches!(self, Self::Site(_) | Self::At(_, DomainOrSite::Site(_)))
    }

    /// Kind of the scope, such as `tenant` or `tenant at site`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tenant(_) => "tenant",
            Self::Campaign(_) => "campaign",
            Self::Domain(_) => "domain",
            Self::Site(_) => "site",
            Self::At(Label::Tenant(_), DomainOrSite::Domain(_)) => "tenant at domain",
            Self::At(Label::Tenant(_), DomainOrSite::Site(_)) => "tenant at site",
            Self::At(Label::Campaign(_), DomainOrSite::Domain(_)) => "campaign at domain",
            Self::At(Label::Campaign(_), DomainOrSite::Site(_)) => "campaign at site",
        }
    }

    /// Display name, such as `news` or `news at example.net`.
    pub fn name(&self) -> Cow<'_, str> {
        match self {
            Self::Tenant(name) | Self::Campaign(name) | Self::Domain(name) | Self::Site(name) => (&**name).into(),
            Self::At(label, place) => format!("{} at {}", label.name(), place.name()).into(),
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

impl DomainOrSite {
    /// Name of the domain or the site.
    pub fn name(&self) -> &Arc<str> {
        match self {
            Self::Domain(name) | Self::Site(name) => name,
        }
    }
}
