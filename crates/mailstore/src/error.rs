//! Errors: one variant for each thing a protocol can do about it.

/// Why a call gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MailstoreError {
    /// No mailbox, or account, of that name or id (IMAP: NO \[NONEXISTENT\]). From [`advance`](crate::MailboxView::advance): the selected mailbox
    /// was removed, and the session ends.
    #[error("no such mailbox")]
    NoMailbox,
    /// The message is gone, or this view never had it. A FETCH leaves it out or answers NIL.
    #[error("no such message")]
    Gone,
    /// The message may not be read (IMAP: NO \[NOPERM\]). The operator has been told.
    #[error("no permission to read this")]
    NoPermission,
    /// The body is damaged, or is no mail (IMAP: NIL, and at the end NO \[CORRUPTION\]). The operator has been told.
    #[error("damaged: {0}")]
    Damaged(String),
    /// It may work later (IMAP: NO \[UNAVAILABLE\]).
    #[error("not available now: {0}")]
    Unavailable(String),
}
