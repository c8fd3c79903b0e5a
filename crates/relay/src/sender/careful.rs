//! Attempts after a crash: each attempt of a message that waited during the crash is recorded before it begins, to find
//! a message that crashes the server.
//!
//! After a clean end nothing is recorded, nor for messages received since the start: at a second crash they have
//! waited.

use std::sync::Arc;
use std::time::Duration;

use posthaste_consumer::append_within;

use super::messages::{LoadError, Loaded, Unloaded};
use super::shared::Shared;
use posthaste_queue::{Change, RecipientKey, Transaction, What};

/// Makes the start of an attempt durable, and loads the message. Blocks.
pub(super) fn begin(shared: &Arc<Shared>, transaction: &Transaction) -> Result<Loaded, Unloaded> {
    let message = transaction.message;
    let begun = transaction.recipients.iter().map(|taken| {
        let key = RecipientKey { message, number: taken.number };
        Change { key, what: What::Begun { crashes: taken.crashes } }
    });
    let begun: Vec<Change> = begun.collect();
    let noted =
        append_within(&shared.spool, vec![shared.outcomes.recorder.entry(shared.time.now(), &begun)], Duration::ZERO);
    noted.map_err(|error| LoadError::Now(error.to_string()))?;
    shared.messages.load(message)
}
