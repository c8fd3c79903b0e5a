//! What the commands around the search index share: where it is, how trouble is told, how things are printed.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use posthaste_search::query::{self, Query};
use posthaste_search::{IndexError, Searcher};

use crate::terminal::complain;

/// What ends a command. `main` prints it and exits with 2.
pub type Failure = Box<dyn std::error::Error>;

#[derive(Args, Clone)]
pub struct IndexDir {
    /// Directory of the index and the tags; by default posthaste/search in $XDG_DATA_HOME (~/.local/share)
    #[arg(long, value_name = "DIR", env = "POSTHASTE_INDEX", hide_env = true)]
    index: Option<PathBuf>,
}

impl IndexDir {
    /// Tags are a person's own words, so the directory is among data, not in a cache that may be emptied.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        if let Some(dir) = &self.index {
            return Ok(dir.clone());
        }
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
        let data = data.ok_or("where is the index? neither $XDG_DATA_HOME nor $HOME is set; use --index DIR")?;
        Ok(data.join("posthaste/search"))
    }

    pub fn open(&self) -> Result<Searcher, Failure> {
        let dir = self.path()?;
        Searcher::open(&dir).map_err(|error| match error {
            IndexError::State(posthaste_search::state::StateError::Missing(_)) => {
                format!("no index in {}: make one with `posthaste index MAILDIR`", dir.display()).into()
            }
            error => error.into(),
        })
    }
}

/// Said before waiting for another writer.
pub fn waiting(dir: &Path) {
    complain(&format!("another process is writing to {}; waiting for it", dir.display()));
}

/// Parses the words of a command line as one query, with the queries that are saved in the index.
pub fn parse(words: &[String], searcher: &Searcher) -> Result<Query, Failure> {
    let text = join(words)?;
    let queries = &searcher.directory().queries;
    query::parse_with(&text, &jiff::Zoned::now(), queries).map_err(|error| error.show(&text).into())
}

/// The words of a command line as the text of one query.
pub fn join(words: &[String]) -> Result<String, Failure> {
    // What of the words is an option was taken out before; what only looks like one would be searched for in silence.
    let is_option = |word: &&String| {
        let name = word.trim_start_matches('-');
        let is_limit = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && (word.starts_with("--") || word.starts_with('-') && name.len() == 1)
            || word.strip_prefix("-n").is_some_and(is_limit)
    };
    if let Some(word) = words.iter().find(is_option) {
        let text = word.trim_start_matches('-');
        return Err(format!(
            "`{word}` is no option here; to leave out the word write `not {text}`, to search for it '\"{word}\"'"
        )
        .into());
    }
    // No query can mean this one: it says that none of what follows is an option.
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|&word| word != "--").collect();
    Ok(words.join(" "))
}

/// Exit status 1, and why, for whoever waits for output that does not come.
pub fn nothing_found() -> ExitCode {
    complain("no matches");
    ExitCode::from(1)
}

/// A local time as `2025-03-04 10:40`.
pub fn local(seconds: i64) -> jiff::Zoned {
    let bounded = seconds.clamp(jiff::Timestamp::MIN.as_second() + 86_400, jiff::Timestamp::MAX.as_second() - 86_400);
    jiff::Timestamp::from_second(bounded).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_zoned(jiff::tz::TimeZone::system())
}
