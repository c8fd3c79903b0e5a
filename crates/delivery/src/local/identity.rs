//! The file system that a mail mount's stream is bound to.
//!
//! A file at the top of the mount holds a random id, made at first use; the spool's directory records the id. Device
//! numbers change with a restart, and XFS derives file system ids (`f_fsid`) from them, so neither identifies a disk. A
//! copy of a disk contains the file, too, so it may replace the original.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use posthaste_spool::Damage;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::mounts::{point_of, stream_of};

/// The random id of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountId(u128);

impl std::fmt::Display for MountId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// State of the identity file in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marker {
    Missing,
    /// A file of that name exists, not written by this program.
    Unreadable,
    Is(MountId),
}

impl std::fmt::Display for Marker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Marker::Missing => f.write_str("none"),
            Marker::Unreadable => f.write_str("one that cannot be read"),
            Marker::Is(id) => id.fmt(f),
        }
    }
}

impl MountId {
    /// A random id.
    fn new() -> Self {
        // Keyed with the system's random bytes at each `new`.
        let half = || u128::from(RandomState::new().hash_one(0));
        MountId(half() << 64 | half())
    }

    fn parse(text: &str) -> Option<Self> {
        let is_id = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u128::from_str_radix(text, 16).ok().filter(|_| is_id).map(MountId)
    }
}

impl Marker {
    /// Reads the file in a directory.
    ///
    /// # Errors
    /// An error of opening or reading the file.
    pub fn read(dir: impl AsFd) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&dir, MARKER, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Marker::Missing),
            Err(Errno::LOOP) => return Ok(Marker::Unreadable),
            opened => File::from(opened?),
        };
        if !file.metadata()?.is_file() {
            return Ok(Marker::Unreadable);
        }
        let mut text = Vec::new();
        file.take(MARKER_BYTES_MAX).read_to_end(&mut text)?;
        let first = std::str::from_utf8(&text).ok().and_then(|text| text.strip_prefix(PREFIX)?.split_once('\n'));
        Ok(first.and_then(|(id, _)| MountId::parse(id)).map_or(Marker::Unreadable, Marker::Is))
    }

    /// The id of a directory's file system; makes one if needed. Durable on return.
    ///
    /// # Errors
    /// An error of writing it; `AlreadyExists` if another file has its name.
    pub fn make(dir: impl AsFd) -> io::Result<MountId> {
        match Marker::read(&dir)? {
            Marker::Is(id) => {
                // Its writer may have been killed before the syncs.
                posthaste_fsops::fsync(rustix::fs::openat(
                    &dir,
                    MARKER,
                    OFlags::RDONLY | OFlags::CLOEXEC,
                    Mode::empty(),
                )?)?;
                posthaste_fsops::fsync(&dir)?;
                Ok(id)
            }
            Marker::Unreadable => {
                Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{MARKER} is not a mail mount's id")))
            }
            Marker::Missing => {
                let id = MountId::new();
                write_whole(&dir, MARKER, format!("{PREFIX}{id}\n{EXPLANATION}").as_bytes())?;
                Ok(id)
            }
        }
    }
}

/// The file systems that the streams of a spool are bound to.
#[derive(Debug)]
pub struct BoundMounts {
    spool: PathBuf,
    // By mount point below the mail root. `None`: both lists were lost, and the mount has not shown its id so far.
    ids: Mutex<BTreeMap<Arc<str>, Option<MountId>>>,
}

/// Content of the two files.
struct FoundLists {
    /// The bound ids; `None` if neither file is intact, and at least one exists.
    ids: Option<BTreeMap<Arc<str>, Option<MountId>>>,
    /// Damaged or unreadable files, each with the fault.
    spoiled: Vec<(&'static str, String)>,
}

impl FoundLists {
    /// # Errors
    /// A read error, if neither file is whole and the disk has not failed.
    fn read(spool: &Path) -> io::Result<Self> {
        let mut ids = None;
        let mut spoiled = Vec::new();
        let mut failed = None;
        for name in BOUND {
            match std::fs::read(spool.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    spoiled.push((name, format!("it cannot be read ({error})")));
                    failed = Some(error).filter(|error| !posthaste_fsops::is_of_disk(error)).or(failed);
                }
                Ok(bytes) => match parse(&bytes) {
                    Some(found) => drop(ids.get_or_insert(found)),
                    None => spoiled.push((name, "it is damaged".to_owned())),
                },
            }
        }
        match failed {
            Some(failed) if ids.is_none() => Err(failed),
            _ if spoiled.is_empty() => Ok(FoundLists { ids: Some(ids.unwrap_or_default()), spoiled }),
            _ => Ok(FoundLists { ids, spoiled }),
        }
    }
}

impl BoundMounts {
    /// Reads the lists of the spool in this directory; empty without a file. One missing, damaged or unreadable file is
    /// harmless while the other is intact.
    ///
    /// # Errors
    /// A read error; `InvalidData` if neither file is whole and at least one exists.
    pub fn read(spool: &Path) -> io::Result<Self> {
        match FoundLists::read(spool)?.ids {
            Some(ids) => Ok(BoundMounts { spool: spool.to_owned(), ids: Mutex::new(ids) }),
            None => {
                let [first, second] = BOUND;
                let what = format!(
                    "neither {first} nor {second} in the spool can be read: the next start of the server makes them anew from the ids that the mounts have"
                );
                Err(io::Error::new(io::ErrorKind::InvalidData, what))
            }
        }
    }

    /// Like [`read`](Self::read), for the owner of the spool: rewrites damaged or unreadable files, and reports them.
    /// If neither is whole, the ids of these streams are unknown until their mounts show them.
    ///
    /// # Errors
    /// A read error, if the disk has not failed.
    pub(crate) fn open<'a>(spool: &Path, streams: impl Iterator<Item = &'a str>) -> io::Result<(Self, Vec<Damage>)> {
        let FoundLists { ids, spoiled } = FoundLists::read(spool)?;
        let is_lost = ids.is_none();
        let ids = ids.unwrap_or_else(|| streams.filter_map(point_of).map(|point| (Arc::from(point), None)).collect());
        let bound = BoundMounts { spool: spool.to_owned(), ids: Mutex::new(ids) };
        if spoiled.is_empty() {
            return Ok((bound, Vec::new()));
        }
        let written = bound.write(&bound.ids());
        let left = written.err().map(|error| format!("; cannot rewrite it now: {error}")).unwrap_or_default();
        let counts = if is_lost {
            "neither list of mail mounts is whole: each mount tells its id again, and `posthaste spool accept-mount` accepts one without an id"
        } else {
            "the other list of mail mounts counts"
        };
        let told = |(name, why): (&str, String)| Damage {
            lsn: None,
            place: name.to_owned(),
            what: format!("{why}; {counts}{left}"),
        };
        Ok((bound, spoiled.into_iter().map(told).collect()))
    }

    /// The streams with the ids of their file systems; `None`: unknown.
    pub fn streams(&self) -> Vec<(String, Option<MountId>)> {
        self.ids().iter().map(|(point, id)| (stream_of(point), *id)).collect()
    }

    /// Unbinds a stream: it takes the file system found at the next start. False: it was not bound. Call it only while
    /// nobody else has the spool open.
    ///
    /// # Errors
    /// An error of writing the file.
    pub fn unbind(&self, stream: &str) -> io::Result<bool> {
        let Some(point) = point_of(stream) else { return Ok(false) };
        self.change(|ids| ids.remove(point).is_some())
    }

    pub(crate) fn spool(&self) -> &Path {
        &self.spool
    }

    /// `None`: it is not bound; `Some(None)`: bound to an unknown file system.
    pub(crate) fn get(&self, point: &str) -> Option<Option<MountId>> {
        self.ids().get(point).copied()
    }

    /// Binds a stream. Durable on return.
    pub(crate) fn bind(&self, point: &Arc<str>, id: MountId) -> io::Result<()> {
        if point.contains('\n') {
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, "its path has a line break"));
        }
        self.change(|ids| ids.insert(point.clone(), Some(id)) != Some(Some(id))).map(drop)
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<Arc<str>, Option<MountId>>) -> bool) -> io::Result<bool> {
        let mut ids = self.ids();
        let mut changed = ids.clone();
        if !change(&mut changed) {
            return Ok(false);
        }
        self.write(&changed)?;
        *ids = changed;
        Ok(true)
    }

    /// Content of each file. `None`: an empty list needs no file.
    pub fn text(&self) -> Option<String> {
        let ids = self.ids();
        (!ids.is_empty()).then(|| text_of(&ids))
    }

    fn write(&self, ids: &BTreeMap<Arc<str>, Option<MountId>>) -> io::Result<()> {
        let text = text_of(ids);
        BOUND.iter().try_for_each(|name| write_whole(File::open(&self.spool)?, name, text.as_bytes()))
    }

    fn ids(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Option<MountId>>> {
        self.ids.lock().expect("no thread panics while it holds the ids of mounts")
    }
}

fn text_of(ids: &BTreeMap<Arc<str>, Option<MountId>>) -> String {
    let row = |(point, id): (&Arc<str>, &Option<MountId>)| match id {
        Some(id) => format!("{id} {point}\n"),
        None => format!("{UNKNOWN} {point}\n"),
    };
    posthaste_fsops::with_checksum(ids.iter().map(row).collect())
}

/// The rows of a whole file.
fn parse(bytes: &[u8]) -> Option<BTreeMap<Arc<str>, Option<MountId>>> {
    let row = |line: &str| {
        let (id, point) = line.split_once(' ')?;
        let id = if id == UNKNOWN { None } else { Some(MountId::parse(id)?) };
        Some((Arc::from(point), id))
    };
    posthaste_fsops::checked(bytes)?.lines().map(row).collect()
}

/// Replaces a file as a whole, or leaves the old one. Durable on return.
fn write_whole(dir: impl AsFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = format!("{name}.new");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = posthaste_fsops::openat(&dir, &*unfinished, flags, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)?;
    let written = posthaste_fsops::write_all(&file, bytes)
        .and_then(|()| Ok(posthaste_fsops::fsync(&file)?))
        .and_then(|()| Ok(posthaste_fsops::renameat(&dir, &*unfinished, &dir, name)?));
    if written.is_err() {
        let _ = posthaste_fsops::unlinkat(&dir, &*unfinished, AtFlags::empty());
    }
    written?;
    Ok(posthaste_fsops::fsync(&dir)?)
}

/// Name of the identity file at the top of a mail mount.
pub(crate) const MARKER: &str = ".posthaste-mount";
const PREFIX: &str = "posthaste-mount ";
const EXPLANATION: &str = "Posthaste delivers mail to this file system because it finds this file here. Keep it, also in copies of the mail.\n";
/// The two equal files in the spool's directory, written one after the other.
const BOUND: [&str; 2] = ["mounts", "mounts.copy"];
/// Text in place of an unknown id.
const UNKNOWN: &str = "unknown";
const MARKER_BYTES_MAX: u64 = 1024;

#[cfg(test)]
mod tests {
    use posthaste_fsops::{Choice, Cut, Machine, Tree};

    use super::*;

    fn dir(path: &Path) -> File {
        File::open(path).expect("a directory")
    }

    #[test]
    fn a_file_system_gets_an_id_once_and_keeps_it() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert_eq!(Marker::read(dir(one.path())).unwrap(), Marker::Missing);
        let id = Marker::make(dir(one.path())).unwrap();
        assert_eq!(Marker::make(dir(one.path())).unwrap(), id);
        assert_eq!(Marker::read(dir(one.path())).unwrap(), Marker::Is(id));
        assert_ne!(Marker::make(dir(other.path())).unwrap(), id);
        assert_eq!(std::fs::read_dir(one.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_id_is_none_and_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(MARKER);
        for text in [
            "",
            "posthaste-mount \n",
            "posthaste-mount +0000000000000000000000000000001\n",
            "posthaste-mount 1",
            "mine\n",
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(Marker::read(dir(place.path())).unwrap(), Marker::Unreadable, "{text}");
            assert!(Marker::make(dir(place.path())).is_err());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!(Marker::read(dir(place.path())).unwrap(), Marker::Unreadable);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(Marker::read(dir(place.path())).unwrap(), Marker::Unreadable);
    }

    #[test]
    fn streams_stay_bound_until_they_are_unbound() {
        let place = tempfile::tempdir().unwrap();
        let (one, other) = (MountId(1), MountId::new());
        let bound = BoundMounts::read(place.path()).unwrap();
        bound.bind(&"".into(), one).unwrap();
        bound.bind(&"my mail/x".into(), other).unwrap();
        assert!(bound.bind(&"a\nb".into(), other).is_err());
        let again = BoundMounts::read(place.path()).unwrap();
        assert_eq!(again.streams(), [("local:".to_owned(), Some(one)), ("local:my mail/x".to_owned(), Some(other))]);
        assert_eq!(
            [again.unbind("local:").unwrap(), again.unbind("local:").unwrap(), again.unbind("events").unwrap()],
            [true, false, false]
        );
        let last = BoundMounts::read(place.path()).unwrap();
        assert_eq!((last.get(""), last.get("my mail/x")), (None, Some(Some(other))));
        let [first, second] = BOUND.map(|name| place.path().join(name));
        let whole = std::fs::read(&first).unwrap();
        for path in [&first, &second] {
            let cut = (0..whole.len()).map(|len| whole[..len].to_vec());
            let flipped = (0..whole.len() * 8).map(|bit| {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            });
            let no_id = posthaste_fsops::with_checksum("1 \n".to_owned()).into_bytes();
            for bytes in cut.chain(flipped).chain([no_id]) {
                std::fs::write(path, bytes).unwrap();
                let read = BoundMounts::read(place.path()).unwrap();
                assert_eq!((read.get(""), read.get("my mail/x")), (None, Some(Some(other))));
            }
            std::fs::remove_file(path).unwrap();
            assert_eq!(BoundMounts::read(place.path()).unwrap().get("my mail/x"), Some(Some(other)));
            std::fs::write(path, &whole).unwrap();
        }
        std::fs::write(&first, "").unwrap();
        std::fs::remove_file(&second).unwrap();
        assert_eq!(BoundMounts::read(place.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::fs::remove_file(&first).unwrap();
        assert_eq!(BoundMounts::read(place.path()).unwrap().get("my mail/x"), None);
    }

    #[test]
    fn a_list_that_cannot_be_read_is_written_anew_from_the_other() {
        let place = tempfile::tempdir().unwrap();
        let id = MountId::new();
        BoundMounts::read(place.path()).unwrap().bind(&"x".into(), id).unwrap();
        let whole = std::fs::read(place.path().join(BOUND[0])).unwrap();
        for name in BOUND {
            let path = place.path().join(name);
            let spoil: [&dyn Fn(); 2] = [&|| std::fs::write(&path, "x").unwrap(), &|| {
                std::fs::remove_file(&path).unwrap();
                // Reading it ends with EIO.
                std::os::unix::fs::symlink("/proc/self/mem", &path).unwrap();
            }];
            for spoil in spoil {
                spoil();
                assert_eq!(BoundMounts::read(place.path()).unwrap().get("x"), Some(Some(id)));
                let (bound, told) = BoundMounts::open(place.path(), ["local:x"].into_iter()).unwrap();
                assert_eq!((bound.get("x"), told.len(), told[0].place.as_str()), (Some(Some(id)), 1, name));
                assert_eq!(std::fs::read(&path).unwrap(), whole);
                assert_eq!(BoundMounts::open(place.path(), std::iter::empty()).unwrap().1, []);
            }
        }
    }

    #[test]
    fn without_both_lists_each_stream_is_bound_to_something_unknown() {
        let place = tempfile::tempdir().unwrap();
        let streams = || ["local:", "queue", "local:x"].into_iter();
        let (none, told) = BoundMounts::open(place.path(), streams()).unwrap();
        assert!(none.streams().is_empty() && told.is_empty(), "a new spool has no list");
        BOUND.iter().for_each(|name| std::os::unix::fs::symlink("/proc/self/mem", place.path().join(name)).unwrap());
        assert_eq!(BoundMounts::read(place.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let (bound, told) = BoundMounts::open(place.path(), streams()).unwrap();
        assert_eq!(told.len(), 2);
        assert_eq!(bound.streams(), [("local:".to_owned(), None), ("local:x".to_owned(), None)]);
        let again = BoundMounts::read(place.path()).unwrap();
        assert_eq!((again.get(""), again.get("x"), again.get("y")), (Some(None), Some(None), None));
        again.bind(&"x".into(), MountId(7)).unwrap();
        assert!(again.unbind("local:").unwrap());
        assert_eq!(BoundMounts::read(place.path()).unwrap().streams(), [("local:x".to_owned(), Some(MountId(7)))]);
    }

    /// Otherwise a power cut would leave a mount stuck.
    #[test]
    fn the_recorded_identity_is_on_the_mount_after_any_cut() {
        let machine = Machine::boot(&Tree::with_mounts(&["mail", "spool"]), true, false).unwrap();
        let id = Marker::make(dir(&machine.path().join("mail"))).unwrap();
        BoundMounts::read(&machine.path().join("spool")).unwrap().bind(&"".into(), id).unwrap();
        let recording = machine.recording();
        let mut bound = 0;
        for (position, seed) in
            (0..=recording.events.len()).flat_map(|position| (0..20).map(move |seed| (position, seed)))
        {
            let left = recording.cut(Cut { position, choice: Choice::Seed(seed) });
            let left = Machine::boot(&left, true, false).unwrap();
            if BoundMounts::read(&left.path().join("spool")).unwrap().get("").is_some() {
                bound += 1;
                assert_eq!(Marker::read(dir(&left.path().join("mail"))).unwrap(), Marker::Is(id), "{position} {seed}");
            }
        }
        assert!(bound >= 20, "{bound}");
    }
}
