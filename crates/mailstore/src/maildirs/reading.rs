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
use super::locks::lock;
use super::told::Oddities;
use crate::entry::{MailEntry, WireSize};
use crate::error::MailstoreError;
use crate::mail_body::{MailBody, first_fields, first_kept};
use crate::message_list::Message;
use crate::row::Uid;
use crate::store::KeptKind;

/// Maximum sizes recorded by one look.
const SIZES_MAX: usize = 10_000;

impl MailboxCore {
    /// Facts of a message's file, unless it was replaced or does not exist yet.
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

    /// Cached octets of messages, in order, as many as fit.
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

    /// Listed fields of a message. The file is examined; it is opened only if the cache has no entry for it.
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

    /// Body of a message: from the spool until the file is known, then from the file.
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
        let body = FileBody::new(opened, size, &file, &self.reading)?;
        self.found_size(message, size, body.len());
        Ok(Arc::new(body))
    }

    /// Notes the sizes of a message that was read, on disk and on the wire. The next
    /// look records them if they differ. A name can state any size, and a file may have been unreadable on arrival.
    pub fn found_size(&self, message: &Message<Arc<MailFile>>, disk_size: u64, wire_size: u64) {
        if message.wire_size != WireSize::of(wire_size) {
            lock(&self.sizes).insert(message.uid, (disk_size, wire_size));
        }
    }

    /// Records the noted sizes. `changing` is held.
    pub fn record_sizes(&self, odd: &mut Oddities) {
        let found = std::mem::take(&mut *lock(&self.sizes));
        let Some(now) = self.now().filter(|_| !found.is_empty()) else { return };
        let entry = |(uid, (disk_size, wire_size)): (u32, (u64, u64))| {
            let message = now.find(Uid::new(uid)?)?;
            let wire = Some(WireSize::of(wire_size)).filter(|wire| *wire != message.wire_size)?;
            let line_feeds = u32::try_from(wire_size.checked_sub(disk_size)?).ok()?;
            Some(MailEntry::Size { mailbox: self.id, uid, wire_size: wire, line_feeds })
        };
        let entries: Vec<MailEntry> = found.into_iter().filter_map(entry).take(SIZES_MAX).collect();
        if entries.is_empty() {
            return;
        }
        match self.shared.ledger.append(&entries) {
            Ok(_) => drop(self.catch_up()),
            // They are found again by the next who reads.
            Err(error) => odd.not_durable = Some(error.to_string()),
        }
    }
}

/// Commits the cache if due. The client does not wait for it.
pub(super) fn commit_cache(core: &Arc<MailboxCore>) {
    if core.shared.header_cache.takes_commit() {
        let core = Arc::clone(core);
        drop(spawn_blocking(move || core.shared.header_cache.commit()));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tests::Place;
    use crate::snapshot::{Source, status};

    /// Decision 26. A name can say anything about sizes.
    #[tokio::test]
    async fn a_size_that_proves_wrong_is_repaired() {
        let mut place = Place::new();
        fs::write(place.path("cur/1.a,S=5,W=9:2,"), "ab\ncd").unwrap();
        fs::write(place.path("cur/2.b,S=3,W=4:2,"), "ab\n").unwrap();
        let bytes = |place: &Place, messages| status(place.mailbox(), messages).bytes;
        let told = place.settled_look().await;
        assert_eq!(place.mailbox().known_size(&told.messages[0]), Some(9));
        assert_eq!(bytes(&place, &told), Some(13));
        assert_eq!(place.read(&told, 1).await.unwrap(), b"ab\r\ncd", "who was told 9 gets 6");
        assert_eq!(place.read(&told, 2).await.unwrap(), b"ab\r\n");
        let repaired = place.mailbox().look().await.unwrap();
        assert_eq!(bytes(&place, &repaired), Some(10));
        let owner = place.mailbox().core().owner.id;
        assert_eq!(place.mailbox().core().shared.ledger.usage(owner).unwrap(), (10, 2));
        place.reopen();
        let reopened = place.settled_look().await;
        assert_eq!(bytes(&place, &reopened), Some(10));
        assert_eq!(place.mailbox().known_size(&reopened.messages[0]), Some(6));
    }
}
