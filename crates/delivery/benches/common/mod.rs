//! Where the benchmarks of this crate keep their data, and what they send.

use std::path::PathBuf;

use posthaste_maildir::MailRoot;

const TMPFS_MAGIC: u64 = 0x0102_1994;

/// 64 bodies of printable text in lines, from a fixed seed.
pub fn bodies(bytes: usize) -> Vec<Vec<u8>> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut octet = |at| if at % 72 == 71 { b'\n' } else { b' ' + (next() % 95) as u8 };
    (0..64).map(|_| (0..bytes).map(&mut octet).collect()).collect()
}

/// A directory that is removed at the end, and whose subdirectories lie far apart on the disk where the file system can
/// do that. ext4 does not use an inode again for minutes after its file was removed, and looks at all such inodes each
/// time it makes a file near them: a run close to what an earlier one removed was up to ten times as slow.
pub fn scratch() -> std::io::Result<tempfile::TempDir> {
    use rustix::fs::{IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags, open};
    let base = tempfile::tempdir_in(bench_dir())?;
    let dir = open(base.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    // A file system without such a flag has no need of it.
    let _ = ioctl_getflags(&dir).and_then(|flags| ioctl_setflags(&dir, flags | IFlags::TOPDIR));
    Ok(base)
}

fn bench_dir() -> PathBuf {
    let base = std::env::var_os("POSTHASTE_BENCH_DIR").map_or_else(
        || {
            let program = std::env::current_exe().expect("this program has a path");
            program.ancestors().nth(2).expect("it lies in the target directory").to_owned()
        },
        PathBuf::from,
    );
    let root = MailRoot::open(&base).expect("the bench directory opens");
    assert_ne!(root.facts().fs_type, TMPFS_MAGIC, "{base:?} is in memory: set POSTHASTE_BENCH_DIR to a disk");
    base
}
