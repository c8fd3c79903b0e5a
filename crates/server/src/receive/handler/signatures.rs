//! Signatures of mail that originates here.

use posthaste_accounts::AuthorRight;
use posthaste_directory::Address;
use posthaste_directory::names::folded_domain;
use posthaste_smtp::Reply;
use posthaste_smtp::driver::Peer;

use super::receiver::{Check, Checking, ReadMessage, Stop};
use crate::config::dkim::NotSigned;
use crate::ids::unix_micros;
use crate::repeats::Kind;

/// Signs a message of a domain with a key, in front of all other fields. The last check: the header does not change
/// after it.
pub(super) struct Signatures;

impl Check for Signatures {
    fn message<'a>(&'a self, message: &'a mut ReadMessage<'_>) -> Checking<'a> {
        match sign(message) {
            Ok(true) => Checking::Waiting(Box::pin(async {
                after_others().await;
                Ok(())
            })),
            Ok(false) => Checking::Done(Ok(())),
            Err(stop) => Checking::Done(Err(stop)),
        }
    }
}

/// Lets the ready tasks run first, so that messages waiting together are signed together and share a batch. A signature
/// takes as long as all other work on a message. Messages handed over one by one would each wake the spool, the relay
/// and a client.
async fn after_others() {
    tokio::task::yield_now().await;
}

/// Signs the message, if it may be signed. False if it was not.
fn sign(message: &mut ReadMessage<'_>) -> Result<bool, Stop> {
    let Some(draft) = message.draft.take() else { return Ok(false) };
    let settings = message.settings;
    let author = message.author;
    let Some(author) = author.signing().filter(|author| may_sign_as(message, author)) else { return Ok(false) };
    message.mail.may_sign = true;
    let domain = author.domain().to_string();
    let Some(domain) = folded_domain(&domain) else { return Ok(false) };
    let now = u64::try_from(unix_micros() / 1_000_000).unwrap_or_default();
    match settings.signers.sign(&domain, &draft, now, message.mail.hold_secs.into()) {
        Ok(fields) => {
            let is_signed = !fields.is_empty();
            if is_signed {
                message.receiver.meters().signed();
                drop(message.front.splice(..0, fields.into_bytes()));
            }
            Ok(is_signed)
        }
        Err(NotSigned::Key(why)) => {
            message.receiver.meters().not_signed();
            let reply = Reply::new(451, "4.7.5", "Mail of this domain cannot be signed now, try again later");
            let about = Some(domain.into_owned());
            Err(Stop { kind: Some(Kind::NotSigned), about, ..Stop::because(reply, why) })
        }
        Err(NotSigned::Draft(error)) => {
            let reply = Reply::new(554, "5.6.0", format!("The message cannot be signed: {error}"));
            Err(Stop::because(reply, error.to_string()))
        }
    }
}

/// True if the author belongs to the client: `senders=any` alone does not permit a signature.
fn may_sign_as(message: &ReadMessage<'_>, author: &Address) -> bool {
    let ReadMessage { settings, session, .. } = message;
    if let Some((name, login)) = settings.login(session) {
        return login.author_right(Some(author), name, &settings.directory) == Some(AuthorRight::Own);
    }
    match session.peer {
        // Whom a token may write as was checked with its request.
        Peer::Local { .. } | Peer::Token { .. } => true,
        _ => settings.tenants.owns(&message.mail.tenant, author),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::join;

    use super::*;

    #[tokio::test]
    async fn messages_that_wait_are_all_signed_before_one_goes_on() {
        let seen = Mutex::new(Vec::new());
        let message = async || {
            seen.lock().unwrap().push("signed");
            after_others().await;
            seen.lock().unwrap().push("handed over");
        };
        join!(message(), message(), message());
        assert_eq!(*seen.lock().unwrap(), [["signed"; 3], ["handed over"; 3]].concat());
    }
}
