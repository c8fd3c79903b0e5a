//! Messages without a file yet: their octets are in the spool.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_spool::{Lsn, MessageReader, ReadError};

use super::file::MailFile;
use super::read_turns::ReadTurns;
use crate::entry::{BodyPlace, MailEntry};
use crate::error::{Asked, MailstoreError};
use crate::ledger::MailLedger;
use crate::mail_body::{BODY_READ_MAX, HEADER_BYTES_MAX, MailBody, cut_header};

/// The header of a message in the spool. Blocks.
///
/// # Errors
/// [`ReadError::NotFound`] once the file exists: then read the file.
pub(super) fn header_of(in_spool: &MessageReader) -> Result<Bytes, ReadError> {
    let (mut out, mut searched) = (Vec::new(), 0);
    while out.len() < HEADER_BYTES_MAX {
        let piece = in_spool.piece(out.len() as u64, BODY_READ_MAX as u64)?;
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

/// A message whose file may be made during the read, with the same octets.
pub(super) struct AwaitedBody {
    pub in_spool: MessageReader,
    /// Opens the message's file, once it exists.
    pub in_file: Arc<OpenBody>,
    pub turns: ReadTurns,
}

/// Opens a message's file. Blocks.
pub(super) type OpenBody = dyn Fn() -> Result<Arc<dyn MailBody>, MailstoreError> + Send + Sync;

impl MailBody for AwaitedBody {
    fn len(&self) -> u64 {
        self.in_spool.len()
    }

    fn read(&self, from: u64, up_to: u64) -> Asked<'_, Bytes> {
        let (in_spool, in_file, turns) = (self.in_spool.clone(), Arc::clone(&self.in_file), self.turns.clone());
        let len_max = up_to.saturating_sub(from).min(BODY_READ_MAX as u64);
        Box::pin(async move {
            let read = move || match in_spool.piece(from, len_max) {
                Ok(octets) => Ok(Ok(octets)),
                // Delivery has made the file durable, and the spool has let the body go.
                Err(ReadError::NotFound(_)) => in_file().map(Err),
                Err(error) => Err(unreadable(&error)),
            };
            match turns.read(read).await?? {
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

/// An unlisted message, if it is in the spool. Blocks.
pub(super) fn in_spool(ledger: &MailLedger, id: u32, message: &MailFile) -> Option<MessageReader> {
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
    let batch_len = message.wire_size()?.checked_sub(prefix.len() as u64)?;
    Some(MessageReader::in_spool(Arc::clone(ledger.spool()), Lsn::new(lsn), batch_len).with_prefix(prefix))
}
