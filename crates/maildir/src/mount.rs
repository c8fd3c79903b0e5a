//! A mounted file system: the guarantees of its `syncfs`, and a descriptor to call it on.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use posthaste_fsops::Declared;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags};

/// `statfs` magic numbers of the file systems whose `syncfs` waits for data and names and reports errors.
const EXT4: u64 = 0xEF53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683E;
const TMPFS: u64 = 0x0102_1994;
const OVERLAYFS: u64 = 0x794C_7630;
const F2FS: u64 = 0xF2F5_2010;
/// File systems without another machine that changes them.
const LOCAL: [u64; 6] = [EXT4, XFS, BTRFS, TMPFS, OVERLAYFS, F2FS];

/// Durability properties of a mounted file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountFacts {
    /// Device number of its files (`st_dev`).
    pub device: u64,
    /// `statfs`'s type number.
    pub fs_type: u64,
    /// True if a successful `syncfs` proves that everything written is on stable storage: ext4, XFS or btrfs, on Linux
    /// 5.17 or later. Earlier kernels lose the error of the file system's own `sync_fs`. Elsewhere each file and
    /// directory is fsynced.
    pub syncfs_trusted: bool,
    /// True if changes of names reach the disk in order, so that an fsync makes all earlier ones durable too, as with
    /// the logs of ext4 and XFS.
    pub ordered_log: bool,
    /// True for ext2, and for ext4 not known to have a journal: `syncfs` writes names after its flush of the disk's
    /// cache.
    pub lacks_journal: bool,
}

impl MountFacts {
    /// Determines the properties of the file system of `fd`.
    ///
    /// # Errors
    /// Errors of `fstat` and `fstatfs`.
    pub fn of(fd: impl AsFd) -> io::Result<Self> {
        let device = rustix::fs::fstat(&fd)?.st_dev;
        let fs_type = rustix::fs::fstatfs(&fd)?.f_type as u64 & 0xFFFF_FFFF;
        if let Some(Declared { device, syncfs_trusted, ordered_log, .. }) = posthaste_fsops::declared(&fd) {
            return Ok(Self { device, fs_type, syncfs_trusted, ordered_log, lacks_journal: false });
        }
        let known = matches!(fs_type, EXT4 | XFS | BTRFS);
        let lacks_journal = fs_type == EXT4 && !has_journal_once(device, rustix::fs::fstatvfs(&fd)?.f_fsid);
        Ok(Self {
            device,
            fs_type,
            syncfs_trusted: known && kernel_reports_syncfs_errors(),
            ordered_log: matches!(fs_type, EXT4 | XFS) && !lacks_journal,
            lacks_journal,
        })
    }
}

/// True if the file system is known to keep times to a tick of the kernel's clock.
pub(crate) fn keeps_precise_times(fd: impl AsFd) -> io::Result<bool> {
    Ok(matches!(rustix::fs::fstatfs(fd)?.f_type as u64 & 0xFFFF_FFFF, EXT4 | XFS | BTRFS))
}

/// True if the file system is known to change through this machine's kernel alone, so that inotify(7) tells of each change.
pub(crate) fn is_local(fd: impl AsFd) -> io::Result<bool> {
    Ok(LOCAL.contains(&(rustix::fs::fstatfs(fd)?.f_type as u64 & 0xFFFF_FFFF)))
}

/// Like [`has_journal`], looked up once for each file system, since opening a mailbox takes no longer than the look-up.
fn has_journal_once(device: u64, fsid: u64) -> bool {
    static KNOWN: Mutex<BTreeMap<(u64, u64), bool>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry((device, fsid)).or_insert_with(|| has_journal(Path::new("/sys"), device))
}

/// True if sysfs shows a journal for the ext4 on this device. ext2 has the same type number and shows none.
fn has_journal(sys: &Path, device: u64) -> bool {
    let place = sys.join(format!("dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device)));
    let Ok(target) = std::fs::read_link(place) else { return false };
    let Some(name) = target.file_name() else { return false };
    std::fs::read_to_string(sys.join("fs/ext4").join(name).join("journal_task"))
        .is_ok_and(|task| task.trim() != "<none>")
}

fn kernel_reports_syncfs_errors() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let uname = rustix::system::uname();
        release_at_least(&uname.release().to_string_lossy(), (5, 17))
    })
}

fn release_at_least(release: &str, least: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    (next(), next()) >= least
}

/// A descriptor for `syncfs` on one mount.
///
/// The kernel reports a writeback error once to each descriptor, and only errors after it was opened. So open it
/// before the first write that it covers, and give it to *one* owner. Of two threads that share it, only one would
/// see an error that concerns both. After an error, drop it and open another.
#[derive(Debug)]
pub struct Mount {
    descriptor: OwnedFd,
    facts: MountFacts,
}

impl AsFd for Mount {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Mount {
    /// Opens a separate descriptor on the file system of `dir`, which must be a readable directory.
    ///
    /// # Errors
    /// Errors of `open`, `fstat` and `fstatfs`.
    pub fn of_dir(dir: impl AsFd) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(dir, ".", flags, Mode::empty())?;
        let facts = MountFacts::of(&descriptor)?;
        Ok(Self { descriptor, facts })
    }

    /// Durability properties of the file system.
    pub fn facts(&self) -> MountFacts {
        self.facts
    }

    /// Makes everything that was written to this mount before the call durable: data, names, directories.
    ///
    /// # Errors
    /// Final for all that was written since the last success: a second call may return 0 for pages that the kernel has
    /// already dropped. `ReadOnlyFilesystem` when the mount has become read-only (ext4 does so after an error in its
    /// log), as there may be nothing left to sync. `Unsupported` where `syncfs` is not to be trusted.
    pub fn sync(&self) -> io::Result<()> {
        if !self.facts.syncfs_trusted {
            return Err(io::ErrorKind::Unsupported.into());
        }
        posthaste_fsops::syncfs(&self.descriptor)?;
        if self.facts.lacks_journal {
            posthaste_fsops::fsync(&self.descriptor)?;
        }
        let is_read_only = match posthaste_fsops::declared(&self.descriptor) {
            Some(declared) => declared.is_read_only,
            None => rustix::fs::fstatvfs(&self.descriptor)?.f_flag.contains(StatVfsMountFlags::RDONLY),
        };
        if is_read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use posthaste_fsops::{FsEvent, Machine, SyncScope, Tree};

    use super::*;

    #[test]
    fn without_a_journal_a_sync_ends_with_a_flush() {
        let machine = Machine::boot(&Tree::default(), true, false).unwrap();
        let dir = std::fs::File::open(machine.path()).unwrap();
        let mut mount = Mount::of_dir(&dir).unwrap();
        mount.sync().unwrap();
        let before = machine.recording().events.len();
        mount.facts.lacks_journal = true;
        mount.sync().unwrap();
        let events = &machine.recording().events[before..];
        assert!(
            matches!(events, [FsEvent::Sync(SyncScope::FileSystem(_)), FsEvent::Sync(SyncScope::Node(_))]),
            "{events:?}"
        );
    }

    #[test]
    fn an_ext4_has_a_journal_if_the_kernel_says_so() {
        let sys = tempfile::tempdir().unwrap();
        let (device, place) = (rustix::fs::makedev(8, 1), sys.path().join("fs/ext4/sda1"));
        assert!(!has_journal(sys.path(), device));
        std::fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        std::os::unix::fs::symlink("../../devices/pci/block/sda/sda1", sys.path().join("dev/block/8:1")).unwrap();
        assert!(!has_journal(sys.path(), device), "ext2 by its own driver says nothing");
        std::fs::create_dir_all(&place).unwrap();
        for (task, expected) in [("317\n", true), ("<none>\n", false)] {
            std::fs::write(place.join("journal_task"), task).unwrap();
            assert_eq!(has_journal(sys.path(), device), expected, "{task}");
        }
    }

    #[test]
    fn kernel_releases_compare_by_number() {
        for (release, expected) in [
            ("5.16.20-generic", false),
            ("5.17.0", true),
            ("5.17-rc1", true),
            ("6.1.0-13-amd64", true),
            ("10.0", true),
            ("4.19.0", false),
            ("nonsense", false),
        ] {
            assert_eq!(release_at_least(release, (5, 17)), expected, "{release}");
        }
    }
}
