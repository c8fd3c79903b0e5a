//! Public keys of records.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{
    ED25519, ParsedPublicKey, RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, RsaPublicKeyComponents,
};

use crate::der;
use crate::key::Algorithm;
use crate::record::KeyRecord;

/// A key, ready to verify.
#[derive(Debug)]
pub(crate) struct PublicKey {
    algorithm: Algorithm,
    key: ParsedPublicKey,
}

/// Bits of an RSA key that counts (RFC 8301 section 3.2).
const RSA_BITS: std::ops::RangeInclusive<usize> = 1024..=4096;

impl PublicKey {
    /// The key of a record.
    ///
    /// # Errors
    /// Why it does not count.
    pub(crate) fn of(record: &KeyRecord) -> Result<Self, &'static str> {
        let KeyRecord { algorithm, public, .. } = record;
        let key = match algorithm {
            Algorithm::Ed25519 if public.len() != 32 => return Err("its key does not have 32 octets"),
            Algorithm::Ed25519 => {
                ParsedPublicKey::new(&ED25519, public).map_err(|_| "its key is not an Ed25519 key")?
            }
            Algorithm::Rsa => {
                let (n, e) = rsa(public).ok_or(NO_RSA)?;
                let bits = n.len() * 8 - n.first().map_or(0, |first| first.leading_zeros() as usize);
                if !RSA_BITS.contains(&bits) {
                    return Err("its key has less than 1024 or more than 4096 bits");
                }
                let key = RsaPublicKeyComponents { n, e };
                key.to_parsed_public_key(&RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY).map_err(|_| NO_RSA)?
            }
        };
        Ok(Self { algorithm: *algorithm, key })
    }

    /// True if it is a signature of `data` by this key; both kinds hash with SHA-256.
    pub(crate) fn verifies(&self, data: &[u8], signature: &[u8]) -> bool {
        let verified = match self.algorithm {
            Algorithm::Ed25519 => self.key.verify_sig(digest(&SHA256, data).as_ref(), signature),
            Algorithm::Rsa => self.key.verify_sig(data, signature),
        };
        verified.is_ok()
    }
}

const NO_RSA: &str = "its key is not an RSA key";

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
