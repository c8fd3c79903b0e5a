//! Mail as it leaves: addresses by the map `generic`, and new signatures where that changes a header.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use posthaste_message::rewrite::AddressMap;
use posthaste_queue::Transaction;
use posthaste_smtp::{MailFrom, RcptTo};
use tokio::task::JoinHandle;

use super::messages::{LoadError, Loaded, Unloaded};
use super::shared::Shared;

/// A message on its way out.
pub(super) enum Leaving {
    /// Its header is final.
    Now(Loaded),
    /// It is being signed; the task returns the message.
    Signing(JoinHandle<Result<Loaded, Unloaded>>),
}

/// Rewrites the addresses of a transaction's message by `generic`. If its header changes, and its author's domain may
/// sign, it is signed once for all its transactions.
pub(super) fn rewritten(shared: &Arc<Shared>, transaction: &Transaction, loaded: Loaded) -> Leaving {
    let changed = shared.generic().and_then(|generic| Some((generic.message(&loaded.body)?, generic)));
    let Some((body, generic)) = changed else { return Leaving::Now(loaded) };
    let mut loaded = Loaded { body, is_leaving: true, ..loaded };
    let Some(signer) = shared.config.signer.clone().filter(|_| loaded.envelope.queued.may_sign) else {
        return Leaving::Now(loaded);
    };
    let is_split = loaded.envelope.queued.recipients.len() > transaction.recipients.len();
    let shared = Arc::clone(shared);
    let message = transaction.message;
    Leaving::Signing(tokio::task::spawn_blocking(move || {
        drop_signatures(&mut loaded.body);
        let sign = || signer.sign(&loaded.body).map(Bytes::from);
        let signed = if is_split { shared.signatures.of(message, &generic, sign) } else { sign() };
        match signed {
            Ok(fields) => {
                loaded.body.insert(0, fields);
                Ok(loaded)
            }
            Err(why) => Err(Unloaded { error: LoadError::NotSigned(why), envelope: Some(loaded.envelope) }),
        }
    }))
}

/// Removes the signatures that were made when the message was accepted. They precede all fields that came with it.
fn drop_signatures(message: &mut [Bytes]) {
    let Some(header) = message.first_mut() else { return };
    while header.starts_with(SIGNATURE) {
        let is_end = |line: &&[u8]| !matches!(line, [b' ' | b'\t', ..]);
        let mut lines = header.split_inclusive(|octet| *octet == b'\n');
        let first = lines.next().map_or(0, <[u8]>::len);
        let folded: usize = lines.take_while(|line| !is_end(line)).map(<[u8]>::len).sum();
        header.advance(first + folded);
    }
}

/// Rewrites the addresses of the envelope.
pub(super) fn rewrite(generic: &AddressMap, mail: &mut MailFrom, recipients: &mut [RcptTo]) {
    if let Some(other) = mail.reverse_path.address().and_then(|sender| generic.address(sender)) {
        mail.reverse_path = other.into();
    }
    for rcpt in recipients {
        if let Some(other) = rcpt.forward_path.address().and_then(|recipient| generic.address(recipient)) {
            rcpt.forward_path = other.into();
        }
    }
}

const SIGNATURE: &[u8] = b"DKIM-Signature: ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_signatures_are_taken_out() {
        let check = |text: &'static str, expected: &str| {
            let mut message = [Bytes::from_static(text.as_bytes()), Bytes::from_static(b"DKIM-Signature: body")];
            drop_signatures(&mut message);
            assert_eq!(message.concat(), [expected.as_bytes(), b"DKIM-Signature: body"].concat(), "{text:?}");
        };
        check("DKIM-Signature: a\r\n\tb\r\n c\r\nDKIM-Signature: d\r\nReceived: x\r\n\r\n", "Received: x\r\n\r\n");
        let theirs = "Received: x\r\nDKIM-Signature: a\r\n\r\n";
        check(theirs, theirs);
        check("DKIM-Signature: a", "");
        check("", "");
        drop_signatures(&mut []);
    }
}
