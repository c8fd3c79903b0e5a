//! Hashes by which messages are joined to threads, and by which their ids are found.

use xxhash_rust::xxh3::xxh3_64;

use super::{base_subject, fold};

/// The hash of a Message-ID; 0 for none.
pub fn id_hash(id: &str) -> u64 {
    if id.is_empty() { 0 } else { xxh3_64(id.as_bytes()).max(1) }
}

/// The hash of a subject's base, and whether it marks a reply.
pub fn subject_hash(subject: &str) -> (u64, bool) {
    let base = base_subject(subject);
    let folded = fold(&base.text);
    (if folded.is_empty() { 0 } else { xxh3_64(folded.as_bytes()).max(1) }, base.is_reply)
}
