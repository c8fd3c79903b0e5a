//! `[[relay.tenant]]` of the configuration.

use std::collections::BTreeMap;

use posthaste_message::address::is_domain;
use posthaste_units::is_name;
use posthaste_units::words::{Key, Problem};
use serde::{Deserialize, Serialize};

/// A customer on whose account mail is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSection {
    /// 1 to 100 visible ASCII characters. Default: (required).
    pub name: String,
    /// Mail of trusted clients from these domains is the tenant's; with a dot in front, from the domains below it. A
    /// domain belongs to one tenant.
    #[serde(default)]
    pub sender_domains: Vec<String>,
    /// Like `sender_domains`, for single addresses, which precede any domain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub senders: Vec<String>,
    /// The [campaign](relay.md#tenants-and-campaigns) of its mail by sender, such as
    /// `{ "news.acme.example" = "news" }`: an address, a domain, or with a dot in front the domains below it. The
    /// nearest counts. Default: `{}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub campaigns: BTreeMap<String, String>,
    /// Recipients of its mail that may wait; mail for more is refused with 452 4.3.1. Not set: only the bound of
    /// `[relay]` applies.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_count")]
    pub queue_recipients: Option<u64>,
}

fn some_count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    posthaste_units::values::count(deserializer).map(Some)
}

/// Validates the tenants. `at`: the position of the list.
pub(super) fn check(tenants: &[TenantSection], at: &[Key]) -> Result<(), Problem> {
    let mut names = std::collections::HashSet::new();
    let mut domains = std::collections::HashSet::new();
    for (index, tenant) in tenants.iter().enumerate() {
        let at = |more: &[Key]| [at, &[index.into()], more].concat();
        if !is_name(&tenant.name) {
            return Err(Problem::new(at(&["name".into()]), "a name has 1 to 100 visible ASCII characters, no blanks"));
        }
        if !names.insert(&tenant.name) {
            return Err(Problem::new(at(&["name".into()]), format!("the tenant `{}` is listed twice", tenant.name)));
        }
        if tenant.queue_recipients == Some(0) {
            return Err(Problem::new(at(&["queue_recipients".into()]), "must be at least 1"));
        }
        for (number, domain) in tenant.sender_domains.iter().enumerate() {
            let at = || at(&["sender_domains".into(), number.into()]);
            let name = domain.strip_prefix('.').unwrap_or(domain);
            if !is_domain(name) || !name.is_ascii() {
                return Err(Problem::new(at(), "not a domain in letters, digits and hyphens, with dots between"));
            }
            if !domains.insert(domain.to_lowercase()) {
                return Err(Problem::new(at(), format!("`{domain}` is another tenant's, or listed twice")));
            }
        }
        for (number, sender) in tenant.senders.iter().enumerate() {
            let at = || at(&["senders".into(), number.into()]);
            if posthaste_smtp::Address::parse(sender).is_err() {
                return Err(Problem::new(at(), "not an address, such as ann@example.org"));
            }
            // Domains have no `@`, so both share a set.
            if !domains.insert(sender.to_lowercase()) {
                return Err(Problem::new(at(), format!("`{sender}` is another tenant's, or listed twice")));
            }
        }
        let mut senders = std::collections::HashSet::new();
        for (sender, campaign) in &tenant.campaigns {
            let at = || at(&["campaigns".into(), sender.as_str().into()]);
            let domain = sender.strip_prefix('.').unwrap_or(sender);
            if !(is_domain(domain) && domain.is_ascii()) && posthaste_smtp::Address::parse(sender).is_err() {
                return Err(Problem::new(at(), "not an address, a domain, or a domain with a dot in front"));
            }
            if !is_name(campaign) {
                return Err(Problem::new(at(), "a name has 1 to 100 visible ASCII characters, no blanks"));
            }
            if !senders.insert(sender.to_lowercase()) {
                return Err(Problem::new(at(), format!("`{sender}` is listed twice")));
            }
        }
    }
    Ok(())
}

/// Checks that these keys are empty or names of header fields (RFC 5322 section 3.6.8), all distinct.
pub(super) fn check_headers(headers: &[(&'static str, &String)]) -> Result<(), Problem> {
    for (index, (key, text)) in headers.iter().enumerate() {
        let at = || ["relay".into(), (*key).into()];
        let fits = text.len() <= NAME_BYTES_MAX && text.bytes().all(|octet| octet.is_ascii_graphic() && octet != b':');
        if !fits {
            return Err(Problem::new(at(), "the name of a header field, such as \"X-Tenant\""));
        }
        let is_same = |(_, other): &&(&str, &String)| other.eq_ignore_ascii_case(text);
        if let Some((other, _)) = headers[..index].iter().find(is_same).filter(|_| !text.is_empty()) {
            return Err(Problem::new(at(), format!("`{other}` names this field already")));
        }
    }
    Ok(())
}

const NAME_BYTES_MAX: usize = 100;
