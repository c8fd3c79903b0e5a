//! Replies for messages that the store cannot keep.

use posthaste_intake::{IntakeError, NotTaken};
use posthaste_smtp::Reply;

pub(crate) fn reply_to(error: &IntakeError) -> Reply {
    match error {
        IntakeError::TooLarge { .. } => Reply::new(552, "5.3.4", "Message and recipients are larger than can be kept"),
        IntakeError::NotTaken(not_taken) => reply_of(not_taken),
        IntakeError::Full(_) => Reply::new(452, "4.3.1", "No space to keep the message, try again later"),
        IntakeError::Busy => Reply::new(451, "4.3.2", "Too much mail waits to be written, try again later"),
        IntakeError::Cancelled => too_slow(),
        IntakeError::Closed => Reply::new(421, "4.3.2", "The server is shutting down"),
        _ => Reply::new(451, "4.3.0", "The message could not be kept, try again later"),
    }
}

/// The reply for a message that a destination refuses.
pub(crate) fn reply_of(not_taken: &NotTaken) -> Reply {
    Reply::new(not_taken.code, not_taken.status, not_taken.text.clone())
}

pub(crate) fn share_is_full() -> Reply {
    Reply::new(452, "4.3.1", "Too much of your mail is under way, try again later")
}

/// The reply of a node whose shard is on another node, or which cannot reach the engine.
pub(crate) fn is_standby() -> Reply {
    Reply::new(451, "4.3.2", "This node takes no mail now, try another one or again later")
}

pub(crate) fn too_slow() -> Reply {
    Reply::new(452, "4.3.1", "The storage is too slow, try again later")
}

#[cfg(test)]
mod tests {
    use posthaste_intake::NotTakenCause;
    use posthaste_spool::AppendError;

    use super::*;

    #[test]
    fn each_failure_has_its_reply() {
        let check = |error: IntakeError, expected: &str| {
            let reply = reply_to(&error).to_string();
            assert!(reply.starts_with(expected), "{error}: {reply}");
        };
        let error = |kind: std::io::ErrorKind| std::io::Error::from(kind);
        check(IntakeError::Full(error(std::io::ErrorKind::StorageFull)), "452 4.3.1 ");
        check(IntakeError::Busy, "451 4.3.2 ");
        check(IntakeError::Cancelled, "452 4.3.1 ");
        check(IntakeError::Closed, "421 4.3.2 ");
        check(IntakeError::Sync(error(std::io::ErrorKind::Other)), "451 4.3.0 ");
        check(AppendError::TooLarge { bytes: 2, limit: 1 }.into(), "552 5.3.4 ");
        check(AppendError::Poisoned("a sync failed".into()).into(), "451 4.3.0 ");
        check(AppendError::NotOwner.into(), "451 4.3.0 ");
        let (cause, text, why) = (NotTakenCause::PlaceFull, "full".into(), String::new());
        let full = NotTaken { cause, code: 452, status: "4.2.2", text, about: None, why };
        check(IntakeError::NotTaken(full), "452 4.2.2 full");
    }
}
