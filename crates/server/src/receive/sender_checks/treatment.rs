use posthaste_authres::dmarc::{DmarcResult, Policy};
use posthaste_authres::spf::SpfResult;
use posthaste_config::{Checks, Enforce, OnTempError};
use posthaste_dkim::DkimResult;
use posthaste_smtp::Reply;
use posthaste_smtp::driver::ByNetwork;

use super::findings::SenderFindings;

/// Treatment of a message by its results.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    Take,
    /// Into the mailbox Junk, for this reason.
    Junk(String),
    Refuse(Reply),
}

/// The configured treatment of messages whose senders are not authenticated.
#[derive(Debug)]
pub(crate) struct TreatmentRules {
    enforce: Enforce,
    on_temperror: OnTempError,
    forwarder_networks: ByNetwork<bool>,
    forwarder_domains: Vec<String>,
}

impl TreatmentRules {
    /// Expects validated settings.
    pub fn new(checks: &Checks) -> Self {
        let (networks, domains) = checks.forwarders();
        let forwarder_networks = ByNetwork::new(false, networks.into_iter().map(|network| (network, true)).collect());
        let enforce = checks.enforce;
        let on_temperror = checks.on_temperror;
        Self { enforce, on_temperror, forwarder_networks, forwarder_domains: domains }
    }

    /// Decides the treatment of a message. `is_exempt`: it is only for postmaster and abuse, where senders ask for help
    /// after a refusal.
    pub fn treatment(&self, findings: &SenderFindings, is_exempt: bool) -> Treatment {
        if self.enforce == Enforce::None || self.is_forwarder(findings) {
            return Treatment::Take;
        }
        if let Some(reply) = self.refusal(findings, is_exempt) {
            return Treatment::Refuse(reply);
        }
        // Else a second address in From would free the mail from the policy of the first.
        let Some((author, dmarc)) = findings.author.as_deref().zip(findings.dmarc.as_ref()) else {
            return Treatment::Junk(NO_AUTHOR.to_owned());
        };
        let asked = match dmarc.policy {
            Policy::None => return Treatment::Take,
            Policy::Quarantine => "quarantine",
            Policy::Reject => "reject",
        };
        match dmarc.result {
            DmarcResult::Fail => Treatment::Junk(format!("DMARC of {author}: {asked}")),
            _ => Treatment::Take,
        }
    }

    fn refusal(&self, findings: &SenderFindings, is_exempt: bool) -> Option<Reply> {
        if self.enforce == Enforce::Junk {
            return None;
        }
        let spf = &findings.spf;
        if spf.sends_nothing && spf.result == SpfResult::Fail && spf.is_of_sender {
            return Some(Reply::new(550, "5.7.23", format!("SPF of {}: this domain sends no mail", spf.domain)));
        }
        if is_exempt {
            return None;
        }
        let Some((author, dmarc)) = findings.author.as_deref().zip(findings.dmarc.as_ref()) else {
            return Some(Reply::new(550, "5.7.1", "The message must have one From field with addresses of one domain"));
        };
        let is_unanswered = spf.result == SpfResult::TempError
            || findings.dkim.iter().any(|signature| signature.result == DkimResult::TempError);
        let is_open = dmarc.result == DmarcResult::TempError || is_unanswered && dmarc.result != DmarcResult::Pass;
        if is_open && self.on_temperror == OnTempError::Defer {
            return Some(Reply::new(451, "4.7.24", "DNS has no answer for the checks of the sender, try again later"));
        }
        let is_refused = dmarc.result == DmarcResult::Fail && dmarc.policy == Policy::Reject;
        let mut counted = findings.dkim.iter().filter(|signature| signature.counts());
        let is_unsigned = !counted.any(|signature| dmarc.is_of_author(&signature.domain));
        // A broken signature hints at a list, which has changed the message (RFC 9989 section 7.4).
        let is_sure = is_unsigned && findings.is_foreign_client;
        (is_refused && (is_sure || self.enforce == Enforce::Always))
            .then(|| Reply::new(550, "5.7.26", format!("DMARC of {author}: reject")))
    }

    /// True if the client forwards and changes mail: by its address, or by a valid signature.
    fn is_forwarder(&self, findings: &SenderFindings) -> bool {
        let mut passed = findings.dkim.iter().filter(|signature| signature.is_proof());
        *self.forwarder_networks.get(Some(findings.sender.ip))
            || passed.any(|signature| self.forwarder_domains.contains(&signature.domain))
    }
}

/// Why a message without an author is suspect.
const NO_AUTHOR: &str = "it has not one From field with addresses of one domain";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use posthaste_authres::dmarc::DmarcVerdict;
    use posthaste_authres::spf::Verdict;
    use posthaste_dkim::Verification;

    use super::*;
    use crate::receive::sender_checks::findings::ClaimedSender;

    const CLIENT: &str = "192.0.2.1";

    fn rules(enforce: Enforce) -> TreatmentRules {
        let trusted_forwarders = ["198.51.100.0/24", "203.0.113.5", "List.example"].map(str::to_owned).to_vec();
        TreatmentRules::new(&Checks { enforce, trusted_forwarders, ..Checks::default() })
    }

    fn claimed(client: &str) -> Arc<ClaimedSender> {
        Arc::new(ClaimedSender { ip: client.parse().unwrap(), helo: String::new(), address: String::new() })
    }

    /// Surely forged.
    fn forged() -> SenderFindings {
        let spf = Verdict {
            result: SpfResult::Pass,
            domain: "evil.example".to_owned(),
            is_of_sender: true,
            sends_nothing: false,
        };
        let organization = "bank.example".to_owned();
        SenderFindings {
            sender: claimed(CLIENT),
            author: Some("bank.example".to_owned()),
            spf,
            dkim: Vec::new(),
            dmarc: Some(DmarcVerdict { result: DmarcResult::Fail, policy: Policy::Reject, organization }),
            is_foreign_client: true,
        }
    }

    fn signed(domain: &str, result: DkimResult) -> SenderFindings {
        let signature = Verification {
            domain: domain.to_owned(),
            selector: String::new(),
            signature_start: String::new(),
            result,
            why: "",
            is_test: false,
        };
        SenderFindings { dkim: vec![signature], ..forged() }
    }

    fn under_test(domain: &str) -> SenderFindings {
        let mut findings = signed(domain, DkimResult::Pass);
        findings.dkim[0].is_test = true;
        findings
    }

    fn asks_for(policy: Policy) -> SenderFindings {
        let organization = "bank.example".to_owned();
        SenderFindings { dmarc: Some(DmarcVerdict { result: DmarcResult::Fail, policy, organization }), ..forged() }
    }

    /// The act with each setting, as the code of a reply or a word, in the order of the settings.
    fn acts(mut findings: SenderFindings, client: &str, is_exempt: bool) -> [String; 4] {
        findings.sender = claimed(client);
        [Enforce::None, Enforce::Junk, Enforce::Reject, Enforce::Always].map(|enforce| {
            match rules(enforce).treatment(&findings, is_exempt) {
                Treatment::Refuse(reply) => reply.to_string().chars().take(10).collect(),
                Treatment::Junk(_) => "Junk".to_owned(),
                Treatment::Take => "Take".to_owned(),
            }
        })
    }

    #[test]
    fn only_surely_forged_mail_is_refused_by_default() {
        const REFUSED: &str = "550 5.7.26";
        let dmarc_none = || SenderFindings { author: None, dmarc: None, ..forged() };
        let nothing_known = SenderFindings { is_foreign_client: false, ..forged() };
        let never = Verdict { sends_nothing: true, result: SpfResult::Fail, ..forged().spf };
        let sends_nothing = SenderFindings { spf: never, ..asks_for(Policy::None) };
        for (of, findings, client, is_exempt, expected) in [
            ("forged", forged(), CLIENT, false, ["Take", "Junk", REFUSED, REFUSED]),
            ("for postmaster alone", forged(), CLIENT, true, ["Take", "Junk", "Junk", "Junk"]),
            ("quarantine", asks_for(Policy::Quarantine), CLIENT, false, ["Take", "Junk", "Junk", "Junk"]),
            ("none", asks_for(Policy::None), CLIENT, false, ["Take"; 4]),
            ("SPF unknown", nothing_known, CLIENT, false, ["Take", "Junk", "Junk", REFUSED]),
            ("a list", signed("mail.bank.example", DkimResult::Fail), CLIENT, false, ["Take", "Junk", "Junk", REFUSED]),
            (
                "signed by others",
                signed("a.example", DkimResult::Pass),
                CLIENT,
                false,
                ["Take", "Junk", REFUSED, REFUSED],
            ),
            ("a key under test", under_test("bank.example"), CLIENT, false, ["Take", "Junk", REFUSED, REFUSED]),
            (
                "its domain's key under test",
                under_test("list.example"),
                CLIENT,
                false,
                ["Take", "Junk", REFUSED, REFUSED],
            ),
            ("forwarder", forged(), "203.0.113.5", false, ["Take"; 4]),
            ("forwarders", forged(), "::ffff:198.51.100.9", false, ["Take"; 4]),
            ("its domain", signed("list.example", DkimResult::Pass), CLIENT, false, ["Take"; 4]),
            ("not proven", signed("list.example", DkimResult::Fail), CLIENT, false, ["Take", "Junk", REFUSED, REFUSED]),
            ("no author", dmarc_none(), CLIENT, false, ["Take", "Junk", "550 5.7.1 ", "550 5.7.1 "]),
            ("no author, for postmaster alone", dmarc_none(), CLIENT, true, ["Take", "Junk", "Junk", "Junk"]),
            ("sends nothing", sends_nothing, CLIENT, true, ["Take", "Take", "550 5.7.23", "550 5.7.23"]),
        ] {
            assert_eq!(acts(findings, client, is_exempt), expected, "{of}");
        }
    }

    #[test]
    fn the_reason_for_junk_names_the_domain_and_its_wish() {
        let why = |findings: &SenderFindings| match rules(Enforce::Junk).treatment(findings, false) {
            Treatment::Junk(why) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why(&forged()), "DMARC of bank.example: reject");
        assert_eq!(why(&asks_for(Policy::Quarantine)), "DMARC of bank.example: quarantine");
        assert_eq!(why(&SenderFindings { author: None, dmarc: None, ..forged() }), NO_AUTHOR);
    }

    #[test]
    fn without_an_answer_the_mail_is_taken_or_deferred() {
        let open = DmarcVerdict { result: DmarcResult::TempError, policy: Policy::None, organization: String::new() };
        let findings = SenderFindings { dmarc: Some(open), ..forged() };
        assert_eq!(rules(Enforce::Always).treatment(&findings, false), Treatment::Take);
        let defer = Checks { on_temperror: OnTempError::Defer, ..Checks::default() };
        for findings in [findings, signed("list.example", DkimResult::TempError)] {
            let Treatment::Refuse(reply) = TreatmentRules::new(&defer).treatment(&findings, false) else {
                panic!("it is taken")
            };
            assert!(reply.to_string().starts_with("451 4.7.24 "), "{reply}");
        }
    }
}
