use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};

/// Octets of a domain without the final dot (RFC 1035 section 2.3.4).
const DOMAIN_BYTES_MAX: usize = 253;

/// The destination that mail is addressed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// A domain as DNS is asked for it: lower case, A-labels, no final dot.
    Domain(String),
    /// An address literal.
    Literal(IpAddr),
}

impl Target {
    /// Parses the part of an address after the `@`. `None`: neither domain nor address literal.
    pub(super) fn read(text: &str) -> Option<Target> {
        match text.strip_prefix('[') {
            Some(rest) => literal(rest.strip_suffix(']')?).map(Target::Literal),
            None => domain(text).map(Target::Domain),
        }
    }
}

/// The name that has the PTR records of an address (RFC 1035 section 3.5, RFC 3596 section 2.5).
pub(super) fn reverse_name(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let nibbles = address.octets().into_iter().rev().flat_map(|octet| [octet & 15, octet >> 4]);
            nibbles.map(|nibble| format!("{nibble:x}.")).collect::<String>() + "ip6.arpa"
        }
    }
}

/// True for a host name or an address literal (RFC 5321 section 4.1.3). An address without brackets is neither.
pub fn is_next_hop(host: &str) -> bool {
    Target::read(host).is_some() && host.parse::<IpAddr>().is_err()
}

/// RFC 5321 section 4.1.3, without the brackets.
fn literal(text: &str) -> Option<IpAddr> {
    let tagged = text.get(..5).is_some_and(|tag| tag.eq_ignore_ascii_case("ipv6:"));
    let address = if tagged {
        IpAddr::V6(text[5..].parse::<Ipv6Addr>().ok()?)
    } else {
        IpAddr::V4(text.parse::<Ipv4Addr>().ok()?)
    };
    Some(address.to_canonical())
}

/// An address literal as RFC 5321 writes it.
pub(super) fn literal_text(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("[{address}]"),
        IpAddr::V6(address) => format!("[IPv6:{address}]"),
    }
}

/// A domain in DNS form. U-labels become A-labels by UTS 46. `None` if it is invalid.
pub(super) fn domain(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let name = if text.is_ascii() {
        text.to_ascii_lowercase()
    } else {
        // Underscores are checked below, lengths too.
        let ascii = Uts46::new().to_ascii(text.as_bytes(), AsciiDenyList::EMPTY, Hyphens::Allow, DnsLength::Ignore);
        ascii.ok()?.into_owned()
    };
    let valid = !name.is_empty()
        && name.len() <= DOMAIN_BYTES_MAX
        && name.split('.').all(|label| (1..64).contains(&label.len()) && label.bytes().all(is_host_octet));
    valid.then_some(name)
}

/// Letters, digits and hyphens; underscores occur in names of hosts.
fn is_host_octet(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || octet == b'-' || octet == b'_'
}

/// True if mail can be sent to the address. The kernel takes an unspecified address for this host; the others are no
/// hosts.
pub(super) fn is_usable(address: &IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && *address != IpAddr::V4(Ipv4Addr::BROADCAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_has_one_form() {
        let long_label = "a".repeat(64);
        let long = format!("{}.example", ["a".repeat(60).as_str(); 5].join("."));
        for (text, expected) in [
            ("Example.ORG.", Some("example.org")),
            ("BÜCHER.example", Some("xn--bcher-kva.example")),
            ("bücher。example", Some("xn--bcher-kva.example")),
            ("XN--bcher-kva.example", Some("xn--bcher-kva.example")),
            ("_a.example", Some("_a.example")),
            ("", None),
            (".", None),
            ("a..example", None),
            ("a b.example", None),
            ("a\\.b.example", None),
            ("a\r\nb.example", None),
            ("a\u{0}.example", None),
            (&long_label, None),
            (&long, None),
        ] {
            assert_eq!(domain(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn literals_are_those_of_rfc_5321() {
        for (text, expected) in [
            ("[192.0.2.1]", Some("[192.0.2.1]")),
            ("[IPv6:2001:db8::1]", Some("[IPv6:2001:db8::1]")),
            ("[ipv6:2001:DB8:0::1]", Some("[IPv6:2001:db8::1]")),
            ("[IPv6:::ffff:192.0.2.1]", Some("[192.0.2.1]")),
            ("[2001:db8::1]", None),
            ("[IPv6:192.0.2.1]", None),
            ("[192.0.2]", None),
            ("[192.0.2.1", None),
            ("[x-tag:1]", None),
            ("[]", None),
        ] {
            let found = Target::read(text).map(|target| match target {
                Target::Literal(address) => literal_text(address),
                Target::Domain(domain) => domain,
            });
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }
}
