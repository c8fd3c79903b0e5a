//! Ranks names by the number of recipients that wait for them.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::count::Count;
use posthaste_queue::Secs;

/// Recipients counted by a kind of name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranking {
    /// Number of names.
    pub names: usize,
    /// Recipients of all names.
    pub recipients: u64,
    /// Arrival of the oldest of them; `None` without any.
    pub oldest: Option<Secs>,
    /// The names with most recipients, in descending order, then by name.
    pub busiest: Vec<(Arc<str>, Count)>,
}

impl Ranking {
    /// Keeps the `most` busiest names. There may be a million names: only these few are sorted and copied.
    pub(super) fn of(counts: HashMap<Arc<str>, Count>, most: usize) -> Self {
        let names = counts.len();
        let recipients = counts.values().map(|count| count.recipients).sum();
        let oldest = counts.values().map(|count| count.oldest).min();
        let room = most.saturating_mul(2).saturating_add(1);
        let mut busiest = Vec::new();
        for named in counts {
            busiest.push(named);
            if busiest.len() >= room {
                busiest.select_nth_unstable_by(most, busier);
                busiest.truncate(most);
            }
        }
        busiest.sort_unstable_by(busier);
        busiest.truncate(most);
        Self { names, recipients, oldest, busiest }
    }
}

fn busier((a, first): &(Arc<str>, Count), (b, second): &(Arc<str>, Count)) -> Ordering {
    second.recipients.cmp(&first.recipients).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_names_are_those_of_a_whole_order() {
        let count = |recipients: u64| Count { recipients, oldest: 1000 - recipients as Secs, ..Count::NONE };
        // Each number of recipients has several names.
        let names = || (0..500_u64).map(|n| (Arc::from(format!("d{n}")), count(n * 7 % 50)));
        let mut sorted: Vec<_> = names().collect();
        sorted.sort_by(busier);
        for most in [0, 1, 3, 50, 250, 499, 500, 501, usize::MAX] {
            let Ranking { names, recipients, oldest, busiest } = Ranking::of(names().collect(), most);
            assert_eq!(busiest, sorted[..most.min(500)], "{most}");
            assert_eq!((names, recipients, oldest), (500, 500 * 49 / 2, Some(951)));
        }
        assert_eq!(Ranking::of(HashMap::new(), 3).oldest, None);
    }
}
