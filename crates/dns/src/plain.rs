use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use hickory_resolver::proto::rr::{RData, RecordType};
use tokio::time::Instant;

use super::cache::{ANSWER_BYTES_MAX, Cache};
use super::client::{Client, Failure};
use super::hosts::Hosts;
use super::names::reverse_name;
use super::slots::Asker;
use super::zone_reply::{address, host_text, name_text, text};
use super::{DnsError, Pace};

/// Plain DNS records, for checks of mail: no implicit MX, no choice of addresses, no filtered hosts.
///
/// Labels may contain any octets. An existing name without such records has an empty answer.
#[derive(Clone, Copy)]
pub struct PlainLookup<'a> {
    client: &'a Client,
    hosts: &'a Hosts,
    known: &'a Cache<Result<Arc<[String]>, DnsError>>,
    asker: Asker<'a>,
}

impl<'a> PlainLookup<'a> {
    pub(super) fn new(
        client: &'a Client,
        hosts: &'a Hosts,
        known: &'a Cache<Result<Arc<[String]>, DnsError>>,
        asker: Asker<'a>,
    ) -> Self {
        Self { client, hosts, known, asker }
    }

    /// The TXT records, the strings of each joined without a blank (RFC 7208 section 3.3). Octets that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`DnsError::NoSuchDomain`], or [`DnsError::Unanswered`]; [`DnsError::NotADomain`] for a name that DNS cannot be asked for.
    pub async fn texts(self, name: &str) -> Result<Arc<[String]>, DnsError> {
        self.get(name, RecordType::TXT).await
    }

    /// The addresses of one family, A or AAAA. Addresses in the configuration take precedence over DNS.
    ///
    /// # Errors
    /// As [`texts`](Self::texts).
    pub async fn addresses(self, name: &str, is_ipv6: bool) -> Result<Vec<IpAddr>, DnsError> {
        if let Some(fixed) = self.hosts.get(&name.to_ascii_lowercase()) {
            return Ok(fixed.iter().copied().filter(|address| address.is_ipv6() == is_ipv6).collect());
        }
        let found = self.get(name, if is_ipv6 { RecordType::AAAA } else { RecordType::A }).await?;
        Ok(found.iter().filter_map(|address| address.parse().ok()).collect())
    }

    /// The hosts of the MX records, the preferred first, without the root of a null MX (RFC 7505).
    ///
    /// # Errors
    /// As [`texts`](Self::texts).
    pub async fn mail_hosts(self, name: &str) -> Result<Vec<String>, DnsError> {
        Ok(self.get(name, RecordType::MX).await?.to_vec())
    }

    /// The names of an address (PTR).
    ///
    /// # Errors
    /// As [`texts`](Self::texts).
    pub async fn names(self, address: IpAddr) -> Result<Vec<String>, DnsError> {
        Ok(self.get(&reverse_name(address), RecordType::PTR).await?.to_vec())
    }

    async fn get(self, name: &str, kind: RecordType) -> Result<Arc<[String]>, DnsError> {
        let kind_name: &str = kind.into();
        let mut key = String::with_capacity(kind_name.len() + 1 + name.len());
        key.extend([kind_name, " ", name]);
        key.make_ascii_lowercase();
        if let Some(known) = self.known.known(&key, Instant::now()) {
            self.client.meters.looked_up(true);
            return known;
        }
        // In a box: a question takes some KiB, which callers of a known answer need not carry.
        Box::pin(async move {
            let name = &key[kind_name.len() + 1..];
            let pace = self.client.looked_up(self.known.last(&key));
            self.known.get(&key, Instant::now(), self.look_up(pace, name, kind)).await
        })
        .await
    }

    async fn look_up(self, pace: Pace, name: &str, kind: RecordType) -> (Result<Arc<[String]>, DnsError>, Instant) {
        let unanswered = |why: String| Err(DnsError::Unanswered { name: name.to_owned(), why });
        let client = self.client;
        let failure = match client.ask(name, kind, client.slots().slot(pace, self.asker).await).await {
            Ok(records) => {
                let found = texts_of(&records.data);
                let until = client.positive_until(records.ttl_secs);
                return if found.iter().map(String::len).sum::<usize>() <= ANSWER_BYTES_MAX {
                    (Ok(found.into()), until)
                } else {
                    (unanswered(format!("an answer of more than {ANSWER_BYTES_MAX} octets")), until)
                };
            }
            Err(failure) => failure,
        };
        let until = client.negative_until(&failure);
        let found = match failure {
            Failure::NoData { .. } => Ok(Arc::default()),
            Failure::NoSuchName { .. } => Err(DnsError::NoSuchDomain(name.to_owned())),
            Failure::NotAName => Err(DnsError::NotADomain(name.chars().filter(|c| !c.is_control()).collect())),
            Failure::Timeout(why) => unanswered(why.to_owned()),
            Failure::Unanswered(why) => unanswered(why),
        };
        (found, until)
    }
}

impl fmt::Debug for PlainLookup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainLookup").field("asker", &self.asker).finish_non_exhaustive()
    }
}

/// TXT records, addresses and hosts as text. The answer contains one type.
fn texts_of(records: &[RData]) -> Vec<String> {
    let mut mail_hosts: Vec<_> = records
        .iter()
        .filter_map(|data| match data {
            RData::MX(mx) => Some((mx.preference, name_text(&mx.exchange)?)),
            _ => None,
        })
        .collect();
    mail_hosts.sort();
    let others = records.iter().filter_map(|data| match data {
        RData::TXT(_) => text(data),
        RData::PTR(_) => host_text(data),
        _ => address(data).map(|address| address.to_string()),
    });
    mail_hosts.into_iter().map(|(_, host)| host).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use posthaste_dns_stub::{Kind, Server, Zone};

    use super::*;
    use crate::{Resolver, Settings};

    fn resolver(server: &Server) -> Resolver {
        let hosts = [("fixed.example".to_owned(), vec!["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()])];
        let settings = Settings { servers: vec![server.address()], hosts: hosts.into(), ..Settings::default() };
        Resolver::new(&settings).unwrap().with_own(["mx.here.example"], [])
    }

    #[tokio::test]
    async fn records_come_as_they_are_and_once() {
        let zone = Zone::default()
            .mx("a.example", 20, "second.example")
            .mx("a.example", 10, "mx.here.example")
            .a("a.example", "0.0.0.0".parse().unwrap())
            .a("a.example", "192.0.2.1".parse().unwrap())
            .aaaa("a.example", "2001:db8::1".parse().unwrap())
            .null_mx("none.example")
            .ptr("1.2.0.192.in-addr.arpa", "mx.a.example")
            .ptr("1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa", "six.a.example");
        let server = Server::start(zone);
        let resolver = resolver(&server);
        let plain = resolver.plain();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for _ in 0..2 {
            assert_eq!(plain.mail_hosts("A.example").await.unwrap(), ["mx.here.example", "second.example"]);
            assert_eq!(plain.mail_hosts("none.example").await.unwrap(), [""; 0]);
            let addresses = plain.addresses("a.example", false).await.unwrap();
            assert_eq!(addresses, [ip("0.0.0.0"), ip("192.0.2.1")], "all of them, also those that no mail goes to");
            assert_eq!(plain.addresses("a.example", true).await.unwrap(), [ip("2001:db8::1")]);
            assert_eq!(plain.addresses("Fixed.example", true).await.unwrap(), [ip("2001:db8::7")]);
            assert_eq!(plain.names(ip("::ffff:192.0.2.1")).await.unwrap(), ["mx.a.example"]);
            assert_eq!(plain.names(ip("2001:db8::1")).await.unwrap(), ["six.a.example"]);
        }
        assert_eq!(server.questions().len(), 6, "{:?}", server.questions());
    }

    #[tokio::test]
    async fn a_known_answer_is_there_at_once() {
        let server = Server::start(Zone::default().txt("a.example", "text").fails_for("broken.example", Kind::Txt));
        let resolver = resolver(&server);
        let at_once = |name: &'static str| {
            let mut asked = std::pin::pin!(resolver.of_strangers().texts(name));
            asked.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        for name in ["A.example", "no.example", "broken.example"] {
            assert!(at_once(name).is_pending(), "{name}");
            let found = resolver.of_strangers().texts(name).await;
            assert_eq!(at_once(name), Poll::Ready(found), "{name}");
        }
        assert_eq!(server.questions().iter().filter(|asked| asked.name == "a.example").count(), 1);
    }

    #[tokio::test]
    async fn a_check_of_known_answers_is_small() {
        let server = Server::start(Zone::default());
        let resolver = resolver(&server);
        let asked = size_of_val(&resolver.of_strangers().texts("a.example"));
        assert!(asked <= 512, "{asked}");
    }

    #[tokio::test]
    async fn the_ways_to_have_no_answer_are_told_apart() {
        let long = "x".repeat(ANSWER_BYTES_MAX + 1);
        let zone = Zone::default()
            .a("a.example", "192.0.2.1".parse().unwrap())
            .fails_for("broken.example", Kind::Txt)
            .txt("long.example", &long)
            .txt("full.example", &long[1..]);
        let server = Server::start(zone);
        let resolver = resolver(&server);
        let plain = resolver.plain();
        assert_eq!(plain.texts("a.example").await.unwrap().len(), 0, "void, and the name exists");
        assert_eq!(plain.texts("no.example").await, Err(DnsError::NoSuchDomain("no.example".to_owned())));
        assert!(matches!(plain.texts("broken.example").await, Err(DnsError::Unanswered { .. })));
        assert!(matches!(plain.texts("long.example").await, Err(DnsError::Unanswered { .. })));
        assert_eq!(plain.texts("full.example").await.unwrap()[0].len(), ANSWER_BYTES_MAX);
        for name in ["", "a..example", ".example", &"x".repeat(64), &["x"; 128].join(".")] {
            assert!(matches!(plain.texts(name).await, Err(DnsError::NotADomain(_))), "{name}");
        }
    }

    #[tokio::test]
    async fn labels_may_have_any_octets() {
        let names = ["a b=c.{x}.spf.example", "*.\u{fc}.example", "\"\\.example"];
        let zone = names.iter().fold(Zone::default(), |zone, name| zone.txt(name, "v=spf1 -all"));
        let server = Server::start(zone);
        let resolver = resolver(&server);
        for name in names {
            assert_eq!(resolver.plain().texts(name).await.unwrap()[..], ["v=spf1 -all"], "{name}");
        }
    }
}
