//! Checks an index against its checksums, and its two halves against each other.

use std::path::Path;

use crate::search::Searcher;
use crate::state::bits;
use crate::update::{IndexError, text_error};

/// What a check found.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Messages that are in the index.
    pub messages: u64,
    /// Parts that are damaged, and how.
    pub damage: Vec<(String, String)>,
}

/// Reads every byte of the index in `dir`. Takes about as long as reading its files.
///
/// # Errors
/// [`IndexError`] if it cannot be opened at all; damage found in an index that opens is in the [`Verdict`].
pub fn verify(dir: &Path) -> Result<Verdict, IndexError> {
    let searcher = Searcher::open(dir)?;
    let mut verdict = Verdict::default();
    let text_dir = searcher.snapshot().text_dir();
    let damaged = searcher.text().index.validate_checksum().map_err(|error| text_error(&text_dir, error))?;
    verdict
        .damage
        .extend(damaged.into_iter().map(|file| (format!("text/{}", file.display()), "checksum is wrong".to_owned())));
    match searcher.snapshot().records() {
        Err(error) => verdict.damage.push(("side store".to_owned(), error.to_string())),
        Ok(records) => {
            let with_text = searcher.numbers_with_text()?;
            for (number, record) in (0u32..).zip(&records).filter(|(_, record)| record.flags & bits::GONE == 0) {
                verdict.messages += 1;
                if !with_text.get(number) {
                    verdict
                        .damage
                        .push((format!("message {number} ({})", record.name), "is not in the text index".to_owned()));
                }
            }
        }
    }
    Ok(verdict)
}
