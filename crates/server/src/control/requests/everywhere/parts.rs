//! Parts of nodes, added up.

use std::collections::HashMap;

use posthaste_control::{CountLine, RoomLine, SummaryEnd};
use serde_json::{Value, json};

use super::round::PeerPart;
use crate::control::requests::summary::add_room;

/// The busiest names of all parts, and the last line. Of a part that has not all of its names, the others are not counted with their name.
pub(super) fn merge_summaries(parts: Vec<PeerPart>, most: usize) -> (Vec<CountLine>, SummaryEnd) {
    let mut names: HashMap<String, CountLine> = HashMap::new();
    let mut sum = SummaryEnd { done: 0, recipients: 0, oldest: None, notices: 0, room: Vec::new() };
    for PeerPart { lines, end, .. } in parts {
        for line in lines {
            let Ok(line) = serde_json::from_value::<CountLine>(line) else { continue };
            match names.get_mut(line.name()) {
                Some(known) => add_line(known, line),
                None => drop(names.insert(line.name().to_owned(), line)),
            }
        }
        // A node without a queue has none of the other numbers.
        let Ok(end) = serde_json::from_value::<SummaryEnd>(end) else { continue };
        sum.done = sum.done.max(end.done);
        sum.recipients += end.recipients;
        sum.oldest = sum.oldest.into_iter().chain(end.oldest).min();
        sum.notices += end.notices;
        end.room.into_iter().for_each(|room| add(&mut sum.room, room));
    }
    sum.done = sum.done.max(names.len() as u64);
    let mut lines: Vec<CountLine> = names.into_values().collect();
    lines.sort_unstable_by(|a, b| b.recipients.cmp(&a.recipients).then_with(|| a.name().cmp(b.name())));
    lines.truncate(most);
    (lines, sum)
}

/// The reason of the wait is that of the node with most of them.
fn add_line(sum: &mut CountLine, other: CountLine) {
    if other.recipients > sum.recipients {
        (sum.last_reply, sum.limit) = (other.last_reply, other.limit);
    }
    sum.recipients += other.recipients;
    sum.deferred += other.deferred;
    sum.held += other.held;
    sum.suspended += other.suspended;
    sum.under_way += other.under_way;
    sum.oldest = sum.oldest.min(other.oldest);
    sum.next = sum.next.into_iter().chain(other.next).min();
}

fn add(rooms: &mut Vec<RoomLine>, room: RoomLine) {
    match rooms.iter_mut().find(|known| known.tenant == room.tenant) {
        Some(known) => add_room(known, &room),
        None => rooms.push(room),
    }
}

/// The numbers of all last lines, each added up; or the largest of each, where a command does the same at each node.
pub(super) fn add_numbers<'a>(ends: impl Iterator<Item = &'a Value>, is_sum: bool) -> Value {
    let mut sum = json!({ "done": 0 });
    for end in ends {
        for (key, number) in end.as_object().into_iter().flatten() {
            let Some(number) = number.as_u64() else { continue };
            let known = sum[key].as_u64().unwrap_or_default();
            sum[key] = if is_sum { known.saturating_add(number) } else { known.max(number) }.into();
        }
    }
    sum
}
