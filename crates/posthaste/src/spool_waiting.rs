//! Mail waiting in a spool for mailboxes and transports, as text and as JSON.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use posthaste_delivery::local::inspect as local;
use posthaste_message::DateTime;
use posthaste_spool::{ClosedSpool, Lsn};
use posthaste_transport::{Failure, inspect as transport};
use posthaste_units::count;
use serde_json::{Value, json};

use crate::terminal::harmless;

/// A waiting message.
pub struct Waiting {
    pub id: Lsn,
    pub received_secs: u64,
    pub bytes: u64,
    to: Vec<Unreached>,
}

/// A mailbox or transport that still lacks it.
struct Unreached {
    /// Path of the Maildir, or the transport.
    place: Arc<str>,
    /// The recipient, for a transport.
    recipient: Option<Arc<str>>,
    /// The problem of the last attempt, if one failed.
    trouble: Option<Trouble>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Refused,
    Overdue,
    Uncertain,
}

impl Held {
    fn text(self) -> &'static str {
        match self {
            Held::Refused => "refused for good",
            Held::Overdue => "failed for longer than max_age_secs",
            Held::Uncertain => "held: unknown whether it was delivered",
        }
    }
}

struct Trouble {
    attempts: u32,
    next_try_secs: u64,
    /// Set if a transport refused it for good, or it failed for too long.
    held: Option<Held>,
    error: Arc<str>,
}

impl Waiting {
    /// The mailboxes and transports that still lack it.
    pub fn places(&self) -> Vec<&str> {
        self.to.iter().map(|to| &*to.place).collect()
    }
}

/// All waiting messages, in the order of arrival.
pub fn all(spool: &dyn ClosedSpool) -> std::io::Result<Vec<Waiting>> {
    let mut all: BTreeMap<Lsn, Waiting> = BTreeMap::new();
    let mut add = |id: u64, received_secs, bytes, to: Vec<Unreached>| {
        let id = Lsn::new(id);
        all.entry(id).or_insert(Waiting { id, received_secs, bytes, to: Vec::new() }).to.extend(to);
    };
    for message in local::undelivered(spool)? {
        let to = message.mailboxes.into_iter().map(|to| Unreached {
            place: to.mailbox,
            recipient: None,
            trouble: to.trouble.map(|trouble| Trouble {
                attempts: trouble.attempts,
                next_try_secs: trouble.next_try_secs,
                held: None,
                error: trouble.error,
            }),
        });
        add(message.id, message.received_secs, message.bytes, to.collect());
    }
    for message in transport::undelivered(spool)? {
        let to = message.targets.into_iter().map(|to| Unreached {
            place: to.target.transport,
            recipient: Some(to.target.recipient),
            trouble: if to.is_uncertain {
                Some(uncertain())
            } else {
                to.trouble.map(|trouble| Trouble {
                    attempts: trouble.attempts,
                    next_try_secs: trouble.next_try_secs,
                    held: match trouble.failure {
                        Failure::Refused => Some(Held::Refused),
                        Failure::Overdue => Some(Held::Overdue),
                        _ => None,
                    },
                    error: trouble.error.said(),
                })
            },
        });
        add(message.id, message.received_secs, message.bytes, to.collect());
    }
    Ok(all.into_values().collect())
}

/// A held message that will not be retried.
fn uncertain() -> Trouble {
    let error = "`posthaste queue release` in a running server delivers it, `posthaste spool drop` drops it".into();
    Trouble { attempts: 0, next_try_secs: 0, held: Some(Held::Uncertain), error }
}

/// Waiting mail and its trouble, for each mailbox.
pub fn text(undelivered: &[Waiting]) -> String {
    let mut out = format!("mail: {} not in all mailboxes yet\n", count(undelivered.len(), "message"));
    for total in by_mailbox(undelivered) {
        let oldest = date(total.oldest_secs);
        let messages = count(total.messages, "message");
        let _ = write!(out, "waiting {}  {messages}, {} bytes, oldest {oldest}", total.mailbox, total.bytes);
        let _ = match total.trouble {
            None => writeln!(out, "  being delivered"),
            Some(Trouble { held: Some(_), .. }) => writeln!(out),
            Some(Trouble { attempts, next_try_secs, error, .. }) => {
                let next = date(*next_try_secs);
                let error = harmless(error);
                writeln!(out, "\n    failed {}, next try {next}: {error}", count(*attempts, "time"))
            }
        };
        for kind in [Held::Refused, Held::Overdue, Held::Uncertain] {
            let held: Vec<_> = total.held.iter().filter(|(of, ..)| *of == kind).collect();
            let Some((_, Trouble { next_try_secs, error, .. }, oldest_secs)) = held.first() else { continue };
            let oldest = date(*oldest_secs);
            let error = harmless(error);
            let next = match kind {
                Held::Uncertain => String::new(),
                Held::Refused | Held::Overdue => format!(", next try {}", date(*next_try_secs)),
            };
            let messages = count(held.len(), "message");
            let kind = kind.text();
            let _ = writeln!(out, "    {messages} {kind}, oldest {oldest}{next}: {error}");
        }
    }
    out
}

/// Each waiting message, with its mailboxes.
pub fn messages(undelivered: &[Waiting]) -> String {
    let mut out = String::new();
    for message in undelivered {
        let received = date(message.received_secs);
        let _ = writeln!(out, "undelivered {}  {} bytes  received {received}", message.id, message.bytes);
        for to in &message.to {
            let recipient = to.recipient.as_ref().map_or(String::new(), |to| format!("  for {to}"));
            let held = to.trouble.as_ref().and_then(|trouble| Some((trouble.held?.text(), harmless(&trouble.error))));
            let held = held.map_or(String::new(), |(kind, error)| format!("  {kind}: {error}"));
            let _ = writeln!(out, "  {}{recipient}{held}", to.place);
        }
    }
    out
}

/// Waiting mail for each mailbox. Attempts, next try and error are `null` for mail in flight.
pub fn totals_json(undelivered: &[Waiting]) -> Vec<Value> {
    let total = |total: Total<'_>| {
        let mut value = json!({
            "mailbox": total.mailbox, "messages": total.messages, "bytes": total.bytes, "oldest": total.oldest_secs,
            "refused": total.count(Held::Refused), "overdue": total.count(Held::Overdue),
            "uncertain": total.count(Held::Uncertain),
        });
        put_trouble(&mut value, total.trouble);
        value
    };
    by_mailbox(undelivered).into_iter().map(total).collect()
}

/// Each waiting message.
pub fn messages_json(undelivered: &[Waiting]) -> Vec<Value> {
    let message = |message: &Waiting| {
        let mailboxes = message.to.iter().map(|to| {
            let held = to.trouble.as_ref().and_then(|trouble| trouble.held);
            let mut value = json!({
                "mailbox": &*to.place, "recipient": to.recipient.as_deref(), "refused": held == Some(Held::Refused),
                "overdue": held == Some(Held::Overdue), "uncertain": held == Some(Held::Uncertain),
            });
            put_trouble(&mut value, to.trouble.as_ref());
            value
        });
        let mailboxes: Vec<Value> = mailboxes.collect();
        json!({"id": message.id, "bytes": message.bytes, "received": message.received_secs, "mailboxes": mailboxes})
    };
    undelivered.iter().map(message).collect()
}

fn put_trouble(value: &mut Value, trouble: Option<&Trouble>) {
    value["attempts"] = trouble.map(|trouble| trouble.attempts).into();
    value["next_try"] = trouble.map(|trouble| trouble.next_try_secs).into();
    value["error"] = trouble.map(|trouble| &*trouble.error).into();
}

/// Waiting mail of one mailbox.
struct Total<'a> {
    mailbox: &'a str,
    messages: usize,
    bytes: u64,
    oldest_secs: u64,
    /// The first one that is not held, if any.
    trouble: Option<&'a Trouble>,
    /// Held ones, each with the time of reception, oldest first.
    held: Vec<(Held, &'a Trouble, u64)>,
}

impl Total<'_> {
    fn count(&self, kind: Held) -> usize {
        self.held.iter().filter(|(of, ..)| *of == kind).count()
    }
}

/// Totals by mailbox, most messages first.
fn by_mailbox(undelivered: &[Waiting]) -> Vec<Total<'_>> {
    let mut totals: HashMap<&str, Total<'_>> = HashMap::new();
    for message in undelivered {
        for to in &message.to {
            let total = totals.entry(&to.place).or_insert(Total {
                mailbox: &to.place,
                messages: 0,
                bytes: 0,
                oldest_secs: message.received_secs,
                trouble: to.trouble.as_ref(),
                held: Vec::new(),
            });
            let held = to.trouble.iter().filter_map(|trouble| Some((trouble.held?, trouble, message.received_secs)));
            total.held.extend(held);
            if total.trouble.is_none_or(|trouble| trouble.held.is_some()) {
                total.trouble = to.trouble.as_ref().filter(|trouble| trouble.held.is_none()).or(total.trouble);
            }
            total.messages += 1;
            total.bytes += message.bytes;
            total.oldest_secs = total.oldest_secs.min(message.received_secs);
        }
    }
    let mut totals: Vec<Total<'_>> = totals.into_values().collect();
    totals.sort_by(|a, b| b.messages.cmp(&a.messages).then(a.mailbox.cmp(b.mailbox)));
    totals
}

pub fn date(secs: u64) -> DateTime {
    DateTime::from_unix(i64::try_from(secs).unwrap_or(i64::MAX))
}
