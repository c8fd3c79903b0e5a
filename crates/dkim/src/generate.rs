//! New keys. ring makes those of Ed25519; the primes of RSA are found here (FIPS 186-5, appendix A.1.3) and checked by ring, which uses them.

use num_bigint::BigUint;
use ring::rand::{SecureRandom, SystemRandom};

use crate::der;
use crate::key::{Algorithm, KeyError, SigningKey};

/// Why no key was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The system gave no random octets.
    #[error("the system gives no random numbers")]
    Random,
    /// ring refuses what was made, which is a defect.
    #[error("the new key is refused: {0}")]
    Key(#[from] KeyError),
}

/// Makes a key; of RSA with 2048 bits, the most that fits into a DNS record which all resolvers take. Takes up to seconds for RSA.
///
/// # Errors
/// See [`GenerateError`].
pub fn generate(algorithm: Algorithm) -> Result<SigningKey, GenerateError> {
    let random = SystemRandom::new();
    let pkcs8 = match algorithm {
        Algorithm::Ed25519 => {
            let mut pkcs8 = ED25519_PREFIX.to_vec();
            pkcs8.extend_from_slice(&octets::<32>(&random)?);
            pkcs8
        }
        Algorithm::Rsa => rsa(&random)?,
    };
    Ok(SigningKey::from_pkcs8(pkcs8)?)
}

fn octets<const N: usize>(random: &SystemRandom) -> Result<[u8; N], GenerateError> {
    let mut octets = [0; N];
    random.fill(&mut octets).map_err(|_| GenerateError::Random)?;
    Ok(octets)
}

/// A key of RSA as PKCS#8 (RFC 5958, RFC 8017 appendix A.1.2).
fn rsa(random: &SystemRandom) -> Result<Vec<u8>, GenerateError> {
    let (one, exponent) = (BigUint::from(1u8), BigUint::from(EXPONENT));
    loop {
        let (p, q) = (prime(random)?, prime(random)?);
        let (p, q) = if p > q { (p, q) } else { (q, p) };
        // Primes that are close together are found by Fermat's method.
        if (&p - &q).bits() <= PRIME_BITS - 100 {
            continue;
        }
        let (p1, q1) = (&p - &one, &q - &one);
        // Any multiple of the smallest exponent does; this one is longer, and ring asks for no more.
        let Some(d) = exponent.modinv(&(&p1 * &q1)) else { continue };
        let Some(coefficient) = q.modinv(&p) else { continue };
        let mut numbers = Vec::new();
        der::write_positive(&mut numbers, &[0]);
        for number in [&(&p * &q), &exponent, &d, &p, &q, &(&d % &p1), &(&d % &q1), &coefficient] {
            der::write_positive(&mut numbers, &number.to_bytes_be());
        }
        let mut private = Vec::new();
        der::write(&mut private, der::SEQUENCE, &numbers);
        let mut content = Vec::new();
        der::write_positive(&mut content, &[0]);
        content.extend_from_slice(der::RSA_ALGORITHM);
        der::write(&mut content, der::OCTET_STRING, &private);
        let mut pkcs8 = Vec::new();
        der::write(&mut pkcs8, der::SEQUENCE, &content);
        return Ok(pkcs8);
    }
}

/// A probable prime of [`PRIME_BITS`] with its two highest bits set, so that the product of two has twice as many.
fn prime(random: &SystemRandom) -> Result<BigUint, GenerateError> {
    let small = small_primes();
    loop {
        let mut octets: [u8; PRIME_BITS as usize / 8] = octets(random)?;
        octets[0] |= 0xc0;
        octets[octets.len() - 1] |= 1;
        let candidate = BigUint::from_bytes_be(&octets);
        let has_small_factor = small.iter().any(|prime| &candidate % *prime == BigUint::ZERO);
        // The exponent has no inverse otherwise.
        let is_usable = &candidate % EXPONENT != BigUint::from(1u8);
        if !has_small_factor && is_usable && is_probable_prime(&candidate, random)? {
            return Ok(candidate);
        }
    }
}

/// Miller and Rabin's test (FIPS 186-5 appendix B.3.1). `candidate` is odd.
fn is_probable_prime(candidate: &BigUint, random: &SystemRandom) -> Result<bool, GenerateError> {
    let one = BigUint::from(1u8);
    let minus_one = candidate - &one;
    let twos = minus_one.trailing_zeros().unwrap_or_default();
    let odd = &minus_one >> twos;
    'rounds: for _ in 0..ROUNDS {
        let base = loop {
            let base = BigUint::from_bytes_be(&octets::<{ PRIME_BITS as usize / 8 }>(random)?);
            if base > one && base < minus_one {
                break base;
            }
        };
        let mut power = base.modpow(&odd, candidate);
        if power == one || power == minus_one {
            continue;
        }
        for _ in 1..twos {
            power = power.modpow(&BigUint::from(2u8), candidate);
            if power == minus_one {
                continue 'rounds;
            }
        }
        return Ok(false);
    }
    Ok(true)
}

/// Of two octets at most, so that nine of ten candidates need no power.
fn small_primes() -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    for number in 3..2000 {
        if found.iter().all(|prime| number % prime != 0) && number % 2 == 1 {
            found.push(number);
        }
    }
    found
}

const PRIME_BITS: u64 = 1024;
const EXPONENT: u32 = 65537;
/// Five leave an error below 2^-112 (FIPS 186-5 table B.1).
const ROUNDS: usize = 8;
/// Version 1 with the seed alone (RFC 8410 section 7), which OpenSSL reads too.
const ED25519_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_of_primes_knows_primes_and_what_looks_like_them() {
        let random = SystemRandom::new();
        let big = |text: &str| text.parse::<BigUint>().unwrap();
        let check = |text: &str, is_prime: bool| {
            assert_eq!(is_probable_prime(&big(text), &random).unwrap(), is_prime, "{text}");
        };
        // 2^1279 - 1, a prime of Mersenne; 2^1277 - 1, which is none.
        let mersenne = |bits: u64| ((BigUint::from(1u8) << bits) - 1u8).to_string();
        check(&mersenne(1279), true);
        check(&mersenne(1277), false);
        // A Carmichael number times a large prime squared has no small bases against it.
        let square = ((BigUint::from(1u8) << 521u32) - 1u8).pow(2) * 561u32;
        check(&square.to_string(), false);
    }

    #[test]
    fn ring_takes_the_keys_that_are_made() {
        for algorithm in [Algorithm::Rsa, Algorithm::Ed25519] {
            let (one, other) = (generate(algorithm).unwrap(), generate(algorithm).unwrap());
            assert_eq!(one.algorithm(), algorithm);
            assert_ne!(one.public(), other.public());
        }
    }
}
