//! Scopes of mail as requests name them.

use std::sync::Arc;

use posthaste_control::Named;
use posthaste_shaping::{Label, Place, Scope};

/// The queue's word for what is named.
///
/// # Errors
/// It names nothing, or too much.
pub(crate) fn scope(of: &Named) -> Result<Scope, String> {
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
        (Some(name), None) => Some(Place::Domain(name)),
        (None, Some(name)) => Some(Place::Site(name)),
        _ => return Err("a domain or a site, not both".to_owned()),
    };
    match (label, place) {
        (Some(label), Some(place)) => Ok(Scope::At(label, place)),
        (Some(Label::Tenant(name)), None) => Ok(Scope::Tenant(name)),
        (Some(Label::Campaign(name)), None) => Ok(Scope::Campaign(name)),
        (None, Some(Place::Domain(name))) => Ok(Scope::Domain(name)),
        (None, Some(Place::Site(name))) => Ok(Scope::Site(name)),
        (None, None) => Err("of a domain, site, tenant or campaign".to_owned()),
    }
}

/// The inverse of [`scope`].
pub(crate) fn named(scope: &Scope) -> Named {
    let mut named = Named::default();
    let text = |name: &Arc<str>| Some(name.to_string());
    match scope {
        Scope::Tenant(name) | Scope::At(Label::Tenant(name), _) => named.tenant = text(name),
        Scope::Campaign(name) | Scope::At(Label::Campaign(name), _) => named.campaign = text(name),
        Scope::Domain(_) | Scope::Site(_) => {}
    }
    match scope {
        Scope::Domain(name) | Scope::At(_, Place::Domain(name)) => named.domain = text(name),
        Scope::Site(name) | Scope::At(_, Place::Site(name)) => named.site = text(name),
        Scope::Tenant(_) | Scope::Campaign(_) => {}
    }
    named
}
