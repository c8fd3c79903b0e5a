//! The author of a message, read strictly: an ambiguous From names none.

use posthaste_directory::Address;
use posthaste_directory::names::folded_domain;
use posthaste_message::address::is_domain;
use posthaste_message::{RawField, author_domains, sole_mailbox};

/// Author and resender as the fields of a header name them.
#[derive(Debug, Default)]
pub(crate) struct Author {
    from: Named,
    from_fields: u8,
    /// Domains of the last From field, read widely.
    domains: Vec<String>,
    /// Resent-From of the newest block, which is above the others (RFC 5322 section 3.6.6).
    resent_from: Named,
    is_resent: bool,
}

#[derive(Debug, Default)]
enum Named {
    #[default]
    Missing,
    One(Address),
    /// Several addresses, a group, or an ambiguous field.
    Unclear,
}

impl Author {
    /// Takes the next field.
    pub fn note(&mut self, field: &RawField<'_>) {
        let resent = field.name.split_at_checked(7).filter(|(prefix, _)| prefix.eq_ignore_ascii_case(b"Resent-"));
        if let Some((_, name)) = resent {
            self.is_resent |= RESENT.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
        }
        if field.is("Resent-From") && matches!(self.resent_from, Named::Missing) {
            self.resent_from = Named::of(field);
        }
        if field.is("From") {
            self.from = if matches!(self.from, Named::Missing) { Named::of(field) } else { Named::Unclear };
            self.from_fields = self.from_fields.saturating_add(1);
            self.domains = if field.is_whole { author_domains(field.value()) } else { Vec::new() };
        }
    }

    /// The author whose domain signs; `None` for a resent message.
    pub fn signing(&self) -> Option<&Address> {
        if let (Named::One(address), false) = (&self.from, self.is_resent) { Some(address) } else { None }
    }

    /// The domain of the addresses in From, in the form of DNS. `None`: there is no From field, several, or none with addresses of one domain.
    pub fn domain(&self) -> Option<String> {
        let [domain] = self.domains.as_slice() else { return None };
        let folded = folded_domain(domain).filter(|_| self.from_fields == 1)?;
        is_domain(&folded).then(|| folded.into_owned())
    }

    /// The responsible author: name of the field, and its only address. A resent message also has exactly one From.
    pub fn answerable(&self) -> (&'static str, Option<&Address>) {
        let (name, claim) = if self.is_resent {
            if self.from_fields == 1 { ("Resent-From", &self.resent_from) } else { ("From", &Named::Unclear) }
        } else {
            ("From", &self.from)
        };
        (name, if let Named::One(address) = claim { Some(address) } else { None })
    }
}

impl Named {
    fn of(field: &RawField<'_>) -> Self {
        let address = Some(field.value()).filter(|_| field.is_whole).and_then(sole_mailbox);
        address.and_then(|address| Address::parse(&address).ok()).map_or(Self::Unclear, Self::One)
    }
}

/// Fields that begin with `Resent-` and make a message a resent one.
const RESENT: [&str; 7] = ["From", "Sender", "To", "Cc", "Bcc", "Date", "Message-ID"];
