//! A `DKIM-Signature` field of a stranger (RFC 6376 sections 3.5 and 6.1.1).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::key::Algorithm;
use crate::record::tags;

/// A field that can be verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReceivedSignature {
    pub(crate) algorithm: Algorithm,
    pub(crate) domain: String,
    pub(crate) selector: String,
    /// `i=` has a host below `d=`.
    pub(crate) is_of_subdomain: bool,
    pub(crate) is_header_relaxed: bool,
    pub(crate) is_body_relaxed: bool,
    /// `l=`
    pub(crate) body_bytes: Option<u64>,
    /// `x=`
    pub(crate) expires: Option<u64>,
    /// `h=` in lower case.
    names: String,
    pub(crate) body_hash: Vec<u8>,
    pub(crate) signature: Vec<u8>,
}

/// Names of `h=` at most.
const NAMES_MAX: usize = 500;
/// A signature without From must not pass, even if no octet has changed.
pub(crate) const FROM_UNSIGNED: &str = "it leaves From unsigned";

/// The domain that a field names as its signer, also if the rest is wrong.
pub(crate) fn domain_of(value: &str) -> Option<String> {
    let domain = tags(value)?.iter().find(|(name, _)| *name == "d")?.1.to_ascii_lowercase();
    is_host(&domain).then_some(domain)
}

impl ReceivedSignature {
    /// Reads the value of a field.
    ///
    /// # Errors
    /// Why it cannot count, in a few words.
    pub(crate) fn parse(value: &str) -> Result<Self, &'static str> {
        let tags = tags(value).ok_or("it is not a list of tags")?;
        let tag = |name: &str| tags.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        if tag("v") != Some("1") {
            return Err("its version is not 1");
        }
        let algorithm = match tag("a").map(str::to_ascii_lowercase).as_deref() {
            Some("rsa-sha256") => Algorithm::Rsa,
            Some("ed25519-sha256") => Algorithm::Ed25519,
            // RFC 8301 section 3.1.
            Some("rsa-sha1") => return Err("it is made with SHA-1"),
            _ => return Err("its algorithm is not known"),
        };
        let name = |name: &str| tag(name).map(str::to_ascii_lowercase).filter(|name| is_host(name));
        let domain = name("d").ok_or("it names no domain")?;
        let selector = name("s").filter(|selector| selector.len() <= 100).ok_or("it names no selector")?;
        let host = tag("i").map(|identity| identity.rsplit_once('@').map_or("", |(_, host)| host).to_ascii_lowercase());
        let host = host.unwrap_or_else(|| domain.clone());
        let above = host.strip_suffix(&*domain).filter(|rest| rest.is_empty() || rest.ends_with('.'));
        let is_of_subdomain = !above.ok_or("its identity is outside its domain")?.is_empty();
        if !tag("q").is_none_or(|ways| ways.split(':').any(|way| way.trim().eq_ignore_ascii_case("dns/txt"))) {
            return Err("its key is not in DNS");
        }
        let (is_header_relaxed, is_body_relaxed) = forms(tag("c")).ok_or("its canonical form is not known")?;
        let names = tag("h").unwrap_or_default().to_ascii_lowercase();
        if names_of(&names).nth(NAMES_MAX).is_some() {
            return Err("it names too many fields");
        }
        if !names_of(&names).any(|name| name == "from") {
            return Err(FROM_UNSIGNED);
        }
        let (signed_at, expires) = (number(tag("t"))?, number(tag("x"))?);
        if expires.zip(signed_at).is_some_and(|(expires, signed_at)| expires <= signed_at) {
            return Err("it expires before it begins");
        }
        let octets = |name: &str| {
            let text: String = tag(name).unwrap_or_default().split_ascii_whitespace().collect();
            STANDARD.decode(text).ok().filter(|octets| !octets.is_empty())
        };
        Ok(Self {
            algorithm,
            domain,
            selector,
            is_of_subdomain,
            is_header_relaxed,
            is_body_relaxed,
            body_bytes: number(tag("l"))?,
            expires,
            names,
            body_hash: octets("bh").ok_or("it has no hash of the body")?,
            signature: octets("b").ok_or("it has no signature")?,
        })
    }

    /// The signed fields, in lower case and in the order of `h=`.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        names_of(&self.names)
    }
}

fn names_of(list: &str) -> impl Iterator<Item = &str> {
    list.split(':').map(str::trim)
}

fn number(text: Option<&str>) -> Result<Option<u64>, &'static str> {
    let Some(text) = text else { return Ok(None) };
    let is_number = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    // RFC 6376 has up to 76 digits, all of them far away.
    is_number.then(|| Some(text.parse().unwrap_or(u64::MAX))).ok_or("it has a malformed number")
}

/// True for relaxed forms of header and body.
fn forms(text: Option<&str>) -> Option<(bool, bool)> {
    let is_relaxed = |form: &str| match () {
        () if form.eq_ignore_ascii_case("relaxed") => Some(true),
        () if form.eq_ignore_ascii_case("simple") => Some(false),
        () => None,
    };
    let text = text.unwrap_or("simple");
    let (header, body) = text.split_once('/').unwrap_or((text, "simple"));
    Some((is_relaxed(header.trim())?, is_relaxed(body.trim())?))
}

/// Like [`is_domain`](crate::is_domain), but with underscores, which foreign selectors may contain.
fn is_host(text: &str) -> bool {
    let is_inner = |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || matches!(octet, b'-' | b'_');
    text.len() <= 253 && text.split('.').all(|label| (1..=63).contains(&label.len()) && label.bytes().all(is_inner))
}

/// The field as its own signature sees it: the value of `b=` left out (RFC 6376 section 3.7).
pub(crate) fn without_signature(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let colon = field.iter().position(|octet| *octet == b':').map_or(0, |colon| colon + 1);
    out.extend_from_slice(&field[..colon]);
    for (index, tag) in field[colon..].split(|octet| *octet == b';').enumerate() {
        if index > 0 {
            out.push(b';');
        }
        let equals = tag.iter().position(|octet| *octet == b'=').unwrap_or(tag.len());
        if tag[..equals].trim_ascii() == b"b" && equals < tag.len() {
            out.extend_from_slice(&tag[..=equals])
        } else {
            out.extend_from_slice(tag)
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        " v=1; a=rsa-sha256; d=Example.org; s=s_1.a; h=Subject : FROM; bh=AQ ID;\r\n b=BA UG; t=5; x=9; l=7";

    #[test]
    fn a_signature_is_read() {
        let read = ReceivedSignature::parse(GOOD).unwrap();
        assert_eq!((read.domain.as_str(), read.selector.as_str()), ("example.org", "s_1.a"));
        assert_eq!((read.is_header_relaxed, read.is_body_relaxed, read.is_of_subdomain), (false, false, false));
        assert_eq!(
            (read.body_bytes, read.expires, read.names().collect::<Vec<_>>().join(" ").as_str()),
            (Some(7), Some(9), "subject from")
        );
        assert_eq!((&read.body_hash[..], &read.signature[..]), (&[1, 2, 3][..], &[4, 5, 6][..]));
        let more = |more: &str| ReceivedSignature::parse(&format!("{GOOD}; {more}")).unwrap();
        assert!(more("c=relaxed").is_header_relaxed && !more("c=relaxed").is_body_relaxed);
        assert!(more("c=simple/relaxed").is_body_relaxed);
        assert!(more("i=@mx.example.org").is_of_subdomain && !more("i=a@b@EXAMPLE.org").is_of_subdomain);
    }

    #[test]
    fn a_signature_with_a_mistake_does_not_count() {
        for (from, to, why) in [
            ("v=1", "v=2", "its version is not 1"),
            ("v=1;", "", "its version is not 1"),
            ("rsa-sha256", "rsa-sha1", "it is made with SHA-1"),
            ("rsa-sha256", "rsa-md5", "its algorithm is not known"),
            ("d=Example.org", "d=b\u{fc}cher.example", "it names no domain"),
            ("d=Example.org", "d=a..b", "it names no domain"),
            ("s=s_1.a", "s=", "it names no selector"),
            ("FROM", "To", "it leaves From unsigned"),
            ("h=Subject", "c=nofws; h=From", "its canonical form is not known"),
            ("h=Subject", "q=ldap; h=From", "its key is not in DNS"),
            ("h=Subject", "i=@example.net; h=From", "its identity is outside its domain"),
            ("h=Subject", "i=@badexample.org; h=From", "its identity is outside its domain"),
            ("x=9", "x=5", "it expires before it begins"),
            ("x=9", "x=-1", "it has a malformed number"),
            ("bh=AQ ID", "bh=", "it has no hash of the body"),
            ("b=BA UG", "b=!", "it has no signature"),
            ("t=5", "t=5; t=5", "it is not a list of tags"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert_eq!(ReceivedSignature::parse(&text).unwrap_err(), why, "{text}");
        }
    }

    #[test]
    fn the_signature_itself_is_left_out() {
        let check = |field: &str, expected: &str| {
            assert_eq!(String::from_utf8(without_signature(field.as_bytes())).unwrap(), expected);
        };
        check("DKIM-Signature: bh=b=; \r\n b = AA\r\n BB ; t=b\r\n", "DKIM-Signature: bh=b=; \r\n b =; t=b\r\n");
        check("DKIM-Signature:b=AA==\r\n", "DKIM-Signature:b=");
    }
}
