//! Scopes of mail as requests name them.

use std::sync::Arc;

use posthaste_control::Named;
use posthaste_shaping::{DomainOrSite, Label, MailScope};

/// The queue's scope for these names.
///
/// # Errors
/// No name, or too many.
pub(crate) fn scope(of: &Named) -> Result<MailScope, String> {
    let text = |name: &Option<String>| name.as_deref().map(Arc::<str>::from);
    let domain = of.domain.as_ref().map(|name| name.to_lowercase().into());
    let label = match (text(&of.tenant), text(&of.campaign)) {
        (None, None) => None,
        (Some(name), None) => Some(Label::Tenant(name)),
        (None, Some(name)) => Some(Label::Campaign(name)),
        _ => return Err("a tenant or a campaign, not both".to_owned()),
    };
    let place = match (domain, text(&of.site)) {
        (None, None) => None,
        (Some(name), None) => Some(DomainOrSite::Domain(name)),
        (None, Some(name)) => Some(DomainOrSite::Site(name)),
        _ => return Err("a domain or a site, not both".to_owned()),
    };
    match (label, place) {
        (Some(label), Some(place)) => Ok(MailScope::At(label, place)),
        (Some(Label::Tenant(name)), None) => Ok(MailScope::Tenant(name)),
        (Some(Label::Campaign(name)), None) => Ok(MailScope::Campaign(name)),
        (None, Some(DomainOrSite::Domain(name))) => Ok(MailScope::Domain(name)),
        (None, Some(DomainOrSite::Site(name))) => Ok(MailScope::Site(name)),
        (None, None) => Err("of a domain, site, tenant or campaign".to_owned()),
    }
}

/// The inverse of [`scope`].
pub(crate) fn named(scope: &MailScope) -> Named {
    let mut named = Named::default();
    let text = |name: &Arc<str>| Some(name.to_string());
    match scope {
        MailScope::Tenant(name) | MailScope::At(Label::Tenant(name), _) => named.tenant = text(name),
        MailScope::Campaign(name) | MailScope::At(Label::Campaign(name), _) => named.campaign = text(name),
        MailScope::Domain(_) | MailScope::Site(_) => {}
    }
    match scope {
        MailScope::Domain(name) | MailScope::At(_, DomainOrSite::Domain(name)) => named.domain = text(name),
        MailScope::Site(name) | MailScope::At(_, DomainOrSite::Site(name)) => named.site = text(name),
        MailScope::Tenant(_) | MailScope::Campaign(_) => {}
    }
    named
}
