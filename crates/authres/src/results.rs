//! The field `Authentication-Results` (RFC 8601), built so that text from outside cannot be mistaken for ours.

use std::borrow::Cow;

/// Text that is written verbatim: without CR, LF, NUL, `;`, `(`, `)`, blanks and quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainText<'a>(Cow<'a, str>);

impl<'a> PlainText<'a> {
    /// A domain in A-labels. `None` if it has other characters than letters, digits, hyphens, underscores and dots, or
    /// is longer than 253.
    pub fn domain(text: &'a str) -> Option<Self> {
        let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'_' | b'.');
        let is_domain = !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.bytes().all(is_plain);
        is_domain.then_some(Self(Cow::Borrowed(text)))
    }

    /// An address; only its domain if the local part is not a plain dot-atom. `None` if the domain is invalid.
    pub fn address(text: &'a str) -> Option<Self> {
        let (local, domain) = text.rsplit_once('@').unwrap_or(("", text));
        let domain = Self::domain(domain)?;
        let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || b".!#$%&'*+-/=?^_`{|}~".contains(&octet);
        if !local.is_empty() && local.len() <= LOCAL_BYTES_MAX && local.bytes().all(is_plain) {
            Some(Self(Cow::Borrowed(text)))
        } else {
            Some(domain)
        }
    }

    /// Base64 text, quoted where it is not a token (RFC 2045 section 5.1).
    pub fn base64(text: &'a str) -> Option<Self> {
        let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || b"+/=".contains(&octet);
        if text.is_empty() || text.len() > LOCAL_BYTES_MAX || !text.bytes().all(is_plain) {
            return None;
        }
        let is_token = !text.contains(['/', '=']);
        Some(Self(if is_token { Cow::Borrowed(text) } else { Cow::Owned(format!("\"{text}\"")) }))
    }
}

/// Octets of a local part (RFC 5321 section 4.5.3.1.1).
const LOCAL_BYTES_MAX: usize = 64;
/// Results of a field at most; others are left out.
pub const RESULTS_MAX: usize = 10;

/// The field under construction.
#[derive(Debug, Clone)]
pub struct AuthResults {
    text: String,
    results: usize,
}

impl AuthResults {
    /// A field of this service, whose name is in A-labels. `None` if the name is not a domain.
    pub fn new(service: &str) -> Option<Self> {
        let PlainText(service) = PlainText::domain(service)?;
        let mut text = String::with_capacity(BYTES_USUAL);
        text.extend(["Authentication-Results: ", &*service]);
        Some(Self { text, results: 0 })
    }

    /// Adds a result. A property without a value is left out.
    pub fn add(
        &mut self,
        method: &'static str,
        result: &'static str,
        properties: &[(&'static str, Option<PlainText<'_>>)],
    ) {
        if self.results == RESULTS_MAX {
            return;
        }
        self.results += 1;
        self.text.extend([";\r\n\t", method, "=", result]);
        for (name, value) in properties {
            if let Some(PlainText(value)) = value {
                self.text.extend([" ", *name, "=", &**value]);
            }
        }
    }

    /// The complete field with its line ends.
    pub fn finish(mut self) -> String {
        if self.results == 0 {
            self.text.push_str("; none");
        }
        self.text.push_str("\r\n");
        self.text
    }
}

/// A longer field costs another allocation.
const BYTES_USUAL: usize = 512;
/// Octets of a name without the final dot (RFC 1035 section 2.3.4).
pub(crate) const NAME_BYTES_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn results_stand_in_their_order_and_have_a_bound() {
        let mut field = AuthResults::new("mx.example.org").unwrap();
        assert_eq!(field.clone().finish(), "Authentication-Results: mx.example.org; none\r\n");
        field.add("spf", "pass", &[("smtp.mailfrom", PlainText::address("ann@example.net"))]);
        field.add(
            "dkim",
            "fail",
            &[("header.d", PlainText::domain("example.net")), ("header.b", PlainText::base64("Ab+/x="))],
        );
        field.add("dmarc", "none", &[("header.from", PlainText::domain("a;b"))]);
        assert_eq!(
            field.clone().finish(),
            "Authentication-Results: mx.example.org;\r\n\tspf=pass smtp.mailfrom=ann@example.net;\r\n\tdkim=fail header.d=example.net header.b=\"Ab+/x=\";\r\n\tdmarc=none\r\n"
        );
        (0..20).for_each(|_| field.add("dkim", "none", &[]));
        assert_eq!(field.finish().matches(";\r\n").count(), RESULTS_MAX);
    }

    #[test]
    fn a_local_part_stands_there_only_as_a_plain_dot_atom() {
        let written = |address: &str| PlainText::address(address).map(|text| text.0.into_owned());
        assert_eq!(written("a.b+c@example.net").as_deref(), Some("a.b+c@example.net"));
        for evil in [
            "\"a) dmarc=pass (b\"@evil.example",
            "\"a;b\"@evil.example",
            "a b@evil.example",
            "a@b@evil.example",
            "\u{fc}@evil.example",
        ] {
            assert_eq!(written(evil).as_deref(), Some("evil.example"), "{evil}");
        }
        for none in ["", "@", "a@b\u{fc}cher.example", "a@[192.0.2.1]", "a@x\r\n.example", "a@x\0.example"] {
            assert_eq!(written(none), None, "{none:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_of_a_stranger_ends_a_line_or_begins_a_comment(text in "\\PC*|[a;()\"\\\\ \\r\\n\\x00@=.<>]{0,20}") {
            let mut field = AuthResults::new("mx.example.org").unwrap();
            let values = [PlainText::domain(&text), PlainText::address(&text), PlainText::base64(&text)];
            values.into_iter().for_each(|value| field.add("spf", "fail", &[("smtp.mailfrom", value)]));
            let field = field.finish();
            prop_assert_eq!(field.matches(|letter| ";\r\n\0()".contains(letter)).count(), 3 * 3 + 2, "{}", field);
            prop_assert!(field.is_ascii() && field.matches("spf=fail").count() == 3);
        }
    }
}
