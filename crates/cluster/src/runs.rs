//! The map between local LSNs and cluster numbers. Both grow by one from batch to batch; only an opening of the local
//! spool leaves a gap.

/// Neighbours in both numberings, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Runs(Vec<Run>);

/// `len` batches from a cluster number and a local LSN on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub number: u64,
    pub local: u64,
    pub len: u64,
}

impl Runs {
    /// Restores the map from a snapshot. `None` if its runs are not in order.
    pub fn of(runs: Vec<Run>) -> Option<Self> {
        let is_whole =
            |run: &Run| run.number.checked_add(run.len).is_some() && run.local.checked_add(run.len).is_some();
        let is_before =
            |one: &Run, other: &Run| one.number + one.len <= other.number && one.local + one.len <= other.local;
        let is_right = runs.iter().all(|run| run.len > 0 && is_whole(run)) && runs.is_sorted_by(is_before);
        is_right.then_some(Runs(runs))
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Run> {
        self.0.iter()
    }

    /// The next batch.
    pub fn push(&mut self, number: u64, local: u64) {
        match self.0.last_mut() {
            Some(run) if run.number + run.len == number && run.local + run.len == local => run.len += 1,
            _ => self.0.push(Run { number, local, len: 1 }),
        }
    }

    /// The last batch: cluster number and local LSN.
    pub fn last(&self) -> Option<(u64, u64)> {
        self.0.last().map(|run| (run.number + run.len - 1, run.local + run.len - 1))
    }

    pub fn number_of(&self, local: u64) -> Option<u64> {
        self.number_up_to(local).filter(|number| self.local_of(*number) == Some(local))
    }

    pub fn local_of(&self, number: u64) -> Option<u64> {
        let run = self.0[..self.0.partition_point(|run| run.number <= number)].last()?;
        (number - run.number < run.len).then(|| run.local + (number - run.number))
    }

    /// The cluster number of the last batch up to a local LSN.
    pub fn number_up_to(&self, local: u64) -> Option<u64> {
        let run = self.0[..self.0.partition_point(|run| run.local <= local)].last()?;
        Some(run.number + (local - run.local).min(run.len - 1))
    }

    /// The local LSN of the last batch up to a cluster number.
    pub fn local_up_to(&self, number: u64) -> Option<u64> {
        let run = self.0[..self.0.partition_point(|run| run.number <= number)].last()?;
        Some(run.local + (number - run.number).min(run.len - 1))
    }

    /// The first local LSN at or above a cluster number.
    pub fn local_from(&self, number: u64) -> u64 {
        match number.checked_sub(1).and_then(|before| self.local_up_to(before)) {
            Some(local) => local + 1,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_a_map_in_both_directions(gaps in prop::collection::vec((0u64..3, 0u64..4), 0..40)) {
            let mut runs = Runs::default();
            let mut model = BTreeMap::new();
            let mut at = (0, 0);
            for (number, local) in gaps {
                at = (at.0 + 1 + number / 2 * 5, at.1 + 1 + local / 3 * 7);
                runs.push(at.0, at.1);
                model.insert(at.0, at.1);
            }
            prop_assert_eq!(runs.last(), model.last_key_value().map(|(number, local)| (*number, *local)));
            prop_assert_eq!(Runs::of(runs.iter().copied().collect()), Some(runs.clone()));
            for probe in 0..at.0.max(at.1) + 3 {
                prop_assert_eq!(runs.local_of(probe), model.get(&probe).copied());
                let of_local = model.iter().find(|(_, local)| **local == probe).map(|(number, _)| *number);
                prop_assert_eq!(runs.number_of(probe), of_local);
                prop_assert_eq!(runs.local_up_to(probe), model.range(..=probe).next_back().map(|it| *it.1));
                let up_to = model.iter().filter(|(_, local)| **local <= probe).map(|(number, _)| *number).max();
                prop_assert_eq!(runs.number_up_to(probe), up_to);
                let from = runs.local_from(probe);
                prop_assert!(model.range(..probe).all(|(_, local)| *local < from));
                prop_assert!(model.range(probe..).all(|(_, local)| *local >= from));
            }
        }
    }

    #[test]
    fn runs_out_of_order_are_none() {
        let run = |number, local, len| Run { number, local, len };
        assert!(Runs::of(vec![run(1, 1, 2), run(3, 9, 1)]).is_some());
        for wrong in [
            vec![run(1, 1, 2), run(2, 9, 1)],
            vec![run(1, 5, 2), run(3, 6, 1)],
            vec![run(1, 1, 0)],
            vec![run(u64::MAX, 1, 2)],
        ] {
            assert_eq!(Runs::of(wrong), None);
        }
    }
}
