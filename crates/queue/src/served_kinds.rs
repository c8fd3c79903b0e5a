//! Half of a site's connections serve first attempts while any wait; the other half serves later ones.

use super::ready::Prefer;

/// Counts a site's connections by the kind of their last message. A connection chooses anew for each message, so
/// neither kind starves as connections come and go.
#[derive(Debug, Default)]
pub struct ServedKinds {
    first: usize,
    later: usize,
}

impl ServedKinds {
    /// The kind that a connection prefers after one of kind `own`: the one that fewer of the other connections serve,
    /// else both in turn. So a single connection gives each kind half of its messages.
    pub fn prefer(&self, own: Option<Prefer>) -> Prefer {
        let first = self.first - usize::from(own == Some(Prefer::First));
        let later = self.later - usize::from(own == Some(Prefer::Later));
        let is_turn_of_first = own != Some(Prefer::First);
        if first < later || first == later && is_turn_of_first { Prefer::First } else { Prefer::Later }
    }

    /// Notes the kind of message that a connection takes, or that it is idle.
    pub fn serves(&mut self, own: &mut Option<Prefer>, takes: Option<Prefer>) {
        match own {
            Some(Prefer::First) => self.first -= 1,
            Some(Prefer::Later) => self.later -= 1,
            None => {}
        }
        match takes {
            Some(Prefer::First) => self.first += 1,
            Some(Prefer::Later) => self.later += 1,
            None => {}
        }
        *own = takes;
    }
}

#[cfg(test)]
mod tests {
    use posthaste_random::Random;
    use posthaste_spool::Lsn;

    use super::*;
    use crate::{
        AttemptOutcome, Queue, QueueEntry, Queued, ReadyId, RecipientKey, RouteSource, Schedules, Secs, Status, Take,
        Transaction,
    };

    const TAKE: Take = Take { prefer: Prefer::First, recipients_max: 1, across_domains: true };

    /// A site of a real queue with some connections, each busy with one message for a random time.
    struct Site {
        random: Random,
        queue: Queue,
        served: ServedKinds,
        lsn: u64,
        connections: Vec<Connection>,
        ready: Option<ReadyId>,
    }

    #[derive(Default)]
    struct Connection {
        own: Option<Prefer>,
        at_work: Option<(Transaction, u64)>,
        /// Messages taken since both kinds wait.
        taken: [usize; 2],
    }

    impl Site {
        fn new(seed: u64) -> Self {
            let mut queue = Queue::new(Schedules::default(), 1);
            queue.start(1_000_000);
            Site {
                random: Random::new(seed),
                queue,
                served: ServedKinds::default(),
                lsn: 0,
                connections: Vec::new(),
                ready: None,
            }
        }

        fn apply(&mut self, entry: &QueueEntry) {
            self.lsn += 1;
            self.queue.apply(Lsn::new(self.lsn), entry);
        }

        fn arrives(&mut self) {
            let address = format!("a@d{}.example", self.random.below(4));
            let tenant = format!("t{}", self.random.below(3)).into();
            self.apply(&QueueEntry::Queued(Queued { tenant, ..Queued::plain(self.queue.now(), "", [address]) }));
        }

        /// One step of each free connection. Returns whether both kinds still wait.
        fn step(&mut self, at: u64) -> bool {
            while let Some(id) = self.queue.next_unrouted() {
                let source = RouteSource { name: "s".into(), weight: 1 };
                self.ready = self.queue.route(id, "mx", &[source], Secs::MAX).pop();
            }
            for number in 0..self.connections.len() {
                if let Some((transaction, until)) = &self.connections[number].at_work {
                    if *until > at {
                        continue;
                    }
                    let key = RecipientKey { message: transaction.message, number: 0 };
                    let outcome = if self.random.one_in(2) {
                        AttemptOutcome::Deferred(Status::default())
                    } else {
                        AttemptOutcome::Delivered(Status::default())
                    };
                    let change = self.queue.finish(key, outcome).expect("a change");
                    let at = self.queue.now();
                    self.apply(&QueueEntry::Changes { at, changes: vec![change] });
                    self.connections[number].at_work = None;
                }
                let own = self.connections[number].own;
                let take = Take { prefer: self.served.prefer(own), ..TAKE };
                let next = self.ready.and_then(|ready| self.queue.next(ready, take));
                let kind = next.as_ref().map(|transaction| transaction.kind);
                let connection = &mut self.connections[number];
                self.served.serves(&mut connection.own, kind);
                // A later attempt may take much longer.
                let secs = match kind {
                    Some(Prefer::Later) => 1 + self.random.below(40),
                    _ => 1 + self.random.below(4),
                };
                connection.taken[usize::from(kind == Some(Prefer::Later))] += usize::from(kind.is_some());
                connection.at_work = next.map(|transaction| (transaction, at + secs));
            }
            let waits = self.ready.map(|ready| self.queue.kinds_waiting(ready));
            waits == Some([true, true])
        }
    }

    /// Under any load, with connections coming and going: once each connection has taken a message while both kinds
    /// waited, the served differ by one at most.
    #[test]
    fn half_of_the_connections_serve_first_attempts_while_any_wait() {
        let mut checked = [0; 8];
        for seed in 0..40 {
            let mut site = Site::new(seed);
            let connections = 1 + site.random.below(7) as usize;
            let per_step = 1 + site.random.below(3);
            site.connections.resize_with(connections, Connection::default);
            for at in 0..600 {
                // The load comes in waves, and the connections of one kind may end all at once.
                if at / 200 % 3 != 2 {
                    (0..site.random.below(per_step * 2)).for_each(|_| site.arrives());
                }
                if site.random.one_in(60) {
                    let ended = if site.random.one_in(2) { Prefer::Later } else { Prefer::First };
                    for number in 0..connections {
                        if site.connections[number].own == Some(ended) {
                            let mut connection = std::mem::take(&mut site.connections[number]);
                            site.served.serves(&mut connection.own, None);
                            if let Some((transaction, _)) = connection.at_work {
                                let key = RecipientKey { message: transaction.message, number: 0 };
                                assert_eq!(site.queue.finish(key, AttemptOutcome::Untried), None);
                            }
                        }
                    }
                }
                site.queue.tick(1_000_000 + at as Secs * 30);
                let both = site.step(at);
                if !both {
                    site.connections.iter_mut().for_each(|connection| connection.taken = [0; 2]);
                    continue;
                }
                let has_chosen = |connection: &Connection| connection.taken.iter().sum::<usize>() > 0;
                if site.connections.iter().all(has_chosen) {
                    let ServedKinds { first, later } = site.served;
                    assert_eq!(first + later, connections, "seed {seed}, {at}: some do nothing");
                    assert!(first.abs_diff(later) <= 1, "seed {seed}, {at}: {first} and {later} of {connections}");
                    checked[connections] += 1;
                }
                if connections == 1 {
                    let [first, later] = site.connections[0].taken;
                    assert!(first.abs_diff(later) <= 1, "seed {seed}, {at}: {first} and {later} of one");
                }
            }
        }
        assert!(checked[1..].iter().all(|count| *count > 100), "{checked:?}");
    }

    #[test]
    fn one_kind_alone_has_all_connections() {
        let mut served = ServedKinds::default();
        let mut own = [None; 4];
        for own in &mut own {
            served.serves(own, Some(Prefer::Later));
        }
        assert_eq!(served.prefer(own[0]), Prefer::First, "once one comes");
        assert_eq!((served.first, served.later), (0, 4));
    }
}
