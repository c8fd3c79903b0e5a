use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use posthaste_dns::{Addresses, DnsError, Resolver};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::{Association, DaneVerifier};

/// The demand of a host's TLSA records on connections to it (RFC 7672 section 2.2).
#[derive(Debug, Clone)]
pub enum Demand {
    /// No authenticated TLSA records.
    Nothing,
    /// TLS with any certificate: all records are unusable.
    Encrypted,
    /// TLS with a certificate that the records name.
    Verified {
        /// A rustls configuration that verifies by the records. Equal hosts and records share it.
        config: Arc<ClientConfig>,
        /// The name that has the records, for SNI.
        name: ServerName<'static>,
    },
}

/// Determines demands, and caches each host's configuration while its records are unchanged.
#[derive(Debug, Default)]
pub struct Dane(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// By host, and the names of the next-hop domain after blanks if they count.
    by_host: HashMap<String, Made>,
    /// Octets of all entries.
    octets: usize,
}

#[derive(Debug)]
struct Made {
    associations: Arc<[Association]>,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    is_misnamed: Arc<AtomicBool>,
}

impl Made {
    fn octets(&self) -> usize {
        MADE_OCTETS + self.associations.iter().map(Association::octets).sum::<usize>()
    }
}

impl Kept {
    /// Caches an entry within [`OCTETS_MAX`]; beyond it all others are dropped. Open connections keep their
    /// configuration.
    fn insert(&mut self, key: &str, made: Made) {
        if let Some(before) = self.by_host.remove(key) {
            self.octets -= before.octets();
        }
        let octets = made.octets();
        if self.octets + octets > OCTETS_MAX {
            *self = Self::default();
        }
        self.octets += octets;
        self.by_host.insert(key.to_owned(), made);
    }
}

impl Dane {
    /// The demand for connections to a port of a mail host with these addresses. The host list must be
    /// [secure](posthaste_dns::MailDestination::is_secure), too.
    ///
    /// The records of an alias are at its target, else at its own name (RFC 7672 section 2.2.3).
    ///
    /// With `next_hop` (the recipient's domain and its alias target), DANE-TA also accepts certificates with these
    /// names (section 3.2.2). Such a connection serves mail of that domain only, so leave `next_hop` out until
    /// [`wants_next_hop`](Self::wants_next_hop).
    ///
    /// # Errors
    /// [`DnsError::Unanswered`]: the host must not be connected to now.
    pub async fn demand(
        &self,
        resolver: &Resolver,
        host: &str,
        port: u16,
        addresses: &Addresses,
        next_hop: &[Arc<str>],
    ) -> Result<Demand, DnsError> {
        if !addresses.may_have_tlsa() {
            return Ok(Demand::Nothing);
        }
        // The end of an alias counts only if all on the way to it is secure.
        let alias = addresses.alias().filter(|_| addresses.is_secure()).map(|alias| &**alias);
        for base in alias.into_iter().chain([host]) {
            let records = resolver.tlsa(base, port).await?;
            if records.is_empty() {
                continue;
            }
            let associations = Association::usable(&records);
            if associations.is_empty() {
                return Ok(Demand::Encrypted);
            }
            let name = ServerName::try_from(base.to_owned()).map_err(|error| {
                let why = format!("no name for TLS, and it has TLSA records: {error}");
                DnsError::Unanswered { name: base.to_owned(), why }
            })?;
            return Ok(self.verified(host, name, associations, next_hop));
        }
        Ok(Demand::Nothing)
    }

    /// True if a host's certificate, of a recorded authority, lacked the host's names. It may have names of the
    /// domains that the host receives mail for.
    pub fn wants_next_hop(&self, host: &str) -> bool {
        let kept = self.0.lock().expect("no panic with the lock");
        kept.by_host.get(host).is_some_and(|made| made.is_misnamed.load(Ordering::Relaxed))
    }

    fn verified(
        &self,
        host: &str,
        name: ServerName<'static>,
        associations: Vec<Association>,
        next_hop: &[Arc<str>],
    ) -> Demand {
        let key = next_hop.iter().fold(host.to_owned(), |key, name| key + " " + name);
        let mut kept = self.0.lock().expect("no panic with the lock");
        let is_same = |made: &&Made| *made.associations == *associations && made.name == name;
        if let Some(made) = kept.by_host.get(&key).filter(is_same) {
            return Demand::Verified { config: Arc::clone(&made.config), name };
        }
        let read = |name: &str| ServerName::try_from(name.to_owned()).ok();
        let names =
            read(host).into_iter().chain([name.clone()]).chain(next_hop.iter().filter_map(|name| read(name))).collect();
        let associations: Arc<[Association]> = associations.into();
        let verifier = DaneVerifier::new(Arc::clone(&associations), names);
        let is_misnamed = verifier.is_misnamed();
        let config = Arc::new(verifier.into_config().expect("ring has the usual versions"));
        kept.insert(&key, Made { associations, config: Arc::clone(&config), name: name.clone(), is_misnamed });
        Demand::Verified { config, name }
    }
}

/// Limit of the cache: 10,000 hosts with a few records each.
const OCTETS_MAX: usize = 20 << 20;
/// Octets of an entry without its records: names and the rustls configuration.
const MADE_OCTETS: usize = 1800;

#[cfg(test)]
mod tests {
    use posthaste_dns::Settings;
    use posthaste_dns_stub::{Kind, Server, Zone};

    use super::*;

    const MX: &str = "mx.example";

    fn resolver(server: &Server) -> Resolver {
        // Records change at once.
        let settings = Settings {
            servers: vec![server.address()],
            trust_ad: true,
            ttl_min_secs: 0,
            timeout_secs: 90,
            ..Settings::default()
        };
        Resolver::new(&settings).unwrap()
    }

    fn zone() -> Zone {
        Zone::default().ttl(0).signed("example").a(MX, "192.0.2.1".parse().unwrap()).cname("alias.example", MX)
    }

    async fn demand(dane: &Dane, resolver: &Resolver, host: &str) -> Result<Demand, DnsError> {
        dane.demand(resolver, host, 25, &resolver.addresses(host).await.unwrap(), &[]).await
    }

    fn config(demand: Result<Demand, DnsError>) -> (Arc<ClientConfig>, String) {
        match demand {
            Ok(Demand::Verified { config, name }) => (config, name.to_str().into_owned()),
            other => panic!("{other:?}"),
        }
    }

    fn ee(zone: Zone, name: &str, octet: u8) -> Zone {
        zone.tlsa(&format!("_25._tcp.{name}"), [3, 1, 1], &[octet; 32])
    }

    #[tokio::test]
    async fn equal_records_give_the_same_configuration_and_others_another() {
        let server =
            Server::start(ee(ee(zone(), MX, 1), "mx2.example", 1).a("mx2.example", "192.0.2.2".parse().unwrap()));
        let (resolver, dane) = (resolver(&server), Dane::default());
        let (first, name) = config(demand(&dane, &resolver, MX).await);
        assert_eq!(name, MX);
        assert!(Arc::ptr_eq(&first, &config(demand(&dane, &resolver, MX).await).0));
        assert!(!Arc::ptr_eq(&first, &config(demand(&dane, &resolver, "mx2.example").await).0), "another host");
        server.change(ee(zone(), MX, 2));
        assert!(!Arc::ptr_eq(&first, &config(demand(&dane, &resolver, MX).await).0));
        server.change(zone());
        assert!(matches!(demand(&dane, &resolver, MX).await, Ok(Demand::Nothing)));
    }

    #[test]
    fn demands_are_kept_within_their_octets() {
        let dane = Dane::default();
        let associations = |octet: u8| {
            let record = posthaste_dns::TlsaRecord { usage: 3, selector: 1, matching: 1, data: [octet; 32].into() };
            vec![Association::usable(&[record]).remove(0); 100]
        };
        let name = || ServerName::try_from(MX).unwrap();
        let octets = || {
            let kept = dane.0.lock().unwrap();
            assert_eq!(kept.by_host.values().map(Made::octets).sum::<usize>(), kept.octets);
            kept.octets
        };
        let of_one = MADE_OCTETS + 100 * (size_of::<Association>() + 32);
        let most = OCTETS_MAX / of_one;
        for number in 0..most {
            dane.verified(&format!("mx{number}.example"), name(), associations(1), &[]);
        }
        assert_eq!(octets(), most * of_one);
        // Other records of a known host take the place of the old ones.
        dane.verified("mx0.example", name(), associations(2), &[]);
        assert_eq!(octets(), most * of_one);
        dane.verified("one-more.example", name(), associations(1), &[]);
        assert_eq!((octets(), dane.0.lock().unwrap().by_host.len()), (of_one, 1));
    }

    #[tokio::test]
    async fn each_next_hop_has_a_configuration_of_its_own() {
        let server = Server::start(ee(zone(), MX, 1));
        let (resolver, dane) = (resolver(&server), Dane::default());
        let addresses = resolver.addresses(MX).await.unwrap();
        let of = async |names: &[&str]| {
            let next_hop: Vec<Arc<str>> = names.iter().map(|name| (*name).into()).collect();
            config(dane.demand(&resolver, MX, 25, &addresses, &next_hop).await).0
        };
        let made =
            [of(&[]).await, of(&["a.example"]).await, of(&["b.example"]).await, of(&["a.example", "b.example"]).await];
        for (index, one) in made.iter().enumerate() {
            assert!(made[..index].iter().all(|other| !Arc::ptr_eq(one, other)), "{index}");
        }
        assert!(Arc::ptr_eq(&made[1], &of(&["a.example"]).await));
        assert!(!dane.wants_next_hop(MX), "nobody has connected");
    }

    #[tokio::test]
    async fn unusable_records_demand_tls_and_no_answer_forbids_the_host() {
        let unusable = zone().tlsa("_25._tcp.mx.example", [1, 1, 1], &[1; 32]);
        let server = Server::start(unusable.tlsa("_25._tcp.mx.example", [3, 1, 9], &[1; 32]));
        let (resolver, dane) = (resolver(&server), Dane::default());
        assert!(matches!(demand(&dane, &resolver, MX).await, Ok(Demand::Encrypted)));
        server.change(zone().fails_for("_25._tcp.mx.example", Kind::Tlsa));
        assert!(matches!(demand(&dane, &resolver, MX).await, Err(DnsError::Unanswered { .. })));
    }

    #[tokio::test]
    async fn an_alias_has_the_records_of_its_end_and_else_its_own() {
        let server = Server::start(ee(ee(zone(), MX, 1), "alias.example", 2));
        let (resolver, dane) = (resolver(&server), Dane::default());
        assert_eq!(config(demand(&dane, &resolver, "alias.example").await).1, MX);
        server.change(ee(zone(), "alias.example", 2));
        assert_eq!(config(demand(&dane, &resolver, "alias.example").await).1, "alias.example");
    }

    #[tokio::test]
    async fn a_signed_alias_of_an_unsigned_name_has_its_own_records() {
        let zone = Zone::default().ttl(0).signed("example").cname("out.example", "mx.plain.test");
        let zone = zone.a("mx.plain.test", "192.0.2.1".parse().unwrap());
        let server = Server::start(ee(ee(zone.clone(), "out.example", 1), "mx.plain.test", 2));
        let (resolver, dane) = (resolver(&server), Dane::default());
        assert_eq!(config(demand(&dane, &resolver, "out.example").await).1, "out.example");
        assert_eq!(server.asked("_25._tcp.mx.plain.test", Kind::Tlsa), 0);
        assert!(matches!(demand(&dane, &resolver, "mx.plain.test").await, Ok(Demand::Nothing)));
        server.change(zone.fails_for("out.example", Kind::Cname));
        let unknown = resolver.addresses("out.example").await;
        assert!(matches!(unknown, Err(DnsError::Unanswered { .. })), "{unknown:?}");
    }

    #[tokio::test]
    async fn records_of_a_host_without_dnssec_are_not_asked_for() {
        let server = Server::start(ee(Zone::default().a(MX, "192.0.2.1".parse().unwrap()), MX, 1));
        let (resolver, dane) = (resolver(&server), Dane::default());
        assert!(matches!(demand(&dane, &resolver, MX).await, Ok(Demand::Nothing)));
        assert_eq!(server.asked("_25._tcp.mx.example", Kind::Tlsa), 0);
    }
}
