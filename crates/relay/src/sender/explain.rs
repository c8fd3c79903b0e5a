//! Limits of a destination, and those that delay mail now.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::relay::Relay;
use super::route_table::Plan;
use super::shared::Shared;
use super::site::{OpenLimit, RateLimit, Site};
use posthaste_queue::{QueueEntry, QueueName, RecipientKey, Secs};
use posthaste_shaping::explain::{Explained, Now};
use posthaste_shaping::{DomainOrSite, Label, MailScope};

/// A name unknown to [`Relay::explain`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownName {
    /// No pool has this name.
    #[error("there is no pool {0}")]
    Pool(String),
    /// The mail does not leave from this source.
    #[error("this mail is not sent from source {0}")]
    Source(String),
}

/// The mail whose limits are explained.
#[derive(Debug, Clone, Copy, Default)]
pub struct OfMail<'a> {
    /// Domain of the recipients, in lower case.
    pub domain: &'a str,
    /// Tenant of the mail; empty for none.
    pub tenant: &'a str,
    /// Pool that the mail was received for; empty for the tenant's pool.
    pub pool: &'a str,
    /// The only source to explain; empty for all.
    pub source: &'a str,
}

impl Relay {
    /// Limits and rules for this mail. Blocks: looks up the mail hosts.
    ///
    /// # Errors
    /// The named pool or source does not exist.
    pub fn explain(&self, of_mail: OfMail<'_>) -> Result<Explained, UnknownName> {
        let shared = &self.0.shared;
        let OfMail { domain, tenant, pool, source } = of_mail;
        let routing = &shared.routes.in_force().routing;
        if !pool.is_empty() && !routing.pools.iter().any(|other| other.name == pool) {
            return Err(UnknownName::Pool(pool.to_owned()));
        }
        let queue = QueueName { tenant: tenant.into(), campaign: "".into(), domain: domain.into(), pool: pool.into() };
        let mut hosts: Vec<String> = Vec::new();
        let mut name = String::new();
        let mut problem = None;
        let mut sources = Vec::new();
        match shared.runtime.block_on(Plan::usual(&shared.routes, &queue)) {
            Ok(plan) => {
                name = plan.name.to_string();
                hosts.extend(plan.destination.site.hosts().iter().map(|host| host.name.to_string()));
                sources.extend(plan.members.iter().map(|(egress, _)| egress.name().to_string()));
            }
            Err(error) => problem = Some(error.to_string()),
        }
        if !source.is_empty() {
            let had = !sources.is_empty();
            sources.retain(|name| name == source);
            if had && sources.is_empty() {
                return Err(UnknownName::Source(source.to_owned()));
            }
        }
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let of: Vec<&str> = if sources.is_empty() {
            // The domain has no mail hosts.
            vec![source]
        } else {
            sources.iter().map(String::as_str).collect()
        };
        let mut explained = shared.shaper.rules().explain(domain, tenant, &of, &hosts, shared.shaper.defaults());
        (explained.site, explained.problem, explained.sources) = (name, problem, sources);
        explained.pool = pool.to_owned();
        explained.waiting = Some(waiting_for(shared, of_mail));
        explained.now = now(shared, &explained);
        Ok(explained)
    }
}

/// Counts the waiting recipients of a domain; of all tenants and pools if none is named.
fn waiting_for(shared: &Shared, of: OfMail<'_>) -> u64 {
    let queue = shared.queue();
    let is_it = |name: &QueueName| {
        *name.domain == *of.domain
            && (of.tenant.is_empty() || *name.tenant == *of.tenant)
            && (of.pool.is_empty() || *name.pool == *of.pool)
    };
    let of = queue.queues().into_iter().filter_map(|id| queue.queue(id)).filter(|(name, _)| is_it(name));
    of.map(|(_, recipients)| u64::from(recipients)).sum()
}

fn now(shared: &Shared, explained: &Explained) -> Vec<Now> {
    let mut all = Vec::new();
    let time = shared.time.now();
    let suspensions: Vec<_> = {
        let queue = shared.queue();
        queue.suspensions().chain(queue.slowed_entries()).collect()
    };
    for entry in suspensions {
        let (scope, until, state, binds) = match entry {
            QueueEntry::Suspended { scope, until, reason } if reason.is_empty() => {
                (scope, until, "suspended".to_owned(), true)
            }
            QueueEntry::Suspended { scope, until, reason } => (scope, until, format!("suspended: {reason}"), true),
            QueueEntry::Slowed { scope, until, reason, .. } => (scope, until, format!("slowed: {reason}"), false),
            _ => continue,
        };
        if let Some(what) = applies(&scope, explained) {
            all.push(Now {
                what,
                state,
                binds,
                secs: (until < Secs::MAX).then(|| f64::from(until.saturating_sub(time))),
            });
        }
    }
    let mut names = vec![format!("tenant {}", explained.tenant)];
    for source in &explained.sources {
        let key = (source.as_str().into(), explained.site.as_str().into());
        let site = shared.sites.find(&key);
        all.extend(site.iter().flat_map(|site| now_of_site(shared, site)));
        names.push(format!("domain {} from {source}", explained.domain));
    }
    let more = shared.shaper.known(&names);
    all.extend(more.iter().map(|limit| rate(limit, shared.alarm.now(), "messages")));
    let mut seen = std::collections::HashSet::new();
    all.retain(|now| seen.insert(now.what.clone()));
    all
}

/// The limit that a recipient's site waits for now.
pub(super) fn limit_of(shared: &Shared, key: RecipientKey) -> Option<String> {
    let place = shared.queue().route_of(key)?;
    let site = shared.sites.find(&place)?;
    // Trouble with the hosts is no limit: their last reply describes it.
    let is_limit = |now: &Now| now.binds && now.what != MAIL_HOSTS;
    now_of_site(shared, &site).into_iter().find(is_limit).map(|now| format!("{}: {}", now.what, now.state))
}

/// Time until the mail hosts of a recipient are tried again, if they cannot be reached now.
pub(super) fn hosts_paused_for(shared: &Shared, key: RecipientKey) -> Option<Duration> {
    let place = shared.queue().route_of(key)?;
    let site = shared.sites.find(&place)?;
    let until = site.state().standing.paused_until()?;
    Some(until.saturating_duration_since(Instant::now().into()))
}

fn now_of_site(shared: &Shared, site: &Arc<Site>) -> Vec<Now> {
    let state = site.state();
    let mut all = Vec::new();
    if let (Some(trouble), paused) = (state.standing.trouble(), state.standing.paused_until()) {
        let secs = paused.map(|until| until.saturating_duration_since(Instant::now().into()).as_secs_f64());
        all.push(Now { what: MAIL_HOSTS.to_owned(), state: trouble.to_owned(), binds: true, secs });
    }
    let limits = state.limits.clone();
    let time = shared.alarm.now();
    let open = state.connections;
    let has_waiting = shared.queue().has_waiting(state.ready);
    drop(state);
    all.push(Now {
        what: format!("connections of the site from {}", site.source.name()),
        state: format!("{open} of {} open", limits.connections),
        binds: open >= limits.connections && has_waiting,
        secs: None,
    });
    all.extend(limits.connecting.iter().map(|limit| rate(limit, time, "")));
    all.extend(limits.open.iter().map(|(limit, most)| open_now(limit, *most)));
    all.extend(limits.messages.iter().map(|limit| rate(limit, time, "messages")));
    all
}

const MAIL_HOSTS: &str = "the mail hosts";

fn rate(limit: &Arc<RateLimit>, now: u64, what: &str) -> Now {
    let secs = limit.until(now).map(|until| until.saturating_sub(now) as f64 / 1e9);
    let what = if what.is_empty() { limit.name.to_string() } else { format!("{what}: {}", limit.name) };
    let rate = limit.rate();
    let state = format!("{} of {} left at {rate}", limit.available(now), rate.burst());
    Now { what, state, binds: limit.is_waited_for(), secs }
}

fn open_now(limit: &Arc<OpenLimit>, most: u32) -> Now {
    let state = format!("{} of {most} open", limit.count());
    Now { what: format!("connections: {}", limit.name), state, binds: limit.is_waited_for(), secs: None }
}

/// The scope of a suspension as text, if it covers this destination.
fn applies(scope: &MailScope, explained: &Explained) -> Option<String> {
    let is_tenant = |name: &str| *name == *explained.tenant && !explained.tenant.is_empty();
    let is_place = |place: &DomainOrSite| match place {
        DomainOrSite::Domain(name) => **name == *explained.domain,
        DomainOrSite::Site(name) => **name == *explained.site,
    };
    let (kind, is_it) = match scope {
        MailScope::Tenant(name) => ("tenant", is_tenant(name)),
        MailScope::Domain(name) => ("domain", **name == *explained.domain),
        MailScope::Site(name) => ("site", **name == *explained.site),
        MailScope::At(Label::Tenant(name), place) => (scope.kind(), is_tenant(name) && is_place(place)),
        MailScope::Campaign(_) | MailScope::At(Label::Campaign(_), _) => return None,
    };
    is_it.then(|| format!("the {kind}"))
}
