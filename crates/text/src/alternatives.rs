//! Plain and HTML versions of one text: decides if the HTML is worth indexing.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use crate::tokens::{Tokens, random_key};

/// An HTML alternative counts as different if more than one in this many of its words is new.
const NEW_WORDS_SHARE: usize = 20;

/// True if more than a small share of the words in `html` are missing in `plain`.
pub(super) fn says_more(html: &str, plain: &str) -> bool {
    let mut token = String::new();
    let key = random_key();
    let mut known = HashSet::with_hasher(BuildHasherDefault::<Hashed>::default());
    Tokens::new(plain).for_each(&mut token, |word| {
        known.insert(word.hash(key));
    });
    let mut all = 0;
    let mut new = 0;
    Tokens::new(html).for_each(&mut token, |word| {
        all += 1;
        new += usize::from(!known.contains(&word.hash(key)));
    });
    new * NEW_WORDS_SHARE > all
}

/// A hasher for numbers that are hashes already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers of 64 bits are hashed");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
