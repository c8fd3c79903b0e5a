//! Checks of the machine and the domain, before any change.

use std::net::IpAddr;
use std::time::Duration;

use posthaste_dns::{FoundRecord, OwnDomain, RecordSource, Resolver, UnprovenAd, WantedRecord};
use tokio::time::timeout;

use super::finding::{Finding, Verdict};
use super::network::{addresses, of_outbound, of_smarthost, probed_hosts};
use super::place::Place;
use super::ports;
use super::smarthost::Smarthost;
use super::wanted::{REPORTS, Wanted};
use crate::queue::AnyError;

/// Reasons why the other steps cannot follow a configuration that an earlier run wrote: it is never changed.
///
/// # Errors
/// It is invalid.
pub fn of_written(wanted: &Wanted, place: &Place) -> Result<Vec<Finding>, AnyError> {
    if wanted.written(place).is_none() {
        return Ok(Vec::new());
    }
    let config = wanted.loaded(place)?.config;
    let file = place.config().display().to_string();
    let mut findings = Vec::new();
    let written = config.relay.route.first().and_then(Smarthost::of_route);
    if let Some(asked) = &wanted.smarthost
        && written.is_none_or(|written| !written.is_at(asked))
    {
        let text = format!("{file} already exists: write the [relay] route to {} into it yourself", asked.text());
        findings.push(Finding::new("smarthost", text, Verdict::Stop));
    }
    if config.storage.data != place.data || config.auth.file != place.passwords() {
        let text =
            format!("{file} has its data or logins elsewhere: use `account add` and `dkim new` instead of setup");
        findings.push(Finding::new("place", text, Verdict::Stop));
    }
    Ok(findings)
}

/// Checks the way out by `outbound_port` or the smarthost, DNS, and the ports if a server needs them.
///
/// # Errors
/// There is no resolver.
pub fn look(wanted: &Wanted, place: &Place, needs_ports: bool, outbound_port: u16) -> Result<Vec<Finding>, AnyError> {
    let mut findings = Vec::new();
    if needs_ports {
        findings.push(of_ports(wanted));
        if wanted.ports.https.is_none() {
            let text = "443 is used by another program: its lines are printed with the records";
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
    // Within the runtime: the resolver has tasks.
    let (records, next_hops) = runtime()?.block_on(async {
        let resolver = Resolver::new(&loaded.config.dns)?;
        let next_hops = async {
            match &wanted.smarthost {
                Some(smarthost) => addresses(&resolver, &smarthost.host).await,
                None => probed_hosts(&resolver).await,
            }
        };
        let records = of_records(&own, RecordSource::Resolver(&resolver));
        Ok::<_, AnyError>(tokio::join!(timeout(DNS_MAX, records), timeout(DNS_MAX, next_hops)))
    })?;
    let next_hops = next_hops.unwrap_or_default();
    findings.push(match &wanted.smarthost {
        Some(smarthost) => of_smarthost(smarthost, next_hops),
        None => of_outbound(next_hops, outbound_port),
    });
    let silent = || vec![Finding::new("resolver", "it does not answer: nothing is known of DNS", Verdict::Note)];
    findings.extend(records.unwrap_or_else(|_| silent()));
    Ok(findings)
}

/// The addresses of the host in DNS, or the reason of a failed look-up.
///
/// # Errors
/// No resolver is configured.
pub fn host_in_dns(wanted: &Wanted, place: &Place) -> Result<Result<Vec<IpAddr>, Finding>, AnyError> {
    let settings = wanted.loaded(place)?.config.dns;
    let asked = runtime()?.block_on(async {
        let resolver = Resolver::new(&settings)?;
        let found = RecordSource::Resolver(&resolver).addresses(&wanted.host);
        Ok::<_, AnyError>(timeout(DNS_MAX, found).await)
    })?;
    let why = match asked {
        Ok(Ok(found)) => return Ok(Ok(found)),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the resolver does not answer".to_owned(),
    };
    Ok(Err(Finding::new("host", format!("{}: {why}", wanted.host), Verdict::Note)))
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Tests the resolvers: they are trusted if they validate DNSSEC.
///
/// # Errors
/// No resolver is configured.
pub fn of_resolver(wanted: &mut Wanted, place: &Place) -> Result<Finding, AnyError> {
    let settings = wanted.loaded(place)?.config.dns;
    Ok(match runtime()?.block_on(settings.prove_ad()) {
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

async fn of_records(own: &OwnDomain, source: RecordSource<'_>) -> Vec<Finding> {
    match own.wanted(source).await {
        Ok(records) => records.iter().filter_map(|record| of_record(record, &own.domain)).collect(),
        Err(error) => vec![Finding::new("records", error.to_string(), Verdict::Note)],
    }
}

fn of_ports(wanted: &Wanted) -> Finding {
    let ports = wanted.ports;
    let needed = ports.needed();
    let taken: Vec<String> = needed
        .into_iter()
        .filter_map(|port| Some((port, ports::user_of(wanted.any, port)?)))
        .map(|(port, program)| {
            if program.is_empty() {
                format!("{port} is used by another program")
            } else {
                format!("{port} is used by {program}")
            }
        })
        .collect();
    if taken.is_empty() {
        Finding::new("ports", format!("{} free", ports.text()), Verdict::Ok)
    } else {
        Finding::new("ports", format!("{}: stop that first", taken.join("; ")), Verdict::Stop)
    }
}

const DNS_MAX: Duration = Duration::from_secs(10);

/// Records that the user must decide about, and records of others.
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
