//! Has a spool let go of bodies that cannot be read, and names the mail that is lost with them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use posthaste_spool::{ClosedSpool, FileSpool, Lsn, SetAside, Spool};
use serde_json::{Value, json};

use crate::spool_access::config_for;
use crate::spool_waiting::{Waiting, all, date};

/// A body that nothing waits for any more.
pub struct GivenUp {
    batch: u64,
    why: String,
    /// What is left of it, if anything is.
    kept: Option<PathBuf>,
    /// The message, if a mailbox or transport waited for it.
    message: Option<Waiting>,
}

/// Keeps what is left of each body that cannot be read, and lets go of it. One that turns out to be whole stays.
pub fn give_up(dir: &Path, closed: ClosedSpool) -> Result<Vec<GivenUp>, Box<dyn std::error::Error>> {
    let unreadable = closed.unreadable_bodies()?;
    let mut messages: HashMap<u64, Waiting> = all(&closed)?.into_iter().map(|message| (message.id, message)).collect();
    drop(closed);
    if unreadable.is_empty() {
        return Ok(Vec::new());
    }
    let (spool, _) = FileSpool::open(dir, config_for(dir)?)?;
    let mut given_up = Vec::new();
    for (lsn, why) in unreadable {
        let kept = match spool.set_aside(lsn) {
            Ok(SetAside::Whole) => continue,
            Ok(SetAside::Kept(path)) => Some(path),
            Ok(SetAside::Gone { .. }) => None,
            Err(error) => return Err(format!("nothing is given up: batch {lsn} cannot be kept: {error}").into()),
        };
        given_up.push(GivenUp { batch: lsn.get(), why, kept, message: messages.remove(&lsn.get()) });
    }
    spool.give_up_bodies(&given_up.iter().map(|one| Lsn::new(one.batch)).collect::<Vec<_>>())?;
    Ok(given_up)
}

impl GivenUp {
    pub fn text(&self) -> String {
        let kept = self.kept.as_ref().map_or_else(
            || "nothing is left of it".to_owned(),
            |kept| format!("what is left of it: {}", kept.display()),
        );
        let message = match &self.message {
            None => "nothing waited for it".to_owned(),
            Some(message) => {
                let (received, places) = (date(message.received_secs), message.places().join(", "));
                format!("received {received}, {} bytes, not delivered to {places}", message.bytes)
            }
        };
        format!("GIVEN UP: batch {}: {}; {message}; {kept}\n", self.batch, self.why)
    }

    pub fn json(&self) -> Value {
        let message = self.message.as_ref();
        json!({
            "batch": self.batch, "why": self.why, "kept": self.kept,
            "received": message.map(|message| message.received_secs), "bytes": message.map(|message| message.bytes),
            "mailboxes": message.map(Waiting::places),
        })
    }
}
