//! Drops a message that programs, files or LMTP servers refuse.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::channel;

use posthaste_spool::{Batch, Body, ClosedSpool, Entry, FileSpool, Lsn, Spool};
use posthaste_transport::inspect::{UnreachedTarget, undelivered};
use posthaste_transport::{STREAM, TransportEntry};
use serde_json::{Value, json};

use crate::spool_access::config_for;
use crate::spool_export::{Exported, Exporter};
use crate::terminal::harmless;

type AnyError = Box<dyn std::error::Error>;

/// Mail for transports to be dropped: a message, for one recipient or for all remaining ones.
pub struct Doomed {
    message: Lsn,
    targets: Vec<UnreachedTarget>,
}

impl Doomed {
    /// # Errors
    /// There is no such message, or not for this recipient.
    pub fn find(closed: &dyn ClosedSpool, id: Lsn, recipient: Option<&str>) -> Result<Self, AnyError> {
        let Some(message) = undelivered(closed)?.into_iter().find(|message| message.id == id.get()) else {
            let why =
                "waits for programs, files or LMTP servers; `posthaste spool inspect --messages` lists those that do";
            return Err(format!("no message {id} {why}").into());
        };
        let mut targets = message.targets;
        targets.retain(|to| recipient.is_none_or(|wanted| *to.target.recipient == *wanted));
        if targets.is_empty() {
            return Err(format!("message {id} does not wait for {}", recipient.unwrap_or_default()).into());
        }
        Ok(Doomed { message: id, targets })
    }

    /// Writes it into a new directory, durably.
    ///
    /// # Errors
    /// The directory exists, or the message cannot be read or written.
    pub fn export(&self, closed: &dyn ClosedSpool, to: &Path) -> Result<Exported, AnyError> {
        let mut exporter = Exporter::new(to, Some(STREAM))?;
        let mut written = Ok(());
        closed.export(&mut |batch| {
            if batch.lsn != self.message {
                return ControlFlow::Continue(());
            }
            written = exporter.write(&batch);
            ControlFlow::Break(())
        })?;
        written.map_err(|error| format!("{}: {error}", to.display()))?;
        Ok(exporter.finish()?)
    }

    /// Records in the spool that these targets no longer get it. Durable on return.
    ///
    /// # Errors
    /// The spool cannot be written; then nothing is dropped.
    pub fn drop_from(&self, dir: &Path) -> Result<(), AnyError> {
        let (spool, _) = FileSpool::open(dir, config_for(dir)?)?;
        let keys = self.targets.iter().map(|to| (self.message, to.number)).collect();
        let payload = TransportEntry::Done(keys).encode();
        let entry = Entry { stream: spool.stream(STREAM)?, needs_body: false, payload };
        let (tell, told) = channel();
        let batch = Batch { entries: vec![entry], body: Body::None };
        spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
        told.recv()??;
        Ok(())
    }

    pub fn text(&self) -> String {
        let one = |to: &UnreachedTarget| {
            let why = to
                .trouble
                .as_ref()
                .map_or_else(String::new, |trouble| format!(": {}", harmless(&trouble.error.said())));
            format!("dropped: message {} for {} at {}{why}\n", self.message, to.target.recipient, to.target.transport)
        };
        self.targets.iter().map(one).collect()
    }

    pub fn json(&self) -> Value {
        let one =
            |to: &UnreachedTarget| json!({"transport": &*to.target.transport, "recipient": &*to.target.recipient});
        json!({"message": self.message, "dropped": self.targets.iter().map(one).collect::<Vec<_>>()})
    }
}
