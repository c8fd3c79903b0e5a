//! Several messages of one APPEND (RFC 3502): each complete one becomes a file in `tmp/`, and one batch makes all of
//! them visible.
//!
//! Their files are handled like those of COPY. A file left by a crash before the batch is removed when it is old. After
//! the batch, the next listing places it.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use posthaste_intake::GatheredBody;
use posthaste_maildir::line_ends::LineEndScan;
use posthaste_maildir::tree::FileFacts;
use posthaste_maildir::{Maildir, Mount, UniqueName};
use tokio::runtime::Handle;

use super::copies::{CopiedFile, Copying, facts_of, not_written, open_maildir, write_tmp};
use super::core::MailboxCore;
use super::file_work::FileWork;
use super::layout::Layout;
use super::locks::lock;
use super::names_out::begin_writing_names;
use super::scratch::SYSTEM_BITS;
use super::seconds::{now_secs, secs};
use crate::error::MailstoreError;
use crate::flags::MessageFlags;
use crate::line_ends::FileForm;
use crate::row::{Uid, UidValidity};
use crate::store::{AppendRequest, AppendedMessage};

/// Octets copied at once.
const PIECE_BYTES: usize = 256 << 10;

/// A complete message.
pub(super) enum MessageSource {
    /// Octets to be written into a file.
    Octets(GatheredBody),
    /// An existing file in `tmp/`, owned by the mailbox's owner.
    File(String),
}

/// Complete messages that are not in their mailbox yet. Dropping it removes files without a batch.
pub(super) struct GatheredMail {
    core: Arc<MailboxCore>,
    /// `None` before the first message.
    maildir: Option<Maildir>,
    /// Opened before the first file is written, so that it reports each write error. `None`: each file was synced
    /// when it was written.
    mount: Option<Mount>,
    files: Vec<CopiedFile>,
    /// Keywords of each file.
    keywords: Vec<Vec<String>>,
}

impl GatheredMail {
    pub fn new(core: Arc<MailboxCore>) -> Self {
        Self { core, maildir: None, mount: None, files: Vec::new(), keywords: Vec::new() }
    }

    /// Writes a message into a file, or takes its existing file. Blocks.
    pub fn add(&mut self, request: AppendRequest, source: &MessageSource) -> Result<(), MailstoreError> {
        if self.maildir.is_none() {
            let maildir = open_maildir(&self.core)?;
            let mount = maildir.mount().map_err(|error| not_written(&self.core, &error))?;
            self.mount = Some(mount).filter(|mount| mount.facts().syncfs_trusted);
            self.maildir = Some(maildir);
        }
        let maildir = self.maildir.as_ref().expect("it was opened");
        let internal_date = request.internal_date.map_or_else(now_secs, secs);
        let (name, facts) = match source {
            MessageSource::Octets(body) => self.write(maildir, body, internal_date)?,
            MessageSource::File(name) => {
                let adopted = self.adopt(maildir, name, (internal_date, request.octets));
                adopted.inspect_err(|_| drop(maildir.remove_tmp(name)))?
            }
        };
        let flags = MessageFlags(request.flags.0 & SYSTEM_BITS);
        self.files.push(CopiedFile { uid: 0, name, facts, flags, internal_date, email_id: (0, 0), is_own: false });
        self.keywords.push(request.keywords);
        Ok(())
    }

    /// Uses an existing file in `tmp/` as the message.
    fn adopt(
        &self,
        maildir: &Maildir,
        tmp_name: &str,
        (internal_date, octets): (u32, u64),
    ) -> Result<(UniqueName, FileFacts), MailstoreError> {
        let failed = |error: io::Error| not_written(&self.core, &error);
        let file = maildir.open_tmp(tmp_name).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        // As those who read it will find it.
        let wire_size = Layout::of(&file, found.len(), FileForm::Lines { replaces_nul: true })?.len();
        if wire_size != octets || u32::try_from(found.mtime()) != Ok(internal_date) {
            return Err(MailstoreError::Cannot("its file has other octets, or another time"));
        }
        let name = self.core.shared.copy_names.next(internal_date, 0, false, (found.len(), wire_size));
        maildir.rename_tmp(tmp_name, name.as_str()).map_err(failed)?;
        let synced = if self.mount.is_none() { posthaste_fsops::fsync(&file).map_err(io::Error::from) } else { Ok(()) };
        let facts = synced.and_then(|()| facts_of(&file));
        let facts = facts.inspect_err(|_| drop(maildir.remove_tmp(name.as_str()))).map_err(failed)?;
        Ok((name, facts))
    }

    fn write(
        &self,
        maildir: &Maildir,
        body: &GatheredBody,
        internal_date: u32,
    ) -> Result<(UniqueName, FileFacts), MailstoreError> {
        let wire_size = body.len();
        let crs_to_drop = crs_to_drop(body);
        let sizes = (wire_size - crs_to_drop.unwrap_or(0), wire_size);
        let name = self.core.shared.copy_names.next(internal_date, 0, false, sizes);
        let written = octets(body).and_then(|mut octets| {
            let file = write_tmp(maildir, name.as_str(), internal_date, || {
                Ok(octets.next_piece()?.map(|piece| if crs_to_drop.is_some() { without_crs(&piece) } else { piece }))
            })?;
            if self.mount.is_none() {
                posthaste_fsops::fsync(&file)?;
            }
            facts_of(&file)
        });
        let facts = written.map_err(|error| {
            let _ = maildir.remove_tmp(name.as_str());
            not_written(&self.core, &error)
        })?;
        Ok((name, facts))
    }

    /// Makes all messages durable and visible in one batch. `adding` is locked, so that the mailbox keeps its name.
    /// Blocks.
    pub fn store(mut self, work: &FileWork<AppendedMessage>) -> Result<AppendedMessage, MailstoreError> {
        let core = Arc::clone(&self.core);
        core.check_staying()?;
        // One sync for all of them, and before anybody waits for the mailbox.
        if let Some(mount) = self.mount.take() {
            mount.sync().map_err(|error| not_written(&core, &error))?;
        }
        let _one = lock(&core.changing);
        let copying = Copying::begin(&core)?;
        let names: Vec<&str> = self.keywords.iter().flatten().map(String::as_str).collect();
        let keywords = copying.keywords_named(&names)?;
        for (file, names) in self.files.iter_mut().zip(&self.keywords) {
            let named = names.iter().filter_map(|name| keywords.flag(name));
            file.flags = named.fold(file.flags, MessageFlags::with);
        }
        copying.sync()?;
        work.begin()?;
        // From here on they are not removed with it: the batch may be durable though its outcome is an error.
        let files = std::mem::take(&mut self.files);
        let first_uid = copying.append(&files, &keywords, false)?;
        let count = u32::try_from(files.len()).map_err(|_| MailstoreError::Limit)?;
        let uid = Uid::new(first_uid).ok_or(MailstoreError::Limit)?;
        let uid_validity = Uid::new(core.uid_validity.load(Ordering::Relaxed)).ok_or(MailstoreError::NoMailbox)?;
        let appended = AppendedMessage { uid_validity: UidValidity(uid_validity.0), uid, count };
        work.is_durable(appended);
        copying.place(&files, &keywords, first_uid);
        begin_writing_names(&core);
        Ok(appended)
    }
}

impl Drop for GatheredMail {
    fn drop(&mut self) {
        let (core, files) = (Arc::clone(&self.core), std::mem::take(&mut self.files));
        if files.is_empty() {
            return;
        }
        let remove = move || {
            // What stays is removed when it is old.
            let Ok(maildir) = open_maildir(&core) else { return };
            for file in files {
                let _ = maildir.remove_tmp(file.name.as_str());
            }
        };
        // A session drops it, and a mount may hang.
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn_blocking(remove));
        }
    }
}

/// The number of CRs to drop for LF line ends; `None` if the conversion could not be reversed.
fn crs_to_drop(body: &GatheredBody) -> Option<u64> {
    match body {
        GatheredBody::Memory(parts) => {
            let mut ends = LineEndScan::default();
            let is_lossless = parts.iter().all(|part| ends.push(part, |_| ())) && ends.are_lossless();
            is_lossless.then(|| ends.crs())
        }
        GatheredBody::Large(body) => Some(body.facts()).filter(|facts| facts.is_lossless).map(|facts| facts.crlfs),
    }
}

fn without_crs(piece: &[u8]) -> Bytes {
    let mut kept = Vec::with_capacity(piece.len());
    piece.split(|&octet| octet == b'\r').for_each(|run| kept.extend_from_slice(run));
    kept.into()
}

enum Octets<'a> {
    Memory(std::slice::Iter<'a, Bytes>),
    File(Box<dyn Read>),
}

fn octets(body: &GatheredBody) -> io::Result<Octets<'_>> {
    Ok(match body {
        GatheredBody::Memory(parts) => Octets::Memory(parts.iter()),
        GatheredBody::Large(body) => Octets::File(Box::new(body.reader()?)),
    })
}

impl Octets<'_> {
    fn next_piece(&mut self) -> io::Result<Option<Bytes>> {
        match self {
            Self::Memory(parts) => Ok(parts.next().cloned()),
            Self::File(file) => {
                let mut piece = vec![0; PIECE_BYTES];
                let read = file.read(&mut piece)?;
                piece.truncate(read);
                Ok(Some(Bytes::from(piece)).filter(|piece| !piece.is_empty()))
            }
        }
    }
}
