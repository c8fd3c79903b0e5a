//! What a client is told when the store cannot keep its message.

use posthaste_delivery::DeliveryError;
use posthaste_smtp::Reply;

pub(crate) fn reply_to(error: &DeliveryError) -> Reply {
    match error {
        DeliveryError::TooLarge { .. } => {
            Reply::new(552, "5.3.4", "Message and recipients are larger than can be kept")
        }
        DeliveryError::BadMailbox(_) => Reply::new(550, "5.1.3", "Not a mailbox name that can be used here"),
        DeliveryError::Full(_) => Reply::new(452, "4.3.1", "No space to keep the message, try again later"),
        DeliveryError::Busy => Reply::new(451, "4.3.2", "Too much mail waits to be written, try again later"),
        DeliveryError::Cancelled => too_slow(),
        DeliveryError::Closed => Reply::new(421, "4.3.2", "The server is shutting down"),
        _ => Reply::new(451, "4.3.0", "The message could not be kept, try again later"),
    }
}

pub(crate) fn share_is_full() -> Reply {
    Reply::new(452, "4.3.1", "Too much of your mail is under way, try again later")
}

pub(crate) fn too_slow() -> Reply {
    Reply::new(452, "4.3.1", "The storage is too slow, try again later")
}

#[cfg(test)]
mod tests {
    use posthaste_intake::IntakeError;
    use posthaste_spool::AppendError;

    use super::*;

    #[test]
    fn each_failure_has_its_reply() {
        let check = |error: DeliveryError, expected: &str| {
            let reply = reply_to(&error).to_string();
            assert!(reply.starts_with(expected), "{error}: {reply}");
        };
        let error = |kind: std::io::ErrorKind| std::io::Error::from(kind);
        check(DeliveryError::Full(error(std::io::ErrorKind::StorageFull)), "452 4.3.1 ");
        check(DeliveryError::Busy, "451 4.3.2 ");
        check(DeliveryError::Cancelled, "452 4.3.1 ");
        check(DeliveryError::Closed, "421 4.3.2 ");
        check(DeliveryError::Sync(error(std::io::ErrorKind::Other)), "451 4.3.0 ");
        check(IntakeError::from(AppendError::TooLarge { bytes: 2, limit: 1 }).into(), "552 5.3.4 ");
        check(IntakeError::from(AppendError::Poisoned("a sync failed".into())).into(), "451 4.3.0 ");
        check(DeliveryError::BadMailbox("..".into()), "550 5.1.3 ");
    }
}
