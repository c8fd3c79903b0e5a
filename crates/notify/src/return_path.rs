//! Signed return paths: one sender address per recipient of the queue. A bounce to it identifies the recipient, and
//! nobody else can forge one.
//!
//! The local part is `prefix+token`. A token is base32 of 25 octets, in either case: LSN of the message (u64), number
//! of the recipient (u16) and minutes since 1970 (u32), all big-endian. Then the first 11 octets of HMAC-SHA256 over
//! `posthaste return path`, a zero octet and these 14 octets. As each recipient has its own sender, each gets its own
//! transaction.
//!
//! ```
//! use posthaste_message::DateTime;
//! use posthaste_queue::RecipientKey;
//! use posthaste_notify::return_path::ReturnPaths;
//! use posthaste_notify::secrets::Secrets;
//! use posthaste_spool::Lsn;
//!
//! let paths = ReturnPaths::new(&Secrets::new(["twenty-four random octets"]).unwrap(), "bounce").unwrap();
//! let key = RecipientKey { message: Lsn::new(12_345), number: 2 };
//! let local_part = paths.sign(key, DateTime::from_unix(1_793_000_000));
//! assert!(local_part.starts_with("bounce+"));
//! let bounced = paths.verify(&local_part, DateTime::from_unix(1_793_086_400)).unwrap();
//! assert_eq!((bounced.key, bounced.sent), (key, DateTime::from_unix(1_793_000_000 / 60 * 60)));
//! ```

use aws_lc_rs::hmac;
use posthaste_message::DateTime;
use posthaste_spool::Lsn;

use crate::secrets::{Keys, Secrets, base32, from_base32, is_same};
use posthaste_queue::RecipientKey;

/// Signs local parts of return paths, and verifies them.
#[derive(Debug, Clone)]
pub struct ReturnPaths {
    keys: Keys,
    prefix: String,
    age_days_max: u16,
}

/// The recipient that a return path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounced {
    /// The recipient's key. The queue may have settled it long ago; the event log knows it.
    pub key: RecipientKey,
    /// When the path was signed, in whole minutes.
    pub sent: DateTime,
}

/// The reason why a local part is not taken for a return path of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReturnPathError {
    /// It has another form: an ordinary recipient.
    #[error("not a signed return path")]
    NotOurs,
    /// It was altered, or signed with a secret that is not in use.
    #[error("a return path with a wrong signature")]
    Forged,
    /// It was signed too long ago, or in the future.
    #[error("a return path that has expired")]
    Expired,
}

/// The prefix is empty, has more than [`PREFIX_BYTES_MAX`] octets, or other characters than letters, digits, `-` and
/// `_`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` cannot begin a return path")]
pub struct PrefixError(String);

impl ReturnPaths {
    /// Return paths valid for [`AGE_DAYS`] days. `prefix` is the user to whom such mail comes, as `bounce`.
    ///
    /// # Errors
    /// See [`PrefixError`].
    pub fn new(secrets: &Secrets, prefix: &str) -> Result<Self, PrefixError> {
        let fits = |octet: u8| octet.is_ascii_alphanumeric() || octet == b'-' || octet == b'_';
        if !(1..=PREFIX_BYTES_MAX).contains(&prefix.len()) || !prefix.bytes().all(fits) {
            return Err(PrefixError(prefix.to_owned()));
        }
        Ok(ReturnPaths { keys: secrets.keys(hmac::HMAC_SHA256), prefix: prefix.to_owned(), age_days_max: AGE_DAYS })
    }

    /// Sets the days for which paths are valid.
    #[must_use]
    pub fn with_age_days_max(mut self, days: u16) -> Self {
        self.age_days_max = days;
        self
    }

    /// The local part for a recipient. It needs no quotes.
    pub fn sign(&self, key: RecipientKey, now: DateTime) -> String {
        let mut octets = Vec::with_capacity(TOKEN_BYTES);
        octets.extend(key.message.get().to_be_bytes());
        octets.extend(key.number.to_be_bytes());
        octets.extend(minutes(now).to_be_bytes());
        let tag = self.keys.sign(&signed(&octets));
        octets.extend(&tag.as_ref()[..TOKEN_BYTES - STATED_BYTES]);
        format!("{}+{}", self.prefix, base32(&octets).to_ascii_lowercase())
    }

    /// Verifies that we signed a local part, not too long ago. Allows clocks that are an hour ahead of ours.
    ///
    /// # Errors
    /// See [`ReturnPathError`].
    pub fn verify(&self, local_part: &str, now: DateTime) -> Result<Bounced, ReturnPathError> {
        let prefix = local_part.get(..self.prefix.len()).filter(|prefix| prefix.eq_ignore_ascii_case(&self.prefix));
        let token = prefix.and_then(|prefix| local_part[prefix.len()..].strip_prefix('+'));
        let octets = token.and_then(|token| from_base32(token.as_bytes())).ok_or(ReturnPathError::NotOurs)?;
        let (stated, tag) = octets.split_at_checked(STATED_BYTES).ok_or(ReturnPathError::NotOurs)?;
        if octets.len() != TOKEN_BYTES {
            return Err(ReturnPathError::NotOurs);
        }
        if !self.keys.verify(&signed(stated), |own| is_same(&own[..tag.len()], tag)) {
            return Err(ReturnPathError::Forged);
        }
        let number = |octets: &[u8]| octets.iter().fold(0u64, |number, octet| number << 8 | u64::from(*octet));
        let message = number(&stated[..8]);
        let recipient = number(&stated[8..10]);
        let sent = number(&stated[10..]);
        let age = i64::from(minutes(now)) - sent as i64;
        if !(-HOUR..=i64::from(self.age_days_max) * 24 * HOUR).contains(&age) {
            return Err(ReturnPathError::Expired);
        }
        let key = RecipientKey { message: Lsn::new(message), number: recipient as u16 };
        Ok(Bounced { key, sent: DateTime::from_unix(sent as i64 * 60) })
    }
}

/// Default validity of a return path, in days.
pub const AGE_DAYS: u16 = 30;
/// Octets of a prefix at most: then the local part has 64.
pub const PREFIX_BYTES_MAX: usize = 64 - 1 - TOKEN_BYTES / 5 * 8;
const TOKEN_BYTES: usize = 25;
const STATED_BYTES: usize = 14;
const HOUR: i64 = 60;

fn minutes(now: DateTime) -> u32 {
    u32::try_from(now.unix_secs().div_euclid(60).max(0)).unwrap_or(u32::MAX)
}

/// The signed text. Its label keeps other uses of the same secret apart.
fn signed(stated: &[u8]) -> Vec<u8> {
    [b"posthaste return path\0", stated].concat()
}

#[cfg(test)]
mod tests {
    use posthaste_random::Random;

    use super::*;

    const NOW: i64 = 1_793_000_000;

    fn at(secs: i64) -> DateTime {
        DateTime::from_unix(NOW + secs)
    }

    fn paths(secrets: &[&str]) -> ReturnPaths {
        ReturnPaths::new(&Secrets::new(secrets).unwrap(), "bounce").unwrap()
    }

    #[test]
    fn any_key_comes_back_in_any_case() {
        let paths = paths(&["a secret"]);
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let key = RecipientKey { message: Lsn::new(random.next()), number: random.next() as u16 };
            let signed = paths.sign(key, at(0));
            assert_eq!(signed.len(), 47);
            for local_part in [signed.clone(), signed.to_ascii_uppercase()] {
                assert_eq!(paths.verify(&local_part, at(3600)).map(|bounced| bounced.key), Ok(key), "seed {seed}");
            }
        }
    }

    #[test]
    fn nothing_altered_is_taken() {
        let paths = paths(&["a secret"]);
        let signed = paths.sign(RecipientKey { message: Lsn::new(77), number: 1 }, at(0));
        for at_byte in 0..signed.len() {
            for digit in "abz27+1=".bytes().filter(|digit| *digit != signed.as_bytes()[at_byte]) {
                let mut altered = signed.clone().into_bytes();
                altered[at_byte] = digit;
                let altered = String::from_utf8(altered).unwrap();
                assert!(paths.verify(&altered, at(0)).is_err(), "{altered}");
            }
            assert!(paths.verify(&signed[..at_byte], at(0)).is_err());
        }
        for hostile in ["", "bounce", "bounce+", "bouncé+aaaaaaaa", "bounce+aaaaaaaa", &"bounce+aaaaaaaa".repeat(1000)]
        {
            assert_eq!(paths.verify(hostile, at(0)), Err(ReturnPathError::NotOurs));
        }
        assert_eq!(paths.verify(&format!("bounce+{}", "a".repeat(40)), at(0)), Err(ReturnPathError::Forged));
        assert_eq!(paths.verify(&format!("{signed}aaaaaaaa"), at(0)), Err(ReturnPathError::NotOurs));
    }

    #[test]
    fn a_path_is_valid_for_its_days() {
        let paths = paths(&["a secret"]).with_age_days_max(2);
        let signed = paths.sign(RecipientKey { message: Lsn::new(77), number: 1 }, at(0));
        for (secs, is_valid) in
            [(-3700, false), (-3500, true), (0, true), (2 * 86_400, true), (2 * 86_400 + 61, false), (-NOW, false)]
        {
            let verified = paths.verify(&signed, at(secs));
            assert_eq!(verified.err(), (!is_valid).then_some(ReturnPathError::Expired), "{secs}");
        }
    }

    #[test]
    fn secrets_are_replaced_one_after_the_other() {
        let key = RecipientKey { message: Lsn::new(77), number: 1 };
        let [old, new, both] = [&["the old one"][..], &["the new one"], &["the new one", "the old one"]].map(paths);
        let of_old = old.sign(key, at(0));
        assert_eq!(both.verify(&of_old, at(0)).map(|bounced| bounced.key), Ok(key));
        assert_eq!(new.verify(&of_old, at(0)), Err(ReturnPathError::Forged));
        assert_eq!(both.sign(key, at(0)), new.sign(key, at(0)));
    }

    #[test]
    fn a_prefix_leaves_room() {
        let secrets = Secrets::new(["a secret"]).unwrap();
        let longest = "b".repeat(PREFIX_BYTES_MAX);
        let paths = ReturnPaths::new(&secrets, &longest).unwrap();
        assert_eq!(paths.sign(RecipientKey { message: Lsn::new(1), number: 1 }, at(0)).len(), 64);
        for bad in ["", "a b", "a+b", "ä", &"b".repeat(PREFIX_BYTES_MAX + 1)] {
            assert!(ReturnPaths::new(&secrets, bad).is_err(), "{bad}");
        }
    }
}
