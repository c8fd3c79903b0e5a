//! Makes a spool give up unreadable and missing data, and names the mail lost with it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use posthaste_queue::QueueEntry;
use posthaste_relay::sender::STREAM as QUEUE;
use posthaste_spool::{ClosedFileSpool, ClosedSpool, Damage, FileSpool, Lsn, SetAside, Spool, SpoolAdmin};
use serde_json::{Value, json};

use crate::spool_access::{batches, config_for};
use crate::spool_inspect::{damage_json, damage_text};
use crate::spool_waiting::{Waiting, all, date};
use crate::terminal::harmless;

/// Abandoned data: no stream waits for the data any more.
#[derive(Default)]
pub struct GivenUp {
    /// Missing segments of the log.
    segments: Vec<u64>,
    /// Batches lost with them, or unknown to every checkpoint.
    lost: Vec<Damage>,
    /// Batches without a body that streams waited for. They may have had records about other mail.
    entries: Vec<Lsn>,
    bodies: Vec<LostBody>,
}

/// An abandoned body.
struct LostBody {
    batch: Lsn,
    why: String,
    /// Copy of the rest of the body, if any.
    kept: Option<PathBuf>,
    /// The message, if a mailbox or transport was waiting for it.
    message: Option<Waiting>,
    /// Recipients at other hosts, including those already delivered. Empty if their names are lost.
    remote: Option<Vec<String>>,
}

/// Gives up missing segments, lost batches and unreadable bodies, after copying the rest of each body. A body that
/// proves intact is kept.
pub fn give_up(dir: &Path, closed: ClosedFileSpool) -> Result<GivenUp, Box<dyn std::error::Error>> {
    let unreadable = closed.unreadable_bodies()?;
    let segments = closed.missing().to_vec();
    let entries = closed.lost_entries()?;
    let mut given_up = GivenUp { segments, entries, ..GivenUp::default() };
    let mut messages: HashMap<Lsn, Waiting> = all(&closed)?.into_iter().map(|message| (message.id, message)).collect();
    let mut recipients = remote(&closed)?;
    let is_remote: Vec<bool> = unreadable.iter().map(|(lsn, _)| closed.needed_by(*lsn).contains(&QUEUE)).collect();
    let is_damaged = has_lost_batches(&closed)?;
    drop(closed);
    if unreadable.is_empty() && given_up.is_empty() && !is_damaged {
        return Ok(given_up);
    }
    let mut config = config_for(dir)?;
    config.ring.gives_up_missing = true;
    let (spool, report) = FileSpool::open(dir, config)?;
    let is_other = |damage: &Damage| unreadable.iter().all(|(lsn, _)| damage.lsn != Some(*lsn));
    given_up.lost = report.damage.into_iter().filter(is_other).collect();
    for ((lsn, why), is_remote) in unreadable.into_iter().zip(is_remote) {
        let kept = match spool.set_aside(lsn) {
            Ok(SetAside::Whole) => continue,
            Ok(SetAside::Kept(path)) => Some(path),
            Ok(SetAside::Gone { .. }) => None,
            Err(error) => return Err(format!("nothing is given up: batch {lsn} cannot be kept: {error}").into()),
        };
        let message = messages.remove(&lsn);
        let remote = is_remote.then(|| recipients.remove(&lsn).unwrap_or_default());
        given_up.bodies.push(LostBody { batch: lsn, why, kept, message, remote });
    }
    let bodies = given_up.bodies.iter().map(|one| one.batch);
    spool.give_up_bodies(&bodies.chain(given_up.entries.iter().copied()).collect::<Vec<_>>())?;
    Ok(given_up)
}

/// True if batches are damaged or missing. The next opening reports the losses.
pub fn has_lost_batches(closed: &ClosedFileSpool) -> std::io::Result<bool> {
    Ok(closed.inspect()?.damage.iter().any(|damage| damage.lsn.is_some()))
}

/// The recipients at other hosts of each message.
fn remote(closed: &dyn ClosedSpool) -> std::io::Result<HashMap<Lsn, Vec<String>>> {
    let mut all = HashMap::new();
    closed.entries(&mut |stream, lsn, payload, _| {
        let queued = QueueEntry::decode(payload).ok().filter(|_| stream == QUEUE).and_then(QueueEntry::into_message);
        if let Some(queued) = queued {
            let names = queued.recipients.iter().map(|recipient| harmless(&recipient.address)).collect();
            all.insert(lsn, names);
        }
    })?;
    Ok(all)
}

impl GivenUp {
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.lost.is_empty() && self.entries.is_empty() && self.bodies.is_empty()
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        if !self.segments.is_empty() {
            let numbers: Vec<String> = self.segments.iter().map(u64::to_string).collect();
            text += &format!("GIVEN UP: segments of the log: {}\n", numbers.join(", "));
        }
        text += &damage_text(&self.lost, "LOST");
        if !self.entries.is_empty() {
            text += &format!("GIVEN UP: what {} said of other mail\n", batches(self.entries.len() as u64));
        }
        if !self.segments.is_empty() || !self.lost.is_empty() || !self.entries.is_empty() {
            text += "recipients that other hosts may have had mail for are held from the next start on: `posthaste queue list --held`\n";
        }
        text + &self.bodies.iter().map(LostBody::text).collect::<String>()
    }

    pub fn json(&self) -> Value {
        self.bodies.iter().map(LostBody::json).collect()
    }

    pub fn segments_json(&self) -> Value {
        json!({"segments": self.segments, "lost": damage_json(&self.lost), "entries": self.entries})
    }
}

impl LostBody {
    fn text(&self) -> String {
        let kept = self.kept.as_ref().map_or_else(
            || "nothing is left of it".to_owned(),
            |kept| format!("what is left of it: {}", kept.display()),
        );
        let mut waited = Vec::new();
        if let Some(message) = &self.message {
            let received = date(message.received_secs);
            let places = message.places().join(", ");
            waited.push(format!("received {received}, {} bytes, not delivered to {places}", message.bytes));
        }
        match self.remote.as_deref() {
            None => {}
            Some([]) => waited.push("not sent to recipients at other hosts, whose names are lost with it".to_owned()),
            Some(names) => waited.push(format!(
                "for other hosts, not sent to the remaining recipients, and its sender is notified: {}",
                names.join(", ")
            )),
        }
        if waited.is_empty() {
            waited.push("nothing waited for it".to_owned());
        }
        format!("GIVEN UP: batch {}: {}; {}; {kept}\n", self.batch, self.why, waited.join("; "))
    }

    fn json(&self) -> Value {
        let message = self.message.as_ref();
        json!({
            "batch": self.batch, "why": self.why, "kept": self.kept,
            "received": message.map(|message| message.received_secs), "bytes": message.map(|message| message.bytes),
            "mailboxes": message.map(Waiting::places), "remote": self.remote,
        })
    }
}
