//! Free space of a file system, and the part that is kept free.

use std::io;
use std::path::Path;

use crate::calls;

/// Free bytes and inodes of a file system, or a share of these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes.
    pub bytes: u64,
    /// Free inodes; `u64::MAX` if the file system makes them on demand.
    pub inodes: u64,
}

impl Space {
    /// More than any file system has.
    pub const MAX: Space = Space { bytes: u64::MAX, inodes: u64::MAX };

    /// Free space of the file system that contains a file or directory. Blocks while that hangs.
    ///
    /// # Errors
    /// See statvfs(3).
    pub fn of(path: &Path) -> io::Result<Self> {
        let space = calls::statvfs(path)?;
        // btrfs and others make inodes as they are needed, and say that there are none.
        let inodes = if space.f_files == 0 { u64::MAX } else { space.f_favail };
        Ok(Space { bytes: space.f_bavail.saturating_mul(space.f_frsize), inodes })
    }

    /// True if both values are at least as large.
    pub fn covers(self, other: Space) -> bool {
        self.bytes >= other.bytes && self.inodes >= other.inodes
    }

    /// The difference of both; zero instead of a negative value.
    pub fn less(self, other: Space) -> Space {
        Space { bytes: self.bytes.saturating_sub(other.bytes), inodes: self.inodes.saturating_sub(other.inodes) }
    }
}

#[cfg(all(test, feature = "record"))]
mod tests {
    use super::*;
    use crate::{Machine, Tree};

    #[test]
    fn declared_space_is_for_machines_and_real_space_for_others() {
        let machine = Machine::boot(&Tree::with_mounts(&["small"]), true, false).unwrap();
        let small = machine.path().join("small");
        let declared = Space { bytes: 5, inodes: 7 };
        machine.set_space(&small, declared);
        crate::mkdir(small.join("dir"), rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(Space::of(&small.join("dir")).unwrap(), declared);
        assert_eq!(Space::of(machine.path()).unwrap(), Space::MAX);
        machine.set_disk(&small, 100);
        let left = || Space::of(&small).unwrap().bytes;
        std::fs::write(small.join("dir/file"), [0; 30]).unwrap();
        std::fs::hard_link(small.join("dir/file"), small.join("same")).unwrap();
        assert_eq!(left(), 70);
        std::fs::write(small.join("dir/file"), [0; 300]).unwrap();
        assert_eq!(left(), 0);
        let real = Space::of(Path::new("/proc")).unwrap();
        assert!(real != declared && Space::of(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn space_covers_another_if_it_has_enough_of_both() {
        let space = |bytes, inodes| Space { bytes, inodes };
        assert!(space(2, 2).covers(space(2, 2)));
        assert!(!space(9, 1).covers(space(2, 2)) && !space(1, 9).covers(space(2, 2)));
        assert_eq!(space(5, 1).less(space(2, 2)), space(3, 0));
    }
}
