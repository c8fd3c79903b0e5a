//! DMARC (RFC 9989): whether the domain in From authenticates the message, and its policy if not.

mod record;
#[cfg(test)]
mod tests;
mod walk;

pub use record::{DmarcRecord, Policy};

use crate::{Dns, NoAnswer, is_at_or_below};
use walk::Walk;

/// The method that authenticated a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// SPF: the domain of MAIL or EHLO.
    Spf,
    /// DKIM: the domain of a signature.
    Dkim,
}

/// A domain that may answer for the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlignedDomain<'a> {
    /// In lower-case A-labels.
    pub domain: &'a str,
    /// The method with the result pass.
    pub method: Method,
    /// True if DNS did not answer: with an answer the method might pass.
    pub is_open: bool,
}

/// The result of an evaluation (RFC 8601 section 2.7.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DmarcResult {
    /// The domain has no policy.
    None,
    /// The domain answers for the message.
    Pass,
    /// The message does not pass.
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
    /// The result, and the domain's policy.
    pub result: DmarcResult,
    /// The policy for this author; while the domain tests (`t=y`), one step milder than published.
    pub policy: Policy,
    /// The organisational domain of the author; the author's own domain if DNS gave no answer.
    pub organization: String,
}

impl DmarcVerdict {
    /// The verdict without an answer for the author's policy.
    pub fn unanswered(author: &str) -> Self {
        Self { result: DmarcResult::TempError, policy: Policy::None, organization: author.to_owned() }
    }

    /// True for a domain of the author's organisation.
    pub fn is_of_author(&self, domain: &str) -> bool {
        is_at_or_below(domain, &self.organization)
    }
}

/// The policy for mail of an author, found without the results of other methods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorPolicy {
    author: String,
    organization: String,
    /// The record; `None` if there is none.
    found: Option<(DmarcRecord, Policy)>,
}

impl AuthorPolicy {
    /// Looks for the policy of the domain in From, given in lower-case A-labels (RFC 9989 section 4.10). It asks at most 9 questions.
    ///
    /// # Errors
    /// [`NoAnswer::Temporary`].
    pub async fn look_up<D: Dns>(dns: &D, author: &str) -> Result<Self, NoAnswer> {
        let walk = Walk::start(dns, author).await?;
        let organization = walk.organization();
        let found = match walk.policy(organization) {
            Some((domain, record)) => Some((record, requested(dns, author, domain, &record).await?)),
            None => None,
        };
        Ok(Self { author: author.to_owned(), organization: organization.to_owned(), found })
    }

    /// Evaluates the policy (RFC 9989 section 5). It asks at most 8 questions for each identity of the author's organisation.
    pub async fn judge<D: Dns>(self, dns: &D, identities: &[AlignedDomain<'_>]) -> DmarcVerdict {
        let Some((record, policy)) = self.found else {
            let Self { organization, .. } = self;
            return DmarcVerdict { result: DmarcResult::None, policy: Policy::None, organization };
        };
        let mut result = DmarcResult::Fail;
        // One that passes decides, so these are first.
        let of = |is_open: bool| identities.iter().filter(move |identity| identity.is_open == is_open);
        for identity in of(false).chain(of(true)) {
            match self.is_aligned(dns, &record, identity).await {
                Ok(true) if !identity.is_open => {
                    result = DmarcResult::Pass;
                    break;
                }
                Ok(false) => {}
                Ok(true) | Err(_) => result = DmarcResult::TempError,
            }
        }
        DmarcVerdict { result, policy, organization: self.organization }
    }

    async fn is_aligned<D: Dns>(
        &self,
        dns: &D,
        record: &DmarcRecord,
        identity: &AlignedDomain<'_>,
    ) -> Result<bool, NoAnswer> {
        if identity.domain == self.author {
            return Ok(true);
        }
        let is_strict = match identity.method {
            Method::Spf => record.is_spf_strict,
            Method::Dkim => record.is_dkim_strict,
        };
        // No walk from elsewhere ends there.
        if is_strict || !is_at_or_below(identity.domain, &self.organization) {
            return Ok(false);
        }
        Ok(Walk::start(dns, identity.domain).await?.organization() == self.organization)
    }
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
