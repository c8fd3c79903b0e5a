//! The single mailbox of a From field, parsed so that no reader can see another (RFC 5322 section 3.4).

use std::borrow::Cow;

/// Returns the address in the value of a From field. `None`: it has none, several or a group, or readers may differ
/// about it.
///
/// [`mime`](crate::mime) reads any form; this is for decisions based on the address. It refuses obsolete syntax
/// (routes, blanks within an address), and `@`, `[` and `]` in an unquoted name.
///
/// ```
/// use posthaste_message::sole_mailbox;
///
/// assert_eq!(sole_mailbox(b" \"Lee, Ann\" (she) <ann@example.org>\r\n").as_deref(), Some("ann@example.org"));
/// assert_eq!(sole_mailbox(b" ceo@example.org <ann@example.org>\r\n"), None);
/// ```
pub fn sole_mailbox(value: &[u8]) -> Option<Cow<'_, str>> {
    let mut rest = value;
    let mut bare = Words::default();
    let mut angle = None;
    while let Some((&octet, after)) = rest.split_first() {
        let len = match octet {
            b' ' | b'\t' | b'\r' | b'\n' => {
                bare.is_apart = true;
                1
            }
            b'(' => {
                bare.is_apart = true;
                comment_len(rest)?
            }
            // Only blanks and comments may follow the brackets.
            _ if angle.is_some() => return None,
            b'"' => {
                let len = quoted_len(rest)?;
                bare.add(&rest[..len]);
                len
            }
            b'<' => {
                let len = angle_len(after)?;
                angle = Some(after[..len].trim_ascii());
                len + 2
            }
            b'>' | b',' | b';' | b':' | b'\\' | b')' | 0..=31 | 127 => return None,
            _ => {
                let is_word = |octet: &u8| !b" \t\r\n(\"<>,;:\\)".contains(octet) && *octet > 31 && *octet != 127;
                let len = rest.iter().take_while(|octet| is_word(octet)).count();
                // Valid names have these only in quotes: some readers begin an address there, or fail.
                bare.has_special |= rest[..len].iter().any(|octet| b"@[]".contains(octet)) || octet == b'.';
                bare.add(&rest[..len]);
                len
            }
        };
        rest = &rest[len..];
    }
    let address: Cow<'_, [u8]> = match angle {
        Some(_) if bare.has_special => return None,
        Some(address) => address.into(),
        None if bare.count == 1 => bare.text.into(),
        None => return None,
    };
    is_address(&address).then_some(())?;
    Some(match address {
        Cow::Borrowed(address) => std::str::from_utf8(address).ok()?.into(),
        Cow::Owned(address) => String::from_utf8(address).ok()?.into(),
    })
}

/// Words outside of brackets.
#[derive(Default)]
struct Words {
    /// The last word, quotes included.
    text: Vec<u8>,
    count: usize,
    has_special: bool,
    /// True if a blank or a comment follows the last word.
    is_apart: bool,
}

impl Words {
    fn add(&mut self, text: &[u8]) {
        if self.count == 0 || self.is_apart {
            self.count += 1;
            self.text.clear();
        }
        self.is_apart = false;
        self.text.extend_from_slice(text);
    }
}

/// Length of a comment, nested ones included; `None` if it does not end.
pub(crate) fn comment_len(text: &[u8]) -> Option<usize> {
    let mut depth = 0;
    let mut is_escaped = false;
    for (at, &octet) in text.iter().enumerate() {
        match octet {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'(' => depth += 1,
            b')' if depth == 1 => return Some(at + 1),
            b')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Length of a quoted string, its quotes included; `None` if it does not end.
pub(crate) fn quoted_len(text: &[u8]) -> Option<usize> {
    let mut is_escaped = true;
    for (at, &octet) in text.iter().enumerate() {
        match octet {
            // The first quote among them.
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// The octets before the closing bracket.
fn angle_len(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(&octet) = text.get(at) {
        match octet {
            b'>' => return Some(at),
            b'<' => return None,
            b'"' => at += quoted_len(&text[at..])?,
            _ => at += 1,
        }
    }
    None
}

/// True if the octets are a local part, one `@` and a domain, with nothing in between.
fn is_address(address: &[u8]) -> bool {
    let local = match address.first() {
        Some(b'"') => quoted_len(address).unwrap_or(address.len()),
        _ => address.iter().position(|&octet| octet == b'@').unwrap_or(address.len()),
    };
    let (local, domain) = address.split_at(local);
    let is_atom = |octet: &u8| *octet > 32 && *octet != 127 && !b"()<>[]:;@\\,\"".contains(octet);
    let is_dotted = |text: &[u8]| !text.is_empty() && text.iter().all(is_atom);
    let is_local = match local.first() {
        Some(b'"') => local.iter().all(|octet| !octet.is_ascii_control()),
        _ => is_dotted(local),
    };
    let is_domain = |domain: &[u8]| match domain.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")) {
        Some(literal) => is_dotted(&literal.iter().copied().filter(|octet| *octet != b':').collect::<Vec<_>>()),
        None => is_dotted(domain),
    };
    is_local && domain.strip_prefix(b"@").is_some_and(is_domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: &str, expected: Option<&str>) {
        assert_eq!(sole_mailbox(value.as_bytes()).as_deref(), expected, "{value:?}");
    }

    #[test]
    fn one_mailbox_is_read_however_it_is_folded() {
        for value in [
            " ann@example.org\r\n",
            "ann@example.org",
            " <ann@example.org>\r\n",
            " Ann B. Lee <ann@example.org>\r\n",
            "\r\n Ann\r\n\t<ann@example.org>\r\n",
            " \"ceo@example.org, <x@y>\" <ann@example.org>\r\n",
            " ann@example.org (ceo@example.org <x@y>)\r\n",
            " (a (nested\\) comment)) < ann@example.org > (c)\r\n",
            " =?utf-8?q?J=C3=BCrgen?= <ann@example.org>\r\n",
            " J\u{fc}rgen <ann@example.org>\r\n",
        ] {
            check(value, Some("ann@example.org"));
        }
        check(" \"a b\"@example.org\r\n", Some("\"a b\"@example.org"));
        check(" X <\"a>b\"@example.org>", Some("\"a>b\"@example.org"));
        check(" x@[192.0.2.1]", Some("x@[192.0.2.1]"));
        check(" <x@[IPv6:2001:db8::1]>", Some("x@[IPv6:2001:db8::1]"));
        check(" j\u{fc}rgen@b\u{fc}cher.example", Some("j\u{fc}rgen@b\u{fc}cher.example"));
    }

    #[test]
    fn whatever_may_be_read_in_two_ways_is_none() {
        for value in [
            "",
            " \r\n",
            " ann",
            " Ann Lee\r\n",
            " ann@example.org, bob@example.org",
            " ann@example.org,",
            " ann@example.org;",
            " us: ann@example.org;",
            " undisclosed:;",
            " ceo@example.org <ann@example.org>",
            " =?utf-8?q?bob=40x.example?=] <ann@example.org>",
            " Ann [Sales] <ann@example.org>",
            " .Ann <ann@example.org>",
            " ceo@example.org ann@example.org",
            " ann@example.org <ceo@example.org> x",
            " <ann@example.org> <ceo@example.org>",
            " <ann@example.org",
            " ann@example.org>",
            " <@relay.example:ann@example.org>",
            " ann@ example.org",
            " ann @example.org",
            " <ann @example.org>",
            " <ann@example.org (x)>",
            " <ann(x)@example.org>",
            " \"ann@example.org",
            " (ann@example.org",
            " \"x\"ann@example.org",
            " ann@example.org\"x\"",
            " ann@ceo@example.org",
            " ann@example.org\0",
            " ann\\@example.org",
            " <>",
            " <@>",
            " ann@",
            " @example.org",
            " x@[192.0.2.1",
        ] {
            check(value, None);
        }
        assert_eq!(sole_mailbox(b" a\xff@example.org"), None);
        assert_eq!(sole_mailbox(&b" (".repeat(100_000)), None);
    }
}
