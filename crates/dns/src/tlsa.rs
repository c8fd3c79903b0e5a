use std::sync::Arc;

use hickory_resolver::proto::rr::{RData, RecordType};
use tokio::time::Instant;

use super::cache::ANSWER_BYTES_MAX;
use super::client::{Client, Failure};
use super::slots::Asker;
use super::{DnsError, Pace};

/// A TLSA record (RFC 6698 section 2.1), with its numbers as received.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TlsaRecord {
    /// Certificate usage.
    pub usage: u8,
    /// Selector.
    pub selector: u8,
    /// Matching type.
    pub matching: u8,
    /// Certificate association data.
    pub data: Box<[u8]>,
}

/// Queries the records of a name, and returns them sorted, with their expiry.
pub(super) async fn look_up(client: &Client, pace: Pace, name: &str) -> (Result<Arc<[TlsaRecord]>, DnsError>, Instant) {
    let unanswered = |why: String| Err(DnsError::Unanswered { name: name.to_owned(), why });
    let slot = client.slots().slot(pace, Asker::Connection).await;
    match client.ask(name, RecordType::TLSA, slot).await {
        Ok(records) => {
            let until = client.positive_until(records.ttl_secs);
            let mut found: Vec<TlsaRecord> =
                if records.is_secure { records.data.iter().filter_map(record).collect() } else { Vec::new() };
            // A record may have no data, and there may be thousands.
            let octets = |record: &TlsaRecord| size_of::<TlsaRecord>() + record.data.len();
            if found.iter().map(octets).sum::<usize>() > ANSWER_BYTES_MAX {
                return (unanswered(format!("an answer of more than {ANSWER_BYTES_MAX} octets")), until);
            }
            // DNS has no order, and whoever compares two answers wants the same.
            found.sort_unstable();
            found.dedup();
            (Ok(found.into()), until)
        }
        Err(failure) => {
            let until = client.negative_until(&failure);
            // In a signed zone the resolver has seen the proof that there are none. A host whose name leaves no room
            // for the labels in front cannot have any.
            let is_none = matches!(failure, Failure::NoData { .. } | Failure::NoSuchName { .. } | Failure::NotAName);
            let found = if is_none { Ok(Arc::default()) } else { unanswered(failure.unanswered().unwrap_or_default()) };
            (found, until)
        }
    }
}

pub(super) fn record(data: &RData) -> Option<TlsaRecord> {
    let RData::TLSA(tlsa) = data else { return None };
    let usage = tlsa.cert_usage.into();
    let selector = tlsa.selector.into();
    let matching = tlsa.matching.into();
    Some(TlsaRecord { usage, selector, matching, data: tlsa.cert_data.clone().into() })
}

#[cfg(test)]
mod tests {
    use posthaste_dns_stub::{Kind, Server, Zone};

    use super::*;
    use crate::{Resolver, Settings};

    const MX: &str = "mx.signed.example";
    const NAME: &str = "_25._tcp.mx.signed.example";

    fn zone() -> Zone {
        let address = "192.0.2.1".parse().unwrap();
        Zone::default()
            .signed("signed.example")
            .mx("signed.example", 10, MX)
            .a(MX, address)
            .mx("plain.example", 10, MX)
            .a("mx.plain.example", address)
            .a("bare.signed.example", address)
            .a("bare.plain.example", address)
            .cname("alias.signed.example", MX)
            .cname("www.signed.example", "signed.example")
            .cname("out.signed.example", "mx.plain.example")
            .cname("in.plain.example", MX)
    }

    fn resolver(server: &Server, trust_ad: bool) -> Resolver {
        let settings = Settings { servers: vec![server.address()], trust_ad, timeout_secs: 90, ..Settings::default() };
        Resolver::new(&settings).unwrap()
    }

    #[tokio::test]
    async fn a_host_is_secure_only_if_all_names_to_it_are() {
        let server = Server::start(zone());
        let (trusting, other) = (resolver(&server, true), resolver(&server, false));
        for (domain, expected) in [("signed.example", true), ("plain.example", false), ("bare.signed.example", true)] {
            assert_eq!(trusting.destination(domain).await.unwrap().is_secure, expected, "{domain}");
            assert!(!other.destination(domain).await.unwrap().is_secure, "{domain}");
        }
        for (domain, alias) in [("signed.example", None), ("www.signed.example", Some("signed.example"))] {
            let found = trusting.destination(domain).await.unwrap();
            assert_eq!((found.is_secure, found.alias.as_deref(), &*found.domain), (true, alias, domain));
        }
        for (host, expected, alias) in [
            (MX, true, None),
            ("mx.plain.example", false, None),
            // A lack of MX records that nobody has validated is as good as these.
            ("bare.plain.example", false, None),
            ("alias.signed.example", true, Some(MX)),
            ("out.signed.example", false, Some("mx.plain.example")),
            ("in.plain.example", false, Some(MX)),
        ] {
            let found = trusting.addresses(host).await.unwrap();
            assert_eq!((found.is_secure(), found.alias().map(|alias| &**alias)), (expected, alias), "{host}");
            assert!(!other.addresses(host).await.unwrap().is_secure(), "{host}");
        }
        assert!(!trusting.destination("[192.0.2.1]").await.unwrap().is_secure);
        assert!(!trusting.fixed(MX).unwrap().is_secure);
    }

    #[tokio::test]
    async fn records_come_once_in_one_order_and_only_if_they_are_secure() {
        let zone = zone()
            .tlsa(NAME, [3, 1, 1], &[7; 32])
            .tlsa(NAME, [2, 0, 2], &[8; 64])
            .tlsa(NAME, [255, 9, 77], &[])
            .tlsa(NAME, [3, 1, 1], &[7; 32])
            .tlsa("_25._tcp.mx.plain.example", [3, 1, 1], &[7; 32]);
        let server = Server::start(zone);
        let resolver = resolver(&server, true);
        for _ in 0..2 {
            let found = resolver.tlsa(MX, 25).await.unwrap();
            let numbers: Vec<_> = found.iter().map(|of| (of.usage, of.selector, of.matching, of.data.len())).collect();
            assert_eq!(numbers, [(2, 0, 2, 64), (3, 1, 1, 32), (255, 9, 77, 0)]);
        }
        assert_eq!(server.asked(NAME, Kind::Tlsa), 1);
        assert_eq!(resolver.tlsa(MX, 465).await.unwrap().len(), 0, "another port");
        assert_eq!(resolver.tlsa("mx.plain.example", 25).await.unwrap().len(), 0, "nobody has validated them");
        let long = ["a".repeat(60).as_str(); 4].join(".") + ".example";
        assert_eq!(resolver.tlsa(&long, 25).await.unwrap().len(), 0, "no such name can be");
    }

    #[tokio::test]
    async fn resolvers_beyond_this_machine_are_told_if_they_are_believed() {
        let servers = ["127.0.0.1:53", "192.0.2.53:53", "[::1]:53", "[::ffff:127.0.0.1]:53"];
        let servers: Vec<_> = servers.iter().map(|server| server.parse().unwrap()).collect();
        for (trust_ad, expected) in [(true, vec!["192.0.2.53"]), (false, vec![])] {
            let settings = Settings { servers: servers.clone(), trust_ad, ..Settings::default() };
            let resolver = Resolver::new(&settings).unwrap();
            let far: Vec<_> = resolver.believed_from_afar().map(|server| server.to_string()).collect();
            assert_eq!(far, expected);
        }
    }

    #[tokio::test]
    async fn an_answer_that_cannot_be_had_or_read_is_no_lack_of_records() {
        let numbers = (0..=255).flat_map(|usage| [[usage, 0, 0], [usage, 0, 1]]);
        let many = numbers.fold(zone(), |zone, numbers| zone.tlsa(NAME, numbers, &[]));
        for zone in [
            zone().fails_for(NAME, Kind::Tlsa),
            zone().tlsa_octets(NAME, &[]),
            zone().tlsa_octets(NAME, &[3, 1]),
            zone().tlsa(NAME, [3, 0, 0], &vec![1; ANSWER_BYTES_MAX]),
            many,
        ] {
            let server = Server::start(zone);
            let found = resolver(&server, true).tlsa(MX, 25).await;
            assert!(matches!(&found, Err(DnsError::Unanswered { name, .. }) if name == NAME), "{found:?}");
        }
    }
}
