//! The queues concerned by a request: one, or in a cluster one for each owned shard.

use std::cell::RefCell;

use posthaste_control::Request;
use posthaste_relay::sender::Relay;
use posthaste_spool::Lsn;
use serde_json::{Value, json};

use super::answering::{Answer, Outcome};
use crate::receive::handler::Receiver;

/// A queue, and the shard of a cluster that it is of.
pub(super) type NumberedRelay = (Option<u16>, Relay);

/// The open queues that a request may concern.
///
/// # Errors
/// It is about a message of a shard that this node does not own.
pub(super) fn relays_for(receiver: &Receiver, request: &Request) -> Result<Vec<NumberedRelay>, String> {
    if let Request::Export { shard: Some(shard), hold, .. } = request {
        let relay = copy_of(receiver, *shard, *hold)?;
        return Ok(vec![(Some(*shard), relay)]);
    }
    let message = match request {
        Request::List { of, .. }
        | Request::Count { of, .. }
        | Request::Act { of, .. }
        | Request::Summary { of, .. }
        | Request::Export { of, .. } => of.message,
        Request::Cat { message, .. } => Some(*message),
        _ => None,
    };
    match message {
        Some(message) if !receiver.remote().shards().is_empty() => {
            Ok(vec![(Some(message.shard()), relay_with(receiver, message)?)])
        }
        _ => Ok(receiver.remote().numbered_relays()),
    }
}

/// The queue of this node's copy of a shard, whoever owns that.
///
/// # Errors
/// It has none, it is not open, or something is to be held in it.
fn copy_of(receiver: &Receiver, shard: u16, hold: bool) -> Result<Relay, String> {
    let copies = receiver.remote().shards();
    let copy = copies.iter().find(|it| it.number() == shard);
    let copy = copy.ok_or_else(|| format!("this server has no copy of shard {shard}"))?;
    let opened = copy.owner().opened();
    if hold && opened.is_none() {
        return Err(format!("only the owner of shard {shard} can hold mail in it"));
    }
    opened.or_else(|| copy.standby().opened()).ok_or_else(|| format!("the queue of shard {shard} is not open here"))
}

/// The queue that a message would wait in.
///
/// # Errors
/// There is none, or another node of the cluster owns its shard.
pub(super) fn relay_with(receiver: &Receiver, message: Lsn) -> Result<Relay, String> {
    let remote = receiver.remote();
    remote.relay_with(message).ok_or_else(|| match remote.shards() {
        [] => no_relay(receiver),
        _ => format!(
            "message {message} is of shard {}, which this node does not own now: `posthaste cluster status` names the owner, ask there",
            message.shard()
        ),
    })
}

/// Changes each queue. The answer is that of the queue with the most changes.
///
/// # Errors
/// See [`change_each`].
pub(super) fn on_each(relays: &[NumberedRelay], change: &dyn Fn(&Relay) -> Outcome) -> Outcome {
    let done = |outcome: &Value| outcome["done"].as_u64().unwrap_or_default();
    let outcomes = change_each(relays, &mut |relay| change(relay))?;
    Ok(outcomes.into_iter().max_by_key(done).unwrap_or_else(|| json!({ "done": 0 })))
}

/// Changes each queue, even after one fails.
///
/// # Errors
/// A queue is not changed. If others are, the text names the shards of both.
pub(super) fn change_each<T>(
    relays: &[NumberedRelay],
    change: &mut dyn FnMut(&Relay) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let (mut done, mut changed, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for (shard, relay) in relays {
        match change(relay) {
            Ok(outcome) => {
                done.push(outcome);
                changed.extend(shard.map(|shard| shard.to_string()));
            }
            Err(error) => failed.push((shard, error)),
        }
    }
    if let ([], [(_, error), ..]) = (&done[..], &failed[..]) {
        return Err(error.clone());
    }
    if failed.is_empty() {
        return Ok(done);
    }
    let failed = failed.iter().map(|(shard, error)| format!("shard {}: {error}", shard.unwrap_or_default()));
    let failed = failed.collect::<Vec<_>>().join("; ");
    Err(format!("it was done in shard {}, but not in {failed}", changed.join(" and ")))
}

/// Lists all queues, each scope once: a command changes all queues, whose clocks differ by a second. The line with the latest end stays.
pub(super) fn of_each(
    relays: &[NumberedRelay],
    answer: Answer<'_>,
    list: &dyn Fn(&Relay, Answer<'_>) -> Outcome,
) -> Outcome {
    let merged = RefCell::new(Vec::new());
    let merge = |line: Value| {
        merge_scope(&mut merged.borrow_mut(), line);
        true
    };
    for (_, relay) in relays {
        list(relay, &merge)?;
    }
    let lines = merged.into_inner();
    let count = lines.len();
    let _ = lines.into_iter().all(answer);
    Ok(json!({ "done": count }))
}

/// Adds a line about a scope, or replaces the line about the same scope.
pub(super) fn merge_scope(lines: &mut Vec<Value>, line: Value) {
    // A diversion to another host, and a limit beside a suspension, are not the same.
    let is_same = |other: &&mut Value| KEYS.iter().all(|key| other[key] == line[key]);
    // Without an end it never ends.
    let end = |line: &Value| line["until"].as_i64().unwrap_or(i64::MAX);
    match lines.iter_mut().find(is_same) {
        Some(other) if end(&*other) >= end(&line) => {}
        Some(other) => *other = line,
        None => lines.push(line),
    }
}

/// Fields that tell scopes and their treatments apart.
const KEYS: [&str; 5] = ["kind", "scope", "to", "message_rate", "connections"];

/// The queue for other hosts.
///
/// # Errors
/// It is stuck, or this server has no queue.
pub(super) fn relay_of(receiver: &Receiver) -> Result<Relay, String> {
    receiver.remote().relay().ok_or_else(|| no_relay(receiver))
}

/// Why there is no queue for other hosts.
pub(super) fn no_relay(receiver: &Receiver) -> String {
    match receiver.remote().stuck() {
        Some(why) => format!("the queue is stuck: {why}"),
        None if receiver.cluster().is_some() => "this node owns no shard now: ask another one".to_owned(),
        None => "this server relays no mail".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use posthaste_config::Config;

    use super::*;
    use crate::control::requests::closed::ClosedQueue;

    #[test]
    fn queues_answer_once_and_lists_have_each_scope_once() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let queues = dirs.each_ref().map(|dir| {
            let text = format!("[storage]\ndata = {:?}\n", dir.path().join("data"));
            ClosedQueue::filled(&Config::parse(Path::new("x"), &text).unwrap(), |_| ()).0
        });
        let numbers = [Some(1), Some(2)].into_iter();
        let relays: Vec<_> = numbers.zip(queues.each_ref().map(|queue| queue.relay().clone())).collect();
        let first = |relay: &Relay| std::ptr::eq(relay, &relays[0].1);
        let changed = on_each(&relays, &|relay| Ok(json!({ "done": u8::from(first(relay)) })));
        assert_eq!(changed, Ok(json!({ "done": 1 })));
        let refused = || Err("no room".to_owned());
        let one_of =
            |is_first| on_each(&relays, &|relay| if first(relay) == is_first { Ok(json!({})) } else { refused() });
        assert_eq!(one_of(true), Err("it was done in shard 1, but not in shard 2: no room".to_owned()));
        assert_eq!(one_of(false), Err("it was done in shard 2, but not in shard 1: no room".to_owned()));
        assert_eq!(on_each(&relays, &|_| refused()), refused());
        assert_eq!(on_each(&[], &|_| Ok(json!({}))), Ok(json!({ "done": 0 })));
        let lines = RefCell::new(Vec::new());
        let of = |domain: &str, until| json!({ "kind": "domain", "scope": { "domain": domain }, "until": until });
        let list = |relay: &Relay, answer: Answer<'_>| {
            // The queues were changed in two seconds.
            answer(of("a.example", if first(relay) { Some(100) } else { Some(101) }));
            answer(of("b.example", if first(relay) { None } else { Some(5) }));
            if !first(relay) {
                answer(of("c.example", None));
            }
            Ok(json!({ "done": 2 }))
        };
        let answer = |line: Value| {
            lines.borrow_mut().push(line);
            true
        };
        assert_eq!(of_each(&relays, &answer, &list), Ok(json!({ "done": 3 })));
        let wanted = [of("a.example", Some(101)), of("b.example", None), of("c.example", None)];
        assert_eq!(lines.into_inner(), wanted);
    }
}
