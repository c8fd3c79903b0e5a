//! Writes that are repeated until all is written.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use crate::{pwritev, writev};

/// Writes all of `bytes` at the file's position.
///
/// # Errors
/// See write(2).
pub fn write_all(fd: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    write_all_parts(fd, &mut [IoSlice::new(bytes)], None)
}

/// Writes all parts in order, at `offset` or at the file's position, and repeats short writes.
///
/// # Errors
/// See writev(2) and pwritev(2).
pub fn write_all_parts(fd: impl AsFd, mut parts: &mut [IoSlice<'_>], mut offset: Option<u64>) -> io::Result<()> {
    // Empty parts in front are gone from here on, so that 0 means that nothing more can be written.
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        let now = &parts[..parts.len().min(PARTS_AT_ONCE_MAX)];
        let written = rustix::io::retry_on_intr(|| match offset {
            Some(offset) => pwritev(fd.as_fd(), now, offset),
            None => writev(fd.as_fd(), now),
        })?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        offset = offset.map(|offset| offset + written as u64);
        IoSlice::advance_slices(&mut parts, written);
    }
    Ok(())
}

/// Linux's limit of parts in one call (UIO_MAXIOV).
pub const PARTS_AT_ONCE_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn many_parts_and_empty_ones_arrive_in_order() {
        let mut numbers: Vec<String> =
            (0..5000).map(|n| if n % 7 == 0 { String::new() } else { format!("{n} ") }).collect();
        numbers.extend(vec![String::new(); 2000]);
        let (mut reader, writer) = std::io::pipe().unwrap();
        let writing = std::thread::spawn({
            let numbers = numbers.clone();
            move || {
                let mut parts: Vec<IoSlice<'_>> = numbers.iter().map(|n| IoSlice::new(n.as_bytes())).collect();
                write_all_parts(&writer, &mut parts, None)
            }
        });
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        writing.join().unwrap().unwrap();
        assert_eq!(read, numbers.concat());
    }
}
