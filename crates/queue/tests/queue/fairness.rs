//! Turns: by tenant, then by domain, whatever the load.

use std::collections::BTreeMap;
use std::sync::Arc;

use posthaste_queue::{
    AttemptOutcome, Change, Prefer, QueueEntry, QueuedRecipient, ReadyId, RecipientKey, RouteSource, Secs, Status,
    Take, What,
};
use posthaste_random::Random;
use posthaste_spool::Lsn;

use crate::world::World;

type Lane = (Arc<str>, Arc<str>);

/// Waiting mail, with the number of others' transactions during its wait.
#[derive(Default)]
struct Waiting {
    messages: BTreeMap<Lane, usize>,
    of_lane: BTreeMap<Lane, usize>,
    of_tenant: BTreeMap<Arc<str>, usize>,
}

impl Waiting {
    fn comes(&mut self, lane: Lane) {
        *self.messages.entry(lane).or_default() += 1;
    }

    /// Counts for all others; those served, or without mail, begin again.
    fn served(&mut self, lane: &Lane) {
        let left = self.messages.get_mut(lane).expect("it has mail");
        *left -= 1;
        self.messages.retain(|_, left| *left > 0);
        self.of_lane.remove(lane);
        self.of_tenant.remove(&lane.0);
        let mut tenants: Vec<Arc<str>> = self.messages.keys().map(|(tenant, _)| tenant.clone()).collect();
        tenants.dedup();
        self.of_lane.retain(|lane, _| self.messages.contains_key(lane));
        self.of_tenant.retain(|tenant, _| tenants.contains(tenant));
        for other in self.messages.keys().filter(|other| *other != lane) {
            *self.of_lane.entry(other.clone()).or_default() += 1;
        }
        for other in tenants.into_iter().filter(|other| *other != lane.0) {
            *self.of_tenant.entry(other).or_default() += 1;
        }
    }
}

/// With mail of `t` tenants to `d` domains each, mail of a tenant waits for less than `t` transactions, and mail of a
/// tenant to a domain for less than `t × d`. Meanwhile mail comes in random bursts, most of it of one tenant to one
/// domain; some comes back untried.
#[test]
fn nobody_waits_longer_than_a_turn_of_all_tenants_and_domains() {
    let mut longest = (0, 0);
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut world = World::new(seed);
        let tenants = 1 + random.below(5);
        let domains = 1 + random.below(6);
        let mut waiting = Waiting::default();
        let mut lsn = 0;
        let mut ready = None::<ReadyId>;
        let take = Take { prefer: Prefer::First, recipients_max: 1, across_domains: true };
        for step in 0..1500 {
            if step < 1000 && random.one_in(3) {
                for _ in 0..random.below(8) {
                    lsn += 1;
                    let is_greedy = random.one_in(2);
                    let (tenant, domain) =
                        if is_greedy { (0, 0) } else { (random.below(tenants), random.below(domains)) };
                    let lane: Lane = (format!("t{tenant}").into(), format!("d{domain}.example").into());
                    let mut queued = world.message();
                    // Mail of another pool has a queue, and so a turn, of its own.
                    (queued.tenant, queued.pool) = (lane.0.clone(), "".into());
                    (queued.not_before, queued.expires) = (0, 0);
                    let address = format!("a@{}", lane.1).into();
                    queued.recipients = vec![QueuedRecipient { number: 0, address, orcpt: "".into(), notify: 0 }];
                    world.queue.apply(Lsn::new(lsn), &QueueEntry::Queued(queued));
                    waiting.comes(lane);
                }
            }
            while let Some(id) = world.queue.next_unrouted() {
                let source = RouteSource { name: "a".into(), weight: 1 };
                ready = world.queue.route(id, "mx", &[source], Secs::MAX).pop();
            }
            let Some(one) = ready.and_then(|ready| world.queue.next(ready, take)) else {
                assert!(waiting.messages.is_empty(), "seed {seed}: {:?} wait and get no turn", waiting.messages);
                continue;
            };
            let name = world.queue.queue(one.recipients[0].queue).expect("a queue").0;
            let lane = (name.tenant, name.domain);
            waiting.served(&lane);
            for (other, waited) in &waiting.of_lane {
                longest.0 = longest.0.max(*waited);
                assert!(*waited < (tenants * domains) as usize, "seed {seed}: {other:?} has waited for {waited}");
            }
            for (other, waited) in &waiting.of_tenant {
                longest.1 = longest.1.max(*waited);
                assert!(*waited < tenants as usize, "seed {seed}: {other} has waited for {waited}");
            }
            let key = RecipientKey { message: one.message, number: 0 };
            if random.one_in(8) {
                assert_eq!(world.queue.finish(key, AttemptOutcome::Untried), None);
                waiting.comes(lane);
                continue;
            }
            let change = world.queue.finish(key, AttemptOutcome::Delivered(Status::default()));
            assert_eq!(change, Some(Change { key, what: What::Delivered(Status::default()) }));
            lsn += 1;
            let changes = QueueEntry::Changes { at: world.queue.now(), changes: change.into_iter().collect() };
            world.queue.apply(Lsn::new(lsn), &changes);
        }
    }
    assert!(longest.0 > 10 && longest.1 > 3, "hardly anything waited: {longest:?}");
}
