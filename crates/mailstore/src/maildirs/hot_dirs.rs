//! Detects files that other programs add or remove (inotify(7)). Watches mailboxes with waiting sessions, and those
//! found unchanged twice.
//!
//! A mailbox stays watched until its slot is needed. Unwatched ones are checked once a second. The kernel queues an
//! event before the causing call returns, so a queue [read to its end](HotDirs::read_events_now) is complete.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use posthaste_maildir::{MailboxPath, Subdir};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::locks::lock;

/// Counts events in the directories of a mailbox. Events that are not urgent wake no waiter.
pub(super) type DirEvents = watch::Sender<u64>;

/// Octets of events in one read.
const BUFFER_BYTES: usize = 16 << 10;
/// Maximum watched mailboxes if the system's limit is unknown.
const MAILBOXES_MAX: usize = 2_000;
/// Watches of a mailbox: `new/`, `cur/`, and the directory above them.
const WATCHES_EACH: usize = 3;
/// Events of `new/` and `cur/` that wake sessions. A program that writes in place is finished when it closes the file.
const LOUD: WatchFlags = WatchFlags::MOVED_TO
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::CLOSE_WRITE)
    .union(ITSELF);
/// Events of a directory itself.
const ITSELF: WatchFlags = WatchFlags::DELETE_SELF.union(WatchFlags::MOVE_SELF);
/// A new link, or a file still to be written: the next look finds it.
const QUIET: WatchFlags = WatchFlags::CREATE;
/// Events of the directory above: UID lists and keywords are written there, and permissions may be revoked.
const ABOVE: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE)
    .union(ITSELF);

/// The watches of a store.
pub(super) struct HotDirs {
    root: PathBuf,
    /// `None` if inotify is unavailable.
    kernel: Option<Kernel>,
    state: Mutex<HotState>,
    mailboxes_max: usize,
    has_told_full: AtomicBool,
}

struct Kernel {
    fd: Arc<AsyncFd<OwnedFd>>,
    reader: AbortHandle,
}

#[derive(Default)]
struct HotState {
    by_mailbox: HashMap<u32, HotMailbox>,
    /// Mailboxes whose watch is being added, which may take long on a hanging mount.
    begun: HashSet<u32>,
    /// Mailboxes by the kernel's watch number, with true if the watch's events wake sessions.
    by_number: HashMap<i32, (u32, bool)>,
    /// Mailboxes by their last use.
    order: BTreeMap<u64, u32>,
    uses: u64,
}

struct HotMailbox {
    /// Watch numbers, as many as the kernel allowed; true for `new/` or `cur/`.
    numbers: Vec<(i32, bool)>,
    last_use: u64,
    events: Weak<DirEvents>,
}

impl HotDirs {
    /// For mailboxes below `root`. They use half of the user's watches. Needs a tokio runtime.
    pub fn new(root: &Path) -> Arc<Self> {
        let watches = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").ok();
        let watches = watches.and_then(|watches| watches.trim().parse::<usize>().ok());
        Self::with(root, watches.map_or(MAILBOXES_MAX, |watches| watches / 2 / WATCHES_EACH))
    }

    fn with(root: &Path, mailboxes_max: usize) -> Arc<Self> {
        let opened = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(io::Error::from);
        let fd = opened.and_then(registered).map(Arc::new).inspect_err(|error| {
            let error = error.to_string();
            tracing::warn!(error, "no inotify: changes of mailboxes by other programs are found within a second");
        });
        Arc::new_cyclic(|me| {
            let kernel = fd.ok().map(|fd| {
                let reader = tokio::spawn(read_events(Arc::clone(&fd), Weak::clone(me))).abort_handle();
                Kernel { fd, reader }
            });
            let (state, has_told_full) = (Mutex::default(), AtomicBool::new(false));
            Self { root: root.to_owned(), kernel, state, mailboxes_max, has_told_full }
        })
    }

    /// Notes a waiting session. True if the caller shall [watch](Self::watch) the mailbox, on a blocking thread.
    pub fn begin(&self, mailbox: u32) -> bool {
        self.kernel.is_some() && lock(&self.state).begin(mailbox)
    }

    /// Watches a mailbox, replacing the one unused for longest if there are too many. Counts an event, as earlier
    /// changes were unseen. A mailbox without directories is retried with the next wait. Blocks.
    pub fn watch(&self, mailbox: u32, path: &MailboxPath, events: &Arc<DirEvents>) {
        let watched = self.add(path);
        let left = {
            let mut state = lock(&self.state);
            state.begun.remove(&mailbox);
            let Some(numbers) = watched else { return };
            // Locked: whoever finds the watch finds this counted, and with it the events that came before the watch had its mailbox.
            if !numbers.is_empty() {
                events.send_modify(|count| *count += 1);
            }
            state.put(mailbox, numbers, Arc::downgrade(events), self.mailboxes_max)
        };
        self.unwatch(left);
    }

    /// Counts all queued events. True if the mailbox has all its watches. Does not block.
    pub fn read_events_now(&self, mailbox: u32) -> bool {
        let Some(Kernel { fd, .. }) = &self.kernel else { return false };
        self.drain(fd.get_ref()).is_ok()
            && lock(&self.state).by_mailbox.get(&mailbox).is_some_and(|hot| hot.numbers.len() == WATCHES_EACH)
    }

    /// Watch numbers of a mailbox. `None` without directories.
    fn add(&self, path: &MailboxPath) -> Option<Vec<(i32, bool)>> {
        let Kernel { fd, .. } = self.kernel.as_ref()?;
        let dir = self.root.join(path.as_str());
        let subdirs = [Subdir::New, Subdir::Cur].map(|subdir| (dir.join(subdir.as_str()), LOUD | QUIET, true));
        let mut numbers = Vec::new();
        for (dir, flags, is_loud) in subdirs.into_iter().chain([(dir, ABOVE, false)]) {
            match inotify::add_watch(fd.get_ref(), dir.as_path(), flags | WatchFlags::ONLYDIR) {
                Ok(number) => numbers.push((number, is_loud)),
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    self.unwatch(numbers);
                    return None;
                }
                Err(_) if self.has_told_full.swap(true, Ordering::Relaxed) => {}
                Err(error) => {
                    let error = error.to_string();
                    tracing::warn!(
                        error,
                        "too few inotify watches for all open mailboxes (fs.inotify.max_user_watches): in the others, changes by other programs are found within a second"
                    );
                }
            }
        }
        Some(numbers)
    }

    /// Forgets an unloaded mailbox.
    pub fn forget(&self, mailbox: u32) {
        let left = lock(&self.state).remove(mailbox);
        self.unwatch(left);
    }

    fn unwatch(&self, numbers: Vec<(i32, bool)>) {
        let Some(Kernel { fd, .. }) = &self.kernel else { return };
        // One whose directory is gone has ended by itself.
        numbers.into_iter().for_each(|(number, _)| _ = inotify::remove_watch(fd.get_ref(), number));
    }

    /// Counts queued events. Locked from the first read on: a caller that finds the queue empty finds all of them
    /// counted.
    fn drain(&self, fd: &OwnedFd) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let (mut reader, mut left) = (Reader::new(fd, &mut buffer), Vec::new());
        let mut state = lock(&self.state);
        let outcome = loop {
            match reader.next() {
                Ok(event) => left.extend(state.heard(event.wd(), event.events())),
                Err(Errno::WOULDBLOCK) => break Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => break Err(error.into()),
            }
        };
        drop(state);
        self.unwatch(left);
        outcome
    }
}

impl Drop for HotDirs {
    fn drop(&mut self) {
        self.kernel.iter().for_each(|kernel| kernel.reader.abort());
    }
}

impl HotState {
    /// True if a watch must be added; an existing one is reused.
    fn begin(&mut self, mailbox: u32) -> bool {
        let Some(hot) = self.by_mailbox.get_mut(&mailbox) else { return self.begun.insert(mailbox) };
        self.uses += 1;
        self.order.remove(&std::mem::replace(&mut hot.last_use, self.uses));
        self.order.insert(self.uses, mailbox);
        false
    }

    /// Counts an event of a watch. Returns the watches to remove.
    fn heard(&mut self, number: i32, flags: ReadFlags) -> Vec<(i32, bool)> {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.by_mailbox.values().for_each(|hot| hot.count(true));
            return Vec::new();
        }
        let Some((mailbox, is_loud)) = self.by_number.get(&number).copied() else { return Vec::new() };
        let is_over = flags.intersects(ReadFlags::IGNORED | ReadFlags::MOVE_SELF);
        let wakes = is_over || is_loud && !flags.contains(ReadFlags::CREATE);
        self.by_mailbox.get(&mailbox).into_iter().for_each(|hot| hot.count(wakes));
        // The other directories' watches have no use alone: all begin again with the next wait.
        if is_over { self.remove(mailbox) } else { Vec::new() }
    }

    /// Returns the watches to remove.
    fn put(
        &mut self,
        mailbox: u32,
        numbers: Vec<(i32, bool)>,
        events: Weak<DirEvents>,
        mailboxes_max: usize,
    ) -> Vec<(i32, bool)> {
        let mut left = self.remove(mailbox);
        left.retain(|number| !numbers.contains(number));
        while self.by_mailbox.len() >= mailboxes_max.max(1) {
            let Some((_, oldest)) = self.order.first_key_value() else { break };
            let oldest = *oldest;
            left.extend(self.remove(oldest));
        }
        self.uses += 1;
        self.order.insert(self.uses, mailbox);
        self.by_number.extend(numbers.iter().map(|(number, is_loud)| (*number, (mailbox, *is_loud))));
        self.by_mailbox.insert(mailbox, HotMailbox { numbers, last_use: self.uses, events });
        left
    }

    fn remove(&mut self, mailbox: u32) -> Vec<(i32, bool)> {
        let Some(hot) = self.by_mailbox.remove(&mailbox) else { return Vec::new() };
        self.order.remove(&hot.last_use);
        hot.numbers.iter().for_each(|(number, _)| _ = self.by_number.remove(number));
        hot.numbers
    }
}

impl HotMailbox {
    fn count(&self, wakes: bool) {
        if let Some(events) = self.events.upgrade() {
            events.send_if_modified(|count| {
                *count += 1;
                wakes
            });
        }
    }
}

async fn read_events(fd: Arc<AsyncFd<OwnedFd>>, dirs: Weak<HotDirs>) {
    loop {
        let Ok(mut ready) = fd.readable().await else { return };
        let Some(dirs) = dirs.upgrade() else { return };
        if let Err(error) = dirs.drain(fd.get_ref()) {
            tracing::warn!(error = error.to_string(), "inotify: changes by other programs are found within a second");
            return;
        }
        ready.clear_ready();
    }
}

#[allow(deprecated, reason = "it is deprecated for types whose descriptor may change; an owned one does not")]
fn registered(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(fd)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::maildirs::tests::Place;
    use crate::snapshot::Source;

    fn make(root: &Path, name: &str) -> MailboxPath {
        for sub in ["new", "cur", "tmp"] {
            fs::create_dir_all(root.join(name).join(sub)).unwrap();
        }
        MailboxPath::parse(name).unwrap()
    }

    fn events() -> Arc<DirEvents> {
        Arc::new(watch::Sender::new(0))
    }

    /// Watches that the kernel has for us.
    fn watches(dirs: &HotDirs) -> usize {
        let fd = dirs.kernel.as_ref().expect("this machine has no inotify left").fd.as_raw_fd();
        let facts = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
        facts.lines().filter(|line| line.starts_with("inotify ")).count()
    }

    #[tokio::test]
    async fn a_file_that_comes_or_goes_is_an_event() {
        let root = tempfile::tempdir().unwrap();
        let (path, count) = (make(root.path(), "a"), events());
        let dirs = HotDirs::new(root.path());
        assert!(dirs.begin(1) && !dirs.begin(1), "one makes the watch");
        dirs.watch(1, &path, &count);
        assert!(!dirs.begin(1));
        let mut seen = count.subscribe();
        assert_eq!(*seen.borrow_and_update(), 1, "of the time before");
        let at = |name: &str| root.path().join("a").join(name);
        fs::write(at("tmp/1.a.h"), "x").unwrap();
        for (from, to) in [("tmp/1.a.h", "new/1.a.h"), ("new/1.a.h", "cur/1.a.h:2,S")] {
            fs::rename(at(from), at(to)).unwrap();
            seen.changed().await.unwrap();
        }
        // A directory that goes takes the watch with it: the next wait begins another, once the directory is there.
        fs::remove_dir(at("new")).unwrap();
        while !dirs.begin(1) {
            seen.changed().await.unwrap();
        }
        assert_eq!(watches(&dirs), 0);
        dirs.watch(1, &path, &count);
        assert!(dirs.begin(1));
        assert_eq!(watches(&dirs), 0);
        dirs.watch(1, &make(root.path(), "a"), &count);
        assert_eq!((watches(&dirs), dirs.begin(1)), (3, false));
    }

    #[tokio::test]
    async fn the_mailbox_that_nobody_waited_for_longest_goes() {
        let root = tempfile::tempdir().unwrap();
        let dirs = HotDirs::with(root.path(), 2);
        let count = events();
        for (id, name) in (1..).zip(["a", "b"]) {
            dirs.watch(id, &make(root.path(), name), &count);
        }
        assert!(!dirs.begin(1), "it is used again");
        dirs.watch(3, &make(root.path(), "c"), &count);
        assert_eq!([1, 2, 3].map(|id| dirs.begin(id)), [false, true, false]);
        assert_eq!(watches(&dirs), 6);
        dirs.watch(3, &MailboxPath::parse("c").unwrap(), &count);
        assert_eq!(watches(&dirs), 6, "the same again");
        dirs.forget(1);
        dirs.forget(3);
        assert_eq!(watches(&dirs), 0);
    }

    #[tokio::test]
    async fn a_session_hears_of_a_file_before_the_next_look() {
        let mut place = Place::new();
        let mut messages = place.settled_look().await;
        lock(&place.mailbox().core().looks).poll_every = Duration::from_secs(24 * 60 * 60);
        for n in 1..=3 {
            let [tmp, new] = ["tmp", "new"].map(|sub| place.path(&format!("{sub}/{n}.a.h")));
            fs::write(&tmp, "Subject: x\n\n").unwrap();
            fs::rename(tmp, new).unwrap();
            let changed = place.mailbox().changed(&messages);
            timeout(Duration::from_secs(120), changed).await.expect("the kernel tells of the file");
            messages = place.mailbox().known().await.unwrap();
            assert_eq!(messages.messages.len(), n);
        }
    }
}
