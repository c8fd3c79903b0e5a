//! Checks of a stranger's message: SPF, DKIM, DMARC, Authentication-Results, and the resulting treatment.

mod findings;
mod questions;
mod treatment;

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use posthaste_authres::NoAnswer;
use posthaste_authres::dmarc::{AlignedDomain, AuthorPolicy, DmarcResult, DmarcVerdict, Method, Policy};
use posthaste_authres::spf::{self, Question, SpfResult, Verdict};
use posthaste_directory::names::folded_domain;
use posthaste_dkim::{Claim, DkimResult, KnownKeys, Verification, Verifier};
use posthaste_dns::{DnsError, Resolver, join_all};
use posthaste_smtp::ReversePath;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use findings::ClaimedSender;
pub(crate) use findings::SenderFindings;
use questions::Questions;
pub(crate) use treatment::{Treatment, TreatmentRules};

/// The checks of one message, from DATA on. Dropping it cancels their queries.
pub(crate) struct SenderCheck {
    resolver: Arc<Resolver>,
    sender: Arc<ClaimedSender>,
    spf: Spf,
}

/// The check of SPF.
enum Spf {
    /// All answers of DNS were cached.
    Known(Verdict),
    /// Runs while the body arrives.
    Running(JoinHandle<Verdict>),
}

impl Spf {
    /// Starts the check. Needs a tokio runtime.
    fn begin(resolver: &Arc<Resolver>, sender: &Arc<ClaimedSender>) -> Self {
        let (dns, claimed) = (Questions(Arc::clone(resolver)), Arc::clone(sender));
        let mut check = Box::pin(async move { spf::check(&dns, &claimed.question()).await });
        // Most answers are known, and a task costs more than the check. Whoever runs the task polls again.
        match check.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(verdict) => Self::Known(verdict),
            Poll::Pending => Self::Running(tokio::spawn(check)),
        }
    }

    /// The verdict; `None` if the deadline passes.
    async fn verdict(&mut self, deadline: Instant) -> Option<Verdict> {
        match self {
            Self::Known(verdict) => Some(verdict.clone()),
            Self::Running(check) => timeout_at(deadline, check).await.ok().and_then(Result::ok),
        }
    }
}

impl SenderCheck {
    /// Begins to ask for SPF. Needs a tokio runtime.
    pub fn begin(resolver: Arc<Resolver>, ip: IpAddr, helo: &str, path: &ReversePath) -> Self {
        let sender = Arc::new(ClaimedSender { ip, helo: helo.to_owned(), address: folded_address(path) });
        let spf = Spf::begin(&resolver, &sender);
        Self { resolver, sender, spf }
    }

    /// The results, `patience` from now at the latest: a check that has no answer by then is a temporary error. `author`: the domain of From. `now`: in seconds since 1970.
    pub async fn findings(
        mut self,
        verifier: Verifier,
        author: Option<String>,
        patience: Duration,
        now: u64,
    ) -> SenderFindings {
        let begun = Instant::now();
        let deadline = begun + patience;
        // Whoever sends the message chooses these names, and how slowly they answer: the author's domain must be heard all the same.
        let senders_deadline = begun + patience.mul_f32(SENDERS_SHARE);
        let sender = Arc::clone(&self.sender);
        let verified = verified(&self.resolver, verifier.finish(now), senders_deadline);
        let spf = self.spf.verdict(senders_deadline);
        let policy = policy_of(Questions(Arc::clone(&self.resolver)), author.as_deref(), deadline);
        let (spf, dkim, policy) = tokio::join!(spf, verified, policy);
        let spf = spf.unwrap_or_else(|| Verdict::unanswered(&sender.question()));
        let dmarc = match author.as_deref().zip(policy) {
            Some((author, Ok(policy))) => Some(self.judged(author, policy, &spf, &dkim, deadline).await),
            Some((author, Err(_))) => Some(DmarcVerdict::unanswered(author)),
            None => None,
        };
        let is_foreign_client = match (&author, &dmarc) {
            (Some(author), Some(dmarc)) if dmarc.result == DmarcResult::Fail && dmarc.policy == Policy::Reject => {
                // In a box, as few messages need it.
                Box::pin(self.is_foreign_to(author, &spf, deadline)).await
            }
            _ => false,
        };
        SenderFindings { sender, author, spf, dkim, dmarc, is_foreign_client }
    }

    /// True if the domain of From excludes this client.
    async fn is_foreign_to(&self, author: &str, spf: &Verdict, deadline: Instant) -> bool {
        if spf.domain == author {
            return spf.result == SpfResult::Fail;
        }
        let dns = Questions(Arc::clone(&self.resolver));
        let address = format!("postmaster@{author}");
        let question = Question { ip: self.sender.ip, helo: &self.sender.helo, sender: &address };
        let verdict = timeout_at(deadline, spf::check(&dns, &question)).await;
        verdict.is_ok_and(|verdict| verdict.result == SpfResult::Fail)
    }

    async fn judged(
        &self,
        author: &str,
        policy: AuthorPolicy,
        spf: &Verdict,
        dkim: &[Verification],
        deadline: Instant,
    ) -> DmarcVerdict {
        let spf = match spf.result {
            SpfResult::Pass | SpfResult::TempError => Some(AlignedDomain {
                domain: &spf.domain,
                method: Method::Spf,
                is_open: spf.result == SpfResult::TempError,
            }),
            _ => None,
        };
        let dkim = dkim.iter().filter_map(|signature| {
            let is_open = signature.result == DkimResult::TempError;
            let is_named = is_open || signature.is_proof();
            is_named.then_some(AlignedDomain { domain: &signature.domain, method: Method::Dkim, is_open })
        });
        let identities: Vec<AlignedDomain<'_>> = spf.into_iter().chain(dkim).collect();
        let dns = Questions(Arc::clone(&self.resolver));
        let judged = timeout_at(deadline, policy.judge(&dns, &identities)).await;
        judged.unwrap_or_else(|_| DmarcVerdict::unanswered(author))
    }
}

/// The part of all time reserved for queries of SPF and DKIM.
const SENDERS_SHARE: f32 = 0.7;

/// The policy of From's domain, if any.
async fn policy_of(dns: Questions, author: Option<&str>, deadline: Instant) -> Option<Result<AuthorPolicy, NoAnswer>> {
    let found = timeout_at(deadline, AuthorPolicy::look_up(&dns, author?)).await;
    Some(found.unwrap_or(Err(NoAnswer::Temporary)))
}

impl Drop for Spf {
    fn drop(&mut self) {
        if let Self::Running(check) = self {
            check.abort();
        }
    }
}

/// Keys by their DNS records, shared by receivers of any configuration.
static KNOWN_KEYS: LazyLock<KnownKeys> = LazyLock::new(KnownKeys::default);

/// Results of the signatures; their keys are queried concurrently.
async fn verified(resolver: &Resolver, claims: Vec<Claim>, deadline: Instant) -> Vec<Verification> {
    let verify = async |claim: Claim| {
        let Some(name) = claim.key_name() else { return claim.verify(None) };
        match timeout_at(deadline, resolver.of_strangers().texts(&name)).await {
            Ok(Ok(texts)) => claim.verify_with(Some(&texts), &KNOWN_KEYS),
            Err(_) | Ok(Err(DnsError::Unanswered { .. })) => claim.verify(None),
            Ok(Err(_)) => claim.verify(Some(&[])),
        }
    };
    join_all(claims.into_iter().map(verify)).await
}

/// Like [`ReversePath::bare`], with a domain in the form of DNS.
fn folded_address(path: &ReversePath) -> String {
    let bare = path.bare();
    let folded = bare.rsplit_once('@').and_then(|(local, domain)| Some(format!("{local}@{}", folded_domain(domain)?)));
    folded.unwrap_or(bare)
}

#[cfg(test)]
mod tests {
    use posthaste_config::{CHECKS_SECS, Checks};
    use posthaste_dns::Settings;
    use posthaste_dns_stub::{Server, Zone};

    use super::*;

    #[tokio::test]
    async fn a_check_whose_answers_are_known_needs_no_task() {
        let server = Server::start(Zone::default().txt("a.example", "v=spf1 ip4:192.0.2.1 -all"));
        let settings = Settings { servers: vec![server.address()], ..Settings::default() };
        let resolver = Arc::new(Resolver::new(&settings).unwrap());
        let ip = "192.0.2.1".parse().unwrap();
        let (helo, address) = ("mx.a.example".to_owned(), "ann@a.example".to_owned());
        let sender = Arc::new(ClaimedSender { ip, helo, address });
        let mut first = Spf::begin(&resolver, &sender);
        assert!(matches!(first, Spf::Running(_)));
        let verdict = first.verdict(Instant::now() + Duration::from_secs(60)).await.unwrap();
        assert_eq!(verdict.result, SpfResult::Pass);
        let second = Spf::begin(&resolver, &sender);
        assert!(matches!(&second, Spf::Known(known) if *known == verdict));
    }

    #[test]
    fn spf_has_20_seconds_within_the_minute_of_all_checks() {
        let patience = Duration::from_secs(Checks::default().timeout_secs);
        // RFC 7208 section 4.6.4.
        assert!(patience.mul_f32(SENDERS_SHARE) >= Duration::from_secs(20));
        // Whoever has no answer by then is still treated as configured.
        assert!(patience < Duration::from_secs(CHECKS_SECS));
    }
}
