//! A domain of the configuration, for the commands about its records and keys.

use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_config::Loaded;
use posthaste_dane::HostCertificate;
use posthaste_directory::names::folded_domain;
use posthaste_dkim::{KeyDirectory, KeyRecords};
use posthaste_dns::{OwnDomain, WantedRecord};

use crate::queue::AnyError;
use crate::spool_access::become_owner;
use crate::terminal::{complain, harmless};

/// The port of HTTPS.
pub const HTTPS: u16 = 443;

pub const CUT_OFF: &str =
    "port 53 of other hosts cannot be reached from here: the resolver was asked, which may keep old answers";

/// Warns about a foreign domain: records published by mistake direct mail here that is refused, and its keys sign
/// nothing.
pub fn tell_if_foreign(loaded: &Loaded, name: &str) {
    if !loaded.directory.is_ours(name) {
        complain(&format!("no mail for {name} is received here: no [[domain]] of the configuration has this name"));
    }
}

/// The domain, with its data from the configuration and the keys.
pub fn own_domain(loaded: &Loaded, domain: &str) -> Result<OwnDomain, AnyError> {
    let config = &loaded.config;
    let directory = &loaded.directory;
    let name = folded(domain)?;
    tell_if_foreign(loaded, &name);
    if config.dkim.dir.is_dir() {
        become_owner(&config.dkim.dir)?;
    }
    let since = now().saturating_sub(config.dkim_record_secs());
    let KeyRecords { records, unusable } = KeyDirectory::new(&config.dkim.dir).records(&name, since)?;
    unusable.iter().for_each(|key| complain(&harmless(key)));
    Ok(OwnDomain { keys: records, ..config.own_domain(directory, &name) })
}

/// The certificate that senders see. Read after the DKIM keys, which may be root's: it is read as the server's user.
pub fn host_certificate(loaded: &Loaded) -> Result<HostCertificate, AnyError> {
    if loaded.config.storage.data.is_dir() {
        become_owner(&loaded.config.storage.data)?;
    }
    Ok(loaded.config.host_certificate())
}

/// The record's data in zone file syntax, TXT in quotes.
pub fn quoted_value(record: &WantedRecord) -> String {
    quote(record.kind, &harmless(&record.value))
}

/// TXT in quotes.
pub fn quote(kind: &str, text: &str) -> String {
    if kind == "TXT" { format!("\"{text}\"") } else { text.to_owned() }
}

/// The domain in lower-case A-labels.
pub fn folded(domain: &str) -> Result<String, AnyError> {
    let folded = folded_domain(domain.trim_end_matches('.')).filter(|domain| posthaste_dkim::is_domain(domain));
    Ok(folded.ok_or_else(|| format!("`{}` is not a domain", harmless(domain)))?.into_owned())
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
