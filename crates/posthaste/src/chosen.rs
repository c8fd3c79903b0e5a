//! Messages for a command: files named as arguments, or the matches of a query.

use std::path::{Path, PathBuf};

use posthaste_search::query::{Query, is_field};
use posthaste_search::{Bitmap, FoundMessage, Searcher, Sort};

use crate::search_common::{Failure, IndexDir, parse};

/// Selects the matches of a query, and their order.
#[derive(Clone, Copy)]
pub struct Choice {
    pub limit: usize,
    /// Oldest first, or for threads newest first.
    pub reverse: bool,
    /// Whole threads of the matches, oldest first.
    pub entire_thread: bool,
}

impl Choice {
    /// The newest match.
    pub const ONE: Self = Self { limit: 1, reverse: false, entire_thread: false };
}

/// The named files, or those of a query's matches.
pub fn files(words: &[String], index: &IndexDir, choice: Choice) -> Result<Vec<PathBuf>, Failure> {
    if let Some(files) = named_files(words)? {
        return Ok(files);
    }
    let searcher = index.open()?;
    let query = parse(words, &searcher)?;
    Ok(messages(&searcher, &query, choice)?.into_iter().map(|message| message.path).collect())
}

/// Returns the matches of a query.
pub fn messages(searcher: &Searcher, query: &Query, choice: Choice) -> Result<Vec<FoundMessage>, Failure> {
    let Choice { limit, reverse, entire_thread } = choice;
    let mut page = searcher.page(&searcher.find(query)?, Sort::Date, reverse && !entire_thread, 0, limit)?;
    if entire_thread {
        let mut some = Bitmap::empty(searcher.directory().messages);
        page.iter().for_each(|&number| some.set(number));
        page = searcher.page(&searcher.whole_threads(&some)?, Sort::Date, !reverse, 0, usize::MAX)?;
    }
    Ok(searcher.messages(&page)?)
}

/// `None` if the words are a query. A word that looks like a path is one, even without such a file: as an unintended
/// query it could find somebody else's message.
fn named_files(words: &[String]) -> Result<Option<Vec<PathBuf>>, Failure> {
    let is_there = |word: &String| Path::new(word).is_file();
    if !words.first().is_some_and(is_there) && !words.iter().any(|word| looks_like_path(word)) {
        return Ok(None);
    }
    let missing = words.iter().filter(|word| !is_there(word));
    // One that looks like a path is named before a word beside it.
    match missing.max_by_key(|word| looks_like_path(word)) {
        None => Ok(Some(words.iter().map(PathBuf::from).collect())),
        Some(word) if Path::new(word).is_dir() => Err(format!("{word} is a directory, not a message").into()),
        Some(word) => {
            Err(format!("{word}: No such file. To search for the text, write '\"{}\"'", word.replace('"', "")).into())
        }
    }
}

/// True for words with a slash, a leading dot or the ending `.eml`. A query with a field, a phrase or a regular
/// expression is none.
fn looks_like_path(word: &str) -> bool {
    let is_path = word.contains('/') || word.starts_with('.') || word.ends_with(".eml");
    let has_field =
        word.split([' ', '(', '{', '"', '-']).any(|part| part.split_once(':').is_some_and(|(name, _)| is_field(name)));
    let is_regex = word.len() > 2 && word.starts_with('/') && word.ends_with('/');
    is_path && !has_field && !is_regex && !word.contains("://") && !word.starts_with(['"', '(', '{', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_path_is_one() {
        for path in
            ["a/b", "./a", "../a b/c", ".hidden", "x.eml", "/var/mail/cur/1.a.host:2,S", "cur/1.a.host:2,", "~/x"]
        {
            assert!(looks_like_path(path), "{path}");
        }
        for query in [
            "rye",
            "maildir:/lists/rust",
            "not maildir:/x flag:unread",
            "(m:/x or y)",
            "/bre+ad/",
            "http://example.org/",
            "\"a/b\"",
            "thread:{maildir:/x}",
            "-path:a/b",
            "ann@example.org",
        ] {
            assert!(!looks_like_path(query), "{query}");
        }
    }
}
