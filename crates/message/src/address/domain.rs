//! The domain of an address, bounds of its parts, and why one is refused.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest local part in octets as written, quotes included (RFC 5321 section 4.5.3.1.1).
pub const LOCAL_PART_BYTES_MAX: usize = 64;
/// Longest domain in octets (RFC 5321 section 4.5.3.1.2).
pub const DOMAIN_BYTES_MAX: usize = 255;
/// Longest path in octets, angle brackets and any source route included (RFC 5321 section 4.5.3.1.3).
pub const PATH_BYTES_MAX: usize = 256;

/// The part after the `@`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AddressDomain {
    /// A host or domain name, case as received; contains U-labels only where SMTPUTF8 allows them.
    Name(String),
    /// An IPv4 or IPv6 address literal.
    Ip(IpAddr),
    /// Another tagged literal, without the brackets (`tag:content`).
    Literal(String),
}

impl AddressDomain {
    /// Parses an address literal, given without its brackets (RFC 5321 section 4.1.3): an IPv4 address, `IPv6:` and an
    /// address, or `tag:content`.
    pub fn parse_literal(inner: &str) -> Result<Self, AddressError> {
        if let Ok(ip) = inner.parse::<Ipv4Addr>() {
            return Ok(AddressDomain::Ip(ip.into()));
        }
        let (tag, content) = inner.split_once(':').ok_or(AddressError::Literal)?;
        if tag.eq_ignore_ascii_case("ipv6") {
            return content
                .parse::<Ipv6Addr>()
                .map(|ip| AddressDomain::Ip(ip.into()))
                .map_err(|_| AddressError::Literal);
        }
        let tag_fits =
            !tag.is_empty() && !tag.ends_with('-') && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let content_fits = !content.is_empty() && content.bytes().all(|b| matches!(b, 33..=90 | 94..=126));
        if tag_fits && content_fits { Ok(AddressDomain::Literal(inner.to_owned())) } else { Err(AddressError::Literal) }
    }
}

impl fmt::Display for AddressDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressDomain::Name(name) => f.write_str(name),
            AddressDomain::Ip(IpAddr::V4(ip)) => write!(f, "[{ip}]"),
            AddressDomain::Ip(IpAddr::V6(ip)) => write!(f, "[IPv6:{ip}]"),
            AddressDomain::Literal(text) => write!(f, "[{text}]"),
        }
    }
}

/// The reason why a path was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// No `<` at the start or no `>` at the end.
    #[error("address must stand in angle brackets")]
    Brackets,
    /// More than [`PATH_BYTES_MAX`] octets.
    #[error("path is longer than {PATH_BYTES_MAX} octets")]
    PathTooLong,
    /// More than [`LOCAL_PART_BYTES_MAX`] octets before the `@`.
    #[error("local part is longer than {LOCAL_PART_BYTES_MAX} octets")]
    LocalPartTooLong,
    /// More than [`DOMAIN_BYTES_MAX`] octets after the `@`, or a label of more than 63.
    #[error("domain is too long")]
    DomainTooLong,
    /// Empty, or with an unquoted character that needs quotes.
    #[error("bad local part")]
    LocalPart,
    /// No `@` where a domain is required.
    #[error("domain is missing")]
    NoDomain,
    /// Not a domain name.
    #[error("bad domain")]
    Domain,
    /// Not an address literal.
    #[error("bad address literal")]
    Literal,
    /// A source route that does not end in a colon.
    #[error("bad source route")]
    SourceRoute,
    /// Something follows the path.
    #[error("unexpected text after the address")]
    Trailing,
}
