//! A watched directory: a machine whose power can be cut.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use crate::event::FsEvent;
use crate::recording::Recording;
use crate::space::Space;
use crate::tree::{Node, NodeId, ROOT, Tree};
use crate::world::{DeclaredSpace, Faults, HAS_BAD_SECTORS, State, lock};

/// A temporary directory in which every call is recorded. Nothing is really synced: the recording knows what is
/// durable.
#[derive(Debug)]
pub struct Machine {
    key: u64,
    base: Tree,
    ordered_log: bool,
    // Dropped after the machine has been forgotten: inode numbers are used again.
    dir: tempfile::TempDir,
}

impl Machine {
    /// A machine with an empty disk, on which `syncfs` is reliable and names reach the disk in any order.
    ///
    /// # Errors
    /// An error of making a directory.
    pub fn new() -> io::Result<Self> {
        Self::boot(&Tree::default(), true, false)
    }

    /// A machine with this on its disk, durable.
    ///
    /// # Errors
    /// An error of writing the tree.
    pub fn boot(tree: &Tree, syncfs_trusted: bool, ordered_log: bool) -> io::Result<Self> {
        let dir = temporary()?;
        let mut nodes = vec![(identity(dir.path())?, ROOT)];
        let mut paths: BTreeMap<NodeId, PathBuf> = BTreeMap::new();
        tree.walk(ROOT, dir.path(), &mut |path, id, node| {
            match (node, paths.get(&id)) {
                (Node::Dir(_), _) => std::fs::create_dir(path)?,
                // Another name of a file that is there.
                (Node::File(_), Some(first)) => return std::fs::hard_link(first, path),
                (Node::File(bytes), None) => std::fs::write(path, bytes)?,
            }
            paths.insert(id, path.to_owned());
            nodes.push((identity(path)?, id));
            Ok(())
        })?;
        let state = |life| State::new(life, tree, dir.path(), syncfs_trusted, ordered_log);
        let key = lock().add(nodes, state);
        Ok(Machine { key, base: tree.clone(), ordered_log, dir })
    }

    /// Directory of the machine's disk.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Records that this message was acknowledged as durable.
    pub fn acknowledge(&self, number: u64) {
        self.with(|state| state.push(FsEvent::Acknowledged(number)));
    }

    /// Events so far.
    pub fn position(&self) -> usize {
        self.with(|state| state.events.len())
    }

    /// Syncs and changes so far, failed ones included.
    pub fn counts(&self) -> (u64, u64) {
        self.with(|state| (state.syncs, state.changes))
    }

    /// Syncs and changes so far, including failed ones.
    pub fn dirs_opened(&self) -> u64 {
        self.with(|state| state.dirs_opened)
    }

    /// Replaces the faults to inject.
    pub fn set_faults(&self, faults: Faults) {
        HAS_BAD_SECTORS.fetch_or(faults.bad_sectors.is_some(), Ordering::Release);
        self.with(|state| state.faults = faults);
    }

    /// Sets the free space that the program sees on the file system of this directory. Writes do not reduce it.
    ///
    /// # Panics
    /// When it is not a directory of the machine.
    pub fn set_space(&self, dir: &Path, space: Space) {
        self.declare(dir, DeclaredSpace::Fixed { bytes: space.bytes, inodes: space.inodes });
    }

    /// Sets the size of this directory's file system: its reported free space is the size minus its files. A write
    /// beyond it does not fail: the program has to check.
    ///
    /// # Panics
    /// When it is not a directory of the machine.
    pub fn set_disk(&self, dir: &Path, bytes: u64) {
        self.declare(dir, DeclaredSpace::Disk(dir.to_owned(), bytes));
    }

    fn declare(&self, dir: &Path, space: DeclaredSpace) {
        let identity = identity(dir).expect("a directory that is there");
        let mut world = lock();
        let (machine, node) = world.node(identity).expect("a directory of the machine");
        let state = world.state(machine);
        let mount = state.mounts.of(node);
        state.spaces.insert(mount, space);
    }

    /// Kills the program: from now on all its calls fail without effect.
    pub fn kill(&self) {
        self.with(|state| state.is_off = true);
    }

    /// Restarts a program after a kill, without a power cut: unsynced writes are kept.
    pub fn go_on(&self) {
        self.with(|state| state.is_off = false);
    }

    /// The recording so far.
    pub fn recording(&self) -> Recording {
        let (events, mounts) = self.with(|state| (state.events.clone(), state.mounts.clone()));
        Recording { base: self.base.clone(), events, mounts, ordered_log: self.ordered_log }
    }

    /// Paths that differ from the recording: something changed them without a recorded call.
    ///
    /// # Errors
    /// An error of reading the tree.
    pub fn unrecorded(&self) -> io::Result<Vec<PathBuf>> {
        let recorded = self.recording().cached();
        let mut recorded = recorded.files();
        let mut differing = Vec::new();
        let mut dirs = vec![self.path().to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir)? {
                let path = entry?.path();
                let below = path.strip_prefix(self.path()).expect("it was found there").to_owned();
                let is_dir = path.is_dir();
                let same = match recorded.remove(&below) {
                    None => false,
                    Some(None) => is_dir,
                    Some(Some(bytes)) => !is_dir && std::fs::read(&path)? == bytes,
                };
                if !same {
                    differing.push(below);
                }
                if is_dir {
                    dirs.push(path);
                }
            }
        }
        differing.extend(recorded.into_keys());
        Ok(differing)
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(lock().state(self.key))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        lock().remove(self.key);
    }
}

/// In memory if possible: nothing here has to survive.
fn temporary() -> io::Result<tempfile::TempDir> {
    let in_memory = Path::new("/dev/shm");
    let has_room = rustix::fs::statvfs(in_memory).is_ok_and(|space| space.f_bavail * space.f_frsize > ROOM_BYTES_MIN);
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("posthaste-machine-");
    if has_room { builder.tempdir_in(in_memory) } else { builder.tempdir() }
}

const ROOM_BYTES_MIN: u64 = 512 << 20;

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{AtFlags, Mode, OFlags};
    use rustix::io::Errno;

    use super::*;
    use crate::event::{Choice, Cut};

    const NEW: OFlags = OFlags::WRONLY.union(OFlags::CREATE);

    #[test]
    fn the_record_is_what_was_done_and_what_went_past_it_is_found() {
        let machine = Machine::new().unwrap();
        let at = |name: &str| machine.path().join(name);
        let file = crate::open(at("a"), NEW, Mode::RUSR | Mode::WUSR).unwrap();
        crate::write_all(&file, b"one ").unwrap();
        crate::write_all(&file, b"two").unwrap();
        crate::pwritev(&file, &[io::IoSlice::new(b"O")], 0).unwrap();
        crate::mkdir(at("dir"), Mode::RWXU).unwrap();
        crate::rename(at("a"), at("dir/b")).unwrap();
        let dir = File::open(at("dir")).unwrap();
        crate::linkat(&dir, "b", &dir, "c", AtFlags::empty()).unwrap();
        crate::unlinkat(&dir, "b", AtFlags::empty()).unwrap();
        let nameless = crate::openat(&dir, ".", OFlags::RDWR | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR).unwrap();
        crate::write_all(&nameless, b"four").unwrap();
        let itself = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&nameless));
        crate::linkat(rustix::fs::CWD, itself, &dir, "e", AtFlags::SYMLINK_FOLLOW).unwrap();
        let other = crate::openat(&dir, "f", NEW, Mode::RUSR | Mode::WUSR).unwrap();
        crate::write_all(&other, b"five").unwrap();
        crate::renameat_with(&dir, "e", &dir, "f", rustix::fs::RenameFlags::EXCHANGE).unwrap();
        crate::unlinkat(&dir, "e", AtFlags::empty()).unwrap();
        crate::rename(at("dir/f"), at("dir/e")).unwrap();
        assert_eq!(machine.unrecorded().unwrap(), Vec::<PathBuf>::new());
        crate::syncfs(&dir).unwrap();
        let recording = machine.recording();
        let left = recording.cut(Cut { position: recording.events.len(), choice: Choice::Seed(1) });
        assert_eq!(left.files()[Path::new("dir/c")], Some(&b"One two"[..]));
        assert_eq!(left.files()[Path::new("dir/e")], Some(&b"four"[..]));
        std::fs::write(at("dir/c"), "three").unwrap();
        std::fs::write(at("d"), "").unwrap();
        assert_eq!(machine.unrecorded().unwrap().len(), 2);

        let again = Machine::boot(&left, true, false).unwrap();
        assert_eq!(std::fs::read(again.path().join("dir/c")).unwrap(), b"One two");
        crate::unlink(again.path().join("dir/c")).unwrap();
        assert_eq!(again.unrecorded().unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_file_with_two_names_is_one_file_after_a_cut() {
        let machine = Machine::new().unwrap();
        let file = crate::open(machine.path().join("a"), NEW, Mode::RUSR | Mode::WUSR).unwrap();
        crate::write_all(&file, b"one").unwrap();
        let dir = File::open(machine.path()).unwrap();
        crate::linkat(&dir, "a", &dir, "b", AtFlags::empty()).unwrap();
        crate::syncfs(&dir).unwrap();
        let recording = machine.recording();
        let left = recording.cut(Cut { position: recording.events.len(), choice: Choice::Bits(0) });
        let again = Machine::boot(&left, true, false).unwrap();
        assert_eq!(again.path().join("a").metadata().unwrap().nlink(), 2);
        let file = crate::open(again.path().join("b"), OFlags::WRONLY, Mode::empty()).unwrap();
        crate::write_all(&file, b"two").unwrap();
        assert_eq!(std::fs::read(again.path().join("a")).unwrap(), b"two");
        assert_eq!(again.unrecorded().unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn faults_come_when_they_are_due_and_the_dead_do_nothing() {
        let machine = Machine::new().unwrap();
        let full = Some((3..5, Errno::NOSPC));
        machine.set_faults(Faults { fail_syncs: vec![2], fail_changes: full, ..Faults::default() });
        let file = crate::open(machine.path().join("a"), NEW, Mode::RUSR | Mode::WUSR).unwrap();
        crate::write_all(&file, b"one").unwrap();
        assert_eq!([crate::write(&file, b"two"), crate::write(&file, b"wo")], [Ok(1), Err(Errno::NOSPC)]);
        assert_eq!([crate::fsync(&file), crate::fdatasync(&file)], [Ok(()), Err(Errno::IO)]);
        machine.set_faults(Faults { fail_syncs_on: Some(ROOT), kill_before: Some(8), ..Faults::default() });
        assert_eq!(crate::fsync(&file), Err(Errno::IO));
        assert_eq!(
            machine.recording().events.iter().filter(|event| matches!(event, FsEvent::SyncFailed(_))).count(),
            2
        );
        assert_eq!(crate::write(&file, b"three"), Err(Errno::IO));
        assert_eq!(crate::unlink(machine.path().join("a")), Err(Errno::IO));
        machine.go_on();
        crate::write_all(&file, b"four").unwrap();
        assert_eq!(std::fs::read(machine.path().join("a")).unwrap(), b"onetfour");
        assert_eq!(machine.unrecorded().unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn each_descriptor_reports_a_failed_sync_since_its_opening() {
        let machine = Machine::new().unwrap();
        let open = || {
            let dir = File::open(machine.path()).unwrap();
            crate::declared(&dir).unwrap();
            dir
        };
        let [one, other] = [open(), open()];
        machine.set_faults(Faults { fail_syncs: vec![1], ..Faults::default() });
        assert_eq!([&one, &one, &other, &other].map(crate::syncfs), [Err(Errno::IO), Ok(()), Err(Errno::IO), Ok(())]);
        assert_eq!(crate::syncfs(open()), Ok(()), "it was opened later");
    }

    #[test]
    fn a_read_only_file_system_keeps_synced_data_beside_others() {
        let machine = Machine::boot(&Tree::with_mounts(&["m"]), true, true).unwrap();
        let new = |name| crate::open(machine.path().join(name), NEW, Mode::RUSR | Mode::WUSR);
        let (there, here) = (new("m/a").unwrap(), new("b").unwrap());
        crate::write_all(&there, b"one").unwrap();
        crate::syncfs(&there).unwrap();
        crate::write_all(&there, b"two").unwrap();
        let device = crate::declared(&there).unwrap().device;
        machine.set_faults(Faults { read_only: Some((device, machine.counts().1 + 1)), ..Faults::default() });
        assert_eq!([crate::write(&there, b"three"), crate::write(&here, b"four")], [Err(Errno::ROFS), Ok(4)]);
        assert_eq!([new("m/c").err(), new("d").err()], [Some(Errno::ROFS), None]);
        assert_eq!(
            [crate::syncfs(&there), crate::fsync(&there), crate::syncfs(&here)],
            [Ok(()), Err(Errno::IO), Ok(())]
        );
        assert_eq!([&there, &here].map(|file| crate::declared(file).unwrap().is_read_only), [true, false]);
        let recording = machine.recording();
        for seed in 0..20 {
            let left = recording.cut(Cut { position: recording.events.len(), choice: Choice::Seed(seed) });
            let files = left.files();
            assert!(files[Path::new("m/a")].is_some_and(|bytes| bytes.starts_with(b"one")), "{files:?}");
            assert_eq!(files[Path::new("b")], Some(&b"four"[..]));
        }
        let lost = recording.pending_before(recording.events.len());
        assert_eq!(lost, 1, "what came after it was synced");
    }

    #[test]
    fn what_a_sync_of_all_has_forgotten_the_next_of_the_file_tells() {
        let machine = Machine::new().unwrap();
        let [written, synced] = ["a", "b"].map(|name| {
            let file = crate::open(machine.path().join(name), NEW, Mode::RUSR | Mode::WUSR).unwrap();
            crate::write_all(&file, b"one").unwrap();
            file
        });
        crate::fsync(&synced).unwrap();
        machine.set_faults(Faults { fail_syncs: vec![2], ..Faults::default() });
        assert_eq!(crate::syncfs(&written), Err(Errno::IO));
        assert_eq!([crate::fsync(&synced), crate::fsync(&written)], [Ok(()), Err(Errno::IO)]);
        assert_eq!([crate::fsync(&written), crate::syncfs(&written)], [Ok(()), Ok(())], "once");
    }

    #[test]
    fn what_lies_in_bad_sectors_cannot_be_read_and_all_else_can() {
        let machine = Machine::new().unwrap();
        let flags = NEW.difference(OFlags::WRONLY) | OFlags::RDWR;
        let file = crate::open(machine.path().join("f"), flags, Mode::RUSR | Mode::WUSR).unwrap();
        crate::write_all(&file, b"good bad good").unwrap();
        let read = |offset: u64, len: usize| crate::pread(&file, &mut vec![0; len], offset);
        assert_eq!(read(0, 20), Ok(13));
        machine.set_faults(Faults { bad_sectors: Some(b"bad".to_vec()), ..Faults::default() });
        assert_eq!([read(0, 20), read(5, 3), read(0, 7), read(8, 20)], [Err(Errno::IO), Err(Errno::IO), Ok(7), Ok(5)]);
        machine.set_faults(Faults::default());
        assert_eq!(read(0, 20), Ok(13));
    }

    #[test]
    fn a_file_system_is_synced_alone_and_no_link_crosses_it() {
        let machine = Machine::boot(&Tree::with_mounts(&["mail/a"]), true, true).unwrap();
        let (there, here) = (machine.path().join("mail/a"), machine.path().join("mail"));
        for dir in [&there, &here] {
            let file = crate::open(dir.join("f"), NEW, Mode::RUSR | Mode::WUSR).unwrap();
            crate::write_all(&file, b"one").unwrap();
        }
        let (inner, outer) = (File::open(&there).unwrap(), File::open(&here).unwrap());
        assert_eq!(crate::linkat(&outer, "f", &inner, "g", AtFlags::empty()), Err(Errno::XDEV));
        assert_eq!(crate::rename(there.join("f"), here.join("g")), Err(Errno::XDEV));
        assert_eq!(crate::rename(&there, here.join("b")), Err(Errno::BUSY));
        assert_ne!(crate::declared(&inner).unwrap().device, crate::declared(&outer).unwrap().device);
        let left = || {
            let recording = machine.recording();
            let cut = Cut { position: recording.events.len(), choice: Choice::Bits(0) };
            recording.cut(cut).files().into_keys().filter(|path| path.ends_with("f")).collect::<Vec<_>>()
        };
        crate::syncfs(&inner).unwrap();
        assert_eq!(left(), [Path::new("mail/a/f")]);
        crate::fsync(&inner).unwrap();
        assert_eq!(left(), [Path::new("mail/a/f")], "its log of names is its own");
        crate::fsync(&outer).unwrap();
        assert_eq!(left(), [Path::new("mail/a/f"), Path::new("mail/f")]);
    }
}
