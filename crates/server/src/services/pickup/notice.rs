//! Notifications of refused recipients to a sender: the program that sent the mail has already ended (RFC 3464).

use std::ffi::OsStr;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_intake::notify;
use posthaste_notify::dsn::{DsnAction, DsnMessage, Notification, Recipient, Returned, Wording, header_of};
use posthaste_pickup::{PickupHead, PickupMessage, PickupReadError};
use posthaste_smtp::{RcptTo, Reply, Ret};
use tokio::task::spawn_blocking;

use super::settle::Place;
use crate::config::forward::now;
use crate::receive::handler::Receiver;
use crate::receive::success::{HEADER_BYTES_MAX, random_id};
use crate::receive::transaction::notify_when;

/// Why a sender is not notified.
#[derive(Debug)]
pub(super) enum TellError {
    /// The file is permanently unreadable: it is set aside unchanged.
    Damaged(PickupReadError),
    /// Not now: refuse the recipients again later, and notify the sender then.
    NotNow(String),
}

/// Notifies the sender of a file of its refused recipients, durably, unless the sender is empty or asked for no
/// notice.
///
/// # Errors
/// See [`TellError`].
pub(super) async fn tell(
    receiver: &Receiver,
    place: &Arc<Place>,
    name: &OsStr,
    refused: &[(RcptTo, Reply)],
) -> Result<(), TellError> {
    if refused.is_empty() {
        return Ok(());
    }
    let within = Arc::clone(place);
    let own = name.to_owned();
    let returned_max = receiver.settings().returned_bytes;
    let read = spawn_blocking(move || read(&within, &own, returned_max)).await;
    let (head, body, is_whole) = match read.unwrap_or_else(|error| Err(PickupReadError::Io(error.into()))) {
        Err(PickupReadError::Gone) => return Ok(()),
        Err(error) if error.is_final() => return Err(TellError::Damaged(error)),
        read => read.map_err(|error| TellError::NotNow(error.to_string()))?,
    };
    let sender = &*head.mail.reverse_path.bare();
    let told: Vec<&(RcptTo, Reply)> =
        refused.iter().filter(|(rcpt, _)| DsnAction::Failed.is_told(sender, notify::bits(notify_when(rcpt)))).collect();
    if told.is_empty() || !receiver.may_tell_program(sender) {
        return Ok(());
    }
    let wording = receiver.remote().wording();
    let header = if is_whole { Vec::new() } else { header_of(&body, HEADER_BYTES_MAX) };
    let returned = if is_whole { Returned::Message(&body) } else { Returned::Header(&header) };
    let written = write(&receiver.settings().host_name, &wording, &head, &told, returned);
    receiver.notify(sender, written, None, None).await.map(drop).map_err(TellError::NotNow)
}

/// The envelope and the message: all of it to be returned, or its beginning.
fn read(place: &Place, name: &OsStr, returned_max: u64) -> Result<(PickupHead, Vec<Bytes>, bool), PickupReadError> {
    let mut message = PickupMessage::open(&place.directory, name)?;
    let is_whole = message.head().mail.ret != Some(Ret::Headers) && message.bytes() <= returned_max;
    let mut body = Vec::new();
    let mut bytes = 0;
    while (is_whole || bytes <= HEADER_BYTES_MAX)
        && let Some(piece) = message.read()?
    {
        bytes += piece.len();
        body.push(piece);
    }
    Ok((message.head().clone(), body, is_whole))
}

fn write(
    host_name: &str,
    wording: &Wording,
    head: &PickupHead,
    told: &[&(RcptTo, Reply)],
    returned: Returned<'_>,
) -> DsnMessage {
    let texts: Vec<(String, String)> =
        told.iter().map(|(rcpt, reply)| (rcpt.forward_path.bare(), reply.to_string())).collect();
    let recipients: Vec<Recipient<'_>> = told
        .iter()
        .zip(&texts)
        .map(|((rcpt, reply), (address, text))| Recipient {
            address,
            orcpt: rcpt.orcpt.as_deref().unwrap_or_default(),
            action: DsnAction::Failed,
            status: reply.enhanced().map_or((5, 0, 0), |code| (5, code.subject, code.detail)),
            reply: text,
            host: "",
            last_attempt: now(),
        })
        .collect();
    Notification {
        reporting_host: host_name,
        to: &head.mail.reverse_path.bare(),
        is_double_bounce: false,
        envid: head.mail.envid.as_deref().unwrap_or_default(),
        received: now(),
        now: now(),
        id: random_id(),
        recipients: &recipients,
        returned,
        wording,
    }
    .write()
}
