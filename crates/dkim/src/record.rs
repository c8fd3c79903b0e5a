//! The record of a key in the DNS (RFC 6376 section 3.6.1).

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::key::{Algorithm, SigningKey};

/// A key that verifiers find at `SELECTOR._domainkey.DOMAIN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// `k=`.
    pub algorithm: Algorithm,
    /// `p=`; empty: the key is revoked.
    pub public: Vec<u8>,
    /// `t=y`: the domain tests it.
    pub is_test: bool,
    /// `t=s`: a signature's `i=` has the very domain of its `d=`.
    pub is_strict: bool,
}

/// Why a text is not a record of a key that verifiers use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The text is not a list of tags, or has a tag twice.
    #[error("it is not a list of tags")]
    Syntax,
    /// `v=` is another, or not the first tag.
    #[error("its version is not DKIM1")]
    Version,
    /// `k=` names an unknown kind of key.
    #[error("its kind of key is neither rsa nor ed25519")]
    Algorithm,
    /// `h=` excludes SHA-256, or `s=` excludes mail.
    #[error("it is not for SHA-256, or not for mail")]
    Use,
    /// `p=` is missing, or not base64.
    #[error("it has no public key")]
    Public,
}

impl KeyRecord {
    /// The record of a private key.
    pub fn of(key: &SigningKey) -> Self {
        Self { algorithm: key.algorithm(), public: key.public(), is_test: false, is_strict: false }
    }

    /// Reads a record, its strings joined.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn parse(text: &str) -> Result<Self, RecordError> {
        let tags = tags(text).ok_or(RecordError::Syntax)?;
        let tag = |name: &str| tags.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        match tags.iter().position(|(name, _)| *name == "v") {
            None => {}
            Some(0) if tags[0].1 == "DKIM1" => {}
            Some(_) => return Err(RecordError::Version),
        }
        let algorithm = match tag("k") {
            None | Some("rsa") => Algorithm::Rsa,
            Some("ed25519") => Algorithm::Ed25519,
            Some(_) => return Err(RecordError::Algorithm),
        };
        let lists = |value: Option<&str>, wanted: &[&str]| {
            value.is_none_or(|value| value.split(':').any(|item| wanted.contains(&item.trim())))
        };
        if !lists(tag("h"), &["sha256"]) || !lists(tag("s"), &["*", "email"]) {
            return Err(RecordError::Use);
        }
        let public: String = tag("p").ok_or(RecordError::Public)?.split_ascii_whitespace().collect();
        let public = STANDARD.decode(public).map_err(|_| RecordError::Public)?;
        let has_flag = |flag| tag("t").is_some_and(|value| value.split(':').any(|found| found.trim() == flag));
        Ok(Self { algorithm, public, is_test: has_flag("y"), is_strict: has_flag("s") })
    }
}

impl fmt::Display for KeyRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = match (self.is_test, self.is_strict) {
            (true, true) => " t=y:s;",
            (true, false) => " t=y;",
            (false, true) => " t=s;",
            (false, false) => "",
        };
        write!(f, "v=DKIM1; k={};{flags} p={}", self.algorithm.name(), STANDARD.encode(&self.public))
    }
}

/// The tags of a list (RFC 6376 section 3.2), without white space around names and values. `None`: malformed, or a
/// duplicate tag.
pub(crate) fn tags(text: &str) -> Option<Vec<(&str, &str)>> {
    let is_blank = |letter: char| matches!(letter, ' ' | '\t' | '\r' | '\n');
    let text = text.trim_matches(is_blank);
    let mut tags: Vec<(&str, &str)> = Vec::new();
    for tag in text.strip_suffix(';').unwrap_or(text).split(';') {
        let (name, value) = tag.split_once('=')?;
        let (name, value) = (name.trim_matches(is_blank), value.trim_matches(is_blank));
        let is_name = name.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        if !is_name || tags.len() == TAGS_MAX || tags.iter().any(|(known, _)| *known == name) {
            return None;
        }
        tags.push((name, value));
    }
    Some(tags)
}

/// A record with more is refused: no standard has a dozen.
const TAGS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_the_standard_says() {
        let key = |text: &str| KeyRecord::parse(text).map(|record| (record.algorithm, record.public));
        let rsa = |octets: &[u8]| Ok((Algorithm::Rsa, octets.to_vec()));
        assert_eq!(key("v=DKIM1; k=rsa; p=AQID"), rsa(&[1, 2, 3]));
        assert_eq!(key("p=AQ\r\n ID;"), rsa(&[1, 2, 3]));
        assert_eq!(key(" v = DKIM1 ; h=sha1:sha256; s= email ; n=a note; x_1=y; p="), rsa(&[]));
        assert_eq!(key("v=DKIM1;k=ed25519;p=AQID"), Ok((Algorithm::Ed25519, vec![1, 2, 3])));
        let flags = |text: &str| KeyRecord::parse(text).map(|record| (record.is_test, record.is_strict)).unwrap();
        assert_eq!((flags("t=s:y; p="), flags("t=s; p="), flags("p=")), ((true, true), (false, true), (false, false)));
        for (text, error) in [
            ("", RecordError::Syntax),
            ("p", RecordError::Syntax),
            ("p=;p=", RecordError::Syntax),
            ("p=;;", RecordError::Syntax),
            ("=x; p=", RecordError::Syntax),
            ("v=DKIM2; p=", RecordError::Version),
            ("p=; v=DKIM1", RecordError::Version),
            ("k=dsa; p=", RecordError::Algorithm),
            ("h=sha1; p=", RecordError::Use),
            ("s=tlsrpt; p=", RecordError::Use),
            ("v=DKIM1", RecordError::Public),
            ("p=!", RecordError::Public),
        ] {
            assert_eq!(key(text), Err(error), "{text:?}");
        }
        assert_eq!(key(&"a1=;".repeat(100)), Err(RecordError::Syntax));
    }
}
