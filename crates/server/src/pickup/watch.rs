//! Tells when a file came into the directory (inotify(7)).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// One directory, by the inode that it had.
#[derive(Debug)]
pub(super) struct Watch {
    /// `None`: the kernel has no room for one more, or no inotify.
    fd: Option<AsyncFd<OwnedFd>>,
    is_gone: bool,
}

impl Watch {
    /// Begins to watch, if the kernel can (`fs.inotify.max_user_instances`). Needs the runtime.
    ///
    /// # Errors
    /// There is no such directory.
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
                let (dir, error) = (dir.display().to_string(), error.to_string());
                tracing::warn!(dir, error, "cannot watch the pickup directory: its mail is found within a minute");
                Ok(Self { fd: None, is_gone: false })
            }
        }
    }

    /// Whether the directory was removed or moved away.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Waits for something to happen; whether a message may have come. Nothing is lost if the future is dropped.
    pub async fn changed(&mut self) -> bool {
        let Some(fd) = &mut self.fd else { return std::future::pending().await };
        let Ok(mut ready) = fd.readable_mut().await else {
            self.is_gone = true;
            return true;
        };
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = Reader::new(ready.get_inner(), &mut buffer);
        let mut came = false;
        loop {
            match reader.next() {
                Ok(event) => {
                    let flags = event.events();
                    let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT;
                    self.is_gone |= flags.intersects(gone);
                    // One that is being written is renamed when it is whole.
                    let is_message = event.file_name().is_some_and(|name| !name.to_bytes().starts_with(b"."));
                    came |= is_message || flags.contains(ReadFlags::QUEUE_OVERFLOW);
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
