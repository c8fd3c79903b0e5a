//! Envelope addresses: the paths in MAIL and RCPT (RFC 5321 section 4.1.2, RFC 6531).

mod domain;
mod syntax;

use std::fmt;

pub use self::domain::{AddressDomain, AddressError, DOMAIN_BYTES_MAX, LOCAL_PART_BYTES_MAX, PATH_BYTES_MAX};
pub use self::syntax::is_domain;
use self::syntax::{drop_source_route, parse_domain, split_brackets, split_local_part, write_local_part};

/// The part before the `@`, stored without quotes and escapes; [`Display`](fmt::Display) writes them again where
/// needed. So `"a"` and `a` are equal, as RFC 5321 section 4.1.2 demands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LocalPart(String);

impl LocalPart {
    /// Without quotes: `a b` for `"a b"`. May hold any printable character, `/` included.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LocalPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        quoted(&self.0).fmt(f)
    }
}

/// Writes an unquoted local part in its wire form: in quotes if it needs them.
pub fn quoted(local_part: &str) -> impl fmt::Display + '_ {
    struct Quoted<'a>(&'a str);
    impl fmt::Display for Quoted<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_local_part(f, self.0)
        }
    }
    Quoted(local_part)
}

/// A mailbox: local part and domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    local_part: LocalPart,
    domain: AddressDomain,
}

impl Address {
    /// Parses `local@domain` without angle brackets. Accepts UTF-8 (RFC 6531).
    ///
    /// # Errors
    /// Any [`AddressError`] except those about brackets.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        match ForwardPath::read(text)? {
            ForwardPath::Address(address) => Ok(address),
            ForwardPath::Local(_) => Err(AddressError::NoDomain),
        }
    }

    /// The local part, as in [`LocalPart::as_str`].
    pub fn local_part(&self) -> &str {
        self.local_part.as_str()
    }

    /// The domain.
    pub fn domain(&self) -> &AddressDomain {
        &self.domain
    }

    /// True if every octet is ASCII, so that the address may be used without SMTPUTF8.
    pub fn is_ascii(&self) -> bool {
        self.local_part().is_ascii()
            && match &self.domain {
                AddressDomain::Name(name) | AddressDomain::Literal(name) => name.is_ascii(),
                AddressDomain::Ip(_) => true,
            }
    }
}

impl Address {
    /// This address in ASCII: U-labels of the domain become A-labels (RFC 5890). `None` if it is ASCII already, or if
    /// the local part is not ASCII and so has no such form.
    pub fn to_ascii(&self) -> Option<Self> {
        let AddressDomain::Name(name) = &self.domain else { return None };
        if name.is_ascii() || !self.local_part().is_ascii() {
            return None;
        }
        let name = idna::domain_to_ascii(name).ok().filter(|name| is_domain(name))?;
        Some(Self { local_part: self.local_part.clone(), domain: AddressDomain::Name(name) })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.local_part, self.domain)
    }
}

impl std::str::FromStr for Address {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        Self::parse(text)
    }
}

/// The sender given in MAIL: `<>` for notifications, else an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReversePath {
    /// `<>`: a bounce, never to be bounced (RFC 5321 section 4.5.5).
    Null,
    /// `<a>`: a name without a domain. Against RFC 5321 section 4.1.2, but cron jobs and devices send it. Only the
    /// client knows whose user that is, so it is kept unchanged.
    Local(LocalPart),
    /// An ordinary sender.
    Address(Address),
}

impl ReversePath {
    /// Parses a path with its angle brackets, and nothing after it.
    ///
    /// # Errors
    /// See [`AddressError`].
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let (path, rest) = Self::split(text)?;
        if rest.is_empty() { Ok(path) } else { Err(AddressError::Trailing) }
    }

    /// Parses a path at the start of `text`; returns it with the rest.
    pub fn split(text: &str) -> Result<(Self, &str), AddressError> {
        match text.strip_prefix("<>") {
            Some(rest) => Ok((Self::Null, rest)),
            None => ForwardPath::split(text).map(|(path, rest)| (Self::of(path), rest)),
        }
    }

    /// The address without angle brackets; empty for the null path.
    pub fn bare(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Local(local_part) => local_part.to_string(),
            Self::Address(address) => address.to_string(),
        }
    }

    /// Every valid recipient is a valid sender.
    fn of(path: ForwardPath) -> Self {
        match path {
            ForwardPath::Local(local_part) => Self::Local(local_part),
            ForwardPath::Address(address) => Self::Address(address),
        }
    }

    /// The address; `None` for the null path or without a domain.
    pub fn address(&self) -> Option<&Address> {
        match self {
            Self::Null | Self::Local(_) => None,
            Self::Address(address) => Some(address),
        }
    }

    /// True if every octet is ASCII, so that the path may be used without SMTPUTF8.
    pub fn is_ascii(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Local(local_part) => local_part.as_str().is_ascii(),
            Self::Address(address) => address.is_ascii(),
        }
    }

    /// This path in ASCII; see [`Address::to_ascii`].
    pub fn to_ascii(&self) -> Option<Self> {
        self.address()?.to_ascii().map(Self::Address)
    }
}

/// Accepts an address with or without angle brackets; `<>` is the null path.
impl std::str::FromStr for ReversePath {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.starts_with('<') { Self::parse(text) } else { text.parse().map(Self::of) }
    }
}

impl From<Address> for ReversePath {
    fn from(address: Address) -> Self {
        Self::Address(address)
    }
}

/// Writes the wire form, with angle brackets.
impl fmt::Display for ReversePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("<>"),
            Self::Local(local_part) => write!(f, "<{local_part}>"),
            Self::Address(address) => write!(f, "<{address}>"),
        }
    }
}

/// A recipient given in RCPT.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ForwardPath {
    /// `<a>`: a name without a domain, so a user of this very host. `<Postmaster>`, in any case, must be accepted in
    /// this form (RFC 5321 section 4.5.1); the handler decides about others.
    Local(LocalPart),
    /// An ordinary recipient.
    Address(Address),
}

impl ForwardPath {
    /// Parses a path with its angle brackets, and nothing after it.
    ///
    /// # Errors
    /// See [`AddressError`].
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let (path, rest) = Self::split(text)?;
        if rest.is_empty() { Ok(path) } else { Err(AddressError::Trailing) }
    }

    /// Parses a path at the start of `text`; returns it with the rest.
    pub fn split(text: &str) -> Result<(Self, &str), AddressError> {
        let (inner, rest) = split_brackets(text)?;
        Ok((Self::read(drop_source_route(inner)?)?, rest))
    }

    /// The address without angle brackets.
    pub fn bare(&self) -> String {
        match self {
            Self::Local(local_part) => local_part.to_string(),
            Self::Address(address) => address.to_string(),
        }
    }

    /// Parses `local@domain` or `local`.
    fn read(text: &str) -> Result<Self, AddressError> {
        let (local_part, rest) = split_local_part(text)?;
        let local_part = LocalPart(local_part);
        match rest.strip_prefix('@') {
            Some(domain) => Ok(Self::Address(Address { local_part, domain: parse_domain(domain)? })),
            None if rest.is_empty() => Ok(Self::Local(local_part)),
            None => Err(AddressError::LocalPart),
        }
    }

    /// The address; `None` without a domain.
    pub fn address(&self) -> Option<&Address> {
        match self {
            Self::Local(_) => None,
            Self::Address(address) => Some(address),
        }
    }

    /// The local part, as in [`LocalPart::as_str`].
    pub fn local_part(&self) -> &str {
        match self {
            Self::Local(local_part) => local_part.as_str(),
            Self::Address(address) => address.local_part(),
        }
    }

    /// True if every octet is ASCII, so that the path may be used without SMTPUTF8.
    pub fn is_ascii(&self) -> bool {
        match self {
            Self::Local(local_part) => local_part.as_str().is_ascii(),
            Self::Address(address) => address.is_ascii(),
        }
    }

    /// This path in ASCII; see [`Address::to_ascii`].
    pub fn to_ascii(&self) -> Option<Self> {
        self.address()?.to_ascii().map(Self::Address)
    }
}

/// Accepts an address with or without angle brackets.
impl std::str::FromStr for ForwardPath {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.starts_with('<') {
            return Self::parse(text);
        }
        if text.len() + 2 > PATH_BYTES_MAX {
            return Err(AddressError::PathTooLong);
        }
        Self::read(text)
    }
}

impl From<Address> for ForwardPath {
    fn from(address: Address) -> Self {
        Self::Address(address)
    }
}

/// Writes the wire form, with angle brackets.
impl fmt::Display for ForwardPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(local_part) => write!(f, "<{local_part}>"),
            Self::Address(address) => write!(f, "<{address}>"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, expected: Result<&str, AddressError>) {
        let got = ForwardPath::parse(path).map(|p| p.to_string());
        assert_eq!(got.as_deref().map_err(|e| *e), expected, "{path}");
    }

    #[test]
    fn ordinary_addresses() {
        check("<a@example.org>", Ok("<a@example.org>"));
        check("<a.b+c@x>", Ok("<a.b+c@x>"));
        check("<a@[192.0.2.1]>", Ok("<a@[192.0.2.1]>"));
        check("<a@[IPv6:2001:db8::1]>", Ok("<a@[IPv6:2001:db8::1]>"));
        check("<a@[x-tag:content]>", Ok("<a@[x-tag:content]>"));
        check("<jürgen@bücher.example>", Ok("<jürgen@bücher.example>"));
    }

    #[test]
    fn quotes_are_dropped_where_not_needed_and_kept_where_needed() {
        check("<\"a\"@x>", Ok("<a@x>"));
        check("<\"a b\"@x>", Ok("<\"a b\"@x>"));
        check("<\"a>b\"@x>", Ok("<\"a>b\"@x>"));
        check("<\"a\\\"\\\\b\"@x>", Ok("<\"a\\\"\\\\b\"@x>"));
        check("<\"\"@x>", Ok("<\"\"@x>"));
        check("<a..b@x>", Ok("<\"a..b\"@x>"));
    }

    #[test]
    fn source_routes_are_dropped() {
        check("<@a.example,@b.example:c@d.example>", Ok("<c@d.example>"));
        check("<@a.example>", Err(AddressError::SourceRoute));
        check("<@a.example,b:c@d>", Err(AddressError::SourceRoute));
    }

    #[test]
    fn a_name_needs_no_domain() {
        check("<PostMaster>", Ok("<PostMaster>"));
        check("<\"a b\">", Ok("<\"a b\">"));
        check("<\"a\"b>", Err(AddressError::LocalPart));
        assert_eq!(ReversePath::parse("<a>").map(|path| path.to_string()).as_deref(), Ok("<a>"));
        assert_eq!(ReversePath::parse("<a>").map(|path| path.address().cloned()), Ok(None));
        assert_eq!(Address::parse("a"), Err(AddressError::NoDomain));
    }

    #[test]
    fn paths_need_no_brackets_to_be_parsed() {
        for text in ["a@example.org", "\"a b\"@[192.0.2.1]", "postmaster"] {
            assert_eq!(text.parse::<ForwardPath>(), ForwardPath::parse(&format!("<{text}>")), "{text}");
            assert_eq!(text.parse::<ReversePath>(), ReversePath::parse(&format!("<{text}>")), "{text}");
            assert_eq!(format!("<{text}>").parse::<ForwardPath>(), text.parse());
        }
        assert_eq!("<>".parse(), Ok(ReversePath::Null));
        for text in ["", "a@b>", "a@b c", "@a:b@c", "<a@b"] {
            assert!(text.parse::<ReversePath>().is_err() && text.parse::<ForwardPath>().is_err(), "{text:?}");
        }
        let address: Address = "a@example.org".parse().unwrap();
        assert_eq!(ForwardPath::from(address.clone()).address(), Some(&address));
        assert_eq!(ReversePath::from(address).to_string(), "<a@example.org>");
    }

    #[test]
    fn the_null_path_is_a_sender_only() {
        assert_eq!(ReversePath::parse("<>"), Ok(ReversePath::Null));
        check("<>", Err(AddressError::LocalPart));
    }

    #[test]
    fn bad_addresses() {
        check("a@b", Err(AddressError::Brackets));
        check("<a@b", Err(AddressError::Brackets));
        check("<a b@c>", Err(AddressError::LocalPart));
        check("<a@>", Err(AddressError::Domain));
        check("<a@b..c>", Err(AddressError::Domain));
        check("<a@-b>", Err(AddressError::Domain));
        check("<a@b c>", Err(AddressError::Domain));
        check("<a@[1.2.3]>", Err(AddressError::Literal));
        check("<a@[1.2.3.4>", Err(AddressError::Literal));
        check("<a@b>c", Err(AddressError::Trailing));
        check("<a@b@c>", Err(AddressError::Domain));
        check("<a\u{0}@b>", Err(AddressError::LocalPart));
        check("<\"a\r\"@b>", Err(AddressError::LocalPart));
    }

    #[test]
    fn lengths_are_inclusive() {
        let local = "l".repeat(64);
        check(&format!("<{local}@x>"), Ok(&format!("<{local}@x>")));
        check(&format!("<{local}l@x>"), Err(AddressError::LocalPartTooLong));
        // Written with quotes it would have 66 octets, and no host could parse it.
        check(&format!("<.{}@x>", &local[1..]), Err(AddressError::LocalPartTooLong));
        let label = "d".repeat(61);
        let domain = format!("{label}.{label}.{label}.{label}.dd");
        assert_eq!(domain.len(), 250);
        check(&format!("<aaa@{domain}>"), Ok(&format!("<aaa@{domain}>")));
        check(&format!("<aaaa@{domain}>"), Err(AddressError::PathTooLong));
    }
}
