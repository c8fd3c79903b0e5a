//! Numbers from a seed: what a run does, and what a cut leaves, can be had again.

/// SplitMix64 (Steele, Lea, Flood 2014): eight bytes of state, every seed good.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// The sequence of one of many things under one seed.
    pub fn of(seed: u64, which: u64) -> Self {
        let mut rng = Rng(seed ^ which.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        rng.next();
        rng
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "it never ends and is never iterated over")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
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
