//! Export into an mbox file, which gets its name once it is complete and durable.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use posthaste_message::mbox::{MboxFields, MboxQuoting, from_line};

use super::copy::{Counts, bar_for, copy_text, rows};
use super::dir::TargetDir;
use crate::import::LeftOut;
use crate::mail_session::MailSession;
use crate::queue::AnyError;

pub struct MboxTarget {
    path: PathBuf,
    dir: TargetDir,
    name: OsString,
    unfinished: OsString,
    file: BufWriter<File>,
}

/// A message being written into the file.
struct Entry<'a> {
    file: &'a mut BufWriter<File>,
    head: &'a [u8],
    begun: u64,
    quoting: MboxQuoting,
}

impl MboxTarget {
    /// Creates the file. Fails if it exists.
    pub fn new(path: &Path) -> Result<Self, AnyError> {
        if path.symlink_metadata().is_ok() {
            return Err(format!("{} already exists: name another file, or remove it", path.display()).into());
        }
        let at = |error: io::Error| format!("{}: {error}", path.display());
        let name = path.file_name().ok_or("this cannot be the name of a file")?.to_owned();
        let mut unfinished = name.clone();
        unfinished.push(".new");
        let dir = TargetDir::named(path.parent().unwrap_or(Path::new(""))).map_err(at)?;
        let file = BufWriter::new(dir.new_file(&unfinished).map_err(at)?);
        Ok(Self { path: path.to_owned(), dir, name, unfinished, file })
    }

    /// Exports one mailbox.
    pub fn export(
        mut self,
        session: &mut MailSession,
        mailbox: Option<&str>,
        left_out: &mut LeftOut,
    ) -> Result<Counts, AnyError> {
        let exported = self.write(session, mailbox, left_out);
        if exported.is_err() {
            let _ = self.dir.remove(&self.unfinished);
        }
        exported
    }

    fn write(
        &mut self,
        session: &mut MailSession,
        mailbox: Option<&str>,
        left_out: &mut LeftOut,
    ) -> Result<Counts, AnyError> {
        let Some(mailbox) = mailbox else {
            return Err("an mbox file has one mailbox: name it, such as ann@example.org/INBOX".into());
        };
        let path = self.path.clone();
        let mut counts = Counts::default();
        let at = |error: io::Error| format!("{}: {error}", path.display());
        let (_, rows) = rows(session, mailbox)?;
        let bar = bar_for(rows.len() as u64);
        for row in rows {
            bar.inc(1);
            let head = from_line("", row.date) + &MboxFields::write(&row.flags);
            let begun = self.file.stream_position().map_err(at)?;
            self.file.write_all(head.as_bytes()).map_err(at)?;
            let mut entry =
                Entry { file: &mut self.file, head: head.as_bytes(), begun, quoting: MboxQuoting::default() };
            match copy_text(session, &row, &mut entry, Entry::push, Entry::restart, (&self.path, left_out))? {
                Some(_) => {
                    entry.end().map_err(at)?;
                    counts.written += 1;
                }
                None => self.cut(begun).map_err(at)?,
            }
        }
        self.file.flush().map_err(at)?;
        self.file.get_ref().sync_all().map_err(at)?;
        self.dir.rename(&self.unfinished, &self.dir, &self.name).map_err(at)?;
        self.dir.sync().map_err(at)?;
        bar.finish_and_clear();
        Ok(counts)
    }

    fn cut(&mut self, at: u64) -> io::Result<()> {
        self.file.seek(io::SeekFrom::Start(at))?;
        self.file.get_ref().set_len(at)
    }
}

impl Entry<'_> {
    fn push(&mut self, text: &[u8]) -> io::Result<()> {
        let mut quoted = Vec::with_capacity(text.len());
        self.quoting.push(text, &mut quoted);
        self.file.write_all(&quoted)
    }

    fn restart(&mut self) -> io::Result<()> {
        self.file.seek(io::SeekFrom::Start(self.begun))?;
        self.file.get_ref().set_len(self.begun)?;
        self.quoting = MboxQuoting::default();
        self.file.write_all(self.head)
    }

    fn end(self) -> io::Result<()> {
        let mut end = Vec::new();
        self.quoting.end(&mut end);
        self.file.write_all(&end)
    }
}
