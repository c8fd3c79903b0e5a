//! The known files of the directory: queued, in progress, or waiting for a retry.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::time::Duration;

use posthaste_units::BackOff;
use tokio::time::Instant;

use super::handover::Refused;
use super::settle::Settlement;

/// Files by name.
#[derive(Debug, Default)]
pub(super) struct Files {
    known: HashMap<OsString, File>,
    shares: Shares,
    queue: VecDeque<OsString>,
    /// Files that wait for another attempt, by its time.
    waiting: BTreeSet<(Instant, OsString)>,
}

#[derive(Debug, Default)]
struct File {
    /// The file's owner when it was found.
    uid: u32,
    /// Attempts that failed.
    failures: u32,
    /// Pending work on the file of a finished message.
    unsettled: Option<Settlement>,
    /// Recipients refused in earlier transactions of the same file. They stay in the file, and one notice reports all
    /// of them.
    refused: Refused,
}

/// Number of known files of each user.
#[derive(Debug, Clone)]
struct Shares {
    of_user: HashMap<u32, usize>,
    /// Number of files that may still become known.
    free: usize,
}

impl Default for Shares {
    fn default() -> Self {
        Self { of_user: HashMap::new(), free: KNOWN_MAX }
    }
}

impl Shares {
    /// Reserves a slot for a file of a user. False if the user has more than are left for others, so that one user's
    /// waiting mail cannot block others.
    fn take(&mut self, uid: u32) -> bool {
        let of_user = self.of_user.get(&uid).copied().unwrap_or(0);
        let has_room = of_user < self.free;
        if has_room {
            self.of_user.insert(uid, of_user + 1);
            self.free -= 1;
        }
        has_room
    }

    fn give_back(&mut self, uid: u32) {
        if let Entry::Occupied(mut of_user) = self.of_user.entry(uid) {
            *of_user.get_mut() -= 1;
            self.free += 1;
            if *of_user.get() == 0 {
                of_user.remove();
            }
        }
    }
}

impl Files {
    /// Files that may be added.
    pub fn room(&self) -> usize {
        self.shares.free.min(FOUND_MAX)
    }

    /// True if the file is queued, in progress or waiting.
    pub fn is_known(&self, name: &OsStr) -> bool {
        self.known.contains_key(name)
    }

    /// Begins a scan of the directory.
    pub fn look(&self) -> Look {
        Look { known: self.known.keys().cloned().collect(), shares: self.shares.clone() }
    }

    /// Queues new files, oldest first by name, while their user has slots.
    pub fn add(&mut self, mut found: Vec<Found>) {
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for Found { name, uid } in found {
            if !self.is_known(&name) && self.shares.take(uid) {
                self.known.insert(name.clone(), File { uid, ..File::default() });
                self.queue.push_back(name);
            }
        }
    }

    pub fn has_none_queued(&self) -> bool {
        self.queue.is_empty()
    }

    /// The next file, its unfinished settlement, and its recipients refused so far.
    pub fn take(&mut self) -> Option<(OsString, Option<Settlement>, Refused)> {
        let name = self.queue.pop_front()?;
        let file = self.known.get_mut(&name).expect("a queued file is known");
        Some((name, file.unsettled.take(), std::mem::take(&mut file.refused)))
    }

    /// Forgets a finished file. Until now scans skipped its name, and thus a new file with the same name.
    pub fn forget(&mut self, name: &OsStr) {
        if let Some(file) = self.known.remove(name) {
            self.shares.give_back(file.uid);
        }
    }

    /// Queues the file again, at the end.
    pub fn again(&mut self, name: OsString, refused: Refused) {
        self.known.get_mut(&name).expect("a file at work is known").refused = refused;
        self.queue.push_back(name);
    }

    /// Delays the file, each time twice as long.
    pub fn later(&mut self, name: OsString, unsettled: Option<Settlement>, now: Instant) {
        let Some(file) = self.known.get_mut(&name) else { return };
        file.failures = file.failures.saturating_add(1);
        file.unsettled = unsettled;
        self.waiting.insert((now + RETRY.after(file.failures), name));
    }

    /// The earliest due time of the waiting ones.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.first().map(|(due, _)| *due)
    }

    /// Queues due files.
    pub fn wake(&mut self, now: Instant) {
        while self.due().is_some_and(|due| due <= now) {
            self.queue.extend(self.waiting.pop_first().map(|(_, name)| name));
        }
    }
}

/// A newly found file.
#[derive(Debug)]
pub(super) struct Found {
    pub name: OsString,
    pub uid: u32,
}

/// Selects files during a scan of the directory.
#[derive(Debug)]
pub(super) struct Look {
    known: HashSet<OsString>,
    /// The slots, including those of the selection.
    shares: Shares,
}

impl Look {
    /// Skips known files, and files of a user without slots.
    pub fn choose(&mut self, name: OsString, uid: impl FnOnce() -> Option<u32>) -> Option<Found> {
        if self.known.contains(&name) {
            return None;
        }
        let uid = uid()?;
        self.shares.take(uid).then_some(Found { name, uid })
    }
}

/// Maximum files found by one scan. The next one finds more.
const FOUND_MAX: usize = 1000;
/// Maximum known files. A single user may have half of them.
const KNOWN_MAX: usize = 100_000;
const RETRY: BackOff = BackOff::new(Duration::from_secs(5), Duration::from_secs(300));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_of_a_file_doubles_up_to_five_minutes() {
        let mut files = Files::default();
        files.add(["b", "a"].map(|name| Found { name: name.into(), uid: 0 }).into());
        assert_eq!(files.take().unwrap().0, "a");
        assert_eq!((files.take().unwrap().0, files.take().is_none()), ("b".into(), true));
        files.forget("b".as_ref());
        let mut now = Instant::now();
        for secs in [5, 10, 20, 40, 80, 160, 300, 300] {
            files.later("a".into(), Some(Settlement::Remove), now);
            now += Duration::from_secs(secs);
            assert_eq!(files.due(), Some(now));
            files.wake(now - Duration::from_millis(1));
            assert!(files.has_none_queued());
            files.wake(now);
            let (name, unsettled, _) = files.take().unwrap();
            assert_eq!(name, "a");
            assert!(matches!(unsettled, Some(Settlement::Remove)), "it is not handed over again");
            assert_eq!(files.due(), None);
        }
    }

    /// Number of a user's files that are known after a look for as many.
    fn find(files: &mut Files, uid: u32, there_are: usize) -> usize {
        let mut look = files.look();
        let name = |number: usize| format!("{uid}.{number}").into();
        let found: Vec<Found> = (0..there_are).filter_map(|number| look.choose(name(number), || Some(uid))).collect();
        let count = found.len();
        files.add(found);
        count
    }

    #[test]
    fn one_user_with_waiting_mail_leaves_room_and_state_is_bounded() {
        let mut files = Files::default();
        assert_eq!(files.room(), FOUND_MAX);
        assert_eq!(find(&mut files, 1000, 2 * KNOWN_MAX), KNOWN_MAX / 2);
        assert_eq!(find(&mut files, 1001, 10), 10);
        assert_eq!(find(&mut files, 1001, KNOWN_MAX), KNOWN_MAX / 4 - 10);
        files.forget("1000.7".as_ref());
        assert_eq!(find(&mut files, 1000, KNOWN_MAX), 0, "others have as few");
        (1002..1022).for_each(|uid| assert!(find(&mut files, uid, KNOWN_MAX / 8) <= KNOWN_MAX / 8));
        assert_eq!((files.known.len(), files.room()), (KNOWN_MAX, 0));
        files.add(vec![Found { name: "late".into(), uid: 1 }]);
        assert!(!files.is_known("late".as_ref()), "what comes by itself has no more room than what a look finds");
        let known: Vec<OsString> = files.known.keys().cloned().collect();
        known.iter().for_each(|name| files.forget(name));
        assert_eq!((files.shares.of_user.len(), files.shares.free), (0, KNOWN_MAX));
    }
}
