//! The task that drives the queue: time, routes, connections, expiry.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::backlog::{BacklogWatch, LOOK_EVERY};
use super::observer::AttemptResult;
use super::shared::Shared;
use super::site::Site;
use super::sites::Thinner;
use super::status::ReplyPlace;
use posthaste_queue::{Notice, Outcome, Secs, Status, What};
use posthaste_smtp::Reply;

/// Runs until the relay ends.
pub(super) async fn run(shared: Arc<Shared>) {
    let (mut looked_at, mut thinner) = (0, Thinner::default());
    let mut backlog = BacklogWatch::default();
    let worker = shared.watch.worker("dispatcher of the queue", STEPS, PATIENCE);
    let pulse = worker.pulse();
    while !shared.is_ending() {
        let now = shared.time.now();
        shared.outcomes.recorder.look_for_poison();
        if now != looked_at {
            looked_at = now;
            pulse.step(1);
            shared.each_second(now);
        }
        backlog.look(&shared);
        pulse.step(2);
        shared.route_and_wake();
        if thinner.is_due() {
            shared.serve_waiting_sites();
            thinner.look(&shared.sites);
        }
        pulse.step(0);
        let _ = timeout(LOOK_EVERY, shared.wake.notified()).await;
    }
    shared.spool.pressure().set_queue(0.0);
}

impl Shared {
    fn each_second(self: &Arc<Self>, now: Secs) {
        let most = self.outcomes.recorder.room();
        let (notices, mut actions, bounces, released) = {
            let mut queue = self.queue();
            queue.tick(now);
            let (bounces, actions): (Vec<_>, Vec<_>) =
                queue.take_actions().into_iter().partition(|change| matches!(change.what, What::Failed(_)));
            let notices = if self.outcomes.recorder.budget.may_begin() { queue.take_notices() } else { Vec::new() };
            (notices, actions, self.outcomes.bounces_to_follow.take(bounces, &queue), queue.end_holds(most))
        };
        actions.extend(released);
        self.record(actions);
        for (change, reply) in bounces {
            let shared = self.clone();
            self.runtime.spawn_blocking(move || {
                let (nobody, message) = (Arc::default(), change.key.message);
                shared.settle_told(message, vec![change], AttemptResult::Failed, &reply, ReplyPlace::of(&nobody));
            });
        }
        self.outcomes.recorder.retry(now);
        self.outcomes.recorder.look();
        self.look_at_sources(now);
        self.look_at_queue_limits();
        if self.config.bounces.is_fed() {
            let shared = self.clone();
            self.runtime.spawn_blocking(move || shared.flush_bounces());
        }
        // Failures of one message found together share a notification.
        for of_message in notices.chunk_by(|one, other| one.is_like(other)) {
            self.settle_notices(of_message);
        }
        let sites: Vec<Arc<Site>> = self.sites.all();
        sites.iter().for_each(|site| self.serve(site));
        self.sites.forget(&sites, |ready| self.queue().ready(ready).is_some());
    }

    /// Notices of one kind and one message.
    fn settle_notices(self: &Arc<Self>, notices: &[Notice]) {
        let Some(first) = notices.first() else { return };
        let reply = match first {
            Notice::Expired(_) => Reply::new(554, "5.4.7", "it could not be delivered in time"),
            Notice::Delayed(_) => Reply::new(451, "4.4.7", "it has not been delivered yet"),
        };
        let mut queue = self.queue();
        let changes = notices.iter().filter_map(|notice| {
            let key = notice.key();
            let state = queue.show(key)?;
            match notice {
                Notice::Expired(_) => {
                    let is_untried = state.status == Status::default();
                    let status = if is_untried { Status { code: 0, enhanced: 4007 } } else { state.status };
                    queue.finish(key, Outcome::Failed(status))
                }
                Notice::Delayed(_) => Some(posthaste_queue::Change { key, what: What::DelayTold }),
            }
        });
        let changes: Vec<_> = changes.collect();
        drop(queue);
        if changes.is_empty() {
            return;
        }
        let (shared, message) = (self.clone(), first.key().message);
        self.runtime.spawn_blocking(move || {
            shared.settle_told(message, changes, AttemptResult::Expired, &reply, ReplyPlace::of(&Arc::default()));
        });
    }

    fn route_and_wake(self: &Arc<Self>) {
        let (mut unrouted, mut woken) = (Vec::new(), Vec::new());
        let (has_diverted, has_slowed) = {
            let mut queue = self.queue();
            queue.tick(self.time.now());
            (queue.have_diversions_changed(), queue.take_slowed_changed())
        };
        if has_slowed {
            self.set_slowed();
        }
        if has_diverted {
            self.divert();
        }
        {
            let mut queue = self.queue();
            while unrouted.len() < ROUTES_AT_ONCE
                && let Some(id) = queue.next_unrouted()
            {
                unrouted.push(id);
            }
            while let Some(id) = queue.next_woken() {
                woken.extend(queue.ready(id).map(|key| (id, key)));
            }
        }
        if unrouted.len() == ROUTES_AT_ONCE {
            self.wake.notify_one();
        }
        for id in unrouted {
            self.route_in_turn(id);
        }
        for (id, key) in woken {
            let site = self.sites.find(&key);
            let Some(site) = site else { continue };
            site.state().ready = id;
            self.serve(&site);
        }
    }
}

/// Steps of the dispatcher.
const STEPS: &[&str] = &["", "looking after the queue", "routing"];
/// Longest normal time of a step; a longer one is reported.
const PATIENCE: Duration = Duration::from_secs(120);
const ROUTES_AT_ONCE: usize = 1000;
