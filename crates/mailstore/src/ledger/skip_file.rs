//! Counts how often UIDs were skipped. Its file is beside the table's directory, so that it survives a lost table.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;

fn path_of(dir: &Path) -> PathBuf {
    dir.with_extension("skipped")
}

/// The number stored for the table in `dir`; `None` without a file.
///
/// # Errors
/// Errors of reading; [`InvalidData`](io::ErrorKind::InvalidData) if it is damaged.
pub(super) fn read(dir: &Path) -> io::Result<Option<u32>> {
    let path = path_of(dir);
    match std::fs::read(&path) {
        Ok(bytes) => match posthaste_fsops::checked(&bytes).and_then(|text| text.trim_end().parse().ok()) {
            Some(skip) => Ok(Some(skip)),
            None => {
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged: remove it", path.display())))
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the number durable.
///
/// # Errors
/// Errors of writing and syncing.
pub(super) fn write(dir: &Path, skip: u32) -> io::Result<()> {
    let text = posthaste_fsops::with_checksum(format!("{skip}\n"));
    Ok(posthaste_fsops::replace_file(&path_of(dir), Mode::RUSR | Mode::WUSR, text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_which_a_bit_is_flipped_is_told() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("mailstore");
        assert_eq!(read(&dir).unwrap(), None);
        write(&dir, 17).unwrap();
        assert_eq!(read(&dir).unwrap(), Some(17));
        let whole = std::fs::read(path_of(&dir)).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(path_of(&dir), bytes).unwrap();
            let error = read(&dir).unwrap_err();
            assert!(error.to_string().ends_with("mailstore.skipped is damaged: remove it"), "{bit}: {error}");
        }
    }
}
