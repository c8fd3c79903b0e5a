//! A waiting message, in its outgoing form.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posthaste_notify::dsn::header_of;
use posthaste_relay::sender::Relay;
use posthaste_spool::Lsn;
use serde_json::{Value, json};

use super::answering::{Answer, Outcome};
use super::asker::Asker;

/// Sends the octets of a message in base64, one piece a line.
pub(super) fn cat(relay: &Relay, asker: &Asker, message: Lsn, is_header: bool, answer: Answer<'_>) -> Outcome {
    let bytes_max = if is_header { HEADER_BYTES_MAX } else { u64::MAX };
    let mut pieces = asker.content(relay, message, bytes_max)?;
    if is_header {
        pieces = vec![header_of(&pieces, HEADER_BYTES_MAX as usize).into()];
    }
    Ok(in_pieces(pieces.iter().map(|piece| &**piece), answer))
}

/// Gives octets in base64, and returns the last line.
pub(super) fn in_pieces<'a>(octets: impl Iterator<Item = &'a [u8]>, answer: Answer<'_>) -> Value {
    let mut bytes = 0;
    for piece in octets.flat_map(|octets| octets.chunks(PIECE_BYTES)) {
        bytes += piece.len();
        if !answer(json!({ "data": STANDARD.encode(piece) })) {
            break;
        }
    }
    json!({ "done": 1, "bytes": bytes })
}

/// Octets of one line.
const PIECE_BYTES: usize = 48 << 10;
/// Maximum octets of a header; a longer one is truncated.
const HEADER_BYTES_MAX: u64 = 1 << 20;
