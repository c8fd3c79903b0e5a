use std::collections::VecDeque;
use std::sync::Arc;

use posthaste_random::Random;

use super::{Addresses, DnsError, MailDestination, MailHost, Resolver};

/// One walk through the hosts of a destination. Each host's addresses are looked up when it is reached.
#[derive(Debug)]
pub struct Attempt {
    destination: Arc<MailDestination>,
    /// Port of its hosts.
    port: u16,
    order: VecDeque<MailHost>,
    /// The worst preference whose hosts were checked not to be ours.
    checked: Option<u16>,
    found: bool,
    unanswered: Option<DnsError>,
    looped: bool,
}

impl Attempt {
    /// Hosts of the same preference are ordered by `random`; they are connected to at `port`.
    pub fn new(destination: Arc<MailDestination>, port: u16, random: &mut Random) -> Attempt {
        let order = destination.site.order(random).into();
        Attempt { destination, port, order, checked: None, found: false, unanswered: None, looped: false }
    }

    /// The next host to connect to. Hosts without addresses are skipped. `None` after the last, if there was one.
    ///
    /// The walk ends before the preference of a host that is this server (RFC 5321 section 5.1). To detect that, all
    /// hosts of a preference are looked up before the first is used. If we do not listen at the port, hosts are
    /// looked up one by one.
    ///
    /// # Errors
    /// No host had an address: [`DnsError::Unanswered`] if one might have, else [`DnsError::Loop`] or [`DnsError::NoAddress`].
    pub async fn next(&mut self, resolver: &Resolver) -> Result<Option<(MailHost, Addresses)>, DnsError> {
        while let Some(preference) = self.order.front().map(|host| host.preference) {
            if resolver.listens_at(self.port) && self.checked != Some(preference) {
                if self.is_ours(resolver, preference).await {
                    self.looped = true;
                    self.order.clear();
                    break;
                }
                self.checked = Some(preference);
            }
            // Only now: if this future is dropped, the host is still to come.
            let found = resolver.addresses(&self.order[0].name).await;
            let Some(host) = self.order.pop_front() else { break };
            match found {
                Ok(addresses) => {
                    self.found = true;
                    return Ok(Some((host, addresses)));
                }
                Err(error) if error.is_final() => {}
                Err(error) => self.unanswered = Some(error),
            }
        }
        self.end()
    }

    /// True if a host was left out since DNS did not answer.
    pub fn has_unanswered(&self) -> bool {
        self.unanswered.is_some()
    }

    async fn is_ours(&self, resolver: &Resolver, preference: u16) -> bool {
        let group = self.order.iter().take_while(|host| host.preference == preference);
        let look_ups = group.map(|host| resolver.addresses(&host.name));
        let found = super::join_all(look_ups).await;
        let is_ours = |addresses: &Addresses| addresses.are_ours(self.port, self.destination.fixed);
        found.iter().any(|found| found.as_ref().is_ok_and(is_ours))
    }

    fn end(&self) -> Result<Option<(MailHost, Addresses)>, DnsError> {
        match &self.unanswered {
            _ if self.found => Ok(None),
            Some(error) => Err(error.clone()),
            None if self.looped => Err(DnsError::Loop(self.destination.domain.clone())),
            None => Err(DnsError::NoAddress(self.destination.domain.clone())),
        }
    }
}
