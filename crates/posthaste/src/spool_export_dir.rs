//! The directory of an export. While it contains `manifest.new` but not `manifest`, the export is unfinished and may be
//! restarted.

use std::fs::File;
use std::io;
use std::path::Path;

use posthaste_fsops::unfinished;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::new_file::new_dir;
use crate::spool_manifest::{MANIFEST, MOUNTS, SNAPSHOTS, STREAMS};

/// Makes the directory of an export, or removes the remains of an interrupted one. Returns the file of the future
/// manifest: empty, locked and with the name of an unfinished one.
///
/// # Errors
/// `AlreadyExists` if the directory has other files; `WouldBlock` while another export uses it; errors of creating it.
pub fn begin(dir: &Path) -> io::Result<File> {
    match new_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
        made => made?,
    }
    may_begin(dir)?;
    let mark = unfinished(&dir.join(MANIFEST));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(mark, flags, Mode::RUSR | Mode::WUSR)?);
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => io::Error::new(io::ErrorKind::WouldBlock, "another export works there"),
        error => error.into(),
    })?;
    // The other export may have ended meanwhile.
    for name in may_begin(dir)? {
        let path = dir.join(name);
        if path.is_dir() { std::fs::remove_dir_all(path)? } else { std::fs::remove_file(path)? }
    }
    file.set_len(0)?;
    File::open(dir)?.sync_all()?;
    Ok(file)
}

/// Files of an unfinished export.
///
/// # Errors
/// `AlreadyExists` if the directory has other files.
fn may_begin(dir: &Path) -> io::Result<Vec<String>> {
    let names = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<String>>>()?;
    let exists = |what: String| Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    let mark = format!("{MANIFEST}.new");
    let is_unfinished = names.contains(&mark);
    names.retain(|name| *name != mark);
    if names.iter().any(|name| name == MANIFEST) {
        return exists("a finished export is in this directory: name another one".to_owned());
    }
    match names.iter().find(|name| !is_unfinished || !is_of_export(name)) {
        Some(other) => {
            exists(format!("the directory has files of something other than an unfinished export, such as {other}"))
        }
        None => Ok(names),
    }
}

fn is_of_export(name: &str) -> bool {
    let stem = name.strip_suffix(".json").or_else(|| name.strip_suffix(".body"));
    [STREAMS, SNAPSHOTS, MOUNTS].contains(&name)
        || stem.is_some_and(|stem| stem.len() == 20 && stem.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_what_an_unfinished_export_has_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join("new").join(name);
        let kind = || begin(&at("")).map(drop).map_err(|error| error.kind());
        let begun = begin(&at("")).unwrap();
        assert_eq!(std::fs::metadata(at("")).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(kind(), Err(io::ErrorKind::WouldBlock), "one at a time");
        drop(begun);
        std::fs::write(at("00000000000000000001.body"), "x").unwrap();
        std::fs::create_dir(at(SNAPSHOTS)).unwrap();
        std::fs::write(at("snapshots/a"), "x").unwrap();
        std::fs::write(at("notes"), "x").unwrap();
        assert_eq!(kind(), Err(io::ErrorKind::AlreadyExists), "a file of somebody else");
        assert!(at("snapshots/a").exists());
        std::fs::remove_file(at("notes")).unwrap();
        assert_eq!(kind(), Ok(()));
        assert_eq!(std::fs::read_dir(at("")).unwrap().count(), 1);
        std::fs::rename(at("manifest.new"), at(MANIFEST)).unwrap();
        assert_eq!(kind(), Err(io::ErrorKind::AlreadyExists), "a finished one");
        std::fs::remove_file(at(MANIFEST)).unwrap();
        assert_eq!(kind(), Ok(()), "cut short between directory and mark");
        std::fs::remove_file(at("manifest.new")).unwrap();
        std::fs::write(at(STREAMS), "x").unwrap();
        assert_eq!(kind(), Err(io::ErrorKind::AlreadyExists), "no export has begun it");
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(begin(&dir.path().join("file")).is_err());
    }
}
