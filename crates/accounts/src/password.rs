//! Password hashes: Argon2 as PHC strings, such as `$argon2id$v=19$m=19456,t=2,p=1$…` (RFC 9106).

use std::fmt;

use argon2::password_hash::phc;
use argon2::{Algorithm, Argon2, Params, PasswordHasher, PasswordVerifier};
use posthaste_scram::ScramKeys;
use rustix::rand::{GetRandomFlags, getrandom};

/// The hash of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    hash: phc::PasswordHash,
    /// Cost of a check: KiB of memory times passes.
    cost: u64,
}

/// The reason why a text is not a usable hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HashError {
    /// The text has another format or algorithm.
    #[error("not a hash of Argon2, such as `posthaste password` prints")]
    Form,
    /// A check would cost so much that logins could exhaust the server.
    #[error("a check of this hash would cost too much: at most {MEMORY_KIB_MAX} KiB of memory and {PASSES_MAX} passes")]
    Cost,
}

/// The reason why a password cannot be hashed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PasswordError {
    /// The password is empty.
    #[error("the password is empty")]
    Empty,
    /// Longer than [`PASSWORD_BYTES_MAX`], so that no login could use it.
    #[error("the password is longer than {PASSWORD_BYTES_MAX} bytes")]
    TooLong,
    /// The system has no random numbers.
    #[error("{0}")]
    Library(String),
}

/// Hashes a password with a fresh salt: Argon2id with 19 MiB of memory and two passes, as OWASP recommends. Takes that
/// memory, and tens of milliseconds of CPU.
///
/// # Errors
/// See [`PasswordError`].
pub fn hash_password(password: &str) -> Result<String, PasswordError> {
    check_length(password)?;
    let hash = Argon2::default().hash_password(password.as_bytes());
    hash.map(|hash| hash.to_string()).map_err(|error| PasswordError::Library(error.to_string()))
}

/// Derives SCRAM-SHA-256 keys with a fresh salt, in the form of the password file. A thief of these guesses faster than
/// with an Argon2 hash.
///
/// # Errors
/// See [`PasswordError`].
pub fn scram_keys(password: &str) -> Result<String, PasswordError> {
    check_length(password)?;
    let keys = ScramKeys::new(password, SCRAM_ITERATIONS);
    keys.map(|keys| keys.to_string()).map_err(|error| PasswordError::Library(error.to_string()))
}

/// Makes a random password of 100 bits: 20 letters and digits that are not mistaken for others.
///
/// # Errors
/// The system has no random numbers.
pub fn new_password() -> std::io::Result<String> {
    let mut random = [0; NEW_PASSWORD_LETTERS];
    // 256 octets at most come whole.
    getrandom(&mut random[..], GetRandomFlags::empty())?;
    Ok(random.iter().map(|octet| char::from(NEW_PASSWORD_ALPHABET[usize::from(octet % 32)])).collect())
}

/// Length of a [new password](new_password).
pub const NEW_PASSWORD_LETTERS: usize = 20;
/// Characters that are not mistaken for others.
pub const NEW_PASSWORD_ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

fn check_length(password: &str) -> Result<(), PasswordError> {
    match password.len() {
        0 => Err(PasswordError::Empty),
        len if len > PASSWORD_BYTES_MAX => Err(PasswordError::TooLong),
        _ => Ok(()),
    }
}

/// Omits the hash, since sessions contain it.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

impl PasswordHash {
    /// Reads a PHC string.
    ///
    /// # Errors
    /// It is not an Argon2 hash, or a check would cost so much that logins could exhaust the server.
    pub fn parse(text: &str) -> Result<Self, HashError> {
        let hash = phc::PasswordHash::new(text).map_err(|_| HashError::Form)?;
        Algorithm::try_from(hash.algorithm.as_str()).map_err(|_| HashError::Form)?;
        let is_whole = hash.salt.is_some_and(|salt| salt.len() >= argon2::MIN_SALT_LEN) && hash.hash.is_some();
        let params = Params::try_from(&hash).map_err(|_| HashError::Form)?;
        if !is_whole || hash.version.is_some_and(|version| version != 0x13 && version != 0x10) {
            return Err(HashError::Form);
        }
        if params.m_cost() > MEMORY_KIB_MAX || params.t_cost() > PASSES_MAX {
            return Err(HashError::Cost);
        }
        Ok(Self { hash, cost: u64::from(params.m_cost()) * u64::from(params.t_cost()) })
    }

    /// The hash in the format of the password file.
    pub fn text(&self) -> String {
        self.hash.to_string()
    }

    /// Relative cost of a check: memory in KiB times passes.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// True if it is the hash of this password. Takes tens of milliseconds of CPU, and the memory that the hash names.
    /// The comparison runs in constant time.
    pub fn is_of(&self, password: &str) -> bool {
        Argon2::default().verify_password(password.as_bytes(), &self.hash).is_ok()
    }
}

/// Maximum bytes of a password.
pub const PASSWORD_BYTES_MAX: usize = 1024;
/// Rounds of PBKDF2 of new keys: some milliseconds on a phone at each login.
const SCRAM_ITERATIONS: u32 = 15_000;
/// 64 MiB, as RFC 9106 recommends for machines with little memory.
const MEMORY_KIB_MAX: u32 = 64 << 10;
const PASSES_MAX: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_of_its_password_alone_and_each_has_its_own_salt() {
        let text = hash_password("pass wörd").unwrap();
        assert!(text.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{text}");
        assert_ne!(hash_password("pass wörd").unwrap(), text);
        let read = PasswordHash::parse(&text).unwrap();
        assert!(read.is_of("pass wörd"));
        assert!(!read.is_of("pass word") && !read.is_of(""));
        assert_eq!(hash_password(""), Err(PasswordError::Empty));
        assert_eq!(hash_password(&"x".repeat(1025)), Err(PasswordError::TooLong));
        hash_password(&"x".repeat(1024)).unwrap();
        assert!(scram_keys("password").unwrap().starts_with("SCRAM-SHA-256$15000:"));
        assert_eq!(scram_keys(""), Err(PasswordError::Empty));
    }

    #[test]
    fn a_hash_of_another_program_is_read() {
        // It ends before the hash itself.
        let text = "$argon2i$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$";
        assert_eq!(PasswordHash::parse(text), Err(HashError::Form));
        // Of the tests of Argon2's reference implementation.
        let known = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        assert!(PasswordHash::parse(known).unwrap().is_of("password"));
    }

    #[test]
    fn what_is_no_hash_or_would_take_too_much_is_refused() {
        for bad in ["", "secret", "$2b$12$abcdefghijklmnopqrstuu", "$argon2id$v=19$m=19456,t=2,p=1", "$6$salt$hash"] {
            assert_eq!(PasswordHash::parse(bad), Err(HashError::Form), "{bad}");
        }
        let rest = "c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        for costs in ["m=65537,t=1,p=1", "m=64,t=11,p=1"] {
            let text = format!("$argon2id$v=19${costs}${rest}");
            assert_eq!(PasswordHash::parse(&text), Err(HashError::Cost), "{costs}");
        }
    }
}
