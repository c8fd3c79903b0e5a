//! The files of the directory that the service knows: queued, at work, or waiting for another attempt.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::time::Duration;

use tokio::time::Instant;

use super::settle::Settlement;

/// Files by name.
#[derive(Debug, Default)]
pub(super) struct Files {
    known: HashMap<OsString, File>,
    queue: VecDeque<OsString>,
    /// How often the directory was looked through.
    looks: u64,
}

#[derive(Debug, Default)]
struct File {
    /// Looks until it was taken.
    looks: u64,
    /// The last one before an attempt.
    pause: Duration,
    /// When it is tried again. `None`: it is queued or at work.
    due: Option<Instant>,
    /// What its message's end asks for, if that was not done.
    unsettled: Option<Settlement>,
}

impl Files {
    /// Files that may be added.
    pub fn room(&self) -> usize {
        KNOWN_MAX.saturating_sub(self.known.len()).min(FOUND_MAX)
    }

    /// The names of all, which a look through the directory passes over.
    pub fn look(&mut self) -> HashSet<OsString> {
        self.looks += 1;
        self.known.keys().cloned().collect()
    }

    /// Queues files that are not known, oldest first as far as their names tell.
    pub fn add(&mut self, mut names: Vec<OsString>) {
        names.sort_unstable();
        for name in names {
            self.known.entry(name.clone()).or_default();
            self.queue.push_back(name);
        }
    }

    pub fn has_none_queued(&self) -> bool {
        self.queue.is_empty()
    }

    /// The next file to work at.
    pub fn take(&mut self) -> Option<(OsString, Option<Settlement>)> {
        let name = self.queue.pop_front()?;
        let file = self.known.entry(name.clone()).or_default();
        file.looks = self.looks;
        Some((name, file.unsettled.take()))
    }

    /// The file is done with. True: a look since it was taken may have passed over another one of its name, which came once it was removed.
    pub fn forget(&mut self, name: &OsStr) -> bool {
        self.known.remove(name).is_some_and(|file| file.looks != self.looks)
    }

    /// The file is queued once more, behind the others.
    pub fn again(&mut self, name: OsString) {
        self.queue.push_back(name);
    }

    /// The file waits, twice as long as the last time.
    pub fn later(&mut self, name: OsString, unsettled: Option<Settlement>, now: Instant) {
        let Some(file) = self.known.get_mut(&name) else { return };
        file.pause = (file.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        (file.due, file.unsettled) = (Some(now + file.pause), unsettled);
    }

    /// When the next of those that wait is due.
    pub fn due(&self) -> Option<Instant> {
        self.known.values().filter_map(|file| file.due).min()
    }

    /// Queues what is due.
    pub fn wake(&mut self, now: Instant) {
        for (name, file) in &mut self.known {
            if file.due.is_some_and(|due| due <= now) {
                file.due = None;
                self.queue.push_back(name.clone());
            }
        }
    }
}

/// Files that are found by one look. More are found by the next.
const FOUND_MAX: usize = 1000;
/// Files that are known. While as many wait, others are not looked for.
const KNOWN_MAX: usize = 100_000;
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_waits_twice_as_long_each_time_and_at_most_five_minutes() {
        let mut files = Files::default();
        files.add(vec!["b".into(), "a".into()]);
        assert_eq!(files.take().unwrap().0, "a");
        assert_eq!((files.take().unwrap().0, files.take().is_none()), ("b".into(), true));
        assert!(!files.forget("b".as_ref()));
        let mut now = Instant::now();
        for secs in [5, 10, 20, 40, 80, 160, 300, 300] {
            files.later("a".into(), Some(Settlement::Remove), now);
            now += Duration::from_secs(secs);
            assert_eq!(files.due(), Some(now));
            files.wake(now - Duration::from_millis(1));
            assert!(files.has_none_queued());
            files.wake(now);
            let (name, unsettled) = files.take().unwrap();
            assert_eq!(name, "a");
            assert!(matches!(unsettled, Some(Settlement::Remove)), "it is not handed over again");
            assert_eq!(files.due(), None);
        }
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut files = Files::default();
        for round in 0..KNOWN_MAX / FOUND_MAX {
            assert_eq!(files.room(), FOUND_MAX);
            files.add((0..FOUND_MAX).map(|number| format!("{round}.{number}").into()).collect());
        }
        assert_eq!(files.room(), 0);
        assert_eq!(files.look().len(), KNOWN_MAX);
        files.forget("0.0".as_ref());
        assert_eq!(files.room(), 1);
    }
}
