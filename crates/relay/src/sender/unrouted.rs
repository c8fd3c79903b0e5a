//! Queues that wait until the MX records of a domain are known.
//!
//! They wait as entries here, not as tasks: a task begins once a slot for its query is free. One answer routes all
//! queues that wait for a domain.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use posthaste_queue::QueueId;

/// Waiting queues, by the domain to look up.
#[derive(Default)]
pub(super) struct Unrouted(Mutex<HashMap<String, Waiting>>);

#[derive(Default)]
struct Waiting {
    queues: BTreeSet<QueueId>,
    /// Each tenant whose queues wait for the query has a turn for it.
    tenants: BTreeSet<Arc<str>>,
    is_asked: bool,
}

impl Unrouted {
    /// True if the query still needs this tenant's turn.
    pub fn add(&self, domain: &str, tenant: &Arc<str>, queue: QueueId) -> bool {
        let mut waiting = self.waiting();
        if !waiting.contains_key(domain) {
            waiting.insert(domain.to_owned(), Waiting::default());
        }
        let waiting = waiting.get_mut(domain).expect("inserted above");
        waiting.queues.insert(queue);
        waiting.tenants.insert(tenant.clone()) && !waiting.is_asked
    }

    /// True if the query is still needed: another tenant's turn may have come first.
    pub fn begin(&self, domain: &str) -> bool {
        self.waiting().get_mut(domain).is_some_and(|waiting| !std::mem::replace(&mut waiting.is_asked, true))
    }

    /// The queues that have waited for the query.
    pub fn end(&self, domain: &str) -> BTreeSet<QueueId> {
        self.waiting().remove(domain).map(|waiting| waiting.queues).unwrap_or_default()
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, Waiting>> {
        self.0.lock().expect("the unrouted queues")
    }
}

#[cfg(test)]
mod tests {
    use crate::sender::router::route_in_turn;
    use crate::sender::test_relay::{append, idle_with_dns};
    use posthaste_queue::QueueId;

    #[test]
    fn queues_become_tasks_only_while_questions_are_free() {
        let dir = tempfile::tempdir().unwrap();
        // A DNS server that never answers.
        let dns = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let relay = idle_with_dns(dir.path(), dns.local_addr().unwrap());
        let shared = &relay.0.shared;
        let names: Vec<String> = (0..1000).map(|number| format!("bob@{number}.dead.example")).collect();
        for names in names.chunks(100) {
            append(&relay, &names.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let before = shared.runtime.metrics().num_alive_tasks();
        // A second may have begun since the opening.
        shared.queue().tick(shared.time.now());
        let queues: Vec<QueueId> = std::iter::from_fn(|| shared.queue().next_unrouted()).collect();
        queues.iter().for_each(|id| route_in_turn(shared, *id));
        let tasks = shared.runtime.metrics().num_alive_tasks() - before;
        let waiting = shared.routes.unrouted.waiting().len();
        assert_eq!((queues.len(), waiting), (1000, 1000));
        // 256 queries run at a time, each with a task, or a few for its record types.
        assert!((1..1000).contains(&tasks), "{tasks} tasks");
    }
}
