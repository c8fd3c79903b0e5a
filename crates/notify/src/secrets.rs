//! Secrets for signing addresses that come back to us, and the encoding of such signatures.
//!
//! The first secret signs, all verify. To rotate, put a new one in front, and remove the old one once everything it
//! signed has expired.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use aws_lc_rs::hmac;
use subtle::ConstantTimeEq;

/// Least octets of a secret. Use 24 random octets or more.
pub const SECRET_BYTES_MIN: usize = 8;

/// One or more secrets; the first signs.
#[derive(Clone)]
pub struct Secrets(Vec<Vec<u8>>);

/// Why secrets are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// There is none.
    #[error("there is no secret")]
    None,
    /// A secret has fewer than [`SECRET_BYTES_MIN`] octets.
    #[error("a secret has fewer than {SECRET_BYTES_MIN} octets")]
    Short,
}

/// Why a file of secrets is not used.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// It cannot be read.
    #[error("the secrets in {}: {error}; {}", file.display(), remedy(file))]
    Io {
        /// Path of the file.
        file: PathBuf,
        /// The read error.
        error: io::Error,
    },
    /// Its content cannot be used.
    #[error("{}: {error}; {}", file.display(), remedy(file))]
    Secret {
        /// Path of the file.
        file: PathBuf,
        /// The mistake.
        error: SecretError,
    },
}

/// How to replace a bad secret: the new one cannot verify earlier signatures.
fn remedy(file: &Path) -> String {
    format!(
        "restore the file, or make a new secret with `openssl rand -base64 24 > {}`: addresses signed with the old one will be refused",
        file.display()
    )
}

impl Secrets {
    /// Takes secrets, the one that signs first.
    ///
    /// # Errors
    /// See [`SecretError`].
    pub fn new<S: AsRef<[u8]>>(secrets: impl IntoIterator<Item = S>) -> Result<Self, SecretError> {
        let secrets: Vec<Vec<u8>> = secrets.into_iter().map(|secret| secret.as_ref().to_vec()).collect();
        match secrets.iter().map(Vec::len).min() {
            None => Err(SecretError::None),
            Some(len) if len < SECRET_BYTES_MIN => Err(SecretError::Short),
            Some(_) => Ok(Secrets(secrets)),
        }
    }

    /// Reads a file with one secret per line; skips empty lines and those that begin with `#`.
    ///
    /// # Errors
    /// See [`SecretFileError`].
    pub fn read(file: &Path) -> Result<Self, SecretFileError> {
        let text = fs::read_to_string(file).map_err(|error| SecretFileError::Io { file: file.to_owned(), error })?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self::new(lines).map_err(|error| SecretFileError::Secret { file: file.to_owned(), error })
    }

    pub(crate) fn keys(&self, algorithm: hmac::Algorithm) -> Keys {
        Keys(self.0.iter().map(|secret| hmac::Key::new(algorithm, secret)).collect())
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

/// The secrets as keys of one algorithm; never empty.
#[derive(Clone)]
pub(crate) struct Keys(Vec<hmac::Key>);

impl Keys {
    /// Signs octets with the first key.
    pub(crate) fn sign(&self, signed: &[u8]) -> hmac::Tag {
        hmac::sign(&self.0[0], signed)
    }

    /// Tries all keys, and returns true if a signature passes `is_given`. Never stops early, so the time does not tell
    /// which key fitted.
    pub(crate) fn verify(&self, signed: &[u8], is_given: impl Fn(&[u8]) -> bool) -> bool {
        self.0.iter().fold(false, |found, key| found | is_given(hmac::sign(key, signed).as_ref()))
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

/// Compares octets in a time that depends on their lengths alone.
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}

/// A digit of base32 (RFC 4648 section 6), a number below 32.
pub(crate) fn base32_digit(number: u8) -> char {
    char::from(BASE32[usize::from(number % 32)])
}

/// The number of a digit in either case.
pub(crate) fn base32_number(digit: u8) -> Option<u8> {
    BASE32.iter().position(|known| *known == digit.to_ascii_uppercase()).map(|at| at as u8)
}

/// Base32 of whole groups: 5 octets are 8 digits, so each text has one meaning.
pub(crate) fn base32(octets: &[u8]) -> String {
    assert!(octets.len().is_multiple_of(5), "{} octets are not whole groups", octets.len());
    let group = |group: &[u8]| group.iter().fold(0u64, |number, octet| number << 8 | u64::from(*octet));
    let digits = |number: u64| (0..8).rev().map(move |at| base32_digit((number >> (5 * at)) as u8 & 31));
    octets.chunks_exact(5).map(group).flat_map(digits).collect()
}

/// The octets of base32 of whole groups, in either case.
pub(crate) fn from_base32(text: &[u8]) -> Option<Vec<u8>> {
    let mut octets = Vec::with_capacity(text.len() / 8 * 5);
    let groups = text.chunks_exact(8);
    if !groups.remainder().is_empty() {
        return None;
    }
    for group in groups {
        let number = group.iter().try_fold(0u64, |number, digit| Some(number << 5 | u64::from(base32_number(*digit)?)));
        octets.extend(&number?.to_be_bytes()[3..]);
    }
    Some(octets)
}

const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base32_is_that_of_the_rfc() {
        // RFC 4648 section 10, its only example of a whole group.
        assert_eq!(base32(b"fooba"), "MZXW6YTB");
        assert_eq!(from_base32(b"mzxw6ytb"), Some(b"fooba".to_vec()));
        for bad in [&b"MZXW6YT"[..], b"MZXW6YT=", b"MZXW6YT1", b"MZXW6YTB\xff"] {
            assert_eq!(from_base32(bad), None, "{bad:?}");
        }
        for seed in 0..100u64 {
            let octets: Vec<u8> = (0..4).flat_map(|at| posthaste_random::mix(seed * 4 + at).to_be_bytes()).collect();
            assert_eq!(from_base32(base32(&octets[..25]).as_bytes()).as_deref(), Some(&octets[..25]), "{seed}");
        }
    }

    #[test]
    fn secrets_are_enough_and_never_printed() {
        assert_eq!(Secrets::new(Vec::<&str>::new()).err(), Some(SecretError::None));
        assert_eq!(Secrets::new(["long enough", "short"]).err(), Some(SecretError::Short));
        let secrets = Secrets::new(["long enough"]).unwrap();
        assert_eq!(format!("{secrets:?} {:?}", secrets.keys(hmac::HMAC_SHA256)), "1 secrets 1 keys");
    }
}
