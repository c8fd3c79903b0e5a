//! The records that a mail domain needs, compared with its existing ones.

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::names::reverse_name;
use crate::spf_merge::{SpfMergeError, check_lookups, spf_of, with_term};
use crate::{DnsError, RecordSource};

/// A domain of ours, with the data for its records.
#[derive(Debug, Clone, Default)]
pub struct OwnDomain {
    /// Name of the domain in lower-case A-labels.
    pub domain: String,
    /// The host that receives and sends its mail.
    pub host: String,
    /// Selectors and records of its DKIM keys.
    pub keys: Vec<(String, String)>,
    /// The address that gets reports.
    pub reports: String,
    /// Services that clients find by SRV (RFC 6186, RFC 8314), such as `_imaps`, with their ports.
    pub services: Vec<(&'static str, u16)>,
    /// The host serves public HTTPS: the [names](WEB_NAMES) that senders and mail programs use lead to it.
    pub has_web: bool,
    /// The address of our HTTP listener, if a web server of this host may pass requests on to it.
    pub behind_web: Option<String>,
    /// The id of the MTA-STS policy (RFC 8461 section 3.1), once it is served at its name with a trusted certificate.
    pub policy_id: Option<String>,
}

/// Names below the domain that clients use by HTTPS.
pub const WEB_NAMES: [&str; 2] = ["mta-sts", "autoconfig"];

/// A needed record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedRecord {
    /// Owner name, without a final dot.
    pub name: String,
    /// Record type.
    pub kind: &'static str,
    /// Data in zone form; of TXT the text, without quotes.
    pub value: String,
    /// The existing record.
    pub found: FoundRecord,
}

/// The existing record compared with a needed one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundRecord {
    /// Identical.
    Same,
    /// No record.
    Nothing,
    /// A different record, to be replaced.
    Other(String),
    /// Unknown: not asked for, or no answer.
    Unknown(String),
}

impl OwnDomain {
    /// The needed records in reading order, with the existing ones.
    ///
    /// # Errors
    /// The existing SPF records cannot be merged with ours.
    pub async fn wanted(&self, source: RecordSource<'_>) -> Result<Vec<WantedRecord>, SpfMergeError> {
        let Self { domain, host, .. } = self;
        let mut all = Vec::new();
        let mx = self.mx(source).await;
        // While mail is received elsewhere, `mx` would not allow us to send.
        let is_received_here = !matches!(mx.found, FoundRecord::Other(_));
        all.push(mx);
        let by_name = format!("a:{host}");
        let terms = if is_received_here { &["mx", &by_name][..] } else { &[&*by_name] };
        all.push(spf(source, domain, terms).await?);
        // Of notices, whose sender is empty: receivers then judge the host's name.
        if host != domain {
            all.push(spf(source, host, &["a"]).await?);
        }
        all.extend(self.key_records(source).await);
        let reports = &self.reports;
        // A policy that is there is somebody's decision.
        let dmarc = format!("v=DMARC1; p=none; rua=mailto:{reports}");
        all.push(kept(source, format!("_dmarc.{domain}"), dmarc, "v=DMARC1").await);
        let tls = format!("v=TLSRPTv1; rua=mailto:{reports}");
        all.push(kept(source, format!("_smtp._tls.{domain}"), tls, "v=TLSRPTv1").await);
        for (service, port) in &self.services {
            all.push(self.service(source, service, *port).await);
        }
        if self.has_web {
            all.extend(self.web(source).await);
        }
        if let Some(id) = &self.policy_id {
            let value = format!("v=STSv1; id={id}");
            all.push(text(source, format!("_mta-sts.{domain}"), value.clone(), |found| *found == value).await);
        }
        all.extend(self.reverse(source).await);
        Ok(all)
    }

    /// Only the records of the DKIM keys (RFC 6376 section 3.6.2.1).
    pub async fn key_records(&self, source: RecordSource<'_>) -> Vec<WantedRecord> {
        let mut all = Vec::with_capacity(self.keys.len());
        for (selector, record) in &self.keys {
            let name = format!("{selector}._domainkey.{}", self.domain);
            all.push(text(source, name, record.clone(), |found| found == record).await);
        }
        all
    }

    async fn mx(&self, source: RecordSource<'_>) -> WantedRecord {
        let found = source.mail_hosts(&self.domain).await;
        let found = FoundRecord::among(found, |host| *host == self.host, |hosts| hosts.join(" "));
        // A null MX has the name of the root.
        let found = if found == FoundRecord::Other(String::new()) { FoundRecord::Other(".".to_owned()) } else { found };
        WantedRecord { name: self.domain.clone(), kind: "MX", value: format!("10 {}.", self.host), found }
    }

    async fn service(&self, source: RecordSource<'_>, service: &str, port: u16) -> WantedRecord {
        let name = format!("{service}._tcp.{}", self.domain);
        let value = format!("0 1 {port} {}.", self.host);
        let found = source.services(&name).await;
        let shown = |found: &[(String, u16)]| {
            found.iter().map(|(host, port)| format!("{port} {host}.")).collect::<Vec<_>>().join(", ")
        };
        let found = FoundRecord::among(found, |(host, at)| *host == self.host && *at == port, shown);
        WantedRecord { name, kind: "SRV", value, found }
    }

    /// Aliases of the host, or names with one of its addresses.
    async fn web(&self, source: RecordSource<'_>) -> Vec<WantedRecord> {
        let of_host = source.addresses(&self.host).await.unwrap_or_default();
        let mut records = Vec::new();
        for name in WEB_NAMES {
            let name = format!("{name}.{}", self.domain);
            let shown = |found: &[IpAddr]| found.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
            let found = FoundRecord::among(source.addresses(&name).await, |found| of_host.contains(found), shown);
            records.push(WantedRecord { name, kind: "CNAME", value: format!("{}.", self.host), found });
        }
        records
    }

    /// The names of the host's addresses.
    async fn reverse(&self, source: RecordSource<'_>) -> Vec<WantedRecord> {
        let mut records = Vec::new();
        for address in source.addresses(&self.host).await.unwrap_or_default() {
            let name = reverse_name(address);
            let found = source.names_of_address(&name).await;
            let found = FoundRecord::among(found, |host| *host == self.host, |hosts| hosts.join(" "));
            records.push(WantedRecord { name, kind: "PTR", value: format!("{}.", self.host), found });
        }
        records
    }
}

impl FoundRecord {
    /// Looks for the wanted one among all that are there.
    pub(crate) fn among<T>(
        found: Result<Vec<T>, DnsError>,
        is_it: impl Fn(&T) -> bool,
        shown: impl Fn(&[T]) -> String,
    ) -> Self {
        match found {
            Err(error) => FoundRecord::Unknown(error.to_string()),
            Ok(found) if found.iter().any(is_it) => FoundRecord::Same,
            Ok(found) if found.is_empty() => FoundRecord::Nothing,
            Ok(found) => FoundRecord::Other(shown(&found)),
        }
    }
}

async fn spf(source: RecordSource<'_>, domain: &str, terms: &[&str]) -> Result<WantedRecord, SpfMergeError> {
    let texts = source.texts(domain).await;
    let known = texts.as_ref().map_or(&[][..], |texts| &texts[..]);
    let record = spf_of(domain, known)?;
    let value = with_term(record, terms);
    check_lookups(source.resolver(), domain, &value).await?;
    let found = match (record, &texts) {
        (_, Err(why)) => FoundRecord::Unknown(why.to_string()),
        (None, _) => FoundRecord::Nothing,
        (Some(record), _) if record == value => FoundRecord::Same,
        (Some(record), _) => FoundRecord::Other(record.to_owned()),
    };
    Ok(WantedRecord { name: domain.to_owned(), kind: "TXT", value, found })
}

/// A text of a name that has no other.
async fn text(
    source: RecordSource<'_>,
    name: String,
    value: String,
    is_same: impl Fn(&String) -> bool,
) -> WantedRecord {
    let first = |texts: &[String]| texts.first().cloned().unwrap_or_default();
    let found = FoundRecord::among(source.texts(&name).await, is_same, first);
    WantedRecord { name, kind: "TXT", value, found }
}

/// Like [`text`], but keeps an existing record of this version.
async fn kept(source: RecordSource<'_>, name: String, value: String, version: &str) -> WantedRecord {
    let first = |texts: &[String]| texts.first().cloned().unwrap_or_default();
    let mut texts = source.texts(&name).await;
    let there = texts.as_mut().ok().and_then(|texts| texts.iter().find(|text| text.starts_with(version)).cloned());
    let found = FoundRecord::among(texts, |text| text.starts_with(version), first);
    WantedRecord { name, kind: "TXT", value: there.unwrap_or(value), found }
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
    use crate::{Resolver, Settings};

    fn own(domain: &str) -> OwnDomain {
        OwnDomain {
            domain: domain.to_owned(),
            host: "mx.example.org".to_owned(),
            keys: vec![("2611e".to_owned(), "v=DKIM1; k=ed25519; p=AAAA".to_owned())],
            reports: format!("reports@{domain}"),
            services: vec![("_imaps", 993)],
            has_web: true,
            behind_web: None,
            policy_id: domain.ends_with("net").then(|| "a1".to_owned()),
        }
    }

    async fn wanted(zone: Zone, domain: &str) -> Vec<String> {
        let server = Server::start(zone);
        let resolver = Resolver::new(&Settings { servers: vec![server.address()], ..Settings::default() }).unwrap();
        let records = own(domain).wanted(RecordSource::Resolver(&resolver)).await.unwrap();
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
    async fn a_domain_with_mail_elsewhere_is_merged_with_a_warning() {
        let zone = Zone::default()
            .mx("example.org", 10, "mail.old.example")
            .txt("example.org", "v=spf1 include:_spf.old.example -all")
            .txt("_dmarc.example.org", "v=DMARC1; p=reject")
            .txt("_spf.old.example", "v=spf1 ip4:192.0.2.9 -all")
            .txt("2611e._domainkey.example.org", "v=DKIM1; k=ed25519; p=BBBB")
            .srv("_imaps._tcp.example.org", 993, "imap.old.example")
            .a("autoconfig.example.org", [192, 0, 2, 99].into())
            .a("mx.example.org", [192, 0, 2, 10].into());
        let expected = [
            "example.org MX 10 mx.example.org. [mail.old.example]",
            "example.org TXT v=spf1 a:mx.example.org include:_spf.old.example -all [v=spf1 include:_spf.old.example -all]",
            "mx.example.org TXT v=spf1 a -all [nothing]",
            "2611e._domainkey.example.org TXT v=DKIM1; k=ed25519; p=AAAA [v=DKIM1; k=ed25519; p=BBBB]",
            "_dmarc.example.org TXT v=DMARC1; p=reject [same]",
            "_smtp._tls.example.org TXT v=TLSRPTv1; rua=mailto:reports@example.org [nothing]",
            "_imaps._tcp.example.org SRV 0 1 993 mx.example.org. [993 imap.old.example.]",
            "mta-sts.example.org CNAME mx.example.org. [nothing]",
            "autoconfig.example.org CNAME mx.example.org. [192.0.2.99]",
            "10.2.0.192.in-addr.arpa PTR mx.example.org. [nothing]",
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
            .txt("2611e._domainkey.example.net", "v=DKIM1; k=ed25519; p=AAAA")
            .srv("_imaps._tcp.example.net", 993, "mx.example.org")
            .cname("mta-sts.example.net", "mx.example.org")
            .a("autoconfig.example.net", [192, 0, 2, 10].into())
            .txt("_mta-sts.example.net", "v=STSv1; id=a1")
            .a("mx.example.org", [192, 0, 2, 10].into())
            .ptr("10.2.0.192.in-addr.arpa", "mx.example.org");
        let all = wanted(zone, "example.net").await;
        assert_eq!(all.iter().filter(|line| line.ends_with("[same]")).count(), 11, "{all:#?}");
        assert_eq!(all.len(), 11);
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
