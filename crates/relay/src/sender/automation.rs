//! Rules for replies of other hosts. They suspend, slow down or give up mail for a site or a domain for a time, or that
//! of one tenant or campaign. They are recorded like an operator's commands.

use std::sync::Arc;

use posthaste_smtp::Reply;
use posthaste_spool::{Batch, Body, Entry};

use super::observer::Originator;
use super::routing::BOUNCE;
use super::shared::Shared;
use super::site::Site;
use posthaste_queue::{EntryText, QueueEntry, Queued, domain_of};
use posthaste_shaping::automation::AutomationRule;
use posthaste_shaping::file::{AutomationAction, AutomationTarget};
use posthaste_shaping::{DomainOrSite, Label, MailScope};

/// Applies the rules for a reply that refuses a recipient, temporarily or permanently.
pub(super) fn automate(shared: &Arc<Shared>, site: &Site, queued: &Queued, recipient: &str, reply: &Reply) {
    apply_rules(shared, site, Some((queued, &domain_of(recipient))), reply);
}

/// Applies the site's rules for a reply that ended a session without a message.
pub(super) fn automate_site(shared: &Arc<Shared>, site: &Site, reply: &Reply) {
    apply_rules(shared, site, None, reply);
}

/// `of`: the message, and the domain of its recipient. Without them only rules for the site apply.
fn apply_rules(shared: &Arc<Shared>, site: &Site, of: Option<(&Queued, &str)>, reply: &Reply) {
    let (rules, joined) = shared.shaper.rules_of(&site.state().joined);
    let automation = rules.automation();
    if automation.rules().is_empty() {
        return;
    }
    let destination = site.state().destination.clone();
    let hosts: Vec<&str> = destination.site.hosts().iter().map(|host| &*host.name).collect();
    let of_domain = of.map_or(joined, |(_, domain)| rules.of_domain(domain));
    let sections = rules.of_site(site.source.name(), &hosts, &of_domain).sections.into_iter().collect();
    let class = || shared.config.bounces.classes.now().classify_reply(reply).name().to_owned();
    for number in automation.matching(&reply.to_string(), &sections, class) {
        let rule = &automation.rules()[number as usize];
        let Some(scope) = scope_of(rule, site, of) else { continue };
        let now = shared.time.now();
        if shared.shaper.counts().is_enough(number, rule, &scope, now.into()) {
            apply_rule(shared, rule, scope, reply);
        }
    }
}

fn apply_rule(shared: &Arc<Shared>, rule: &AutomationRule, scope: MailScope, reply: &Reply) {
    let reason = format!("{}: {reply}", rule.from);
    let until = shared.time.now().saturating_add(rule.secs);
    let text = EntryText::from(reason.as_str());
    let entry = match rule.action {
        AutomationAction::Suspend => QueueEntry::Suspended { scope, until, reason: text.clone() },
        AutomationAction::Bounce => QueueEntry::Diverted { scope, until, to: BOUNCE.into(), reason: text.clone() },
        AutomationAction::Slow => QueueEntry::Slowed {
            scope,
            until,
            message_rate: rule.message_rate.map_or_else(String::new, |rate| rate.to_string()).into(),
            connections: rule.connections.unwrap_or(0),
            reason: text.clone(),
        },
    };
    if shared.queue().is_in_force(&entry) {
        return;
    }
    // Nobody waits for this record: the next such reply repeats what a crash loses.
    let by = Originator { uid: rustix::process::geteuid().as_raw(), reason: text.to_string(), ..Originator::default() };
    let event = shared.config.observer.as_ref().and_then(|observer| observer.suspended(&by, &entry));
    let of_queue = Entry { stream: shared.stream, needs_body: false, payload: entry.encode().into() };
    let entries = std::iter::once(of_queue).chain(event).collect();
    let waking = shared.clone();
    shared.spool.append(Batch { entries, body: Body::None }, Box::new(move |_| waking.wake.notify_one()));
}

/// The scope of a rule; `None` for a rule about a message where there is none.
fn scope_of(rule: &AutomationRule, site: &Site, of: Option<(&Queued, &str)>) -> Option<MailScope> {
    if rule.target == AutomationTarget::Site {
        return Some(MailScope::Site(site.name.clone()));
    }
    let (queued, domain) = of?;
    // Routes are by domain.
    let place = match rule.action {
        AutomationAction::Bounce => DomainOrSite::Domain(domain.into()),
        AutomationAction::Suspend | AutomationAction::Slow => DomainOrSite::Site(site.name.clone()),
    };
    Some(match rule.target {
        AutomationTarget::Site => MailScope::Site(site.name.clone()),
        AutomationTarget::Domain => MailScope::Domain(domain.into()),
        AutomationTarget::Tenant => MailScope::At(Label::Tenant(queued.tenant.clone()), place),
        AutomationTarget::Campaign => MailScope::At(Label::Campaign(queued.campaign.clone()), place),
    })
}
