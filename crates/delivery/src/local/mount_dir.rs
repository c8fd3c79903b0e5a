//! The directory of a mail mount. Finds the right file system there, and notices if another one is in its place or the
//! right one returns.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use posthaste_maildir::{MailRoot, Mount, MountFacts};

use super::common::Common;
use super::identity::{Marker, MountId};
use super::mounts::{MountPoints, stream_of};
use crate::seams::Step;
use crate::session::SessionTag;

/// Facts about a mount that has answered.
pub(crate) struct FoundMount {
    pub session: SessionTag,
    pub facts: MountFacts,
    /// Opened together with the mount's descriptor. Not shared with other mounts: its lock is held during I/O.
    pub root: MailRoot,
    /// Device and inode of the directory.
    at: (u64, u64),
}

/// The directory of one mount. Its lock is never held during I/O.
pub(crate) struct MountDir {
    path: PathBuf,
    /// Its path below the mail root; empty for the root itself.
    point: Arc<str>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    found: Option<Arc<FoundMount>>,
    unbound: Option<Arc<str>>,
    /// Set while the path leads elsewhere: the time of the last check, and what is there.
    missing: Option<(Instant, Arc<str>)>,
    has_returned: bool,
}

impl MountDir {
    pub fn new(root_path: &Path, point: Arc<str>) -> Self {
        let path = if point.is_empty() { root_path.to_owned() } else { root_path.join(&*point) };
        MountDir { path, point, known: Mutex::default() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn point(&self) -> &Arc<str> {
        &self.point
    }

    /// Finds the file system that the mount is bound to, or binds the mount to the present one, and opens a descriptor
    /// for syncs. Called before any write to it. Blocks while it hangs.
    ///
    /// # Errors
    /// `NotFound` if nothing or another file system is mounted there; errors of opening it.
    pub fn find(&self, common: &Common) -> io::Result<(SessionTag, Mount)> {
        common.seams.pass(Step::Mount(&self.point))?;
        // By the kernel's table, which is right even if the same file system is mounted twice.
        if !MountPoints::below(&common.root_path)?.iter().any(|point| *point == self.point) {
            return Err(self.not_mounted());
        }
        let expected = common.bound.get(&self.point);
        let dir = match (File::open(&self.path), expected) {
            (Err(error), Some(expected)) if error.kind() == io::ErrorKind::NotFound => {
                return Err(self.is_another(expected, &"no directory", common));
            }
            (opened, _) => opened?,
        };
        let mut unbound = None;
        if let Some(expected) = expected {
            match (Marker::read(&dir)?, expected) {
                (Marker::Is(found), Some(expected)) if found == expected => {}
                (Marker::Is(found), None) => common.bound.bind(&self.point, found)?,
                (found, _) => return Err(self.is_another(expected, &found, common)),
            }
        } else {
            // Deliverable mail must not wait for this lock.
            let made = Marker::make(&dir).and_then(|id| common.bound.bind(&self.point, id));
            unbound = made.err().map(|error| error.to_string().into());
        }
        let root = MailRoot::open(&common.root_path)?.with_owners(common.owners.clone());
        let session = SessionTag::of(&self.path)?;
        let mount = Mount::of_dir(&dir)?;
        let metadata = dir.metadata()?;
        let found = FoundMount { session, facts: mount.facts(), root, at: (metadata.dev(), metadata.ino()) };
        // Checks that the path did not change during the opening.
        self.leads_to(&found)?;
        let mut known = self.known();
        (known.found, known.unbound) = (Some(Arc::new(found)), unbound);
        Ok((session, mount))
    }

    /// The facts found so far.
    ///
    /// # Errors
    /// `NotFound`: the mount has not been found so far.
    pub fn found(&self) -> io::Result<Arc<FoundMount>> {
        self.known().found.clone().ok_or_else(|| self.not_mounted())
    }

    /// Checks the mount before anything new is opened there: nothing may be made in the directory hidden below it, or
    /// on another file system.
    ///
    /// # Errors
    /// `NotFound`: its path leads elsewhere.
    pub fn check(&self, mount: &FoundMount, now: Instant) -> io::Result<()> {
        let led = self.leads_to(mount);
        let mut known = self.known();
        match &led {
            Ok(()) => known.has_returned |= known.missing.take().is_some(),
            Err(error) => known.missing = Some((now, error.to_string().into())),
        }
        led
    }

    /// True if the mount was missing at the last check, which was at least a second ago.
    pub fn is_look_due(&self, now: Instant) -> bool {
        let is_old = |(since, _): &(Instant, _)| now.saturating_duration_since(*since) >= LOOK_PAUSE;
        self.known().missing.as_ref().is_some_and(is_old)
    }

    /// Checks if the mount is back.
    pub fn look_again(&self, now: Instant) {
        if let Ok(found) = self.found() {
            // `missing` keeps the error.
            let _ = self.check(&found, now);
        }
    }

    /// True if the mount has come back since the last call.
    pub fn take_return(&self) -> bool {
        std::mem::take(&mut self.known().has_returned)
    }

    /// Describes what is at the mount's path instead; `None` if it is not missing.
    pub fn missing(&self) -> Option<Arc<str>> {
        self.known().missing.as_ref().map(|(_, what)| what.clone())
    }

    /// The reason why the mount is not bound to its file system; `None` if it is.
    pub fn unbound(&self) -> Option<Arc<str>> {
        self.known().unbound.clone()
    }

    fn leads_to(&self, mount: &FoundMount) -> io::Result<()> {
        match std::fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == mount.at => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => {
                let path = self.path.display();
                let what = format!(
                    "{path} leads to another file system or directory than at the start: mount the right one again. If the right one was only remounted, restart the server"
                );
                Err(io::Error::new(io::ErrorKind::NotFound, what))
            }
        }
    }

    fn is_another(&self, expected: Option<MountId>, found: &dyn std::fmt::Display, common: &Common) -> io::Error {
        let path = self.path.display();
        let spool = common.bound.spool().display();
        let stream = stream_of(&self.point);
        let expected = expected.map_or_else(|| "any, as the list of ids was lost".to_owned(), |id| id.to_string());
        let what = format!(
            "{path} is not the file system that mail was delivered to before: expected id {expected}, found {found}. Mount the right one; if this one takes its place, \
             stop the server and run `posthaste spool accept-mount {spool} '{stream}'`"
        );
        io::Error::new(io::ErrorKind::NotFound, what)
    }

    fn not_mounted(&self) -> io::Error {
        io::Error::new(io::ErrorKind::NotFound, format!("no file system is mounted at {}", self.path.display()))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no thread panics while it holds what is known of a mount")
    }
}

const LOOK_PAUSE: Duration = Duration::from_secs(1);
