//! The first LSN of each opening.

use std::io;
use std::path::Path;

use crate::codec::{seal, unseal};
use crate::files;

/// Name of the file in the store's directory with the first LSN of the last opening.
pub(crate) const NEXT: &str = "next";
/// An opening begins at a multiple of this.
pub(crate) const STEP: u64 = 1 << 12;
/// Gap between the highest LSN recorded elsewhere and the first of a replacement spool.
const SEEN_GAP: u64 = 1 << 32;
/// More LSNs than are ever assigned between two checkpoints.
pub(super) const LOST_MAX: u64 = 1 << 32;

/// Creates the directory of a new store. Durable on return.
///
/// # Errors
/// Errors of writing.
pub(crate) fn begin(dir: &Path) -> io::Result<()> {
    posthaste_fsops::make_dir(dir)?;
    write(dir, 0)
}

/// The first LSN of an opening, recorded durably on return. A failed sync may leave records in the page cache only:
/// visible now, lost after a power cut, with no other trace of their LSNs. LSNs of an opening are less than a group
/// above its first one, or above a durable one.
pub(super) fn reserve(dir: &Path, known: u64, seen: u64) -> io::Result<u64> {
    let reserved = match std::fs::read(dir.join(NEXT)) {
        Err(error) if posthaste_fsops::is_of_disk(&error) => 0,
        read => unseal(&read?).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?))).unwrap_or(0),
    };
    let next = next_lsn(known.max(reserved), seen);
    write(dir, next)?;
    Ok(next)
}

fn write(dir: &Path, next: u64) -> io::Result<()> {
    Ok(posthaste_fsops::replace_file(&dir.join(NEXT), files::OWNER, &seal(next.to_le_bytes().to_vec()))?)
}

/// Computes the first LSN of an opening from the highest LSN recorded here (`known`) and elsewhere (`seen`).
fn next_lsn(known: u64, seen: u64) -> u64 {
    let next = if known == 0 { 1 } else { (known / STEP + 2) * STEP };
    if seen < next { next } else { (seen / STEP + 2) * STEP + SEEN_GAP }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::groups::shared::GROUP_MAX;

    #[test]
    fn no_opening_begins_where_another_did() {
        let dir = tempfile::tempdir().unwrap();
        let mut before = 0;
        for known in [0, 0, 0, 5, 5, 100_000, 100_000] {
            let next = reserve(dir.path(), known, 0).unwrap();
            assert!(next > known && (before == 0 || next >= before + STEP), "{next} after {before}");
            before = next;
        }
        std::fs::write(dir.path().join(NEXT), b"damaged").unwrap();
        assert_eq!(reserve(dir.path(), 77, 0).unwrap(), 2 * STEP);
    }

    #[test]
    fn an_opening_begins_above_all_that_a_group_may_have_left() {
        assert_eq!((next_lsn(0, 0), next_lsn(1, 0), next_lsn(4095, 0)), (1, 8192, 8192));
        for known in [1, 77, 4095, 4096, 1 << 40] {
            assert!(next_lsn(known, 0) > known + GROUP_MAX as u64);
            assert_eq!(next_lsn(known, 0), next_lsn(known, known));
            assert!(next_lsn(known, known + (1 << 20)) > known + (1 << 32));
        }
    }
}
