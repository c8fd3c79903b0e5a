//! Matches an expression's tables against a dictionary of words.
//!
//! A dictionary is a trie that shares equal suffixes (tantivy's FST). The engine's own search keeps a stack of nodes
//! and visits a suffix again for each word that ends in it, which took most of a search's time. This search keeps only
//! the path, and remembers some thousand suffixes without a match.

use tantivy::directory::{CompositeFile, OwnedBytes};
use tantivy::index::SegmentComponent;
use tantivy::postings::TermInfo;
use tantivy::schema::Field;
use tantivy::termdict::TermDictionary;
use tantivy::{HasLen, SegmentReader};
use tantivy_fst::raw::Fst;

use super::matcher::Tables;

/// Footer after the tree: length of the block of term infos, version of the tree, kind of dictionary.
const FOOTER_BYTES: usize = 8 + 4 + 4;
/// Version of the tree and kind of dictionary, as tantivy 0.27 writes them.
const FORM: [u8; 8] = [1, 0, 0, 0, 1, 0, 0, 0];
/// With more matching words than this, single look-ups are slower than a scan, however many words there are.
const FOUND_MAX: usize = 20_000;
/// If more than one in this many branches matches, most words match: then a scan of all words is faster.
const DENSE_SHARE: usize = 8;
/// Matches before the density is judged.
const DENSE_MIN: usize = 1024;
/// Longest path followed. No word is longer (see [`TOKEN_BYTES_MAX`](posthaste_text::TOKEN_BYTES_MAX)), but a damaged tree
/// may be.
const WAY_BYTES_MAX: usize = 255;
/// Number of remembered pairs: a power of two.
const BARREN: usize = 1 << 13;

/// The words of one field of one segment.
pub(super) struct Dictionary<D>(Fst<D>);

/// Matching words.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Found {
    Word(Vec<u8>),
    /// All words with this prefix.
    AllFrom(Vec<u8>),
}

impl Dictionary<OwnedBytes> {
    /// `None` if the field has no words, or its dictionary has an unknown format.
    pub fn open(segment: &SegmentReader, field: Field) -> tantivy::Result<Option<Self>> {
        let all = CompositeFile::open(&segment.open_read(SegmentComponent::Terms)?)?;
        let Some(file) = all.open_read(field).filter(|file| file.len() > FOOTER_BYTES) else { return Ok(None) };
        let (file, footer) = file.split_from_end(FOOTER_BYTES);
        let footer = footer.read_bytes()?;
        let Some((values_bytes, form)) = footer.split_first_chunk::<8>() else { return Ok(None) };
        let values_bytes = usize::try_from(u64::from_le_bytes(*values_bytes)).unwrap_or(usize::MAX);
        if *form != FORM || values_bytes > file.len() {
            return Ok(None);
        }
        let (tree, _) = file.split_from_end(values_bytes);
        Ok(Fst::new(tree.read_bytes()?).ok().map(Self))
    }
}

impl<D: std::ops::Deref<Target = [u8]>> Dictionary<D> {
    /// Matching words whose first byte is in `from..to`. `None` as soon as there are too many.
    pub fn matching(&self, tables: &Tables, from: u8, to: Option<u8>) -> Option<Vec<Found>> {
        let way = Vec::new();
        let found = Vec::new();
        let barren = vec![NO_PAIR; BARREN];
        let mut walk = Walk { tree: &self.0, tables, way, found, looked: 0, barren };
        let root = self.0.root();
        let start = tables.start();
        for branch in root.transitions().filter(|branch| branch.inp >= from && to.is_none_or(|to| branch.inp < to)) {
            walk.branch(branch.inp, branch.addr, start)?;
        }
        Some(walk.found)
    }
}

/// A pair that never occurs: no node has this address.
const NO_PAIR: (usize, u32) = (usize::MAX, 0);

struct Walk<'t, D> {
    tree: &'t Fst<D>,
    tables: &'t Tables,
    way: Vec<u8>,
    found: Vec<Found>,
    /// Branches followed so far.
    looked: usize,
    /// Pairs of address and state below which nothing matched, each at the place of its hash.
    barren: Vec<(usize, u32)>,
}

impl<D: std::ops::Deref<Target = [u8]>> Walk<'_, D> {
    /// Follows one branch. `None` if there are too many matches.
    fn branch(&mut self, byte: u8, addr: usize, state: super::matcher::State) -> Option<()> {
        self.way.push(byte);
        self.looked += 1;
        match self.tables.next(state, byte) {
            None => self.found.push(Found::AllFrom(self.way.clone())),
            Some(next) if self.tables.is_dead(next) || self.way.len() > WAY_BYTES_MAX => {}
            Some(next) => {
                let pair = (addr, next.as_u32());
                let place = place_of(pair);
                if self.barren[place] != pair {
                    let before = self.found.len();
                    self.node(addr, next)?;
                    if self.found.len() == before {
                        self.barren[place] = pair;
                    }
                }
            }
        }
        self.way.pop();
        let found = self.found.len();
        let is_dense = found > DENSE_MIN && found * DENSE_SHARE > self.looked;
        (found <= FOUND_MAX && !is_dense).then_some(())
    }

    fn node(&mut self, addr: usize, state: super::matcher::State) -> Option<()> {
        let tree = self.tree;
        let node = tree.node(addr);
        if node.is_final() && self.tables.is_match(state) {
            self.found.push(Found::Word(self.way.clone()));
        }
        node.transitions().try_for_each(|branch| self.branch(branch.inp, branch.addr, state))
    }
}

fn place_of((addr, state): (usize, u32)) -> usize {
    let mixed = (addr as u64 ^ u64::from(state).rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The upper half depends on bits of both.
    (mixed >> 40) as usize % BARREN
}

/// Calls `each` for the terms that begin with `start`.
pub(super) fn for_each_term(
    terms: &TermDictionary,
    start: impl AsRef<[u8]>,
    mut each: impl FnMut(&[u8], &TermInfo) -> tantivy::Result<()>,
) -> tantivy::Result<()> {
    let start = start.as_ref();
    let mut stream = terms.range().ge(start).into_stream()?;
    while let Some((term, info)) = stream.next() {
        if !term.starts_with(start) {
            break;
        }
        each(term, info)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::search::matcher::Matcher;

    fn dictionary(words: &BTreeSet<String>) -> Dictionary<Vec<u8>> {
        let mut builder = tantivy_fst::raw::Builder::memory();
        words.iter().zip(0..).for_each(|(word, number)| builder.insert(word, number).unwrap());
        Dictionary(Fst::new(builder.into_inner().unwrap()).unwrap())
    }

    fn words_of(all: &BTreeSet<String>, found: Vec<Found>) -> Vec<&str> {
        let fits = |word: &str| {
            found.iter().any(|found| match found {
                Found::Word(one) => word.as_bytes() == one,
                Found::AllFrom(start) => word.as_bytes().starts_with(start),
            })
        };
        all.iter().map(String::as_str).filter(|word| fits(word)).collect()
    }

    proptest! {
        #[test]
        fn what_is_found_is_what_the_expression_matches(
            words in prop::collection::btree_set("[abc9é]{1,7}", 1..200),
            pattern in prop::sample::select(vec![
                "ab", "^ab", "ab$", "^a.*c$", "a|b9", "(ab)+c", "[^a]$", ".", "é", "^a?b", "99", "a{2,3}$", "x", "$", "",
            ]),
            cut in prop::sample::select(vec![b'a', b'b', b'c']),
        ) {
            let regex = regex::RegexBuilder::new(pattern).case_insensitive(true).build().unwrap();
            let matcher = Matcher::new(&regex);
            let (tables, dictionary) = (matcher.tables().unwrap(), dictionary(&words));
            let mut found = dictionary.matching(tables, 0, Some(cut)).unwrap();
            found.extend(dictionary.matching(tables, cut, None).unwrap());
            let expected: Vec<&str> = words.iter().map(String::as_str).filter(|word| regex.is_match(word)).collect();
            prop_assert_eq!(words_of(&words, found), expected, "{}", pattern);
        }
    }

    #[test]
    fn the_form_in_which_the_engine_keeps_words_is_known() {
        let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for sub in ["new", "cur", "tmp"] {
            std::fs::create_dir(mail.path().join(sub)).unwrap();
        }
        std::fs::write(mail.path().join("cur/1.a.host:2,S"), "Subject: x\n\nLM90, lm95 and lm75\n").unwrap();
        let roots = [mail.path().to_owned()];
        crate::Indexer::open(index.path(), None).unwrap().update(&roots, &Default::default(), &|_| {}).unwrap();
        let searcher = crate::Searcher::open(index.path()).unwrap();
        let (segment, fields) = (&searcher.segments[0].reader, searcher.text.fields);
        let words = Dictionary::open(segment, fields.body).unwrap().expect("the form of a dictionary");
        let matcher = Matcher::new(&regex::Regex::new("lm9[0-9]$").unwrap());
        let found = words.matching(matcher.tables().unwrap(), 0, None).unwrap();
        assert_eq!(found, [Found::Word(b"lm90".to_vec()), Found::Word(b"lm95".to_vec())]);
        let none = Dictionary::open(segment, fields.bcc).unwrap().expect("one without words");
        assert_eq!(none.matching(matcher.tables().unwrap(), 0, None).unwrap(), []);
    }

    #[test]
    fn too_many_are_left_to_the_engine() {
        // Six in a hundred end otherwise.
        let word = |n: usize| format!("{n:06}{}", if n.is_multiple_of(16) { "y" } else { "x" });
        let words: BTreeSet<String> = (0..16 * (FOUND_MAX + 1)).map(word).collect();
        let dictionary = dictionary(&words);
        let matching = |pattern, to| {
            let found =
                dictionary.matching(Matcher::new(&regex::Regex::new(pattern).unwrap()).tables().unwrap(), 0, to)?;
            Some(found.len())
        };
        assert_eq!(matching("y$", None), None, "more than are looked up one by one");
        assert_eq!(matching("y$", Some(b'1')), Some(6250));
        assert_eq!(matching("^00.*x$", None), None, "fewer, but nearly all");
        assert_eq!(matching("^00000[01].$", None), Some(2));
    }
}
