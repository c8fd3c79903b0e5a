//! `[checks]`: the checks of mail from strangers.

use std::net::IpAddr;

use posthaste_directory::names::folded_domain;
use posthaste_message::address::is_domain;
use posthaste_net::is_much_of_the_internet;
use posthaste_smtp::driver::IpNet;
use posthaste_units::check_bounds;
use posthaste_units::values::Table;
use posthaste_units::words::{Key, Problem};
use serde::{Deserialize, Serialize};

use super::values;
use crate::reload::{NeedsRestart, Reload, all_of};

/// SPF, DKIM and DMARC of mail from strangers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checks {
    /// Check SPF, DKIM and DMARC of strangers' mail, and write the results into its header.
    pub enabled: bool,
    /// Time for answers of DNS once a message is here, at most 50: all checks at its end have 60 s together. A check without an answer by then is a `temperror`; the mail is taken.
    #[serde(deserialize_with = "values::secs")]
    pub timeout_secs: u64,
    /// Other names of this service, such as an earlier `host_name`. Fields Authentication-Results with one of them, or with `host_name`, are taken out of strangers' mail.
    pub authserv_ids: Vec<String>,
    /// Mail whose author's domain does not answer for it (DMARC). `"junk"`: if the domain asks for quarantine or refusal, it goes into the mailbox Junk, where there is one.
    /// `"reject"`: like `"junk"`, and [surely forged mail](checks.md#forged-mail) is refused. `"always"`: all is refused whose domain asks for that. `"none"`: taken as any other.
    pub enforce: Enforce,
    /// Mail for whose checks DNS has no answer: `"accept"`, or `"defer"` with 451 (only with `enforce` `"reject"` or `"always"`).
    pub on_temperror: OnTempError,
    /// Hosts that forward mail to you, or change it as lists do: their addresses or networks, or the domains of their DKIM signatures. Their mail is never refused, nor put into Junk.
    pub trusted_forwarders: Vec<String>,
}

/// The treatment of mail that fails DMARC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforce {
    /// No special treatment.
    None,
    /// Into Junk.
    Junk,
    /// Into Junk; refused if it is surely forged.
    #[default]
    Reject,
    /// Into Junk, or refused if the domain asks for that.
    Always,
}

/// The treatment of mail that cannot be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTempError {
    /// Accept the mail as not authenticated.
    #[default]
    Accept,
    /// Defer the mail with a temporary refusal.
    Defer,
}

impl Table for Checks {
    const NAME: &str = "checks";
}

impl Reload for Checks {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

impl Default for Checks {
    fn default() -> Self {
        let enforce = Enforce::default();
        let on_temperror = OnTempError::default();
        let authserv_ids = Vec::new();
        let trusted_forwarders = Vec::new();
        Self { enabled: true, timeout_secs: TIMEOUT_SECS_MAX, authserv_ids, enforce, on_temperror, trusted_forwarders }
    }
}

impl Checks {
    pub(super) fn check(&self) -> Result<(), Problem> {
        check_bounds(Self::NAME, &[("timeout_secs", self.timeout_secs, 1, TIMEOUT_SECS_MAX)])?;
        let is_name = |name: &String| is_domain(name) && folded_domain(name).is_some();
        let wrong = self.authserv_ids.iter().position(|id| !is_name(id));
        if let Some(index) = wrong {
            let at = [Self::NAME.into(), "authserv_ids".into(), index.into()];
            return Err(Problem::new(at, "not the name of a service, such as mx.example.org"));
        }
        let wrong = self.trusted_forwarders.iter().position(|of| network(of).is_none() && !is_name(of));
        let at = |index: usize| -> [Key; 3] { [Self::NAME.into(), "trusted_forwarders".into(), index.into()] };
        if let Some(index) = wrong {
            return Err(Problem::new(at(index), "neither an address, a network such as 192.0.2.0/24, nor a domain"));
        }
        let networks = |count: usize| -> Vec<IpNet> {
            self.trusted_forwarders[..count].iter().filter_map(|of| network(of)).collect()
        };
        let counts: Vec<usize> = (1..=self.trusted_forwarders.len()).collect();
        let index = counts.partition_point(|&count| !is_much_of_the_internet(&networks(count)));
        match self.trusted_forwarders.get(index) {
            Some(_) => Err(Problem::new(at(index), TOO_MANY)),
            None => Ok(()),
        }
    }

    /// Networks and domains of `trusted_forwarders`, domains in the form of DNS.
    pub fn forwarders(&self) -> (Vec<IpNet>, Vec<String>) {
        let networks = self.trusted_forwarders.iter().filter_map(|of| network(of)).collect();
        let domains = self.trusted_forwarders.iter().filter(|of| network(of).is_none());
        (networks, domains.filter_map(|domain| Some(folded_domain(domain)?.into_owned())).collect())
    }
}

/// The common deadline of all checks at the end of a message.
pub const CHECKS_SECS: u64 = 60;
/// Maximum of `timeout_secs`. The rest is for the treatment of a message whose checks DNS has not answered.
const TIMEOUT_SECS_MAX: u64 = CHECKS_SECS - 10;

const TOO_MANY: &str = "the networks up to this one are more than a /8 of the internet's IPv4 addresses or a /16 of its IPv6 addresses, and their clients are not checked; list only the hosts that forward mail to you";

fn network(text: &str) -> Option<IpNet> {
    text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse()).ok()
}

#[cfg(test)]
mod tests {
    use crate::tests::error_of;

    #[test]
    fn answers_of_dns_end_before_the_minute_of_all_checks() {
        assert!(error_of("[checks]\ntimeout_secs = 51\n").contains("50"));
        assert!(error_of("[checks]\ntimeout_secs = 0\n").contains("timeout_secs"));
    }
}
