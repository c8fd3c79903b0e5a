//! Sessions of the page cache.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags};

/// Identifies a session of the page cache: while the tag stays the same, anything written to the mail root is still
/// there, synced or not. The machine was not restarted and the file system not remounted in between.
///
/// A tag is the kernel's boot id and the mount's unique id, which is never reused within a boot (Linux 6.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionTag(pub [u8; TAG_BYTES]);

pub(crate) const TAG_BYTES: usize = 24;

impl SessionTag {
    /// The current tag of a directory. If the kernel cannot tell, one that equals no other: mail is then looked for
    /// instead of trusted.
    ///
    /// # Errors
    /// An error of opening the directory or of getting random bytes.
    pub fn of(dir: &Path) -> std::io::Result<Self> {
        let mut tag = [0; TAG_BYTES];
        if let Some(declared) = posthaste_fsops::declared(std::fs::File::open(dir)?) {
            tag[16..].copy_from_slice(&declared.life.to_be_bytes());
            return Ok(SessionTag(tag));
        }
        match (boot_id(), mount_id(dir)) {
            (Some(boot), Some(mount)) => {
                tag[..16].copy_from_slice(&boot.to_be_bytes());
                tag[16..].copy_from_slice(&mount.to_be_bytes());
            }
            _ => {
                rustix::rand::getrandom(&mut tag, rustix::rand::GetRandomFlags::empty())?;
            }
        }
        Ok(SessionTag(tag))
    }
}

fn boot_id() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}

fn mount_id(dir: &Path) -> Option<u64> {
    let unique = StatxFlags::from_bits_retain(STATX_MNT_ID_UNIQUE);
    let answer = rustix::fs::statx(CWD, dir, AtFlags::empty(), unique).ok()?;
    (answer.stx_mask & STATX_MNT_ID_UNIQUE != 0).then_some(answer.stx_mnt_id)
}

/// From `linux/stat.h`; rustix has no name for it yet.
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_of_a_mount_stays_and_that_of_another_differs() {
        let here = SessionTag::of(Path::new("/")).unwrap();
        let kernel_knows = mount_id(Path::new("/")).is_some();
        assert_eq!(here == SessionTag::of(Path::new("/")).unwrap(), kernel_knows);
        assert_ne!(here, SessionTag::of(Path::new("/proc")).unwrap());
    }
}
