//! Envelopes and bodies of messages: in memory until the first attempt, as far as they fit; otherwise in the spool.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use posthaste_smtp::Reply;
use posthaste_spool::{Lsn, MessageReader, PublishedBody, ReadError, Spool, StreamId};

use crate::session::{FateScope, RecipientFate};
use posthaste_queue::entry::QueuedRecipient;
use posthaste_queue::{QueueEntry, Queued};

/// The envelope of a message.
#[derive(Debug)]
pub(super) struct Envelope {
    pub queued: Queued,
    /// `None` if it is only in the spool.
    in_memory: Option<MessageReader>,
}

impl Envelope {
    pub fn recipient(&self, number: u16) -> Option<&QueuedRecipient> {
        let at = self.queued.recipients.binary_search_by_key(&number, |recipient| recipient.number).ok()?;
        Some(&self.queued.recipients[at])
    }
}

/// A message with its body.
#[derive(Debug, Clone)]
pub(super) struct Loaded {
    pub envelope: Arc<Envelope>,
    pub body: Vec<Bytes>,
    /// True if the header is final for leaving.
    pub is_leaving: bool,
}

/// Error in loading a message.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    /// The message is lost for good: the reason.
    #[error("the message cannot be read any more: {0}")]
    Lost(String),
    /// A read error that may be temporary: retry.
    #[error("the message cannot be read now: {0}")]
    Now(String),
    /// The header has changed, and the message has no new signature.
    #[error(transparent)]
    NotSigned(#[from] NotSigned),
}

/// Why a message that must be signed was not signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSigned {
    /// A key cannot be used now: the reason. Retry.
    #[error("the message cannot be signed now: {0}")]
    Now(String),
    /// No key can sign the message: the reason.
    #[error("the message cannot be signed: {0}")]
    Never(String),
}

impl LoadError {
    /// The fate of the message's recipients, with a reply of our own.
    pub fn fate(&self) -> RecipientFate {
        let (code, status, text) = match self {
            LoadError::Lost(_) => (554, "5.3.0", self.to_string()),
            LoadError::Now(_) => (451, "4.3.0", self.to_string()),
            LoadError::NotSigned(NotSigned::Now(_)) => {
                (451, "4.7.5", "mail of this domain cannot be signed now".into())
            }
            LoadError::NotSigned(NotSigned::Never(_)) => (554, "5.6.0", self.to_string()),
        };
        let reply = Reply::new(code, status, text).into();
        match code {
            451 => RecipientFate::Deferred(reply, FateScope::Message),
            _ => RecipientFate::Refused(reply, FateScope::Message),
        }
    }
}

/// A message that could not be loaded.
#[derive(Debug)]
pub(super) struct Unloaded {
    pub error: LoadError,
    /// The envelope, if it can be read.
    pub envelope: Option<Arc<Envelope>>,
}

impl From<LoadError> for Unloaded {
    fn from(error: LoadError) -> Self {
        Unloaded { error, envelope: None }
    }
}

pub(super) struct Messages {
    spool: Arc<dyn Spool>,
    stream: StreamId,
    bytes_max: usize,
    kept: Mutex<CachedMessages>,
}

#[derive(Default)]
struct CachedMessages {
    /// In order of arrival.
    by_lsn: BTreeMap<Lsn, Kept>,
    bytes: usize,
    /// Total bytes received since the opening.
    come: u64,
    /// The last message dropped for lack of memory.
    left: Lsn,
}

struct Kept {
    envelope: Arc<Envelope>,
    bytes: usize,
    /// Value of the total when this message arrived.
    come: u64,
}

impl Messages {
    pub fn new(spool: Arc<dyn Spool>, stream: StreamId, bytes_max: usize) -> Self {
        Messages { spool, stream, bytes_max, kept: Mutex::default() }
    }

    /// Keeps a message that has just become durable. Without memory for it, the oldest are dropped: they are in the
    /// spool.
    pub fn keep(&self, lsn: Lsn, queued: Queued, body: &PublishedBody) {
        let PublishedBody::Memory(pieces) = body else { return };
        let body_bytes: usize = pieces.iter().map(Bytes::len).sum();
        let texts: usize = queued.recipients.iter().map(|recipient| recipient.address.len() + 64).sum();
        let bytes = body_bytes + texts + ENVELOPE_BYTES;
        let envelope = Arc::new(Envelope { queued, in_memory: Some(MessageReader::in_memory(pieces.clone())) });
        let mut kept = self.kept.lock().expect("messages");
        while kept.bytes + bytes > self.bytes_max {
            let Some((oldest, left)) = kept.by_lsn.pop_first() else { return };
            (kept.bytes, kept.left) = (kept.bytes - left.bytes, oldest);
        }
        kept.bytes += bytes;
        kept.come += bytes as u64;
        let come = kept.come;
        kept.by_lsn.insert(lsn, Kept { envelope, bytes, come });
    }

    /// Drops messages whose bodies are no longer needed, or not soon, because a first attempt has ended. The spool
    /// still has them.
    pub fn forget(&self, messages: &[Lsn]) {
        if messages.is_empty() {
            return;
        }
        let mut kept = self.kept.lock().expect("messages");
        for lsn in messages {
            let left = kept.by_lsn.remove(lsn);
            kept.bytes -= left.map_or(0, |left| left.bytes);
        }
    }

    /// The message; `None` if it is not in memory.
    pub fn in_memory(&self, lsn: Lsn) -> Option<Loaded> {
        self.take(lsn).0
    }

    /// The message, if it is in memory, and its lag: the volume that arrived since, as a share of the memory. A dropped
    /// message has the maximum lag, 1. The lag is `None` if the message was never in memory.
    pub fn take(&self, lsn: Lsn) -> (Option<Loaded>, Option<f32>) {
        let kept = self.kept.lock().expect("messages");
        let Some(found) = kept.by_lsn.get(&lsn) else {
            return (None, (lsn <= kept.left).then_some(1.0));
        };
        let behind = (kept.come - found.come) as f32 / self.bytes_max.max(1) as f32;
        let envelope = found.envelope.clone();
        drop(kept);
        let body = envelope.in_memory.as_ref().and_then(|message| message.pieces(u64::MAX).ok());
        (body.map(|body| Loaded { envelope, body, is_leaving: false }), Some(behind.min(1.0)))
    }

    /// The envelope, from memory or from the spool. May block.
    pub fn envelope(&self, lsn: Lsn) -> Result<Arc<Envelope>, LoadError> {
        if let Some(kept) = self.kept.lock().expect("messages").by_lsn.get(&lsn) {
            return Ok(kept.envelope.clone());
        }
        let entries = self.spool.entries(self.stream, lsn).map_err(load_error)?;
        let queued = entries.iter().find_map(|payload| QueueEntry::decode(payload).ok()?.into_message());
        let queued = queued.ok_or_else(|| LoadError::Lost("its envelope is not in its batch".to_owned()))?;
        Ok(Arc::new(Envelope { queued, in_memory: None }))
    }

    /// The message, from memory or from the spool. Blocks.
    pub fn load(&self, lsn: Lsn) -> Result<Loaded, Unloaded> {
        if let Some(loaded) = self.in_memory(lsn) {
            return Ok(loaded);
        }
        let envelope = self.envelope(lsn)?;
        match self.body(lsn, u64::MAX) {
            Ok(body) => Ok(Loaded { envelope, body, is_leaving: false }),
            Err(error) => Err(Unloaded { error, envelope: Some(envelope) }),
        }
    }

    /// The first `bytes_max` bytes of the body. Blocks.
    pub fn body(&self, lsn: Lsn, bytes_max: u64) -> Result<Vec<Bytes>, LoadError> {
        self.reader(lsn)?.pieces(bytes_max).map_err(load_error)
    }

    /// Length of the body in bytes. Blocks.
    pub fn body_len(&self, lsn: Lsn) -> Result<u64, LoadError> {
        self.reader(lsn).map(|reader| reader.len())
    }

    fn reader(&self, lsn: Lsn) -> Result<MessageReader, LoadError> {
        MessageReader::open(Arc::clone(&self.spool), lsn).map_err(load_error)
    }
}

fn load_error(error: ReadError) -> LoadError {
    match error {
        ReadError::Damaged { .. } => LoadError::Lost(error.to_string()),
        // While the queue has a recipient of the message, only an operator can have released it.
        ReadError::NotFound(lsn) => {
            LoadError::Lost(format!("batch {lsn} was damaged, and an operator has given it up"))
        }
        error => LoadError::Now(error.to_string()),
    }
}

/// Approximate size of an envelope without its texts.
const ENVELOPE_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use posthaste_spool::FileSpool;

    use super::*;

    #[test]
    fn settled_messages_leave_nothing_while_an_old_one_waits() {
        let dir = tempfile::tempdir().unwrap();
        let (spool, _) = FileSpool::open(dir.path(), posthaste_spool::Config::default()).unwrap();
        let stream = spool.stream("queue").unwrap();
        let messages = Messages::new(Arc::new(spool), stream, 10 * (ENVELOPE_BYTES + 1));
        let keep = |lsn| {
            let body = PublishedBody::Memory([Bytes::from_static(b"x")].into());
            messages.keep(Lsn::new(lsn), Queued::plain(0, "", [""; 0]), &body);
        };
        keep(1);
        for lsn in 2..1000 {
            keep(lsn);
            messages.forget(&[Lsn::new(lsn)]);
        }
        let kept = || {
            let kept = messages.kept.lock().unwrap();
            (kept.by_lsn.len(), kept.bytes, kept.left.get())
        };
        assert_eq!(kept(), (1, ENVELOPE_BYTES + 1, 0));
        (1000..1011).for_each(keep);
        assert_eq!(kept(), (10, 10 * (ENVELOPE_BYTES + 1), 1000), "the oldest make room");
    }
}
