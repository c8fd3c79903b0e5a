//! Counts of waiting mail over all queues of this server: one, or one for each owned shard.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use posthaste_queue::Secs;
use posthaste_relay::sender::{Count, CountBy, Filter, Ranking, Relay, Standing};

/// Waiting recipients, counted by a kind of name. Times are in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueCounts {
    /// Number of names.
    pub names: usize,
    /// Recipients of all names.
    pub recipients: u64,
    /// Arrival of the oldest of them; `None` without any.
    pub oldest: Option<i64>,
    /// The names with most recipients, in descending order, then by name.
    pub busiest: Vec<NamedCount>,
}

/// The recipients of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedCount {
    pub name: Arc<str>,
    /// All recipients.
    pub recipients: u64,
    pub deferred: u64,
    pub held: u64,
    pub suspended: u64,
    pub under_way: u64,
    /// When the oldest was received.
    pub oldest: i64,
    /// When the next is tried, if that is before an operator acts.
    pub next: Option<i64>,
    /// The queue with most of them, and its count: for [`standing`](Self::standing).
    largest: (usize, Count),
}

impl QueueCounts {
    /// Counts recipients that match a filter by several kinds of names, in one scan of each queue. Blocks.
    pub fn all<const N: usize>(relays: &[Relay], filter: &Filter, by: [(CountBy, usize); N]) -> [Self; N] {
        // Clocks are read once, not twice for each name.
        let begins: Vec<i64> = relays.iter().map(|relay| relay.wall(0)).collect();
        let wall = |queue: usize, secs: Secs| begins[queue].saturating_add(secs.into());
        if let [relay] = relays {
            return relay.summaries(filter, by).map(|ranking| Self::of_one(ranking, &wall));
        }
        // A name that has few here may have many there: all names are added up, and only the busiest are sorted.
        let mut sums: [HashMap<Arc<str>, NamedCount>; N] = std::array::from_fn(|_| HashMap::new());
        for (queue, relay) in relays.iter().enumerate() {
            for (sum, counts) in sums.iter_mut().zip(relay.counts(filter, by.map(|(by, _)| by))) {
                add_all(sum, queue, counts, &wall);
            }
        }
        let mut most = by.into_iter().map(|(_, most)| most);
        sums.map(|sum| Self::of_sums(sum, most.next().unwrap_or_default()))
    }

    /// Likewise, by one kind of names.
    pub fn of(relays: &[Relay], filter: &Filter, by: CountBy, most: usize) -> Self {
        let [counts] = Self::all(relays, filter, [(by, most)]);
        counts
    }

    /// `wall`: the time of a queue in seconds since 1970.
    fn of_one(ranking: Ranking, wall: &dyn Fn(usize, Secs) -> i64) -> Self {
        let Ranking { names, recipients, oldest, busiest } = ranking;
        let busiest = busiest.into_iter().map(|(name, count)| NamedCount::of(name, 0, count, wall)).collect();
        Self { names, recipients, oldest: oldest.map(|secs| wall(0, secs)), busiest }
    }

    fn of_sums(sums: HashMap<Arc<str>, NamedCount>, most: usize) -> Self {
        let names = sums.len();
        let recipients = sums.values().map(|count| count.recipients).sum();
        let oldest = sums.values().map(|count| count.oldest).min();
        let mut busiest: Vec<NamedCount> = sums.into_values().collect();
        if most < busiest.len() {
            busiest.select_nth_unstable_by(most, busier);
            busiest.truncate(most);
        }
        busiest.sort_unstable_by(busier);
        Self { names, recipients, oldest, busiest }
    }
}

/// Adds the names of a queue. `wall`: the time of a queue in seconds since 1970.
fn add_all(
    sums: &mut HashMap<Arc<str>, NamedCount>,
    queue: usize,
    counts: HashMap<Arc<str>, Count>,
    wall: &dyn Fn(usize, Secs) -> i64,
) {
    for (name, count) in counts {
        let count = NamedCount::of(name.clone(), queue, count, wall);
        match sums.entry(name) {
            Entry::Occupied(mut sum) => sum.get_mut().add(count),
            Entry::Vacant(place) => drop(place.insert(count)),
        }
    }
}

/// Most recipients first; by name where they are equal.
fn busier(a: &NamedCount, b: &NamedCount) -> Ordering {
    b.recipients.cmp(&a.recipients).then_with(|| a.name.cmp(&b.name))
}

impl NamedCount {
    fn of(name: Arc<str>, queue: usize, count: Count, wall: &dyn Fn(usize, Secs) -> i64) -> Self {
        let Count { recipients, deferred, held, suspended, under_way, oldest, next, .. } = count;
        let next = Some(next).filter(|next| *next < Secs::MAX).map(|next| wall(queue, next));
        let (oldest, largest) = (wall(queue, oldest), (queue, count));
        Self { name, recipients, deferred, held, suspended, under_way, oldest, next, largest }
    }

    fn add(&mut self, other: Self) {
        self.recipients += other.recipients;
        self.deferred += other.deferred;
        self.held += other.held;
        self.suspended += other.suspended;
        self.under_way += other.under_way;
        self.oldest = self.oldest.min(other.oldest);
        self.next = self.next.into_iter().chain(other.next).min();
        if other.largest.1.recipients > self.largest.1.recipients {
            self.largest = other.largest;
        }
    }

    /// Why they wait, according to the queue with most of them. `relays`: the counted ones.
    pub fn standing(&self, relays: &[Relay]) -> Standing {
        let (queue, count) = &self.largest;
        relays.get(*queue).map(|relay| relay.standing(count)).unwrap_or_default()
    }
}

/// Sessions of all relays: see [`Relay::tls_counts`].
pub(crate) fn tls_counts(relays: &[Relay]) -> Vec<(&'static str, &'static str, u64)> {
    let mut sum: Vec<(&str, &str, u64)> = Vec::new();
    for (demand, result, count) in relays.iter().flat_map(Relay::tls_counts) {
        match sum.iter_mut().find(|known| (known.0, known.1) == (demand, result)) {
            Some(known) => known.2 += count,
            None => sum.push((demand, result, count)),
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use posthaste_config::Config;
    use posthaste_queue::RecipientKey;
    use posthaste_queue::entry::{Change, QueueEntry, Queued, Status, What};

    use super::*;
    use crate::control::requests::closed::ClosedQueue;

    /// A queue with a message for addresses in these domains, the first of which was deferred.
    fn queue(config: &Config, received: Secs, domains: &[&str]) -> ClosedQueue {
        let (queue, ()) = ClosedQueue::filled(config, |append| {
            let addresses = domains.iter().map(|domain| format!("x@{domain}"));
            let message = append(QueueEntry::Queued(Queued::plain(received, "ann@here.example", addresses)));
            let status = Status { code: 450, enhanced: 2001 };
            let what = What::Deferred { attempts: 1, next: received + 900, status };
            let changes = [Change { key: RecipientKey { message, number: 0 }, what }].into();
            append(QueueEntry::Changes { at: received, changes });
        });
        queue
    }

    #[test]
    fn counts_of_queues_are_added_by_name() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let configs = dirs.each_ref().map(|dir| {
            let text = format!("[storage]\ndata = {:?}\n", dir.path().join("data"));
            Config::parse(Path::new("x"), &text).unwrap()
        });
        let one = queue(&configs[0], 1_000_000, &["a.example", "b.example", "b.example"]);
        let two = queue(&configs[1], 1_000_060, &["a.example", "a.example", "c.example"]);
        let relays = [one.relay().clone(), two.relay().clone()];
        let [by_domain, by_tenant] =
            QueueCounts::all(&relays, &Filter::default(), [(CountBy::Domain, 2), (CountBy::Tenant, 9)]);
        assert_eq!((by_domain.names, by_domain.recipients), (3, 6));
        assert_eq!(by_domain.oldest, Some(relays[0].wall(1_000_000)));
        let counted: Vec<_> = by_domain.busiest.iter().map(|it| (&*it.name, it.recipients, it.deferred)).collect();
        assert_eq!(counted, [("a.example", 3, 2), ("b.example", 2, 0)]);
        assert_eq!((by_tenant.names, by_tenant.busiest[0].recipients), (1, 6));
        let whole = QueueCounts::of(&relays, &Filter::default(), CountBy::Domain, 9);
        let counted: Vec<_> = whole.busiest.iter().map(|it| (&*it.name, it.recipients)).collect();
        assert_eq!(counted, [("a.example", 3), ("b.example", 2), ("c.example", 1)]);
        assert_eq!(QueueCounts::of(&relays, &Filter::default(), CountBy::Domain, 0).busiest, []);
        let alone = QueueCounts::of(&relays[1..], &Filter::default(), CountBy::Domain, 1);
        assert_eq!((alone.names, alone.busiest.len(), alone.busiest[0].recipients), (2, 1, 2));
        assert_eq!(QueueCounts::of(&[], &Filter::default(), CountBy::Domain, 1).oldest, None);
    }
}
