use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::authentic::AskingProvider;
use super::meters::{DnsMeters, Outcome};
use super::slots::Slots;
use super::{DnsError, Pace, Settings, SetupError, Slot};
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::{DnsError as Negative, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::{Resolver, system_conf};
use tokio::time::Instant;

/// Sends queries to the resolvers, without a cache.
pub(super) struct Client {
    resolver: Resolver<AskingProvider>,
    /// The bit AD is believed.
    trusts_ad: bool,
    pub(super) servers: Vec<SocketAddr>,
    slots: Arc<Slots>,
    time: Duration,
    pub(super) meters: Arc<DnsMeters>,
    pub(super) settings: Settings,
}

/// Records of a positive answer, with their TTL.
pub(super) struct Records {
    pub(super) data: Vec<RData>,
    pub(super) ttl_secs: u32,
    /// The alias's target, if the name is an alias.
    pub(super) alias: Option<Name>,
    /// The resolver has validated the answer and is trusted.
    pub(super) is_secure: bool,
}

/// Why an answer has no records.
#[derive(Debug)]
pub(super) enum Failure {
    /// NXDOMAIN, with the TTL of RFC 2308 section 5.
    NoSuchName { ttl_secs: u32 },
    /// The name exists without such records.
    NoData { ttl_secs: u32 },
    /// No answer in time.
    Timeout(&'static str),
    /// No answer that can be used.
    Unanswered(String),
    /// Invalid in DNS, so no query was sent.
    NotAName,
}

impl Failure {
    /// The reason of a missing answer. `None` if the answer is that there are no records.
    pub(super) fn unanswered(&self) -> Option<String> {
        match self {
            Failure::NoSuchName { .. } | Failure::NoData { .. } => None,
            Failure::Timeout(why) => Some((*why).to_owned()),
            Failure::Unanswered(why) => Some(why.clone()),
            Failure::NotAName => Some("not a name of DNS".to_owned()),
        }
    }
}

/// Transmissions of a query within its time.
const TRIES: u32 = 3;

impl Client {
    pub(super) fn new(settings: &Settings) -> Result<Client, SetupError> {
        let time = Duration::from_secs(settings.timeout_secs);
        let system = |error: NetError| SetupError::System(error.to_string());
        let (servers, mut options) = if settings.servers.is_empty() {
            let (config, options) = system_conf::read_system_conf().map_err(system)?;
            (config.name_servers().to_vec(), options)
        } else {
            (settings.servers.iter().map(server).collect(), ResolverOpts::default())
        };
        options.timeout = time / TRIES;
        options.attempts = TRIES as usize - 1;
        // One cache, ours: it has bounds for the TTL, one look-up for all who wait, and a clock that tests set.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        options.max_active_requests = settings.questions_max;
        options.preserve_intermediates = true;
        let address =
            |server: &NameServerConfig| SocketAddr::new(server.ip, server.connections.first().map_or(53, |to| to.port));
        let addresses: Vec<SocketAddr> = servers.iter().map(address).collect();
        // Other programs change resolv.conf: servers from there are believed only on this machine.
        let are_near = || addresses.iter().all(|server| server.ip().to_canonical().is_loopback());
        let trusts_ad = settings.trust_ad && (!settings.servers.is_empty() || are_near());
        let config = ResolverConfig::from_name_servers(servers);
        let builder = Resolver::builder_with_config(config, AskingProvider::new(trusts_ad));
        let resolver = builder.with_options(options).build().map_err(system)?;
        Ok(Client {
            resolver,
            trusts_ad,
            servers: addresses,
            slots: Slots::new(settings.questions_max),
            time,
            meters: Arc::default(),
            settings: settings.clone(),
        })
    }

    /// True if the bit AD is asked for and believed.
    pub(super) fn trusts_ad(&self) -> bool {
        self.trusts_ad
    }

    pub(super) fn slots(&self) -> &Arc<Slots> {
        &self.slots
    }

    /// Queries one type of a name, without its final dot, in a slot of [`slots`](Self::slots). Labels may contain any
    /// octets.
    pub(super) async fn ask(&self, name: &str, kind: RecordType, slot: Slot) -> Result<Records, Failure> {
        // Made of labels it is absolute: the search list of the system is not used.
        let Ok(name) = Name::from_labels(name.split('.').map(str::as_bytes)) else { return Err(Failure::NotAName) };
        let begun = Instant::now();
        let answer = self.ask_in(slot, name, kind).await;
        let outcome = match &answer {
            Ok(_) => Outcome::Answer,
            Err(Failure::NoSuchName { .. }) => Outcome::NoSuchName,
            Err(Failure::NoData { .. }) => Outcome::NoData,
            Err(Failure::Timeout(_)) => Outcome::Timeout,
            Err(Failure::Unanswered(_) | Failure::NotAName) => Outcome::Failure,
        };
        self.meters.asked(kind, outcome, begun.elapsed());
        answer
    }

    /// Counts a look-up with this cache state, and returns the expected pace of its query.
    pub(super) fn looked_up<T>(&self, last: Option<(Result<T, DnsError>, Instant)>) -> Pace {
        self.meters.looked_up(last.as_ref().is_some_and(|(_, until)| Instant::now() < *until));
        pace_of(last)
    }

    pub(super) fn positive_until(&self, ttl_secs: u32) -> Instant {
        self.until(u64::from(ttl_secs).clamp(self.settings.ttl_min_secs, self.settings.ttl_max_secs))
    }

    pub(super) fn negative_until(&self, failure: &Failure) -> Instant {
        match failure {
            Failure::NoSuchName { ttl_secs } | Failure::NoData { ttl_secs } => {
                let bounds = (self.settings.ttl_min_secs, self.settings.negative_ttl_max_secs);
                self.until(u64::from(*ttl_secs).clamp(bounds.0, bounds.1))
            }
            Failure::Timeout(_) | Failure::Unanswered(_) | Failure::NotAName => self.until(self.settings.failure_secs),
        }
    }

    /// The expiry of an answer that is not from DNS.
    pub(super) fn latest(&self) -> Instant {
        self.until(self.settings.ttl_max_secs)
    }

    fn until(&self, secs: u64) -> Instant {
        Instant::now() + Duration::from_secs(secs)
    }

    async fn ask_in(&self, slot: Slot, name: Name, kind: RecordType) -> Result<Records, Failure> {
        match slot.ask(self.time, self.resolver.lookup(name.clone(), kind)).await {
            Ok(Ok(lookup)) => {
                // Records that are not the ones asked for, or without content.
                let found = Some(records(&lookup, name, kind)).filter(|found| !found.data.is_empty());
                let found = found.map(|found| Records { is_secure: found.is_secure && self.trusts_ad, ..found });
                found.ok_or_else(|| Failure::Unanswered("an answer without the records".to_owned()))
            }
            Ok(Err(error)) => Err(failure(error)),
            Err(why) => Err(Failure::Timeout(why)),
        }
    }
}

/// A name without an answer the last time starts as slow.
pub(super) fn pace_of<T>(last: Option<(Result<T, DnsError>, Instant)>) -> Pace {
    match last {
        Some((Err(DnsError::Unanswered { .. }), _)) => Pace::Slow,
        _ => Pace::Quick,
    }
}

fn server(address: &SocketAddr) -> NameServerConfig {
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    let with_port = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    server.connections = server.connections.into_iter().map(with_port).collect();
    server
}

/// The records of the name, or of the end of its CNAME chain. Others in the answer are ignored.
fn records(lookup: &Lookup, mut owner: Name, kind: RecordType) -> Records {
    let answers = lookup.answers();
    // The bit holds for the whole message. Where hickory has followed an alias by a second question, only that one's
    // message is left.
    let asked = lookup.message().queries.first();
    let is_secure = lookup.message().metadata.authentic_data && asked.is_some_and(|query| *query.name() == owner);
    let mut alias = None;
    let mut ttl_secs = u32::MAX;
    // A chain has no more links than the answer has records. An alias that is asked for itself is not followed.
    let links_max = if kind == RecordType::CNAME { 0 } else { answers.len() };
    for _ in 0..links_max {
        let link = answers.iter().find_map(|record| match &record.data {
            RData::CNAME(target) if record.name == owner => Some((target.0.clone(), record.ttl)),
            _ => None,
        });
        let Some((target, ttl)) = link else { break };
        owner = target.clone();
        alias = Some(target);
        ttl_secs = ttl_secs.min(ttl);
    }
    let found = answers.iter().filter(|record| record.name == owner && record.record_type() == kind);
    let data = found.inspect(|record| ttl_secs = ttl_secs.min(record.ttl)).map(|record| record.data.clone()).collect();
    Records { data, ttl_secs, alias, is_secure }
}

fn failure(error: NetError) -> Failure {
    match error {
        NetError::Dns(Negative::NoRecordsFound(none)) => {
            // Without an SOA it is not cached (RFC 2308 section 5); our minimum applies.
            let ttl_secs = none.negative_ttl.unwrap_or(0);
            match none.response_code {
                ResponseCode::NXDomain => Failure::NoSuchName { ttl_secs },
                // A server that does not ask others has sent us to the zone's servers.
                ResponseCode::NoError if none.soa.is_none() && none.ns.is_some() => {
                    Failure::Unanswered("a referral instead of an answer".to_owned())
                }
                ResponseCode::NoError => Failure::NoData { ttl_secs },
                code => Failure::Unanswered(code.to_string()),
            }
        }
        NetError::Dns(Negative::ResponseCode(code)) => Failure::Unanswered(code.to_string()),
        NetError::Timeout => Failure::Timeout("timeout"),
        other => Failure::Unanswered(other.to_string()),
    }
}
