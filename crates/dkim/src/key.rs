//! Private keys and their signatures.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};

use crate::der;

/// The kind of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// RSA, for every verifier (RFC 8301).
    Rsa,
    /// Ed25519 (RFC 8463): short and fast, but few verifiers support it.
    Ed25519,
}

impl Algorithm {
    /// Its name in a record, `k=` (RFC 6376 section 3.6.1).
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Rsa => "rsa",
            Algorithm::Ed25519 => "ed25519",
        }
    }

    /// Its name in a signature, `a=`.
    pub fn signature_name(self) -> &'static str {
        match self {
            Algorithm::Rsa => "rsa-sha256",
            Algorithm::Ed25519 => "ed25519-sha256",
        }
    }
}

/// Why octets are not a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Neither RSA nor Ed25519, or not PKCS#8.
    #[error("it is not a key of RSA (2048 to 4096 bits) or Ed25519 in PKCS#8: {0}")]
    Rejected(String),
    /// The signature could not be made.
    #[error("the key cannot sign")]
    Sign,
}

/// A private key.
pub struct SigningKey {
    pair: Pair,
    pkcs8: Vec<u8>,
}

enum Pair {
    Rsa(Box<RsaKeyPair>),
    Ed25519(Ed25519KeyPair),
}

/// Without the key.
impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey").field("algorithm", &self.algorithm()).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// A key as PKCS#8 (RFC 5958).
    ///
    /// # Errors
    /// [`KeyError::Rejected`].
    pub fn from_pkcs8(pkcs8: Vec<u8>) -> Result<Self, KeyError> {
        let rejected = |error: aws_lc_rs::error::KeyRejected| KeyError::Rejected(error.to_string());
        let pair = match Ed25519KeyPair::from_pkcs8_maybe_unchecked(&pkcs8) {
            Ok(pair) => Pair::Ed25519(pair),
            Err(_) => Pair::Rsa(Box::new(RsaKeyPair::from_pkcs8(&pkcs8).map_err(rejected)?)),
        };
        Ok(Self { pair, pkcs8 })
    }

    /// The key as PKCS#8: a secret.
    pub(crate) fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// A copy of the key.
    ///
    /// # Errors
    /// [`KeyError::Rejected`], which cannot happen to a key that was read before.
    pub fn again(&self) -> Result<Self, KeyError> {
        Self::from_pkcs8(self.pkcs8.clone())
    }

    /// Algorithm of the key.
    pub fn algorithm(&self) -> Algorithm {
        match self.pair {
            Pair::Rsa(_) => Algorithm::Rsa,
            Pair::Ed25519(_) => Algorithm::Ed25519,
        }
    }

    /// The public key in the form of `p=`: a SubjectPublicKeyInfo of RSA, or the 32 octets of Ed25519 (RFC 8463 section
    /// 4).
    pub fn public(&self) -> Vec<u8> {
        let pair = match &self.pair {
            Pair::Ed25519(pair) => return pair.public_key().as_ref().to_vec(),
            Pair::Rsa(pair) => pair,
        };
        // A BIT STRING without unused bits.
        let mut bits = vec![0];
        bits.extend_from_slice(pair.public_key().as_ref());
        let mut content = der::RSA_ALGORITHM.to_vec();
        der::write(&mut content, der::BIT_STRING, &bits);
        let mut info = Vec::new();
        der::write(&mut info, der::SEQUENCE, &content);
        info
    }

    /// Signs the SHA-256 hash of `data`, for both kinds (RFC 8463 section 3).
    ///
    /// # Errors
    /// [`KeyError::Sign`].
    pub fn sign(&self, data: &[u8]) -> Result<Vec<u8>, KeyError> {
        match &self.pair {
            Pair::Ed25519(pair) => Ok(pair.sign(digest(&SHA256, data).as_ref()).as_ref().to_vec()),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let signed = pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), data, &mut signature);
                signed.map(|()| signature).map_err(|_| KeyError::Sign)
            }
        }
    }
}
