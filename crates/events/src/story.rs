//! The history of a message, an address or a login in the event log.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use posthaste_spool::Lsn;
use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize as _;
use serde_json::Value;

use crate::read::{Next, Reader};

/// The subject of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// A message's number, its id in the log, its Message-ID, the address of a recipient or sender, or a host, for lines of no message.
    Named(String),
    /// All mail that a login has sent or tried to send, by the name that the log has.
    User(String),
    /// The newest lines with one of these events; empty: with any.
    Newest(Vec<String>),
}

/// Bounds of a search.
#[derive(Debug, Clone)]
pub struct Within {
    /// Earliest time, inclusive.
    pub since: Option<Timestamp>,
    /// Latest time, exclusive.
    pub until: Option<Timestamp>,
    /// The newest messages that fit.
    pub messages_max: usize,
    /// Time limit of the search.
    pub deadline: Option<Instant>,
    /// Only mail charged to this tenant: events that name it, and events of its messages without a tenant.
    pub tenant: Option<String>,
}

impl Within {
    /// Only events of the last `secs` seconds; `None`: all.
    pub fn last(secs: Option<u64>, messages_max: usize, deadline: Instant) -> Self {
        let since = |secs: u64| {
            let secs = i64::try_from(secs).unwrap_or(i64::MAX);
            Timestamp::from_second(Timestamp::now().as_second().saturating_sub(secs)).ok()
        };
        Self { since: secs.and_then(since), until: None, messages_max, deadline: Some(deadline), tenant: None }
    }
}

/// The stories of messages that a search has found.
#[derive(Debug, Default, PartialEq)]
pub struct StoriesFound {
    /// Events by the number of their message; events of no message by their LSN.
    pub stories: BTreeMap<Lsn, Vec<Value>>,
    /// True if messages, or events of one, were left out.
    pub is_cut: bool,
    /// True if the time limit was reached: newer lines were not read.
    pub is_late: bool,
    /// Numbers of damaged compressed files: the rest of each was not searched.
    pub damaged: Vec<u64>,
}

/// Reads the event log of a directory, also beside a running server. Blocks.
///
/// # Errors
/// The files cannot be read.
pub fn search(dir: &Path, wanted: &Wanted, within: &Within) -> io::Result<StoriesFound> {
    let reader = match (wanted, within.since) {
        (Wanted::Newest(_), _) => Reader::tail(dir, TAIL_BYTES)?,
        (_, since) => {
            let secs = since.map_or(0, |since| since.as_second().try_into().unwrap_or(0));
            Reader::since(dir, SystemTime::UNIX_EPOCH + Duration::from_secs(secs))?
        }
    };
    let mut search = Search::new(wanted, within)?;
    search.read(reader)?;
    search.found.stories = search.stories.into_iter().map(|(key, story)| (key, story.events)).collect();
    Ok(search.found)
}

/// Bytes read at the end of a log for its newest lines.
const TAIL_BYTES: u64 = 4 << 20;
/// Lines between checks of the clock.
const LINES_PER_LOOK: u32 = 1000;
/// Maximum events of one message: the recipients of larger ones are cut off.
const EVENTS_OF_STORY_MAX: usize = 10_000;
/// Maximum events of all messages together: the oldest messages are dropped first.
const EVENTS_MAX: usize = 20_000;

struct Search<'a> {
    wanted: &'a Wanted,
    /// The name in the form of log lines.
    pattern: Regex,
    /// The mailbox of an address, apart from the name of its directory: it finds mail through aliases.
    mailbox: Option<String>,
    what: String,
    since: Option<String>,
    until: Option<String>,
    within: &'a Within,
    stories: BTreeMap<Lsn, Story>,
    /// Number of events in all stories.
    events: usize,
    found: StoriesFound,
}

#[derive(Default)]
struct Story {
    /// True if the message was searched, not one of its recipients.
    is_whole: bool,
    events: Vec<Value>,
}

impl<'a> Search<'a> {
    fn new(wanted: &'a Wanted, within: &'a Within) -> io::Result<Self> {
        let what = match wanted {
            Wanted::Named(what) => bare(what).to_lowercase(),
            Wanted::User(user) => user.clone(),
            Wanted::Newest(_) => String::new(),
        };
        let mailbox = what.rsplit_once('@').map(|(user, domain)| format!("{domain}/{user}/"));
        let patterns: Vec<String> = match wanted {
            Wanted::Newest(kinds) => kinds.iter().map(|kind| format!("\"event\":{}", Value::from(&**kind))).collect(),
            _ => [Some(&what), mailbox.as_ref()].into_iter().flatten().map(|text| quoted(text)).collect(),
        };
        let pattern = patterns.iter().map(|pattern| regex::escape(pattern)).collect::<Vec<_>>().join("|");
        let bound = |time: Timestamp| format!("{time:.6}");
        Ok(Self {
            wanted,
            pattern: RegexBuilder::new(&pattern).case_insensitive(true).build().map_err(io::Error::other)?,
            mailbox,
            what,
            since: within.since.map(bound),
            until: within.until.map(bound),
            within,
            stories: BTreeMap::new(),
            events: 0,
            found: StoriesFound::default(),
        })
    }

    fn read(&mut self, mut reader: Reader) -> io::Result<()> {
        let mut line = Vec::new();
        for count in 1_u32.. {
            if count.is_multiple_of(LINES_PER_LOOK)
                && self.within.deadline.is_some_and(|deadline| Instant::now() >= deadline)
            {
                self.found.is_late = true;
                return Ok(());
            }
            match reader.next(&mut line)? {
                Next::End => return Ok(()),
                Next::Gap { .. } => {}
                Next::Damaged { file } => self.found.damaged.push(file),
                Next::Line => self.line(&line),
            }
        }
        Ok(())
    }

    /// Most lines neither belong to a found message nor contain the search term: they are not parsed.
    fn line(&mut self, line: &[u8]) {
        let is_newest = matches!(self.wanted, Wanted::Newest(_));
        let is_known = || !is_newest && message_of(line).is_some_and(|message| self.stories.contains_key(&message));
        if !self.pattern.is_match(line) && !is_known() {
            return;
        }
        let Ok(event) = serde_json::from_slice::<Value>(line) else { return };
        let time = event["time"].as_str().unwrap_or_default();
        let is_early = self.since.as_deref().is_some_and(|since| time < since);
        if is_early || self.until.as_deref().is_some_and(|until| time >= until) {
            return;
        }
        let message = Lsn::deserialize(&event["message"]).ok();
        let is_known = message.is_some_and(|message| self.stories.contains_key(&message));
        let (is_whole, is_recipient) = match self.wanted {
            Wanted::User(_) => (self.names_user(&event), false),
            Wanted::Named(_) => (self.names_message(&event), self.names_recipient(&event)),
            Wanted::Newest(kinds) => (kinds.is_empty() || kinds.iter().any(|kind| event["event"] == **kind), false),
        };
        if !is_whole && !is_recipient && (!is_known || is_newest) {
            return;
        }
        let is_of = |tenant: &String| event["tenant"].as_str().map_or(is_known, |named| named == tenant);
        if !self.within.tenant.as_ref().is_none_or(is_of) {
            return;
        }
        let Some(key) = message.or_else(|| Lsn::deserialize(&event["lsn"]).ok()) else { return };
        let story = self.stories.entry(key).or_default();
        story.is_whole |= is_whole;
        // One recipient of many: what happens to the others is not asked for.
        if story.is_whole || is_recipient || event["recipient"].is_null() {
            if story.events.len() < EVENTS_OF_STORY_MAX {
                story.events.push(event);
                self.events += 1;
            } else {
                self.found.is_cut = true;
            }
        }
        while self.stories.len() > self.within.messages_max || (self.events > EVENTS_MAX && self.stories.len() > 1) {
            let Some((_, oldest)) = self.stories.pop_first() else { break };
            self.events -= oldest.events.len();
            self.found.is_cut = true;
        }
    }

    fn is(&self, value: &Value) -> bool {
        value.as_str().is_some_and(|text| bare(text).eq_ignore_ascii_case(&self.what))
    }

    fn names_message(&self, event: &Value) -> bool {
        ["message", "report", "id", "received_id", "message_id", "from"].into_iter().any(|key| self.is(&event[key]))
            || event["message"].is_null() && self.is(&event["host"])
    }

    /// Login events are left out: they are not mail, and guesses of others would fill the list.
    fn names_user(&self, event: &Value) -> bool {
        self.is(&event["user"]) && event["event"] != "login" && event["stage"] != "login"
    }

    /// True for a recipient as the client named it, or as an alias has led to it.
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

/// A text in the form of a log line, without quotes.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().trim_matches('"').to_owned()
}

/// Without the brackets of paths and Message-IDs.
fn bare(text: &str) -> &str {
    text.strip_prefix('<').and_then(|text| text.strip_suffix('>')).unwrap_or(text)
}

/// The number of a line's message, without parsing the line.
fn message_of(line: &[u8]) -> Option<Lsn> {
    const KEY: &[u8] = b",\"message\":\"";
    let at = line.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let digits = line[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&line[at..at + digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::file_name;

    #[test]
    fn the_number_of_a_message_is_found_without_parsing() {
        assert_eq!(message_of(br#"{"lsn":"3","event":"x","message":"12345","id":"a"}"#), Some(Lsn::new(12345)));
        assert_eq!(message_of(br#"{"lsn":"3","event":"x","message_id":"<1>"}"#), None);
        assert_eq!(message_of(br#"{"lsn":"3","message":""}"#), None);
    }

    const LINES: [&str; 6] = [
        r#"{"lsn":"1","time":"2026-01-01T00:00:01.000000Z","event":"received","message":"1","from":"<a@x.example>","to":["<b@y.example>"]}"#,
        r#"{"lsn":"2","time":"2026-01-01T00:00:02.000000Z","event":"refused","reply":"550 \"no\"","from":"<e@x.example>"}"#,
        r#"{"lsn":"3","time":"2026-01-01T00:00:03.000000Z","event":"deferred","message":"1","recipient":"b@y.example"}"#,
        r#"{"lsn":"4","time":"2026-01-01T00:00:04.000000Z","event":"received","message":"4","from":"<c@x.example>"}"#,
        r#"{"lsn":"5","time":"2026-01-01T00:00:05.000000Z","event":"delivered","message":"1","recipient":"b@y.example","host":"mx.y.example"}"#,
        r#"{"lsn":"6","time":"2026-01-01T00:00:06.000000Z","event":"interrupted","host":"mx.y.example","stage":"idle"}"#,
    ];

    #[test]
    fn events_of_one_message_and_of_all_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut lines = String::new();
        for message in 1..=3 {
            for number in 0..EVENTS_OF_STORY_MAX as u64 + 5 {
                let lsn = message * 100_000 + number;
                let time = "2026-01-01T00:00:01.000000Z";
                lines += &format!(
                    "{{\"lsn\":\"{lsn}\",\"time\":\"{time}\",\"event\":\"received\",\"message\":\"{message}\",\"from\":\"a@x.example\"}}\n"
                );
            }
        }
        std::fs::write(dir.path().join(file_name(1)), lines).unwrap();
        let within = Within { since: None, until: None, messages_max: 100, deadline: None, tenant: None };
        let found = super::search(dir.path(), &Wanted::Named("a@x.example".to_owned()), &within).unwrap();
        let counts: Vec<_> = found.stories.iter().map(|(message, events)| (message.get(), events.len())).collect();
        assert_eq!((counts, found.is_cut), (vec![(2, EVENTS_OF_STORY_MAX), (3, EVENTS_OF_STORY_MAX)], true));
    }

    #[test]
    fn a_tenant_finds_its_own_mail_and_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let at = "\"time\":\"2026-01-01T00:00:01.000000Z\"";
        let received = |message: u64, tenant: &str| {
            format!(
                "{{\"lsn\":\"{message}\",{at},\"event\":\"received\",\"message\":\"{message}\",\"from\":\"<s@x.example>\",\"to\":[\"<r@y.example>\"]{tenant}}}\n"
            )
        };
        let later = |lsn: u64, message: u64, tenant: &str| {
            format!(
                "{{\"lsn\":\"{lsn}\",{at},\"event\":\"delivered\",\"message\":\"{message}\",\"recipient\":\"r@y.example\"{tenant}}}\n"
            )
        };
        let (a, b, none) = (",\"tenant\":\"a\"", ",\"tenant\":\"b\"", "");
        let refused =
            format!("{{\"lsn\":\"9\",{at},\"event\":\"refused\",\"from\":\"s@x.example\",\"reply\":\"550\"}}\n");
        let lines = [received(1, a), received(2, b), received(3, none), later(4, 1, none), later(5, 2, none)];
        let more = [later(6, 3, none), later(7, 1, a), later(8, 2, b), refused];
        std::fs::write(dir.path().join(file_name(1)), [lines.concat(), more.concat()].concat()).unwrap();
        let lsns = |wanted: Wanted, tenant: Option<&str>| {
            let tenant = tenant.map(str::to_owned);
            let within = Within { since: None, until: None, messages_max: 100, deadline: None, tenant };
            let found = search(dir.path(), &wanted, &within).unwrap();
            let lsn = |event: &Value| event["lsn"].to_string().trim_matches('"').parse::<u64>().unwrap();
            found.stories.values().flatten().map(lsn).collect::<Vec<_>>()
        };
        for what in ["s@x.example", "r@y.example"] {
            let named = || Wanted::Named(what.to_owned());
            assert_eq!(lsns(named(), Some("a")), [1, 4, 7], "{what}");
            assert_eq!(lsns(named(), Some("b")), [2, 5, 8], "{what}");
            assert!(lsns(named(), Some("c")).is_empty(), "{what}");
        }
        assert_eq!(lsns(Wanted::Newest(vec![]), Some("a")), [1, 4, 7]);
        assert!(lsns(Wanted::Named("2".to_owned()), Some("a")).is_empty(), "by a number of another tenant");
        assert_eq!(lsns(Wanted::Newest(vec![]), None).len(), 9);
    }

    #[test]
    fn stories_are_found_by_name_and_the_newest_by_event() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(file_name(1)), LINES.join("\n") + "\n").unwrap();
        let within = |messages_max| Within { since: None, until: None, messages_max, deadline: None, tenant: None };
        let found = |wanted: Wanted, most| {
            let found = search(dir.path(), &wanted, &within(most)).unwrap();
            let lsns = |events: &Vec<Value>| {
                events.iter().map(|event| event["lsn"].as_str().unwrap().parse().unwrap()).collect()
            };
            (found.stories.values().map(lsns).collect::<Vec<Vec<u64>>>(), found.is_cut)
        };
        let named = |text: &str| Wanted::Named(text.to_owned());
        assert_eq!(found(named("<B@y.example>"), 9), (vec![vec![1, 3, 5]], false));
        assert_eq!(found(named("4"), 9), (vec![vec![4]], false));
        assert_eq!(found(named("e@x.example"), 9), (vec![vec![2]], false), "refusals included");
        assert_eq!(found(named("nobody@x.example"), 9), (vec![], false));
        assert_eq!(found(Wanted::Newest(vec![]), 9), (vec![vec![1, 3, 5], vec![2], vec![4], vec![6]], false));
        assert_eq!(found(Wanted::Newest(vec![]), 1), (vec![vec![6]], true));
        assert_eq!(found(named("MX.y.example"), 9), (vec![vec![6]], false), "a host: what is of no message");
        let kinds = |kinds: &[&str]| Wanted::Newest(kinds.iter().map(|kind| (*kind).to_owned()).collect());
        assert_eq!(found(kinds(&["refused"]), 9), (vec![vec![2]], false));
        assert_eq!(found(kinds(&["deferred", "delivered"]), 9), (vec![vec![3, 5]], false));
        let late = Within { deadline: Some(Instant::now()), ..within(9) };
        assert!(!search(dir.path(), &named("4"), &late).unwrap().is_late, "a short log is read in one look");
        let many = format!("{}\n", LINES[0]).repeat(2 * LINES_PER_LOOK as usize);
        std::fs::write(dir.path().join(file_name(1)), many).unwrap();
        assert!(search(dir.path(), &named("4"), &late).unwrap().is_late);
    }
}
