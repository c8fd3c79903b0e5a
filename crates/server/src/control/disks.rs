//! Free space of the server's file systems, checked without waiting for a hanging disk.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use posthaste_admin::{Attention, DiskRoom, Urgency};

use posthaste_config::Storage;

/// A file system, when it was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileSystem {
    pub device: u64,
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// Number of files that can still be made; `None` if unlimited.
    pub free_inodes: Option<u64>,
}

impl FileSystem {
    /// Blocks, even for long.
    fn of(path: &Path) -> io::Result<Self> {
        let (found, disk) = (std::fs::metadata(path)?, rustix::fs::statvfs(path)?);
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        Ok(Self {
            device: found.dev(),
            free_bytes: bytes(disk.f_bavail),
            total_bytes: bytes(disk.f_blocks),
            free_inodes: (disk.f_files > 0).then_some(disk.f_favail),
        })
    }
}

type Look = Arc<dyn Fn(&Path) -> io::Result<FileSystem> + Send + Sync>;

/// The directories of a server, each with the state of its disk.
pub(crate) struct Disks {
    look: Look,
    places: Arc<Places>,
}

struct Places {
    each: [Place; 3],
    looks: Mutex<[Looks; 3]>,
    /// Notified when a check has ended.
    ended: Condvar,
}

struct Place {
    holds: &'static str,
    path: PathBuf,
}

#[derive(Debug, Clone, Copy, Default)]
struct Looks {
    /// Start of the check on which a thread waits. One at a time, so that a hanging disk blocks one thread.
    running: Option<Instant>,
    found: Option<FileSystem>,
}

/// Results of a check of all disks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskReport {
    /// Each file system once, with its directories; without those that do not answer.
    pub rooms: Vec<DiskRoom>,
    /// Warnings about disks that do not answer.
    pub attention: Vec<Attention>,
    /// The spool's file system, at its last answer.
    pub spool: Option<FileSystem>,
}

/// Timeout for all disks together.
const PATIENCE: Duration = Duration::from_millis(500);

impl Disks {
    /// The disks that a configuration names.
    pub fn of(storage: &Storage) -> Self {
        Self::with(storage, Arc::new(FileSystem::of))
    }

    fn with(storage: &Storage, look: Look) -> Self {
        let place = |holds, path: &PathBuf| Place { holds, path: path.clone() };
        let each = [place("spool", &storage.spool), place("mail", &storage.mail), place("data", &storage.data)];
        Self { look, places: Arc::new(Places { each, looks: Mutex::default(), ended: Condvar::new() }) }
    }

    /// Checks all disks, and waits briefly for their answers. Blocks for [`PATIENCE`] at most.
    pub fn report(&self) -> DiskReport {
        let begun = Instant::now();
        for index in 0..self.places.each.len() {
            self.begin_look(index, begun);
        }
        let looks = self.places.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let is_running = |looks: &mut [Looks; 3]| looks.iter().any(|of_place| of_place.running.is_some());
        let waited = self.places.ended.wait_timeout_while(looks, PATIENCE, is_running);
        let looks = *waited.unwrap_or_else(PoisonError::into_inner).0;
        report(self.places.each.iter().zip(looks))
    }

    fn begin_look(&self, index: usize, now: Instant) {
        let mut looks = self.places.lock();
        if looks[index].running.is_some() {
            return;
        }
        let (look, places) = (Arc::clone(&self.look), Arc::clone(&self.places));
        let ask = move || {
            let found = look(&places.each[index].path).ok();
            places.lock()[index] = Looks { running: None, found };
            places.ended.notify_all();
        };
        // Without a thread there is no look, and the last one counts.
        if std::thread::Builder::new().name("disk".to_owned()).spawn(ask).is_ok() {
            looks[index].running = Some(now);
        }
    }
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, [Looks; 3]> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report<'a>(places: impl Iterator<Item = (&'a Place, Looks)>) -> DiskReport {
    let mut report = DiskReport::default();
    let mut devices: Vec<u64> = Vec::new();
    for (place, Looks { running, found }) in places {
        let holds = place.holds;
        if holds == "spool" {
            report.spool = found;
        }
        if running.is_some() {
            let what = format!("the disk of {} ({holds}) does not answer", place.path.display());
            let help = "look at the disk or the mount: what uses it waits";
            report.attention.push(Attention::new(Urgency::Broken, &format!("disk of {holds}"), what, help));
            continue;
        }
        let Some(FileSystem { device, free_bytes, total_bytes, .. }) = found else { continue };
        match devices.iter().position(|known| *known == device) {
            Some(index) => {
                let room = &mut report.rooms[index];
                room.holds = format!("{}, {holds}", room.holds);
            }
            None => {
                devices.push(device);
                report.rooms.push(DiskRoom { holds: holds.to_owned(), free_bytes, total_bytes });
            }
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    fn storage() -> Storage {
        let (spool, mail, data) = ("/s".into(), "/m".into(), "/d".into());
        Storage { spool, mail, data, ..posthaste_config::Config::default().storage }
    }

    fn file_system(device: u64) -> FileSystem {
        FileSystem { device, free_bytes: 5, total_bytes: 10, free_inodes: None }
    }

    #[test]
    fn each_file_system_is_told_once() {
        let look = |path: &Path| match path.to_str().unwrap() {
            "/m" => Ok(file_system(2)),
            _ => Ok(file_system(1)),
        };
        let report = Disks::with(&storage(), Arc::new(look)).report();
        let holds: Vec<_> = report.rooms.iter().map(|room| room.holds.as_str()).collect();
        assert_eq!(
            (holds, report.attention.len(), report.spool),
            (vec!["spool, data", "mail"], 0, Some(file_system(1)))
        );
        let gone = Disks::with(&storage(), Arc::new(|_: &Path| Err(io::ErrorKind::NotFound.into()))).report();
        assert_eq!(gone, DiskReport::default());
    }

    #[test]
    fn a_disk_that_hangs_is_told_and_holds_one_thread() {
        let (release, hang) = channel::<()>();
        let (hang, asked) = (Mutex::new(hang), Arc::new(AtomicU32::new(0)));
        let of_look = Arc::clone(&asked);
        let look = move |path: &Path| {
            if path == Path::new("/m") {
                of_look.fetch_add(1, Ordering::Relaxed);
                let _ = hang.lock().unwrap().recv();
            }
            Ok(file_system(1))
        };
        let disks = Disks::with(&storage(), Arc::new(look));
        for _ in 0..3 {
            let report = disks.report();
            assert_eq!(report.rooms.len(), 1);
            assert_eq!(report.rooms[0].holds, "spool, data");
            assert_eq!(report.attention[0].what, "the disk of /m (mail) does not answer");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        drop(release);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !disks.report().attention.is_empty() {
            assert!(Instant::now() < deadline);
        }
    }
}
