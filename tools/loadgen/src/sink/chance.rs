//! Percentages that come out exactly, in an order that looks random and that a seed repeats.

use posthaste_random::mix;

/// Decisions in a block: in each, a percentage gets its exact share.
pub const BLOCK: u64 = 10_000;

/// Position of decision number `n` in its block's shuffled order: 0 to 9,999, each exactly once in a block.
///
/// The fate of message `n` depends on `key` and `n` alone, not on the thread that asks.
pub fn place(key: u64, n: u64) -> u32 {
    let block_key = mix(key ^ mix(n / BLOCK));
    let mut at = (n % BLOCK) as u32;
    // A Feistel network permutes 0..16384; walking its cycles until the value is in range permutes 0..10000.
    loop {
        at = feistel(block_key, at);
        if u64::from(at) < BLOCK {
            return at;
        }
    }
}

/// A number from `key` and `n`, evenly spread over 0 to `bound` - 1 as far as 64 bits allow.
pub fn below(key: u64, n: u64, bound: u64) -> u64 {
    mix(key ^ mix(n.wrapping_add(0x5851_F42D_4C95_7F2D))) % bound
}

/// A key for one kind of decision.
pub fn key(seed: u64, kind: &str) -> u64 {
    kind.bytes().fold(mix(seed), |key, byte| mix(key ^ u64::from(byte)))
}

const HALF_BITS: u32 = 7;
const HALF_MASK: u32 = (1 << HALF_BITS) - 1;

fn feistel(key: u64, value: u32) -> u32 {
    let (mut left, mut right) = (value >> HALF_BITS, value & HALF_MASK);
    for round in 0..4 {
        let noise = mix(key ^ (u64::from(right) << 8 | round)) as u32 & HALF_MASK;
        (left, right) = (right, left ^ noise);
    }
    left << HALF_BITS | right
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_a_block_is_taken_once() {
        for (key, block) in [(1, 0), (1, 1), (0xfeed, 7)] {
            let mut seen: Vec<u32> = (0..BLOCK).map(|n| place(key, block * BLOCK + n)).collect();
            assert_ne!(seen[..5], [0, 1, 2, 3, 4]);
            seen.sort_unstable();
            assert!(seen.iter().enumerate().all(|(index, place)| index as u32 == *place));
        }
    }

    #[test]
    fn a_short_series_is_near_its_share_and_follows_the_seed() {
        let hits = |seed: u64| -> Vec<u64> { (0..1000).filter(|n| place(key(seed, "rcpt"), *n) < 1000).collect() };
        assert!((60..140).contains(&hits(1).len()), "{} of 1000 at 10 %", hits(1).len());
        assert_ne!(hits(1), hits(2));
    }
}
