//! Counts of waiting mail, and the content of a waiting message.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_spool::Lsn;

use super::control::{ControlError, Filter, at_site, each};
use super::count::Count;
use super::explain::{hosts_paused_for, limit_of};
use super::ranking::Ranking;
use super::relay::Relay;
use super::shared::Shared;
use posthaste_queue::{Queue, QueueId, QueueName, RecipientKey, Selection};

/// The kind of name that recipients are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountBy {
    /// Their domain.
    Domain,
    /// Their tenant.
    Tenant,
    /// Their campaign.
    Campaign,
    /// Their set of mail hosts; unrouted ones are counted under an empty name.
    Site,
}

/// A queue of at most this many recipients is scanned whole each time.
const LOOKED_AT_MAX: u64 = 20_000;
/// Why a destination's mail waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// The hosts' last reply, or why they cannot be reached.
    pub reply: Option<Arc<str>>,
    /// The limit that its mail waits for now.
    pub limit: Option<String>,
    /// Time until unreachable hosts are tried again, for which due mail waits.
    pub paused: Option<Duration>,
}

impl Relay {
    /// Counts matching recipients, with the `most` largest groups. Reads memory only, unless the filter names an
    /// address. For a large queue, the oldest, the next attempt and the last reply are those of the rolling scan, which
    /// takes minutes for ten million. Blocks.
    pub fn summary(&self, filter: &Filter, by: CountBy, most: usize) -> Ranking {
        let [ranking] = self.summaries(filter, [(by, most)]);
        ranking
    }

    /// Like [`summary`](Self::summary), by several kinds of names in one scan.
    pub fn summaries<const N: usize>(&self, filter: &Filter, by: [(CountBy, usize); N]) -> [Ranking; N] {
        let mut most = by.into_iter().map(|(_, most)| most);
        self.counts(filter, by.map(|(by, _)| by)).map(|counts| Ranking::of(counts, most.next().unwrap_or_default()))
    }

    /// Like [`summaries`](Self::summaries), with all names, in no order.
    pub fn counts<const N: usize>(&self, filter: &Filter, by: [CountBy; N]) -> [HashMap<Arc<str>, Count>; N] {
        let shared = &self.0.shared;
        let counted = counted(shared, filter, by).unwrap_or_else(|| looked_at(shared, filter, by));
        let mut counts = by.map(|_| HashMap::<Arc<str>, Count>::new());
        for (names, count) in counted {
            for (name, counts) in names.into_iter().zip(&mut counts) {
                counts.entry(name).or_insert(Count::NONE).add(&count);
            }
        }
        counts
    }

    /// Why the recipients of a count wait. Reads memory only.
    pub fn standing(&self, count: &Count) -> Standing {
        let shared = &self.0.shared;
        let Some(key) = count.sample else { return Standing::default() };
        let reply = at_site(shared, key).0.or_else(|| shared.outcomes.replies.of(key).map(|said| said.text));
        Standing { reply, limit: limit_of(shared, key), paused: hosts_paused_for(shared, key) }
    }

    /// The first `bytes_max` bytes of a waiting message, in pieces. Blocks.
    ///
    /// # Errors
    /// It no longer waits, or cannot be read.
    pub fn content(&self, message: Lsn, bytes_max: u64) -> Result<Vec<Bytes>, ControlError> {
        let shared = &self.0.shared;
        let waits = shared.queue().has_message(message);
        if !waits {
            return Err(ControlError::NotWaiting(message));
        }
        if let Some(loaded) = shared.messages.in_memory(message) {
            return Ok(loaded.body);
        }
        shared.messages.body(message, bytes_max).map_err(|error| ControlError::Unreadable(error.to_string()))
    }
}

/// Counts matching recipients by a scan of each, by queue.
fn looked_at<const N: usize>(shared: &Shared, filter: &Filter, by: [CountBy; N]) -> Vec<Named<N>> {
    let mut queues: HashMap<QueueId, Count> = HashMap::new();
    each(shared, filter, false, &mut |keys| {
        // Locked for one part at most: mail goes on meanwhile.
        let queue = shared.queue();
        let now = queue.now();
        for state in keys.iter().filter_map(|(key, _)| queue.show(*key)) {
            queues.entry(state.queue).or_insert(Count::NONE).add(&Count::of(&state, now));
        }
        true
    });
    let queues: Vec<_> = queues.into_iter().collect();
    let mut counts = Vec::with_capacity(queues.len());
    for part in queues.chunks(QUEUES_AT_A_TIME) {
        let queue = shared.queue();
        // Some are settled meanwhile.
        let named = part.iter().filter_map(|(id, count)| Some((names(&queue, *id, &queue.queue(*id)?.0, by), *count)));
        counts.extend(named);
    }
    counts
}

/// Counts from the queue's counters. `None`: no counters for the filter, or a small queue.
fn counted<const N: usize>(shared: &Shared, filter: &Filter, by: [CountBy; N]) -> Option<Vec<Named<N>>> {
    let Filter { selection, message, number, sender, recipient, after, pages_max: _ } = filter;
    let Selection { tenant, campaign, domain, is_held } = selection;
    let is_counted =
        message.is_none() && number.is_none() && sender.is_none() && recipient.is_none() && after.is_none();
    if !is_counted || shared.queue().recipients() <= LOOKED_AT_MAX {
        return None;
    }
    let now = shared.queue().now();
    let look = shared.operator.look.advance(Instant::now(), now, |from| part(shared, from));
    let ids = shared.queue().queues();
    let mut counts = Vec::with_capacity(ids.len());
    for part in ids.chunks(QUEUES_AT_A_TIME) {
        let queue = shared.queue();
        for &id in part {
            let Some((name, _)) = queue.queue(id) else { continue };
            let is = |wanted: &Option<Arc<str>>, name: &Arc<str>| wanted.as_ref().is_none_or(|wanted| wanted == name);
            let Some(tally) = queue.tally(id).filter(|tally| tally.recipients > 0) else { continue };
            if is(tenant, &name.tenant) && is(campaign, &name.campaign) && is(domain, &name.domain) {
                let part = queue.suspended_part(id);
                let count = Count::counted(tally, part, *is_held, look.of(id, *is_held).as_ref(), queue.now());
                if count.recipients > 0 {
                    counts.push((names(&queue, id, &name, by), count));
                }
            }
        }
    }
    Some(counts)
}

/// A page of recipients from a key on, each counted separately, and the key to continue from.
fn part(shared: &Shared, from: Option<RecipientKey>) -> (Vec<(QueueId, Count)>, Option<RecipientKey>) {
    // Locked for one page at most: mail goes on meanwhile.
    let queue = shared.queue();
    let (keys, next, looked_at) = queue.select(&Selection::default(), from);
    shared.operator.note_looked_at(looked_at);
    let states = keys.into_iter().filter_map(|key| queue.show(key));
    (states.map(|state| (state.queue, Count::of(&state, queue.now()))).collect(), next)
}

/// The names of one queue, and its count.
type Named<const N: usize> = ([Arc<str>; N], Count);

fn names<const N: usize>(queue: &Queue, id: QueueId, name: &QueueName, by: [CountBy; N]) -> [Arc<str>; N] {
    by.map(|by| match by {
        CountBy::Domain => name.domain.clone(),
        CountBy::Tenant => name.tenant.clone(),
        CountBy::Campaign => name.campaign.clone(),
        CountBy::Site => queue.site(id).unwrap_or_default(),
    })
}

/// Queues counted under one lock: mail continues after some microseconds.
const QUEUES_AT_A_TIME: usize = 64;
