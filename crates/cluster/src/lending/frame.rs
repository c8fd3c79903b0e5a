//! Requests to the home of limits, and its answers.
//!
//! | bytes of a request | field |
//! | --- | --- |
//! | 1, 2 | version: 1; shard |
//! | 1, 8, 8 | 1 and the answer heard last (number of the home, its time), or 0 |
//! | 4, 20 each | tokens that were not used: limit, time of the grant, count |
//! | the rest, 24 each | tokens asked for: limit, rate (count, seconds, burst), count |
//!
//! | bytes of an answer | field |
//! | --- | --- |
//! | 1, 8, 8 | version: 1; number of the home, its time |
//! | the rest, 16 each | limit, tokens, milliseconds until there may be more |
//!
//! All numbers are little-endian.

use bytes::{BufMut, Bytes};
use posthaste_spool::Fields;
use posthaste_units::Rate;

/// A shard's request to the home of some limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRequest {
    /// The shard that asks.
    pub shard: u16,
    /// The latest answer received from the home.
    pub heard: Option<Heard>,
    /// Tokens of the home named in `heard` that have expired unused.
    pub returned: Vec<TokensReturned>,
    /// Tokens that are needed.
    pub asks: Vec<TokenAsk>,
}

/// Identifies an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// The number of the home: each begins with another.
    pub home: u64,
    /// Time of the answer by the home's clock, in nanoseconds.
    pub at: u64,
}

/// Tokens that were not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokensReturned {
    /// The limit.
    pub key: u64,
    /// The time of the answer that granted them.
    pub granted_at: u64,
    /// Their number.
    pub count: u32,
}

/// A request for tokens of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenAsk {
    /// The limit.
    pub key: u64,
    /// Its rate, for all shards together.
    pub rate: Rate,
    /// The number of tokens.
    pub count: u32,
}

/// The answer of a home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenAnswer {
    /// Identifies the answer.
    pub heard: Heard,
    /// A grant for each request.
    pub grants: Vec<TokenGrant>,
}

/// Tokens that are lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenGrant {
    /// The limit.
    pub key: u64,
    /// Number of tokens, at most as many as requested.
    pub count: u32,
    /// If fewer were granted: milliseconds until more may be available.
    pub wait_ms: u32,
}

impl TokenRequest {
    /// The request as bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![VERSION];
        out.put_u16_le(self.shard);
        out.put_u8(self.heard.is_some().into());
        if let Some(heard) = self.heard {
            heard.put(&mut out);
        }
        out.put_u32_le(u32::try_from(self.returned.len()).expect("there are few"));
        for TokensReturned { key, granted_at, count } in &self.returned {
            out.put_u64_le(*key);
            out.put_u64_le(*granted_at);
            out.put_u32_le(*count);
        }
        for TokenAsk { key, rate, count } in &self.asks {
            out.put_u64_le(*key);
            [rate.count(), rate.seconds(), rate.burst(), *count].into_iter().for_each(|number| out.put_u32_le(number));
        }
        out.into()
    }

    /// `None` if the bytes are damaged or of another release.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        if fields.u8()? != VERSION {
            return None;
        }
        let shard = fields.u16()?;
        let heard = if fields.u8()? == 1 { Some(Heard::take(&mut fields)?) } else { None };
        let mut returned = Vec::new();
        let mut asks = Vec::new();
        for _ in 0..fields.u32()? {
            returned.push(TokensReturned { key: fields.u64()?, granted_at: fields.u64()?, count: fields.u32()? });
        }
        while !fields.is_empty() {
            let key = fields.u64()?;
            let rate = Rate::new(fields.u32()?, fields.u32()?, fields.u32()?).ok()?;
            asks.push(TokenAsk { key, rate, count: fields.u32()? });
        }
        Some(TokenRequest { shard, heard, returned, asks })
    }
}

impl TokenAnswer {
    /// The answer as bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![VERSION];
        self.heard.put(&mut out);
        for TokenGrant { key, count, wait_ms } in &self.grants {
            out.put_u64_le(*key);
            out.put_u32_le(*count);
            out.put_u32_le(*wait_ms);
        }
        out.into()
    }

    /// `None` if the bytes are damaged or of another release.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        if fields.u8()? != VERSION {
            return None;
        }
        let heard = Heard::take(&mut fields)?;
        let mut grants = Vec::new();
        while !fields.is_empty() {
            grants.push(TokenGrant { key: fields.u64()?, count: fields.u32()?, wait_ms: fields.u32()? });
        }
        Some(TokenAnswer { heard, grants })
    }
}

impl Heard {
    fn put(self, out: &mut Vec<u8>) {
        out.put_u64_le(self.home);
        out.put_u64_le(self.at);
    }

    fn take(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Heard { home: fields.u64()?, at: fields.u64()? })
    }
}

const VERSION: u8 = 1;

/// Maximum limits asked for in a request, and maximum tokens returned; the rest waits for the next. Together they fit
/// in a question.
pub(super) const ASKS_MAX: usize = 2_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QUESTION_BYTES_MAX;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let rate = Rate::new(5, 60, 7).unwrap();
        for heard in [None, Some(Heard { home: 9, at: 1 << 40 })] {
            let returned = vec![TokensReturned { key: 1, granted_at: 2, count: 3 }];
            let asks = vec![TokenAsk { key: u64::MAX, rate, count: 4 }, TokenAsk { key: 5, rate, count: 6 }];
            let request = TokenRequest { shard: 3, heard, returned, asks };
            let bytes = request.encode();
            assert_eq!(TokenRequest::decode(&bytes), Some(request));
            assert_eq!(TokenRequest::decode(&bytes[..bytes.len() - 1]), None);
        }
        let grants = vec![TokenGrant { key: 7, count: 8, wait_ms: 9 }];
        let answer = TokenAnswer { heard: Heard { home: 1, at: 2 }, grants };
        let bytes = answer.encode();
        assert_eq!(TokenAnswer::decode(&bytes), Some(answer));
        assert_eq!((TokenAnswer::decode(&bytes[..20]), TokenAnswer::decode(&[2])), (None, None));
    }

    #[test]
    fn the_largest_request_fits_in_a_question() {
        let ask = TokenAsk { key: 0, rate: Rate::new(1, 1, 1).unwrap(), count: 1 };
        let returned = TokensReturned { key: 0, granted_at: 0, count: 1 };
        let returned = vec![returned; ASKS_MAX];
        let asks = vec![ask; ASKS_MAX];
        let request = TokenRequest { shard: 1, heard: Some(Heard { home: 0, at: 0 }), returned, asks };
        assert!(request.encode().len() <= QUESTION_BYTES_MAX);
    }
}
