//! Forwarded mail: its rewritten sender, and the return of its bounces.

use std::time::SystemTime;

use posthaste_directory::Directory;
use posthaste_message::DateTime;
use posthaste_message::address::AddressDomain;
use posthaste_notify::srs::{ReverseError, Srs};
use posthaste_relay::sender::SrsSection;
use posthaste_smtp::{ForwardPath, ReversePath};

use crate::config::error::ServeError;

/// Rewrites senders by SRS, if configured.
#[derive(Debug, Default)]
pub(crate) struct Forwarding {
    srs: Option<(Srs, String)>,
}

/// Kinds of recipients in the domain of rewritten senders.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Back {
    /// An ordinary address.
    Ordinary,
    /// The original sender of forwarded mail.
    Sender(ForwardPath),
    /// An SRS address that is not from this server, or has expired.
    Invalid,
}

impl Forwarding {
    /// # Errors
    /// The secrets cannot be read.
    pub fn open(section: Option<&SrsSection>) -> Result<Self, ServeError> {
        let open = |section: &SrsSection| Ok::<_, ServeError>((Srs::new(&section.secrets()?), section.domain.clone()));
        Ok(Self { srs: section.map(open).transpose()? })
    }

    /// The sender of a forwarded message: unchanged if it is local, empty, or too long to be rewritten.
    pub fn sender(&self, sender: &ReversePath, directory: &Directory) -> ReversePath {
        let Some((srs, domain)) = &self.srs else { return sender.clone() };
        let is_ours = |domain: &AddressDomain| matches!(domain, AddressDomain::Name(name) if directory.is_ours(name));
        srs.forward(sender, domain, now(), is_ours).unwrap_or_else(|error| {
            tracing::debug!(sender = %sender, error = %error, "forwarded with its own sender");
            sender.clone()
        })
    }

    /// The meaning of `path`.
    pub fn back(&self, path: &ForwardPath) -> Back {
        let (Some((srs, domain)), Some(address)) = (&self.srs, path.address()) else { return Back::Ordinary };
        if !address.domain().to_string().eq_ignore_ascii_case(domain) {
            return Back::Ordinary;
        }
        match srs.reverse(address, now()) {
            Ok(sender) => Back::Sender(ForwardPath::Address(sender)),
            Err(ReverseError::NotSrs) => Back::Ordinary,
            Err(_) => Back::Invalid,
        }
    }
}

/// The wall clock.
pub(crate) fn now() -> DateTime {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    DateTime::from_unix(i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_sender_is_rewritten_and_found_again() {
        let place = tempfile::tempdir().unwrap();
        let secret_file = place.path().join("secret");
        std::fs::write(&secret_file, "a secret for the tests\n").unwrap();
        let section = SrsSection { domain: "srs.example.org".into(), secret_file };
        let forwarding = Forwarding::open(Some(&section)).unwrap();
        let ours = posthaste_directory::Domain::open_to_any("example.org");
        let directory = Directory::new(&[ours], "Maildir").unwrap();
        let path = |text: &str| ReversePath::parse(text).unwrap();
        for same in ["<>", "<ann@example.org>", "<ANN@EXAMPLE.ORG>"] {
            assert_eq!(forwarding.sender(&path(same), &directory), path(same));
        }
        let long = path(&format!("<{}@example.net>", "x".repeat(60)));
        assert_eq!(forwarding.sender(&long, &directory), long);
        let rewritten = forwarding.sender(&path("<bob@example.net>"), &directory).to_string();
        assert!(
            rewritten.starts_with("<SRS0=") && rewritten.ends_with("=example.net=bob@srs.example.org>"),
            "{rewritten}"
        );
        let to = |text: &str| ForwardPath::parse(text).unwrap();
        assert_eq!(forwarding.back(&to(&rewritten)), Back::Sender(to("<bob@example.net>")));
        assert_eq!(forwarding.back(&to(&rewritten.replace("bob", "eve"))), Back::Invalid);
        assert_eq!(forwarding.back(&to(&rewritten.replace("srs.", "other."))), Back::Ordinary);
        assert_eq!(forwarding.back(&to("<bob@srs.example.org>")), Back::Ordinary);
        std::fs::remove_file(&section.secret_file).unwrap();
        assert!(Forwarding::open(Some(&section)).unwrap_err().to_string().contains("secret"));
    }
}
