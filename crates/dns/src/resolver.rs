use std::collections::HashSet;
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use hickory_resolver::proto::rr::{RData, RecordType};
use tokio::time::Instant;

use super::cache::{ANSWERS_MAX, Cache};
use super::client::{Client, Failure, Records, pace_of};
use super::hosts::Hosts;
use super::meters::DnsStats;
use super::names::{self, Target};
use super::own::OwnListeners;
use super::plain::PlainLookup;
use super::slots::Asker;
use super::tlsa::{self, TlsaRecord};
use super::zone_reply::{address, name_text};
use super::{Addresses, DnsError, IpStrategy, MailDestination, MailHost, Pace, Settings, SetupError, Site, Slot};

/// Finds the hosts of domains, and their addresses. Shared by all tasks; answers are kept until their TTL has passed, within bounds.
///
/// Concurrent callers with the same question share one query. A dropped future does not affect other callers.
pub struct Resolver {
    pub(super) client: Client,
    hosts: Hosts,
    own_names: HashSet<String>,
    own_listeners: OwnListeners,
    destinations: Cache<Result<Arc<MailDestination>, DnsError>>,
    addresses: Cache<Result<Addresses, DnsError>>,
    /// Cached records by type and name.
    plain: Cache<Result<Arc<[String]>, DnsError>>,
    tlsa: Cache<Result<Arc<[TlsaRecord]>, DnsError>>,
}

impl Resolver {
    /// A resolver with empty caches. Checked settings are assumed: see [`Settings::check`].
    ///
    /// # Errors
    /// [`SetupError`]: a file cannot be read, or has a mistake.
    pub fn new(settings: &Settings) -> Result<Resolver, SetupError> {
        Ok(Resolver {
            client: Client::new(settings)?,
            hosts: Hosts::read(settings)?,
            own_names: HashSet::new(),
            own_listeners: OwnListeners::default(),
            destinations: Cache::new(settings.domains_max),
            addresses: Cache::new(settings.hosts_max),
            plain: Cache::new(settings.domains_max.min(ANSWERS_MAX)),
            tlsa: Cache::new(settings.hosts_max.min(ANSWERS_MAX)),
        })
    }

    /// Sets the names and listeners of this host. MX hosts with one of these names are skipped, and those of equal or
    /// worse preference (RFC 5321 section 5.1).
    ///
    /// A listener without an address covers all of this machine. Invalid host names are ignored.
    pub fn with_own(
        mut self,
        own_names: impl IntoIterator<Item = impl AsRef<str>>,
        own_listeners: impl IntoIterator<Item = SocketAddr>,
    ) -> Resolver {
        self.own_names = own_names.into_iter().filter_map(|name| names::domain(name.as_ref())).collect();
        self.own_listeners = OwnListeners::new(own_listeners);
        self
    }

    /// Goes on with the counts of the resolver before.
    pub fn counting_after(mut self, before: &Resolver) -> Resolver {
        self.client.meters = Arc::clone(&before.client.meters);
        self
    }

    /// Counts since the start, and of questions now.
    pub fn stats(&self) -> DnsStats {
        self.client.meters.read(self.client.slots().counts())
    }

    /// The hosts for mail to `domain`: a domain in U-labels or A-labels, or an address literal (RFC 5321 section 4.1.3).
    ///
    /// # Errors
    /// [`DnsError`], for all recipients of the domain.
    pub async fn destination(&self, domain: &str) -> Result<Arc<MailDestination>, DnsError> {
        self.destination_in(None, domain).await
    }

    /// Like [`destination`](Self::destination), in a slot of the caller.
    pub async fn destination_in(&self, slot: Option<Slot>, domain: &str) -> Result<Arc<MailDestination>, DnsError> {
        match Target::read(domain) {
            None => Err(DnsError::NotADomain(domain.chars().filter(|c| !c.is_control()).take(SHOWN_MAX).collect())),
            Some(Target::Literal(address)) => {
                let (literal, until) = (names::literal_text(address), self.client.latest());
                self.itself(&literal, until).map(Arc::new)
            }
            Some(Target::Domain(domain)) => {
                let (pace, slot) = (self.client.looked_up(self.destinations.last(&domain)), Mutex::new(slot));
                let found = self.look_up_destination(&slot, pace, &domain);
                let mut found = pin!(self.destinations.get(&domain, Instant::now(), found));
                if let Poll::Ready(found) = poll_fn(|cx| Poll::Ready(found.as_mut().poll(cx))).await {
                    return found;
                }
                // Still there if another caller looks the domain up, and that one may wait for this very slot.
                let unused = slot.lock().expect("a slot").take();
                drop(unused);
                found.await
            }
        }
    }

    /// The name whose MX query [`destination`](Self::destination) needs for `domain`. `None`: the cache has the answer.
    pub fn question(&self, domain: &str) -> Option<(String, Pace)> {
        let Some(Target::Domain(domain)) = Target::read(domain) else { return None };
        if self.hosts.get(&domain).is_some() {
            return None;
        }
        let last = self.destinations.last(&domain);
        let is_known = last.as_ref().is_some_and(|(_, until)| Instant::now() < *until);
        (!is_known).then(|| (domain, pace_of(last)))
    }

    /// Calls `start` with a slot, at once or when the tenant's turn comes. `start` returns an unneeded slot.
    pub fn when_free(
        &self,
        pace: Pace,
        tenant: &Arc<str>,
        start: impl FnOnce(Slot) -> Result<(), Slot> + Send + 'static,
    ) {
        self.client.slots().wait(pace, Asker::Tenant(tenant), start);
    }

    /// A host as its own destination, without MX records: a fixed next hop. A host name or an address literal.
    ///
    /// # Errors
    /// [`DnsError::NotADomain`], or [`DnsError::Loop`] if it is one of our own names.
    pub fn fixed(&self, host: &str) -> Result<Arc<MailDestination>, DnsError> {
        self.fixed_in_order(&[host.to_owned()])
    }

    /// Like [`fixed`](Self::fixed), for several hosts in order of preference. Our own names, and all names after them,
    /// are left out.
    ///
    /// # Errors
    /// As of `fixed`, for any of them.
    pub fn fixed_in_order(&self, hosts: &[String]) -> Result<Arc<MailDestination>, DnsError> {
        let name = |host: &String| match Target::read(host) {
            None => Err(DnsError::NotADomain(host.chars().filter(|c| !c.is_control()).take(SHOWN_MAX).collect())),
            Some(Target::Literal(address)) => Ok(names::literal_text(address)),
            Some(Target::Domain(host)) => Ok(host),
        };
        let names: Vec<String> = hosts.iter().map(name).collect::<Result<_, _>>()?;
        let domain = names.first().cloned().unwrap_or_default();
        let host = |(preference, name): (u16, String)| MailHost { preference, name: name.into() };
        let hosts = (0..).zip(names).map(host).collect();
        let found = self.destination_of(&domain, hosts, true, self.client.latest())?;
        Ok(Arc::new(MailDestination { fixed: true, ..found }))
    }

    /// The addresses of `host`, one of a [`MailDestination`]. Queries A and AAAA together; the strategy selects from
    /// both.
    ///
    /// # Errors
    /// [`DnsError::NoAddress`] if it has none, [`DnsError::Unanswered`] if it might have one.
    pub async fn addresses(&self, host: &str) -> Result<Addresses, DnsError> {
        match Target::read(host) {
            None => Err(DnsError::NoAddress(host.to_owned())),
            Some(Target::Literal(address)) => self.usable(host, [address], self.client.latest()),
            Some(Target::Domain(host)) => {
                let pace = self.client.looked_up(self.addresses.last(&host));
                self.addresses.get(&host, Instant::now(), self.look_up_addresses(pace, &host)).await
            }
        }
    }

    /// The TXT records of a domain in U-labels or A-labels, the strings of each joined without a blank; empty if the
    /// name has none.
    ///
    /// # Errors
    /// [`DnsError::NotADomain`], [`DnsError::NoSuchDomain`], or [`DnsError::Unanswered`].
    pub async fn texts(&self, name: &str) -> Result<Arc<[String]>, DnsError> {
        let Some(Target::Domain(name)) = Target::read(name) else {
            return Err(DnsError::NotADomain(name.chars().filter(|c| !c.is_control()).take(SHOWN_MAX).collect()));
        };
        self.plain().texts(&name).await
    }

    /// True if the configuration gives a domain its addresses, so DNS is not queried.
    pub fn has_fixed_hosts(&self, domain: &str) -> bool {
        self.hosts.get(domain).is_some()
    }

    /// Trusted resolvers on other machines. Their AD bit can be forged on the network, so the server logs a warning.
    /// Empty if the resolvers are from resolv.conf.
    pub fn believed_from_afar(&self) -> impl Iterator<Item = IpAddr> {
        let servers = self.client.servers.iter().map(|server| server.ip().to_canonical());
        servers.filter(move |ip| self.client.settings.trust_ad && !ip.is_loopback())
    }

    /// Records unchanged, as DNS returned them.
    pub fn plain(&self) -> PlainLookup<'_> {
        PlainLookup::new(&self.client, &self.hosts, &self.plain, Asker::Connection)
    }

    /// Like [`plain`](Self::plain), for names chosen by strangers: their queries take turns with the others.
    pub fn of_strangers(&self) -> PlainLookup<'_> {
        PlainLookup::new(&self.client, &self.hosts, &self.plain, Asker::Check)
    }

    /// The TLSA records of a host's TCP port, sorted. Empty if there are none, or DNSSEC does not authenticate them.
    /// Call it only for hosts that [may have some](Addresses::may_have_tlsa): servers of others may not answer
    /// (RFC 7672 section 2.1.2).
    ///
    /// # Errors
    /// [`DnsError::Unanswered`]: no answer, or a forged one. The host must not be used then (RFC 7672 section 2.1). An
    /// answer that takes more than 8 KiB of memory counts as none.
    pub async fn tlsa(&self, host: &str, port: u16) -> Result<Arc<[TlsaRecord]>, DnsError> {
        let name = format!("_{port}._tcp.{host}");
        let pace = self.client.looked_up(self.tlsa.last(&name));
        self.tlsa.get(&name, Instant::now(), tlsa::look_up(&self.client, pace, &name)).await
    }

    /// The records of `name`, in the form of [`names::domain`]; empty if it exists without them. Bypasses the cache.
    pub(crate) async fn records(&self, name: &str, kind: RecordType) -> Result<Vec<RData>, DnsError> {
        match self.client.ask(name, kind, self.client.slots().slot(Pace::Quick, Asker::Connection).await).await {
            Ok(records) => Ok(records.data),
            Err(Failure::NoData { .. }) => Ok(Vec::new()),
            Err(Failure::NoSuchName { .. }) => Err(DnsError::NoSuchDomain(name.to_owned())),
            Err(failure) => {
                let why = failure.unanswered().unwrap_or_default();
                Err(DnsError::Unanswered { name: name.to_owned(), why })
            }
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.client.settings
    }

    pub(super) fn listens_at(&self, port: u16) -> bool {
        self.own_listeners.has_port(port)
    }

    async fn look_up_destination(
        &self,
        slot: &Mutex<Option<Slot>>,
        pace: Pace,
        domain: &str,
    ) -> (Result<Arc<MailDestination>, DnsError>, Instant) {
        if self.hosts.get(domain).is_some() {
            let until = self.client.latest();
            return (self.itself(domain, until).map(Arc::new), until);
        }
        let given = slot.lock().expect("a slot").take();
        let slot = match given {
            Some(slot) => slot,
            None => self.client.slots().slot(pace, Asker::Connection).await,
        };
        let answer = self.client.ask(domain, RecordType::MX, slot).await;
        let until = match &answer {
            Ok(records) => self.client.positive_until(records.ttl_secs),
            Err(failure) => self.client.negative_until(failure),
        };
        let found = match answer {
            Ok(records) => self.of_mx(domain, &records, until),
            // RFC 5321 section 5.1: an implicit MX.
            // A signed zone cannot be robbed of its MX records unseen, and in another the addresses are not secure.
            Err(Failure::NoData { .. }) => {
                let itself = self.itself(domain, until);
                itself.map(|itself| MailDestination { is_secure: self.client.trusts_ad(), ..itself })
            }
            Err(Failure::NoSuchName { .. }) => Err(DnsError::NoSuchDomain(domain.to_owned())),
            Err(failure) => {
                let why = failure.unanswered().unwrap_or_default();
                Err(DnsError::Unanswered { name: domain.to_owned(), why })
            }
        };
        (found.map(Arc::new), until)
    }

    fn of_mx(&self, domain: &str, records: &Records, until: Instant) -> Result<MailDestination, DnsError> {
        let mut hosts = Vec::new();
        for data in &records.data {
            let RData::MX(mx) = data else { continue };
            // A root among others means nothing (RFC 7505 section 3).
            if mx.exchange.is_root() && records.data.len() == 1 {
                return Err(DnsError::NullMx(domain.to_owned()));
            }
            hosts.extend(name_text(&mx.exchange).map(|name| MailHost { preference: mx.preference, name: name.into() }));
        }
        if hosts.is_empty() {
            return Err(DnsError::NoAddress(domain.to_owned()));
        }
        let found = self.destination_of(domain, hosts, false, until)?;
        let alias = records.alias.as_ref().and_then(name_text).map(Into::into);
        Ok(MailDestination { alias, is_secure: records.is_secure, ..found })
    }

    /// The domain as its own and only host.
    fn itself(&self, domain: &str, until: Instant) -> Result<MailDestination, DnsError> {
        self.destination_of(domain, vec![MailHost { preference: 0, name: domain.into() }], true, until)
    }

    fn destination_of(
        &self,
        domain: &str,
        hosts: Vec<MailHost>,
        implicit: bool,
        valid_until: Instant,
    ) -> Result<MailDestination, DnsError> {
        let site = Site::new(hosts, self.client.settings.mx_hosts_max, |name| self.own_names.contains(name));
        let domain = domain.to_owned();
        if site.hosts().is_empty() {
            return Err(DnsError::Loop(domain));
        }
        Ok(MailDestination { domain, alias: None, site, implicit, is_secure: false, fixed: false, valid_until })
    }

    async fn look_up_addresses(&self, pace: Pace, host: &str) -> (Result<Addresses, DnsError>, Instant) {
        if let Some(fixed) = self.hosts.get(host) {
            let until = self.client.latest();
            return (self.usable(host, fixed.iter().copied(), until), until);
        }
        let kinds: &[RecordType] = match self.client.settings.ip {
            IpStrategy::Ipv6First | IpStrategy::Ipv4First => &[RecordType::AAAA, RecordType::A],
            IpStrategy::Ipv4Only => &[RecordType::A],
            IpStrategy::Ipv6Only => &[RecordType::AAAA],
        };
        let ask = async |kind: &RecordType| {
            self.client.ask(host, *kind, self.client.slots().slot(pace, Asker::Connection).await).await
        };
        let answers = super::join_all(kinds.iter().map(ask)).await;
        let (mut found, mut unanswered, mut secure, mut alias) = (Vec::new(), None, Vec::new(), None);
        let mut is_alias = false;
        // The first that has to be looked up again decides; a type that the host lacks may come later.
        let mut until = self.client.latest();
        for answer in answers {
            match answer {
                Ok(records) => {
                    until = until.min(self.client.positive_until(records.ttl_secs));
                    found.extend(records.data.iter().filter_map(address));
                    secure.push(records.is_secure);
                    is_alias |= records.alias.is_some();
                    alias = alias.or(records.alias.as_ref().and_then(name_text));
                }
                Err(failure) => {
                    until = until.min(self.client.negative_until(&failure));
                    unanswered = failure.unanswered().or(unanswered);
                }
            }
        }
        let addresses = match (self.usable(host, found, until), unanswered) {
            (Err(_), Some(why)) => Err(DnsError::Unanswered { name: host.to_owned(), why }),
            (addresses, _) => {
                let is_secure = !secure.is_empty() && secure.iter().all(|is_secure| *is_secure);
                addresses.map(|addresses| addresses.found(is_secure, alias.map(Into::into)))
            }
        };
        match addresses {
            Ok(addresses) if is_alias && self.client.trusts_ad() && !addresses.is_secure() => {
                self.look_up_alias(pace, host, addresses, until).await
            }
            addresses => (addresses, until),
        }
    }

    /// An alias of an unsigned zone can itself be signed, and have TLSA records (RFC 7672 section 2.2.2).
    async fn look_up_alias(
        &self,
        pace: Pace,
        host: &str,
        addresses: Addresses,
        until: Instant,
    ) -> (Result<Addresses, DnsError>, Instant) {
        let slot = self.client.slots().slot(pace, Asker::Connection).await;
        match self.client.ask(host, RecordType::CNAME, slot).await {
            Ok(records) => {
                let until = until.min(self.client.positive_until(records.ttl_secs));
                (Ok(addresses.of_alias(records.is_secure)), until)
            }
            Err(failure) => match failure.unanswered() {
                Some(why) => {
                    (Err(DnsError::Unanswered { name: host.to_owned(), why }), self.client.negative_until(&failure))
                }
                None => (Ok(addresses), until),
            },
        }
    }

    fn usable(
        &self,
        host: &str,
        addresses: impl IntoIterator<Item = IpAddr>,
        until: Instant,
    ) -> Result<Addresses, DnsError> {
        let own_ports = |address| self.own_listeners.ports_at(address);
        let addresses = Addresses::new(addresses, self.client.settings.ip, own_ports, until);
        addresses.ok_or_else(|| DnsError::NoAddress(host.to_owned()))
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("settings", &self.client.settings).finish_non_exhaustive()
    }
}

/// Maximum characters of an invalid domain in an error.
const SHOWN_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use posthaste_dns_stub::{Server, Zone};

    use super::*;

    #[tokio::test]
    async fn questions_are_counted_by_type_and_outcome_across_resolvers() {
        let zone = Zone::default().mx("a.example", 10, "mx.a.example").a("mx.a.example", "192.0.2.1".parse().unwrap());
        let server = Server::start(zone);
        let settings = Settings { servers: vec![server.address()], ip: IpStrategy::Ipv4First, ..Settings::default() };
        let resolver = Resolver::new(&settings).unwrap();
        for _ in 0..3 {
            resolver.destination("a.example").await.unwrap();
        }
        resolver.addresses("mx.a.example").await.unwrap();
        resolver.destination("none.example").await.unwrap_err();
        let next = Resolver::new(&settings).unwrap().counting_after(&resolver);
        next.destination("a.example").await.unwrap();
        let slot = next.client.slots().slot(Pace::Quick, Asker::Connection).await;
        let stats = next.stats();
        let counted: Vec<_> = stats.questions.iter().filter(|(.., count)| *count > 0).copied().collect();
        let expected = [("mx", "answer", 2), ("mx", "no_such_name", 1), ("a", "answer", 1), ("aaaa", "no_data", 1)];
        assert_eq!(counted, expected);
        assert_eq!((stats.hits, stats.misses), (2, 4));
        assert_eq!((stats.asked, stats.waiting), (1, 0));
        assert_eq!(stats.took_us.counts.iter().sum::<u64>(), 5);
        drop(slot);
        let none = Settings { servers: vec!["127.0.0.1:9".parse().unwrap()], timeout_secs: 1, ..Settings::default() };
        let silent = Resolver::new(&none).unwrap();
        silent.destination("a.example").await.unwrap_err();
        let ended: u64 =
            silent.stats().questions.iter().filter(|(kind, ..)| *kind == "mx").map(|(.., count)| count).sum();
        assert_eq!((silent.stats().asked, ended), (0, 1), "one that had no answer is counted too");
    }

    #[tokio::test]
    async fn no_slot_is_held_while_another_caller_waits_for_one() {
        let server = Server::start(Zone::default().mx("a.example", 10, "mx.a.example"));
        let settings = Settings { servers: vec![server.address()], questions_max: 1, ..Settings::default() };
        let resolver = Resolver::new(&settings).unwrap();
        let slot = resolver.client.slots().slot(Pace::Quick, Asker::Connection).await;
        // The first looks it up and has no slot, the second has the only one.
        let first = resolver.destination("a.example");
        let second = resolver.destination_in(Some(slot), "a.example");
        let both = async { tokio::join!(first, second) };
        let (first, second) =
            tokio::time::timeout(Duration::from_secs(60), both).await.expect("both have their answer");
        assert_eq!(first.unwrap().site.hosts().len(), 1);
        assert!(second.is_ok());
        assert_eq!(server.questions().len(), 1);
    }
}
