//! Settled recipients of a request with an idempotency key: entry of the stream, and record of the snapshot.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::{BufMut, Bytes};
use posthaste_spool::{Fields, put_text};

use crate::answer::Refusal;

/// Identifies an idempotency key by token, path and text. Keys of different tokens never collide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId {
    /// The first octets of the token's hash; keys are counted by it.
    pub(super) token: [u8; 8],
    pub(super) key: [u8; 16],
}

/// The hash of a request's body.
pub type BodyDigest = [u8; 16];

impl KeyId {
    /// `token`: the hash of its secret.
    pub fn new(token: &[u8; 32], path: &str, key: &str) -> Self {
        let mut hash = Context::new(&SHA256);
        for part in [&token[..], path.as_bytes(), b"\0", key.as_bytes()] {
            hash.update(part);
        }
        Self { token: first(token), key: first(hash.finish().as_ref()) }
    }
}

/// The digest of a decompressed body.
pub fn body_digest(body: &[u8]) -> BodyDigest {
    first(aws_lc_rs::digest::digest(&SHA256, body).as_ref())
}

fn first<const N: usize>(hash: &[u8]) -> [u8; N] {
    hash[..N].try_into().expect("SHA-256 has 32 octets")
}

/// Recipient indexes of a request, as sorted ranges that do not touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Indexes(Vec<Range<u32>>);

impl Indexes {
    /// Indexes of all `total` recipients.
    pub(super) fn all_of(total: u32) -> Self {
        let mut all = Self::default();
        all.add_range(0..total);
        all
    }

    /// Adds one index.
    pub fn add(&mut self, index: u32) {
        self.add_range(index..index + 1);
    }

    /// Adds all indexes of another set.
    pub fn add_all(&mut self, others: &Self) {
        others.0.iter().for_each(|range| self.add_range(range.clone()));
    }

    fn add_range(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        // Those that touch it become one with it.
        let from = self.0.partition_point(|known| known.end < range.start);
        let to = self.0.partition_point(|known| known.start <= range.end);
        let whole =
            self.0[from..to].iter().fold(range, |all, known| all.start.min(known.start)..all.end.max(known.end));
        self.0.splice(from..to, [whole]);
    }

    /// True if the set contains this index.
    pub fn has(&self, index: u32) -> bool {
        let at = self.0.partition_point(|range| range.end <= index);
        self.0.get(at).is_some_and(|range| range.contains(&index))
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of ranges.
    pub(super) fn ranges(&self) -> usize {
        self.0.len()
    }

    /// True if the set has all of `total` recipients.
    pub fn are_all_of(&self, total: u32) -> bool {
        *self == Self::all_of(total)
    }
}

impl FromIterator<u32> for Indexes {
    fn from_iter<I: IntoIterator<Item = u32>>(indexes: I) -> Self {
        let mut all = Self::default();
        indexes.into_iter().for_each(|index| all.add(index));
        all
    }
}

/// Recipients settled by a batch: accepted in it, or failed for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// The request's idempotency key.
    pub id: KeyId,
    /// Digest of the request's body.
    pub digest: BodyDigest,
    /// Arrival of the first request with the key, in seconds since 1970. It distinguishes later requests with the same
    /// key and body, after the first was forgotten.
    pub begun: u32,
    /// Time of settling, in seconds since 1970.
    pub at: u32,
    /// Number of recipients in the request.
    pub total: u32,
    /// Indexes of settled recipients.
    pub indexes: Indexes,
    /// Recipients that have failed, and why.
    pub failed: BTreeMap<u32, Refusal>,
}

/// Version of the format.
const VERSION: u8 = 1;

impl Settled {
    /// | bytes | |
    /// | --- | --- |
    /// | 1 | version, 1 |
    /// | 8, 16 | token, key |
    /// | 16 | digest of the body |
    /// | 4, 4, 4 | begun, at, total |
    /// | 4, then 8 each | ranges: first index, and the one after the last |
    /// | 2, then each | refusals: code (2), text |
    /// | 4, then 6 each | failed recipients: index (4), refusal (2) |
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(96 + 8 * self.indexes.0.len() + 6 * self.failed.len());
        out.put_u8(VERSION);
        out.put_slice(&self.id.token);
        out.put_slice(&self.id.key);
        out.put_slice(&self.digest);
        [self.begun, self.at, self.total].into_iter().for_each(|number| out.put_u32_le(number));
        out.put_u32_le(self.indexes.0.len() as u32);
        for range in &self.indexes.0 {
            out.put_u32_le(range.start);
            out.put_u32_le(range.end);
        }
        // Most recipients that fail do so for one reason.
        let mut refusals: Vec<&Refusal> = Vec::new();
        let numbers: Vec<u16> = self.failed.values().map(|refusal| number_of(&mut refusals, refusal)).collect();
        out.put_u16_le(refusals.len() as u16);
        for refusal in refusals {
            out.put_u16_le(refusal.code);
            put_text(&mut out, &refusal.line);
        }
        out.put_u32_le(self.failed.len() as u32);
        for (index, number) in self.failed.keys().zip(numbers) {
            out.put_u32_le(*index);
            out.put_u16_le(number);
        }
        out.into()
    }

    /// `None` if the bytes are malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(payload);
        if fields.u8()? != VERSION {
            return None;
        }
        let id = KeyId { token: fields.array()?, key: fields.array()? };
        let digest = fields.array()?;
        let begun = fields.u32()?;
        let at = fields.u32()?;
        let total = fields.u32()?;
        let mut indexes = Indexes::default();
        for _ in 0..fields.u32()? {
            let range = fields.u32()?..fields.u32()?;
            if range.is_empty() || range.end > total {
                return None;
            }
            indexes.add_range(range);
        }
        let mut refusals = Vec::new();
        for _ in 0..fields.u16()? {
            refusals.push(Refusal { code: fields.u16()?, line: fields.text::<Arc<str>>()? });
        }
        let mut failed = BTreeMap::new();
        for _ in 0..fields.u32()? {
            let index = fields.u32().filter(|index| indexes.has(*index))?;
            failed.insert(index, refusals.get(usize::from(fields.u16()?))?.clone());
        }
        fields.end()?;
        Some(Self { id, digest, begun, at, total, indexes, failed })
    }
}

/// Number of a refusal, added to `refusals` if it is new. Once all numbers are in use, further refusals get the last
/// one.
fn number_of<'a>(refusals: &mut Vec<&'a Refusal>, refusal: &'a Refusal) -> u16 {
    // The last ones are the likeliest, and recipients are many.
    let known = refusals.iter().rev().take(NEAR).position(|known| *known == refusal);
    match known {
        Some(back) => (refusals.len() - 1 - back) as u16,
        None if refusals.len() < usize::from(u16::MAX) => {
            refusals.push(refusal);
            (refusals.len() - 1) as u16
        }
        None => u16::MAX - 1,
    }
}

const NEAR: usize = 16;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn settled(indexes: &[u32], failed: &[u32]) -> Settled {
        let refusal = |index: &u32| (*index, Refusal { code: 550, line: format!("550 5.1.1 No {}", index % 2).into() });
        Settled {
            id: KeyId::new(&[7; 32], "/", "order-1"),
            digest: body_digest(b"{}"),
            begun: 1,
            at: 2,
            total: 10_000,
            indexes: indexes.iter().copied().collect(),
            failed: failed.iter().map(refusal).collect(),
        }
    }

    #[test]
    fn indexes_become_ranges() {
        let check = |indexes: &[u32], expected: &str| {
            let all: Indexes = indexes.iter().copied().collect();
            assert_eq!(format!("{:?}", all.0), expected);
            let mut both = Indexes::default();
            both.add_all(&all);
            both.add_all(&all);
            assert_eq!(both, all);
            assert!((0..20).all(|index| all.has(index) == indexes.contains(&index)), "{indexes:?}");
        };
        check(&[], "[]");
        check(&[3, 1, 2], "[1..4]");
        check(&[1, 3, 7, 9, 8, 2], "[1..4, 7..10]");
        check(&[5, 0, 5], "[0..1, 5..6]");
        assert!((0..7).collect::<Indexes>().are_all_of(7) && !(1..7).collect::<Indexes>().are_all_of(7));
    }

    #[test]
    fn an_entry_survives_its_octets_and_no_part_of_them_is_one() {
        for entry in [settled(&[0], &[]), settled(&[0, 1, 2, 7, 9], &[1, 2, 9]), settled(&[], &[])] {
            let octets = entry.encode();
            assert_eq!(Settled::decode(&octets), Some(entry));
            assert!((0..octets.len()).all(|len| Settled::decode(&octets[..len]).is_none()));
            assert!(Settled::decode(&[&octets[..], b"x"].concat()).is_none());
        }
        let mut beyond = settled(&[5], &[5]);
        beyond.total = 5;
        assert_eq!(Settled::decode(&beyond.encode()), None, "an index beyond the request");
        assert_eq!(Settled::decode(&settled(&[5], &[6]).encode()), None, "a failure that is not settled");
    }

    #[test]
    fn damaged_octets_are_an_entry_or_none_and_take_little() {
        let octets = settled(&[0, 1, 2, 7, 9], &[1, 2, 9]).encode();
        for at in 0..octets.len() {
            for flip in [1, 0x80, 0xff] {
                let mut damaged = octets.to_vec();
                damaged[at] ^= flip;
                let _ = Settled::decode(&damaged);
            }
        }
    }

    #[test]
    fn keys_of_tokens_and_paths_differ() {
        let all = [([1; 32], "/a", "k"), ([2; 32], "/a", "k"), ([1; 32], "/b", "k"), ([1; 32], "/a", "j")];
        let ids: std::collections::BTreeSet<_> =
            all.iter().map(|(token, path, key)| KeyId::new(token, path, key)).collect();
        assert_eq!(ids.len(), all.len());
    }

    #[test]
    fn ten_thousand_failures_for_one_reason_take_few_octets() {
        let all: Vec<u32> = (0..10_000).collect();
        let entry = settled(&all, &all);
        assert!(entry.encode().len() < 61_000, "{}", entry.encode().len());
        assert_eq!(Settled::decode(&entry.encode()), Some(entry));
    }
}
