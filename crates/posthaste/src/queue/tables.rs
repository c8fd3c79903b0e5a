//! Answers of a server as tables.

use std::fmt::Write as _;

use posthaste_message::DateTime;
use serde_json::Value;

use crate::terminal::harmless;

/// `empty`: what to say of no lines.
pub(super) fn list(lines: &[Value], empty: &str) -> String {
    let rows = lines.iter().map(|line| {
        let state = match line["until"].as_i64() {
            Some(until) => format!("{} until {}", text(line, "state"), DateTime::from_unix(until)),
            None => text(line, "state"),
        };
        [
            text(line, "id"),
            number(line, "attempts").to_string(),
            text(line, "status"),
            state,
            text(line, "sender"),
            text(line, "recipient"),
        ]
    });
    columns(["id", "attempts", "status", "state", "sender", "recipient"], rows, empty)
}

/// `empty`: what to say of no lines.
pub(super) fn details(lines: &[Value], empty: &str) -> String {
    let time = |secs: Option<i64>| secs.map_or(String::new(), |secs| DateTime::from_unix(secs).to_string());
    let mut out = String::new();
    for line in lines {
        let state = [text(line, "state"), text(line, "held_by")].join(" ");
        let why = match text(line, "why_unknown") {
            unknown if unknown.is_empty() => text(line, "why"),
            unknown => format!("unknown: {unknown}"),
        };
        let rows = [
            ("id", text(line, "id")),
            ("sender", text(line, "sender")),
            ("leaves as", text(line, "leaves_from")),
            ("recipient", text(line, "recipient")),
            ("transport", text(line, "transport")),
            ("tenant", text(line, "tenant")),
            ("campaign", text(line, "campaign")),
            ("bytes", number(line, "bytes").to_string()),
            ("received", time(line["received"].as_i64())),
            ("expires", time(line["expires"].as_i64())),
            ("attempts", number(line, "attempts").to_string()),
            ("status", text(line, "status")),
            ("why", why),
            ("class", text(line, "class")),
            ("state", state.trim_end().to_owned()),
            ("until", time(line["until"].as_i64())),
        ];
        for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(out, "{name:<10} {}", harmless(value));
        }
        out.push('\n');
    }
    if lines.is_empty() { format!("{empty}\n") } else { out }
}

/// `empty`: what to say of no lines.
pub(super) fn summary(rows: &[Value], by: &'static str, empty: &str) -> String {
    let rows = rows.iter().map(|row| {
        let oldest = DateTime::from_unix(number(row, "oldest").cast_signed()).to_string();
        let count = |key| number(row, key).to_string();
        [text(row, by), count("recipients"), count("deferred"), count("held"), count("suspended"), oldest]
    });
    columns([by, "recipients", "deferred", "held", "suspended", "oldest"], rows, empty)
}

/// What waits of what may, in all; and of each tenant that has a limit and of which something was refused.
pub(super) fn room(of: &Value) -> String {
    let mut out = String::new();
    for (index, one) in of.as_array().into_iter().flatten().enumerate() {
        let (tenant, refused) = (text(one, "tenant"), number(one, "refused"));
        if index > 0 && refused == 0 {
            continue;
        }
        let of = if tenant.is_empty() { String::new() } else { format!(" of tenant {}", harmless(&tenant)) };
        let full = if one["full"].as_bool() == Some(true) { ", full" } else { "" };
        let _ = write!(out, "{} of {} recipients{of} wait{full}", number(one, "recipients"), number(one, "max"));
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
