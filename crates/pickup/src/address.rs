//! Addresses as programs write them: with or without brackets, with or without a domain.

use posthaste_message::address::{AddressError, quoted};
use posthaste_message::mime::{AddressList, DecodedAddress};
use posthaste_smtp::{ForwardPath, ReversePath};

/// Parses a recipient with or without brackets. Without a domain it gets `origin`.
///
/// # Errors
/// It is not an address.
pub(crate) fn recipient(text: &str, origin: &str) -> Result<ForwardPath, AddressError> {
    let bracketed = |text: &str| ForwardPath::parse(&format!("<{text}>"));
    let bare = bare(text);
    match bracketed(bare)? {
        ForwardPath::Local(local_part) => bracketed(&format!("{}@{origin}", quoted(local_part.as_str()))),
        path => Ok(path),
    }
}

/// Parses a command-line argument with recipients: an address, or a list as in a header, such as `ann,bob` or `Ann
/// <ann@example.org>`.
///
/// # Errors
/// Neither of them.
pub(crate) fn listed(text: &str, origin: &str) -> Result<Vec<ForwardPath>, AddressError> {
    let why = match recipient(text, origin) {
        Ok(path) => return Ok(vec![path]),
        Err(why) => why,
    };
    // A name whose bracket is never closed is a slip, and may be cut off.
    let has_open_bracket = text.matches('<').count() != text.matches('>').count();
    if has_open_bracket || text.contains(char::is_control) {
        return Err(why);
    }
    let mut found = Vec::new();
    for address in AddressList::new(text.as_bytes(), None) {
        match address {
            // A tolerant reader may have put one together of pieces.
            DecodedAddress::Mailbox { address: Some(address), .. } if text.contains(&address) => {
                found.push(recipient(&address, origin)?);
            }
            DecodedAddress::Mailbox { .. } => return Err(why),
            DecodedAddress::Group(_) | DecodedAddress::GroupEnd => {}
        }
    }
    if found.is_empty() { Err(why) } else { Ok(found) }
}

/// Parses a sender with or without brackets; empty and `<>` are the null sender. Without a domain it gets `origin`.
///
/// # Errors
/// It is not an address.
pub(crate) fn sender(text: &str, origin: &str) -> Result<ReversePath, AddressError> {
    if bare(text).is_empty() {
        return Ok(ReversePath::Null);
    }
    match recipient(text, origin)? {
        ForwardPath::Address(address) => Ok(address.into()),
        ForwardPath::Local(_) => Err(AddressError::NoDomain),
    }
}

fn bare(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix('<').and_then(|text| text.strip_suffix('>')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_may_be_a_list_or_have_a_name() {
        let read = |text: &str| {
            listed(text, "o.example").map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        for (text, expected) in [
            ("root", "<root@o.example>"),
            ("root,www-data", "<root@o.example> <www-data@o.example>"),
            ("a@x.example, b@y.example", "<a@x.example> <b@y.example>"),
            ("Foo <root>", "<root@o.example>"),
            ("\"Lee, Ann\" <ann@x.example>, bob", "<ann@x.example> <bob@o.example>"),
            ("ann@x.example (Ann Lee)", "<ann@x.example>"),
            ("all: ann, bob;", "<ann@o.example> <bob@o.example>"),
            ("\"a,b\"", "<\"a,b\"@o.example>"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(expected), "{text}");
        }
        for bad in ["", ",", "a b", "Foo <a b>", "ann,,b c", "a\r\nRCPT TO:<b@c>", "Foo <root", "a@,b", "all:;"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn addresses_without_a_domain_belong_to_the_origin() {
        let check =
            |text: &str, expected: &str| assert_eq!(recipient(text, "o.example").unwrap().to_string(), expected);
        check("root", "<root@o.example>");
        check("<a@b.example>", "<a@b.example>");
        check(" \"a b\" ", "<\"a b\"@o.example>");
        assert_eq!(sender("<>", "o.example").unwrap(), ReversePath::Null);
        assert_eq!(sender("www-data", "o.example").unwrap().to_string(), "<www-data@o.example>");
        for bad in ["a b", "a@", "a>b", "", "a\r\nRCPT TO:<b@c>", "<a", "a@b@c"] {
            assert!(recipient(bad, "o.example").is_err(), "{bad:?}");
        }
    }
}
