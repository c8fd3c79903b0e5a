//! Generates keys with aws-lc.

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::Ed25519KeyPair;

use crate::key::{Algorithm, KeyError, SigningKey};

/// Why no key was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The library made no key.
    #[error("no new key could be made")]
    Made,
    /// The generated key is rejected, which is a bug.
    #[error("the new key is refused: {0}")]
    Key(#[from] KeyError),
}

/// Makes a key; for RSA with 2048 bits, the largest that fits into a DNS record that all resolvers accept. Takes up to
/// a second for RSA.
///
/// # Errors
/// See [`GenerateError`].
pub fn generate(algorithm: Algorithm) -> Result<SigningKey, GenerateError> {
    // Version 1 of PKCS#8 (RFC 5958; RFC 8410 section 7 for Ed25519), which OpenSSL reads too.
    let der: Result<Pkcs8V1Der<'static>, Unspecified> = match algorithm {
        Algorithm::Ed25519 => Ed25519KeyPair::generate().and_then(|pair| pair.as_der()),
        Algorithm::Rsa => KeyPair::generate(KeySize::Rsa2048).and_then(|pair| pair.as_der()),
    };
    let der = der.map_err(|_| GenerateError::Made)?;
    Ok(SigningKey::from_pkcs8(der.as_ref().to_vec())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_keys_are_taken_and_differ() {
        for algorithm in [Algorithm::Rsa, Algorithm::Ed25519] {
            let (one, other) = (generate(algorithm).unwrap(), generate(algorithm).unwrap());
            assert_eq!(one.algorithm(), algorithm);
            assert_ne!(one.public(), other.public());
        }
    }
}
