//! The rules for one site.

use std::sync::Arc;

use super::open::{OpenLimit, OpenPermit, end_all};
use super::rate::RateLimit;
use super::state::State;
use crate::explain::Defaults;
use crate::{FAILURES_BEFORE_PAUSE, MailScope, Sections, Sourced};

/// Identifies the rules of a site.
#[derive(Debug, Clone, Copy)]
pub struct LimitedSite<'a> {
    /// Name of the source.
    pub source: &'a str,
    /// Name of the site.
    pub name: &'a str,
    /// Names of the site's hosts.
    pub hosts: &'a [&'a str],
}

/// Limits of a site under one source.
pub struct SiteLimits<W, S> {
    /// The name of its source.
    pub source: Arc<str>,
    /// The name of the site.
    pub site: Arc<str>,
    /// Maximum concurrent connections.
    pub connections: usize,
    /// True if a rule or an operator sets the connections.
    pub says_connections: bool,
    /// Maximum messages of one connection.
    pub messages_per_connection: u64,
    /// Maximum recipients of one transaction.
    pub recipients_per_message: usize,
    /// True if messages go by BDAT to hosts that offer it.
    pub has_chunking: bool,
    /// Connections to one address at a time; `None`: no limit.
    pub connections_per_address: Option<u32>,
    /// Consecutive failed tries of all hosts before the site pauses.
    pub failures_before_pause: u32,
    /// Limits of which a message takes a token each.
    pub messages: Vec<Arc<RateLimit<W>>>,
    /// Limits of which a connection takes a token each.
    pub connecting: Vec<Arc<RateLimit<W>>>,
    /// Limits of open connections, each counting every connection.
    pub open: Vec<(Arc<OpenLimit<S>>, u32)>,
}

impl<W, S> SiteLimits<W, S> {
    /// Limits without rules.
    pub fn of(base: Defaults, source: &str, site: &str) -> Self {
        SiteLimits {
            source: source.into(),
            site: site.into(),
            connections: base.connections,
            says_connections: false,
            messages_per_connection: base.messages_per_connection,
            recipients_per_message: base.recipients_per_message,
            has_chunking: false,
            connections_per_address: None,
            failures_before_pause: FAILURES_BEFORE_PAUSE,
            messages: Vec::new(),
            connecting: Vec::new(),
            open: Vec::new(),
        }
    }

    pub(super) fn find(
        key: &LimitedSite<'_>,
        joined: &Sections,
        base: Defaults,
        state: &mut State<W, S>,
        now: u64,
    ) -> Self {
        let mut limits = Self::of(base, key.source, key.name);
        if !state.rules.is_empty() {
            limits.find_rules(key, joined, base, state, now);
        }
        let own = format!("site {} from {}", key.name, key.source);
        if let Some((rate, connections)) = state.slow(&MailScope::Site(key.name.into()), &own, now) {
            limits.messages.extend(rate);
            if connections > 0 {
                limits.connections = limits.connections.min(connections as usize);
                limits.says_connections = true;
            }
        }
        limits
    }

    fn find_rules(
        &mut self,
        key: &LimitedSite<'_>,
        joined: &Sections,
        base: Defaults,
        state: &mut State<W, S>,
        now: u64,
    ) {
        let limits = self;
        let rules = state.rules.clone();
        let found = rules.of_site(key.source, key.hosts, joined);
        let number = |said: &Option<Sourced<u32>>| said.as_ref().map(|said| said.value);
        limits.connections = number(&found.connections).map_or(base.connections, |most| most as usize);
        limits.says_connections = found.connections.is_some();
        limits.messages_per_connection =
            number(&found.messages_per_connection).map_or(base.messages_per_connection, u64::from);
        limits.recipients_per_message =
            number(&found.recipients_per_message).map_or(base.recipients_per_message, |most| most as usize);
        limits.has_chunking = found.chunking.as_ref().is_some_and(|said| said.value);
        limits.connections_per_address = number(&found.connections_per_address);
        limits.failures_before_pause = number(&found.failures_before_pause).unwrap_or(FAILURES_BEFORE_PAUSE);
        let own = format!("site {} from {}", key.name, key.source);
        limits.messages.extend(state.rate(own.clone(), found.message_rate, now));
        limits.connecting.extend(state.rate(format!("connections to {own}"), found.connection_rate, now));
        for Sourced { value: total, from } in found.totals {
            let name = format!("provider {} from {}", total.name, key.source);
            let said = |value| Some(Sourced { value: value?, from: from.clone() });
            limits.messages.extend(state.rate(name.clone(), said(total.message_rate), now));
            limits.connecting.extend(state.rate(format!("connections to {name}"), said(total.connection_rate), now));
            limits.open.extend(total.connections.map(|most| (state.open(name), most)));
        }
        limits.messages.extend(state.named(&found.limits, now));
        for named in &found.limits {
            let name = format!("limit {}", named.name);
            let total = &named.limit.value;
            let said = total.connection_rate.map(|value| Sourced { value, from: named.limit.from.clone() });
            limits.connecting.extend(state.rate(format!("connections of {name}"), said, now));
            limits.open.extend(total.connections.map(|most| (state.open(name), most)));
        }
    }

    /// True if other sites share a limit of its connections.
    pub fn shares_connections(&self) -> bool {
        !self.connecting.is_empty() || !self.open.is_empty()
    }

    /// A permit of each connection limit.
    ///
    /// # Errors
    /// The first limit that is used up.
    pub fn permits(&self) -> Result<Vec<OpenPermit<S>>, NoPermit<'_, S>> {
        let mut permits = Vec::with_capacity(self.open.len());
        for (limit, most) in &self.open {
            match limit.open(*most) {
                Some(permit) => permits.push(permit),
                // Meanwhile these permits may have turned other sites away.
                None => return Err(NoPermit { limit, next: end_all(permits) }),
            }
        }
        Ok(permits)
    }

    /// True if others wait for connections of this site.
    pub fn is_waited_for(&self) -> bool {
        self.open.iter().any(|(limit, _)| limit.is_waited_for())
    }
}

/// A site that gets no permits.
pub struct NoPermit<'a, S> {
    /// The limit that is used up.
    pub limit: &'a Arc<OpenLimit<S>>,
    /// Sites to wake: they are next in turn at the other limits.
    pub next: Vec<Arc<S>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_without_all_permits_wakes_those_it_held_up() {
        let defaults = Defaults { connections: 5, messages_per_connection: 10, recipients_per_message: 10 };
        let limit = |name: &str| Arc::new(OpenLimit::<u8>::new(name.into()));
        let [free, used] = [limit("free"), limit("used")];
        let mut limits = SiteLimits::<(), u8>::of(defaults, "default", "a site");
        limits.open = vec![(free.clone(), 1), (used.clone(), 0)];
        let waiting = Arc::new(7);
        free.wait(&waiting);
        let refused = limits.permits().err().expect("one is used up");
        assert!(Arc::ptr_eq(refused.limit, &used));
        assert_eq!(refused.next, [waiting]);
        assert!(free.count() == 0 && !free.is_waited_for());
    }
}
