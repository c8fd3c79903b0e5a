//! Real messages to send.

use std::path::PathBuf;

use crate::mailfiles::{ReadError, each_message};

/// Error in reading real messages.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("there are no messages in {0}")]
    Empty(String),
}

/// Reads messages under `paths` (see [`each_message`]), at most `octets_max` octets. The flag is true if that was all.
///
/// # Errors
/// When something cannot be read, or there are no messages.
pub fn read_corpus(paths: &[PathBuf], octets_max: usize) -> Result<(Vec<Vec<u8>>, bool), CorpusError> {
    let mut messages = Vec::new();
    let mut octets_left = octets_max;
    let mut is_whole = true;
    for path in paths {
        each_message(path, &mut |found| {
            let message = found.octets;
            is_whole &= message.len() <= octets_left;
            octets_left = octets_left.saturating_sub(message.len());
            if is_whole && !message.is_empty() {
                messages.push(message.to_vec());
            }
            is_whole
        })?;
    }
    if messages.is_empty() {
        Err(CorpusError::Empty(paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")))
    } else {
        Ok((messages, is_whole))
    }
}
