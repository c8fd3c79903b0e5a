//! The queues for other hosts that a request is about: one, or in a cluster that of each shard that this node owns.

use std::cell::RefCell;
use std::collections::HashSet;

use posthaste_control::Request;
use posthaste_relay::sender::Relay;
use posthaste_spool::Lsn;
use serde_json::{Value, json};

use super::{Answer, Outcome};
use crate::receive::handler::Receiver;

/// The open queues that a request may concern.
///
/// # Errors
/// It is about a message of a shard that this node does not own.
pub(super) fn relays_for(receiver: &Receiver, request: &Request) -> Result<Vec<Relay>, String> {
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
        Some(message) if !receiver.remote().shards().is_empty() => Ok(vec![relay_with(receiver, message)?]),
        _ => Ok(receiver.relays()),
    }
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

/// Has each queue changed. The answer is that of the queue where it did most.
pub(super) fn on_each(relays: &[Relay], change: &dyn Fn(&Relay) -> Outcome) -> Outcome {
    let done = |outcome: &Value| outcome["done"].as_u64().unwrap_or_default();
    let outcomes: Vec<Value> = relays.iter().map(change).collect::<Result<_, _>>()?;
    Ok(outcomes.into_iter().max_by_key(done).unwrap_or_else(|| json!({ "done": 0 })))
}

/// Lists all queues, each line once.
pub(super) fn of_each(relays: &[Relay], answer: Answer<'_>, list: &dyn Fn(&Relay, Answer<'_>) -> Outcome) -> Outcome {
    let told = RefCell::new(HashSet::new());
    let once = |line: Value| !told.borrow_mut().insert(line.to_string()) || answer(line);
    for relay in relays {
        list(relay, &once)?;
    }
    Ok(json!({ "done": told.into_inner().len() }))
}

/// The queue for other hosts.
///
/// # Errors
/// It is stuck, or this server has none.
pub(super) fn relay_of(receiver: &Receiver) -> Result<Relay, String> {
    receiver.relay().ok_or_else(|| no_relay(receiver))
}

/// The reason why there is no queue for other hosts.
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
    fn queues_answer_once_and_lists_have_each_line_once() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let queues = dirs.each_ref().map(|dir| {
            let text = format!("[storage]\ndata = {:?}\n", dir.path().join("data"));
            ClosedQueue::filled(&Config::parse(Path::new("x"), &text).unwrap(), |_| ()).0
        });
        let relays = queues.each_ref().map(|queue| queue.relay().clone());
        let first = |relay: &Relay| std::ptr::eq(relay, &relays[0]);
        let changed = on_each(&relays, &|relay| Ok(json!({ "done": u8::from(first(relay)) })));
        assert_eq!(changed, Ok(json!({ "done": 1 })));
        let failed = on_each(&relays, &|relay| if first(relay) { Ok(json!({})) } else { Err("no room".to_owned()) });
        assert_eq!(failed, Err("no room".to_owned()));
        assert_eq!(on_each(&[], &|_| Ok(json!({}))), Ok(json!({ "done": 0 })));
        let lines = RefCell::new(Vec::new());
        let list = |relay: &Relay, answer: Answer<'_>| {
            answer(json!("both"));
            answer(json!(first(relay)));
            Ok(json!({ "done": 2 }))
        };
        let answer = |line: Value| {
            lines.borrow_mut().push(line);
            true
        };
        assert_eq!(of_each(&relays, &answer, &list), Ok(json!({ "done": 3 })));
        assert_eq!(lines.into_inner(), [json!("both"), json!(true), json!(false)]);
    }
}
