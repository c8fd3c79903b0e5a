use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_resolver::proto::op::{Edns, Message, Query};
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::zone_reply::{Referral, ZoneReply, host_text};
use crate::{DnsError, Resolver, names};

/// Queries the authoritative servers of each name. Answers are current, and no cache learns that a name is missing.
///
/// A [`Resolver`] names the servers of the top-level domain; from there delegations and aliases are followed, within
/// bounds. UDP first, TCP if an answer is truncated. DNSSEC is not validated. Zones are cached during the object's
/// life, which should be one round of queries.
#[derive(Debug)]
pub struct OwnServers<'a> {
    resolver: &'a Resolver,
    port: u16,
    /// Timeout of one query, including all referrals.
    time: Duration,
    zones: Mutex<HashMap<String, Arc<Zone>>>,
    /// A server has answered for its zone.
    is_heard: AtomicBool,
    is_cut_off: AtomicBool,
}

/// A zone with the addresses of its servers.
#[derive(Debug)]
struct Zone {
    name: String,
    servers: Vec<(String, IpAddr)>,
}

/// Why a server gave no answer.
#[derive(Debug)]
pub(crate) enum NoReply {
    /// No answer in time: another try may help.
    Silence,
    /// The server does not answer for this zone, or not in DNS.
    Useless(String),
}

impl<'a> OwnServers<'a> {
    /// Servers are asked at `port`, 53 outside of tests. A question has the time of the resolver's settings.
    pub fn new(resolver: &'a Resolver, port: u16) -> Self {
        let time = Duration::from_secs(resolver.settings().timeout_secs);
        let (zones, is_heard, is_cut_off) = Default::default();
        Self { resolver, port, time, zones, is_heard, is_cut_off }
    }

    /// The resolver that named the first servers.
    pub fn resolver(&self) -> &'a Resolver {
        self.resolver
    }

    /// True if no server has answered for its zone: port 53 of other hosts is blocked or intercepted.
    pub fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Relaxed)
    }

    /// The names of the servers of the zones that were asked, of the longest zone above `domain`.
    pub fn servers_of(&self, domain: &str) -> Vec<String> {
        let zones = self.zones.lock().expect("no thread panics with the lock");
        let zone = suffixes(domain).find_map(|suffix| zones.get(suffix));
        let mut names: Vec<String> =
            zone.iter().flat_map(|zone| zone.servers.iter().map(|(name, _)| name.clone())).collect();
        names.dedup();
        names
    }

    /// The records of `name`, or of its alias target; empty if the name exists without them.
    ///
    /// # Errors
    /// [`DnsError::NotADomain`], [`DnsError::NoSuchDomain`] or [`DnsError::Unanswered`].
    pub(crate) async fn records(&self, name: &str, kind: RecordType) -> Result<Vec<RData>, DnsError> {
        let asked = names::domain(name).ok_or_else(|| DnsError::NotADomain(name.chars().take(100).collect()))?;
        let unanswered = |why: String| DnsError::Unanswered { name: asked.clone(), why };
        if self.is_cut_off() {
            return Err(unanswered("port 53 of other hosts does not answer".to_owned()));
        }
        let found = timeout(self.time, self.follow(&asked, kind)).await;
        let found = found.unwrap_or_else(|_| Err(unanswered("timeout".to_owned())));
        if matches!(found, Err(DnsError::Unanswered { .. })) && !self.is_heard.load(Ordering::Relaxed) {
            self.is_cut_off.store(true, Ordering::Relaxed);
        }
        found
    }

    async fn follow(&self, asked: &str, kind: RecordType) -> Result<Vec<RData>, DnsError> {
        let mut name = asked.to_owned();
        for _ in 0..ALIASES_MAX {
            match self.ask(&name, kind).await.map_err(|why| DnsError::Unanswered { name: name.clone(), why })? {
                ZoneReply::Records(records) => return Ok(records),
                ZoneReply::NoSuchName => return Err(DnsError::NoSuchDomain(name)),
                ZoneReply::Alias(target) => name = target,
                ZoneReply::Referral(_) => unreachable!("`ask` follows them"),
            }
        }
        Err(DnsError::Unanswered { name: asked.to_owned(), why: format!("more than {ALIASES_MAX} aliases in a row") })
    }

    /// Follows referrals from the nearest known zone.
    async fn ask(&self, name: &str, kind: RecordType) -> Result<ZoneReply, String> {
        let mut zone = self.nearest(name).await?;
        for _ in 0..REFERRALS_MAX {
            match self.ask_zone(&zone, name, kind).await? {
                ZoneReply::Referral(referral) => zone = self.enter(referral).await?,
                reply => return Ok(reply),
            }
        }
        Err(format!("more than {REFERRALS_MAX} delegations"))
    }

    async fn nearest(&self, name: &str) -> Result<Arc<Zone>, String> {
        let known = {
            let zones = self.zones.lock().expect("no thread panics with the lock");
            suffixes(name).find_map(|suffix| zones.get(suffix).cloned())
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let suffixes: Vec<&str> = suffixes(name).collect();
        // The shortest is the top-level domain; a private one may begin further down.
        for suffix in suffixes.into_iter().rev().take(FIRST_ZONES_MAX) {
            let Ok(records) = self.resolver.records(suffix, RecordType::NS).await else { continue };
            let hosts: Vec<String> = records.iter().filter_map(host_text).collect();
            if !hosts.is_empty() {
                let hosts = hosts.into_iter().map(|host| (host, Vec::new())).collect();
                return self.enter(Referral { zone: suffix.to_owned(), hosts }).await;
            }
        }
        Err("no name servers are known".to_owned())
    }

    /// Finds the addresses of a zone's servers: glue of the referral, else by the resolver.
    async fn enter(&self, referral: Referral) -> Result<Arc<Zone>, String> {
        let Referral { zone: name, mut hosts } = referral;
        hosts.truncate(HOSTS_MAX);
        let strategy = self.resolver.settings().ip;
        let of_host = |(host, addresses): &(String, Vec<IpAddr>)| {
            let usable = addresses.iter().filter(|address| strategy.allows(address) && names::is_usable(address));
            usable.map(|address| (host.clone(), *address)).collect::<Vec<_>>()
        };
        let mut servers: Vec<(String, IpAddr)> = hosts.iter().flat_map(of_host).collect();
        if servers.is_empty() {
            let look_up = async |(host, _): &(String, Vec<IpAddr>)| {
                let found = self.resolver.addresses(host).await;
                found.map(|found| found.all().iter().map(|address| (host.clone(), *address)).collect::<Vec<_>>())
            };
            let found = crate::join_all(hosts.iter().map(look_up)).await;
            servers = found.into_iter().flatten().flatten().collect();
        }
        if servers.is_empty() {
            let hosts: Vec<&str> = hosts.iter().map(|(host, _)| &**host).collect();
            return Err(format!("no server of {name} has an address: {}", hosts.join(", ")));
        }
        // Many hosts have no way to IPv6.
        servers.sort_by_key(|(_, address)| !address.is_ipv4());
        servers.truncate(SERVERS_MAX);
        let zone = Arc::new(Zone { name: name.clone(), servers });
        self.zones.lock().expect("no thread panics with the lock").insert(name, Arc::clone(&zone));
        Ok(zone)
    }

    /// The first usable reply of the zone's servers. Silent ones are queried twice.
    async fn ask_zone(&self, zone: &Zone, name: &str, kind: RecordType) -> Result<ZoneReply, String> {
        let query = query(name, kind)?;
        let mut why = String::new();
        let mut left: Vec<&(String, IpAddr)> = zone.servers.iter().collect();
        for _ in 0..ROUNDS {
            let mut silent = Vec::new();
            for server in left {
                let (host, address) = server;
                match self.ask_server(*address, &query, &zone.name).await {
                    Ok(reply) => {
                        self.is_heard.store(true, Ordering::Relaxed);
                        return Ok(reply);
                    }
                    Err(NoReply::Silence) => {
                        why = format!("{host} ({address}): timeout");
                        silent.push(server);
                    }
                    Err(NoReply::Useless(reason)) => why = format!("{host} ({address}): {reason}"),
                }
            }
            left = silent;
        }
        Err(why)
    }

    async fn ask_server(&self, address: IpAddr, query: &Message, zone: &str) -> Result<ZoneReply, NoReply> {
        let server = SocketAddr::new(address, self.port);
        let octets = query.to_vec().map_err(|error| NoReply::Useless(error.to_string()))?;
        let time = (self.time / 5).min(TRY_TIME_MAX);
        let mut reply = timeout(time, over_udp(server, &octets, query)).await.map_err(|_| NoReply::Silence)??;
        if reply.metadata.truncation {
            reply = timeout(time, over_tcp(server, &octets, query)).await.map_err(|_| NoReply::Silence)??;
        }
        ZoneReply::read(&reply, zone).map_err(NoReply::Useless)
    }
}

/// `name` itself and the names above it, without the root.
fn suffixes(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| name.split_once('.').map(|(_, above)| above))
}

fn query(name: &str, kind: RecordType) -> Result<Message, String> {
    let name = Name::from_ascii(format!("{name}.")).map_err(|_| "not a name of DNS".to_owned())?;
    let mut query = Message::query();
    query.add_query(Query::query(name, kind));
    let mut edns = Edns::new();
    edns.set_max_payload(UDP_PAYLOAD);
    query.set_edns(edns);
    Ok(query)
}

pub(crate) async fn over_udp(server: SocketAddr, octets: &[u8], query: &Message) -> Result<Message, NoReply> {
    let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    // Connected: the kernel drops what comes from elsewhere, and tells of a closed port.
    socket.connect(server).await?;
    socket.send(octets).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Another id: somebody guesses, or a late answer to an earlier question.
        if buffer.get(..2) == octets.get(..2) {
            return read(&buffer[..length], query);
        }
    }
}

async fn over_tcp(server: SocketAddr, octets: &[u8], query: &Message) -> Result<Message, NoReply> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(octets.len()).expect("a question is short");
    stream.write_all(&[&length.to_be_bytes(), octets].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    read(&answer, query)
}

/// An answer to this very question.
fn read(octets: &[u8], query: &Message) -> Result<Message, NoReply> {
    let unreadable = || NoReply::Useless("an answer that cannot be read".to_owned());
    let answer = Message::from_vec(octets).map_err(|_| unreadable())?;
    let is_ours = answer.metadata.id == query.metadata.id && answer.queries == query.queries;
    if is_ours { Ok(answer) } else { Err(unreadable()) }
}

impl From<std::io::Error> for NoReply {
    fn from(error: std::io::Error) -> Self {
        NoReply::Useless(error.to_string())
    }
}

/// Aliases in a row that are followed.
const ALIASES_MAX: usize = 8;
/// Maximum referrals on the way to a zone; a name of `ip6.arpa` may need many.
const REFERRALS_MAX: usize = 16;
/// Labels from the top at which a first zone is searched.
const FIRST_ZONES_MAX: usize = 4;
const HOSTS_MAX: usize = 8;
const SERVERS_MAX: usize = 16;
const ROUNDS: usize = 2;
const TRY_TIME_MAX: Duration = Duration::from_secs(2);
/// Passes without fragments nearly everywhere.
const UDP_PAYLOAD: u16 = 1232;

#[cfg(test)]
mod tests;
