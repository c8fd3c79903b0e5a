//! Checks of a stranger's message: SPF, DKIM, DMARC, the field Authentication-Results, and the treatment of the message by them.

mod findings;
mod questions;
mod treatment;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use posthaste_authres::NoAnswer;
use posthaste_authres::dmarc::{AlignedDomain, AuthorPolicy, DmarcResult, DmarcVerdict, Method, Policy};
use posthaste_authres::spf::{self, Question, SpfResult, Verdict};
use posthaste_directory::names::folded_domain;
use posthaste_dkim::{Claim, DkimResult, Verification, Verifier};
use posthaste_dns::{DnsError, Resolver, join_all};
use posthaste_smtp::ReversePath;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

pub(crate) use findings::SenderFindings;
use questions::Questions;
pub(crate) use treatment::{Treatment, TreatmentRules};

/// The checks of one message, from DATA on. Dropping it cancels their queries.
pub(crate) struct SenderCheck {
    resolver: Arc<Resolver>,
    sender: ClaimedSender,
    /// Runs while the body arrives.
    spf: JoinHandle<Verdict>,
}

/// A client by its own words.
#[derive(Debug, Clone)]
pub(crate) struct ClaimedSender {
    ip: IpAddr,
    helo: String,
    /// The sender of MAIL, its domain in A-labels; empty for the null path.
    address: String,
}

impl ClaimedSender {
    fn question(&self) -> Question<'_> {
        Question { ip: self.ip, helo: &self.helo, sender: &self.address }
    }
}

impl SenderCheck {
    /// Begins to ask for SPF. Needs a tokio runtime.
    pub fn begin(resolver: Arc<Resolver>, ip: IpAddr, helo: &str, path: &ReversePath) -> Self {
        let sender = ClaimedSender { ip, helo: helo.to_owned(), address: folded_address(path) };
        let dns = Questions(Arc::clone(&resolver));
        let claimed = sender.clone();
        let spf = tokio::spawn(async move { spf::check(&dns, &claimed.question()).await });
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
        let sender = self.sender.clone();
        let verified = verified(&self.resolver, verifier.finish(now), senders_deadline);
        let spf = timeout_at(senders_deadline, &mut self.spf);
        let policy = policy_of(Questions(Arc::clone(&self.resolver)), author.as_deref(), deadline);
        let (spf, dkim, policy) = tokio::join!(spf, verified, policy);
        let unanswered = || Verdict::unanswered(&sender.question());
        let spf = spf.ok().and_then(Result::ok).unwrap_or_else(unanswered);
        let dmarc = match author.as_deref().zip(policy) {
            Some((author, Ok(policy))) => Some(self.judged(author, &policy, &spf, &dkim, deadline).await),
            Some((author, Err(_))) => Some(DmarcVerdict::unanswered(author)),
            None => None,
        };
        let is_foreign_client = match (&author, &dmarc) {
            (Some(author), Some(dmarc)) if dmarc.result == DmarcResult::Fail && dmarc.policy == Policy::Reject => {
                self.is_foreign_to(author, &spf, deadline).await
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
        policy: &AuthorPolicy,
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

impl Drop for SenderCheck {
    fn drop(&mut self) {
        self.spf.abort();
    }
}

/// Results of the signatures; their keys are queried concurrently.
async fn verified(resolver: &Resolver, claims: Vec<Claim>, deadline: Instant) -> Vec<Verification> {
    let verify = async |claim: Claim| {
        let Some(name) = claim.key_name() else { return claim.verify(None) };
        match timeout_at(deadline, resolver.of_strangers().texts(&name)).await {
            Ok(Ok(texts)) => claim.verify(Some(&texts)),
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
