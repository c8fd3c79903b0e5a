//! DMARC (RFC 9989): does the domain in From answer for the message, and what does it ask for if not?

mod record;
#[cfg(test)]
mod tests;
mod walk;

pub use record::{DmarcRecord, Policy};

use crate::{Dns, NoAnswer, is_at_or_below};
use walk::Walk;

/// Domains that are named by one message, in lower-case A-labels.
#[derive(Debug, Clone, Copy)]
pub struct Identities<'a> {
    /// The domain of From.
    pub author: &'a str,
    /// The domain for which SPF gave pass.
    pub spf: Option<&'a str>,
    /// Domains whose DKIM signatures gave pass.
    pub dkim: &'a [&'a str],
}

/// The result of an evaluation (RFC 8601 section 2.7.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DmarcResult {
    /// The domain has no policy.
    None,
    /// The domain answers for the message.
    Pass,
    /// It does not.
    Fail,
    /// DNS did not answer.
    TempError,
}

impl DmarcResult {
    /// The word of RFC 8601.
    pub fn name(self) -> &'static str {
        match self {
            DmarcResult::None => "none",
            DmarcResult::Pass => "pass",
            DmarcResult::Fail => "fail",
            DmarcResult::TempError => "temperror",
        }
    }
}

/// The result, and what the domain asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DmarcVerdict {
    /// The result.
    pub result: DmarcResult,
    /// The policy for this author; while the domain tests (`t=y`), one step milder than published.
    pub policy: Policy,
    /// The organisational domain of the author; the author's own without an answer.
    pub organization: String,
}

impl DmarcVerdict {
    /// True for a domain of the author's organisation.
    pub fn is_of_author(&self, domain: &str) -> bool {
        is_at_or_below(domain, &self.organization)
    }
}

/// Evaluates the policy of the author's domain (RFC 9989 sections 4.10 and 5). A walk asks at most 8 questions; there are at most 2 and one for each domain of DKIM.
pub async fn evaluate<D: Dns>(dns: &D, identities: &Identities<'_>) -> DmarcVerdict {
    let verdict =
        |result, policy, organization: &str| DmarcVerdict { result, policy, organization: organization.to_owned() };
    let temporary = || verdict(DmarcResult::TempError, Policy::None, identities.author);
    let author = identities.author;
    let Ok(walk) = Walk::start(dns, author).await else { return temporary() };
    let organization = walk.organization();
    let Some((domain, record)) = walk.policy(&organization) else {
        return verdict(DmarcResult::None, Policy::None, &organization);
    };
    let Ok(policy) = requested(dns, author, domain, record).await else { return temporary() };
    let spf = identities.spf.into_iter().map(|domain| (domain, record.is_spf_strict));
    let dkim = identities.dkim.iter().map(|domain| (*domain, record.is_dkim_strict));
    let mut is_open = false;
    for (domain, is_strict) in spf.chain(dkim) {
        match is_aligned(dns, domain, author, &organization, is_strict).await {
            Ok(true) => return verdict(DmarcResult::Pass, policy, &organization),
            Ok(false) => {}
            Err(_) => is_open = true,
        }
    }
    verdict(if is_open { DmarcResult::TempError } else { DmarcResult::Fail }, policy, &organization)
}

/// The policy of a record for this author (RFC 9989 section 4.10.1).
async fn requested<D: Dns>(dns: &D, author: &str, of: &str, record: &DmarcRecord) -> Result<Policy, NoAnswer> {
    let mut policy = record.policy;
    if of != author {
        policy = record.below.unwrap_or(policy);
        // A name that does not exist has none of any type (RFC 8020).
        if let Some(missing) = record.missing.filter(|missing| *missing != policy) {
            match dns.addresses(author, false).await {
                Err(NoAnswer::NoSuchName) => policy = missing,
                Err(NoAnswer::Temporary) => return Err(NoAnswer::Temporary),
                Ok(_) => {}
            }
        }
    }
    Ok(if record.is_test { policy.milder() } else { policy })
}

async fn is_aligned<D: Dns>(
    dns: &D,
    domain: &str,
    author: &str,
    organization: &str,
    is_strict: bool,
) -> Result<bool, NoAnswer> {
    if domain == author {
        return Ok(true);
    }
    // No walk from elsewhere ends there.
    if is_strict || !is_at_or_below(domain, organization) {
        return Ok(false);
    }
    Ok(Walk::start(dns, domain).await?.organization() == organization)
}
