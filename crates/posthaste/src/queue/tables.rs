//! Answers of a server as tables.

use std::fmt::Write as _;

use posthaste_control::{CountLine, RoomLine, SummaryEnd, WaitingLine};
use posthaste_message::DateTime;
use serde_json::Value;

use crate::terminal::harmless;

/// `empty`: text for an empty list.
pub(super) fn list(lines: &[WaitingLine], empty: &str) -> String {
    let rows = lines.iter().map(|line| {
        let mut state = line.state.to_string();
        if let Some(until) = line.until {
            let _ = write!(state, " until {}", DateTime::from_unix(until));
        }
        if let Some(reason) = &line.held_reason {
            let _ = write!(state, ": {}", reason.chars().take(REASON_CHARS).collect::<String>());
        }
        let status = line.status.clone().unwrap_or_default();
        [line.id.clone(), line.attempts.to_string(), status, state, line.sender.clone(), line.recipient.clone()]
    });
    columns(["id", "attempts", "status", "state", "sender", "recipient"], rows, empty)
}

/// Maximum characters of a hold's reason in a table.
const REASON_CHARS: usize = 60;

/// `empty`: text for an empty list.
pub(super) fn details(lines: &[WaitingLine], empty: &str) -> String {
    let time = |secs: Option<i64>| secs.map_or(String::new(), |secs| DateTime::from_unix(secs).to_string());
    let some = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut out = String::new();
    for line in lines {
        let state = match line.held_by {
            Some(by) => format!("{} {by}", line.state),
            None => line.state.to_string(),
        };
        let why = match &line.why_unknown {
            Some(unknown) => format!("unknown: {unknown}"),
            None => some(&line.why),
        };
        let rows = [
            ("id", line.id.clone()),
            ("shard", line.shard.map_or(String::new(), |shard| shard.to_string())),
            ("sender", line.sender.clone()),
            ("leaves as", some(&line.leaves_from)),
            ("recipient", line.recipient.clone()),
            ("transport", some(&line.transport)),
            ("tenant", some(&line.tenant)),
            ("campaign", some(&line.campaign)),
            ("bytes", line.bytes.to_string()),
            ("received", time(Some(line.received))),
            ("expires", time(line.expires)),
            ("attempts", line.attempts.to_string()),
            ("status", some(&line.status)),
            ("why", why),
            ("class", some(&line.class)),
            ("state", state),
            ("until", time(line.until)),
            ("reason", some(&line.held_reason)),
        ];
        for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(out, "{name:<10} {}", harmless(value));
        }
        out.push('\n');
    }
    if lines.is_empty() { format!("{empty}\n") } else { out }
}

/// `empty`: text for an empty list.
pub(super) fn summary(lines: &[CountLine], by: &'static str, empty: &str) -> String {
    let rows = lines.iter().map(|line| {
        let oldest = DateTime::from_unix(line.oldest).to_string();
        let [recipients, deferred, held, suspended] =
            [line.recipients, line.deferred, line.held, line.suspended].map(|count| count.to_string());
        [line.name().to_owned(), recipients, deferred, held, suspended, oldest]
    });
    columns([by, "recipients", "deferred", "held", "suspended", "oldest"], rows, empty)
}

/// Notices still to be made, and the queue's fill level: in total, and for each tenant with refused mail.
pub(super) fn room(end: &SummaryEnd) -> String {
    let mut out = match end.notices {
        0 => String::new(),
        1 => "1 notice to a sender is still to be made\n".to_owned(),
        notices => format!("{notices} notices to senders are still to be made\n"),
    };
    for (index, RoomLine { tenant, recipients, max, refused, full }) in end.room.iter().enumerate() {
        if index > 0 && *refused == 0 {
            continue;
        }
        let of = if tenant.is_empty() { String::new() } else { format!(" of tenant {}", harmless(tenant)) };
        let full = if *full { ", full" } else { "" };
        let _ = write!(out, "{recipients} of {max} recipients{of} wait{full}");
        let _ = match refused {
            0 => writeln!(out),
            _ => writeln!(out, "; {refused} were refused since the start"),
        };
    }
    out
}

pub(super) fn suspensions(lines: &[Value]) -> String {
    let rows = lines.iter().map(|line| {
        let until = line["until"].as_i64().map_or("resumed".to_owned(), |until| DateTime::from_unix(until).to_string());
        let rate = text(line, "message_rate");
        let connections = number(line, "connections");
        let connections = if connections > 0 { format!("{connections} connections") } else { String::new() };
        let limits: Vec<String> = [rate, connections].into_iter().filter(|text| !text.is_empty()).collect();
        let sent = if limits.is_empty() { "nothing".to_owned() } else { limits.join(", ") };
        [text(line, "kind"), text(line, "name"), sent, until, text(line, "reason")]
    });
    columns(["kind", "name", "sent", "until", "reason"], rows, "nothing is suspended or slowed down")
}

pub(super) fn diversions(lines: &[Value]) -> String {
    let rows = lines.iter().map(|line| {
        let until =
            line["until"].as_i64().map_or("unrouted".to_owned(), |until| DateTime::from_unix(until).to_string());
        [text(line, "kind"), text(line, "name"), text(line, "to"), until, text(line, "reason")]
    });
    columns(["kind", "name", "to", "until", "reason"], rows, "nothing is routed by `posthaste queue route`")
}

/// A table with a heading; `empty` for no rows.
pub fn columns<const N: usize>(heading: [&str; N], rows: impl Iterator<Item = [String; N]>, empty: &str) -> String {
    let rows: Vec<[String; N]> = rows.map(|row| row.map(|text| harmless(&text))).collect();
    if rows.is_empty() {
        return format!("{empty}\n");
    }
    let heading = heading.map(str::to_owned);
    let all = || std::iter::once(&heading).chain(&rows);
    let widths: [usize; N] = std::array::from_fn(|at| crate::columns::width(all().map(|row| row[at].as_str())));
    let mut out = String::new();
    for row in all() {
        let cells: Vec<String> = row.iter().zip(widths).map(|(text, width)| crate::columns::fit(text, width)).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

pub fn text(line: &Value, key: &str) -> String {
    line[key].as_str().unwrap_or_default().to_owned()
}

pub fn number(line: &Value, key: &str) -> u64 {
    line[key].as_u64().unwrap_or_default()
}
