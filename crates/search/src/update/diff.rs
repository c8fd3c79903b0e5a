//! Compares the trees with the index by names alone.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use posthaste_maildir::Subdir;
use posthaste_maildir::tree::{FileFacts, Folder, MailTree, Stamp, flag_letters_of, key_of_name, look_up};

use super::listing::{self, Name};
use super::{Report, UpdateOptions};
use crate::state::{FolderState, IndexDirectory, Record, Seen, StateWriter, bits};

/// A file unknown under this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Index into the directory's folders.
    pub folder: u32,
    pub is_new: bool,
    pub name: String,
    pub inode: u64,
}

impl Candidate {
    fn new(folder: usize, subdir: Subdir, name: String, inode: u64) -> Self {
        let folder = u32::try_from(folder).expect("fewer than 2^32 folders");
        Self { folder, is_new: subdir == Subdir::New, name, inode }
    }

    /// The flags, derived from name and directory.
    pub fn flags(&self) -> u64 {
        bits::letters(flag_letters_of(&self.name)) | if self.is_new { bits::NEW } else { 0 }
    }
}

/// A known message under a new name in its folder.
#[derive(Debug)]
pub(super) struct Rename {
    pub number: u32,
    pub flags: u64,
    pub name: String,
}

/// Stamps of `new/` and `cur/`.
pub(super) type Stamps = (Option<Seen>, Option<Seen>);

/// Work list of one update.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub renamed: Vec<Rename>,
    /// In inode order.
    pub added: Vec<Candidate>,
    /// Numbers of messages that are not in their place.
    pub missing: Vec<u32>,
    /// Stamps of listed folders, stored once all is done.
    pub settled: Vec<(usize, Stamps)>,
}

/// File names that may have come, gone or changed, by directory.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Touched {
    by_folder: BTreeMap<PathBuf, BTreeSet<String>>,
    names: usize,
}

impl Touched {
    /// Adds a name in `new/` or `cur/` of the folder in `dir`.
    pub fn add(&mut self, dir: &std::path::Path, name: &str) {
        let names = match self.by_folder.get_mut(dir) {
            Some(names) => names,
            None => self.by_folder.entry(dir.to_owned()).or_default(),
        };
        if !names.contains(name) {
            self.names += usize::from(names.insert(name.to_owned()));
        }
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.names
    }

    /// True if there is no name.
    pub fn is_empty(&self) -> bool {
        self.names == 0
    }
}

/// Lists the changes. Adds new folders to the directory; changes nothing else.
pub(super) fn compare(
    state: &mut StateWriter,
    trees: &[MailTree],
    options: &UpdateOptions,
    looked_at: SystemTime,
    report: &mut Report,
) -> Changes {
    let mut known: HashMap<(u32, String), usize> = HashMap::new();
    for (index, folder) in state.directory.folders.iter().enumerate() {
        known.insert((folder.root, folder.path.clone()), index);
    }
    let mut changes = Changes::default();
    let mut found = HashSet::new();
    let mut to_list: Vec<(usize, &Folder)> = Vec::new();
    for (root, tree) in (0u32..).zip(trees) {
        let root_path = state.directory.roots[root as usize].clone();
        report.folders += tree.folders.len();
        // Joined with nothing a path would end in a slash.
        let place = |path: &String| if path.is_empty() { root_path.clone() } else { root_path.join(path) };
        report.troubles.extend(tree.troubles.iter().map(|(path, error)| (place(path), error.to_string())));
        for folder in &tree.folders {
            let folders = &mut state.directory.folders;
            let index = *known.entry((root, folder.path.clone())).or_insert_with(|| {
                folders.push(FolderState { root, path: folder.path.clone(), present: true, ..FolderState::default() });
                folders.len() - 1
            });
            found.insert(index);
            let state = &mut state.directory.folders[index];
            state.present = true;
            if options.list_all || options.check_files || !is_at_rest(state, folder) {
                to_list.push((index, folder));
            }
        }
    }
    let gone: Vec<usize> = (0..state.directory.folders.len())
        .filter(|index| !found.contains(index) && !is_unknown(&state.directory.folders[*index], trees))
        .collect();
    gone.iter().for_each(|index| state.directory.folders[*index].present = false);
    let by_folder = numbers_by_folder(state, to_list.iter().map(|(index, _)| *index).chain(gone.iter().copied()));
    for index in gone {
        changes.missing.extend(&by_folder[&index]);
    }
    listing::each(&to_list, options, |index, folder, listed| {
        report.listed += 2;
        match listed {
            Err(error) => report.troubles.push((folder.dir.clone(), error.to_string())),
            Ok(names) => {
                let known = KnownFolder::new(state.records(), &by_folder[&index]);
                let listed = names.into_iter().map(|name| known.listed(index, name)).collect();
                known.tell_apart(listed, &mut changes);
                let settled = |stamp: Option<Stamp>| {
                    stamp.filter(|stamp| stamp.is_settled(looked_at)).map(|stamp| Seen(stamp.inode, stamp.mtime_ns))
                };
                changes.settled.push((index, (settled(folder.new), settled(folder.cur))));
            }
        }
    });
    changes.added.sort_unstable_by_key(|candidate| candidate.inode);
    changes
}

/// True if nothing was added, removed or renamed in a folder since it was listed.
fn is_at_rest(state: &FolderState, folder: &Folder) -> bool {
    let same = |seen: Option<Seen>, stamp: Option<Stamp>| match (seen, stamp) {
        (Some(seen), Some(stamp)) => seen == Seen(stamp.inode, stamp.mtime_ns),
        (None, None) => true,
        _ => false,
    };
    same(state.new, folder.new) && same(state.cur, folder.cur)
}

/// True if the folder is below something unreadable or frozen: its messages are unknown, not gone.
fn is_unknown(folder: &FolderState, trees: &[MailTree]) -> bool {
    let tree = &trees[folder.root as usize];
    let is_below = |above: &str| {
        above.is_empty() || folder.path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    tree.frozen.iter().any(|path| is_below(path)) || tree.troubles.iter().any(|(path, _)| is_below(path))
}

/// True if the trees hold exactly the known folders and, unless `at_any_time`, their directories still have the
/// recorded stamps. `trees` are those of all roots, in order.
pub(super) fn has_same_folders(directory: &IndexDirectory, trees: &[MailTree], at_any_time: bool) -> bool {
    let known: HashMap<(u32, &str), &FolderState> =
        directory.folders.iter().map(|folder| ((folder.root, folder.path.as_str()), folder)).collect();
    let mut found = 0;
    for (root, tree) in (0u32..).zip(trees) {
        if !tree.troubles.is_empty() || !tree.frozen.is_empty() {
            return false;
        }
        for folder in &tree.folders {
            let is_same = |state: &&FolderState| state.present && (at_any_time || is_at_rest(state, folder));
            if !known.get(&(root, folder.path.as_str())).is_some_and(is_same) {
                return false;
            }
            found += 1;
        }
    }
    found == directory.folders.iter().filter(|folder| folder.present).count()
}

fn numbers_by_folder(state: &StateWriter, folders: impl Iterator<Item = usize>) -> HashMap<usize, Vec<u32>> {
    let mut by_folder: HashMap<usize, Vec<u32>> = folders.map(|index| (index, Vec::new())).collect();
    if by_folder.is_empty() {
        return by_folder;
    }
    for (number, record) in (0u32..).zip(state.records()) {
        if record.flags & bits::GONE == 0
            && let Some(numbers) = by_folder.get_mut(&(record.folder as usize))
        {
            numbers.push(number);
        }
    }
    by_folder
}

/// Compares only the names that were seen to change; lists nothing. `None` if one is in an unknown folder.
pub(super) fn compare_touched(state: &StateWriter, touched: &Touched, report: &mut Report) -> Option<Changes> {
    let directory = &state.directory;
    let by_dir: HashMap<PathBuf, usize> = (0..directory.folders.len())
        .filter(|&index| directory.folders[index].present)
        .map(|index| (folder_dir(directory, index), index))
        .collect();
    let mut folders = Vec::new();
    for (dir, names) in &touched.by_folder {
        folders.push((*by_dir.get(dir)?, dir, names));
    }
    let mut by_folder = numbers_by_folder(state, folders.iter().map(|(index, ..)| *index));
    let mut changes = Changes::default();
    for (index, dir, names) in folders {
        let keys: HashSet<&str> = names.iter().map(|name| key_of_name(name)).collect();
        let mut numbers = by_folder.remove(&index).unwrap_or_default();
        numbers.retain(|&number| keys.contains(key_of_name(&state.records()[number as usize].name)));
        let known = KnownFolder::new(state.records(), &numbers);
        // What the index knows under these keys is looked at too: of a name that moved on we may have seen the old one only.
        let mut all = names.clone();
        all.extend(numbers.iter().map(|&number| state.records()[number as usize].name.clone()));
        match look_at(dir, index, &all, &known) {
            Ok(listed) => known.tell_apart(listed, &mut changes),
            Err(error) => report.troubles.push((dir.clone(), error.to_string())),
        }
    }
    report.folders = directory.folders.iter().filter(|folder| folder.present).count();
    changes.added.sort_unstable_by_key(|candidate| candidate.inode);
    Some(changes)
}

fn folder_dir(directory: &IndexDirectory, index: usize) -> PathBuf {
    let folder = &directory.folders[index];
    directory.roots[folder.root as usize].join(&folder.path)
}

fn look_at(
    dir: &std::path::Path,
    index: usize,
    names: &BTreeSet<String>,
    known: &KnownFolder<'_>,
) -> io::Result<Vec<Listed>> {
    let mut listed = Vec::new();
    for subdir in [Subdir::New, Subdir::Cur] {
        for (name, facts) in look_up(&dir.join(subdir.as_str()), names.iter().map(String::as_str))? {
            listed.push(known.listed(index, Name { subdir, name, inode: facts.inode, facts: Some(facts) }));
        }
    }
    Ok(listed)
}

/// A file found, and whether it is known with another size or time.
struct Listed {
    candidate: Candidate,
    is_rewritten: bool,
}

/// The index's records of one folder, by the constant part of the file name.
struct KnownFolder<'a> {
    records: &'a [Record],
    by_key: HashMap<&'a str, Vec<u32>>,
}

impl<'a> KnownFolder<'a> {
    fn new(records: &'a [Record], numbers: &[u32]) -> Self {
        let mut by_key: HashMap<&str, Vec<u32>> = HashMap::with_capacity(numbers.len());
        for &number in numbers {
            by_key.entry(key_of_name(&records[number as usize].name)).or_default().push(number);
        }
        Self { records, by_key }
    }

    fn listed(&self, index: usize, Name { subdir, name, inode, facts }: Name) -> Listed {
        let is_rewritten = facts.is_some_and(|facts| self.is_rewritten(&name, facts));
        Listed { candidate: Candidate::new(index, subdir, name, inode), is_rewritten }
    }

    fn is_rewritten(&self, name: &str, facts: FileFacts) -> bool {
        let same_key = self.by_key.get(key_of_name(name)).into_iter().flatten();
        let mut same_name = same_key.map(|&number| &self.records[number as usize]).filter(|record| record.name == name);
        same_name.next().is_some_and(|record| (record.size, record.mtime_ns) != (facts.size, facts.mtime_ns))
    }

    /// Classifies the files as unchanged, renamed, rewritten or new, and finds the missing messages.
    fn tell_apart(mut self, listed: Vec<Listed>, changes: &mut Changes) {
        // Exact names first, so that of two files with one key the known one stays itself.
        let mut rest = Vec::new();
        for Listed { candidate, is_rewritten } in listed {
            let flags = candidate.flags();
            let same = |number: &u32| {
                let record = &self.records[*number as usize];
                record.name == candidate.name && record.flags & bits::MUTABLE == flags
            };
            let numbers = self.by_key.get_mut(key_of_name(&candidate.name));
            match numbers.and_then(|numbers| numbers.iter().position(same).map(|at| numbers.swap_remove(at))) {
                Some(number) if is_rewritten => {
                    changes.missing.push(number);
                    changes.added.push(candidate);
                }
                Some(_) => {}
                None => rest.push(candidate),
            }
        }
        for candidate in rest {
            match self.by_key.get_mut(key_of_name(&candidate.name)).and_then(Vec::pop) {
                Some(number) => changes.renamed.push(Rename { number, flags: candidate.flags(), name: candidate.name }),
                None => changes.added.push(candidate),
            }
        }
        changes.missing.extend(self.by_key.into_values().flatten());
    }
}
