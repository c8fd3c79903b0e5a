//! Shared by the commands on the search index: its place, error messages, output.

use std::env::VarError;
use std::fs;
use std::io;
use std::mem::ManuallyDrop;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::Args;
use jiff::tz::TimeZone;
use posthaste_search::query::{self, Query};
use posthaste_search::{IndexError, Searcher, UpdateOptions};

use crate::foreign::instead_of_option;
use crate::progress::{progress_bar, show};
use crate::terminal::complain;

/// A fatal error. `main` prints it and exits with 2.
pub type Failure = Box<dyn std::error::Error>;

/// An index that stays open until the process ends, which closes all its files at once. Closing them one by one takes a
/// tenth of a search's time.
pub type Opened = ManuallyDrop<Searcher>;

#[derive(Args, Clone, Default)]
pub struct IndexDir {
    /// Directory of the index and the tags; default: posthaste/search in $XDG_DATA_HOME (~/.local/share)
    // Global: `index --index DIR rebuild` means the same as `index rebuild --index DIR`.
    #[arg(long, value_name = "DIR", env = "POSTHASTE_INDEX", hide_env = true, global = true)]
    index: Option<PathBuf>,
}

impl IndexDir {
    /// The default is the user's data directory, not a cache that may be emptied: lost tags cannot be recovered.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        if let Some(dir) = &self.index {
            return Ok(dir.clone());
        }
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
        let data = data.ok_or("where is the index? neither $XDG_DATA_HOME nor $HOME is set; use --index DIR")?;
        Ok(data.join("posthaste/search"))
    }

    pub fn open(&self) -> Result<Opened, Failure> {
        let dir = self.path()?;
        Searcher::open(&dir).map(Opened::new).map_err(|error| match error {
            IndexError::State(posthaste_search::state::StateError::Missing(_)) => {
                format!(
                    "no index in {}: make one with `posthaste index MAILDIR`, or search without one: `find --scan MAILDIR QUERY`",
                    dir.display()
                )
                .into()
            }
            error => error.into(),
        })
    }
}

/// Source of a search: an index, or Maildirs read for this search alone.
#[derive(Args)]
pub struct Source {
    #[command(flatten)]
    index: IndexDir,
    /// Search the mail below this directory without an index; repeatable
    #[arg(long, value_name = "MAILDIR")]
    scan: Vec<PathBuf>,
}

impl Source {
    /// The index, for a command that changes the matches. Fails for a scan, whose numbers have no meaning in an index.
    pub fn index(&self) -> Result<&IndexDir, Failure> {
        if self.scan.is_empty() && !self.is_missing() {
            return Ok(&self.index);
        }
        Err("only messages in an index can be moved or flagged; `posthaste index MAILDIR` creates one".into())
    }

    fn is_missing(&self) -> bool {
        self.index.path().is_ok_and(|dir| !dir.join("current").exists())
    }

    /// Opens the source. Without an index in its usual place, reads the mail in `$MAILDIR` or `~/Maildir`.
    ///
    /// `query` is the query to come: a scan reads the header fields that it names.
    pub fn open(&self, query: &[String]) -> Result<Opened, Failure> {
        if !self.scan.is_empty() {
            return scan(&self.scan, query);
        }
        let is_usual = self.index.index.is_none();
        match usual_maildir().filter(|_| is_usual && self.is_missing()) {
            Some(maildir) => {
                let path = maildir.display();
                complain(&format!(
                    "no index: reading all mail in {path}; `posthaste index {path}` makes searches fast"
                ));
                scan(&[maildir], query)
            }
            None => self.index.open(),
        }
    }
}

/// The directory that mu and most mail programs use: a Maildir, or a directory of Maildirs.
fn usual_maildir() -> Option<PathBuf> {
    let named = std::env::var_os("MAILDIR").map(PathBuf::from);
    let maildir = named.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join("Maildir")))?;
    maildir.is_dir().then_some(maildir)
}

fn scan(roots: &[PathBuf], query: &[String]) -> Result<Opened, Failure> {
    // Read before the mail, so that a mistake is told at once.
    let text = join(query)?;
    let query = query::parse(&text, &now()).map_err(|error| error.show(&text))?;
    let headers: Vec<String> = query.headers().into_iter().map(str::to_owned).collect();
    let bar = progress_bar();
    let (searcher, report) =
        posthaste_search::scan(roots, &headers, &UpdateOptions::default(), &|progress| show(&bar, progress))?;
    bar.finish_and_clear();
    report.troubles.iter().for_each(|(path, trouble)| complain(&format!("{}: {trouble}", path.display())));
    for root in &report.without_maildirs {
        complain(&format!("{}: there is no Maildir in it, that is, no directory with cur/ or new/", root.display()));
    }
    Ok(Opened::new(searcher))
}

/// Reports the wait for another writer.
pub fn waiting(dir: &Path) {
    complain(&format!("another process is writing to {}; waiting for it", dir.display()));
}

/// Parses the words of a command line as one query, with the index's saved queries.
pub fn parse(words: &[String], searcher: &Searcher) -> Result<Query, Failure> {
    let text = join(words)?;
    let queries = &searcher.directory().queries;
    query::parse_with(&text, &now(), queries).map_err(|error| error.show(&text).into())
}

/// Joins the words of a command line into the text of one query.
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
        if let Some(instead) = instead_of_option(word) {
            return Err(instead.into());
        }
        let text = word.trim_start_matches('-');
        return Err(format!(
            "`{word}` is not an option here; to leave out the word write `not {text}`, to search for it '\"{word}\"'"
        )
        .into());
    }
    // No query can mean this one: it says that none of what follows is an option.
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|&word| word != "--").collect();
    Ok(words.join(" "))
}

/// Reads messages for a command that shows several. An unreadable one is reported, and the others are still shown.
#[derive(Default)]
pub struct Reader {
    has_failed: bool,
}

impl Reader {
    /// Of several files with one message, reads the first readable one.
    pub fn read_any<'p>(&mut self, paths: impl IntoIterator<Item = &'p Path>) -> Option<Vec<u8>> {
        let mut told = Vec::new();
        for path in paths {
            match fs::read(path) {
                Ok(bytes) => return Some(bytes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    told.push(format!(
                        "{}: is not there any more; `posthaste index` brings the index up to date",
                        path.display()
                    ));
                }
                Err(error) => told.push(format!("{}: {error}", path.display())),
            }
        }
        self.has_failed = true;
        told.iter().for_each(|why| complain(why));
        None
    }

    pub fn read(&mut self, path: &Path) -> Option<Vec<u8>> {
        self.read_any([path])
    }

    /// Exit status 1 if a message could not be read.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(u8::from(self.has_failed))
    }
}

/// Exit status 1 with a message, for no matches.
pub fn nothing_found() -> ExitCode {
    complain("no matches");
    ExitCode::from(1)
}

/// A local time as `2025-03-04 10:40`.
pub fn local(seconds: i64) -> jiff::Zoned {
    let bounded = seconds.clamp(jiff::Timestamp::MIN.as_second() + 86_400, jiff::Timestamp::MAX.as_second() - 86_400);
    jiff::Timestamp::from_second(bounded).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_zoned(zone())
}

/// The current local time.
pub fn now() -> jiff::Zoned {
    jiff::Timestamp::now().to_zoned(zone())
}

/// The local time zone, read from the one file that defines it. A look-up by name lists dozens of directories of the
/// database, which takes as long as a search.
fn zone() -> TimeZone {
    static ZONE: OnceLock<TimeZone> = OnceLock::new();
    let read = || {
        let path = zone_file(std::env::var("TZ"), std::env::var_os("TZDIR").is_some())?;
        TimeZone::tzif("local", &fs::read(path).ok()?).ok()
    };
    ZONE.get_or_init(|| read().unwrap_or_else(TimeZone::system)).clone()
}

/// Path of the file of the time zone for this `$TZ`; `None` if it may be something else than a name.
fn zone_file(tz: Result<String, VarError>, is_database_elsewhere: bool) -> Option<PathBuf> {
    match tz {
        Err(VarError::NotPresent) => Some("/etc/localtime".into()),
        Err(VarError::NotUnicode(_)) => None,
        Ok(tz) => {
            let name = Path::new(tz.strip_prefix(':').unwrap_or(&tz));
            let is_plain = name.components().all(|part| matches!(part, Component::Normal(_)));
            (is_plain && !is_database_elsewhere).then(|| Path::new("/usr/share/zoneinfo").join(name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_zone_is_the_file_of_its_name() {
        let check = |tz: &str, expected: Option<&str>| {
            assert_eq!(zone_file(Ok(tz.to_owned()), false), expected.map(PathBuf::from), "{tz}");
            assert_eq!(zone_file(Ok(tz.to_owned()), true), None);
        };
        check("UTC", Some("/usr/share/zoneinfo/UTC"));
        check(":Europe/Berlin", Some("/usr/share/zoneinfo/Europe/Berlin"));
        check("/etc/zone", None);
        check("../../etc/zone", None);
        assert_eq!(zone_file(Err(VarError::NotPresent), true), Some("/etc/localtime".into()));
    }
}
