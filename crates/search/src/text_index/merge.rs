//! Merge policy: chooses the segments to merge.

/// Minimum segments of a merge: 8 instead of 4 halves the number of merges and costs three more segments.
const AT_ONCE_MIN: usize = 8;
/// With more segments than this, opening and searching them costs more than merging two.
const SEGMENTS_MAX: usize = 30;

/// Messages of the largest segment with which a merge begins. A first index leaves several segments of tens of
/// thousands of messages, all of one size; merging those would cost as much as indexing again. Where every commit is
/// larger, two are merged when there are too many segments.
const SMALL: u64 = 1000;

/// Returns the positions of the segments to merge, given their sizes in messages. Takes the smallest ones as long as
/// the first is small and the next is at most twice the sum so far. So a message always moves into a much larger
/// segment, about log2 times in all, and large segments are left alone while small ones arrive.
pub(super) fn which(sizes: &[u32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_unstable_by_key(|&at| sizes[at]);
    let mut sum: u64 = 0;
    let taken = order.iter().take_while(|&&at| {
        let fits = u64::from(sizes[at]) <= if sum == 0 { SMALL } else { 2 * sum };
        sum += u64::from(sizes[at]);
        fits
    });
    let taken = taken.count();
    order.truncate(match taken {
        AT_ONCE_MIN.. => taken,
        _ if sizes.len() > SEGMENTS_MAX => 2,
        _ => 0,
    });
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates commits of these sizes. Returns the messages rewritten by merges, and the largest number of segments.
    fn commits(mut segments: Vec<u32>, sizes: impl Iterator<Item = u32>) -> (u64, usize) {
        let (mut rewritten, mut most) = (0, 0);
        for size in sizes {
            segments.push(size);
            let merged = which(&segments);
            if !merged.is_empty() {
                let sum: u32 = merged.iter().map(|&at| segments[at]).sum();
                let keep = (0..segments.len()).filter(|at| !merged.contains(at));
                segments = keep.map(|at| segments[at]).chain([sum]).collect();
                rewritten += u64::from(sum);
            }
            most = most.max(segments.len());
        }
        (rewritten, most)
    }

    #[test]
    fn small_commits_leave_large_segments_alone() {
        let (rewritten, most) = commits(vec![10_000; 8], (0..1000).map(|_| 1));
        assert!(rewritten <= 6_000, "{rewritten} messages written again for 1000");
        assert!(most <= SEGMENTS_MAX + 1, "{most} segments");
    }

    #[test]
    fn commits_of_a_few_messages_are_merged_before_there_are_many() {
        for size in [3, 5, 100] {
            let (rewritten, most) = commits(vec![1_000_000; 8], (0..1000).map(|_| size));
            assert!(rewritten <= 8_000 * u64::from(size), "{rewritten} messages written again for {}", 1000 * size);
            assert!(most <= 25, "{most} segments");
        }
    }

    #[test]
    fn what_a_first_index_leaves_is_not_written_again() {
        assert!(which(&[65_536; 12]).is_empty());
    }

    #[test]
    fn however_commits_come_there_are_few_segments() {
        let growing = commits(Vec::new(), (1..300).map(|n| n * n));
        let shrinking = commits(Vec::new(), (1..300).rev().map(|n| n * n));
        let doubling = commits((0..28).map(|n| 1 << n).collect(), (0..500).map(|n| 1 + n % 7));
        for (_, most) in [growing, shrinking, doubling] {
            assert!(most <= SEGMENTS_MAX + 1, "{most} segments");
        }
    }
}
