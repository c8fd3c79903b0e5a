//! Export into a Maildir. A message always gets the same file name, so an export can be repeated.

use std::collections::HashMap;
use std::fs::{File, FileTimes};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use posthaste_control::{MailDone, MailRow};
use posthaste_maildir::{Flags, FolderName, Host, KEYWORDS_FILE, Maildir, Subdir, UniqueName};
use posthaste_message::utf7;

use super::copy::{Counts, bar_for, copy_text, rows};
use super::dir::TargetDir;
use crate::import::LeftOut;
use crate::mail_session::MailSession;
use crate::queue::AnyError;
use crate::terminal::{complain, harmless};

const LOCK_PAUSE: Duration = Duration::from_millis(50);
const LOCK_TRIES: u32 = 200;

pub struct MaildirTarget {
    top: PathBuf,
    host: Host,
}

impl MaildirTarget {
    /// Prepares an export without touching the file system.
    pub fn new(top: &Path, host_name: &str) -> Self {
        Self { top: top.to_owned(), host: Host::new(host_name) }
    }

    /// Makes the directory.
    fn make(&self) -> io::Result<TargetDir> {
        let top = TargetDir::make_named(&self.top)?;
        Maildir::open_or_create_at(top.fd())?;
        // It says that names of folders are written as Dovecot writes them.
        top.mark(KEYWORDS_FILE)?;
        Ok(top)
    }

    /// Exports all mailboxes, or one with those below it.
    pub fn export(
        &self,
        session: &mut MailSession,
        mailbox: Option<&str>,
        left_out: &mut LeftOut,
    ) -> Result<Counts, AnyError> {
        let mut counts = Counts::default();
        let mut names = session.mailboxes()?;
        if let Some(mailbox) = mailbox {
            let inbox = mailbox.eq_ignore_ascii_case("INBOX");
            names.retain(|name| below(name, mailbox).is_some() || inbox && name == "INBOX");
            if names.is_empty() {
                return Err(format!("there is no mailbox {mailbox}").into());
            }
        }
        let at = |error: io::Error| format!("{}: {error}", self.top.display());
        let top = self.make().map_err(at)?;
        for name in names {
            let levels = match mailbox {
                _ if name == "INBOX" && mailbox.is_none_or(|mailbox| mailbox.eq_ignore_ascii_case("INBOX")) => "",
                None => &name,
                Some(mailbox) => below(&name, mailbox).unwrap_or(&name),
            };
            let folder;
            let dir = if levels.is_empty() {
                &top
            } else {
                let Some(levels) = directory_of(levels) else {
                    left_out.tell(Path::new(&name), &"its name is not allowed for a directory");
                    continue;
                };
                folder = top.make_below(&levels).map_err(at)?;
                folder.mark("maildirfolder").map_err(at)?;
                &folder
            };
            let written = self.mailbox(session, &name, dir, left_out)?;
            counts.written += written.written;
            counts.there += written.there;
        }
        top.sync().map_err(at)?;
        Ok(counts)
    }

    fn mailbox(
        &self,
        session: &mut MailSession,
        name: &str,
        dir: &TargetDir,
        left_out: &mut LeftOut,
    ) -> Result<Counts, AnyError> {
        let at = |error: io::Error| format!("{}: {error}", dir.path().display());
        let maildir = Maildir::open_or_create_at(dir.fd()).map_err(at)?;
        let dirs = Subdirs::open(dir).map_err(at)?;
        let mut there: HashMap<String, (Subdir, String)> = HashMap::new();
        for (sub, file) in maildir.scan().map_err(at)? {
            if let Some(unique) = UniqueName::parse(&file) {
                there.insert(unique.key().to_owned(), (sub, file));
            }
        }
        let (opened, rows) = rows(session, name)?;
        let bar = bar_for(rows.len() as u64);
        let mut counts = Counts::default();
        let mut letters = Letters { maildir: &maildir, known: HashMap::new() };
        for row in rows {
            bar.inc(1);
            let flags = letters.of(&row, dir.path())?;
            let unique = unique_name(&row, opened);
            let key = format!("{}.{unique}.{}", row.date, self.host.as_str());
            match there.get(&key) {
                Some((sub, old)) => {
                    counts.there += 1;
                    dirs.set_flags(*sub, old, flags).map_err(at)?;
                }
                None => {
                    let file = NewMessage { dirs: &dirs, host: &self.host, unique: &unique, flags };
                    counts.written += u64::from(file.write(session, &row, left_out)?);
                }
            }
        }
        dirs.cur.sync().and_then(|()| dir.sync()).map_err(at)?;
        bar.finish_and_clear();
        Ok(counts)
    }
}

/// The name of a folder's directory. `None` if the folder cannot have one.
fn directory_of(levels: &str) -> Option<String> {
    let levels: Vec<String> = levels.split('/').map(|level| utf7::encode(&level.replace('.', "%2E"))).collect();
    let folder = FolderName::from_levels(levels.iter().map(String::as_str)).ok()?;
    Some(format!(".{folder}"))
}

/// The directories of a Maildir.
struct Subdirs {
    tmp: TargetDir,
    new: TargetDir,
    cur: TargetDir,
}

impl Subdirs {
    fn open(dir: &TargetDir) -> io::Result<Self> {
        Ok(Self { tmp: dir.below("tmp")?, new: dir.below("new")?, cur: dir.below("cur")? })
    }

    /// Updates the flags of a file from an earlier export.
    fn set_flags(&self, sub: Subdir, old: &str, flags: Flags) -> io::Result<()> {
        let new = format!("{}:2,{flags}", old.split(':').next().unwrap_or_default());
        let dir = if sub == Subdir::New { &self.new } else { &self.cur };
        if sub == Subdir::Cur && new == old { Ok(()) } else { dir.rename(old, &self.cur, new) }
    }
}

/// Levels of a mailbox name below another; empty for the same name.
fn below<'a>(name: &'a str, above: &str) -> Option<&'a str> {
    let rest = name.strip_prefix(above)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

fn unique_name(row: &MailRow, opened: MailDone) -> String {
    format!("V{}U{}", opened.uid_validity, row.uid)
}

/// Letters of keywords.
struct Letters<'a> {
    maildir: &'a Maildir,
    known: HashMap<String, Flags>,
}

impl Letters<'_> {
    fn of(&mut self, row: &MailRow, dir: &Path) -> Result<Flags, AnyError> {
        let mut flags = Flags::NONE;
        for name in &row.flags {
            let flag = match &*name.to_ascii_lowercase() {
                "\\seen" => Flags::SEEN,
                "\\answered" => Flags::REPLIED,
                "\\flagged" => Flags::FLAGGED,
                "\\deleted" => Flags::TRASHED,
                "\\draft" => Flags::DRAFT,
                keyword => match self.known.get(keyword) {
                    Some(flag) => *flag,
                    None => {
                        let flag = self.keyword(name).unwrap_or_else(|error| {
                            let why = match error.kind() {
                                io::ErrorKind::QuotaExceeded => "a Maildir has letters for 26 keywords".to_owned(),
                                _ => error.to_string(),
                            };
                            let told = format!("{}: keyword {name} is not written: {why}", dir.display());
                            complain(&harmless(&told));
                            Flags::NONE
                        });
                        self.known.insert(keyword.to_owned(), flag);
                        flag
                    }
                },
            };
            flags = flags.with(flag);
            // Most programs know its letter, and Dovecot its name alone.
            if name.eq_ignore_ascii_case("$Forwarded") {
                flags = flags.with(Flags::PASSED);
            }
        }
        Ok(flags)
    }

    fn keyword(&self, name: &str) -> io::Result<Flags> {
        let mut tries = 0;
        loop {
            match self.maildir.keyword_flag(name, SystemTime::now()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && tries < LOCK_TRIES => {
                    tries += 1;
                    std::thread::sleep(LOCK_PAUSE);
                }
                flag => return flag,
            }
        }
    }
}

struct NewMessage<'a> {
    dirs: &'a Subdirs,
    host: &'a Host,
    unique: &'a str,
    flags: Flags,
}

impl NewMessage<'_> {
    /// Writes the file durably, except its name. False if the message cannot be read.
    fn write(&self, session: &mut MailSession, row: &MailRow, left_out: &mut LeftOut) -> Result<bool, AnyError> {
        let Subdirs { tmp, cur, .. } = self.dirs;
        let unfinished = format!("{}.{}.{}", row.date, self.unique, self.host.as_str());
        let at = |error: io::Error| format!("{}: {error}", tmp.path().join(&unfinished).display());
        let mut file = tmp.new_file(&unfinished).map_err(at)?;
        let place = (cur.path(), left_out);
        let restart = |file: &mut File| io::Seek::rewind(file).and_then(|()| file.set_len(0));
        let named = |error: io::Error| io::Error::new(error.kind(), at(error));
        let write = |file: &mut File, text: &[u8]| file.write_all(text).map_err(named);
        let written = copy_text(session, row, &mut file, write, restart, place)?;
        let Some(written) = written else {
            tmp.remove(&unfinished).map_err(at)?;
            return Ok(false);
        };
        let size = file.metadata().map_err(at)?.len();
        let name = UniqueName::new(row.date, self.unique, self.host, size, written.wire_size);
        let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(row.date));
        file.set_times(time.map_or_else(FileTimes::new, |time| FileTimes::new().set_modified(time))).map_err(at)?;
        file.sync_all().map_err(at)?;
        tmp.rename(&unfinished, cur, format!("{name}:2,{}", self.flags)).map_err(at)?;
        Ok(true)
    }
}
