//! Answers to sessions whose requests fail.

use std::time::Duration;

use posthaste_spool::AppendError;

use crate::error::MailstoreError;
use crate::ledger::MailLedgerError;

/// A change that is not in a batch by then is withdrawn. The spool has such a limit for the batch.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

/// The error for a withdrawn change.
pub(super) fn no_answer() -> MailstoreError {
    MailstoreError::Unavailable("the disk does not answer".to_owned())
}

/// The error for a blocking call that never returned: the runtime is ending, or there is a bug.
pub(super) fn ended(error: tokio::task::JoinError) -> MailstoreError {
    MailstoreError::Unavailable(error.to_string())
}

/// The answer to a change that the ledger refuses.
pub(super) fn refusal(error: &MailLedgerError) -> MailstoreError {
    match error {
        MailLedgerError::Append(AppendError::Full(_)) => MailstoreError::NoSpace,
        MailLedgerError::Append(AppendError::TooLarge { .. } | AppendError::Entries(_))
        | MailLedgerError::OutOfUids => MailstoreError::Limit,
        _ => MailstoreError::Unavailable(error.to_string()),
    }
}

pub(super) fn unavailable(error: MailLedgerError) -> MailstoreError {
    MailstoreError::Unavailable(error.to_string())
}
