//! A message that waits, as it goes out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posthaste_notify::dsn::header_of;
use posthaste_relay::sender::Relay;
use posthaste_spool::Lsn;
use serde_json::json;

use super::{Answer, Outcome};

/// Its octets in base64, a piece on each line.
pub(super) fn cat(relay: &Relay, message: Lsn, is_header: bool, answer: Answer<'_>) -> Outcome {
    let bytes_max = if is_header { HEADER_BYTES_MAX } else { u64::MAX };
    let mut pieces = relay.content(message, bytes_max).map_err(|error| error.to_string())?;
    if is_header {
        pieces = vec![header_of(&pieces, HEADER_BYTES_MAX as usize).into()];
    }
    let mut bytes = 0;
    for piece in pieces.iter().flat_map(|piece| piece.chunks(PIECE_BYTES)) {
        bytes += piece.len();
        if !answer(json!({ "data": STANDARD.encode(piece) })) {
            break;
        }
    }
    Ok(json!({ "done": 1, "bytes": bytes }))
}

/// Of one line.
const PIECE_BYTES: usize = 48 << 10;
/// Of a longer header there is the beginning.
const HEADER_BYTES_MAX: u64 = 1 << 20;
