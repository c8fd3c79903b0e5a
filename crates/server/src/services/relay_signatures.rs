//! Signatures of mail that this server writes itself, and of mail whose header changes as it leaves.

use bytes::Bytes;
use posthaste_directory::names::folded_domain;
use posthaste_dkim::{Draft, is_signed};
use posthaste_message::{Edit, HeaderEditor, RawField};
use posthaste_notify::dsn::DsnMessage;
use posthaste_relay::sender::{LeavingSigner, NotSigned as NotLeaving};
use posthaste_spool::FrontFields;

use crate::config::dkim::NotSigned;
use crate::ids::unix_micros;
use crate::receive::author::Author;
use crate::receive::handler::{Receiver, WeakReceiver};

/// Signs mail that `relay.maps.generic` has changed, with the keys in force.
pub(super) struct LeavingSignatures {
    receiver: WeakReceiver,
}

impl LeavingSignatures {
    pub fn of(receiver: &Receiver) -> Self {
        Self { receiver: receiver.downgrade() }
    }
}

impl LeavingSigner for LeavingSignatures {
    fn sign(&self, message: &[Bytes]) -> Result<String, NotLeaving> {
        let receiver = self.receiver.upgrade().ok_or_else(|| NotLeaving::Now("the server ends".to_owned()))?;
        let settings = receiver.settings();
        let (draft, author) = draft_of(message);
        let domain = author.signing().map(|author| author.domain().to_string());
        let Some(domain) = domain.as_deref().and_then(folded_domain) else { return Ok(String::new()) };
        // This host writes notices, which the domain above it signs.
        let of_host = settings.signers.at_or_above(&settings.authserv_id).filter(|_| domain == *settings.authserv_id);
        let signed = settings.signers.sign(of_host.unwrap_or(&domain), &draft, now(), 0);
        match &signed {
            Ok(fields) if fields.is_empty() => {}
            Ok(_) => receiver.meters().signed(),
            Err(_) => receiver.meters().not_signed(),
        }
        signed.map_err(|why| match why {
            NotSigned::Key(why) => NotLeaving::Now(why),
            NotSigned::Draft(error) => NotLeaving::Never(error.to_string()),
        })
    }
}

impl Receiver {
    /// The signature of a notification, by the nearest domain above our name that has a key. Blocks for the time of a signature.
    pub(super) fn sign_notice(&self, written: &DsnMessage) -> Result<FrontFields, String> {
        let settings = self.settings();
        let Some(domain) = settings.signers.at_or_above(&settings.authserv_id) else {
            return Ok(FrontFields::default());
        };
        match settings.signers.sign(domain, &draft_of(&written.message).0, now(), 0) {
            Ok(fields) => FrontFields::new(fields.into_bytes()).map_err(|error| error.to_string()),
            Err(NotSigned::Key(why)) => Err(why),
            // It says what became of a message all the same.
            Err(NotSigned::Draft(_)) => Ok(FrontFields::default()),
        }
    }
}

/// A message in pieces, as signatures see it, and its author.
fn draft_of(pieces: &[Bytes]) -> (Draft, Author) {
    let mut draft = Draft::default();
    let mut author = Author::default();
    let mut editor = HeaderEditor::default();
    let mut header = Vec::new();
    let add = |draft: &mut Draft, author: &mut Author, field: &RawField<'_>| {
        author.note(field);
        if field.is_whole {
            draft.field(field.bytes);
        } else if is_signed(field.name) {
            draft.field_too_large();
        }
        Edit::Keep
    };
    for piece in pieces {
        let mut add = |field: &RawField<'_>| add(&mut draft, &mut author, field);
        let taken = if editor.is_over() { 0 } else { editor.push(piece, &mut header, &mut add) };
        draft.body(&piece[taken..]);
        header.clear();
    }
    if !editor.is_over() {
        editor.finish(&mut header, &mut |field| add(&mut draft, &mut author, field));
    }
    (draft, author)
}

/// Current time, in seconds since 1970.
fn now() -> u64 {
    u64::try_from(unix_micros() / 1_000_000).unwrap_or_default()
}
