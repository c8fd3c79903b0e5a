//! Removal of a mailbox: earlier mail for it is not delivered to a later one of the same name.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use posthaste_maildir::MailboxPath;
use posthaste_spool::{AppendError, Batch, Body, Entry, Spool, StreamError};

use super::delivery::LocalDelivery;
use super::entry::{LocalEntry, Removal};
use super::mounts::is_of_mount;

/// Why a mailbox was not removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// The path is not a possible mailbox.
    #[error("not a mailbox: {0}")]
    BadMailbox(Arc<str>),
    /// The spool refuses it: nothing has changed.
    #[error("the spool cannot record it: {0}")]
    Spool(#[from] AppendError),
    /// One of the spool's streams is unusable.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The mailbox was removed, but a write of earlier mail is still in progress, because the file system does not
    /// answer.
    #[error("mail is still being written to {0}: its file system does not answer")]
    Held(Arc<str>),
}

/// Records in a spool the removal of a mailbox and all mailboxes below it: mail accepted for them so far is no longer
/// delivered. Durable on return. Does not touch the Maildir.
///
/// # Errors
/// All of [`RemoveError`] except `Held`.
pub fn remove_mailbox(spool: &dyn Spool, mailbox: &str) -> Result<(), RemoveError> {
    MailboxPath::parse(mailbox).map_err(|error| RemoveError::BadMailbox(format!("{mailbox}: {error}").into()))?;
    let payload = LocalEntry::Removal(Removal { before: None, mailbox: mailbox.into() }).encode();
    let streams = spool.streams().into_iter().filter(|stream| is_of_mount(&stream.name));
    // For all mounts: the mailbox's mail may wait in the stream of an earlier mount, or of one that is not mounted now.
    let entry = |name: String| Ok(Entry { stream: spool.stream(&name)?, needs_body: false, payload: payload.clone() });
    let entries = streams.map(|stream| entry(stream.name)).collect::<Result<Vec<_>, StreamError>>()?;
    if entries.is_empty() {
        return Ok(());
    }
    let (tell, told) = channel();
    spool.append(Batch { entries, body: Body::None }, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap_or(Err(AppendError::Closed))?;
    Ok(())
}

impl LocalDelivery {
    /// Like [`remove_mailbox`], while mail is delivered. On return no thread writes earlier mail to the mailbox, so its
    /// Maildir can be removed and a new one made. Blocks, until `deadline` at most.
    ///
    /// # Errors
    /// See [`RemoveError`].
    pub fn remove_mailbox(&self, mailbox: &str, deadline: Instant) -> Result<(), RemoveError> {
        remove_mailbox(&**self.intake().spool(), mailbox)?;
        if self.mounts().iter().all(|mount| mount.wait_until_left(mailbox, deadline)) {
            Ok(())
        } else {
            Err(RemoveError::Held(mailbox.into()))
        }
    }
}
