//! The records that a domain needs whose mail is received and sent here, and those that it has.

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::spf_merge::{SpfMergeError, check_lookups, spf_of, with_term};
use crate::{DnsError, Resolver};

/// A domain of ours as its records are to say it.
#[derive(Debug, Clone)]
pub struct OwnDomain {
    /// Its name in lower-case A-labels.
    pub domain: String,
    /// The host that receives and sends its mail.
    pub host: String,
    /// Selectors and records of its DKIM keys.
    pub keys: Vec<(String, String)>,
    /// The address that gets reports.
    pub reports: String,
    /// Services that clients find by SRV (RFC 6186, RFC 8314), such as `_imaps`, with their ports.
    pub services: Vec<(&'static str, u16)>,
}

/// A record that the domain needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedRecord {
    /// Its owner, without a final dot.
    pub name: String,
    /// Its type.
    pub kind: &'static str,
    /// Its data as a zone has them; of TXT the text, without quotes.
    pub value: String,
    /// The record that is there.
    pub found: FoundRecord,
}

/// The record that was found in place of a wanted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundRecord {
    /// The record itself.
    Same,
    /// No record.
    Nothing,
    /// Another one, which it replaces.
    Other(String),
    /// Not known: it was not asked for, or there was no answer.
    Unknown(String),
}

impl OwnDomain {
    /// The records, in the order in which they are to be read. Asks for those that may be there.
    ///
    /// # Errors
    /// The SPF records that are there cannot be merged with ours.
    pub async fn wanted(&self, resolver: &Resolver) -> Result<Vec<WantedRecord>, SpfMergeError> {
        let Self { domain, host, .. } = self;
        let mut all = Vec::new();
        let mx = self.mx(resolver).await;
        // While mail is received elsewhere, `mx` would not allow us to send.
        let is_received_here = !matches!(mx.found, FoundRecord::Other(_));
        all.push(mx);
        let term = if is_received_here { "mx".to_owned() } else { format!("a:{host}") };
        all.push(spf(resolver, domain, &term).await?);
        // Of notices, whose sender is empty: receivers then judge the host's name.
        if host != domain {
            all.push(spf(resolver, host, "a").await?);
        }
        for (selector, record) in &self.keys {
            let name = format!("{selector}._domainkey.{domain}");
            all.push(text(resolver, name, record.clone(), |found| found == record).await);
        }
        let reports = &self.reports;
        // A policy that is there is somebody's decision.
        let dmarc = format!("v=DMARC1; p=none; rua=mailto:{reports}");
        all.push(kept(resolver, format!("_dmarc.{domain}"), dmarc, "v=DMARC1").await);
        let tls = format!("v=TLSRPTv1; rua=mailto:{reports}");
        all.push(kept(resolver, format!("_smtp._tls.{domain}"), tls, "v=TLSRPTv1").await);
        for (service, port) in &self.services {
            let (name, value) = (format!("{service}._tcp.{domain}"), format!("0 1 {port} {host}."));
            all.push(WantedRecord {
                name,
                kind: "SRV",
                value,
                found: FoundRecord::Unknown("not asked for".to_owned()),
            });
        }
        all.extend(self.reverse(resolver).await);
        Ok(all)
    }

    async fn mx(&self, resolver: &Resolver) -> WantedRecord {
        let found = match resolver.destination(&self.domain).await {
            Ok(destination) if destination.implicit => FoundRecord::Nothing,
            Ok(destination) => {
                let hosts: Vec<&str> = destination.site.hosts().iter().map(|host| &*host.name).collect();
                if hosts.contains(&&*self.host) { FoundRecord::Same } else { FoundRecord::Other(hosts.join(" ")) }
            }
            Err(DnsError::NoSuchDomain(_)) => FoundRecord::Nothing,
            Err(DnsError::NullMx(_)) => FoundRecord::Other(".".to_owned()),
            Err(error) => FoundRecord::Unknown(error.to_string()),
        };
        WantedRecord { name: self.domain.clone(), kind: "MX", value: format!("10 {}.", self.host), found }
    }

    /// The names of the host's addresses.
    async fn reverse(&self, resolver: &Resolver) -> Vec<WantedRecord> {
        let addresses = resolver.addresses(&self.host).await;
        let addresses: Vec<IpAddr> = addresses.map(|found| found.all().to_vec()).unwrap_or_default();
        let record = |address: IpAddr| WantedRecord {
            name: reverse_name(address),
            kind: "PTR",
            value: format!("{}.", self.host),
            found: FoundRecord::Unknown("not asked for; the owner of the address sets it".to_owned()),
        };
        addresses.into_iter().map(record).collect()
    }
}

async fn spf(resolver: &Resolver, domain: &str, term: &str) -> Result<WantedRecord, SpfMergeError> {
    let texts = match resolver.texts(domain).await {
        Ok(texts) => Ok(texts),
        Err(DnsError::NoSuchDomain(_)) => Ok(Default::default()),
        Err(error) => Err(error.to_string()),
    };
    let known = texts.as_ref().map_or(&[][..], |texts| &texts[..]);
    let record = spf_of(domain, known)?;
    let value = with_term(record, term);
    check_lookups(resolver, domain, &value).await?;
    let found = match (record, &texts) {
        (_, Err(why)) => FoundRecord::Unknown(why.clone()),
        (None, _) => FoundRecord::Nothing,
        (Some(record), _) if record == value => FoundRecord::Same,
        (Some(record), _) => FoundRecord::Other(record.to_owned()),
    };
    Ok(WantedRecord { name: domain.to_owned(), kind: "TXT", value, found })
}

/// A text of a name that has no other.
async fn text(resolver: &Resolver, name: String, value: String, is_same: impl Fn(&str) -> bool) -> WantedRecord {
    let found = match resolver.texts(&name).await {
        Ok(texts) if texts.iter().any(|text| is_same(text)) => FoundRecord::Same,
        Ok(texts) => texts.first().map_or(FoundRecord::Nothing, |text| FoundRecord::Other(text.clone())),
        Err(DnsError::NoSuchDomain(_)) => FoundRecord::Nothing,
        Err(error) => FoundRecord::Unknown(error.to_string()),
    };
    WantedRecord { name, kind: "TXT", value, found }
}

/// As [`text`]; one of this version that is there stays.
async fn kept(resolver: &Resolver, name: String, value: String, version: &str) -> WantedRecord {
    let texts = resolver.texts(&name).await;
    let there = texts.ok().and_then(|texts| texts.iter().find(|text| text.starts_with(version)).cloned());
    text(resolver, name, there.unwrap_or(value), |text| text.starts_with(version)).await
}

/// The name under which an address has its own (RFC 1035 section 3.5, RFC 3596 section 2.5).
fn reverse_name(address: IpAddr) -> String {
    let mut name = String::new();
    match address {
        IpAddr::V4(address) => {
            address.octets().iter().rev().for_each(|octet| _ = write!(name, "{octet}."));
            name + "in-addr.arpa"
        }
        IpAddr::V6(address) => {
            address.octets().iter().rev().for_each(|octet| _ = write!(name, "{:x}.{:x}.", octet & 15, octet >> 4));
            name + "ip6.arpa"
        }
    }
}

impl WantedRecord {
    /// A line of a zone file (RFC 1035 section 5), TXT in strings of 255 octets at most.
    pub fn zone_line(&self) -> String {
        let Self { name, kind, value, .. } = self;
        match *kind {
            "TXT" => {
                let strings: Vec<String> = value.as_bytes().chunks(255).map(quoted).collect();
                format!("{name}. IN TXT {}", strings.join(" "))
            }
            kind => format!("{name}. IN {kind} {value}"),
        }
    }
}

fn quoted(octets: &[u8]) -> String {
    let mut out = String::from("\"");
    for octet in octets {
        match octet {
            b'"' | b'\\' => _ = write!(out, "\\{}", char::from(*octet)),
            b' '..=b'~' => out.push(char::from(*octet)),
            octet => _ = write!(out, "\\{octet:03}"),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use posthaste_dns_stub::{Server, Zone};

    use super::*;
    use crate::Settings;

    fn own(domain: &str) -> OwnDomain {
        OwnDomain {
            domain: domain.to_owned(),
            host: "mx.example.org".to_owned(),
            keys: vec![("2611e".to_owned(), "v=DKIM1; k=ed25519; p=AAAA".to_owned())],
            reports: format!("reports@{domain}"),
            services: vec![("_imaps", 993)],
        }
    }

    async fn wanted(zone: Zone, domain: &str) -> Vec<String> {
        let server = Server::start(zone);
        let resolver = Resolver::new(&Settings { servers: vec![server.address()], ..Settings::default() }).unwrap();
        let records = own(domain).wanted(&resolver).await.unwrap();
        let line = |record: &WantedRecord| {
            let found = match &record.found {
                FoundRecord::Same => "same",
                FoundRecord::Nothing => "nothing",
                FoundRecord::Other(other) => other,
                FoundRecord::Unknown(_) => "?",
            };
            format!("{} {} {} [{found}]", record.name, record.kind, record.value)
        };
        records.iter().map(line).collect()
    }

    #[tokio::test]
    async fn a_domain_with_mail_elsewhere_is_merged_and_told_what_is_replaced() {
        let zone = Zone::default()
            .mx("example.org", 10, "mail.old.example")
            .txt("example.org", "v=spf1 include:_spf.old.example -all")
            .txt("_dmarc.example.org", "v=DMARC1; p=reject")
            .txt("_spf.old.example", "v=spf1 ip4:192.0.2.9 -all")
            .txt("2611e._domainkey.example.org", "v=DKIM1; k=ed25519; p=BBBB")
            .a("mx.example.org", [192, 0, 2, 10].into());
        let expected = [
            "example.org MX 10 mx.example.org. [mail.old.example]",
            "example.org TXT v=spf1 a:mx.example.org include:_spf.old.example -all [v=spf1 include:_spf.old.example -all]",
            "mx.example.org TXT v=spf1 a -all [nothing]",
            "2611e._domainkey.example.org TXT v=DKIM1; k=ed25519; p=AAAA [v=DKIM1; k=ed25519; p=BBBB]",
            "_dmarc.example.org TXT v=DMARC1; p=reject [same]",
            "_smtp._tls.example.org TXT v=TLSRPTv1; rua=mailto:reports@example.org [nothing]",
            "_imaps._tcp.example.org SRV 0 1 993 mx.example.org. [?]",
            "10.2.0.192.in-addr.arpa PTR mx.example.org. [?]",
        ];
        assert_eq!(wanted(zone, "example.org").await, expected);
    }

    #[tokio::test]
    async fn a_domain_that_has_all_needs_nothing() {
        let zone = Zone::default()
            .mx("example.net", 10, "mx.example.org")
            .txt("example.net", "v=spf1 mx -all")
            .txt("mx.example.org", "v=spf1 a -all")
            .txt("_dmarc.example.net", "v=DMARC1; p=none; rua=mailto:reports@example.net")
            .txt("_smtp._tls.example.net", "v=TLSRPTv1; rua=mailto:x@example.net")
            .txt("2611e._domainkey.example.net", "v=DKIM1; k=ed25519; p=AAAA");
        let all = wanted(zone, "example.net").await;
        assert_eq!(all.iter().filter(|line| line.ends_with("[same]")).count(), 6, "{all:#?}");
        assert_eq!(all.len(), 7, "without an address there is no PTR");
    }

    #[test]
    fn zone_lines_are_split_and_quoted() {
        let record = |value: &str| WantedRecord {
            name: "x.example".to_owned(),
            kind: "TXT",
            value: value.to_owned(),
            found: FoundRecord::Nothing,
        };
        assert_eq!(record("a\"b\\c\u{e9}").zone_line(), "x.example. IN TXT \"a\\\"b\\\\c\\195\\169\"");
        let long = record(&"x".repeat(300)).zone_line();
        assert_eq!(long, format!("x.example. IN TXT \"{}\" \"{}\"", "x".repeat(255), "x".repeat(45)));
        let v6 = "2001:db8::10".parse().unwrap();
        assert_eq!(reverse_name(v6), "0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa");
    }
}
