use std::net::IpAddr;
use std::sync::Arc;

use posthaste_authres::dmarc::DmarcVerdict;
use posthaste_authres::spf::{Question, Verdict};
use posthaste_authres::{AuthResults, PlainText};
use posthaste_dkim::Verification;

/// A client as it identifies itself.
#[derive(Debug, Clone)]
pub(crate) struct ClaimedSender {
    pub(super) ip: IpAddr,
    pub(super) helo: String,
    /// The sender of MAIL, its domain in A-labels; empty for the null path.
    pub(super) address: String,
}

impl ClaimedSender {
    pub(super) fn question(&self) -> Question<'_> {
        Question { ip: self.ip, helo: &self.helo, sender: &self.address }
    }
}

/// The results of all checks of one message.
pub(crate) struct SenderFindings {
    pub(super) sender: Arc<ClaimedSender>,
    /// The domain of From, if it contains one address.
    pub(super) author: Option<String>,
    pub(super) spf: Verdict,
    pub(super) dkim: Vec<Verification>,
    /// `None`: From has no domain to look up.
    pub(super) dmarc: Option<DmarcVerdict>,
    /// True if the domain of From fails SPF for this client. Checked only if DMARC asks for refusal.
    pub(super) is_foreign_client: bool,
}

impl SenderFindings {
    /// Method and result of each check, in the words of RFC 8601.
    pub fn results(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let dkim = self.dkim.iter().map(|signature| signature.result.name());
        let dkim = dkim.chain(self.dkim.is_empty().then_some("none"));
        [("spf", self.spf.result.name())]
            .into_iter()
            .chain(dkim.map(|result| ("dkim", result)))
            .chain([("dmarc", self.dmarc_name())])
    }

    /// Results in one line, for the log.
    pub fn summary(&self) -> String {
        let mut text = String::with_capacity(SUMMARY_BYTES_USUAL);
        for (method, result) in self.results() {
            let blank = if text.is_empty() { "" } else { " " };
            text.extend([blank, method, "=", result]);
        }
        text
    }

    /// The field Authentication-Results of the service, named in A-labels. `None`: its name is not a domain.
    pub fn field(&self, service: &str) -> Option<String> {
        let mut field = AuthResults::new(service)?;
        let spf = if self.spf.is_of_sender {
            ("smtp.mailfrom", PlainText::address(&self.sender.address))
        } else {
            ("smtp.helo", PlainText::domain(&self.sender.helo))
        };
        field.add("spf", self.spf.result.name(), &[spf]);
        if self.dkim.is_empty() {
            field.add("dkim", "none", &[]);
        }
        for signature in &self.dkim {
            let properties = [
                ("header.d", PlainText::domain(&signature.domain)),
                ("header.s", PlainText::domain(&signature.selector)),
                ("header.b", PlainText::base64(&signature.signature_start)),
            ];
            field.add("dkim", signature.result.name(), &properties);
        }
        let author = self.author.as_deref().and_then(PlainText::domain);
        field.add("dmarc", self.dmarc_name(), &[("header.from", author)]);
        Some(field.finish())
    }

    /// DMARC result for the log. An unreadable author is a permanent error (RFC 7489 section 6.6.1).
    fn dmarc_name(&self) -> &'static str {
        self.dmarc.as_ref().map_or("permerror", |dmarc| dmarc.result.name())
    }
}

/// Usual octets of a summary, with one signature.
const SUMMARY_BYTES_USUAL: usize = 64;
