//! Messages whose files are not made yet: their octets are in the spool.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_spool::{Lsn, ReadError, Spool};
use tokio::task::spawn_blocking;

use super::body::ended;
use super::file::MailFile;
use crate::entry::{BodyPlace, MailEntry};
use crate::error::MailstoreError;
use crate::ledger::MailLedger;
use crate::mail_body::{BODY_READ_MAX, HEADER_BYTES_MAX, MailBody, cut_header};
use crate::store::Asked;

/// A message in the spool: the fields in front of it, and its body as it was received.
pub(super) struct SpoolBody {
    spool: Arc<dyn Spool>,
    lsn: Lsn,
    prefix: Bytes,
    len: u64,
}

impl SpoolBody {
    pub fn new(spool: Arc<dyn Spool>, lsn: u64, prefix: Bytes, len: u64) -> Self {
        Self { spool, lsn: Lsn::new(lsn), prefix, len }
    }

    /// Octets from `from` on. Blocks.
    ///
    /// # Errors
    /// [`ReadError::NotFound`] once the file is there: then it is read instead.
    pub fn read_now(&self, from: u64, up_to: u64) -> Result<Bytes, ReadError> {
        let up_to = up_to.min(self.len).min(from.saturating_add(BODY_READ_MAX as u64));
        let prefix_len = self.prefix.len() as u64;
        if from >= up_to {
            return Ok(Bytes::new());
        }
        if from < prefix_len {
            return Ok(self.prefix.slice(from as usize..up_to.min(prefix_len) as usize));
        }
        self.spool.read(self.lsn, from - prefix_len..up_to - prefix_len)
    }

    /// The header. Blocks.
    ///
    /// # Errors
    /// As [`read_now`](Self::read_now).
    pub fn header(&self) -> Result<Bytes, ReadError> {
        let (mut out, mut searched) = (Vec::new(), 0);
        while out.len() < HEADER_BYTES_MAX {
            let piece = self.read_now(out.len() as u64, u64::MAX)?;
            if piece.is_empty() {
                break;
            }
            out.extend_from_slice(&piece);
            if cut_header(&mut out, &mut searched) {
                break;
            }
        }
        out.truncate(HEADER_BYTES_MAX);
        Ok(out.into())
    }
}

/// A message that may get its file while it is read: the octets are the same.
pub(super) struct AwaitedBody {
    pub in_spool: Arc<SpoolBody>,
    /// Opens the file.
    pub in_file: Arc<OpenBody>,
}

/// Opens a message's file. Blocks.
pub(super) type OpenBody = dyn Fn() -> Result<Arc<dyn MailBody>, MailstoreError> + Send + Sync;

impl MailBody for AwaitedBody {
    fn len(&self) -> u64 {
        self.in_spool.len
    }

    fn read(&self, from: u64, up_to: u64) -> Asked<'_, Bytes> {
        let (in_spool, in_file) = (Arc::clone(&self.in_spool), Arc::clone(&self.in_file));
        Box::pin(async move {
            let read = move || match in_spool.read_now(from, up_to) {
                Ok(octets) => Ok(Ok(octets)),
                // Delivery has made the file durable, and the spool has let the body go.
                Err(ReadError::NotFound(_)) => in_file().map(Err),
                Err(error) => Err(unreadable(&error)),
            };
            match spawn_blocking(read).await.map_err(ended)?? {
                Ok(octets) => Ok(octets),
                Err(file) => file.read(from, up_to).await,
            }
        })
    }
}

pub(super) fn unreadable(error: &ReadError) -> MailstoreError {
    match error {
        ReadError::Damaged { .. } => MailstoreError::Damaged(error.to_string()),
        _ => MailstoreError::Unavailable(error.to_string()),
    }
}

/// A message whose file was not listed yet, if the spool has it. Blocks.
pub(super) fn in_spool(ledger: &MailLedger, id: u32, message: &MailFile) -> Option<SpoolBody> {
    let (lsn, number) = message.awaited()?;
    let entries = ledger.spool().entries(ledger.stream(), Lsn::new(lsn)).ok()?;
    let prefix = entries.iter().find_map(|payload| match MailEntry::decode(payload)? {
        MailEntry::New { mailbox, messages, .. } if mailbox == id => {
            messages.into_iter().find_map(|message| match message.place {
                BodyPlace::Batch { prefix } if message.target == number => Some(prefix),
                _ => None,
            })
        }
        _ => None,
    })?;
    Some(SpoolBody::new(Arc::clone(ledger.spool()), lsn, prefix, message.wire_size()?))
}
