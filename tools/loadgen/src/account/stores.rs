//! Reads the copies of a run's messages in stores, and their places.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::ledger::Ledger;
use crate::mailfiles::{ReadError, each_message};
use crate::sink::DIR_INDEX;
use crate::stamp::{self, Id};

/// Error of an account.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccountError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{path}, line {line}: not a line of an account file: {text}")]
    BadLine { path: PathBuf, line: usize, text: String },
}

/// Everything found of one run's messages.
pub(super) struct Seen<'a> {
    ledger: &'a Ledger,
    pub copies: BTreeMap<u64, FoundCopies>,
    /// Maildirs by number.
    pub maildirs: Vec<PathBuf>,
    numbers: HashMap<PathBuf, u32>,
    pub other_runs: u64,
    pub unstamped: u64,
    /// Account files that end in the middle of a line.
    pub unfinished: Vec<String>,
    /// True if all stores so far are account files.
    pub all_are_lines: bool,
}

/// Copies found of one message.
#[derive(Debug, Default)]
pub(super) struct FoundCopies {
    pub found: u32,
    pub altered: u32,
    /// Copies in a Maildir that has one already.
    pub surplus: u32,
    /// Maildirs that have a copy.
    pub maildirs: Vec<u32>,
}

/// A message in a store.
struct Copy<'a> {
    /// `None` without a stamp.
    stamp: Option<stamp::Found>,
    maildir: Option<&'a Path>,
    place: Place<'a>,
}

/// Where a copy is.
#[derive(Clone, Copy)]
enum Place<'a> {
    File(&'a Path),
    /// A line of an account file, from 1.
    Line(&'a Path, usize),
    /// A message of an mbox, from 1.
    Message(&'a Path, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Line(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Message(path, number) => write!(f, "{}, message {number}", path.display()),
        }
    }
}

/// Facts about a store besides its messages.
struct Store {
    is_lines: bool,
    /// True if it ends in the middle of a line: it is being written, or its writer was killed.
    is_unfinished: bool,
}

/// Maximum places reported of one message.
const PLACES_MAX: usize = 8;

impl<'a> Seen<'a> {
    pub fn new(ledger: &'a Ledger) -> Self {
        Self {
            ledger,
            copies: BTreeMap::new(),
            maildirs: Vec::new(),
            numbers: HashMap::new(),
            other_runs: 0,
            unstamped: 0,
            unfinished: Vec::new(),
            all_are_lines: true,
        }
    }

    /// Adds the content of a store.
    pub fn read(&mut self, path: &Path) -> Result<(), AccountError> {
        let store = each_copy(path, &mut |copy| match copy.stamp {
            Some(found) => self.add(found, copy.maildir),
            None => self.unstamped += 1,
        })?;
        self.all_are_lines &= store.is_lines;
        if store.is_unfinished {
            self.unfinished.push(path.display().to_string());
        }
        Ok(())
    }

    fn add(&mut self, found: stamp::Found, maildir: Option<&Path>) {
        if found.id.run != self.ledger.run {
            self.other_runs += 1;
            return;
        }
        let maildir = maildir.map(|path| self.number_of(path));
        let copy = self.copies.entry(found.id.number).or_default();
        copy.found += 1;
        copy.altered += u32::from(!found.is_intact);
        match maildir {
            Some(maildir) if copy.maildirs.contains(&maildir) => copy.surplus += 1,
            Some(maildir) => copy.maildirs.push(maildir),
            None => {}
        }
    }

    fn number_of(&mut self, maildir: &Path) -> u32 {
        if let Some(number) = self.numbers.get(maildir) {
            return *number;
        }
        let number = u32::try_from(self.maildirs.len()).expect("there are fewer Maildirs than messages");
        self.numbers.insert(maildir.to_owned(), number);
        self.maildirs.push(maildir.to_owned());
        number
    }
}

/// Finds the places of some messages' copies, at most [`PLACES_MAX`] of each. Reads the stores again, so that the
/// places of millions of correct messages need not be kept.
pub(super) fn places(
    stores: &[PathBuf],
    run: u64,
    wanted: &HashSet<u64>,
) -> Result<HashMap<u64, Vec<String>>, AccountError> {
    let mut places: HashMap<u64, Vec<String>> = HashMap::new();
    if wanted.is_empty() {
        return Ok(places);
    }
    for store in stores {
        each_copy(store, &mut |copy| {
            let Some(Id { number, .. }) = copy.stamp.map(|found| found.id).filter(|id| id.run == run) else { return };
            if wanted.contains(&number) {
                let of_message = places.entry(number).or_default();
                if of_message.len() < PLACES_MAX {
                    of_message.push(copy.place.to_string());
                }
            }
        })?;
    }
    Ok(places)
}

/// Counts a run's copies in a store by the number of their DKIM signatures. A line that is being written is left out.
///
/// # Errors
/// When the store cannot be read.
pub fn signatures(run: u64, store: &Path) -> Result<BTreeMap<u32, u64>, AccountError> {
    let mut copies = BTreeMap::new();
    each_copy(store, &mut |copy| {
        if let Some(found) = copy.stamp.filter(|found| found.id.run == run) {
            *copies.entry(found.signatures).or_default() += 1;
        }
    })?;
    Ok(copies)
}

fn each_copy(path: &Path, each: &mut dyn FnMut(Copy<'_>)) -> Result<Store, AccountError> {
    if is_account_file(path) {
        return Ok(Store { is_lines: true, is_unfinished: read_lines(path, each)? });
    }
    each_message(path, &mut |message| {
        let stamp = stamp::find(message.octets);
        if stamp.is_some() || message.path.file_name().is_none_or(|name| name != DIR_INDEX) {
            let place = match message.number {
                Some(number) => Place::Message(message.path, number),
                None => Place::File(message.path),
            };
            each(Copy { stamp, maildir: message.maildir, place });
        }
        true
    })?;
    Ok(Store { is_lines: false, is_unfinished: false })
}

/// True for an account file. It starts with a brace, as no message and no mbox does.
fn is_account_file(path: &Path) -> bool {
    use std::io::Read;
    let mut first = [0];
    path.is_file() && File::open(path).and_then(|mut file| file.read(&mut first)).is_ok_and(|_| first[0] == b'{')
        || path.extension().is_some_and(|extension| extension == "jsonl")
}

#[derive(Deserialize)]
struct Line {
    id: String,
    intact: bool,
    #[serde(default)]
    signatures: u32,
}

/// Reads the lines of an account file. True if the last line is incomplete; it is left out.
fn read_lines(path: &Path, each: &mut dyn FnMut(Copy<'_>)) -> Result<bool, AccountError> {
    let failed = |source| ReadError { path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if file.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            break;
        }
        let Some(text) = line.strip_suffix(b"\n") else { return Ok(true) };
        if text.is_empty() {
            continue;
        }
        let bad = |text| AccountError::BadLine { path: path.to_owned(), line: number, text };
        let Line { id, intact, signatures } = serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
        let id = parse_id(&id).ok_or_else(|| bad(format!("`{id}` is not an id")))?;
        let stamp = Some(stamp::Found { id, is_intact: intact, signatures });
        each(Copy { stamp, maildir: None, place: Place::Line(path, number) });
    }
    Ok(false)
}

pub(super) fn parse_id(text: &str) -> Option<Id> {
    let (run, number) = text.split_once('.')?;
    Some(Id { run: u64::from_str_radix(run, 16).ok()?, number: number.parse().ok()? })
}
