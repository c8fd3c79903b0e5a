//! The block devices under a file system, and callbacks for failed syncs.
//!
//! A device that returns EIO to one sync may have dropped cached writes of others, which get no error. So code that
//! relies on a device [watches](watch) it: every [`fsync`](crate::fsync), [`fdatasync`](crate::fdatasync) and
//! [`syncfs`](crate::syncfs) of the process that fails there with EIO is reported before its caller sees the error.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// The devices under a file system, as far as the kernel tells.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Devices {
    /// The disks of a file system.
    Disks(BTreeSet<String>),
    /// No disk of this machine: a network file system, or memory. With the device number of its files.
    None(u64),
    /// The disks are unknown.
    Unknown,
}

type Tell = dyn Fn(&str) + Send + Sync;

struct Watcher {
    number: u64,
    devices: Devices,
    tell: Arc<Tell>,
}

#[derive(Default)]
struct Watchers {
    last: u64,
    all: Vec<Watcher>,
}

static WATCHERS: Mutex<Watchers> = Mutex::new(Watchers { last: 0, all: Vec::new() });

fn watchers() -> MutexGuard<'static, Watchers> {
    WATCHERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A watch of devices, until it is dropped.
#[derive(Debug)]
pub struct DeviceWatch(u64);

impl Drop for DeviceWatch {
    fn drop(&mut self) {
        let ended = {
            let mut watchers = watchers();
            let at = watchers.all.iter().position(|watcher| watcher.number == self.0);
            at.map(|at| watchers.all.swap_remove(at))
        };
        // What it holds may end on its own, and with it other watches.
        drop(ended);
    }
}

/// Calls `tell` with a description of each sync that fails with EIO on a device under the file system of `fd`: on the
/// caller's thread, before that call returns. An unknown device counts as the same.
pub fn watch(fd: impl AsFd, tell: impl Fn(&str) + Send + Sync + 'static) -> DeviceWatch {
    let devices = Devices::of(fd);
    let mut watchers = watchers();
    watchers.last += 1;
    let number = watchers.last;
    watchers.all.push(Watcher { number, devices, tell: Arc::new(tell) });
    DeviceWatch(number)
}

/// Hands on the outcome of a sync of `fd`.
pub(crate) fn told(fd: impl AsFd, call: &str, outcome: rustix::io::Result<()>) -> rustix::io::Result<()> {
    if outcome == Err(Errno::IO) {
        let devices = Devices::of(&fd);
        let is_concerned = |watcher: &&Watcher| watcher.devices.may_share(&devices);
        let concerned: Vec<_> =
            watchers().all.iter().filter(is_concerned).map(|watcher| watcher.tell.clone()).collect();
        if !concerned.is_empty() {
            let file = fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()));
            let file = file.map_or_else(|_| "a file".to_owned(), |path| path.display().to_string());
            let what = format!("{call} of {file}: {}", Errno::IO);
            concerned.iter().for_each(|tell| tell(&what));
        }
    }
    outcome
}

impl Devices {
    fn of(fd: impl AsFd) -> Self {
        if let Some(declared) = crate::declared(&fd) {
            return Devices::Disks([format!("{} of machine {}", declared.device, declared.life)].into());
        }
        let (Ok(stat), Ok(statfs)) = (rustix::fs::fstat(&fd), rustix::fs::fstatfs(&fd)) else {
            return Devices::Unknown;
        };
        if NO_DISK.contains(&(statfs.f_type as u64 & 0xFFFF_FFFF)) {
            return Devices::None(stat.st_dev);
        }
        let sys = Path::new("/sys");
        let device = match rustix::fs::major(stat.st_dev) {
            // btrfs and others show numbers of their own; the table of mounts names a device.
            0 => mounted_device(fd),
            _ => Some(stat.st_dev),
        };
        device.map_or(Devices::Unknown, |device| disks_of(sys, device))
    }

    fn may_share(&self, other: &Self) -> bool {
        match (self, other) {
            (Devices::Disks(some), Devices::Disks(others)) => !some.is_disjoint(others),
            (Devices::None(one), Devices::None(other)) => one == other,
            (Devices::None(_), _) | (_, Devices::None(_)) => false,
            (Devices::Unknown, _) | (_, Devices::Unknown) => true,
        }
    }
}

/// The device that the table of mounts names for the file system of `fd`.
fn mounted_device(fd: impl AsFd) -> Option<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd())).ok()?;
    let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let source = source_of(&table, mount)?;
    let stat = rustix::fs::stat(&source).ok()?;
    (rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::BlockDevice).then_some(stat.st_rdev)
}

/// Finds a mount's source in the lines of proc_pid_mountinfo(5).
fn source_of(table: &str, mount: &str) -> Option<PathBuf> {
    let line = table.lines().find(|line| line.split(' ').next() == Some(mount))?;
    let (_, behind) = line.split_once(" - ")?;
    behind.split(' ').nth(1).filter(|source| source.starts_with('/')).map(PathBuf::from)
}

/// The physical disks under a block device: the disk of a partition, the parts of a mapped device or an array, all
/// devices of a btrfs.
fn disks_of(sys: &Path, device: u64) -> Devices {
    let place = sys.join(format!("dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device)));
    let Ok(place) = fs::canonicalize(place) else { return Devices::Unknown };
    let mut disks = BTreeSet::new();
    let mut places = vec![place.clone()];
    let name = place.file_name();
    // /sys/fs/btrfs/UUID/devices has a link for each device.
    for uuid in entries(&sys.join("fs/btrfs")) {
        let members = entries(&uuid.join("devices"));
        if members.iter().any(|member| member.file_name() == name) {
            places.extend(members.iter().filter_map(|member| fs::canonicalize(member).ok()));
        }
    }
    let mut looked_at = 0;
    while let Some(place) = places.pop() {
        looked_at += 1;
        if looked_at > PLACES_MAX {
            return Devices::Unknown;
        }
        let below: Vec<_> =
            entries(&place.join("slaves")).iter().filter_map(|one| fs::canonicalize(one).ok()).collect();
        if !below.is_empty() {
            places.extend(below);
            continue;
        }
        let disk = if place.join("partition").exists() { place.parent() } else { Some(&*place) };
        let name = disk.and_then(Path::file_name);
        disks.extend(name.map(|name| name.to_string_lossy().into_owned()));
    }
    Devices::Disks(disks)
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

/// `statfs` type numbers of NFS, SMB (two), CIFS, Ceph, 9P, AFS, FUSE, tmpfs and ramfs.
const NO_DISK: [u64; 10] = [
    0x6969,
    0xFE53_4D42,
    0x517B,
    0xFF53_4D42,
    0x00C3_6400,
    0x0102_1997,
    0x5346_414F,
    0x6573_5546,
    0x0102_1994,
    0x8584_58F6,
];
/// A limit deeper than any stack of devices, which has no cycles.
const PLACES_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn disks(names: &[&str]) -> Devices {
        Devices::Disks(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn partitions_maps_arrays_and_btrfs_lead_to_whole_disks() {
        let sys = tempfile::tempdir().unwrap();
        let sys = sys.path();
        let block = sys.join("devices/block");
        for place in ["sda/sda1", "sda/sda2", "sdb", "dm-0/slaves", "md0/slaves"] {
            fs::create_dir_all(block.join(place)).unwrap();
        }
        for part in ["sda/sda1", "sda/sda2"] {
            fs::write(block.join(part).join("partition"), "1\n").unwrap();
        }
        symlink(block.join("sda/sda2"), block.join("dm-0/slaves/sda2")).unwrap();
        symlink(block.join("dm-0"), block.join("md0/slaves/dm-0")).unwrap();
        symlink(block.join("sdb"), block.join("md0/slaves/sdb")).unwrap();
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        for (number, place) in [("8:1", "sda/sda1"), ("8:16", "sdb"), ("253:0", "dm-0"), ("9:0", "md0")] {
            symlink(block.join(place), sys.join("dev/block").join(number)).unwrap();
        }
        let of = |major, minor| disks_of(sys, rustix::fs::makedev(major, minor));
        assert_eq!([of(8, 1), of(8, 16)], [disks(&["sda"]), disks(&["sdb"])]);
        assert_eq!([of(253, 0), of(9, 0)], [disks(&["sda"]), disks(&["sda", "sdb"])]);
        assert_eq!(of(8, 99), Devices::Unknown);
        let members = sys.join("fs/btrfs/some-uuid/devices");
        fs::create_dir_all(&members).unwrap();
        symlink(block.join("sdb"), members.join("sdb")).unwrap();
        symlink(block.join("sda/sda2"), members.join("sda2")).unwrap();
        assert_eq!(of(8, 16), disks(&["sda", "sdb"]));
    }

    #[test]
    fn what_nobody_knows_counts_as_the_same() {
        let (a, b, both) = (disks(&["a"]), disks(&["b"]), disks(&["a", "b"]));
        assert!(a.may_share(&both) && a.may_share(&a) && !a.may_share(&b));
        assert!(a.may_share(&Devices::Unknown) && Devices::Unknown.may_share(&Devices::Unknown));
        assert!(!Devices::None(1).may_share(&a) && !Devices::Unknown.may_share(&Devices::None(1)));
        assert!(Devices::None(1).may_share(&Devices::None(1)) && !Devices::None(1).may_share(&Devices::None(2)));
    }

    #[test]
    fn the_table_of_mounts_names_the_source() {
        let table =
            "22 1 0:21 / /proc rw shared:1 - proc proc rw\n36 35 0:46 /sub /mail rw - btrfs /dev/sdb1 rw,subvol=/sub\n";
        assert_eq!(source_of(table, "36"), Some("/dev/sdb1".into()));
        assert_eq!([source_of(table, "22"), source_of(table, "2")], [None, None]);
    }
}
