//! Grammar of a path and its parts: `Path`, `Local-part`, `Domain` and `address-literal` of RFC 5321 section 4.1.2,
//! with the additions of RFC 6531.

use std::fmt;

use super::domain::{AddressDomain, AddressError, DOMAIN_BYTES_MAX, LOCAL_PART_BYTES_MAX, PATH_BYTES_MAX};

/// Finds the `>` that ends the path, ignoring those in a quoted local part.
pub(super) fn split_brackets(text: &str) -> Result<(&str, &str), AddressError> {
    let inner = text.strip_prefix('<').ok_or(AddressError::Brackets)?;
    let mut quoted = false;
    let mut escaped = false;
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'>' if !quoted => {
                if at + 2 > PATH_BYTES_MAX {
                    return Err(AddressError::PathTooLong);
                }
                return Ok((&inner[..at], &inner[at + 1..]));
            }
            _ => {}
        }
    }
    Err(AddressError::Brackets)
}

/// Drops a source route: accepted and ignored (RFC 5321 section 4.1.1.3 and appendix C).
pub(super) fn drop_source_route(inner: &str) -> Result<&str, AddressError> {
    if !inner.starts_with('@') {
        return Ok(inner);
    }
    let (route, address) = inner.split_once(':').ok_or(AddressError::SourceRoute)?;
    for hop in route.split(',') {
        parse_domain(hop.strip_prefix('@').ok_or(AddressError::SourceRoute)?)?;
    }
    Ok(address)
}

/// Returns the unquoted local part and the rest.
pub(super) fn split_local_part(text: &str) -> Result<(String, &str), AddressError> {
    if let Some(inner) = text.strip_prefix('"') {
        let mut local = String::new();
        let mut chars = inner.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    // `at` counts from after the opening quote, so the written form has `at + 2` octets.
                    let rest = &inner[at + 1..];
                    return if at + 2 > LOCAL_PART_BYTES_MAX {
                        Err(AddressError::LocalPartTooLong)
                    } else {
                        Ok((local, rest))
                    };
                }
                '\\' => match chars.next() {
                    Some((_, c @ ' '..='~')) => local.push(c),
                    _ => return Err(AddressError::LocalPart),
                },
                c if c.is_control() => return Err(AddressError::LocalPart),
                c => local.push(c),
            }
        }
        return Err(AddressError::LocalPart);
    }
    let end = text.find(|c: char| !is_atext(c) && c != '.').unwrap_or(text.len());
    match &text[..end] {
        "" => Err(AddressError::LocalPart),
        // Dots in odd places are accepted: whole mobile networks have issued such addresses. They are passed on in
        // quotes, since the next hop may be stricter, and must still fit with the quotes.
        local if local.len() + 2 * usize::from(has_odd_dots(local)) > LOCAL_PART_BYTES_MAX => {
            Err(AddressError::LocalPartTooLong)
        }
        local if text[end..].is_empty() || text[end..].starts_with('@') => Ok((local.to_owned(), &text[end..])),
        _ => Err(AddressError::LocalPart),
    }
}

fn has_odd_dots(local: &str) -> bool {
    local.split('.').any(str::is_empty)
}

fn is_atext(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || (!c.is_ascii() && !c.is_control())
}

pub(super) fn parse_domain(text: &str) -> Result<AddressDomain, AddressError> {
    if text.len() > DOMAIN_BYTES_MAX {
        return Err(AddressError::DomainTooLong);
    }
    match text.strip_prefix('[') {
        Some(rest) => AddressDomain::parse_literal(rest.strip_suffix(']').ok_or(AddressError::Literal)?),
        None => check_name(text).map(|()| AddressDomain::Name(text.to_owned())),
    }
}

/// True if `name` can follow the `@` of an address as a name: see [`AddressDomain::Name`].
pub fn is_domain(name: &str) -> bool {
    name.len() <= DOMAIN_BYTES_MAX && check_name(name).is_ok()
}

/// Checks a name. Underscores are tolerated; the rest is RFC 5321 `Domain` with U-labels (RFC 6531).
fn check_name(name: &str) -> Result<(), AddressError> {
    for label in name.split('.') {
        // A U-label may exceed 63 octets in UTF-8; the whole is bounded by DOMAIN_BYTES_MAX.
        if label.is_ascii() && label.len() > 63 {
            return Err(AddressError::DomainTooLong);
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || is_u_label_char(c);
        if label.is_empty() || label.starts_with('-') || label.ends_with('-') || !label.chars().all(fits) {
            return Err(AddressError::Domain);
        }
    }
    Ok(())
}

fn is_u_label_char(c: char) -> bool {
    !c.is_ascii() && !c.is_control() && !c.is_whitespace()
}

pub(super) fn write_local_part(f: &mut fmt::Formatter<'_>, local: &str) -> fmt::Result {
    if !local.is_empty() && local.split('.').all(|atom| !atom.is_empty() && atom.chars().all(is_atext)) {
        return f.write_str(local);
    }
    f.write_str("\"")?;
    for c in local.chars() {
        if c == '"' || c == '\\' {
            f.write_str("\\")?;
        }
        write!(f, "{c}")?;
    }
    f.write_str("\"")
}
