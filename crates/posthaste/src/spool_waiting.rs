//! The mail that waits in a spool for its mailboxes, for people and as JSON.

use std::collections::HashMap;
use std::fmt::Write as _;

use posthaste_delivery::local::Trouble;
use posthaste_delivery::local::inspect::Undelivered;
use posthaste_message::DateTime;
use posthaste_units::count;
use serde_json::{Value, json};

/// How much waits for each mailbox and why.
pub fn text(undelivered: &[Undelivered]) -> String {
    let mut out = format!("mail: {} not in all mailboxes yet\n", count(undelivered.len(), "message"));
    for total in by_mailbox(undelivered) {
        let oldest = date(total.oldest_secs);
        let messages = count(total.messages, "message");
        let _ = write!(out, "waiting {}  {messages}, {} bytes, oldest {oldest}", total.mailbox, total.bytes);
        let _ = match total.trouble {
            None => writeln!(out, "  being delivered"),
            Some(Trouble { attempts, next_try_secs, error, .. }) => {
                let next = date(*next_try_secs);
                writeln!(out, "\n    failed {}, next try {next}: {error}", count(*attempts, "time"))
            }
        };
    }
    out
}

/// Each message that waits, and for which mailboxes.
pub fn messages(undelivered: &[Undelivered]) -> String {
    let mut out = String::new();
    for message in undelivered {
        let received = date(message.received_secs);
        let _ = writeln!(out, "undelivered {}  {} bytes  received {received}", message.id, message.bytes);
        for to in &message.mailboxes {
            let _ = writeln!(out, "  {}", to.mailbox);
        }
    }
    out
}

/// What waits for each mailbox. Attempts, next try and error are `null` for mail that was on its way.
pub fn totals_json(undelivered: &[Undelivered]) -> Vec<Value> {
    let total = |total: Total<'_>| {
        let mut value = json!({
            "mailbox": total.mailbox, "messages": total.messages, "bytes": total.bytes, "oldest": total.oldest_secs,
        });
        put_trouble(&mut value, total.trouble);
        value
    };
    by_mailbox(undelivered).into_iter().map(total).collect()
}

/// Each message that waits.
pub fn messages_json(undelivered: &[Undelivered]) -> Vec<Value> {
    let message = |message: &Undelivered| {
        let mailboxes = message.mailboxes.iter().map(|to| {
            let mut value = json!({"mailbox": &*to.mailbox});
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

/// What waits for one mailbox.
struct Total<'a> {
    mailbox: &'a str,
    messages: usize,
    bytes: u64,
    oldest_secs: u64,
    trouble: Option<&'a Trouble>,
}

/// The mailboxes for which the most messages wait first.
fn by_mailbox(undelivered: &[Undelivered]) -> Vec<Total<'_>> {
    let mut totals: HashMap<&str, Total<'_>> = HashMap::new();
    for message in undelivered {
        for to in &message.mailboxes {
            let total = totals.entry(&to.mailbox).or_insert(Total {
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
    let mut totals: Vec<Total<'_>> = totals.into_values().collect();
    totals.sort_by(|a, b| b.messages.cmp(&a.messages).then(a.mailbox.cmp(b.mailbox)));
    totals
}

fn date(secs: u64) -> DateTime {
    DateTime::from_unix(i64::try_from(secs).unwrap_or(i64::MAX))
}
