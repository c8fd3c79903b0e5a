use serde::{Serialize, Serializer};

use crate::{
    FoundRecord, OwnDomain, OwnServers, RecordSource, Resolver, Settings, SetupError, SpfMergeError, WantedRecord,
};

/// The records of a domain as found by one check, and the servers asked. The JSON form is for programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainCheck {
    /// The domain.
    pub domain: String,
    /// The host of its mail.
    pub host: String,
    /// The needed records.
    pub records: Vec<WantedRecord>,
    /// The domain's own servers. Empty if they could not be reached and the resolver was asked.
    pub servers: Vec<String>,
    /// The domain has a key of DKIM.
    pub has_keys: bool,
    /// The host has an address ([`FoundRecord::Same`]) or none, or DNS did not answer.
    pub host_address: FoundRecord,
    /// The MTA-STS policy is served under its name, or not; `None`: this host has no public HTTPS.
    pub has_policy: Option<bool>,
}

/// Facts about the host, found by further queries.
#[derive(Debug, Clone, Default)]
pub struct HostView {
    /// The domain, with what this host serves for it by HTTPS.
    pub own: OwnDomain,
    /// TLSA records of the host's certificate: existing ones, and ones needed before its key changes.
    pub tlsa: Vec<WantedRecord>,
}

/// Why a domain cannot be checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The settings of DNS.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The existing SPF records.
    #[error(transparent)]
    Spf(#[from] SpfMergeError),
}

impl DomainCheck {
    /// Asks with empty caches: the domain's servers at `dns_port`.
    ///
    /// # Errors
    /// See [`CheckError`].
    pub async fn ask(
        own: &OwnDomain,
        settings: &Settings,
        dns_port: u16,
        view: impl AsyncFn(RecordSource<'_>) -> HostView,
    ) -> Result<Self, CheckError> {
        ask_own_servers(settings, dns_port, async |source| {
            // First: some servers do not answer other types, which is no sign that nobody can be reached.
            let addresses = source.addresses(&own.host).await;
            let HostView { own, tlsa } = view(source).await;
            let has_policy = own.has_web.then_some(own.policy_id.is_some());
            let mut records = own.wanted(source).await?;
            records.extend(tlsa);
            Ok(Self {
                domain: own.domain.clone(),
                host: own.host.clone(),
                records,
                servers: match source {
                    RecordSource::OwnServers(servers) => servers.servers_of(&own.domain),
                    RecordSource::Resolver(_) => Vec::new(),
                },
                has_keys: !own.keys.is_empty(),
                host_address: FoundRecord::among(addresses, |_| true, |_| String::new()),
                has_policy,
            })
        })
        .await
    }

    /// True if nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.left() == 0 && self.has_keys && self.host_address == FoundRecord::Same
    }

    /// The number of wrong or missing records.
    pub fn left(&self) -> usize {
        self.records.iter().filter(|record| record.found != FoundRecord::Same).count()
    }

    /// The number of records about which DNS did not answer: they may be as they should be.
    pub fn unanswered(&self) -> usize {
        self.records.iter().filter(|record| matches!(record.found, FoundRecord::Unknown(_))).count()
    }
}

impl Serialize for DomainCheck {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            domain: &'a str,
            complete: bool,
            asked: &'static str,
            servers: &'a [String],
            /// `None`: DNS did not answer.
            host_has_address: Option<bool>,
            host_address_error: Option<&'a str>,
            has_dkim_keys: bool,
            mta_sts: Option<bool>,
            records: &'a [WantedRecord],
        }
        let Self { domain, host: _, records, servers, has_keys, host_address, has_policy } = self;
        let host_address_error = match host_address {
            FoundRecord::Unknown(why) => Some(&**why),
            _ => None,
        };
        let shown = Shown {
            domain,
            complete: self.is_complete(),
            asked: if servers.is_empty() { "resolver" } else { "own servers" },
            servers,
            host_has_address: host_address_error.is_none().then_some(*host_address == FoundRecord::Same),
            host_address_error,
            has_dkim_keys: *has_keys,
            mta_sts: *has_policy,
            records,
        };
        shown.serialize(serializer)
    }
}

impl Serialize for WantedRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            name: &'a str,
            r#type: &'static str,
            value: &'a str,
            state: &'static str,
            found: Option<&'a str>,
        }
        let Self { name, kind, value, found } = self;
        let (state, found) = match found {
            FoundRecord::Same => ("there", None),
            FoundRecord::Nothing => ("missing", None),
            FoundRecord::Other(other) => ("differs", Some(&**other)),
            FoundRecord::Unknown(why) => ("unknown", Some(&**why)),
        };
        Shown { name, r#type: kind, value, state, found }.serialize(serializer)
    }
}

/// Asks the domain's own servers at this port, or the resolver if none of them answers.
///
/// # Errors
/// Errors of `ask`, or [`CheckError::Setup`].
pub async fn ask_own_servers<T>(
    settings: &Settings,
    dns_port: u16,
    ask: impl AsyncFn(RecordSource<'_>) -> Result<T, CheckError>,
) -> Result<T, CheckError> {
    let resolver = Resolver::new(settings)?;
    let servers = OwnServers::new(&resolver, dns_port);
    let answer = ask(RecordSource::OwnServers(&servers)).await;
    if servers.is_cut_off() { ask(RecordSource::Resolver(&resolver)).await } else { answer }
}
