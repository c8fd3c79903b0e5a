//! Returns a mailbox that is provably unchanged without a look, on the calling task.
//!
//! The kernel queues an event of a [watched](super::hot_dirs) directory before the changing call returns. So on a local
//! file system an empty queue proves that the listing is current, without access to a disk that may hang.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use posthaste_maildir::tree::Stamp;

use super::core::MailboxCore;
use super::locks::lock;
use super::names_out::has_work;
use super::state::Messages;

/// Maximum time without a look: no event reports that a directory further up was replaced.
const LOOK_AFTER: Duration = Duration::from_secs(60);

impl MailboxCore {
    /// The messages, if a look would find no change. Published entries are applied. Does not block.
    pub fn unchanged(&self) -> Option<Arc<Messages>> {
        if !self.is_as_listed() || self.is_deleted.load(Ordering::Relaxed) || has_work(self) {
            return None;
        }
        let looked = self.looked.borrow();
        let is_sure = looked.error.is_none() && !looked.is_ahead;
        looked.messages.clone().filter(|_| is_sure)
    }

    /// True if the last listing was complete and inotify reported no change since.
    fn is_as_listed(&self) -> bool {
        let has_read = || !lock(&self.suspects).is_empty() || !lock(&self.sizes).is_empty();
        if self.is_unlisted.load(Ordering::Relaxed) || has_read() {
            return false;
        }
        if !self.shared.hot_dirs.read_events_now(self.id) {
            return false;
        }
        let events = *self.dir_events.borrow();
        let looks = lock(&self.looks);
        // A look that runs has its memory.
        let Some(known) = &looks.known else { return false };
        let is_settled = known.settled.is_some() && known.tells_of_changes;
        is_settled && looks.events == events && looks.last.elapsed() < LOOK_AFTER
    }

    /// True if the last look found the directories unchanged.
    pub fn is_settled_as(&self, before: Option<[Stamp; 2]>) -> bool {
        let looks = lock(&self.looks);
        let Some(known) = &looks.known else { return false };
        before.is_some() && known.settled == before && known.tells_of_changes
    }

    /// Starts to watch the directories. Blocks.
    pub fn watch(&self) {
        let path = lock(&self.path).clone();
        self.shared.hot_dirs.watch(self.id, &path, &self.dir_events);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tests::{Place, uids};
    use super::*;
    use crate::snapshot::Source;

    /// A mailbox with three messages that has been looked at until it is watched.
    async fn watched() -> Place {
        let mut place = Place::new();
        for name in ["new/1.a", "cur/2.b:2,S", "new/3.c"] {
            fs::write(place.path(name), "Subject: x\n\n").unwrap();
        }
        place.settled_look().await;
        assert_eq!(looks_of(&place, 1).await, 1, "nothing is watched");
        // The watch is made after the answer.
        while !place.mailbox().core().shared.hot_dirs.read_events_now(place.mailbox().core().id) {
            tokio::task::yield_now().await;
        }
        assert_eq!(looks_of(&place, 1).await, 1, "of the time before the watch");
        assert_eq!(looks_of(&place, 3).await, 0);
        place
    }

    /// Number of looks that so many sessions need, one after the other.
    async fn looks_of(place: &Place, sessions: usize) -> u64 {
        let core = place.mailbox().core();
        let before = lock(&core.looks).begun;
        for _ in 0..sessions {
            place.mailbox().look().await.unwrap();
        }
        lock(&core.looks).begun - before
    }

    #[tokio::test]
    async fn a_watched_mailbox_without_a_change_needs_no_look() {
        let place = watched().await;
        let other = place.mailbox().core().unchanged().unwrap();
        assert_eq!(uids(&other).len(), 3);
        // A look that runs has begun before now.
        let known = lock(&place.mailbox().core().looks).known.take();
        assert!(place.mailbox().core().unchanged().is_none());
        lock(&place.mailbox().core().looks).known = known;
        assert!(place.mailbox().core().unchanged().is_some());
        place.mailbox().core().suspects.lock().unwrap().insert(1);
        assert!(place.mailbox().core().unchanged().is_none());
    }

    #[tokio::test]
    async fn each_change_by_another_program_needs_a_look() {
        let changes: [fn(&Place); 9] = [
            |place| fs::write(place.path("new/4.d"), "x").unwrap(),
            |place| fs::hard_link(place.path("new/1.a"), place.path("cur/9.e")).unwrap(),
            |place| fs::rename(place.path("new/1.a"), place.path("cur/1.a:2,S")).unwrap(),
            |place| fs::rename(place.path("cur/2.b:2,S"), place.path("cur/2.b:2,RS")).unwrap(),
            |place| fs::remove_file(place.path("new/3.c")).unwrap(),
            |place| fs::write(place.path("dovecot-keywords"), "0 work\n").unwrap(),
            |place| fs::write(place.path("dovecot-uidlist"), "3 V7 N9\n").unwrap(),
            |place| {
                fs::rename(place.path("new"), place.path("old")).unwrap();
                fs::create_dir(place.path("new")).unwrap();
            },
            |place| fs::rename(place.path(""), place.dir.path().join("elsewhere")).unwrap(),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let place = watched().await;
            change(&place);
            assert!(place.mailbox().core().unchanged().is_none(), "change {number}");
        }
    }

    #[tokio::test]
    async fn a_directory_that_may_change_unheard_needs_a_look() {
        let place = watched().await;
        let core = place.mailbox().core();
        lock(&core.looks).known.as_mut().unwrap().tells_of_changes = false;
        assert!(core.unchanged().is_none());
        lock(&core.looks).known.as_mut().unwrap().tells_of_changes = true;
        assert!(core.unchanged().is_some());
        core.shared.hot_dirs.forget(core.id);
        assert!(core.unchanged().is_none());
    }
}
