//! Runs the test suite of RFC 7208: `spf_suite FILE.json`, the documents of `rfc7208-tests.yml` as one JSON array.
//!
//! Prints each case whose result is not among those the suite allows, and the count; exit 1 if there is one.

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use posthaste_authres::spf::{self, Question};
use posthaste_authres::{Dns, NoAnswer};
use serde_json::Value;

/// Records by lower-case name. A `Value::Null` among them is a timeout.
struct Zone(HashMap<String, Vec<(String, Value)>>);

impl Zone {
    fn new(data: &Value) -> Zone {
        let names = data.as_object().expect("zonedata is a map");
        let records = |records: &Value| {
            let records = records.as_array().expect("records are a list").iter();
            records.map(record).collect::<Vec<_>>()
        };
        Zone(names.iter().map(|(name, data)| (name.to_ascii_lowercase(), with_spf_as_txt(records(data)))).collect())
    }

    /// The records of a kind at the end of a chain of aliases.
    fn find(&self, name: &str, kind: &str) -> Result<Vec<&Value>, NoAnswer> {
        let mut name = name.to_ascii_lowercase();
        for _ in 0..10 {
            let records = self.0.get(&name).ok_or(NoAnswer::NoSuchName)?;
            let found: Vec<_> = records.iter().filter(|(of, _)| of == kind).map(|(_, data)| data).collect();
            if !found.is_empty() {
                return Ok(found);
            }
            if records.iter().any(|(of, _)| of == "TIMEOUT") {
                return Err(NoAnswer::Temporary);
            }
            match records.iter().find(|(of, _)| of == "CNAME") {
                Some((_, target)) => name = target.as_str().expect("a name").to_ascii_lowercase(),
                None => return Ok(Vec::new()),
            }
        }
        Err(NoAnswer::Temporary)
    }
}

fn record(record: &Value) -> (String, Value) {
    match record {
        Value::Object(fields) => {
            let (kind, data) = fields.iter().next().expect("a record has a kind");
            (kind.clone(), data.clone())
        }
        _ => ("TIMEOUT".to_owned(), Value::Null),
    }
}

/// The suite publishes policies as SPF records and has its drivers copy them, unless there are TXT records.
fn with_spf_as_txt(mut records: Vec<(String, Value)>) -> Vec<(String, Value)> {
    if !records.iter().any(|(kind, _)| kind == "TXT") {
        let spf = records.iter().filter(|(kind, _)| kind == "SPF");
        let texts: Vec<_> = spf.map(|(_, data)| ("TXT".to_owned(), data.clone())).collect();
        records.extend(texts);
    }
    records.retain(|(kind, data)| !(kind == "TXT" && data == "NONE"));
    records
}

impl Dns for Zone {
    async fn texts(&self, name: &str) -> Result<Arc<[String]>, NoAnswer> {
        let join = |data: &Value| match data {
            Value::Array(strings) => strings.iter().filter_map(Value::as_str).collect::<String>(),
            data => data.as_str().unwrap_or_default().to_owned(),
        };
        Ok(self.find(name, "TXT")?.into_iter().map(join).collect())
    }

    async fn addresses(&self, name: &str, is_ipv6: bool) -> Result<Vec<IpAddr>, NoAnswer> {
        let found = self.find(name, if is_ipv6 { "AAAA" } else { "A" })?;
        Ok(found.into_iter().filter_map(|data| data.as_str()?.parse().ok()).collect())
    }

    async fn mail_hosts(&self, name: &str) -> Result<Vec<String>, NoAnswer> {
        let found = self.find(name, "MX")?;
        let hosts = found.into_iter().filter_map(|data| data[1].as_str().map(str::to_owned));
        Ok(hosts.filter(|host| !host.is_empty()).collect())
    }

    async fn names(&self, address: IpAddr) -> Result<Vec<String>, NoAnswer> {
        let name = match address {
            IpAddr::V4(address) => {
                let octets = address.octets().map(|octet| octet.to_string());
                format!("{}.in-addr.arpa", octets.into_iter().rev().collect::<Vec<_>>().join("."))
            }
            IpAddr::V6(address) => {
                let digits: Vec<char> = format!("{:032x}", address.to_bits()).chars().rev().collect();
                format!("{}.ip6.arpa", digits.iter().map(char::to_string).collect::<Vec<_>>().join("."))
            }
        };
        let found = self.find(&name, "PTR")?;
        Ok(found.into_iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }
}

/// The answers of a zone are there at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("nothing waits"),
    }
}

fn main() {
    let path = std::env::args().nth(1).expect("spf_suite FILE.json");
    let text = std::fs::read_to_string(&path).expect("the suite is readable");
    let scenarios: Vec<Value> = serde_json::from_str(&text).expect("an array of scenarios");
    let (mut count, mut failed) = (0, 0);
    for scenario in scenarios.iter().filter(|scenario| scenario.is_object()) {
        let zone = Zone::new(&scenario["zonedata"]);
        for (name, case) in scenario["tests"].as_object().expect("tests are a map") {
            let text = |key: &str| case[key].as_str().unwrap_or_default();
            let ip = text("host").parse().expect("an address");
            let verdict = now(spf::check(&zone, &Question { ip, helo: text("helo"), sender: text("mailfrom") }));
            let expected = match &case["result"] {
                Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
                one => vec![one.as_str().unwrap_or_default()],
            };
            count += 1;
            if !expected.contains(&verdict.result.name()) {
                failed += 1;
                println!(
                    "{}: {name}: {} instead of {}",
                    scenario["description"],
                    verdict.result,
                    expected.join(" or ")
                );
            }
        }
    }
    println!("{count} cases, {failed} failed");
    std::process::exit(i32::from(failed > 0 || count == 0));
}
