//! The recipients that wait, and why.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use posthaste_control::{HeldBy, WaitState, WaitingLine, Which};
use posthaste_events::last::{Deferral, last_deferrals};
use posthaste_queue::entry::HoldReason;
use posthaste_queue::{RecipientKey, Secs, Status, Waits};
use posthaste_relay::sender::{Filter, Relay, WaitingRecipient};
use posthaste_spool::Lsn;

use super::answering::{Answer, as_json};
use super::scopes::filter;

/// A part of the list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page<'a> {
    /// Recipients to list.
    pub of: &'a Which,
    /// Start after this recipient.
    pub after: Option<RecipientKey>,
    /// Maximum number of recipients.
    pub most: u64,
    /// Reads only a part of a long queue; the client continues after it.
    pub is_bounded: bool,
    /// The directory of the event log.
    pub events: Option<&'a Path>,
}

/// The end of a part of the list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    pub count: u64,
    /// The last recipient, if more may follow.
    pub next: Option<String>,
}

/// A recipient by its id, such as `4711.0`.
pub(super) fn key(id: &str) -> Result<RecipientKey, String> {
    let parsed = id.split_once('.').and_then(|(message, number)| {
        Some(RecipientKey { message: message.parse().ok()?, number: number.parse().ok()? })
    });
    parsed.ok_or_else(|| "`after` is the id of a recipient, such as 4711.0".to_owned())
}

/// Matching recipients of all relays, one on each line, in the order of their message ids.
pub(super) fn list_all(relays: &[Relay], page: &Page<'_>, answer: Answer<'_>) -> Listed {
    let mut listed = Listed::default();
    for relay in relays {
        let part = list(relay, &Page { most: page.most - listed.count, ..*page }, answer);
        (listed.count, listed.next) = (listed.count + part.count, part.next);
        if listed.next.is_some() {
            break;
        }
    }
    listed
}

/// Matching recipients of a relay, one on each line. For a single message, forgotten replies are looked up in the event
/// log.
fn list(relay: &Relay, page: &Page<'_>, answer: Answer<'_>) -> Listed {
    let Page { of, after, most, is_bounded, events } = *page;
    let mut listed = Listed::default();
    if most > 0 {
        let logged = of.message.map(|message| Logged::look(relay, of, message, events));
        let needs_envelopes = of.sender.is_some() || of.recipient.is_some();
        let pages_max = is_bounded.then_some(if needs_envelopes { ENVELOPE_PAGES_MAX } else { PAGES_MAX });
        let looked_at = relay.waiting(&Filter { after, pages_max, ..filter(of) }, &mut |waiting| {
            listed.count += 1;
            let mut line = line_of(&waiting, relay);
            if let Some(logged) = &logged {
                logged.complete(&waiting, &mut line);
            }
            if listed.count == most {
                listed.next = Some(line.id.clone());
            }
            answer(as_json(&line)) && listed.count < most
        });
        if let Some(RecipientKey { message, number }) = looked_at {
            listed.next = Some(format!("{message}.{number}"));
        }
    }
    listed
}

/// Last deferrals of a message's recipients in the event log, for those without another reason.
struct Logged {
    found: HashMap<u16, Deferral>,
    /// Why those of the others are missing.
    missing: String,
}

impl Logged {
    fn look(relay: &Relay, of: &Which, message: Lsn, events: Option<&Path>) -> Self {
        let mut wanted = HashSet::new();
        relay.waiting(&filter(of), &mut |waiting| {
            if lacks_reply(&waiting) {
                wanted.insert(waiting.state.key.number);
            }
            wanted.len() < LOOKED_UP_MAX
        });
        let (found, missing) = match events {
            Some(dir) if !wanted.is_empty() => last_deferrals(dir, message, wanted),
            _ => Default::default(),
        };
        let missing = match (missing, events) {
            (Some(missing), _) => missing.to_string(),
            (None, Some(_)) => "it was not looked up: list this recipient alone to see it".to_owned(),
            (None, None) => "the event log is off".to_owned(),
        };
        Self { found, missing }
    }

    fn complete(&self, waiting: &WaitingRecipient, line: &mut WaitingLine) {
        if !lacks_reply(waiting) {
            return;
        }
        let Some(Deferral { host, reply, class, .. }) = self.found.get(&waiting.state.key.number) else {
            line.why_unknown = Some(self.missing.clone());
            return;
        };
        line.why = Some(if host.is_empty() { reply.clone() } else { format!("{host}: {reply}") });
        line.class = Some(class.clone()).filter(|class| !class.is_empty());
    }
}

/// True after an attempt of which only the codes are known.
fn lacks_reply(waiting: &WaitingRecipient) -> bool {
    let state = &waiting.state;
    waiting.why.is_none() && (state.attempts > 0 || state.status != Status::default())
}

fn line_of(waiting: &WaitingRecipient, relay: &Relay) -> WaitingLine {
    let state = &waiting.state;
    let name = relay.queue_name(state.queue);
    let name = name.as_ref();
    let (kind, until) = match state.waits {
        Waits::Until(next) => (WaitState::Scheduled, Some(next)),
        Waits::Due if waiting.is_connecting => (WaitState::UnderWay, None),
        Waits::Due => (WaitState::Due, None),
        Waits::Suspended(until) => (WaitState::Suspended, Some(until).filter(|until| *until < Secs::MAX)),
        Waits::Held(HoldReason::Until(until)) => (WaitState::Held, Some(until)),
        Waits::Held(_) => (WaitState::Held, None),
        Waits::Busy => (WaitState::UnderWay, None),
    };
    let held_by = match state.waits {
        Waits::Held(HoldReason::Operator | HoldReason::Until(_)) => Some(HeldBy::Operator),
        Waits::Held(HoldReason::Quarantine) => Some(HeldBy::Quarantine),
        Waits::Held(HoldReason::Policy) => Some(HeldBy::Policy),
        Waits::Held(HoldReason::Uncertain) => Some(HeldBy::Uncertain),
        _ => None,
    };
    let status = match state.status {
        Status { code: 0, .. } => None,
        Status { code, enhanced: 0 } => Some(code.to_string()),
        Status { code, enhanced } => Some(format!("{code} {}.{}.{}", code / 100, enhanced / 1000, enhanced % 1000)),
    };
    let text = |text: &Arc<str>| text.to_string();
    WaitingLine {
        id: format!("{}.{}", state.key.message, state.key.number),
        shard: Some(state.key.message.shard()).filter(|shard| *shard > 0),
        sender: text(&waiting.sender),
        leaves_from: Some(text(&waiting.leaves_from)).filter(|from| **from != *waiting.sender),
        recipient: text(&waiting.recipient),
        domain: name.map(|name| text(&name.domain)),
        tenant: name.map(|name| text(&name.tenant)),
        campaign: name.map(|name| text(&name.campaign)),
        pool: name.map(|name| text(&name.pool)),
        transport: None,
        bytes: waiting.bytes,
        received: relay.wall(state.received),
        expires: state.expires.map(|secs| relay.wall(secs)),
        attempts: state.attempts.into(),
        status,
        state: kind,
        until: until.map(|secs| relay.wall(secs)),
        held_by,
        held_reason: held_by.and_then(|by| match by.reason() {
            Some(reason) => Some(reason.to_owned()),
            None => waiting.held_reason.as_deref().map(str::to_owned),
        }),
        why: waiting.why.as_deref().map(str::to_owned),
        class: waiting.class.as_deref().map(str::to_owned),
        why_unknown: None,
    }
}

/// Pages of about a thousand recipients scanned for one part of a list: some dozen milliseconds.
const PAGES_MAX: u32 = 1000;
/// Pages of one part if envelopes must be read.
const ENVELOPE_PAGES_MAX: u32 = 20;
/// Recipients of one message whose replies are looked up.
const LOOKED_UP_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use posthaste_queue::entry::{Change, QueueEntry, What};
    use serde_json::Value;

    use super::*;
    use crate::control::requests::closed::{ClosedQueue, queued};
    use posthaste_config::Config;

    /// A queue with one message for three recipients, two of them deferred, whose replies nobody has kept; and the message.
    fn queue(config: &Config) -> (ClosedQueue, Lsn) {
        ClosedQueue::filled(config, |append| {
            let message = append(QueueEntry::Queued(queued(1_000_000, 3)));
            let status = Status { code: 450, enhanced: 2001 };
            let deferred = What::Deferred { attempts: 1, next: 2_000_000, status };
            let changes = [0, 1].map(|number| Change { key: RecipientKey { message, number }, what: deferred }).into();
            append(QueueEntry::Changes { at: 1_000_000, changes });
            message
        })
    }

    #[test]
    fn a_reply_not_in_memory_is_read_from_the_event_log_or_missed() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("[storage]\ndata = {:?}\n", dir.path().join("data"));
        let config = Config::parse(Path::new("x"), &text).unwrap();
        let (queue, message) = queue(&config);
        let shown = |of: Which, events: Option<&Path>| {
            let lines = Arc::new(Mutex::new(Vec::new()));
            let answer = |line: Value| {
                lines.lock().unwrap().push(line);
                true
            };
            let page = Page { of: &of, after: None, most: u64::MAX, is_bounded: false, events };
            list(queue.relay(), &page, &answer);
            let lines = std::mem::take(&mut *lines.lock().unwrap());
            let keys = ["why", "class", "why_unknown"];
            lines.iter().map(|line| keys.map(|key| line[key].as_str().unwrap_or("").to_owned())).collect::<Vec<_>>()
        };
        let of = Which { message: Some(message), ..Which::default() };
        let unknown = |why: &str| ["", "", why].map(str::to_owned);
        let untried = unknown("");
        let off = unknown("the event log is off");
        assert_eq!(shown(of.clone(), None), [off.clone(), off, untried.clone()]);
        let log = dir.path().join("events");
        std::fs::create_dir(&log).unwrap();
        let line = format!(
            "{{\"lsn\":\"{0}\",\"time\":\"2026-01-01T00:00:00Z\",\"event\":\"deferred\",\"message\":\"{0}\",\"relay_target\":1,\
             \"host\":\"mx.there.example\",\"reply\":\"450 4.2.1 busy\\nagain\",\"class\":\"mailbox_full\"}}\n",
            message
        );
        std::fs::write(log.join(posthaste_events::file_name(4)), line).unwrap();
        let found = ["mx.there.example: 450 4.2.1 busy\nagain", "mailbox_full", ""].map(str::to_owned);
        let absent = unknown("it is not in the event log");
        assert_eq!(shown(of.clone(), Some(&log)), [absent, found.clone(), untried.clone()]);
        assert_eq!(shown(Which { number: Some(1), ..of }, Some(&log)), [found]);
        assert_eq!(shown(Which::default(), Some(&log)), vec![untried; 3], "a list of many keeps to memory");
    }

    #[test]
    fn a_list_goes_on_behind_its_last_recipient() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("[storage]\ndata = {:?}\n", dir.path().join("data"));
        let config = Config::parse(Path::new("x"), &text).unwrap();
        let (queue, message) = queue(&config);
        let page = |after: Option<&str>| {
            let lines = Arc::new(Mutex::new(Vec::new()));
            let answer = |line: Value| {
                lines.lock().unwrap().push(line["id"].as_str().unwrap().to_owned());
                true
            };
            let after = after.map(|id| key(id).unwrap());
            let page = Page { of: &Which::default(), after, most: 2, is_bounded: true, events: None };
            let listed = list(queue.relay(), &page, &answer);
            (std::mem::take(&mut *lines.lock().unwrap()), listed.next)
        };
        let id = |number| format!("{message}.{number}");
        assert_eq!(page(None), (vec![id(0), id(1)], Some(id(1))));
        assert_eq!(page(Some(&id(1))), (vec![id(2)], None));
        assert_eq!(page(Some(&id(2))), (Vec::new(), None));
        // Two queues, such as of two shards.
        let other = tempfile::tempdir().unwrap();
        let text = format!("[storage]\ndata = {:?}\n", other.path().join("data"));
        let (second, _) = self::queue(&Config::parse(Path::new("x"), &text).unwrap());
        let relays = [queue.relay().clone(), second.relay().clone()];
        let part = |most| {
            let page = Page { of: &Which::default(), after: None, most, is_bounded: true, events: None };
            let listed = list_all(&relays, &page, &|_| true);
            (listed.count, listed.next.is_some())
        };
        assert_eq!([part(2), part(4), part(9)], [(2, true), (4, true), (6, false)]);
        assert!(key("4711").is_err() && key("a.b").is_err());
    }
}
