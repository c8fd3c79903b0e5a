//! Decides if a message may be sent now: takes its tokens, or parks it.

use std::cell::Cell;
use std::sync::Arc;

use super::site::{Alarm, RateLimit, Shaper, SiteLimits, Tokens, Waiter};
use posthaste_queue::{Gate, Parked};
use posthaste_shaping::limits::{RatesTogether, check};

/// Reserves tokens for one message while the queue is locked, so that no reservation comes between a check and its use.
pub(super) struct MessageGate<'a> {
    shaper: &'a Shaper,
    alarm: &'a Alarm,
    site: &'a SiteLimits,
    now: u64,
    tenant: RatesTogether<Waiter>,
    lane: RatesTogether<Waiter>,
    tokens: Tokens,
    has_parked: Cell<bool>,
}

impl<'a> MessageGate<'a> {
    pub fn new(shaper: &'a Shaper, alarm: &'a Alarm, site: &'a SiteLimits) -> Self {
        MessageGate {
            shaper,
            alarm,
            site,
            now: alarm.now(),
            tenant: None,
            lane: None,
            tokens: Tokens::default(),
            has_parked: Cell::new(false),
        }
    }

    /// True if the gate has parked a message.
    pub fn has_parked(&self) -> bool {
        self.has_parked.get()
    }

    /// The tokens of the message that may be sent.
    pub fn into_tokens(self) -> Tokens {
        self.tokens
    }

    /// True if all limits have a token; if not, parks `parked`.
    fn allows(&self, limits: &RatesTogether<Waiter>, parked: Parked) -> bool {
        let Some(limits) = limits else { return true };
        match check(limits, self.now) {
            Ok(()) => true,
            Err((limit, until)) => {
                self.alarm.wait(limit, Waiter::Parked(parked), until);
                self.has_parked.set(true);
                false
            }
        }
    }
}

impl Gate for MessageGate<'_> {
    fn tenant(&mut self, tenant: &Arc<str>, parked: Parked) -> bool {
        self.tenant = self.shaper.tenant(self.site, tenant, self.now);
        self.allows(&self.tenant, parked)
    }

    fn lane(&mut self, tenant: &Arc<str>, campaign: &Arc<str>, domain: &Arc<str>, parked: Parked) -> bool {
        self.lane = self.shaper.lane(self.site, [tenant, campaign, domain], self.now);
        self.allows(&self.lane, parked)
    }

    fn take(&mut self) {
        let tenant = self.tenant.as_deref().unwrap_or_default();
        let lane = self.lane.as_deref().unwrap_or_default();
        // A named limit may occur in several of these, but counts a message once.
        let mut all: Vec<Arc<RateLimit>> = Vec::with_capacity(self.site.messages.len() + tenant.len() + lane.len());
        for limit in self.site.messages.iter().chain(tenant).chain(lane) {
            if !all.iter().any(|other| Arc::ptr_eq(other, limit)) {
                all.push(limit.clone());
            }
        }
        self.tokens = Tokens::reserve(all);
    }
}
