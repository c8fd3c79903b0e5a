//! The policy in force for a domain: from its record, the stored policy, and its web server.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_dns::{Cache, Resolver};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use crate::fetch::{AuthoritiesError, Fetcher};
use crate::kept::{KeptPolicies, KeptPolicy, unix_secs};
use crate::policy::{Mode, StsPolicy};
use crate::record::policy_id;

/// Finds policies. Shared by all tasks.
#[derive(Debug)]
pub struct Policies(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fetcher: Fetcher,
    kept: KeptPolicies,
    /// Policies by domain and id; concurrent callers share one fetch.
    found: Cache<FoundPolicy>,
    turns: Semaphore,
    fetched: AtomicU64,
    failed: AtomicU64,
}

/// The policy of a domain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundPolicy {
    /// The policy in mode `enforce` or `testing`. `None`: mail is sent as without MTA-STS.
    pub policy: Option<Arc<StsPolicy>>,
    /// The domain has a record, but its policy is unavailable. An earlier policy stays in force.
    pub problem: Option<Arc<str>>,
}

/// Policies cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PolicyOpenError {
    /// The authorities of web servers.
    #[error(transparent)]
    Authorities(#[from] AuthoritiesError),
    /// The directory of policies.
    #[error("{path}: {error}")]
    Directory {
        /// Its path.
        path: String,
        /// The system's error.
        error: io::Error,
    },
}

impl Policies {
    /// Stores policies in the directory `dir`, which is created if missing, and trusts the authorities of a PEM file.
    /// Blocks.
    ///
    /// # Errors
    /// [`PolicyOpenError`].
    pub fn open(dir: &Path, ca_file: &Path) -> Result<Self, PolicyOpenError> {
        Self::with(dir, Fetcher::new(ca_file)?)
    }

    /// Stores policies in memory only, for a program with few queries. Blocks.
    ///
    /// # Errors
    /// [`PolicyOpenError::Authorities`].
    pub fn in_memory(ca_file: &Path) -> Result<Self, PolicyOpenError> {
        Ok(Self::new(Fetcher::new(ca_file)?, KeptPolicies::default()))
    }

    pub(crate) fn with(dir: &Path, fetcher: Fetcher) -> Result<Self, PolicyOpenError> {
        let failed = |error| PolicyOpenError::Directory { path: dir.display().to_string(), error };
        Ok(Self::new(fetcher, KeptPolicies::open(dir, unix_secs()).map_err(failed)?))
    }

    fn new(fetcher: Fetcher, kept: KeptPolicies) -> Self {
        let found = Cache::new(FOUND_MAX);
        let turns = Semaphore::new(FETCHES_MAX);
        Self(Arc::new(Inner { fetcher, kept, found, turns, fetched: AtomicU64::new(0), failed: AtomicU64::new(0) }))
    }

    /// The policy of a domain in lower case and A-labels. Queries DNS, and fetches an unknown policy, which can take a
    /// minute and a half.
    pub async fn of(&self, resolver: &Resolver, domain: &str) -> FoundPolicy {
        let texts = resolver.plain().texts(&format!("_mta-sts.{domain}")).await;
        let id = texts.as_ref().ok().and_then(|texts| policy_id(texts));
        let mut found = match id {
            Some(id) => {
                let look_up = self.look_up(resolver, domain, id);
                self.0.found.get(&format!("{domain} {id}"), Instant::now(), look_up).await
            }
            // Whoever can hide the record has not ended the policy (RFC 8461 section 5.1).
            None => FoundPolicy { policy: self.kept(domain).await.map(|kept| Arc::new(kept.policy)), problem: None },
        };
        found.policy = found.policy.filter(|policy| policy.mode != Mode::None);
        found
    }

    /// Successful and failed fetches since the start.
    pub fn counts(&self) -> (u64, u64) {
        (self.0.fetched.load(Ordering::Relaxed), self.0.failed.load(Ordering::Relaxed))
    }

    async fn kept(&self, domain: &str) -> Option<KeptPolicy> {
        if !self.0.kept.has(domain) {
            return None;
        }
        let inner = Arc::clone(&self.0);
        let domain = domain.to_owned();
        spawn_blocking(move || inner.kept.get(&domain, unix_secs())).await.ok()?
    }

    /// The policy with this id, and its refresh time.
    async fn look_up(&self, resolver: &Resolver, domain: &str, id: &str) -> (FoundPolicy, Instant) {
        let kept = self.kept(domain).await;
        let of_id = kept.as_ref().filter(|kept| kept.id == id);
        if let Some(kept) = of_id {
            let age = unix_secs().saturating_sub(kept.fetched);
            let fresh = fresh_secs(&kept.policy);
            if age < fresh {
                let policy = Some(Arc::new(kept.policy.clone()));
                return (FoundPolicy { policy, problem: None }, after(fresh - age));
            }
        }
        match self.fetch(resolver, domain, id).await {
            Ok(policy) => {
                self.0.fetched.fetch_add(1, Ordering::Relaxed);
                let until = after(fresh_secs(&policy));
                (FoundPolicy { policy: Some(Arc::new(policy)), problem: None }, until)
            }
            Err(problem) => {
                self.0.failed.fetch_add(1, Ordering::Relaxed);
                let policy = kept.map(|kept| Arc::new(kept.policy));
                (FoundPolicy { policy, problem: Some(problem.into()) }, after(FAILED_SECS))
            }
        }
    }

    async fn fetch(&self, resolver: &Resolver, domain: &str, id: &str) -> Result<StsPolicy, String> {
        let found = resolver.addresses(&format!("mta-sts.{domain}")).await.map_err(|error| error.to_string())?;
        let turn = timeout(TURN, self.0.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else { return Err("too many policies are being fetched".to_owned()) };
        let inner = Arc::clone(&self.0);
        let domain = domain.to_owned();
        let id = id.to_owned();
        let fetching = spawn_blocking(move || {
            let text = inner.fetcher.fetch(&domain, found.all())?;
            let policy = StsPolicy::parse(&text).map_err(|error| format!("the policy of {domain}: {error}"))?;
            // On a full disk it is in force all the same, until a restart.
            let _ = inner.kept.put(&domain, &id, unix_secs(), &policy);
            Ok::<_, String>(policy)
        });
        fetching.await.map_err(|error| error.to_string())?
    }
}

/// A policy is fetched again daily, or earlier if it is valid for less than two days (RFC 8461 section 3.3), so that
/// there is no gap.
fn fresh_secs(policy: &StsPolicy) -> u64 {
    (policy.max_age_secs / 2).clamp(60, 86_400)
}

fn after(secs: u64) -> Instant {
    Instant::now() + Duration::from_secs(secs)
}

/// Seconds until a failed fetch is repeated (RFC 8461 section 3.3).
const FAILED_SECS: u64 = 300;
const FOUND_MAX: usize = 2000;
/// Each blocks a thread.
const FETCHES_MAX: usize = 16;
const TURN: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use posthaste_dns::{IpStrategy, Settings};
    use posthaste_dns_stub::{Server, Zone};

    use super::*;
    use crate::fetch::tests::{WebServer, ok};

    const TEXT: &str = "version: STSv1\nmode: enforce\nmx: mx.a.example\nmax_age: 86400\n";

    fn zone(record: Option<&str>) -> Zone {
        let zone = Zone::default().a("mta-sts.a.example", "127.0.0.1".parse().unwrap());
        match record {
            Some(record) => zone.txt("_mta-sts.a.example", record),
            None => zone,
        }
    }

    fn resolver(server: &Server) -> Resolver {
        let settings = Settings { servers: vec![server.address()], ip: IpStrategy::Ipv4First, ..Settings::default() };
        Resolver::new(&settings).unwrap()
    }

    async fn mode_and_problem(policies: &Policies, zone: Zone) -> (Option<Mode>, bool) {
        let server = Server::start(zone);
        let found = policies.of(&resolver(&server), "a.example").await;
        (found.policy.map(|policy| policy.mode), found.problem.is_some())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn many_callers_have_one_fetch_and_a_restart_none() {
        let (dir, web) = (tempfile::tempdir().unwrap(), WebServer::start("mta-sts.a.example", ok(TEXT)));
        let server = Server::start(zone(Some("v=STSv1; id=1;")));
        let (policies, resolver) = (Policies::with(dir.path(), web.fetcher()).unwrap(), resolver(&server));
        let found = posthaste_dns::join_all((0..20).map(|_| policies.of(&resolver, "a.example"))).await;
        let expected = StsPolicy::parse(TEXT).unwrap();
        assert!(found.iter().all(|found| found.policy.as_deref() == Some(&expected) && found.problem.is_none()));
        let again = Policies::with(dir.path(), web.fetcher()).unwrap();
        assert_eq!(again.of(&resolver, "a.example").await, found[0]);
        assert_eq!((web.answered.load(Ordering::SeqCst), policies.counts(), again.counts()), (1, (1, 0), (0, 0)));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_policy_holds_without_its_record_and_without_its_web_server() {
        let (dir, web) = (tempfile::tempdir().unwrap(), WebServer::start("mta-sts.a.example", ok(TEXT)));
        let policies = Policies::with(dir.path(), web.fetcher()).unwrap();
        assert_eq!(mode_and_problem(&policies, zone(None)).await, (None, false), "no record, nothing kept");
        assert_eq!(mode_and_problem(&policies, zone(Some("v=STSv1; id=1;"))).await, (Some(Mode::Enforce), false));
        assert_eq!(mode_and_problem(&policies, zone(None)).await, (Some(Mode::Enforce), false), "the record is gone");
        let broken = WebServer::start("mta-sts.a.example", "HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n");
        let policies = Policies::with(dir.path(), broken.fetcher()).unwrap();
        assert_eq!(mode_and_problem(&policies, zone(Some("v=STSv1; id=2;"))).await, (Some(Mode::Enforce), true));
        assert_eq!(mode_and_problem(&policies, zone(Some("v=STSv1; id=2;"))).await, (Some(Mode::Enforce), true));
        assert_eq!(broken.answered.load(Ordering::SeqCst), 1, "not tried again at once");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn without_a_policy_that_can_be_had_mail_goes_as_ever() {
        let dir = tempfile::tempdir().unwrap();
        let web = WebServer::start("mta-sts.a.example", ok("version: STSv2\n"));
        let policies = Policies::with(dir.path(), web.fetcher()).unwrap();
        assert_eq!(mode_and_problem(&policies, zone(Some("v=STSv1; id=1;"))).await, (None, true));
        assert_eq!(policies.counts(), (0, 1));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_mode_none_ends_a_policy() {
        let (dir, web) = (tempfile::tempdir().unwrap(), WebServer::start("mta-sts.a.example", ok(TEXT)));
        let policies = Policies::with(dir.path(), web.fetcher()).unwrap();
        assert_eq!(mode_and_problem(&policies, zone(Some("v=STSv1; id=1;"))).await, (Some(Mode::Enforce), false));
        let none = WebServer::start("mta-sts.a.example", ok("version: STSv1\nmode: none\nmax_age: 86400\n"));
        let policies = Policies::with(dir.path(), none.fetcher()).unwrap();
        assert_eq!(mode_and_problem(&policies, zone(Some("v=STSv1; id=2;"))).await, (None, false));
        assert_eq!(mode_and_problem(&policies, zone(None)).await, (None, false));
    }
}
