//! Macros in domains (RFC 7208 section 7).

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::results::NAME_BYTES_MAX;

/// A domain with macros, its syntax checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DomainSpec<'a>(&'a str);

/// The values of macros.
pub(super) struct Values<'a> {
    pub(super) local: &'a str,
    pub(super) sender_domain: &'a str,
    pub(super) domain: &'a str,
    pub(super) helo: &'a str,
    pub(super) ip: IpAddr,
    /// Validated by PTR, or `unknown`.
    pub(super) client_name: &'a str,
}

/// A part of a macro string.
enum Part<'a> {
    Text(&'a str),
    Macro { letter: char, keep: usize, is_reversed: bool, delimiters: &'a str },
}

impl<'a> DomainSpec<'a> {
    /// Parses a macro (RFC 7208 section 7.1). `None` on a syntax error.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let mut last = None;
        for part in parts(text) {
            last = Some(part?);
        }
        let ends_well = match last? {
            Part::Macro { .. } => true,
            // `%%` and the like end a domain as any macro does, though none can exist.
            Part::Text("%" | " " | "%20") => text.ends_with(['%', '_', '-']) && text.len() > 1,
            Part::Text(_) => ends_in_toplabel(text),
        };
        ends_well.then_some(Self(text))
    }

    /// True for the value of an unknown modifier.
    pub(super) fn is_macro_string(text: &str) -> bool {
        parts(text).all(|part| part.is_some())
    }

    /// True if it uses the client's host name.
    pub(super) fn has_client_name(&self) -> bool {
        let is_p = |part: Option<Part<'_>>| matches!(part, Some(Part::Macro { letter: 'p' | 'P', .. }));
        parts(self.0).any(is_p)
    }

    /// The domain, cut from the left to 253 octets, without a final dot.
    pub(super) fn expand(&self, values: &Values<'_>) -> String {
        let mut out = String::new();
        for part in parts(self.0).flatten() {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Macro { letter, keep, is_reversed, delimiters } => {
                    let value = values.value(letter.to_ascii_lowercase());
                    let mut fields: Vec<&str> = value.split(|letter| delimiters.contains(letter)).collect();
                    if is_reversed {
                        fields.reverse();
                    }
                    let value = fields[fields.len().saturating_sub(keep)..].join(".");
                    if letter.is_ascii_uppercase() { escape(&value, &mut out) } else { out.push_str(&value) }
                }
            }
            // Only the end can count.
            if out.len() > EXPANDED_MAX {
                let cut = (out.len() - EXPANDED_MAX / 2..out.len()).find(|at| out.is_char_boundary(*at));
                out.drain(..cut.unwrap_or(0));
            }
        }
        let mut name = out.strip_suffix('.').unwrap_or(&out);
        while name.len() > NAME_BYTES_MAX {
            name = name.split_once('.').map_or("", |(_, rest)| rest);
        }
        name.to_ascii_lowercase()
    }
}

/// An expansion stops growing after this length and one more value.
const EXPANDED_MAX: usize = 4096;

impl Values<'_> {
    fn value(&self, letter: char) -> String {
        match letter {
            's' => format!("{}@{}", self.local, self.sender_domain),
            'l' => self.local.to_owned(),
            'o' => self.sender_domain.to_owned(),
            'd' => self.domain.to_owned(),
            'h' => self.helo.to_owned(),
            'p' => self.client_name.to_owned(),
            'v' => if self.ip.is_ipv4() { "in-addr" } else { "ip6" }.to_owned(),
            'i' => dotted(self.ip),
            letter => unreachable!("the syntax has no {letter}"),
        }
    }
}

/// An IPv6 address as its 32 nibbles.
fn dotted(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => {
            let nibbles = ip.octets().into_iter().flat_map(|octet| [octet >> 4, octet & 15]);
            nibbles.map(|nibble| format!("{nibble:x}")).collect::<Vec<_>>().join(".")
        }
    }
}

/// RFC 3986 section 2.3.
fn escape(value: &str, out: &mut String) {
    for octet in value.bytes() {
        match octet {
            b'-' | b'.' | b'_' | b'~' => out.push(char::from(octet)),
            octet if octet.is_ascii_alphanumeric() => out.push(char::from(octet)),
            octet => _ = write!(out, "%{octet:02X}"),
        }
    }
}

/// The parts of a macro string; ends with `None` at a syntax error.
fn parts(text: &str) -> impl Iterator<Item = Option<Part<'_>>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let part = next_part(&mut rest);
        if part.is_none() {
            rest = "";
        }
        Some(part)
    })
}

fn next_part<'a>(rest: &mut &'a str) -> Option<Part<'a>> {
    let text = *rest;
    let Some(after) = text.strip_prefix('%') else {
        let end = text.find('%').unwrap_or(text.len());
        *rest = &text[end..];
        return Some(Part::Text(&text[..end]));
    };
    let (kind, after) = after.split_at_checked(1)?;
    *rest = after;
    match kind {
        "%" => return Some(Part::Text("%")),
        "_" => return Some(Part::Text(" ")),
        "-" => return Some(Part::Text("%20")),
        "{" => {}
        _ => return None,
    }
    let (inner, after) = after.split_once('}')?;
    *rest = after;
    let letter = inner.chars().next().filter(|letter| "slodiphv".contains(letter.to_ascii_lowercase()))?;
    let transformers = &inner[1..];
    let digits = transformers.bytes().take_while(u8::is_ascii_digit).count();
    let keep = match &transformers[..digits] {
        "" => usize::MAX,
        // More than any name has.
        digits => digits.parse().unwrap_or(usize::MAX),
    };
    let delimiters = transformers[digits..].strip_prefix(['r', 'R']);
    let (is_reversed, delimiters) = delimiters.map_or((false, &transformers[digits..]), |rest| (true, rest));
    let is_known = |letter: char| ".-+,/_=".contains(letter);
    if keep == 0 || !delimiters.chars().all(is_known) {
        return None;
    }
    let delimiters = if delimiters.is_empty() { "." } else { delimiters };
    Some(Part::Macro { letter, keep, is_reversed, delimiters })
}

/// True if the last label can end a domain: not all digits, no hyphen at its ends, not the only label.
fn ends_in_toplabel(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let Some((_, label)) = text.rsplit_once('.') else { return false };
    let is_inner = |octet: u8| octet.is_ascii_alphanumeric() || octet == b'-';
    !label.is_empty()
        && label.bytes().all(is_inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
        && !label.bytes().all(|octet| octet.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(spec: &str, ip: &str) -> String {
        let values = Values {
            local: "strong-bad",
            sender_domain: "email.example.com",
            domain: "email.example.com",
            helo: "mx.example",
            ip: ip.parse().unwrap(),
            client_name: "unknown",
        };
        DomainSpec::parse(spec).unwrap().expand(&values)
    }

    #[test]
    fn examples_of_the_standard() {
        // RFC 7208 section 7.4.
        for (spec, expected) in [
            ("%{s}", "strong-bad@email.example.com"),
            ("%{o}", "email.example.com"),
            ("%{d4}", "email.example.com"),
            ("%{d2}", "example.com"),
            ("%{d1}", "com"),
            ("%{dr}", "com.example.email"),
            ("%{d2r}", "example.email"),
            ("%{l-}", "strong.bad"),
            ("%{lr-}", "bad.strong"),
            ("%{l1r-}", "strong"),
            ("%{ir}.%{v}._spf.%{d2}", "3.2.0.192.in-addr._spf.example.com"),
            ("%{lr-}.lp._spf.%{d2}", "bad.strong.lp._spf.example.com"),
            ("%{d2}.trusted-domains.example.net.", "example.com.trusted-domains.example.net"),
            ("%{S}.x.example", "strong-bad%40email.example.com.x.example"),
            ("a%%b%_c%-.%{h}", "a%b c%20.mx.example"),
            ("%{p}.x", "unknown.x"),
        ] {
            assert_eq!(expand(spec, "192.0.2.3"), expected.to_ascii_lowercase(), "{spec}");
        }
        assert_eq!(
            expand("%{ir}.%{v}._spf.%{d2}", "2001:db8::cb01"),
            "1.0.b.c.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6._spf.example.com"
        );
    }

    #[test]
    fn a_long_domain_loses_labels_at_its_left() {
        let name = expand(&("%{d}.".repeat(1000) + "%{d}"), "192.0.2.3");
        assert!(name.len() <= 253 && name.len() > 230 && name.ends_with(".email.example.com"), "{name}");
        assert_eq!(expand(&format!("{}%{{d}}", "x".repeat(300)), "192.0.2.3"), "example.com");
    }
}
