//! Counts of waiting mail, made in the server: only one line for each name crosses the socket.

use posthaste_control::{By, CountLine, RoomLine, SummaryEnd, Which};
use posthaste_relay::sender::{CountBy, QueueLimitNow, Relay, Standing};

use super::answering::{Answer, Outcome, as_json};
use super::asker::Asker;
use super::queue_counts::{NamedCount, QueueCounts};
use super::scopes::filter;
use crate::ids::unix_micros;

/// Counts the recipients that fit, the largest groups first.
pub(super) fn summary(
    relays: &[Relay],
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
    let all = QueueCounts::of(relays, &filter(of), count_by, most);
    let line = |count: &NamedCount| {
        let mut line = CountLine::of(by, &count.name);
        (line.recipients, line.oldest) = (count.recipients, count.oldest);
        (line.deferred, line.held, line.suspended) = (count.deferred, count.held, count.suspended);
        (line.under_way, line.next) = (count.under_way, count.next);
        if top.is_some() {
            let Standing { reply, limit, paused } = count.standing(relays);
            (line.last_reply, line.limit) = (reply.as_deref().map(str::to_owned), limit);
            // A tenant's or campaign's mail is for many hosts.
            let paused = paused.filter(|_| matches!(by, By::Domain | By::Site));
            let again = paused.map(|paused| unix_micros() / 1_000_000 + paused.as_secs() as i64);
            line.next = line.next.map(|next| again.map_or(next, |again| next.max(again)));
        }
        line
    };
    let _ = all.busiest.iter().all(|count| answer(as_json(&line(count))));
    let room = |of: QueueLimitNow| RoomLine {
        tenant: of.tenant.to_string(),
        recipients: of.recipients,
        max: of.max,
        refused: of.refused,
        full: of.is_full,
    };
    let is_shown = |of: &QueueLimitNow| asker.tenant.as_deref().is_none_or(|tenant| *of.tenant == *tenant);
    let mut rooms: Vec<RoomLine> = Vec::new();
    for room in relays.iter().flat_map(Relay::queue_limits).filter(is_shown).map(room) {
        match rooms.iter_mut().find(|known| known.tenant == room.tenant) {
            Some(known) => add_room(known, &room),
            None => rooms.push(room),
        }
    }
    let owed: u64 = relays.iter().map(|relay| relay.stats().owed_notices).sum();
    let notices = if asker.tenant.is_none() { owed } else { 0 };
    let (done, recipients, oldest) = (all.names as u64, all.recipients, all.oldest);
    Ok(as_json(&SummaryEnd { done, recipients, oldest, notices, room: rooms }))
}

/// Adds a queue's counts and its limit, which each queue has for itself.
pub(super) fn add_room(sum: &mut RoomLine, other: &RoomLine) {
    sum.recipients += other.recipients;
    sum.max = sum.max.saturating_add(other.max);
    sum.refused += other.refused;
    sum.full |= other.full;
}
