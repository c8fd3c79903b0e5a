//! Address maps: replace an address, or all addresses of a domain, in envelopes and headers.

use std::collections::HashMap;

use bytes::Bytes;

use crate::address::{Address, quoted};
use crate::{Edit, HeaderEditor, RawField};

/// Replacements of addresses. A key is an address, or `@` and a domain for its other addresses; so is a value, and `@`
/// with a domain keeps the local part. Case does not matter. A result is not looked up again.
///
/// ```
/// use posthaste_message::rewrite::AddressMap;
///
/// let pairs = [("ann@a.example", "boss@b.example"), ("@a.example", "@c.example")];
/// let map = AddressMap::new(pairs.map(|(from, to)| (from.to_owned(), to.to_owned())));
/// assert_eq!(map.text("Ann@A.example").as_deref(), Some("boss@b.example"));
/// assert_eq!(map.text("joe@a.example").as_deref(), Some("joe@c.example"));
/// assert_eq!(map.text("joe@b.example"), None);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressMap(HashMap<String, String>);

impl AddressMap {
    /// A map of these pairs.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(pairs.into_iter().map(|(from, to)| (from.to_lowercase(), to)).collect())
    }

    /// True if the map has no pairs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The replacement of an address; `None`: it stays.
    pub fn address(&self, address: &Address) -> Option<Address> {
        let text = address.to_string().to_lowercase();
        let domain = || text.rfind('@').and_then(|at| self.0.get(&text[at..]));
        let to = self.0.get(&text).or_else(domain)?;
        match to.strip_prefix('@') {
            Some(domain) => Address::parse(&format!("{}@{domain}", quoted(address.local_part()))).ok(),
            None => Address::parse(to).ok(),
        }
    }

    /// Like `address`, for an address as text.
    pub fn text(&self, address: &str) -> Option<String> {
        self.address(&Address::parse(address).ok()?).map(|address| address.to_string())
    }

    /// A header field with replaced addresses; `None` if nothing changes, or if it is not an address field.
    pub fn field(&self, field: &RawField<'_>) -> Option<Vec<u8>> {
        if self.is_empty() || !field.is_whole || !FIELDS.iter().any(|name| is_or_resent(field, name)) {
            return None;
        }
        let bytes = field.bytes;
        let mut out = Vec::new();
        let mut copied = 0;
        let mut at = bytes.len() - field.value().len();
        while at < bytes.len() {
            let end = token(bytes, at);
            let text = std::str::from_utf8(&bytes[at..end]).ok().filter(|text| text.contains('@'));
            if let Some(other) = text.and_then(|text| self.text(text)) {
                out.extend_from_slice(&bytes[copied..at]);
                out.extend_from_slice(other.as_bytes());
                copied = end;
            }
            at = end;
        }
        if copied == 0 {
            return None;
        }
        out.extend_from_slice(&bytes[copied..]);
        Some(out)
    }

    /// A message, in pieces, with replaced addresses in its header, which is the first piece; `None` if nothing changes. The body is not copied.
    pub fn message(&self, pieces: &[Bytes]) -> Option<Vec<Bytes>> {
        let mut editor = HeaderEditor::default();
        let mut header = Vec::new();
        let mut is_changed = false;
        let mut edit = |field: &RawField<'_>| match self.field(field) {
            Some(other) => {
                is_changed = true;
                Edit::Replace(other)
            }
            None => Edit::Keep,
        };
        let mut rest = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            let taken = editor.push(piece, &mut header, &mut edit);
            if editor.is_over() {
                rest.push(piece.slice(taken..));
                rest.extend_from_slice(&pieces[index + 1..]);
                break;
            }
        }
        if !editor.is_over() {
            editor.finish(&mut header, &mut edit);
        }
        is_changed.then(|| std::iter::once(header.into()).chain(rest).filter(|piece| !piece.is_empty()).collect())
    }
}

fn is_or_resent(field: &RawField<'_>, name: &str) -> bool {
    let resent =
        field.name.split_at_checked(RESENT.len()).filter(|(begin, _)| begin.eq_ignore_ascii_case(RESENT.as_bytes()));
    field.is(name) || resent.is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(name.as_bytes()))
}

/// The end of the token at `at`: a comment, an address, a word, or one other octet.
fn token(bytes: &[u8], at: usize) -> usize {
    let mut end = at;
    while let Some(&octet) = bytes.get(end) {
        match octet {
            b'(' if end == at => return past(bytes, at, b'(', b')'),
            b'"' => end = past(bytes, end, b'"', b'"'),
            b'[' if end > at => end = past(bytes, end, b'[', b']'),
            b' ' | b'\t' | b'\r' | b'\n' | b'<' | b'>' | b'(' | b')' | b',' | b';' | b':' | b'[' | b']' | b'\\' => {
                break;
            }
            _ => end += 1,
        }
    }
    end.max(at + 1)
}

/// The position after the octet that closes the one at `at`; the end of the field without one.
fn past(bytes: &[u8], at: usize, open: u8, close: u8) -> usize {
    let mut depth = 1_usize;
    let mut end = at + 1;
    while let Some(&octet) = bytes.get(end) {
        end += 1;
        match octet {
            b'\\' => end += 1,
            _ if octet == close => depth -= 1,
            _ if octet == open => depth += 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    end.min(bytes.len())
}

/// Fields with addresses (RFC 5322 sections 3.6.2 and 3.6.3), also with `Resent-` in front.
const FIELDS: [&str; 6] = ["From", "Sender", "Reply-To", "To", "Cc", "Bcc"];
const RESENT: &str = "Resent-";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map() -> AddressMap {
        let pairs =
            [("ann@a.example", "boss@b.example"), ("@a.example", "@c.example"), ("\"x y\"@d.example", "xy@d.example")];
        AddressMap::new(pairs.map(|(from, to)| (from.to_owned(), to.to_owned())))
    }

    fn check(field: &str, expected: Option<&str>) {
        let message = vec![Bytes::from(format!("{field}\r\n\r\nFrom: ann@a.example\r\n"))];
        let found = map().message(&message).map(|pieces| pieces.concat().escape_ascii().to_string());
        let expected = expected.map(|field| format!("{field}\r\n\r\nFrom: ann@a.example\r\n"));
        assert_eq!(found, expected.map(|message| message.escape_default().to_string()), "{field}");
    }

    #[test]
    fn addresses_change_where_they_stand() {
        check("From: Ann <ann@a.example>", Some("From: Ann <boss@b.example>"));
        check(
            "to:ann@a.example,joe@A.example,\r\n x@x.example",
            Some("to:boss@b.example,joe@c.example,\r\n x@x.example"),
        );
        check(
            "Resent-CC: list: ann@a.example, <joe@a.example>;",
            Some("Resent-CC: list: boss@b.example, <joe@c.example>;"),
        );
        check("From: \"ann@a.example\" (ann@a.example) <joe@x.example>", None);
        check("From: (a \\) (b)) ann@a.example (c)", Some("From: (a \\) (b)) boss@b.example (c)"));
        check("To: \"x y\"@d.example, \"x\\\"@a.example\"", Some("To: xy@d.example, \"x\\\"@a.example\""));
        check("To: \"j k\"@a.example", Some("To: \"j k\"@c.example"));
        check("To: joe@[192.0.2.1], <ann@a.example", Some("To: joe@[192.0.2.1], <boss@b.example"));
        check("Subject: ann@a.example", None);
        check("From: @a.example, ann@, ann@a.example.", None);
        check("From: (ann@a.example", None);
        check("From: \"ann@a.example", None);
    }

    #[test]
    fn a_body_is_not_copied_and_a_header_may_come_in_octets() {
        let message = b"Subject: x\r\nFrom: ann@a.example\r\n\r\nbody".as_slice();
        let pieces: Vec<Bytes> = message.iter().map(|octet| Bytes::copy_from_slice(&[*octet])).collect();
        let body = pieces.last().unwrap().as_ptr();
        let found = map().message(&pieces).unwrap();
        assert_eq!(found.concat(), b"Subject: x\r\nFrom: boss@b.example\r\n\r\nbody");
        assert_eq!(found.last().unwrap().as_ptr(), body);
        let found = map().message(&[Bytes::from_static(b"From: ann@a.example")]).unwrap();
        assert_eq!(found.concat(), b"From: boss@b.example");
    }

    proptest! {
        #[test]
        fn what_no_map_names_stays_and_nothing_panics(value in "[ a-c@.,;:<>()\"\\\\\\[\\]\r\n\u{e9}]{0,60}") {
            let field = format!("To: {value}");
            let message = [Bytes::from(field)];
            prop_assert_eq!(AddressMap::default().message(&message), None);
            let other = AddressMap::new([("@nowhere.example".to_owned(), "@x.example".to_owned())]);
            prop_assert_eq!(other.message(&message), None);
        }

        #[test]
        fn each_address_of_a_list_changes_by_itself(names in proptest::collection::vec("[a-z]{1,8}", 1..10), is_named in any::<bool>()) {
            let list = |domain: &str| {
                let one = |name: &String| if is_named { format!("\"{name}, x\" <{name}@{domain}>") } else { format!("{name}@{domain}") };
                format!("Cc: {}\r\n\r\n", names.iter().map(one).collect::<Vec<_>>().join(",\r\n "))
            };
            let map = AddressMap::new([("@old.example".to_owned(), "@new.example".to_owned())]);
            let found = map.message(&[list("old.example").into()]).unwrap().concat();
            prop_assert_eq!(String::from_utf8(found).unwrap(), list("new.example"));
        }
    }
}
