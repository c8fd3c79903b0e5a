//! Hashes of Message-IDs and subjects, for threading and for searches by id.

use posthaste_message::mime::base_subject;
use xxhash_rust::xxh3::xxh3_64;

use super::fold;

/// The hash of a Message-ID; 0 for none.
pub fn id_hash(id: &str) -> u64 {
    if id.is_empty() { 0 } else { xxh3_64(id.as_bytes()).max(1) }
}

/// Hash of a subject's base, with true if it marks a reply.
pub fn subject_hash(subject: &str) -> (u64, bool) {
    let base = base_subject(subject);
    let folded = fold(&base.text);
    (if folded.is_empty() { 0 } else { xxh3_64(folded.as_bytes()).max(1) }, base.is_reply)
}
