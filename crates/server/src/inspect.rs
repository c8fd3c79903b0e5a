//! `posthaste journal inspect|verify`: what a journal holds, for people and as JSON.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use posthaste_delivery::inspect::{Trouble, Undelivered, inspect};
use posthaste_journal::inspect::Report;
use posthaste_message::DateTime;
use posthaste_units::count;
use serde_json::{Value, json};

/// What is known about a journal, ready to print.
#[derive(Debug)]
pub struct JournalReport {
    journal: Report,
    undelivered: Vec<Undelivered>,
}

/// Reads the journal in `dir`, also beside a running server. Nothing is changed.
///
/// # Errors
/// What the file system said, or that there is no journal, with the directory's name.
pub fn inspect_journal(dir: &Path) -> io::Result<JournalReport> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
    let (journal, undelivered) = inspect(dir).map_err(named)?;
    Ok(JournalReport { journal, undelivered })
}

impl JournalReport {
    /// Whether everything that was promised to be durable is whole. A torn tail promises nothing.
    pub fn is_sound(&self) -> bool {
        self.journal.first_broken_promise().is_none()
    }

    /// Segments, live records, how much mail waits for each mailbox, and damage as text.
    pub fn to_text(&self) -> String {
        let report = &self.journal;
        let mut out = String::new();
        for segment in &report.segments {
            let state = if segment.in_service { "in service" } else { "free" };
            let place = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
            let _ = writeln!(
                out,
                "{}  {state}, {} bytes, number {}, epoch {}\n    {} to byte {}, {} live, {} bytes",
                segment.name,
                segment.bytes,
                place(segment.number),
                place(segment.epoch),
                count(segment.records, "record"),
                segment.used,
                segment.live_records,
                segment.live_bytes,
            );
        }
        let live_bytes: u64 = report.live.iter().map(|&(_, _, bytes)| u64::from(bytes)).sum();
        let _ = writeln!(
            out,
            "live: {}, {live_bytes} bytes; {} not in all mailboxes yet",
            count(report.live.len(), "record"),
            count(self.undelivered.len(), "message")
        );
        for total in self.by_mailbox() {
            let oldest = date(total.oldest_secs);
            let _ = write!(
                out,
                "waiting {}  {}, {} bytes, oldest {oldest}",
                total.mailbox,
                count(total.messages, "message"),
                total.bytes
            );
            let _ = match total.trouble {
                None => writeln!(out, "  being delivered"),
                Some(Trouble { attempts, next_try_secs, error }) => {
                    let next = date(*next_try_secs);
                    writeln!(out, "\n    failed {}, next try {next}: {error}", count(*attempts, "time"))
                }
            };
        }
        let checkpoint = report.checkpoint.map_or_else(|| "none".to_owned(), |number| number.to_string());
        let _ = writeln!(out, "last checkpoint: {checkpoint}");
        out + &self.verdict()
    }

    /// Each message that waits, and for which mailboxes.
    pub fn messages(&self) -> String {
        let mut out = String::new();
        for message in &self.undelivered {
            let received = date(message.received_secs);
            let _ = writeln!(out, "undelivered {}  {} bytes  received {received}", message.id, message.bytes);
            for to in &message.mailboxes {
                let _ = writeln!(out, "  {}", to.mailbox);
            }
        }
        out
    }

    /// What waits for each mailbox, the mailboxes for which the most messages wait first.
    fn by_mailbox(&self) -> Vec<MailboxTotal<'_>> {
        let mut totals: HashMap<&str, MailboxTotal<'_>> = HashMap::new();
        for message in &self.undelivered {
            for to in &message.mailboxes {
                let total = totals.entry(&to.mailbox).or_insert(MailboxTotal {
                    mailbox: &to.mailbox,
                    messages: 0,
                    bytes: 0,
                    oldest_secs: message.received_secs,
                    trouble: to.trouble.as_ref(),
                });
                total.messages += 1;
                total.bytes += message.bytes;
                total.oldest_secs = total.oldest_secs.min(message.received_secs);
            }
        }
        let mut totals: Vec<MailboxTotal<'_>> = totals.into_values().collect();
        totals.sort_by(|a, b| b.messages.cmp(&a.messages).then(a.mailbox.cmp(b.mailbox)));
        totals
    }

    /// The damage alone, or that there is none.
    pub fn verdict(&self) -> String {
        let mut out = String::new();
        for damage in &self.journal.damage {
            let what = if damage.promised { "DAMAGED" } else { "torn tail" };
            let _ = writeln!(out, "{what}: {} at byte {}: {}", damage.segment, damage.offset, damage.what);
        }
        for file in &self.journal.set_aside {
            let _ = writeln!(out, "damaged, set aside at an earlier start: {file}");
        }
        if self.is_sound() {
            let live = self.journal.live.len();
            let _ = writeln!(out, "sound: every acknowledged record is intact, {live} live");
        }
        out
    }

    /// Everything as JSON.
    pub fn to_json(&self) -> String {
        let report = &self.journal;
        let segments: Vec<Value> = report
            .segments
            .iter()
            .map(|segment| {
                json!({
                    "name": segment.name, "bytes": segment.bytes, "number": segment.number, "epoch": segment.epoch,
                    "records": segment.records, "used_bytes": segment.used, "live_records": segment.live_records,
                    "live_bytes": segment.live_bytes, "in_service": segment.in_service,
                })
            })
            .collect();
        let live: Vec<Value> =
            report.live.iter().map(|(id, kind, bytes)| json!({"id": id, "kind": kind, "bytes": bytes})).collect();
        let undelivered: Vec<Value> = self.undelivered.iter().map(undelivered_json).collect();
        let waiting = self.by_mailbox().into_iter().map(|total| {
            json!({
                "mailbox": total.mailbox, "messages": total.messages, "bytes": total.bytes, "oldest": total.oldest_secs,
                "attempts": total.trouble.map(|trouble| trouble.attempts),
                "next_try": total.trouble.map(|trouble| trouble.next_try_secs),
                "error": total.trouble.map(|trouble| &*trouble.error),
            })
        });
        let waiting: Vec<Value> = waiting.collect();
        let damage: Vec<Value> = report
            .damage
            .iter()
            .map(|damage| {
                json!({
                    "segment": damage.segment, "offset": damage.offset, "promised": damage.promised,
                    "what": damage.what, "sequences": damage.seqs,
                })
            })
            .collect();
        let all = json!({
            "sound": self.is_sound(), "checkpoint": report.checkpoint, "segments": segments, "live": live,
            "waiting": waiting, "undelivered": undelivered, "damage": damage, "set_aside": report.set_aside,
        });
        format!("{all:#}\n")
    }
}

/// What waits for one mailbox.
struct MailboxTotal<'a> {
    mailbox: &'a str,
    messages: usize,
    bytes: u64,
    oldest_secs: u64,
    trouble: Option<&'a Trouble>,
}

/// Attempts, next try and error are `null` for mail that was on its way.
fn undelivered_json(message: &Undelivered) -> Value {
    let mailboxes = message.mailboxes.iter().map(|to| {
        let trouble = to.trouble.as_ref();
        json!({
            "mailbox": &*to.mailbox, "attempts": trouble.map(|trouble| trouble.attempts),
            "next_try": trouble.map(|trouble| trouble.next_try_secs), "error": trouble.map(|trouble| &*trouble.error),
        })
    });
    let mailboxes: Vec<Value> = mailboxes.collect();
    json!({"id": message.id, "bytes": message.bytes, "received": message.received_secs, "mailboxes": mailboxes})
}

fn date(secs: u64) -> DateTime {
    DateTime::from_unix(i64::try_from(secs).unwrap_or(i64::MAX))
}
