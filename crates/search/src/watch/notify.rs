//! Notifications of names that come, go or change in directories (inotify(7)).

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use posthaste_maildir::KEYWORDS_FILE;
use posthaste_maildir::tree::MailTree;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Bytes of events read at once.
const BUFFER_BYTES: usize = 64 << 10;

/// An event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event<'a> {
    /// A name in `new/` or `cur/` of the folder in `dir` has changed.
    Name { dir: &'a Path, name: &'a str },
    /// A directory came, went or was moved, or the kernel's queue overflowed: everything has to be compared.
    Look,
    /// Another writer waits for the index.
    WaitingWriter,
}

#[derive(Debug)]
enum Place {
    /// `new/` or `cur/` of the folder in this directory.
    Messages(PathBuf),
    /// Any other directory of a tree.
    Directory,
    WaitingWriter,
}

pub(super) struct Notify {
    fd: OwnedFd,
    places: HashMap<i32, Place>,
    /// Directories beyond the kernel's limit.
    unwatched: usize,
}

impl Notify {
    pub fn new() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self { fd, places: HashMap::new(), unwatched: 0 })
    }

    pub fn watch_turn(&mut self, file: &Path) -> io::Result<()> {
        let number = inotify::add_watch(&self.fd, file, WatchFlags::MODIFY)?;
        self.places.insert(number, Place::WaitingWriter);
        Ok(())
    }

    /// Watches every directory of a tree. True if one of them was not watched yet.
    pub fn watch_tree(&mut self, tree: &MailTree) -> bool {
        let before = self.places.len();
        let mut unwatched = 0;
        let came = WatchFlags::CREATE | WatchFlags::MOVED_TO;
        let went = WatchFlags::DELETE | WatchFlags::MOVED_FROM;
        let own = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        for dir in &tree.directories {
            unwatched += usize::from(!self.add(dir, came | went | own, Place::Directory));
        }
        for folder in &tree.folders {
            for (sub, stamp) in [("new", folder.new), ("cur", folder.cur)] {
                if stamp.is_some() {
                    // A program that writes in place is done when it closes the file.
                    let flags = came | went | own | WatchFlags::CLOSE_WRITE;
                    unwatched +=
                        usize::from(!self.add(&folder.dir.join(sub), flags, Place::Messages(folder.dir.clone())));
                }
            }
        }
        self.unwatched += unwatched;
        self.places.len() > before
    }

    /// Resets the count, before all trees are watched again.
    pub fn forget_unwatched(&mut self) {
        self.unwatched = 0;
    }

    /// Directories of all trees that could not be watched.
    pub fn unwatched(&self) -> usize {
        self.unwatched
    }

    /// Adds a watch. False if the kernel has none left (`fs.inotify.max_user_watches`); a directory already removed
    /// counts as watched.
    fn add(&mut self, dir: &Path, flags: WatchFlags, place: Place) -> bool {
        match inotify::add_watch(&self.fd, dir, flags) {
            Ok(number) => {
                self.places.insert(number, place);
                true
            }
            Err(Errno::NOENT | Errno::NOTDIR) => true,
            Err(_) => false,
        }
    }

    /// Passes all events since the last call to `each`.
    pub fn drain(&mut self, mut each: impl FnMut(Event<'_>)) -> io::Result<()> {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut gone = Vec::new();
        let mut reader = Reader::new(&self.fd, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::WOULDBLOCK) => break,
                Err(e) => return Err(e.into()),
            };
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                each(Event::Look);
                continue;
            }
            if flags.contains(ReadFlags::IGNORED) {
                gone.push(event.wd());
                each(Event::Look);
                continue;
            }
            match self.places.get(&event.wd()) {
                Some(Place::Messages(dir)) if !flags.contains(ReadFlags::ISDIR) => {
                    if let Some(Ok(name)) = event.file_name().map(std::ffi::CStr::to_str)
                        && !name.starts_with('.')
                    {
                        each(Event::Name { dir, name });
                    }
                }
                Some(Place::WaitingWriter) => each(Event::WaitingWriter),
                // Marks such as `.noindex` and tables of keywords are files, and folders are directories.
                Some(Place::Directory | Place::Messages(_)) => {
                    let is_mark = event.file_name().is_some_and(|name| {
                        name.to_bytes().starts_with(b".no") || name.to_bytes() == KEYWORDS_FILE.as_bytes()
                    });
                    if is_mark || flags.intersects(ReadFlags::ISDIR | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
                        each(Event::Look);
                    }
                }
                None => {}
            }
        }
        gone.iter().for_each(|number| drop(self.places.remove(number)));
        Ok(())
    }
}

impl AsFd for Notify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_maildir::tree::{TreeOptions, walk};

    #[test]
    fn names_folders_and_those_who_wait_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        for sub in ["new", "cur", "tmp"] {
            std::fs::create_dir(root.path().join(sub)).unwrap();
        }
        let turn = root.path().join("turn");
        std::fs::write(&turn, "").unwrap();
        let mut notify = Notify::new().unwrap();
        notify.watch_turn(&turn).unwrap();
        let tree = walk(root.path(), &TreeOptions::default()).unwrap();
        assert!(notify.watch_tree(&tree) && !notify.watch_tree(&tree));
        assert_eq!(notify.unwatched(), 0);

        std::fs::write(root.path().join("tmp/1.a.h"), "x").unwrap();
        std::fs::rename(root.path().join("tmp/1.a.h"), root.path().join("new/1.a.h")).unwrap();
        std::fs::write(root.path().join("dovecot-keywords"), "0 todo\n").unwrap();
        std::fs::write(&turn, "x").unwrap();
        std::fs::create_dir(root.path().join(".Sub")).unwrap();
        let mut seen = Vec::new();
        let note = |event: Event<'_>| seen.push(format!("{event:?}"));
        notify.drain(note).unwrap();
        seen.dedup();
        let name = format!("Name {{ dir: {:?}, name: \"1.a.h\" }}", root.path());
        assert_eq!(seen, [name.as_str(), "Look", "WaitingWriter", "Look"]);
    }
}
