//! `posthaste trace`: the history of a message, from the event log.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use posthaste_control::Request;
use posthaste_events::packed_name;
use posthaste_events::story::{StoriesFound, Wanted, Within, search};
use serde_json::{Value, json};

use crate::config_arg::ConfigArg;
use crate::queue::ELSEWHERE;
use crate::terminal::{complain, harmless, print, print_json};
use crate::trace_live;

type AnyError = Box<dyn std::error::Error>;

#[derive(Args)]
pub struct Trace {
    /// A message's number, its id in the log, its Message-ID, the address of a recipient or sender, or a host that has ended sessions
    #[arg(
        value_name = "WHAT",
        required_unless_present_any = ["live", "user"],
        conflicts_with_all = ["live", "user"],
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    what: Option<String>,
    /// All mail that this login has sent or tried to send, whatever its sender
    #[arg(long, value_name = "NAME", conflicts_with = "live", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    user: Option<String>,
    /// Show commands and replies of sessions that begin from now on, in a running server; without messages and passwords
    #[arg(long)]
    live: bool,
    /// With --live: only sessions of clients
    #[arg(long = "in", requires = "live")]
    inbound: bool,
    /// With --live: only sessions with other hosts
    #[arg(long = "out", requires = "live", conflicts_with = "inbound")]
    outbound: bool,
    /// With --live: only with this address or network, such as 192.0.2.0/24
    #[arg(long, value_name = "CIDR", requires = "live")]
    peer: Option<String>,
    /// With --live: only sessions that name this recipient, from their beginning on
    #[arg(long, value_name = "ADDRESS", requires = "live")]
    recipient: Option<String>,
    /// Only what happened since then: a time such as 2026-01-31T12:00:00Z or 2026-01-31, or so long ago, such as 2h
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,
    /// Only what happened before
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,
    /// The newest N messages that fit
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    #[command(flatten)]
    config: ConfigArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn time(text: &str) -> Result<Timestamp, String> {
    if let Ok(ago) = posthaste_units::duration(text) {
        return Timestamp::now().checked_sub(ago).map_err(|error| error.to_string());
    }
    if let Some(days) = ["today", "yesterday"].iter().position(|word| *word == text) {
        let day = Timestamp::now().as_second() / 86_400 - days as i64;
        return Timestamp::from_second(day * 86_400).map_err(|error| error.to_string());
    }
    let whole = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.to_owned() };
    whole.parse().map_err(|_| "write 2026-01-31T12:00:00Z, 2026-01-31, yesterday or 2h".to_owned())
}

/// Exit status 1: no event matches.
pub fn run(args: Trace) -> Result<ExitCode, AnyError> {
    let config = args.config.load()?.config;
    if args.live {
        let request = Request::Trace {
            inbound: !args.outbound,
            outbound: !args.inbound,
            peer: args.peer,
            recipient: args.recipient,
        };
        return trace_live::run(&config, &request, args.json);
    }
    let dir = &config.events.dir;
    let user = args.user.as_deref().map(|user| config.directory().login_name(user).unwrap_or_else(|| user.to_owned()));
    let wanted = user.map_or_else(|| Wanted::Named(args.what.clone().unwrap_or_default()), Wanted::User);
    let since = args.since;
    let until = args.until;
    let within = Within { since, until, messages_max: args.limit as usize, deadline: None, tenant: None };
    let StoriesFound { stories, is_cut, damaged, .. } = search(dir, &wanted, &within).map_err(|error| {
        let hint = match error.kind() {
            _ if !config.events.enabled => "the event log is off: `enabled = false` in [events]",
            ErrorKind::NotFound => ELSEWHERE,
            _ => "only root and the server's user may read it",
        };
        format!("{}: {error}; {hint}", dir.display())
    })?;
    for file in damaged {
        complain(&format!("{} is damaged: the rest of it is not searched", packed_name(file)));
    }
    if is_cut {
        complain(&format!("only the newest {} messages are shown; see --limit and --since", args.limit));
    }
    if args.json {
        let all: Vec<Value> =
            stories.iter().map(|(number, events)| json!({ "message": number, "events": events })).collect();
        print_json(&(serde_json::to_string_pretty(&all)? + "\n"))?;
    } else {
        print(&stories.values().map(|events| story(events)).collect::<Vec<_>>().join("\n"))?;
    }
    if stories.is_empty() {
        let what = args.what.as_deref().or(args.user.as_deref()).unwrap_or_default();
        let off = if config.events.enabled { "" } else { ", which is off now" };
        complain(&format!("nothing about {} in the event log in {}{off}", harmless(what), dir.display()));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The history of one message as text.
fn story(events: &[Value]) -> String {
    let mut out = String::new();
    let text = |event: &Value, key: &str| harmless(event[key].as_str().unwrap_or_default());
    if let Some(message) = events[0]["message"].as_str() {
        let id = events.iter().map(|event| text(event, "message_id")).find(|id| !id.is_empty()).unwrap_or_default();
        let _ = writeln!(out, "{}", format!("message {message}  {id}").trim_end());
    }
    for event in events {
        let time = text(event, "time").replace('T', " ");
        let kind = text(event, "event");
        let _ = writeln!(out, "  {:<23}  {kind:<10}  {}", time.get(..23).unwrap_or(&time), details(event));
    }
    out
}

fn details(event: &Value) -> String {
    let text = |key: &str| harmless(event[key].as_str().unwrap_or_default());
    let mut parts = Vec::new();
    let mut part = |label: &str, text: String| {
        if !text.is_empty() {
            parts.push(format!("{label}{text}"));
        }
    };
    let to: Vec<&str> = event["to"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    part("", text("action"));
    part("", text("kind"));
    part("", text("recipient"));
    part("", text("mailbox"));
    part("", text("stage"));
    part("as ", text("id"));
    part("Received id ", text("received_id"));
    part("from client ", text("peer"));
    part("user ", text("user"));
    if event["recipient"].is_null() {
        part("from ", text("from"));
    }
    part("to ", harmless(&to.join(" ")));
    part("", event["bytes"].as_u64().map_or_else(String::new, |bytes| format!("{bytes} bytes")));
    part("host ", text("host"));
    if event["source"] != "default" {
        part("source ", text("source"));
    }
    part("", text("transport"));
    part("", format!("{} {}", text("scope"), text("name")).trim().to_owned());
    part("", text("reply").replace('\n', " "));
    part("", text("auth"));
    part("Junk: ", text("junk"));
    part("", text("error"));
    part("", text("why"));
    part("", text("text"));
    part("reason: ", text("reason"));
    part("uid ", event["uid"].as_u64().map_or_else(String::new, |uid| uid.to_string()));
    part("attempt ", event["attempts"].as_u64().map_or_else(String::new, |attempts| attempts.to_string()));
    part("next ", text("next").replace('T', " "));
    part("until ", text("until").replace('T', " "));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_absolute_or_so_long_ago() {
        assert_eq!(time("2026-01-31").unwrap().to_string(), "2026-01-31T00:00:00Z");
        assert_eq!(time("2026-01-31T12:00:00Z").unwrap().to_string(), "2026-01-31T12:00:00Z");
        let ago = Timestamp::now().as_second() - time("2h").unwrap().as_second();
        assert!((7199..=7300).contains(&ago), "{ago}");
        let (today, yesterday) = (time("today").unwrap().as_second(), time("yesterday").unwrap().as_second());
        assert_eq!((today % 86_400, today - yesterday), (0, 86_400));
        assert!(time("soon").is_err());
    }
}
