//! All watched directories of a process, and the faults injected into calls below them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use rustix::fs::StatVfs;
use rustix::io::Errno;

use crate::event::{FsEvent, SyncScope};
use crate::tree::{Mounts, NodeId, Tree};

/// Faults, and their moments: counts start at 1 with the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// Syncs, by number, that fail with EIO and drop the writes that they covered.
    pub fail_syncs: Vec<u64>,
    /// All syncs on this file system fail in this way: its [`Declared::device`](crate::Declared::device).
    pub fail_syncs_on: Option<u64>,
    /// From this change on the file system refuses writes, like one that the kernel has shut down. Its syncs write
    /// nothing.
    pub read_only: Option<(u64, u64)>,
    /// These changes fail, of bytes or of names. A failing first write takes half of its bytes.
    pub fail_changes: Option<(Range<u64>, Errno)>,
    /// The program is killed before this event; changes and syncs are counted together.
    pub kill_before: Option<u64>,
    /// From the write of these bytes on, or at once without them, syncs hang until the faults change.
    pub hang_syncs: Option<Vec<u8>>,
    /// Blocks with these bytes are unreadable: a [`pread`](crate::pread) of them fails with EIO.
    pub bad_sectors: Option<Vec<u8>>,
}

/// A watched file or directory: its machine and node.
pub(crate) type Watched = (u64, NodeId);

pub(crate) struct World {
    // By device and inode number.
    nodes: BTreeMap<(u64, u64), Watched>,
    machines: BTreeMap<u64, State>,
}

pub(crate) struct State {
    pub life: u64,
    pub syncfs_trusted: bool,
    pub ordered_log: bool,
    pub is_off: bool,
    pub events: Vec<FsEvent>,
    last_node: NodeId,
    pub mounts: Mounts,
    // Where they begin: no name of these directories changes.
    pub mount_points: Vec<PathBuf>,
    pub faults: Faults,
    /// Declared free space of file systems.
    pub spaces: BTreeMap<NodeId, DeclaredSpace>,
    // Files whose writes a sync of their file system has forgotten: their own next sync tells so, as the kernel does.
    forgotten: BTreeSet<NodeId>,
    // How often a sync of each file system has failed, and how much of that each descriptor has told.
    failures: BTreeMap<NodeId, u64>,
    told: BTreeMap<(NodeId, RawFd), u64>,
    pub syncs: u64,
    pub changes: u64,
    pub dirs_opened: u64,
}

static WORLD: Mutex<World> = Mutex::new(World { nodes: BTreeMap::new(), machines: BTreeMap::new() });
static MACHINES: AtomicUsize = AtomicUsize::new(0);
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);
/// Set once any machine has bad sectors. Until then a read skips the machine, and is not a scheduling point.
pub(crate) static HAS_BAD_SECTORS: AtomicBool = AtomicBool::new(false);

/// The world, if any directory is watched. Calls are made under this lock, so that the record has their order. Before
/// each call the test's scheduler may switch to another thread.
pub(crate) fn world() -> Option<MutexGuard<'static, World>> {
    (MACHINES.load(Ordering::Acquire) > 0).then(|| {
        std::thread::yield_now();
        lock()
    })
}

/// Locks without queueing: threads of other machines use this lock, too, and must not influence the schedule of this
/// one.
pub(crate) fn lock() -> MutexGuard<'static, World> {
    loop {
        match WORLD.try_lock() {
            Ok(world) => return world,
            Err(TryLockError::Poisoned(world)) => return world.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let moment = rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000 };
                let _ = rustix::thread::clock_nanosleep_relative(rustix::thread::ClockId::Monotonic, &moment);
            }
        }
    }
}

impl World {
    /// Adds a machine with its initial files; returns its key.
    pub fn add(&mut self, nodes: Vec<((u64, u64), NodeId)>, state: impl FnOnce(u64) -> State) -> u64 {
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        self.nodes.extend(nodes.into_iter().map(|(identity, id)| (identity, (key, id))));
        self.machines.insert(key, state(key));
        MACHINES.fetch_add(1, Ordering::Release);
        key
    }

    /// Forgets a machine and all that is in it.
    pub fn remove(&mut self, key: u64) {
        self.machines.remove(&key);
        self.nodes.retain(|_, (machine, _)| *machine != key);
        MACHINES.fetch_sub(1, Ordering::Release);
    }

    pub fn node(&self, identity: (u64, u64)) -> Option<Watched> {
        self.nodes.get(&identity).copied()
    }

    /// Gives a number to a new file in `dir`.
    pub fn watch(&mut self, machine: u64, dir: NodeId, identity: (u64, u64)) -> NodeId {
        let state = self.state(machine);
        state.last_node += 1;
        let node = state.last_node;
        state.mounts.made_in(dir, node);
        self.nodes.insert(identity, (machine, node));
        node
    }

    /// Forgets a node without a name; its number may be reused.
    pub fn forget(&mut self, identity: (u64, u64)) {
        self.nodes.remove(&identity);
    }

    /// Waits while syncs of this machine hang. Other calls continue.
    pub fn while_it_hangs(mut world: MutexGuard<'static, World>, machine: u64) -> MutexGuard<'static, World> {
        while world.state(machine).has_hanging_syncs() {
            drop(world);
            std::thread::sleep(HANGING_LOOKS_EVERY);
            world = lock();
        }
        world
    }

    pub fn state(&mut self, machine: u64) -> &mut State {
        self.machines.get_mut(&machine).expect("a watched node's machine")
    }
}

impl State {
    /// EIO if the data read lies in bad sectors.
    pub fn may_read(&self, bytes: &[u8]) -> rustix::io::Result<()> {
        let is_bad = |bad: &Vec<u8>| bytes.windows(bad.len()).any(|part| part == bad);
        if self.faults.bad_sectors.as_ref().is_some_and(is_bad) { Err(Errno::IO) } else { Ok(()) }
    }

    fn has_hanging_syncs(&self) -> bool {
        let Some(text) = &self.faults.hang_syncs else { return false };
        let writes = self.events.iter().filter_map(|event| match event {
            FsEvent::Write { bytes, .. } => Some(bytes),
            _ => None,
        });
        text.is_empty() || writes.into_iter().any(|bytes| bytes.windows(text.len()).any(|part| part == text))
    }

    /// One whose disk has this tree, its mount points in `dir`; `life` says which life of a page cache it is.
    pub fn new(life: u64, tree: &Tree, dir: &Path, syncfs_trusted: bool, ordered_log: bool) -> Self {
        State {
            life,
            syncfs_trusted,
            ordered_log,
            is_off: false,
            events: Vec::new(),
            last_node: tree.highest(),
            mounts: tree.mounts(),
            mount_points: tree.mount_points().iter().map(|point| dir.join(point)).collect(),
            faults: Faults::default(),
            spaces: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            failures: BTreeMap::new(),
            told: BTreeMap::new(),
            syncs: 0,
            changes: 0,
            dirs_opened: 0,
        }
    }

    pub fn push(&mut self, event: FsEvent) {
        self.events.push(event);
    }

    /// # Errors
    /// EIO when nobody is alive.
    fn alive(&mut self) -> rustix::io::Result<()> {
        self.is_off |= self.faults.kill_before == Some(self.syncs + self.changes);
        if self.is_off { Err(Errno::IO) } else { Ok(()) }
    }

    /// # Errors
    /// EXDEV where names would lead from one file system to another.
    pub fn same_mount(&self, one: NodeId, other: NodeId) -> rustix::io::Result<()> {
        if self.mounts.of(one) == self.mounts.of(other) { Ok(()) } else { Err(Errno::XDEV) }
    }

    /// # Errors
    /// EBUSY for the directory that a file system begins at.
    pub fn no_mount(&self, node: NodeId) -> rustix::io::Result<()> {
        if self.mounts.of(node) == node { Err(Errno::BUSY) } else { Ok(()) }
    }

    /// fsync or fdatasync.
    pub fn sync(&mut self, node: NodeId) -> rustix::io::Result<()> {
        let was_forgotten = self.forgotten.remove(&node);
        if self.fails(node)? || was_forgotten {
            self.events.push(FsEvent::SyncFailed(SyncScope::Node(node)));
            return Err(Errno::IO);
        }
        self.events.push(FsEvent::Sync(SyncScope::Node(node)));
        Ok(())
    }

    /// syncfs by a descriptor. Also reports failures since the descriptor was opened, even if others have reported
    /// them.
    pub fn sync_all(&mut self, mount: NodeId, descriptor: RawFd) -> rustix::io::Result<()> {
        if self.fails(mount)? {
            let unsynced = self.unsynced_on(mount);
            self.forgotten.extend(unsynced);
            self.events.push(FsEvent::SyncFailed(SyncScope::FileSystem(mount)));
            // The kernel has nothing to write to one that is read-only.
            if self.is_read_only(mount) {
                return Ok(());
            }
            *self.failures.entry(mount).or_default() += 1;
        } else {
            self.events.push(FsEvent::Sync(SyncScope::FileSystem(mount)));
        }
        let failures = self.failures.get(&mount).copied().unwrap_or(0);
        let told = self.told.insert((mount, descriptor), failures).unwrap_or(0);
        if told < failures { Err(Errno::IO) } else { Ok(()) }
    }

    /// Notes a new descriptor that may be used for syncfs.
    pub fn opened(&mut self, mount: NodeId, descriptor: RawFd) {
        self.told.insert((mount, descriptor), self.failures.get(&mount).copied().unwrap_or(0));
    }

    /// Counts a sync on this file system. True if it fails.
    fn fails(&mut self, node: NodeId) -> rustix::io::Result<bool> {
        self.syncs += 1;
        self.alive()?;
        let is_due = self.faults.fail_syncs.contains(&self.syncs);
        Ok(is_due || self.faults.fail_syncs_on == Some(self.mounts.of(node)) || self.is_read_only(node))
    }

    /// Files on a file system that were written and not synced since.
    fn unsynced_on(&self, mount: NodeId) -> BTreeSet<NodeId> {
        let mut unsynced = BTreeSet::new();
        for event in &self.events {
            match event {
                FsEvent::Write { node, .. } if self.mounts.of(*node) == mount => drop(unsynced.insert(*node)),
                FsEvent::Sync(SyncScope::Node(node)) | FsEvent::SyncFailed(SyncScope::Node(node)) => {
                    unsynced.remove(node);
                }
                FsEvent::Sync(SyncScope::FileSystem(all)) | FsEvent::SyncFailed(SyncScope::FileSystem(all))
                    if *all == mount =>
                {
                    unsynced.clear();
                }
                _ => {}
            }
        }
        unsynced
    }

    pub fn is_read_only(&self, node: NodeId) -> bool {
        self.faults.read_only.is_some_and(|(device, from)| self.mounts.of(node) == device && self.changes >= from)
    }

    /// Called before each change in a directory.
    ///
    /// # Errors
    /// EIO when nobody is alive, and the fault that is due.
    pub fn may_change(&mut self, node: NodeId) -> rustix::io::Result<()> {
        self.changes += 1;
        self.alive()?;
        if self.is_read_only(node) {
            return Err(Errno::ROFS);
        }
        match &self.faults.fail_changes {
            Some((due, errno)) if due.contains(&self.changes) => Err(*errno),
            _ => Ok(()),
        }
    }

    /// Called before each write to a file; returns how many bytes are written.
    ///
    /// # Errors
    /// As [`may_change`](Self::may_change).
    pub fn may_write(&mut self, node: NodeId, bytes: usize) -> rustix::io::Result<usize> {
        let begins = |(due, _): &(Range<u64>, Errno)| due.start == self.changes + 1;
        if bytes > 1 && self.faults.fail_changes.as_ref().is_some_and(begins) {
            self.changes += 1;
            return self.alive().map(|()| bytes / 2);
        }
        self.may_change(node).map(|()| bytes)
    }
}

const HANGING_LOOKS_EVERY: Duration = Duration::from_millis(1);

/// Space left on the file system of a machine.
#[derive(Debug, Clone)]
pub(crate) enum DeclaredSpace {
    /// These values, whatever is written.
    Fixed { bytes: u64, inodes: u64 },
    /// A simulated disk of this many bytes, minus the files below this directory.
    Disk(PathBuf, u64),
}

impl DeclaredSpace {
    /// The answer of statvfs(3) with these values; the others are as in `real`.
    pub fn stat(&self, real: StatVfs) -> StatVfs {
        let (bytes, inodes) = match self {
            DeclaredSpace::Fixed { bytes, inodes } => (*bytes, *inodes),
            DeclaredSpace::Disk(dir, bytes) => {
                let mut files = BTreeMap::new();
                measure(dir, &mut files);
                (bytes.saturating_sub(files.values().sum()), u64::MAX)
            }
        };
        StatVfs { f_frsize: 1, f_bavail: bytes, f_files: u64::MAX, f_favail: inodes, ..real }
    }
}

/// The lengths of all files below a directory, by inode. Files removed meanwhile are left out.
fn measure(dir: &Path, files: &mut BTreeMap<u64, u64>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => measure(&entry.path(), files),
            Ok(metadata) => drop(files.insert(metadata.ino(), metadata.len())),
            Err(_) => {}
        }
    }
}
