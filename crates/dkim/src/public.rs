//! Public keys of records.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{
    ED25519, RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, RsaPublicKeyComponents, UnparsedPublicKey,
};

use crate::der;
use crate::key::Algorithm;
use crate::record::KeyRecord;

/// Why a key or a signature does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unverified {
    /// The octets are no key that counts.
    Key(&'static str),
    /// The signature is not of this key and data.
    Signature,
}

/// Bits of an RSA key that counts (RFC 8301 section 3.2).
const RSA_BITS: std::ops::RangeInclusive<usize> = 1024..=4096;

impl KeyRecord {
    /// Verifies a signature of `data`; both kinds hash with SHA-256.
    pub(crate) fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), Unverified> {
        let checked = match self.algorithm {
            Algorithm::Ed25519 if self.public.len() != 32 => return Err(Unverified::Key("its key has not 32 octets")),
            Algorithm::Ed25519 => {
                UnparsedPublicKey::new(&ED25519, &self.public).verify(digest(&SHA256, data).as_ref(), signature)
            }
            Algorithm::Rsa => {
                let (n, e) = rsa(&self.public).ok_or(Unverified::Key("its key is none of RSA"))?;
                let bits = n.len() * 8 - n.first().map_or(0, |first| first.leading_zeros() as usize);
                if !RSA_BITS.contains(&bits) {
                    return Err(Unverified::Key("its key has less than 1024 or more than 4096 bits"));
                }
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, data, signature)
            }
        };
        checked.map_err(|_| Unverified::Signature)
    }
}

/// Modulus and exponent of a SubjectPublicKeyInfo, or of the bare RSAPublicKey that RFC 6376 names, without leading zeros.
fn rsa(public: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut key = der::read(&mut &public[..], der::SEQUENCE)?;
    if key.first() == Some(&der::SEQUENCE) {
        der::read(&mut key, der::SEQUENCE)?;
        let bits = der::read(&mut key, der::BIT_STRING)?;
        key = der::read(&mut bits.strip_prefix(&[0])?, der::SEQUENCE)?;
    }
    let trimmed = |number: &'_ [u8]| number.iter().take_while(|octet| **octet == 0).count();
    let n = der::read(&mut key, der::INTEGER)?;
    let e = der::read(&mut key, der::INTEGER)?;
    Some((&n[trimmed(n)..], &e[trimmed(e)..]))
}
