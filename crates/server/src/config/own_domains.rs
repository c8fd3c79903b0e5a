//! The configured domains, and checks of their DNS records on request.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use posthaste_config::Config;
use posthaste_directory::Directory;
use posthaste_directory::names::folded_domain;
use posthaste_dkim::{KeyDirectory, is_domain};
use posthaste_dns::{DomainCheck, HostView, OwnDomain, RecordSource};
use posthaste_mta_sts::seen_by_https;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::ids::unix_micros;

/// The domains of one configuration. A reload starts over.
#[derive(Debug)]
pub(crate) struct OwnDomains {
    config: Config,
    checks: Arc<Mutex<Checks>>,
}

/// Known records of a domain.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownRecords {
    /// True while a check runs or waits.
    pub is_asking: bool,
    /// The last check, and its end in seconds since 1970.
    pub last: Option<(i64, Result<DomainCheck, String>)>,
}

#[derive(Debug, Default)]
struct Checks {
    under_way: usize,
    /// At most one for each of our domains.
    by_domain: HashMap<String, Check>,
}

#[derive(Debug, Default)]
struct Check {
    is_under_way: bool,
    ended: Option<Instant>,
    last: Option<(i64, Result<DomainCheck, String>)>,
}

/// A running check. It ends when this is dropped, even by a panic.
struct Round {
    checks: Arc<Mutex<Checks>>,
    domain: String,
    outcome: Result<DomainCheck, String>,
}

impl OwnDomains {
    pub fn new(config: &Config) -> Self {
        Self { config: config.clone(), checks: Arc::default() }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Domain names in lower-case A-labels, including aliases, at most [`DOMAINS_MAX`].
    pub fn names(&self) -> BTreeSet<String> {
        let names = self.config.domains.iter().flat_map(|of| [&of.name].into_iter().chain(&of.domain_aliases));
        names.filter_map(|name| domain_name(name)).take(DOMAINS_MAX).collect()
    }

    /// The last check of a domain's records. If it is a minute old, another one starts in the background, with a
    /// limited number at a time. `directory` is that of the configuration. `None`: the domain is not ours. Needs a
    /// runtime.
    pub fn records(&self, directory: &Arc<Directory>, domain: &str) -> Option<KnownRecords> {
        let domain = domain_name(domain).filter(|name| directory.is_ours(name))?;
        let mut checks = lock(&self.checks);
        let Checks { under_way, by_domain } = &mut *checks;
        let check = by_domain.entry(domain.clone()).or_default();
        let is_fresh = check.ended.is_some_and(|ended| ended.elapsed() < CHECK_AGE_MAX);
        if !is_fresh && !check.is_under_way && *under_way < CHECKS_MAX {
            check.is_under_way = true;
            *under_way += 1;
            let outcome = Err("the check has failed: see the server's log".to_owned());
            let round = Round { checks: Arc::clone(&self.checks), domain, outcome };
            let config = self.config.clone();
            let directory = Arc::clone(directory);
            spawn_blocking(move || {
                let outcome = ask(&config, &directory, &round.domain);
                round.end(outcome);
            });
        }
        Some(KnownRecords { is_asking: !is_fresh, last: check.last.clone() })
    }
}

impl Round {
    fn end(mut self, outcome: Result<DomainCheck, String>) {
        self.outcome = outcome;
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, Err(String::new()));
        let mut checks = lock(&self.checks);
        checks.under_way -= 1;
        let check = checks.by_domain.entry(self.domain.clone()).or_default();
        let last = Some((unix_micros() / 1_000_000, outcome));
        *check = Check { is_under_way: false, ended: Some(Instant::now()), last };
    }
}

/// Queries the records. Blocks for [`CHECK_TIME`] at most.
fn ask(config: &Config, directory: &Directory, domain: &str) -> Result<DomainCheck, String> {
    // Keys that cannot be used are told with the list of keys.
    let since = (unix_micros() / 1_000_000).unsigned_abs().saturating_sub(config.dkim_record_secs());
    let keys = KeyDirectory::new(&config.dkim.dir).records(domain, since).map_err(|error| error.to_string())?.records;
    let own = OwnDomain { keys, ..config.own_domain(directory, domain) };
    let certificate = config.host_certificate();
    let ca_file = &config.acme.ca_file;
    Handle::current().block_on(async {
        let view = async |source: RecordSource<'_>| HostView {
            own: seen_by_https(&own, source, HTTPS, ca_file).await,
            tlsa: certificate.records(source).await,
        };
        let asked = timeout(CHECK_TIME, DomainCheck::ask(&own, &config.dns, DNS, view)).await;
        asked.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())
    })
}

/// The name of a domain in lower-case A-labels.
fn domain_name(text: &str) -> Option<String> {
    folded_domain(text).filter(|name| is_domain(name)).map(|name| name.into_owned())
}

fn lock(checks: &Mutex<Checks>) -> MutexGuard<'_, Checks> {
    checks.lock().unwrap_or_else(PoisonError::into_inner)
}

const DNS: u16 = 53;
const HTTPS: u16 = 443;
/// Maximum domains listed.
const DOMAINS_MAX: usize = 1000;
/// Concurrent checks: each has a thread.
const CHECKS_MAX: usize = 2;
/// Time for which a check is reused.
const CHECK_AGE_MAX: Duration = Duration::from_secs(60);
/// Timeout for all queries of a check.
const CHECK_TIME: Duration = Duration::from_secs(60);
