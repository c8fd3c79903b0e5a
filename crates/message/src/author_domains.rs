use crate::author::{comment_len, quoted_len};
use crate::mime::{RawAddress, RawAddresses};

/// Returns the domains of all addresses in the value of a From field, each once, in lower case and in order. Empty if
/// readers may differ about them.
///
/// Two readings must agree: that of [`mime`](crate::mime), which clients see in IMAP's ENVELOPE, and a simple one by
/// brackets and the last `@`. A name may have unquoted specials; quotes, comments and brackets must end.
/// [`sole_mailbox`](crate::sole_mailbox) is the strict form. None are returned for a value with more than
/// [`AUTHOR_DOMAINS_MAX`] domains, or of more than 8 KiB.
///
/// ```
/// use posthaste_message::author_domains;
///
/// assert_eq!(author_domains(b" [News] a@b <ann@Example.org>, \"x@y, z\" <bob@example.org>\r\n"), ["example.org"]);
/// assert!(author_domains(b" <ann@example.org (@example.net)>\r\n").is_empty());
/// ```
pub fn author_domains(value: &[u8]) -> Vec<String> {
    // Each unclosed quote or bracket costs a search to the end.
    if value.len() > VALUE_BYTES_MAX {
        return Vec::new();
    }
    let mut domains = Vec::new();
    for item in RawAddresses::new(value) {
        if let RawAddress::Mailbox { address: Some(address), .. } = item
            && let Some(domain) = domain_of(&address)
        {
            // Some readers decode the first; the others cannot be in a name.
            if memchr::memmem::find(&address, b"=?").is_some() || domain.contains(NO_NAME) {
                return Vec::new();
            }
            if !add(&mut domains, domain) {
                return Vec::new();
            }
        }
    }
    if simply_read(value).is_some_and(|simple| simple == domains) { domains } else { Vec::new() }
}

/// Adds a new domain. False if there are too many: a truncated list would hide a difference between two readings.
fn add(domains: &mut Vec<String>, domain: String) -> bool {
    if !domains.contains(&domain) {
        domains.push(domain);
    }
    domains.len() <= AUTHOR_DOMAINS_MAX
}

/// The domains by brackets, or without brackets by the last `@`. `None`: they are too many, or a quote, a comment or a
/// bracket does not end.
fn simply_read(value: &[u8]) -> Option<Vec<String>> {
    let mut domains = Vec::new();
    let mut rest = value;
    let mut entry = Entry::default();
    loop {
        match rest.first() {
            Some(b',' | b';') | None => {
                if !std::mem::take(&mut entry).domains().all(|domain| add(&mut domains, domain)) {
                    return None;
                }
                if rest.is_empty() {
                    return Some(domains);
                }
                rest = &rest[1..];
            }
            Some(_) => rest = &rest[entry.take(rest)?..],
        }
    }
}

/// Most domains of one field.
pub const AUTHOR_DOMAINS_MAX: usize = 2;
/// Characters of a quoted domain, or of a literal.
const NO_NAME: [char; 11] = ['"', '(', ')', '<', '>', '[', ']', ':', ';', '\\', ','];
const VALUE_BYTES_MAX: usize = 8 << 10;

/// One mailbox of the list.
#[derive(Default)]
struct Entry {
    /// Octets outside brackets, quotes and comments.
    bare: Vec<u8>,
    /// Contents of brackets: readers may show the first or the last.
    angles: Vec<Vec<u8>>,
}

impl Entry {
    /// Takes one token and returns its length. `None`: it does not end.
    fn take(&mut self, rest: &[u8]) -> Option<usize> {
        let len = match rest[0] {
            b'(' => {
                self.bare.push(b' ');
                comment_len(rest)?
            }
            // A quoted local part belongs to the following address.
            b'"' => {
                self.bare.push(b'q');
                quoted_len(rest)?
            }
            b'<' => {
                let end = rest.iter().position(|octet| *octet == b'>')?;
                // For some readers a bracket in a comment ends nothing.
                if rest[1..end].contains(&b'(') {
                    return None;
                }
                self.angles.push(rest[1..end].to_vec());
                end + 1
            }
            // The name of a group.
            b':' => {
                self.bare.clear();
                1
            }
            octet => {
                self.bare.push(octet);
                1
            }
        };
        Some(len)
    }

    /// The domains of the addresses in brackets; without brackets, that of the last word with an `@`.
    fn domains(self) -> impl Iterator<Item = String> {
        let texts = if self.angles.is_empty() { vec![self.bare] } else { self.angles };
        texts.into_iter().filter_map(|text| domain_of(&text))
    }
}

fn domain_of(text: &[u8]) -> Option<String> {
    let at = text.iter().rposition(|octet| *octet == b'@')?;
    let domain = String::from_utf8_lossy(&text[at + 1..]);
    let domain = domain.split_ascii_whitespace().next()?.trim_end_matches('.');
    (!domain.is_empty()).then(|| domain.to_lowercase())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_domain_of_a_list_is_found_once() {
        for (value, expected) in [
            ("ann@x.example", &["x.example"][..]),
            (" Ann <ann@X.Example.>\r\n", &["x.example"]),
            ("[Brand] News @ home <a@x.example>", &["x.example"]),
            ("Foo, Inc. <a@x.example>", &["x.example"]),
            ("ceo@bank.example <a@x.example>", &["x.example"]),
            ("\"ceo@bank.example\" <a@x.example>", &["x.example"]),
            ("a@x.example (b@y.example)", &["x.example"]),
            ("\"a, b\"@x.example", &["x.example"]),
            ("us: a@x.example, b@x.example;", &["x.example"]),
            ("us: a@x.example, b@y.example;", &["x.example", "y.example"]),
            ("<a@x.example>, <b@y.example>, <c@X.example>", &["x.example", "y.example"]),
            ("<a@x.example>, <b@y.example>, <c@z.example>", &[]),
            ("a@b\u{fc}cher.example", &["b\u{fc}cher.example"]),
            ("a@x.example <b@", &[]),
            ("=?utf-8?q?ceo=40bank.example?= <a@x.example>", &["x.example"]),
            ("<=?utf-8?q?ceo=40bank.example?=@x.example>", &[]),
            ("Foo <a@x.example> (Inc.)", &["x.example"]),
            ("<a@x.example> <b@y.example>", &["x.example", "y.example"]),
            ("undisclosed:;", &[]),
            ("", &[]),
            ("ann", &[]),
            ("<>", &[]),
        ] {
            assert_eq!(author_domains(value.as_bytes()), expected, "{value}");
        }
    }

    /// Fields that one reader takes for the bank's mail, and another for mail of `x.example`.
    #[test]
    fn a_field_that_readers_differ_about_has_no_domain() {
        for value in [
            "Boss <ceo@bank.example (@x.example )>",
            "Boss <(a@x.example>)ceo@bank.example>",
            "<\"a@x.example>\"@bank.example>",
            "ceo@bank.example a@x.example",
            "ceo@bank.example (a@x.example",
            "ceo@bank.example (<a@x.example>",
            "ceo@bank.example \"<a@x.example>",
            "ceo@bank(x).example",
            "ceo@bank .example",
            "Boss <ceo@bank. example>",
            "Boss <ceo@bank.\r\n example>",
            "ceo@bank.example\"Boss\"",
            "ceo@\"bank.example\"",
            "ceo@bank\\.example",
            "ceo@bank.example: a@x.example;",
            "<ceo@\" \">",
            "ceo@[192.0.2.1]",
        ] {
            assert_eq!(author_domains(value.as_bytes()), [""; 0], "{value}");
        }
    }

    proptest! {
        #[test]
        fn any_octets_are_read(value in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"<>()\",;:@\\ a.".to_vec())], 0..60)) {
            let domains = author_domains(&value);
            prop_assert!(domains.len() <= AUTHOR_DOMAINS_MAX && domains.iter().all(|domain| !domain.is_empty()));
        }
    }
}
