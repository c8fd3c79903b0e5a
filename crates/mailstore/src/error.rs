//! Errors, one variant for each reaction of a protocol, and answers that may be one.

use std::pin::Pin;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MailstoreError {
    /// No mailbox or account with that name or id (IMAP: NO \[NONEXISTENT\]). From
    /// [`advance`](crate::MailboxView::advance): the selected mailbox was removed, and the session ends.
    #[error("no such mailbox")]
    NoMailbox,
    /// The message is gone, or was never in this view. A FETCH leaves it out or answers NIL.
    #[error("no such message")]
    Gone,
    /// The message may not be read (IMAP: NO \[NOPERM\]). The log has the reason.
    #[error("no permission to read this")]
    NoPermission,
    /// The body is damaged, or is no mail (IMAP: NIL, and at the end NO \[CORRUPTION\]). The log has the reason.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The mailbox may not be changed (IMAP: NO \[READ-ONLY\]).
    #[error("the mailbox is read-only")]
    ReadOnly,
    /// The mailbox already exists (IMAP: NO \[ALREADYEXISTS\]).
    #[error("the mailbox already exists")]
    Exists,
    /// Another mailbox has that special use (IMAP: NO \[USEATTR\]).
    #[error("another mailbox has that special use")]
    UseTaken,
    /// Impossible for good (IMAP: NO \[CANNOT\]). The reason is a sentence for the user.
    #[error("{0}")]
    Cannot(&'static str),
    /// The disk is full (IMAP: NO \[OVERQUOTA\]). Nothing was changed.
    #[error("no room")]
    NoSpace,
    /// The account's quota is used up (IMAP: NO \[OVERQUOTA\]). Nothing was changed.
    #[error("the quota is used up")]
    OverQuota,
    /// A limit is exceeded: keywords, mailboxes, messages at once (IMAP: NO \[LIMIT\]). Nothing was changed.
    #[error("over a limit")]
    Limit,
    /// The message is longer than messages may be (IMAP: NO \[TOOBIG\]).
    #[error("the message is too big")]
    TooBig,
    /// A temporary failure (IMAP: NO \[UNAVAILABLE\]).
    #[error("not available now: {0}")]
    Unavailable(String),
}

/// A pending answer. Dropping it is safe at any time.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, MailstoreError>> + Send + 'a>>;
