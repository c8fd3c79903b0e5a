//! Published policies (RFC 7208 sections 4.5, 5, 6 and 12).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::macros::DomainSpec;
use super::result::SpfResult;

/// A policy without a mistake.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Policy<'a> {
    pub(super) directives: Vec<(SpfResult, Mechanism<'a>)>,
    pub(super) redirect: Option<DomainSpec<'a>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mechanism<'a> {
    All,
    Include(DomainSpec<'a>),
    A(Option<DomainSpec<'a>>, Prefixes),
    Mx(Option<DomainSpec<'a>>, Prefixes),
    Ptr(Option<DomainSpec<'a>>),
    Network(IpAddr, u8),
    Exists(DomainSpec<'a>),
}

/// Lengths of the networks that are compared, of IPv4 and IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prefixes {
    v4: u8,
    v6: u8,
}

impl Prefixes {
    pub(super) fn match_addresses(self, one: IpAddr, other: IpAddr) -> bool {
        is_in(one, other, if one.is_ipv4() { self.v4 } else { self.v6 })
    }
}

/// True if both addresses share a prefix of that length.
pub(super) fn is_in(one: IpAddr, other: IpAddr, prefix: u8) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            (one.to_bits() ^ other.to_bits()).checked_shr(32 - u32::from(prefix)).unwrap_or(0) == 0
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            (one.to_bits() ^ other.to_bits()).checked_shr(128 - u32::from(prefix)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// True if the text is a policy, right or not (RFC 7208 section 4.5).
pub(super) fn is_policy(text: &str) -> bool {
    text.split(' ').next().is_some_and(|version| version.eq_ignore_ascii_case("v=spf1"))
}

impl<'a> Policy<'a> {
    /// Parses the whole policy. `None` on any syntax error, even after a match (RFC 7208 section 4.6).
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        if !text.bytes().all(|octet| (b' '..=b'~').contains(&octet)) {
            return None;
        }
        let mut policy = Policy { directives: Vec::new(), redirect: None };
        let mut has_explanation = false;
        for term in text.split(' ').skip(1).filter(|term| !term.is_empty()) {
            let name = term.bytes().position(|octet| !is_name_octet(octet)).unwrap_or(term.len());
            match term[name..].strip_prefix('=') {
                Some(value) => policy.modifier(&term[..name], value, &mut has_explanation)?,
                None => policy.directives.push(directive(term)?),
            }
        }
        Some(policy)
    }

    fn modifier(&mut self, name: &str, value: &'a str, has_explanation: &mut bool) -> Option<()> {
        if !name.starts_with(|letter: char| letter.is_ascii_alphabetic()) {
            return None;
        }
        if name.eq_ignore_ascii_case("redirect") {
            let spec = DomainSpec::parse(value)?;
            return self.redirect.replace(spec).is_none().then_some(());
        }
        if name.eq_ignore_ascii_case("exp") {
            DomainSpec::parse(value)?;
            return (!std::mem::replace(has_explanation, true)).then_some(());
        }
        DomainSpec::is_macro_string(value).then_some(())
    }
}

fn is_name_octet(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'_' | b'.')
}

fn directive(term: &str) -> Option<(SpfResult, Mechanism<'_>)> {
    let (result, mechanism) = match term.as_bytes()[0] {
        b'+' => (SpfResult::Pass, &term[1..]),
        b'-' => (SpfResult::Fail, &term[1..]),
        b'~' => (SpfResult::SoftFail, &term[1..]),
        b'?' => (SpfResult::Neutral, &term[1..]),
        _ => (SpfResult::Pass, term),
    };
    let end = mechanism.find([':', '/']).unwrap_or(mechanism.len());
    let (name, rest) = mechanism.split_at(end);
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    let mechanism = if is("all") {
        rest.is_empty().then_some(Mechanism::All)?
    } else if is("include") {
        Mechanism::Include(DomainSpec::parse(rest.strip_prefix(':')?)?)
    } else if is("exists") {
        Mechanism::Exists(DomainSpec::parse(rest.strip_prefix(':')?)?)
    } else if is("ptr") {
        Mechanism::Ptr(domain(rest)?)
    } else if is("a") {
        let (rest, prefixes) = prefixes(rest)?;
        Mechanism::A(domain(rest)?, prefixes)
    } else if is("mx") {
        let (rest, prefixes) = prefixes(rest)?;
        Mechanism::Mx(domain(rest)?, prefixes)
    } else if is("ip4") {
        network(rest, 32, |text| text.parse::<Ipv4Addr>().ok().map(IpAddr::V4))?
    } else if is("ip6") {
        network(rest, 128, |text| text.parse::<Ipv6Addr>().ok().map(IpAddr::V6))?
    } else {
        return None;
    };
    Some((result, mechanism))
}

/// The domain after a colon, or `None`.
fn domain(rest: &str) -> Option<Option<DomainSpec<'_>>> {
    if rest.is_empty() {
        return Some(None);
    }
    DomainSpec::parse(rest.strip_prefix(':')?).map(Some)
}

/// Splits `/24`, `//64` or `/24//64` off the end.
fn prefixes(rest: &str) -> Option<(&str, Prefixes)> {
    let mut found = Prefixes { v4: 32, v6: 128 };
    let mut rest = rest;
    if let Some((before, digits)) = cut_digits(rest)
        && let Some(before) = before.strip_suffix('/')
    {
        found.v6 = prefix(digits, 128)?;
        rest = before;
    }
    if let Some((before, digits)) = cut_digits(rest) {
        found.v4 = prefix(digits, 32)?;
        rest = before;
    }
    Some((rest, found))
}

/// Splits digits off the end: the digits, and the text before their slash.
fn cut_digits(text: &str) -> Option<(&str, &str)> {
    let (before, digits) = text.rsplit_once('/')?;
    (!digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())).then_some((before, digits))
}

fn prefix(digits: &str, max: u8) -> Option<u8> {
    let is_plain = digits == "0" || !digits.starts_with('0');
    let length = digits.parse().ok().filter(|length| *length <= max)?;
    is_plain.then_some(length)
}

fn network(rest: &str, max: u8, read: impl Fn(&str) -> Option<IpAddr>) -> Option<Mechanism<'_>> {
    let rest = rest.strip_prefix(':')?;
    let (address, length) = match rest.split_once('/') {
        None => (rest, max),
        Some((address, digits)) => {
            let is_digits = digits.bytes().all(|digit| digit.is_ascii_digit());
            (address, is_digits.then(|| prefix(digits, max))??)
        }
    };
    Some(Mechanism::Network(read(address)?, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_anywhere_make_it_no_policy() {
        for good in [
            "v=spf1",
            "V=SPF1  +A:x.example/24//64 -ALL ",
            "v=spf1 a//0 mx/0 ptr:%{d} exists:%{i}._x.%{d2} ip4:192.0.2.0/24 ip6:2001:db8::/32 redirect=%{o} exp=x.example a-b_c.d=%{s}",
            "v=spf1 a:foo:bar/baz.example.com",
        ] {
            assert!(is_policy(good) && Policy::parse(good).is_some(), "{good}");
        }
        for bad in [
            "all:x.example",
            "a:",
            "a:x",
            "a:x.123",
            "a:x.-com",
            "a:x.com-",
            "a/33",
            "a/032",
            "a//129",
            "a:x.example/",
            "mx:x.example:80",
            "include",
            "include:x.example/24",
            "exists:x.example/24",
            "ptr/0",
            "ip4:1.2.3",
            "ip4:1.2.3.4/33",
            "ip4:1.2.3.4//32",
            "ip6:::1//32",
            "ip6:1.2.3.4",
            "ip4",
            "redirect=x.example redirect=x.example",
            "exp=x.example exp=x.example",
            "exp=",
            "1a=x",
            "=x",
            "x=%a",
            "%{d}",
            "-",
            "+-all",
            "a\tall",
            "a:\u{e9}.example",
            "a:%{d0}",
            "a:%{z}",
            "a:%{c}",
            "a:%{d",
            "a:%",
            "a:x.%(d)",
            "a:x.%{d-2}",
        ] {
            assert_eq!(Policy::parse(&format!("v=spf1 {bad} -all")), None, "{bad}");
        }
        assert!(!is_policy("v=spf10") && !is_policy(" v=spf1") && !is_policy("v=spf1\t-all"));
    }

    #[test]
    fn networks_match_by_their_prefix() {
        let check = |one: &str, other: &str, prefix, expected| {
            assert_eq!(is_in(one.parse().unwrap(), other.parse().unwrap(), prefix), expected, "{one} {other}/{prefix}");
        };
        check("192.0.2.1", "192.0.2.1", 32, true);
        check("192.0.2.1", "192.0.2.0", 32, false);
        check("192.0.2.1", "192.0.2.0", 31, true);
        check("192.0.2.1", "10.0.0.0", 0, true);
        check("2001:db8::1", "2001:db8::", 127, true);
        check("2001:db8::1", "::", 0, true);
        check("2001:db8::1", "2001:db8::", 128, false);
        check("192.0.2.1", "::", 0, false);
    }
}
