use crate::author::{comment_len, quoted_len};

/// Returns the domains of all addresses in the value of a From field, each once and in lower case, in their order.
///
/// Reads as widely as mail programs do: a name may have signs that belong in quotes. [`sole_mailbox`](crate::sole_mailbox) is the strict form.
/// At most [`AUTHOR_DOMAINS_MAX`] are returned, and none of a value of more than 8 KiB.
///
/// ```
/// use posthaste_message::author_domains;
///
/// assert_eq!(author_domains(b" [News] a@b <ann@Example.org>, \"x@y, z\" <bob@example.org>\r\n"), ["example.org"]);
/// ```
pub fn author_domains(value: &[u8]) -> Vec<String> {
    let mut domains: Vec<String> = Vec::new();
    // Quotes and brackets that do not end are looked for from each place.
    if value.len() > VALUE_BYTES_MAX {
        return domains;
    }
    let (mut rest, mut entry) = (value, Entry::default());
    loop {
        match rest.first() {
            Some(b',' | b';') | None => {
                for domain in std::mem::take(&mut entry).domains() {
                    if !domains.contains(&domain) && domains.len() < AUTHOR_DOMAINS_MAX {
                        domains.push(domain);
                    }
                }
                if rest.is_empty() {
                    return domains;
                }
                rest = &rest[1..];
            }
            Some(_) => rest = &rest[entry.take(rest)..],
        }
    }
}

/// Domains of one field at most.
pub const AUTHOR_DOMAINS_MAX: usize = 2;
const VALUE_BYTES_MAX: usize = 8 << 10;

/// One mailbox of the list.
#[derive(Default)]
struct Entry {
    /// Octets outside of brackets, quotes and comments.
    bare: Vec<u8>,
    /// The content of brackets: readers may show the first or the last.
    angles: Vec<Vec<u8>>,
}

impl Entry {
    /// Takes one token, and returns its length.
    fn take(&mut self, rest: &[u8]) -> usize {
        match rest[0] {
            b'(' => match comment_len(rest) {
                Some(len) => {
                    self.bare.push(b' ');
                    len
                }
                None => self.take_one(rest[0]),
            },
            // A local part in quotes belongs to the address behind it.
            b'"' => match quoted_len(rest) {
                Some(len) => {
                    self.bare.push(b'q');
                    len
                }
                None => self.take_one(rest[0]),
            },
            b'<' => match rest.iter().position(|octet| *octet == b'>') {
                Some(end) => {
                    self.angles.push(rest[1..end].to_vec());
                    end + 1
                }
                None => self.take_one(rest[0]),
            },
            // The name of a group.
            b':' => {
                self.bare.clear();
                1
            }
            octet => self.take_one(octet),
        }
    }

    fn take_one(&mut self, octet: u8) -> usize {
        self.bare.push(octet);
        1
    }

    /// The domains of the addresses in brackets; without them, of the last word that has an `@`.
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
            ("<a@x.example>, <b@y.example>, <c@z.example>", &["x.example", "y.example"]),
            ("a@b\u{fc}cher.example", &["b\u{fc}cher.example"]),
            ("a@x.example <b@", &[]),
            ("<a@x.example> <b@y.example>", &["x.example", "y.example"]),
            ("undisclosed:;", &[]),
            ("", &[]),
            ("ann", &[]),
            ("<>", &[]),
        ] {
            assert_eq!(author_domains(value.as_bytes()), expected, "{value}");
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
