//! The record of attempts to open a shard's queue here.

/// Failures in a row to open a shard's queue on this node, and the error to show.
#[derive(Debug, Default)]
pub(super) struct QueueHealth {
    /// Zero once the queue is open.
    failed: u32,
    error: Option<OpenFailure>,
}

#[derive(Debug)]
struct OpenFailure {
    why: String,
    /// True if this node owned the shard when the attempt failed.
    as_owner: bool,
}

impl QueueHealth {
    /// Notes a failed attempt. True if the shard must now be given up.
    pub fn note_failed(&mut self, as_owner: bool, why: &str) -> bool {
        self.failed = self.failed.saturating_add(1);
        // What kept the owner's queue shut is of more use than what follows from it.
        if as_owner || self.error.as_ref().is_none_or(|error| !error.as_owner) {
            self.error = Some(OpenFailure { why: why.to_owned(), as_owner });
        }
        self.failed == OPENINGS_MAX
    }

    /// Notes that the queue is open. An owner's error stays until an owner's queue opens: a standby's may open
    /// nevertheless.
    pub fn note_open(&mut self, as_owner: bool) {
        self.failed = 0;
        self.error.take_if(|error| as_owner || !error.as_owner);
    }

    /// True after a number of failures in a row: this node should not own the shard.
    pub fn is_hopeless(&self) -> bool {
        self.failed >= OPENINGS_MAX
    }

    /// The last error of an attempt as owner, else of one as standby.
    pub fn error(&self) -> Option<&str> {
        self.error.as_ref().map(|error| &*error.why)
    }
}

/// Attempts, one each second, after which a node gives a shard up.
const OPENINGS_MAX: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_given_up_after_failures_in_a_row() {
        let mut health = QueueHealth::default();
        (1..OPENINGS_MAX).for_each(|_| assert!(!health.note_failed(true, "no disk")));
        assert!(!health.is_hopeless() && health.error() == Some("no disk"));
        health.note_open(true);
        assert_eq!(health.error(), None);
        let given_up: Vec<bool> = (0..2 * OPENINGS_MAX).map(|_| health.note_failed(true, "no disk")).collect();
        assert_eq!(given_up.iter().filter(|it| **it).count(), 1, "it is told once");
        assert!(given_up[4] && health.is_hopeless());
    }

    #[test]
    fn a_standbys_queue_that_opens_leaves_the_owners_error() {
        let mut health = QueueHealth::default();
        health.note_failed(true, "no threads");
        health.note_failed(false, "no disk");
        assert_eq!(health.error(), Some("no threads"));
        health.note_open(false);
        assert!(health.error() == Some("no threads") && !health.is_hopeless());
        health.note_open(true);
        health.note_failed(false, "no disk");
        assert_eq!(health.error(), Some("no disk"));
        health.note_open(false);
        assert_eq!(health.error(), None);
    }
}
