//! Finds the folders of a tree and their modification times.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};

use crate::dirs::{Identity, identity};
use crate::maildir::Subdir;

/// Bytes of directory entries fetched at once. The kernel fills as much as fits; above this, nothing was gained.
const BUFFER_BYTES: usize = 256 * 1024;
/// Directories nested deeper than this are skipped as broken.
const DEPTH_MAX: usize = 64;
/// Minimum age of a change before its mtime can be trusted. Within one tick of the file system's clock, up to two
/// seconds, a directory may change again with the same mtime.
const SETTLE: Duration = Duration::from_secs(2);

/// Directories to enter.
#[derive(Debug, Clone, Default)]
pub struct TreeOptions {
    /// Also look below directories that hold a file `.noupdate`.
    pub into_noupdate: bool,
}

/// Error of listing a tree. Errors below the root are in [`MailTree::troubles`] instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The root is missing or no directory. This says nothing about its messages, least of all that they are gone.
    #[error("{}: {error}", root.display())]
    Root {
        /// The root as given.
        root: PathBuf,
        /// Error of the system call.
        error: io::Error,
    },
}

/// A walked tree.
#[derive(Debug, Default)]
pub struct MailTree {
    /// Folders, sorted by path.
    pub folders: Vec<Folder>,
    /// All directories entered, the root first, without `new/` and `cur/`: places where folders may come and go.
    pub directories: Vec<PathBuf>,
    /// Paths (as in [`Folder::path`]) of subtrees with `.noupdate`, which were skipped.
    pub frozen: Vec<String>,
    /// Directories that could not be read. Their content is unknown, not gone.
    pub troubles: Vec<(String, io::Error)>,
}

/// A directory with `new/` or `cur/`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Folder {
    /// Relative to the root, without a slash at either end; empty for the root itself.
    pub path: String,
    /// Absolute, or relative to the working directory as the root was given.
    pub dir: PathBuf,
    /// State of `new/`, if there is one.
    pub new: Option<Stamp>,
    /// State of `cur/`, if there is one.
    pub cur: Option<Stamp>,
}

/// Identity and time of change of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Inode number; another directory put in its place is a change.
    pub inode: u64,
    /// Nanoseconds since 1970.
    pub mtime_ns: i64,
}

impl Stamp {
    pub(crate) fn of(stat: &Stat) -> Self {
        let nanos = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
        Self { inode: stat.st_ino, mtime_ns: stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(nanos) }
    }

    /// True if the directory was at rest when examined: only then does the same stamp later mean the same content.
    ///
    /// `looked_at` is a time before the directory was opened.
    pub fn is_settled(self, looked_at: SystemTime) -> bool {
        self.is_older_than(SETTLE, looked_at)
    }

    /// True if the last change was more than `age` before `looked_at`.
    pub fn is_older_than(self, age: Duration, looked_at: SystemTime) -> bool {
        let before = looked_at.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(age);
        i128::from(self.mtime_ns) < i128::try_from(before.as_nanos()).unwrap_or(0)
    }
}

/// Finds all folders below `root`.
///
/// Skips directories that contain `.noindex`, `tmp`, `dovecot*`, `.notmuch`, `.nnmaildir`, `.mu`, `.git`, and names
/// that begin with `#` or `.#`.
///
/// # Errors
/// [`TreeError::Root`].
pub fn walk(root: &Path, options: &TreeOptions) -> Result<MailTree, TreeError> {
    let error = |error| TreeError::Root { root: root.to_owned(), error };
    let dir = open_dir(CWD, root).map_err(error)?;
    let mut walker = Walker {
        options,
        tree: MailTree::default(),
        visited: HashSet::new(),
        buffer: Vec::with_capacity(BUFFER_BYTES),
    };
    walker.directory(&dir, root, "", 0).map_err(error)?;
    walker.tree.folders.sort_unstable();
    Ok(walker.tree)
}

struct Walker<'a> {
    options: &'a TreeOptions,
    tree: MailTree,
    /// Every directory seen: symbolic links can form cycles.
    visited: HashSet<Identity>,
    buffer: Vec<u8>,
}

impl Walker<'_> {
    fn directory(&mut self, dir: &OwnedFd, at: &Path, path: &str, depth: usize) -> io::Result<()> {
        let stat = rustix::fs::fstat(dir)?;
        if depth > DEPTH_MAX || !self.visited.insert(identity(&stat)) {
            return Ok(());
        }
        self.tree.directories.push(at.to_owned());
        let mut inside = Inside::default();
        entries(dir, &mut self.buffer, |name, kind, _| inside.note(name, kind))?;
        if inside.noindex {
            return Ok(());
        }
        if inside.noupdate && !self.options.into_noupdate {
            self.tree.frozen.push(path.to_owned());
            return Ok(());
        }
        if inside.maildir {
            let folder =
                Folder { path: path.to_owned(), dir: at.to_owned(), new: stamp(dir, "new")?, cur: stamp(dir, "cur")? };
            if folder.new.is_some() || folder.cur.is_some() {
                self.tree.folders.push(folder);
            }
        }
        // A folder has its own name, not that of a link beside it.
        inside.below.sort_unstable_by(|(a, a_is_link), (b, b_is_link)| (a_is_link, a).cmp(&(b_is_link, b)));
        for (name, is_link) in inside.below {
            let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            match open_dir(dir, Path::new(&name)) {
                Ok(opened) => {
                    if let Err(e) = self.directory(&opened, &at.join(&name), &below, depth + 1) {
                        self.tree.troubles.push((below, e));
                    }
                }
                // A link to a file, or to nothing; or gone since it was listed.
                Err(e) if is_link || e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => self.tree.troubles.push((below, e)),
            }
        }
        Ok(())
    }
}

/// Entries of a directory that matter to the walk.
#[derive(Default)]
struct Inside {
    noindex: bool,
    noupdate: bool,
    maildir: bool,
    /// Directories to enter, with true for symbolic links.
    below: Vec<(String, bool)>,
}

impl Inside {
    fn note(&mut self, name: &CStr, kind: FileType) {
        let Ok(name) = name.to_str() else { return };
        match name {
            "." | ".." | "tmp" => return,
            ".noindex" => self.noindex = true,
            ".noupdate" => self.noupdate = true,
            "new" | "cur" => {
                self.maildir = true;
                return;
            }
            _ => {}
        }
        let may_be_dir = matches!(kind, FileType::Directory | FileType::Symlink | FileType::Unknown);
        if may_be_dir && !is_furniture(name) {
            self.below.push((name.to_owned(), kind != FileType::Directory));
        }
    }
}

/// True for files and directories of mail programs that are not folders.
fn is_furniture(name: &str) -> bool {
    name.starts_with("dovecot")
        || name.starts_with('#')
        || name.starts_with(".#")
        || matches!(
            name,
            ".notmuch" | ".nnmaildir" | ".mu" | ".git" | ".mbsyncstate" | ".uidvalidity" | "hcache" | ".header_cache"
        )
}

impl Folder {
    /// Lists the messages of `new/` or `cur/`: `each(name, inode)`, in the directory's own order.
    ///
    /// Skips names that begin with a dot or are not UTF-8, and all but regular files and links to them. No file is
    /// looked at, except links and on file systems that do not tell an entry's type. A file renamed meanwhile may come
    /// twice or not at all.
    ///
    /// # Errors
    /// Errors of `open` and `getdents`; a missing directory has no messages.
    pub fn for_each_name(&self, subdir: Subdir, mut each: impl FnMut(&str, u64)) -> io::Result<()> {
        let dir = match open_dir(CWD, &self.dir.join(subdir.as_str())) {
            Ok(dir) => dir,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        };
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        entries(&dir, &mut buffer, |name, kind, inode| {
            let is_file = match kind {
                FileType::RegularFile => true,
                FileType::Symlink | FileType::Unknown => is_file(&dir, name),
                _ => false,
            };
            if let (true, Ok(name)) = (is_file, name.to_str())
                && !name.starts_with('.')
            {
                each(name, inode);
            }
        })
    }
}

/// The letters after the separator and `2,`. The separator is `:` by the Maildir standard, and `;` or `!` where a file
/// system forbids `:`.
pub fn flag_letters_of(name: &str) -> &str {
    separator(name).and_then(|at| name[at + 1..].strip_prefix("2,")).unwrap_or("")
}

/// The constant part of a file name: everything before the flags and the first comma.
pub fn key_of_name(name: &str) -> &str {
    let base = separator(name).map_or(name, |at| &name[..at]);
    base.split(',').next().unwrap_or(base)
}

fn separator(name: &str) -> Option<usize> {
    name.rfind([':', ';', '!']).filter(|&at| name[at + 1..].starts_with("2,"))
}

fn is_file(dir: &OwnedFd, name: &CStr) -> bool {
    rustix::fs::statat(dir, name, AtFlags::empty())
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

fn stamp(dir: &OwnedFd, name: &str) -> io::Result<Option<Stamp>> {
    match rustix::fs::statat(dir, name, AtFlags::empty()) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => Ok(Some(Stamp::of(&stat))),
        Ok(_) | Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

pub(super) fn open_dir(at: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, path, flags, Mode::empty())?)
}

fn entries(dir: &OwnedFd, buffer: &mut Vec<u8>, mut each: impl FnMut(&CStr, FileType, u64)) -> io::Result<()> {
    let space: &mut [MaybeUninit<u8>] = buffer.spare_capacity_mut();
    let mut entries = RawDir::new(dir, space);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        each(entry.file_name(), entry.file_type(), entry.ino());
    }
    Ok(())
}
