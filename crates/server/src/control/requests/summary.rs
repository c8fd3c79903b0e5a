//! Counts of waiting mail, made in the server: one line for each name crosses the socket, however much waits.

use posthaste_control::{By, CountLine, RoomLine, SummaryEnd, Which};
use posthaste_queue::Secs;
use posthaste_relay::sender::{Count, CountBy, QueueLimitNow, Relay, Standing};

use super::scopes::filter;
use super::{Answer, Asker, Outcome, as_json};

/// Counts the recipients that fit, the largest groups first.
pub(super) fn summary(
    relay: &Relay,
    asker: &Asker,
    of: &Which,
    (by, top): (By, Option<u32>),
    answer: Answer<'_>,
) -> Outcome {
    let count_by = match by {
        By::Domain => CountBy::Domain,
        By::Tenant => CountBy::Tenant,
        By::Campaign => CountBy::Campaign,
        By::Site => CountBy::Site,
    };
    let most = top.map_or(usize::MAX, |top| top as usize);
    let all = relay.summary(&filter(of), count_by, most);
    let line = |name: &str, count: &Count| {
        let mut line = CountLine::of(by, name);
        (line.recipients, line.oldest) = (count.recipients, relay.wall(count.oldest));
        (line.deferred, line.held, line.suspended) = (count.deferred, count.held, count.suspended);
        line.under_way = count.under_way;
        line.next = Some(count.next).filter(|next| *next < Secs::MAX).map(|next| relay.wall(next));
        if top.is_some() {
            let Standing { reply, limit } = relay.standing(count);
            (line.last_reply, line.limit) = (reply.as_deref().map(str::to_owned), limit);
        }
        line
    };
    let _ = all.busiest.iter().all(|(name, count)| answer(as_json(&line(name, count))));
    let room = |of: QueueLimitNow| RoomLine {
        tenant: of.tenant.to_string(),
        recipients: of.recipients,
        max: of.max,
        refused: of.refused,
        full: of.is_full,
    };
    let is_shown = |of: &QueueLimitNow| asker.tenant.as_deref().is_none_or(|tenant| *of.tenant == *tenant);
    let room = relay.room().into_iter().filter(is_shown).map(room).collect();
    let notices = if asker.tenant.is_none() { relay.stats().owed_notices } else { 0 };
    Ok(as_json(&SummaryEnd { done: all.names as u64, recipients: all.recipients, notices, room }))
}
