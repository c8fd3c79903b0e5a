//! Messages for another queue.

use aws_lc_rs::digest::{Context, SHA256};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posthaste_control::Which;
use posthaste_relay::sender::{ControlError, Exported, Relay};
use serde_json::json;

use super::answering::{Answer, Outcome, as_json};
use super::asker::Asker;
use super::scopes::filter;
use super::transfer::{End, FORMAT, Head, Line, Recipient, VERSION, hex};
use crate::ids::unix_micros;

/// Exports matching recipients, each message in several lines. `hold`: they are held here from now on.
pub(super) fn export(
    relays: &[Relay],
    asker: &Asker,
    host: &str,
    of: &Which,
    hold: bool,
    answer: Answer<'_>,
) -> Outcome {
    let exported = u64::try_from(unix_micros() / 1_000_000).unwrap_or_default();
    let first = Line::First { format: FORMAT.to_owned(), version: VERSION, host: host.to_owned(), exported };
    if !answer(as_json(&first)) {
        return Ok(json!({ "done": 0 }));
    }
    let (mut messages, mut broken, mut recipients, mut under_way) = (0, 0, 0, 0);
    let by = asker.by("exported");
    for relay in relays {
        let mut show = |message: Exported| match say(relay, &message, answer) {
            Ok(goes_on) => {
                messages += 1;
                goes_on
            }
            Err(error) => {
                broken += 1;
                answer(as_json(&Line::Broken { broken: error.to_string() }))
            }
        };
        let count = relay.export(&filter(of), hold.then_some(&by), &mut show).map_err(|error| error.to_string())?;
        recipients += count.recipients;
        under_way += count.under_way;
    }
    let uid = asker.uid;
    tracing::info!(uid, messages, recipients, under_way, broken, hold, "the operator has exported mail of the queue");
    Ok(as_json(&Line::Last { done: messages, recipients, under_way, broken }))
}

/// Writes a message; true while the client listens.
fn say(relay: &Relay, message: &Exported, answer: Answer<'_>) -> Result<bool, ControlError> {
    let len = relay.content_len(message.message)?;
    let (mut at, mut content, mut all) = (0, Context::new(&SHA256), Context::new(&SHA256));
    let mut envelope = |line: Line| {
        let line = as_json(&line);
        all.update(format!("{line}\n").as_bytes());
        answer(line)
    };
    let mut goes_on = envelope(Line::Message { message: Head::new(message, len) });
    for recipient in &message.recipients {
        goes_on = goes_on && envelope(Line::Recipient { recipient: Recipient::new(recipient) });
    }
    while goes_on {
        let piece = relay.content_piece(message.message, at, len)?;
        if piece.is_empty() {
            break;
        }
        content.update(&piece);
        all.update(&piece);
        at += piece.len() as u64;
        for piece in piece.chunks(LINE_BYTES) {
            goes_on = goes_on && answer(as_json(&Line::Data { data: STANDARD.encode(piece) }));
        }
    }
    if !goes_on {
        return Ok(false);
    }
    let origin = relay.origin(message.message, content.finish().as_ref())?.to_string();
    all.update(origin.as_bytes());
    Ok(answer(as_json(&Line::End { end: End { origin, bytes: at, sha256: hex(all.finish().as_ref()) } })))
}

/// Bytes of the message in one line.
const LINE_BYTES: usize = 48 << 10;
