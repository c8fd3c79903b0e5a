//! Domains of ours: keys, certificates, records, and the results of checks.

use std::collections::HashMap;

use posthaste_admin::{CHECK_METHODS, CHECK_RESULTS};
use posthaste_dkim::{KeyDirectory, StoredKey};
use serde_json::{Value, json};

use super::answering::{Answer, Outcome};
use super::queue_counts::tls_counts;
use crate::config::expiry::{self, ListenerCertificate};
use crate::config::own_domains::KnownRecords;
use crate::receive::handler::Receiver;

/// A line for each domain with its keys. The last line has the common data.
pub(super) fn list(receiver: &Receiver, answer: Answer<'_>) -> Outcome {
    let settings = receiver.settings();
    let (own, config) = (&settings.own_domains, settings.own_domains.config());
    let stored = KeyDirectory::new(&config.dkim.dir).read().map_err(|error| error.to_string())?;
    let mut keys: HashMap<String, Vec<StoredKey>> = stored.into_iter().map(|of| (of.domain, of.keys)).collect();
    let line = |domain: String| {
        let keys: Vec<Value> = keys.remove(&domain).unwrap_or_default().iter().map(key).collect();
        json!({ "domain": domain, "keys": keys })
    };
    let done = own.names().into_iter().map(line).take_while(|line| answer(line.clone())).count();
    let certificates: Vec<Value> = expiry::certificates(config).into_iter().map(certificate).collect();
    let sessions: Vec<Value> = tls_counts(&receiver.remote().relays())
        .into_iter()
        .filter(|(.., count)| *count > 0)
        .map(|(demand, result, count)| json!({ "policy": demand, "result": result, "sessions": count }))
        .collect();
    Ok(json!({
        "done": done,
        "host": settings.host_name,
        "certificates": certificates,
        "checks": checks(receiver),
        "tls": sessions,
    }))
}

fn key(key: &StoredKey) -> Value {
    let (algorithm, state, since) = match &key.file {
        Ok(file) => (Some(file.key.algorithm().name()), file.state.name(), file.since),
        Err(_) => (None, "unreadable", 0),
    };
    json!({ "selector": key.selector, "algorithm": algorithm, "state": state, "since": (since > 0).then_some(since) })
}

fn certificate(of: ListenerCertificate) -> Value {
    let ListenerCertificate { file, ends, issuer, is_self_made } = of;
    json!({ "file": file.display().to_string(), "issuer": issuer, "ends": ends, "self_made": is_self_made })
}

/// Results of the checks of incoming mail since the start; those without a count are left out.
fn checks(receiver: &Receiver) -> Vec<Value> {
    let counts = receiver.meters().of_checks().0;
    let of_method = |(method, counts): (&str, [u64; CHECK_RESULTS.len()])| {
        let results = CHECK_RESULTS.into_iter().zip(counts).filter(|(_, count)| *count > 0);
        let results: serde_json::Map<_, _> = results.map(|(result, count)| (result.to_owned(), count.into())).collect();
        json!({ "method": method, "results": results })
    };
    CHECK_METHODS.into_iter().zip(counts).map(of_method).collect()
}

/// The last known records of a domain, a line each. During a new check, the last line says so.
pub(super) fn records(receiver: &Receiver, domain: &str, answer: Answer<'_>) -> Outcome {
    let settings = receiver.settings();
    let known = settings.own_domains.records(&settings.directory, domain);
    let KnownRecords { is_asking, last } = known.ok_or("no [[domain]] of the configuration has this name")?;
    let mut end = match last.as_ref().map(|(_, outcome)| outcome) {
        Some(Ok(check)) => json!(check),
        Some(Err(why)) => json!({ "failure": why }),
        None => json!({}),
    };
    let records = end.as_object_mut().and_then(|end| end.remove("records"));
    let records = records.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let done = records.iter().take_while(|record| answer((*record).clone())).count();
    (end["done"], end["asking"], end["at"]) = (done.into(), is_asking.into(), last.map(|(at, _)| at).into());
    Ok(end)
}
