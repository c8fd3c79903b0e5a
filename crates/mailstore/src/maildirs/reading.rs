//! Headers, fields and octets of messages. Most calls block.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_maildir::MaildirReader;
use posthaste_maildir::tree::FileFacts;
use posthaste_spool::ReadError;
use tokio::task::spawn_blocking;

use super::awaited::{AwaitedBody, header_of, in_spool, unreadable};
use super::body::{FileBody, header};
use super::core::MailboxCore;
use super::file::MailFile;
use super::header_cache::HeaderReader;
use crate::error::MailstoreError;
use crate::mail_body::{MailBody, first_fields, first_kept};
use crate::message_list::Message;
use crate::store::KeptKind;

impl MailboxCore {
    /// The facts of a message's file, unless it is another one or yet to be made.
    pub fn looked_at<'r>(
        &self,
        reader: Option<&'r MaildirReader>,
        file: &MailFile,
    ) -> Option<(&'r MaildirReader, FileFacts)> {
        let reader = reader.filter(|_| file.awaited().is_none())?;
        let facts = reader.facts(file.subdir, &file.name).ok().flatten()?;
        if !file.is(&facts) {
            return None;
        }
        file.saw(facts);
        Some((reader, facts))
    }

    /// Octets that are kept of messages: of the first, as many as fit.
    pub fn kept(
        &self,
        kind: KeptKind,
        messages: &[Message<Arc<MailFile>>],
    ) -> Vec<Result<Option<Bytes>, MailstoreError>> {
        let reader = self.reader().ok();
        let mut cached = self.shared.header_cache.reader();
        first_kept(messages.iter().map(|message| {
            let message = self.as_listed(message);
            let known = message.file.content_facts().filter(|_| kind == KeptKind::Keys);
            let facts = known.or_else(|| self.looked_at(reader.as_ref(), &message.file).map(|(_, facts)| facts));
            Ok(facts.and_then(|facts| cached.kept(kind, message.email_id, &facts)))
        }))
    }

    pub fn header(&self, reader: Option<&MaildirReader>, uid: u32, file: &MailFile) -> Result<Bytes, MailstoreError> {
        match in_spool(&self.shared.ledger, self.id, file).map(|message| header_of(&message)) {
            Some(Ok(octets)) => return Ok(octets),
            Some(Err(error)) if !matches!(error, ReadError::NotFound(_)) => return Err(unreadable(&error)),
            _ => {}
        }
        let (opened, size) = match reader {
            Some(reader) => self.open_by(reader, uid, file)?,
            None => self.open(uid, file)?,
        };
        header(&opened, size, file)
    }

    /// The listed fields of the first of some messages.
    pub fn fields_of(&self, messages: &[Message<Arc<MailFile>>]) -> Vec<Result<Bytes, MailstoreError>> {
        // Without it each message says why.
        let reader = self.reader().ok();
        let mut cached = self.shared.header_cache.reader();
        let messages = messages.iter().map(|message| self.as_listed(message));
        first_fields(messages.map(|message| self.fields(reader.as_ref(), &mut cached, &message)))
    }

    /// Like [`fields_of`](Self::fields_of), on a thread that may block.
    pub async fn fields_in_turn(
        self: &Arc<Self>,
        messages: Vec<Message<Arc<MailFile>>>,
    ) -> Result<Vec<Result<Bytes, MailstoreError>>, MailstoreError> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let core = Arc::clone(self);
        self.reading.read(move || core.fields_of(&messages)).await
    }

    /// The listed fields of a message. The file is looked at, and opened only if the cache has not this very file.
    fn fields(
        &self,
        reader: Option<&MaildirReader>,
        cached: &mut HeaderReader<'_>,
        message: &Message<Arc<MailFile>>,
    ) -> Result<Bytes, MailstoreError> {
        let Message { uid, file, email_id, .. } = message;
        let Some((reader, facts)) = self.looked_at(reader, file) else { return self.header(reader, *uid, file) };
        if let Some(fields) = cached.get(*email_id, &facts) {
            return Ok(fields);
        }
        let (opened, size) = self.open_by(reader, *uid, file)?;
        let header = header(&opened, size, file)?;
        // It was not written to meanwhile, and is the file that was looked at.
        let is_same = reader.facts_of(&opened).is_ok_and(|after| after == Some(facts));
        Ok(if is_same { self.shared.header_cache.put(*email_id, &facts, header) } else { header })
    }

    /// A message: in the spool as long as its file is not known, else in its file.
    pub fn body(
        self: &Arc<Self>,
        reader: &Result<MaildirReader, MailstoreError>,
        message: &Message<Arc<MailFile>>,
    ) -> Result<Arc<dyn MailBody>, MailstoreError> {
        let (uid, file) = (message.uid, Arc::clone(&message.file));
        if let Some(in_spool) = in_spool(&self.shared.ledger, self.id, &file) {
            let (core, turns) = (Arc::clone(self), self.reading.clone());
            let in_file = move || -> Result<Arc<dyn MailBody>, MailstoreError> {
                let (opened, size) = core.open(uid, &file)?;
                Ok(Arc::new(FileBody::new(opened, size, &file, &core.reading)?))
            };
            return Ok(Arc::new(AwaitedBody { in_spool, in_file: Arc::new(in_file), turns }));
        }
        let (opened, size) = self.open_by(reader.as_ref().map_err(Clone::clone)?, uid, &file)?;
        Ok(Arc::new(FileBody::new(opened, size, &file, &self.reading)?))
    }
}

/// Commits what waits for the cache, if that is due. The client does not wait for it.
pub(super) fn commit_cache(core: &Arc<MailboxCore>) {
    if core.shared.header_cache.takes_commit() {
        let core = Arc::clone(core);
        drop(spawn_blocking(move || core.shared.header_cache.commit()));
    }
}
