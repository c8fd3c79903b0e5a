//! Sets of message numbers.

/// A set of message numbers below a bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bitmap {
    words: Vec<u64>,
    len: u32,
}

impl Bitmap {
    /// No number below `len`.
    pub fn empty(len: u32) -> Self {
        Self { words: vec![0; (len as usize).div_ceil(64)], len }
    }

    /// The empty set with the same bound.
    pub(super) fn none(&self) -> Self {
        Self::empty(self.len)
    }

    /// Every number below `len`.
    pub fn full(len: u32) -> Self {
        let mut all = Self::empty(len);
        all.not();
        all
    }

    pub(super) fn from_values<T: Copy>(values: &[T], fits: impl Fn(T) -> bool) -> Self {
        let words = values
            .chunks(64)
            .map(|chunk| chunk.iter().enumerate().fold(0, |word, (bit, &value)| word | u64::from(fits(value)) << bit));
        Self { words: words.collect(), len: u32::try_from(values.len()).unwrap_or(u32::MAX) }
    }

    /// Adds a number. One at or above the bound is ignored, since a text index may be newer than the side store.
    pub fn set(&mut self, number: u32) {
        if number < self.len {
            self.words[number as usize / 64] |= 1 << (number % 64);
        }
    }

    /// Removes a number.
    pub fn clear(&mut self, number: u32) {
        if number < self.len {
            self.words[number as usize / 64] &= !(1 << (number % 64));
        }
    }

    /// True if `number` is in the set.
    pub fn get(&self, number: u32) -> bool {
        number < self.len && self.words[number as usize / 64] >> (number % 64) & 1 == 1
    }

    /// Size of the set.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Intersects the set with `other`.
    pub fn and(&mut self, other: &Self) {
        self.zip(other, |a, b| a & b);
    }

    /// Unites the set with `other`.
    pub fn or(&mut self, other: &Self) {
        self.zip(other, |a, b| a | b);
    }

    /// Keeps numbers that are in exactly one of the two sets.
    pub fn xor(&mut self, other: &Self) {
        self.zip(other, |a, b| a ^ b);
    }

    fn zip(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        assert_eq!(self.len, other.len, "sets of different commits");
        self.words.iter_mut().zip(&other.words).for_each(|(a, b)| *a = with(*a, *b));
    }

    /// Replaces the set by its complement.
    pub fn not(&mut self) {
        self.words.iter_mut().for_each(|word| *word = !*word);
        if let (Some(last), used @ 1..) = (self.words.last_mut(), self.len % 64) {
            *last &= (1 << used) - 1;
        }
    }

    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0u32..).zip(&self.words).flat_map(|(index, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(index * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_behave_like_sets() {
        let mut a = Bitmap::empty(130);
        [0, 63, 64, 129, 500].into_iter().for_each(|n| a.set(n));
        assert_eq!(a.iter().collect::<Vec<_>>(), [0, 63, 64, 129]);
        let mut b = a.clone();
        b.not();
        assert_eq!((b.count(), a.count()), (126, 4));
        assert!(b.get(1) && !b.get(0) && !b.get(130));
        b.xor(&a);
        assert_eq!(b, Bitmap::full(130));
        b.and(&a);
        assert_eq!(b, a);
        assert_eq!(Bitmap::full(64).count(), 64);
        assert_eq!(Bitmap::full(0).iter().count(), 0);
    }
}
