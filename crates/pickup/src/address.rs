//! Addresses as programs write them: with or without brackets, with or without a domain.

use posthaste_smtp::address::{AddressError, quoted};
use posthaste_smtp::{ForwardPath, ReversePath};

/// Reads a recipient with or without brackets; one without a domain belongs to `origin`.
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

/// Reads a sender with or without brackets; nothing, and `<>`, mean nobody. One without a domain belongs to `origin`.
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
