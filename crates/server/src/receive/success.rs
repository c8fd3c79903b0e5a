//! Success notifications for local recipients (NOTIFY=SUCCESS, RFC 3461 section 4.1), on servers without a queue to
//! send them.

use std::hash::{BuildHasher, Hasher, RandomState};

use bytes::Bytes;
use posthaste_intake::SuccessHere;
use posthaste_notify::dsn::{DsnAction, DsnMessage, Notification, Recipient, Returned, Wording, header_of};
use posthaste_smtp::Envelope;
use posthaste_spool::{FrontFields, MessageReader};

use crate::config::forward::now;

/// The header of a message, for its notification: front fields first.
pub(crate) fn header(front: &FrontFields, pieces: &[Bytes]) -> Vec<u8> {
    let read = MessageReader::of_draft(front, pieces).pieces(HEADER_BYTES_MAX as u64 + 1);
    // It is in memory, so there is no error.
    header_of(&read.unwrap_or_default(), HEADER_BYTES_MAX)
}

/// Notifies the sender of an envelope of at least one success.
pub(crate) fn write(
    host_name: &str,
    wording: &Wording,
    envelope: &Envelope,
    successes: &[SuccessHere],
    header: &[u8],
) -> DsnMessage {
    let mut recipients = Vec::with_capacity(successes.len());
    for SuccessHere { address, orcpt, is_mailbox } in successes {
        let (action, status) =
            if *is_mailbox { (DsnAction::Delivered, (2, 1, 5)) } else { (DsnAction::Relayed, (2, 0, 0)) };
        recipients.push(Recipient { address, orcpt, action, status, reply: "", host: "", last_attempt: now() });
    }
    Notification {
        reporting_host: host_name,
        to: &envelope.mail.reverse_path.bare(),
        is_double_bounce: false,
        envid: envelope.mail.envid.as_deref().unwrap_or_default(),
        received: now(),
        now: now(),
        id: random_id(),
        recipients: &recipients,
        returned: Returned::Header(header),
        wording,
    }
    .write()
}

/// Unpredictable, unique id of a notification.
pub(crate) fn random_id() -> u128 {
    u128::from(random()) << 64 | u128::from(random())
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Maximum bytes of a returned header.
pub(crate) const HEADER_BYTES_MAX: usize = 64 << 10;
