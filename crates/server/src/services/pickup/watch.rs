//! Reports new files in the directory (inotify(7)).

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// A watched directory, with its inode at that time.
#[derive(Debug)]
pub(super) struct Watch {
    /// `None` if inotify is unavailable.
    fd: Option<AsyncFd<OwnedFd>>,
    is_gone: bool,
}

/// Events since the last time.
#[derive(Debug, Default)]
pub(super) struct Came {
    /// Messages, by their names.
    pub names: Vec<OsString>,
    /// True if there are more than reported: a scan finds them.
    pub more: bool,
}

impl Watch {
    /// Starts a watch, if possible (`fs.inotify.max_user_instances`). Needs the runtime.
    ///
    /// # Errors
    /// The directory is missing.
    pub fn new(dir: &Path) -> io::Result<Self> {
        let begin = || {
            let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            let own = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
            inotify::add_watch(&fd, dir, WatchFlags::MOVED_TO | WatchFlags::CREATE | own)?;
            Ok(fd)
        };
        match begin() {
            Ok(fd) => Ok(Self { fd: Some(registered(fd)?), is_gone: false }),
            Err(error @ (Errno::NOENT | Errno::NOTDIR)) => Err(error.into()),
            Err(error) => {
                let dir = dir.display().to_string();
                let error = error.to_string();
                tracing::warn!(dir, error, "cannot watch the pickup directory: its mail is found within a minute");
                Ok(Self { fd: None, is_gone: false })
            }
        }
    }

    /// True if the directory was removed or moved away.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Waits for an event. Dropping the future loses nothing.
    pub async fn changed(&mut self) -> Came {
        let Some(fd) = &mut self.fd else { return std::future::pending().await };
        let Ok(mut ready) = fd.readable_mut().await else {
            self.is_gone = true;
            return Came::default();
        };
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = Reader::new(ready.get_inner(), &mut buffer);
        let mut came = Came::default();
        loop {
            match reader.next() {
                Ok(event) => {
                    let flags = event.events();
                    let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT;
                    self.is_gone |= flags.intersects(gone);
                    // One that is being written is renamed when it is whole.
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    let message = name.filter(|name| !name.as_bytes().starts_with(b"."));
                    match message {
                        Some(_) if came.names.len() == NAMES_MAX => came.more = true,
                        message => came.names.extend(message.map(OsStr::to_owned)),
                    }
                    came.more |= flags.contains(ReadFlags::QUEUE_OVERFLOW);
                }
                Err(Errno::WOULDBLOCK) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.is_gone = true;
                    break;
                }
            }
        }
        ready.clear_ready();
        came
    }
}

#[allow(deprecated, reason = "it is deprecated for types whose descriptor may change; an owned one does not")]
fn registered(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(fd)
}

/// Maximum names reported at once.
const NAMES_MAX: usize = if cfg!(test) { 100 } else { 10_000 };

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_of_whole_files_are_told_and_too_many_are_told_as_more() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(dir.path()).unwrap();
        assert!(watch.fd.is_some(), "this machine has no inotify left");
        let put = |name: &str| std::fs::write(dir.path().join(name), "x").unwrap();
        [".unfinished", "one", ".other"].into_iter().for_each(put);
        std::fs::rename(dir.path().join(".other"), dir.path().join("two")).unwrap();
        let came = watch.changed().await;
        assert_eq!((came.names, came.more), (vec!["one".into(), "two".into()], false));
        (0..=NAMES_MAX).for_each(|number| put(&number.to_string()));
        let came = watch.changed().await;
        assert_eq!((came.names.len(), came.more, watch.is_gone()), (NAMES_MAX, true, false));
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert_eq!(watch.changed().await.names, [""; 0]);
        assert!(watch.is_gone());
    }
}
