//! Mail in files of other programs: a Maildir with its folders, a directory of `.eml` files, an mbox file.
//!
//! The owner of these files may have placed links, and root may be reading. So below the named path no link is
//! followed, and only regular files are read.

use std::ffi::{CStr, CString};
use std::fs::{File, Metadata};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use posthaste_maildir::{Flags, FolderName, Keywords, Maildir, UniqueName, keywords_at};
use posthaste_mailstore::{FileForm, MailboxName, SEPARATOR, mailbox_of_folder};
use posthaste_message::DateTime;
use posthaste_message::mbox::MboxReader;
use posthaste_message::mime::Message;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, unlinkat};

use crate::terminal::harmless;

/// Octets of one read.
const PIECE_BYTES: usize = 64 << 10;
/// Octets at the start of a message that are searched for the field `Date`.
const HEAD_BYTES: usize = 64 << 10;
const LEVELS_MAX: usize = 10;

/// Mail to import.
pub enum Source {
    /// Directories with their messages, in the order of names.
    Folders(Vec<SourceFolder>),
    /// An mbox file.
    Mbox(PathBuf),
}

/// Messages for one mailbox.
pub struct SourceFolder {
    /// Name below the given mailbox; empty for that mailbox.
    pub levels: String,
    /// The messages.
    pub files: Vec<SourceFile>,
    /// True for a Maildir folder, which is made even without messages.
    is_maildir: bool,
}

/// A message in a file of its own.
pub struct SourceFile {
    dir: Arc<SourceDir>,
    name: CString,
    is_maildir: bool,
}

struct SourceDir {
    fd: OwnedFd,
    path: PathBuf,
    keywords: Arc<Keywords>,
}

/// Counts entries that are not mail, and reports the first ones.
#[derive(Default)]
pub struct LeftOut {
    pub count: u64,
}

impl LeftOut {
    pub fn tell(&mut self, path: &Path, why: &dyn std::fmt::Display) {
        self.count += 1;
        if self.count <= TOLD_MAX {
            crate::terminal::complain(&format!("{}: {why}", harmless(&path.to_string_lossy())));
        } else if self.count == TOLD_MAX + 1 {
            crate::terminal::complain("further ones are only counted");
        }
    }
}

const TOLD_MAX: u64 = 20;

impl Source {
    /// Determines the kind of the path, and lists its messages.
    ///
    /// # Errors
    /// It cannot be read, or is of no known kind.
    pub fn find(path: &Path, left_out: &mut LeftOut) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        if metadata.is_file() {
            return if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("eml")) {
                Ok(Self::Folders(vec![SourceFolder::of_one(path)?]))
            } else {
                Ok(Self::Mbox(path.to_owned()))
            };
        }
        if !metadata.is_dir() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is neither a directory nor a regular file"));
        }
        let top = OwnedFd::from(File::open(path)?);
        let mut folders = Vec::new();
        let listed = entries(&top)?;
        for (name, kind) in &listed {
            maildir_folder(&top, path, name, *kind, left_out, &mut folders);
        }
        directory(&top, listed, path, &mut Vec::new(), left_out, &mut folders)?;
        if left_out.count == 0 && folders.iter().all(|folder| folder.files.is_empty() && !folder.is_maildir) {
            let why = "there is no mail in it: neither `cur` and `new` of a Maildir, nor files with names in .eml";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        folders.sort_by(|a, b| a.levels.cmp(&b.levels));
        Ok(Self::Folders(folders))
    }
}

impl SourceFolder {
    /// A single message. Links up to it are followed, as its path was named.
    fn of_one(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let fd = OwnedFd::from(File::open(dir)?);
        let name = CString::new(name.as_encoded_bytes())?;
        let dir = Arc::new(SourceDir { fd, path: dir.to_owned(), keywords: Arc::default() });
        let files = vec![SourceFile { dir, name, is_maildir: false }];
        Ok(Self { levels: String::new(), files, is_maildir: false })
    }
}

/// Seconds since 1970; earlier times become 0.
pub fn since_1970(secs: i64) -> u64 {
    u64::try_from(secs).unwrap_or(0)
}

/// A folder of a Maildir, if the entry is one.
fn maildir_folder(
    top: &OwnedFd,
    path: &Path,
    name: &CStr,
    kind: FileType,
    left_out: &mut LeftOut,
    folders: &mut Vec<SourceFolder>,
) {
    let text = name.to_string_lossy();
    let Some(folder) = text.strip_prefix('.').filter(|rest| !matches!(*rest, "" | ".")) else { return };
    let at = path.join(&*text);
    if kind == FileType::Symlink && openat(top, name, DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty()).is_ok() {
        return left_out.tell(&at, &"it is a link, which is not followed");
    }
    let Ok(fd) = openat(top, name, DIRECTORY, Mode::empty()) else { return };
    let has = |sub: &str| openat(&fd, sub, DIRECTORY, Mode::empty()).is_ok();
    if !has("cur") && !has("new") {
        return;
    }
    let levels = FolderName::parse(folder).ok().and_then(|folder| mailbox_of_folder(&folder));
    let Some(levels) = levels.filter(|levels| !levels.is_inbox() && name.to_str().is_ok()) else {
        return left_out.tell(&at, &"its name is not allowed for a mailbox");
    };
    if let Err(error) = maildir(&fd, &at, levels.to_string(), left_out, folders) {
        left_out.tell(&at, &error);
    }
}

fn maildir(
    dir: &OwnedFd,
    path: &Path,
    levels: String,
    left_out: &mut LeftOut,
    folders: &mut Vec<SourceFolder>,
) -> io::Result<()> {
    let keywords = keywords_at(dir).unwrap_or_else(|error| {
        left_out.tell(&path.join("dovecot-keywords"), &error);
        Keywords::default()
    });
    let keywords = Arc::new(keywords);
    let mut files = Vec::new();
    for sub in ["cur", "new"] {
        let path = path.join(sub);
        let fd = match openat(dir, sub, DIRECTORY, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => continue,
            Ok(fd) => fd,
            Err(error) => {
                left_out.tell(&path, &io::Error::from(error));
                continue;
            }
        };
        let listed = entries(&fd);
        let dir = Arc::new(SourceDir { fd, path, keywords: Arc::clone(&keywords) });
        match listed {
            Ok(listed) => files.extend(listed.into_iter().filter_map(|(name, _)| {
                // Programs keep files of their own there.
                (!name.to_bytes().starts_with(b".")).then(|| SourceFile {
                    dir: Arc::clone(&dir),
                    name,
                    is_maildir: true,
                })
            })),
            Err(error) => left_out.tell(&dir.path, &error),
        }
    }
    files.sort_by_cached_key(|file| (file.secs(), file.name.clone()));
    folders.push(SourceFolder { levels, files, is_maildir: true });
    Ok(())
}

/// A Maildir, or files named `.eml`; directories below it become mailboxes.
fn directory(
    dir: &OwnedFd,
    listed: Entries,
    path: &Path,
    levels: &mut Vec<String>,
    left_out: &mut LeftOut,
    folders: &mut Vec<SourceFolder>,
) -> io::Result<()> {
    let may_be_directory = |kind: FileType| matches!(kind, FileType::Directory | FileType::Unknown);
    let is_maildir =
        listed.iter().any(|(name, kind)| matches!(name.to_bytes(), b"cur" | b"new") && may_be_directory(*kind));
    let mut files = Vec::new();
    let mut below = Vec::new();
    let shared = Arc::new(SourceDir { fd: dir.try_clone()?, path: path.to_owned(), keywords: Arc::default() });
    for (name, kind) in listed {
        let octets = name.to_bytes();
        if octets.starts_with(b".") || is_maildir && matches!(octets, b"cur" | b"new" | b"tmp") {
            continue;
        }
        if !is_maildir && octets.to_ascii_lowercase().ends_with(b".eml") {
            files.push(SourceFile { dir: Arc::clone(&shared), name, is_maildir: false });
        } else if may_be_directory(kind) {
            below.push(name);
        }
    }
    if is_maildir {
        maildir(dir, path, levels.join("/"), left_out, folders)?
    } else {
        files.sort_by(|a, b| a.name.cmp(&b.name));
        folders.push(SourceFolder { levels: levels.join("/"), files, is_maildir: false });
    }
    for name in below {
        let text = name.to_string_lossy().into_owned();
        let at = path.join(&text);
        let fd = match openat(dir, &*name, DIRECTORY, Mode::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOTDIR) => continue,
            Err(error) => {
                left_out.tell(&at, &io::Error::from(error));
                continue;
            }
        };
        if levels.len() == LEVELS_MAX || MailboxName::parse(&text).is_err() || text.contains(SEPARATOR) {
            left_out.tell(&at, &"its name is not allowed for a mailbox, or it lies too deep");
            continue;
        }
        levels.push(text);
        let found = entries(&fd).and_then(|listed| directory(&fd, listed, &at, levels, left_out, folders));
        levels.pop();
        if let Err(error) = found {
            left_out.tell(&at, &error);
        }
    }
    Ok(())
}

type Entries = Vec<(CString, FileType)>;

fn entries(dir: &OwnedFd) -> io::Result<Entries> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            found.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    Ok(found)
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl SourceFile {
    /// Path of the message, for error texts.
    pub fn path(&self) -> PathBuf {
        self.dir.path.join(&*self.name.to_string_lossy())
    }

    /// Identifies the message, whatever its flags.
    pub fn key(&self) -> Vec<u8> {
        let name = self.name.to_bytes();
        if self.is_maildir {
            name.split(|byte| matches!(byte, b',' | b':')).next().unwrap_or(name).to_owned()
        } else {
            name.to_owned()
        }
    }

    fn unique(&self) -> Option<UniqueName> {
        UniqueName::parse(self.name.to_str().ok()?).filter(|_| self.is_maildir)
    }

    fn secs(&self) -> u64 {
        self.unique().and_then(|name| name.secs()).unwrap_or(0)
    }

    /// Flags of the message, by their IMAP names.
    pub fn flags(&self) -> Vec<String> {
        let letters = self.unique().map_or(Flags::NONE, |name| Flags::of_name(name.as_str()));
        let system = [
            (Flags::SEEN, "\\Seen"),
            (Flags::REPLIED, "\\Answered"),
            (Flags::FLAGGED, "\\Flagged"),
            (Flags::TRASHED, "\\Deleted"),
            (Flags::DRAFT, "\\Draft"),
            (Flags::PASSED, "$Forwarded"),
        ];
        let system = system.iter().filter(|(flag, _)| letters.contains(*flag)).map(|(_, name)| *name);
        system.chain(self.dir.keywords.names(letters)).map(str::to_owned).collect()
    }

    fn open_file(&self) -> io::Result<(File, Metadata)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = match openat(&self.dir.fd, &*self.name, flags, Mode::empty()) {
            Err(rustix::io::Errno::LOOP) => return Err(io::Error::other("it is a link, which is not followed")),
            opened => File::from(opened?),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        Ok((file, metadata))
    }

    /// Opens the file.
    ///
    /// # Errors
    /// It is a link, a pipe or the like, or cannot be read.
    pub fn open(&self) -> io::Result<Text> {
        let (file, metadata) = self.open_file()?;
        if let Some(form) = unreadable_form(&file)? {
            return Err(io::Error::other(format!(
                "it is {form}: let the program that wrote it write it as plain text"
            )));
        }
        let size = metadata.len();
        let named = self.unique().filter(|name| name.disk_size() == Some(size));
        let form = match named.and_then(|name| name.is_verbatim()) {
            Some(true) => FileForm::Verbatim,
            Some(false) => FileForm::Lines { replaces_nul: false },
            None => FileForm::Lines { replaces_nul: true },
        };
        let date = self.is_maildir.then(|| since_1970(metadata.mtime()));
        // A server that has the file sends the same octets, with the same date.
        let is_same = self.is_maildir && form == FileForm::Lines { replaces_nul: true };
        let is_same = is_same && u32::try_from(metadata.mtime()).is_ok();
        let read = is_same.then(|| ReadFile::of(&metadata));
        Ok(Text { pieces: Pieces::File(file), form, after_cr: false, date, read })
    }

    /// Gives an unchanged file a name in `tmp/` of a mailbox, if possible.
    ///
    /// # Errors
    /// Errors of `open` and `link`.
    pub fn link_to(&self, maildir: &Maildir, tmp_name: &str, read: &ReadFile) -> io::Result<bool> {
        let (file, metadata) = self.open_file()?;
        Ok(ReadFile::of(&metadata) == *read && maildir.adopt_tmp(&file, tmp_name)?)
    }

    /// Removes the file.
    ///
    /// # Errors
    /// Errors of `unlink`.
    pub fn remove(&self) -> io::Result<()> {
        match unlinkat(&self.dir.fd, &*self.name, AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }
}

/// Formats written by Dovecot's plugins, by their first octets.
const UNREADABLE_FORMS: [(&[u8], &str); 6] = [
    (b"\x1f\x8b", "compressed (gzip)"),
    (b"BZh", "compressed (bzip2)"),
    (b"\xfd7zXZ\0", "compressed (xz)"),
    (b"\x28\xb5\x2f\xfd", "compressed (zstd)"),
    (b"Dovecot-LZ4\r*\x9b\xc5", "compressed (lz4)"),
    (b"CRYPTED\x03\x07", "encrypted (mail_crypt)"),
];

/// The format of a file that cannot be imported directly.
fn unreadable_form(file: &File) -> io::Result<Option<&'static str>> {
    let mut head = [0; 16];
    let len = file.read_at(&mut head, 0)?;
    let form = UNREADABLE_FORMS.iter().find(|(magic, _)| head[..len].starts_with(magic));
    Ok(form.map(|(_, form)| *form))
}

/// Opens an mbox file at a message.
///
/// # Errors
/// It is not a regular file, or cannot be read.
pub fn open_mbox(path: &Path, offset: u64) -> io::Result<MboxReader<BufReader<File>>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mut file = File::from(openat(CWD, path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    file.seek(SeekFrom::Start(offset))?;
    Ok(MboxReader::new(BufReader::with_capacity(PIECE_BYTES, file), offset))
}

/// Stamp of a file when it was read: inode, length, and times of its last changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReadFile(u64, u64, [(i64, i64); 2]);

impl ReadFile {
    fn of(file: &Metadata) -> Self {
        let times = [(file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec())];
        Self(file.ino(), file.len(), times)
    }
}

/// The text of a message in IMAP's form.
pub struct Text {
    pieces: Pieces,
    form: FileForm,
    after_cr: bool,
    /// The time of its arrival, if its file has one.
    pub date: Option<u64>,
    /// The file, if a server could take it unchanged.
    pub read: Option<ReadFile>,
}

enum Pieces {
    File(File),
    Mbox(Box<MboxReader<BufReader<File>>>),
}

impl Text {
    /// The message at this offset of an mbox file.
    ///
    /// # Errors
    /// The message no longer exists.
    pub fn of_mbox(path: &Path, offset: u64) -> io::Result<Self> {
        let mut reader = open_mbox(path, offset)?;
        let message = reader.next_message()?.ok_or_else(|| io::Error::other("the file has been changed"))?;
        let date = message.date.map(|date| since_1970(date.unix_secs()));
        Ok(Self {
            pieces: Pieces::Mbox(Box::new(reader)),
            form: FileForm::Lines { replaces_nul: true },
            after_cr: false,
            date,
            read: None,
        })
    }

    /// Appends the next octets. False at the end.
    ///
    /// # Errors
    /// Errors of `read`.
    pub fn piece(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        let mut piece = Vec::new();
        let more = match &mut self.pieces {
            Pieces::File(file) => file.take(PIECE_BYTES as u64).read_to_end(&mut piece)? > 0,
            Pieces::Mbox(reader) => reader.piece(&mut piece)?,
        };
        self.form.convert(&piece, &mut self.after_cr, out);
        Ok(more)
    }
}

/// The date in a message's header.
pub fn date_of(head: &[u8]) -> Option<u64> {
    let message = Message::parse(&head[..head.len().min(HEAD_BYTES)]);
    let date = message.root().header().first("Date")?.date()?;
    Some(since_1970(DateTime::unix_secs(date)))
}
