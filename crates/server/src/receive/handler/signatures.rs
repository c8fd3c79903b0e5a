//! Signatures of mail written here.

use posthaste_accounts::AuthorRight;
use posthaste_directory::Address;
use posthaste_directory::names::folded_domain;
use posthaste_smtp::Reply;
use posthaste_smtp::driver::Peer;

use super::checks::{Check, Checking, ReadMessage, Stop};
use crate::config::dkim::NotSigned;
use crate::ids::unix_micros;
use crate::repeats::Kind;

/// Signs a message of a domain with a key, in front of all other fields. The last check: the header does not change
/// after it.
pub(super) struct Signatures;

impl Check for Signatures {
    fn message<'a>(&'a self, message: &'a mut ReadMessage<'_>) -> Checking<'a> {
        Checking::Done(sign(message))
    }
}

fn sign(message: &mut ReadMessage<'_>) -> Result<(), Stop> {
    let Some(draft) = message.draft.take() else { return Ok(()) };
    let settings = message.settings;
    let author = message.author;
    let Some(author) = author.signing().filter(|author| may_sign_as(message, author)) else { return Ok(()) };
    message.mail.may_sign = true;
    let domain = author.domain().to_string();
    let Some(domain) = folded_domain(&domain) else { return Ok(()) };
    let now = u64::try_from(unix_micros() / 1_000_000).unwrap_or_default();
    match settings.signers.sign(&domain, &draft, now, message.mail.hold_secs.into()) {
        Ok(fields) => {
            if !fields.is_empty() {
                message.receiver.meters().signed();
                drop(message.front.splice(..0, fields.into_bytes()));
            }
            Ok(())
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

/// True if the author is one of the client's: `senders=any` is no right to a signature.
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
