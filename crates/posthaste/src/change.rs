//! Changes of messages in Maildirs on a user's request: flags, and moves to another folder.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use posthaste_maildir::{Flags, Found, KEYWORDS_MAX, Maildir, Subdir, TakenKeys};
use posthaste_search::flag_tags::TagFlags;
use posthaste_search::{FoundMessage, Indexer, Searcher, UpdateOptions};

use crate::search_common::{Failure, IndexDir, waiting};
use crate::terminal::{complain, harmless, print};

/// Changes of one message.
pub struct Task<'a> {
    pub message: &'a FoundMessage,
    pub add: Flags,
    pub remove: Flags,
    /// Keywords by name; an added one without a letter in the folder gets one.
    pub add_keywords: &'a [String],
    pub remove_keywords: &'a [String],
}

/// Options for all messages of the run.
#[derive(Default)]
pub struct Change<'a> {
    /// The folder to move them to, as named by the index: `/Archive`.
    pub folder: Option<&'a str>,
    /// Print the changes without making them.
    pub dry_run: bool,
}

/// Result of a run of changes.
pub struct Outcome {
    pub changed: u64,
    pub failed: u64,
}

/// Parses `+S-F`: letters after a `+` are set, those after a `-` cleared.
pub fn parse_flags(text: &str) -> Result<(Flags, Flags), String> {
    let mut add = Flags::NONE;
    let mut remove = Flags::NONE;
    let mut sign = None;
    for c in text.chars() {
        let known = Flags::letter(c).filter(|_| "DFPRST".contains(c));
        match (c, known, sign) {
            ('+' | '-', ..) => sign = Some(c),
            (_, Some(flag), Some('+')) => add = add.with(flag),
            (_, Some(flag), Some(_)) => remove = remove.with(flag),
            _ => {
                return Err(
                    "flags are written `+S-F`: D draft, F flagged, P passed, R replied, S seen, T trashed".to_owned()
                );
            }
        }
    }
    if add == Flags::NONE && remove == Flags::NONE {
        Err("no flag given; write `+S` or `-F`".to_owned())
    } else {
        Ok((add, remove))
    }
}

/// Applies to the files the flags that were changed as tags. The index must not be open for writing.
pub fn change_flags(index: &IndexDir, searcher: &Searcher, changes: &[TagFlags]) -> Result<Outcome, Failure> {
    let numbers: Vec<u32> = changes.iter().map(|change| change.number).collect();
    let messages = searcher.messages(&numbers)?;
    let tasks = messages.iter().zip(changes);
    let tasks: Vec<Task> = tasks
        .map(|(message, change)| Task {
            message,
            add: change.add,
            remove: change.remove,
            add_keywords: &change.add_keywords,
            remove_keywords: &change.remove_keywords,
        })
        .collect();
    self::change(index, searcher, &tasks, &Change::default())
}

/// Changes messages durably, and updates the index. Failures are reported, and the other messages are still changed.
/// The index must not be open for writing.
pub fn change(index: &IndexDir, searcher: &Searcher, tasks: &[Task], change: &Change) -> Result<Outcome, Failure> {
    let mut open = Open::default();
    let mut outcome = Outcome { changed: 0, failed: 0 };
    // Before anything is touched: every tree that a message is in must have that folder.
    let target = |task: &Task| change.folder.map(|folder| target_of(searcher, task.message, folder)).transpose();
    let targets: Vec<Option<PathBuf>> = tasks.iter().map(target).collect::<Result<_, _>>()?;
    for (task, target) in tasks.iter().zip(&targets) {
        match one(&mut open, task, target.as_deref(), change.dry_run) {
            Ok(None) => {}
            Ok(Some(now)) => {
                outcome.changed += 1;
                if change.dry_run {
                    let old = task.message.path.to_string_lossy();
                    let now = now.to_string_lossy();
                    print(&format!("{} -> {}\n", harmless(&old), harmless(&now)))?;
                }
            }
            Err(error) => {
                outcome.failed += 1;
                let path = task.message.path.display();
                complain(&match error.kind() {
                    io::ErrorKind::NotFound => format!("{path}: no longer exists, under any name"),
                    _ => format!("{path}: {error}"),
                });
            }
        }
    }
    if change.dry_run || outcome.changed == 0 {
        return Ok(outcome);
    }
    for (path, maildir) in &open.maildirs {
        // Those that were changed are where they are now, which the index has to know all the same.
        if let Err(error) = maildir.sync_names() {
            outcome.failed += 1;
            complain(&format!("{}: the change there may not survive a power cut: {error}", path.display()));
        }
    }
    let dir = index.path()?;
    let report = Indexer::open(&dir, Some(&|| waiting(&dir)))?.update(&[], &UpdateOptions::default(), &|_| {})?;
    for (path, trouble) in &report.troubles {
        complain(&format!("{}: {trouble}", path.display()));
    }
    Ok(outcome)
}

/// The directory of the folder in the message's tree.
fn target_of(searcher: &Searcher, message: &FoundMessage, folder: &str) -> Result<PathBuf, Failure> {
    let wanted = folder.trim_matches('/');
    let roots = &searcher.directory().roots;
    let root = roots.iter().filter(|root| message.path.starts_with(root)).max_by_key(|root| root.as_os_str().len());
    let root = root.ok_or_else(|| format!("{}: not in any tree of the index", message.path.display()))?;
    let is_known = |name: &str| {
        let mut folders = searcher.directory().folders.iter();
        folders.any(|known| known.path == name && known.present && roots[known.root as usize] == *root)
    };
    // `Lists/Rust` is in a Maildir++ `.Lists.Rust`.
    let names = [wanted.to_owned(), format!(".{}", wanted.replace('/', "."))];
    match names.iter().find(|name| is_known(name)) {
        Some(name) => Ok(root.join(name)),
        None => {
            let why = "`posthaste info --folders` lists them";
            Err(format!("there is no folder `/{wanted}` in {}; {why}", root.display()).into())
        }
    }
}

/// Open Maildirs, so that each is synced once.
#[derive(Default)]
struct Open {
    maildirs: HashMap<PathBuf, Maildir>,
    /// Keys taken in the Maildirs that messages are moved to.
    taken: HashMap<PathBuf, TakenKeys>,
}

impl Open {
    fn at(&mut self, path: &Path) -> io::Result<&Maildir> {
        if !self.maildirs.contains_key(path) {
            // Other programs make folders with `cur/` alone. One that has gone is not made again.
            std::fs::metadata(path)?;
            self.maildirs.insert(path.to_owned(), Maildir::open_or_create(path)?);
        }
        Ok(&self.maildirs[path])
    }

    /// The letter of a keyword; one without a letter gets one.
    fn keyword(&mut self, path: &Path, keyword: &str) -> io::Result<Flags> {
        let maildir = self.at(path)?;
        unlocked(|| maildir.keyword_flag(keyword, SystemTime::now())).map_err(|error| match error.kind() {
            io::ErrorKind::QuotaExceeded => io::Error::other(format!(
                "the folder has all {KEYWORDS_MAX} keywords that it can have: take `{keyword}` out of `new_keywords`, so that it is a tag of the index only"
            )),
            _ => error,
        })
    }
}

/// Retries while another program briefly holds the lock of the folder's lists.
fn unlocked<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let started = Instant::now();
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if started.elapsed() > LOCKED_MAX {
                    return Err(io::Error::other(
                        "another program has locked the folder's keywords (dovecot-uidlist.lock)",
                    ));
                }
                thread::sleep(LOCKED_PAUSE);
            }
            done => return done,
        }
    }
}

/// Longest wait for the lock of a folder's lists.
const LOCKED_MAX: Duration = Duration::from_secs(10);
const LOCKED_PAUSE: Duration = Duration::from_millis(20);

/// Changes one message, and returns its new path; `None` if it stays in its place.
fn one(open: &mut Open, task: &Task, target: Option<&Path>, dry_run: bool) -> io::Result<Option<PathBuf>> {
    let &Task { message, mut add, mut remove, .. } = task;
    let invalid = || io::Error::from(io::ErrorKind::InvalidFilename);
    let name = message.path.file_name().and_then(|name| name.to_str()).ok_or_else(invalid)?;
    let sub = message.path.parent().ok_or_else(invalid)?;
    let home = sub.parent().ok_or_else(invalid)?;
    let is_new = sub.file_name().is_some_and(|name| name == "new");
    let mut found =
        Found { dir: if is_new { Subdir::New } else { Subdir::Cur }, name: name.to_owned(), size: message.size };
    let flags = Flags::of_name(name);
    for keyword in task.add_keywords {
        add = add.with(open.keyword(home, keyword)?);
    }
    for keyword in task.remove_keywords {
        remove = remove.with(open.at(home)?.keywords()?.flags(keyword));
    }
    // In `new/` a message is not seen, whatever its name says.
    let changes_flags = flags.with(add).without(remove) != flags || is_new && add.contains(Flags::SEEN);
    let target = target.filter(|target| *target != home);
    if !changes_flags && target.is_none() {
        return Ok(None);
    }
    if dry_run {
        let base = name.split(':').next().unwrap_or(name);
        let (dir, name) = if changes_flags {
            (Subdir::Cur, format!("{base}:2,{}", flags.with(add).without(remove)))
        } else {
            (found.dir, name.to_owned())
        };
        return Ok(Some(target.unwrap_or(home).join(dir.as_str()).join(name)));
    }
    if changes_flags {
        found = open.at(home)?.change_flags(&found, add, remove)?;
    }
    if let Some(target) = target {
        // Both are open, so that both are synced.
        open.at(target)?;
        open.at(home)?;
        let there = &open.maildirs[target];
        let taken = match open.taken.entry(target.to_owned()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(empty) => empty.insert(there.keys()?),
        };
        let from = &open.maildirs[home];
        found = unlocked(|| from.move_to(&found, there, taken))?;
    }
    Ok(Some(target.unwrap_or(home).join(found.dir.as_str()).join(found.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_written_with_signs() {
        let check = |text: &str, expected: Option<(&str, &str)>| {
            let found = parse_flags(text).ok().map(|(add, remove)| (add.to_string(), remove.to_string()));
            assert_eq!(found, expected.map(|(add, remove)| (add.to_owned(), remove.to_owned())), "{text}");
        };
        check("+S", Some(("S", "")));
        check("+SF-T", Some(("FS", "T")));
        check("-S+R", Some(("R", "S")));
        for wrong in ["", "S", "+", "+x", "+s", "+N"] {
            check(wrong, None);
        }
    }
}
