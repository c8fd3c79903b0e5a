//! Checks of the machine and the domain, before anything is made.

use std::time::Duration;

use posthaste_dns::{FoundRecord, OwnDomain, RecordSource, Resolver, UnprovenAd, WantedRecord};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::place::Place;
use super::ports;
use super::wanted::{REPORTS, Wanted};
use crate::queue::AnyError;
use crate::terminal::harmless;

/// One finding of the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub topic: &'static str,
    pub text: String,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Ok,
    /// Information for the user.
    Note,
    /// Stops setup.
    Stop,
}

impl Finding {
    fn new(topic: &'static str, text: impl Into<String>, verdict: Verdict) -> Self {
        Self { topic, text: text.into(), verdict }
    }

    pub fn line(&self) -> String {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "!!",
            Verdict::Stop => "no",
        };
        format!(" {:<10} {:<70} {verdict}\n", self.topic, harmless(&self.text))
    }

    pub fn json(&self) -> Value {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Stop => "stop",
        };
        json!({ "topic": self.topic, "text": self.text, "verdict": verdict })
    }
}

/// Checks DNS, and the ports if a server is to be started.
///
/// # Errors
/// There is no resolver.
pub fn look(wanted: &Wanted, place: &Place, is_running: bool) -> Result<Vec<Finding>, AnyError> {
    let mut findings = Vec::new();
    if !is_running {
        findings.push(of_ports(wanted));
        if wanted.ports.https.is_none() {
            let text = "443 is used by another program: its lines for certificates are in docs/certificates.md";
            findings.push(Finding::new("web", text, Verdict::Note));
        }
    }
    let loaded = wanted.loaded(place)?;
    let own = OwnDomain {
        domain: wanted.domain.clone(),
        host: wanted.host.clone(),
        reports: wanted.address_of(REPORTS),
        ..OwnDomain::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Within it: the resolver has tasks.
    runtime.block_on(async {
        let resolver = Resolver::new(&loaded.config.dns)?;
        match timeout(DNS_MAX, of_dns(&own, RecordSource::Resolver(&resolver))).await {
            Ok(found) => findings.extend(found),
            Err(_) => {
                findings.push(Finding::new("resolver", "it does not answer: nothing is known of DNS", Verdict::Note))
            }
        }
        Ok::<_, AnyError>(())
    })?;
    Ok(findings)
}

/// Checks the resolvers: if they prove that they validate DNSSEC, they are believed.
///
/// # Errors
/// There is none.
pub fn of_resolver(wanted: &mut Wanted, place: &Place) -> Result<Finding, AnyError> {
    let settings = wanted.loaded(place)?.config.dns;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(match runtime.block_on(settings.prove_ad()) {
        Ok(servers) => {
            wanted.trust_ad = true;
            let servers: Vec<String> = servers.iter().map(|server| server.ip().to_string()).collect();
            let text = format!("{} validates DNSSEC: dns.trust_ad = true", servers.join(", "));
            Finding::new("resolver", text, Verdict::Ok)
        }
        Err(UnprovenAd::Setup(error)) => return Err(error.into()),
        Err(error) => Finding::new("resolver", format!("no DANE: {error}"), Verdict::Note),
    })
}

async fn of_dns(own: &OwnDomain, source: RecordSource<'_>) -> Vec<Finding> {
    let addresses = source.addresses(&own.host).await;
    let mut findings = vec![match &addresses {
        Ok(found) if found.is_empty() => {
            Finding::new("host", format!("{} has no address in DNS yet", own.host), Verdict::Note)
        }
        Ok(found) => {
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            Finding::new("host", format!("{}  {}", own.host, found.join(", ")), Verdict::Ok)
        }
        Err(error) => Finding::new("host", format!("{}: {error}", own.host), Verdict::Note),
    }];
    match own.wanted(source).await {
        Ok(records) => findings.extend(records.iter().filter_map(|record| of_record(record, &own.domain))),
        Err(error) => findings.push(Finding::new("records", error.to_string(), Verdict::Note)),
    }
    findings
}

fn of_ports(wanted: &Wanted) -> Finding {
    let ports = wanted.ports;
    let needed = [ports.smtp, ports.submissions, ports.submission, ports.imaps];
    let taken: Vec<String> = needed
        .into_iter()
        .filter_map(|port| Some((port, ports::user_of(wanted.any, port)?)))
        .map(|(port, program)| match program.is_empty() {
            true => format!("{port} is used by another program"),
            false => format!("{port} is used by {program}"),
        })
        .collect();
    match taken.is_empty() {
        true => {
            let free: Vec<String> = needed.iter().chain(&ports.https).map(u16::to_string).collect();
            Finding::new("ports", format!("{} free", free.join(" ")), Verdict::Ok)
        }
        false => Finding::new("ports", format!("{}: stop that first", taken.join("; ")), Verdict::Stop),
    }
}

const DNS_MAX: Duration = Duration::from_secs(10);

/// Records that the user has to decide about, and those of other people.
fn of_record(record: &WantedRecord, domain: &str) -> Option<Finding> {
    let WantedRecord { name, kind, value, found } = record;
    let note = |text: String| Some(Finding::new("records", text, Verdict::Note));
    match (*kind, found) {
        ("MX", FoundRecord::Other(other)) => note(format!("{domain} has MX {other}: you receive mail elsewhere today")),
        ("TXT", FoundRecord::Other(other)) if value.starts_with("v=spf1") => {
            note(format!("{name} has SPF {other}: to be merged"))
        }
        ("PTR", FoundRecord::Same) => Some(Finding::new("reverse", format!("{name} agrees"), Verdict::Ok)),
        ("PTR", FoundRecord::Other(other)) => Some(Finding::new(
            "reverse",
            format!("{name} is {other}: whoever gave you the address sets it"),
            Verdict::Note,
        )),
        ("PTR", FoundRecord::Nothing) => Some(Finding::new(
            "reverse",
            format!("{name} is not set: whoever gave you the address sets it"),
            Verdict::Note,
        )),
        (_, FoundRecord::Unknown(why)) if *kind == "MX" => note(format!("{domain}: {why}")),
        _ => None,
    }
}
