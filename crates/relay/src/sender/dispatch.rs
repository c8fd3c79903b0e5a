//! The task that drives the queue: time, routes, connections, expiry.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::backlog::{BacklogWatch, LOOK_EVERY};
use super::ended::settle_told;
use super::observer::AttemptResult;
use super::reroute::{divert, look_at_sources};
use super::router::route_in_turn;
use super::serving::{serve, serve_waiting_sites};
use super::shaping::set_slowed;
use super::shared::Shared;
use super::site::Site;
use super::sites::Thinner;
use super::status::ReplyPlace;
use super::suppress::{flush_bounces, tell_damaged};
use posthaste_queue::{AttemptOutcome, DueNotice, Secs, Status, What};
use posthaste_smtp::Reply;

/// Drives the queue until the relay ends.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut looked_at = 0;
    let mut thinner = Thinner::default();
    let mut backlog = BacklogWatch::default();
    let worker = shared.watch.worker("dispatcher of the queue", STEPS, PATIENCE);
    let pulse = worker.pulse();
    while !shared.is_ending() {
        let now = shared.time.now();
        shared.outcomes.recorder.look_for_poison();
        if now != looked_at {
            looked_at = now;
            pulse.step(1);
            each_second(&shared, now);
        }
        // Every incoming message reads this value, so it is written only on a change.
        if let Some(level) = backlog.look(|now| shared.sites.backlog_level(now)) {
            shared.spool.pressure().set_queue(level);
        }
        pulse.step(2);
        route_and_wake(&shared);
        if thinner.is_due() {
            serve_waiting_sites(&shared);
            thinner.look(&shared.sites);
        }
        pulse.step(0);
        let _ = timeout(LOOK_EVERY, shared.wake.notified()).await;
    }
    shared.spool.pressure().set_queue(0.0);
}

fn each_second(shared: &Arc<Shared>, now: Secs) {
    let most = shared.outcomes.recorder.changes_left();
    let (notices, mut actions, bounces, released) = {
        let mut queue = shared.queue();
        queue.tick(now);
        let (bounces, actions): (Vec<_>, Vec<_>) =
            queue.take_actions().into_iter().partition(|change| matches!(change.what, What::Failed(_)));
        let notices = if shared.outcomes.recorder.budget.may_begin() { queue.take_notices() } else { Vec::new() };
        (notices, actions, shared.outcomes.bounces_to_follow.take(bounces, &queue), queue.end_holds(most))
    };
    actions.extend(released);
    shared.record(actions);
    for (change, reply) in bounces {
        shared.spawn_blocking(move |shared| {
            let nobody = Arc::default();
            let message = change.key.message;
            settle_told(shared, message, vec![change], AttemptResult::Failed, &reply, ReplyPlace::of(&nobody));
        });
    }
    shared.outcomes.recorder.retry(now);
    shared.outcomes.recorder.look();
    look_at_sources(shared, now);
    let filling = shared.queue().filling();
    shared.queue_limits.look(filling, |tenant| shared.queue().recipients_of_tenant(tenant));
    tell_damaged(shared);
    if shared.config.bounces.is_fed() {
        shared.spawn_blocking(|shared| flush_bounces(shared));
    }
    // Failures of one message found together share a notification.
    for of_message in notices.chunk_by(|one, other| one.is_like(other)) {
        settle_notices(shared, of_message);
    }
    let sites: Vec<Arc<Site>> = shared.sites.all();
    sites.iter().for_each(|site| serve(shared, site));
    shared.sites.forget(&sites, |ready| shared.queue().ready(ready).is_some());
}

/// Handles notices of one kind and one message.
fn settle_notices(shared: &Arc<Shared>, notices: &[DueNotice]) {
    let Some(first) = notices.first() else { return };
    let reply = match first {
        DueNotice::Expired(_) => Reply::new(554, "5.4.7", "it could not be delivered in time"),
        DueNotice::Delayed(_) => Reply::new(451, "4.4.7", "it has not been delivered yet"),
    };
    let mut queue = shared.queue();
    let changes = notices.iter().filter_map(|notice| {
        let key = notice.key();
        let state = queue.show(key)?;
        match notice {
            DueNotice::Expired(_) => {
                let is_untried = state.status == Status::default();
                let status = if is_untried { Status { code: 0, enhanced: 4007 } } else { state.status };
                queue.finish(key, AttemptOutcome::Failed(status))
            }
            DueNotice::Delayed(_) => Some(posthaste_queue::Change { key, what: What::DelayTold }),
        }
    });
    let changes: Vec<_> = changes.collect();
    drop(queue);
    if changes.is_empty() {
        return;
    }
    let message = first.key().message;
    shared.spawn_blocking(move |shared| {
        settle_told(shared, message, changes, AttemptResult::Expired, &reply, ReplyPlace::of(&Arc::default()));
    });
}

fn route_and_wake(shared: &Arc<Shared>) {
    let mut unrouted = Vec::new();
    let mut woken = Vec::new();
    let (has_diverted, has_slowed) = {
        let mut queue = shared.queue();
        queue.tick(shared.time.now());
        (queue.have_diversions_changed(), queue.take_slowed_changed())
    };
    if has_slowed {
        set_slowed(shared);
    }
    if has_diverted {
        divert(shared);
    }
    {
        let mut queue = shared.queue();
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
        shared.wake.notify_one();
    }
    for id in unrouted {
        route_in_turn(shared, id);
    }
    for (id, key) in woken {
        let site = shared.sites.find(&key);
        let Some(site) = site else { continue };
        site.state().ready = id;
        serve(shared, &site);
    }
}

/// Steps of the dispatcher.
const STEPS: &[&str] = &["", "looking after the queue", "routing"];
/// Normal maximum time of a step; a longer one is reported.
const PATIENCE: Duration = Duration::from_secs(120);
const ROUTES_AT_ONCE: usize = 1000;
