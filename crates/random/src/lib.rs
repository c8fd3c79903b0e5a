//! Numbers that follow from a seed, the same on every machine and in every version.
//!
//! For tests, fault injection and load generators that print a seed and are run again from it; general generators may change their algorithm
//! with a version. Not for secrets.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

/// SplitMix64 (Steele, Lea, Flood 2014): eight bytes of state, every seed good.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The sequence of one of many things under one seed.
    pub fn of(seed: u64, which: u64) -> Self {
        let mut random = Random(seed ^ which.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        random.next();
        random
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "it never ends and is never iterated over")]
    pub fn next(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(GAMMA);
        number
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `of` times.
    pub fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// The first number of the sequence of `seed`: consecutive seeds give numbers that look unrelated.
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(GAMMA);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// 2^64 divided by the golden ratio.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_a_seed_never_changes() {
        // The reference implementation's first numbers for this seed.
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..5).map(|_| random.next()).collect();
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(first, expected);
        assert_eq!(mix(1_234_567), expected[0]);
    }

    #[test]
    fn things_under_one_seed_have_sequences_of_their_own() {
        let first = |which| Random::of(7, which).next();
        assert!(first(1) != first(2) && first(1) == Random::of(7, 1).next());
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| random.below(3) < 3));
        assert!((150..350).contains(&(0..1000).filter(|_| random.one_in(4)).count()));
    }
}
