//! File systems mounted below a directory, from the kernel's table: no I/O on a mount that may hang.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Mount points below a directory, as relative paths. Those that are not UTF-8 are left out.
///
/// # Errors
/// An error of resolving the directory's path or of reading `/proc/self/mountinfo`.
pub fn mounts_below(root: &Path) -> io::Result<Vec<String>> {
    let root = resolved(root)?;
    let all = match posthaste_fsops::mounts_below(&root) {
        Some(declared) => declared,
        None => parse(&std::fs::read("/proc/self/mountinfo")?),
    };
    let below = all.iter().filter_map(|point| point.strip_prefix(&root).ok()?.to_str());
    Ok(below.filter(|point| !point.is_empty()).map(str::to_owned).collect())
}

/// Resolves a directory's symbolic links. A missing one, because its disk is not mounted, keeps its name.
///
/// # Errors
/// An error of resolving the path.
pub fn resolved(root: &Path) -> io::Result<PathBuf> {
    match root.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => std::path::absolute(root),
        found => found,
    }
}

/// Parses the fifth field of each line, in which spaces and the like are octal.
fn parse(mountinfo: &[u8]) -> Vec<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.map(|point| OsString::from_vec(unescaped(point)).into()).collect()
}

fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| first == b'\\');
        let byte = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        out.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &behind[3..] } else { behind };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read_with_its_escapes() {
        let table = b"36 35 98:0 /mnt1 /srv/my\\040mail\\134x rw,noatime master:1 - ext4 /dev/sda rw\n\
            37 35 0:42 / /srv/other rw - tmpfs tmpfs rw\n";
        assert_eq!(parse(table), [PathBuf::from("/srv/my mail\\x"), PathBuf::from("/srv/other")]);
        assert!(parse(&std::fs::read("/proc/self/mountinfo").unwrap()).contains(&PathBuf::from("/")));
    }
}
