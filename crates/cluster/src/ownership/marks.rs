//! The owner's record of the log's growth: age of a position, and bytes appended since.

use std::collections::VecDeque;
use std::time::Duration;

use crate::LogPosition;

/// Ends of the log at past times, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Marks(VecDeque<Mark>);

#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Duration,
    end: LogPosition,
    bytes: u64,
}

impl Marks {
    /// Notes the end of the log if it has grown.
    pub fn note(&mut self, at: Duration, end: LogPosition, bytes: u64, oldest: Duration) {
        if self.0.back().is_none_or(|last| last.end < end) {
            self.0.push_back(Mark { at, end, bytes });
        }
        // The first one stays until the second is old enough: positions between them have its age.
        while self.0.len() > 2 && (self.0.len() > MARKS_MAX || at.saturating_sub(self.0[1].at) > oldest) {
            self.0.pop_front();
        }
    }

    /// Time since a position was the end of the log, and bytes appended since; nothing if it still is.
    pub fn behind(&self, applied: LogPosition, now: Duration) -> (Duration, u64) {
        let after = self.0.partition_point(|mark| mark.end <= applied);
        let Some(missed) = self.0.get(after) else { return (Duration::ZERO, 0) };
        let before = after.checked_sub(1).map_or(0, |at| self.0[at].bytes);
        let bytes = self.0.back().map_or(0, |last| last.bytes);
        (now.saturating_sub(missed.at), bytes.saturating_sub(before))
    }

    /// True if the bytes after a position are known.
    pub fn cover(&self, applied: LogPosition) -> bool {
        self.0.front().is_some_and(|first| first.end <= applied)
    }

    /// The end of the log before the newer records are within both limits of `keep`: a time and a number of bytes.
    /// `None` if it precedes the first mark.
    pub fn ago(&self, keep: (Duration, u64), now: Duration) -> Option<LogPosition> {
        let bytes = self.0.back()?.bytes;
        let is_old = |mark: &Mark| now.saturating_sub(mark.at) >= keep.0 || bytes.saturating_sub(mark.bytes) >= keep.1;
        let old = self.0.partition_point(is_old);
        Some(self.0[old.checked_sub(1)?].end)
    }
}

/// Maximum marks: one a second for about an hour.
const MARKS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn marks() -> Marks {
        let mut marks = Marks::default();
        for n in 1..=9 {
            marks.note(Duration::from_secs(n), LogPosition::new(n * 10), n * 1000, Duration::from_secs(3600));
        }
        marks
    }

    #[test]
    fn a_position_has_an_age_and_bytes_after_it() {
        let marks = marks();
        let now = Duration::from_secs(10);
        assert_eq!(marks.behind(LogPosition::new(90), now), (Duration::ZERO, 0));
        assert_eq!(marks.behind(LogPosition::new(50), now), (Duration::from_secs(4), 4000));
        assert_eq!(
            marks.behind(LogPosition::new(55), now),
            (Duration::from_secs(4), 4000),
            "it lacks a part of the sixth"
        );
        assert_eq!(marks.behind(LogPosition::new(0), now), (Duration::from_secs(9), 9000));
        assert_eq!(Marks::default().behind(LogPosition::new(5), now), (Duration::ZERO, 0));
        assert!(
            marks.cover(LogPosition::new(10))
                && !marks.cover(LogPosition::new(9))
                && !Marks::default().cover(LogPosition::new(9))
        );
    }

    #[test]
    fn records_are_kept_by_time_or_bytes() {
        let marks = marks();
        let now = Duration::from_secs(10);
        let ago = |secs, bytes| marks.ago((Duration::from_secs(secs), bytes), now).map(LogPosition::get);
        assert_eq!((ago(5, 1 << 40), ago(100, 3000), ago(100, 1 << 40)), (Some(50), Some(60), None));
    }

    #[test]
    fn old_marks_go() {
        let mut marks = Marks::default();
        for n in 1..=9000 {
            marks.note(Duration::from_millis(n), LogPosition::new(n), n, Duration::from_secs(1));
        }
        assert!(marks.0.len() <= 1003);
        assert_eq!(marks.behind(LogPosition::new(1), Duration::from_secs(9)).1, 9000, "more than it is, never less");
    }
}
