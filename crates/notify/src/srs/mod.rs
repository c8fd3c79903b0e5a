//! Sender Rewriting Scheme: forwarded mail gets a sender in our domain, so that it passes SPF and its bounces find
//! their way back.
//!
//! [`Srs::forward`] rewrites, [`Srs::reverse`] restores. The form is that of libsrs2 and PostSRSd (HMAC-SHA1, base64, 4
//! characters by default): with the same secret, addresses from either are understood here.
//!
//! ```text
//! SRS0=hash=day=example.org=ann@our.example      of ann@example.org
//! SRS1=hash=first.example==rest@our.example      of SRS0=rest@first.example: a second forwarder writes this, each later one changes the hash alone
//! ```
//!
//! ```
//! use posthaste_message::DateTime;
//! use posthaste_notify::secrets::Secrets;
//! use posthaste_notify::srs::Srs;
//! use posthaste_smtp::ReversePath;
//!
//! let srs = Srs::new(&Secrets::new(["twenty-four random octets"]).unwrap());
//! let now = DateTime::from_unix(1_793_000_000);
//! let sender = ReversePath::parse("<ann@example.org>").unwrap();
//! let ReversePath::Address(rewritten) = srs.forward(&sender, "our.example", now, |_| false).unwrap() else { panic!() };
//! assert_eq!(srs.reverse(&rewritten, now).unwrap().to_string(), "ann@example.org");
//! ```
#[cfg(test)]
mod tests;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use posthaste_message::DateTime;
use posthaste_message::address::{Address, AddressDomain, quoted};
use posthaste_smtp::ReversePath;

use crate::secrets::{Keys, Secrets, base32_digit, base32_number, is_same};

/// Rewrites senders and restores them.
#[derive(Debug, Clone)]
pub struct Srs {
    keys: Keys,
    hash_chars: usize,
    age_days_max: u16,
}

/// The reason why a sender cannot be rewritten. Mail with the original sender will probably fail SPF.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// The rewritten local part has more than 64 octets (RFC 5321 section 4.5.3.1.1).
    #[error("the rewritten sender is too long")]
    TooLong,
    /// It does not fit into a local part, or `our_domain` is not a domain.
    #[error("the sender cannot be rewritten")]
    Unsuitable,
}

/// The reason why an address is not restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReverseError {
    /// Not an SRS address: an ordinary recipient.
    #[error("not an SRS address")]
    NotSrs,
    /// Begins like one, but is incomplete.
    #[error("an SRS address with parts missing")]
    Incomplete,
    /// Not signed by us.
    #[error("an SRS address with a wrong hash")]
    Forged,
    /// It was signed too long ago, or in the future.
    #[error("an SRS address that has expired")]
    Expired,
}

impl Srs {
    /// Uses hashes of 4 characters, valid for [`AGE_DAYS`] days.
    pub fn new(secrets: &Secrets) -> Self {
        Srs { keys: secrets.keys(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY), hash_chars: HASH_CHARS, age_days_max: AGE_DAYS }
    }

    /// Sets the validity in days, at most 1000: the day is known modulo 1024.
    #[must_use]
    pub fn with_age_days_max(mut self, days: u16) -> Self {
        self.age_days_max = days.min(1000);
        self
    }

    /// Sets the characters of a hash, 4 to 27. Shorter ones are then refused.
    #[must_use]
    pub fn with_hash_chars(mut self, chars: usize) -> Self {
        self.hash_chars = chars.clamp(HASH_CHARS, HASH_CHARS_MAX);
        self
    }

    /// The sender for mail that we forward. `<>`, a sender without a domain and one in our domain stay.
    ///
    /// # Errors
    /// See [`ForwardError`].
    pub fn forward(
        &self,
        sender: &ReversePath,
        our_domain: &str,
        now: DateTime,
        is_ours: impl FnOnce(&AddressDomain) -> bool,
    ) -> Result<ReversePath, ForwardError> {
        let address = match sender {
            ReversePath::Address(address) if !is_ours(address.domain()) => address,
            _ => return Ok(sender.clone()),
        };
        let local = address.local_part();
        let host = address.domain().to_string();
        if host.contains(SEPARATOR) {
            return Err(ForwardError::Unsuitable);
        }
        let rewritten = if let Some((first_host, rest)) = tagged(local, "SRS1").and_then(first_forwarder) {
            let hash = self.hash(&[first_host, rest]);
            format!("SRS1={hash}={first_host}={rest}")
        } else if tagged(local, "SRS0").is_some() {
            let rest = &local[TAG_BYTES..];
            let hash = self.hash(&[&host, rest]);
            format!("SRS1={hash}={host}={rest}")
        } else {
            let day = day_text(now);
            let hash = self.hash(&[&day, &host, local]);
            format!("SRS0={hash}={day}={host}={local}")
        };
        let written = quoted(&rewritten).to_string();
        if written.len() > posthaste_message::address::LOCAL_PART_BYTES_MAX {
            return Err(ForwardError::TooLong);
        }
        let rewritten = Address::parse(&format!("{written}@{our_domain}")).map_err(|_| ForwardError::Unsuitable)?;
        Ok(ReversePath::Address(rewritten))
    }

    /// Restores the address that a recipient in our domain stands for: the sender, or the first forwarder. Use it
    /// only for possible bounces: an accepted address is open to everybody.
    ///
    /// Other hosts may have changed the case of letters; the result has the case received.
    ///
    /// # Errors
    /// See [`ReverseError`]. Refuse all but [`NotSrs`](ReverseError::NotSrs) for good (550 5.1.1).
    pub fn reverse(&self, recipient: &Address, now: DateTime) -> Result<Address, ReverseError> {
        let local = recipient.local_part();
        let (local, host) = if let Some(rest) = tagged(local, "SRS0") {
            let mut parts = rest.splitn(4, SEPARATOR);
            let mut part = || parts.next().filter(|part| !part.is_empty()).ok_or(ReverseError::Incomplete);
            let hash = part()?;
            let day = part()?;
            let host = part()?;
            let local = part()?;
            self.check(hash, &[day, host, local])?;
            if !self.is_valid_day(day, now) {
                return Err(ReverseError::Expired);
            }
            (local.to_owned(), host)
        } else if let Some(rest) = tagged(local, "SRS1") {
            let (hash, _) = rest.split_once(SEPARATOR).ok_or(ReverseError::Incomplete)?;
            let (host, rest) = first_forwarder(rest).ok_or(ReverseError::Incomplete)?;
            self.check(hash, &[host, rest])?;
            (format!("SRS0{rest}"), host)
        } else {
            return Err(ReverseError::NotSrs);
        };
        // We signed it, so it was an address; a secret shared with another use may have signed anything.
        Address::parse(&format!("{}@{host}", quoted(&local))).map_err(|_| ReverseError::Forged)
    }

    fn hash(&self, parts: &[&str]) -> String {
        written(self.keys.sign(&signed(parts)).as_ref(), self.hash_chars)
    }

    fn check(&self, hash: &str, parts: &[&str]) -> Result<(), ReverseError> {
        let given = hash.to_ascii_lowercase();
        let is_given =
            |tag: &[u8]| is_same(given.as_bytes(), written(tag, given.len()).to_ascii_lowercase().as_bytes());
        let fits = (self.hash_chars..=HASH_CHARS_MAX).contains(&given.len());
        if fits && self.keys.verify(&signed(parts), is_given) { Ok(()) } else { Err(ReverseError::Forged) }
    }

    /// Allows one day in the future: hosts of a domain may differ in their clocks.
    fn is_valid_day(&self, text: &str, now: DateTime) -> bool {
        let &[high, low] = text.as_bytes() else { return false };
        let (Some(high), Some(low)) = (base32_number(high), base32_number(low)) else { return false };
        let day = u16::from(high) << 5 | u16::from(low);
        let age = (day_of(now) + DAYS + 1 - day) % DAYS;
        age <= self.age_days_max + 1
    }
}

/// Default validity in days: longer than any queue keeps a message.
pub const AGE_DAYS: u16 = 21;
const HASH_CHARS: usize = 4;
/// 160 bits in base64.
const HASH_CHARS_MAX: usize = 27;
const SEPARATOR: char = '=';
const TAG_BYTES: usize = 4;
/// Days are counted modulo this.
const DAYS: u16 = 1024;

/// The rest after `SRS0` or `SRS1`, in any case, and a known separator.
fn tagged<'a>(local: &'a str, tag: &str) -> Option<&'a str> {
    let begins = local.get(..TAG_BYTES)?.eq_ignore_ascii_case(tag);
    local.get(TAG_BYTES..).filter(|_| begins)?.strip_prefix(['=', '+', '-'])
}

/// The first forwarder and its `SRS0` rest, from the `hash=host=rest` of an `SRS1`.
fn first_forwarder(text: &str) -> Option<(&str, &str)> {
    let (hash, text) = text.split_once(SEPARATOR)?;
    let (host, rest) = text.split_once(SEPARATOR)?;
    let is_whole = !hash.is_empty() && !host.is_empty() && rest.len() > 1 && rest.starts_with(['=', '+', '-']);
    is_whole.then_some((host, rest))
}

/// The signed text, in lower case: other hosts may change the case.
fn signed(parts: &[&str]) -> Vec<u8> {
    parts.concat().to_ascii_lowercase().into_bytes()
}

fn written(tag: &[u8], chars: usize) -> String {
    let mut text = STANDARD_NO_PAD.encode(tag);
    text.truncate(chars);
    text
}

fn day_of(now: DateTime) -> u16 {
    now.unix_secs().div_euclid(86_400).rem_euclid(i64::from(DAYS)) as u16
}

fn day_text(now: DateTime) -> String {
    let day = day_of(now);
    [day >> 5, day & 31].map(|digit| base32_digit(digit as u8)).iter().collect()
}
