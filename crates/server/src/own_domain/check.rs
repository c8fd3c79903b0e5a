//! A round of questions about the records of a domain, at its own servers.

use posthaste_config::Config;
use posthaste_dns::{
    FoundRecord, OwnDomain, OwnServers, RecordSource, Resolver, SetupError, SpfMergeError, WantedRecord,
};
use serde_json::{Value, json};

use super::with_policy;

/// The records of one round, and the servers that were asked.
#[derive(Debug, Clone)]
pub struct DomainCheck {
    /// The domain.
    pub domain: String,
    /// The host of its mail.
    pub host: String,
    /// The records that it needs.
    pub records: Vec<WantedRecord>,
    /// The domain's own servers. Empty if they could not be asked, so that the resolver was.
    pub servers: Vec<String>,
    /// The domain has a key of DKIM.
    pub has_keys: bool,
    /// The host has an address.
    pub has_address: bool,
    /// The MTA-STS policy is served under its name, or not; `None`: there is no listener for it.
    pub has_policy: Option<bool>,
}

/// Why a domain cannot be checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The settings of DNS.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The SPF records that are there.
    #[error(transparent)]
    Spf(#[from] SpfMergeError),
}

impl DomainCheck {
    /// Asks with empty caches.
    ///
    /// # Errors
    /// See [`CheckError`].
    pub async fn ask(own: &OwnDomain, config: &Config, dns_port: u16, https_port: u16) -> Result<Self, CheckError> {
        ask_own_servers(config, dns_port, async |source| {
            let served = with_policy(own, source, config, https_port).await;
            let records = served.wanted(source).await?;
            let addresses = source.addresses(&own.host).await;
            Ok(Self {
                domain: own.domain.clone(),
                host: own.host.clone(),
                records,
                servers: match source {
                    RecordSource::OwnServers(servers) => servers.servers_of(&own.domain),
                    RecordSource::Resolver(_) => Vec::new(),
                },
                has_keys: !own.keys.is_empty(),
                has_address: addresses.is_ok_and(|addresses| !addresses.is_empty()),
                has_policy: own.has_web.then_some(served.policy_id.is_some()),
            })
        })
        .await
    }

    /// True if nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.left() == 0 && self.has_keys && self.has_address
    }

    /// The number of records that are not as they should be.
    pub fn left(&self) -> usize {
        self.records.iter().filter(|record| record.found != FoundRecord::Same).count()
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        json!({
            "domain": self.domain,
            "complete": self.is_complete(),
            "asked": if self.servers.is_empty() { "resolver" } else { "own servers" },
            "servers": self.servers,
            "host_has_address": self.has_address,
            "has_dkim_keys": self.has_keys,
            "mta_sts": self.has_policy,
            "records": self.records.iter().map(of_record).collect::<Vec<_>>(),
        })
    }
}

/// A record for programs.
pub fn of_record(record: &WantedRecord) -> Value {
    let WantedRecord { name, kind, value, found } = record;
    let (state, other) = match found {
        FoundRecord::Same => ("there", None),
        FoundRecord::Nothing => ("missing", None),
        FoundRecord::Other(other) => ("differs", Some(other)),
        FoundRecord::Unknown(why) => ("unknown", Some(why)),
    };
    json!({ "name": name, "type": kind, "value": value, "state": state, "found": other })
}

/// Asks the servers of domains themselves at this port, or the resolver if none of them answers.
///
/// # Errors
/// Those of `ask`, or [`CheckError::Setup`].
pub async fn ask_own_servers<T>(
    config: &Config,
    dns_port: u16,
    ask: impl AsyncFn(RecordSource<'_>) -> Result<T, CheckError>,
) -> Result<T, CheckError> {
    let resolver = Resolver::new(&config.dns)?;
    let servers = OwnServers::new(&resolver, dns_port);
    let answer = ask(RecordSource::OwnServers(&servers)).await;
    if servers.is_cut_off() { ask(RecordSource::Resolver(&resolver)).await } else { answer }
}
