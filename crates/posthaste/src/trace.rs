//! `posthaste trace`: the story of a message, from the event log.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use jiff::Timestamp;
use posthaste_control::Request;
use posthaste_events::packed_name;
use posthaste_events::read::{Next, Reader};
use regex::bytes::{Regex, RegexBuilder};
use serde_json::{Value, json};

use crate::config_arg::ConfigArg;
use crate::terminal::{complain, harmless, print, print_json};
use crate::trace_live;

type AnyError = Box<dyn std::error::Error>;

#[derive(Args)]
pub struct Trace {
    /// A message's number, its id in the log, its Message-ID, or the address of a recipient or sender
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
    let whole = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.to_owned() };
    whole.parse().map_err(|_| "write 2026-01-31T12:00:00Z, 2026-01-31 or 2h".to_owned())
}

/// Exit status 1: nothing fits.
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
    let since = args.since.map_or(SystemTime::UNIX_EPOCH, |since| {
        SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_second().try_into().unwrap_or(0))
    });
    let reader = Reader::since(dir, since).map_err(|error| {
        let hint = if config.events.enabled { "" } else { "; the event log is off: `enabled = false` in [events]" };
        format!("{}: {error}{hint}", dir.display())
    })?;
    let user = args.user.as_deref().map(|user| config.directory().login_name(user).unwrap_or_else(|| user.to_owned()));
    let mut search = Search::new(&args, user)?;
    search.read(reader)?;
    if search.is_cut {
        complain(&format!("only the newest {} messages are shown; see --limit and --since", args.limit));
    }
    if args.json {
        let all: Vec<Value> =
            search.stories.iter().map(|(number, story)| json!({ "message": number, "events": story.events })).collect();
        print_json(&(serde_json::to_string_pretty(&all)? + "\n"))?;
    } else {
        print(&search.stories.values().map(|found| story(&found.events)).collect::<Vec<_>>().join("\n"))?;
    }
    if search.stories.is_empty() {
        let what = args.what.as_deref().or(args.user.as_deref()).unwrap_or_default();
        let off = if config.events.enabled { "" } else { ", which is off now" };
        complain(&format!("nothing of {} in the event log in {}{off}", harmless(what), dir.display()));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

struct Search {
    /// As it stands in lines.
    pattern: Regex,
    what: String,
    /// The mailbox of an address, up to its own directories: an alias leads there.
    mailbox: Option<String>,
    /// Only the login that sent it is asked for.
    is_user: bool,
    since: Option<String>,
    until: Option<String>,
    messages_max: usize,
    /// Events by the number of their message; those without one by their place in the spool.
    stories: BTreeMap<u64, Story>,
    is_cut: bool,
}

#[derive(Default)]
struct Story {
    /// The message was searched, not one of its recipients.
    is_whole: bool,
    events: Vec<Value>,
}

impl Search {
    fn new(args: &Trace, user: Option<String>) -> Result<Self, AnyError> {
        let is_user = user.is_some();
        let what = user.unwrap_or_else(|| bare(args.what.as_deref().unwrap_or_default()).to_lowercase());
        let mailbox = what.rsplit_once('@').map(|(user, domain)| format!("{domain}/{user}/"));
        let pattern = [Some(&what), mailbox.as_ref()].into_iter().flatten().map(|text| {
            let quoted = serde_json::to_string(text)?;
            Ok(regex::escape(quoted.trim_matches('"')))
        });
        let pattern = pattern.collect::<Result<Vec<_>, serde_json::Error>>()?.join("|");
        let bound = |time: Timestamp| format!("{time:.6}");
        Ok(Self {
            pattern: RegexBuilder::new(&pattern).case_insensitive(true).build()?,
            what,
            mailbox,
            is_user,
            since: args.since.map(bound),
            until: args.until.map(bound),
            messages_max: args.limit as usize,
            stories: BTreeMap::new(),
            is_cut: false,
        })
    }

    fn read(&mut self, mut reader: Reader) -> Result<(), AnyError> {
        let mut line = Vec::new();
        loop {
            match reader.next(&mut line)? {
                Next::End => return Ok(()),
                Next::Gap { .. } => {}
                Next::Damaged { file } => {
                    complain(&format!("{} is damaged: what follows in it is not searched", packed_name(file)));
                }
                Next::Line => self.line(&line),
            }
        }
    }

    /// Most lines are neither of a message that was found nor name what is searched: they are not parsed.
    fn line(&mut self, line: &[u8]) {
        let is_known = || message_of(line).is_some_and(|message| self.stories.contains_key(&message));
        if !self.pattern.is_match(line) && !is_known() {
            return;
        }
        let Ok(event) = serde_json::from_slice::<Value>(line) else { return };
        let time = event["time"].as_str().unwrap_or_default();
        let is_early = self.since.as_deref().is_some_and(|since| time < since);
        if is_early || self.until.as_deref().is_some_and(|until| time >= until) {
            return;
        }
        let message = event["message"].as_u64();
        let is_known = message.is_some_and(|message| self.stories.contains_key(&message));
        let (is_whole, is_recipient) = match self.is_user {
            true => (self.names_user(&event), false),
            false => (self.names_message(&event), self.names_recipient(&event)),
        };
        if !is_known && !is_whole && !is_recipient {
            return;
        }
        let Some(key) = message.or_else(|| event["lsn"].as_u64()) else { return };
        let story = self.stories.entry(key).or_default();
        story.is_whole |= is_whole;
        // One recipient of many: what happens to the others is not asked for.
        if story.is_whole || is_recipient || event["recipient"].is_null() {
            story.events.push(event);
        }
        if self.stories.len() > self.messages_max {
            self.stories.pop_first();
            self.is_cut = true;
        }
    }

    fn is(&self, value: &Value) -> bool {
        value.as_str().is_some_and(|text| bare(text).eq_ignore_ascii_case(&self.what))
    }

    fn names_message(&self, event: &Value) -> bool {
        let is_number = |key: &str| event[key].as_u64().is_some_and(|number| number.to_string() == self.what);
        ["id", "received_id", "message_id", "from"].into_iter().any(|key| self.is(&event[key]))
            || is_number("message")
            || is_number("report")
    }

    /// Logins themselves are left out: they are no mail, and those of others who guess would fill the list.
    fn names_user(&self, event: &Value) -> bool {
        self.is(&event["user"]) && event["event"] != "login" && event["stage"] != "login"
    }

    /// As the client named it, or as an alias has led to it.
    fn names_recipient(&self, event: &Value) -> bool {
        let is_mailbox = |place: &Value| {
            let (Some(mailbox), Some(place)) = (&self.mailbox, place.as_str()) else { return false };
            place.get(..mailbox.len()).is_some_and(|start| start.eq_ignore_ascii_case(mailbox))
        };
        let each = |key: &str| event[key].as_array().into_iter().flatten();
        self.is(&event["recipient"])
            || each("to").any(|to| self.is(to))
            || each("mailboxes").any(|place| self.is(place) || is_mailbox(place))
    }
}

/// Without the brackets of paths and Message-IDs.
fn bare(text: &str) -> &str {
    text.strip_prefix('<').and_then(|text| text.strip_suffix('>')).unwrap_or(text)
}

/// The number of a line's message, without parsing the line.
fn message_of(line: &[u8]) -> Option<u64> {
    const KEY: &[u8] = b",\"message\":";
    let at = line.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let digits = line[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&line[at..at + digits]).ok()?.parse().ok()
}

/// One message for people.
fn story(events: &[Value]) -> String {
    let mut out = String::new();
    let text = |event: &Value, key: &str| harmless(event[key].as_str().unwrap_or_default());
    if let Some(message) = events[0]["message"].as_u64() {
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
    part("by ", text("peer"));
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
    fn the_number_of_a_message_is_found_without_parsing() {
        assert_eq!(message_of(br#"{"lsn":3,"event":"x","message":12345,"id":"a"}"#), Some(12345));
        assert_eq!(message_of(br#"{"lsn":3,"event":"x","message_id":"<1>"}"#), None);
        assert_eq!(message_of(br#"{"lsn":3,"message":}"#), None);
    }

    #[test]
    fn times_are_absolute_or_so_long_ago() {
        assert_eq!(time("2026-01-31").unwrap().to_string(), "2026-01-31T00:00:00Z");
        assert_eq!(time("2026-01-31T12:00:00Z").unwrap().to_string(), "2026-01-31T12:00:00Z");
        let ago = Timestamp::now().as_second() - time("2h").unwrap().as_second();
        assert!((7199..=7300).contains(&ago), "{ago}");
        assert!(time("soon").is_err());
    }
}
