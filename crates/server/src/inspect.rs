//! `posthaste journal inspect|verify`: what a journal holds, for people and as JSON.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use posthaste_journal::inspect::{Report, inspect};
use serde_json::{Value, json};

/// What is known about a journal, ready to print.
#[derive(Debug)]
pub struct JournalReport(Report);

/// Reads the journal in `dir`, also beside a running server. Nothing is changed.
///
/// # Errors
/// What the file system said.
pub fn inspect_journal(dir: &Path) -> io::Result<JournalReport> {
    inspect(dir).map(JournalReport)
}

impl JournalReport {
    /// Whether everything that was promised to be durable is whole. A torn tail promises nothing.
    pub fn is_sound(&self) -> bool {
        self.0.first_broken_promise().is_none()
    }

    /// Segments, live records and damage as text.
    pub fn to_text(&self) -> String {
        let report = &self.0;
        let mut out = String::new();
        for segment in &report.segments {
            let state = if segment.in_service { "in service" } else { "free" };
            let place = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
            let _ = writeln!(
                out,
                "{}  {:>11} bytes  number {:>6}  epoch {:>4}  {:>7} records to byte {:>10}  {:>6} live, {} bytes  {state}",
                segment.name,
                segment.bytes,
                place(segment.number),
                place(segment.epoch),
                segment.records,
                segment.used,
                segment.live_records,
                segment.live_bytes,
            );
        }
        for (id, kind, bytes) in &report.live {
            let _ = writeln!(out, "live record {id}  kind {kind}  {bytes} bytes");
        }
        let checkpoint = report.checkpoint.map_or_else(|| "none".to_owned(), |number| number.to_string());
        let _ = writeln!(out, "last checkpoint: {checkpoint}");
        out + &self.verdict()
    }

    /// The damage alone, or that there is none.
    pub fn verdict(&self) -> String {
        let mut out = String::new();
        for damage in &self.0.damage {
            let what = if damage.promised { "DAMAGED" } else { "torn tail" };
            let _ = writeln!(out, "{what}: {} at byte {}: {}", damage.segment, damage.offset, damage.what);
        }
        if self.is_sound() {
            let live = self.0.live.len();
            let _ = writeln!(out, "sound: every promised record is whole, {live} live");
        }
        out
    }

    /// Everything as JSON.
    pub fn to_json(&self) -> String {
        let report = &self.0;
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
            "damage": damage,
        });
        format!("{all:#}\n")
    }
}
