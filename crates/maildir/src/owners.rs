//! Owner, group and permission bits of new mail files and directories.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Gid, Mode, RenameFlags, Uid};
use rustix::io::Errno;

use crate::dirs::open_beneath;

/// Owner, group and permission bits of new files. Default: the process's own, without access for others (0600,
/// directories 0700).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// User number; `None`: the process's.
    pub uid: Option<u32>,
    /// Group number; `None`: the file system's choice.
    pub gid: Option<u32>,
    /// Permission bits of files, at most 0777.
    pub file_mode: u32,
    /// Permission bits of directories, at most 0777.
    pub dir_mode: u32,
}

impl Default for Ownership {
    fn default() -> Self {
        Self::with_mode(FILE_MODE)
    }
}

impl Ownership {
    /// Gives files these permission bits. Directories get them, too, with search permission for all that may read.
    pub fn with_mode(mode: u32) -> Self {
        let file_mode = mode & 0o777;
        Self { uid: None, gid: None, file_mode, dir_mode: file_mode | (file_mode & 0o444) >> 2 }
    }

    /// Applies owner and mode; call it before the file has its final name.
    pub(crate) fn apply_to_file(&self, file: impl AsFd) -> io::Result<()> {
        self.apply(file, self.file_mode, FILE_MODE)
    }

    /// `made_with`: the permission bits at creation.
    fn apply(&self, made: impl AsFd, mode: u32, made_with: u32) -> io::Result<()> {
        // The owner first: bits for a group are for the right one then.
        if self.uid.is_some() || self.gid.is_some() {
            posthaste_fsops::fchown(&made, self.uid.map(Uid::from_raw), self.gid.map(Gid::from_raw))?;
        }
        if mode != made_with {
            posthaste_fsops::fchmod(&made, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }

    /// Makes the directory `name` in `dir` unless it exists. It has its owner and mode from the moment that it has its
    /// name.
    fn make_owned_dir(&self, dir: impl AsFd, name: &str) -> io::Result<()> {
        if *self == (Self { file_mode: self.file_mode, ..Self::default() }) {
            return match posthaste_fsops::mkdirat(&dir, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        // The same for all that make it at a time, and for who finds what a crash has left.
        let unfinished = format!(".{name}.new");
        match posthaste_fsops::mkdirat(&dir, &*unfinished, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        match self.open_unfinished(&dir, &unfinished) {
            Ok(made) => self.apply(&made, self.dir_mode, DIR_MODE)?,
            // Another thread has just finished it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        let renamed = match posthaste_fsops::renameat_with(&dir, &*unfinished, &dir, name, RenameFlags::NOREPLACE) {
            // Without an exclusive rename; one of directories replaces nothing but an empty directory.
            Err(Errno::INVAL | Errno::NOSYS) => posthaste_fsops::renameat(&dir, &*unfinished, &dir, name),
            renamed => renamed,
        };
        match renamed {
            Err(Errno::EXIST | Errno::NOTEMPTY) => {
                let _ = posthaste_fsops::unlinkat(&dir, &*unfinished, AtFlags::REMOVEDIR);
                Ok(())
            }
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the directory `name` in `dir`, making it if it does not exist. The flag is true if it was made.
    pub(crate) fn open_or_make_dir(&self, dir: impl AsFd, name: &str) -> io::Result<(OwnedFd, bool)> {
        match open_beneath(&dir, name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            found => return Ok((found?, false)),
        }
        self.make_owned_dir(&dir, name)?;
        Ok((open_beneath(&dir, name)?, true))
    }

    /// Opens a directory left half made, after a check of its owner. The parent may belong to the mailbox's owner, who
    /// must not get others' directory by giving it this name.
    fn open_unfinished(&self, dir: impl AsFd, name: &str) -> io::Result<OwnedFd> {
        let made = open_beneath(dir, name)?;
        let stat = rustix::fs::fstat(&made)?;
        let own = rustix::process::geteuid().as_raw();
        let private = Mode::from_raw_mode(stat.st_mode) & OTHERS;
        let is_ours = stat.st_uid == own && private.is_empty() || stat.st_uid == self.uid.unwrap_or(own);
        if FileType::from_raw_mode(stat.st_mode).is_dir() && is_ours {
            return Ok(made);
        }
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{name} already exists and belongs to another user"),
        ))
    }
}

/// Decides the ownership of new mailboxes, and of directories above them, by their path below the mail root.
#[derive(Clone)]
pub struct Owners(Arc<dyn Fn(&str) -> Ownership + Send + Sync>);

impl Owners {
    /// Calls `of` for each new directory, by its path relative to the mail root, and for each mailbox that is opened.
    pub fn new(of: impl Fn(&str) -> Ownership + Send + Sync + 'static) -> Self {
        Self(Arc::new(of))
    }

    /// Ownership of files made at, or directly in, this path.
    pub fn of(&self, path: &str) -> Ownership {
        (self.0)(path)
    }
}

impl Default for Owners {
    /// Everything belongs to the process.
    fn default() -> Self {
        Self::new(|_| Ownership::default())
    }
}

impl fmt::Debug for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owners")
    }
}

const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
const OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use posthaste_fsops::{Faults, Machine};

    use super::*;
    use crate::{Found, MailRoot, MailboxPath, Maildir, Subdir};

    fn mode_of(path: &Path) -> u32 {
        std::fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
    }

    fn owner_of(path: &Path) -> (u32, u32) {
        let metadata = std::fs::metadata(path).expect("it is there");
        (metadata.uid(), metadata.gid())
    }

    /// An owner that this process may give a file to: anybody for root, else a group that it is a member of.
    fn may_give_to() -> Ownership {
        let own_groups = rustix::process::getgroups().expect("own groups");
        let (uid, gid) = if rustix::process::geteuid().is_root() {
            (Some(65_533), Some(65_534))
        } else {
            (None, own_groups.last().map(|group| group.as_raw()))
        };
        Ownership { uid, gid, ..Ownership::with_mode(0o640) }
    }

    fn root_with(dir: &Path, of: impl Fn(&str) -> Ownership + Send + Sync + 'static) -> MailRoot {
        MailRoot::open(dir).expect("a mail root").with_owners(Owners::new(of))
    }

    fn deliver(maildir: &Maildir, name: &str) {
        let mut draft = maildir.draft(name).expect("begun");
        draft.write_parts(&[IoSlice::new(b"Subject: x\n\n")]).expect("written");
        draft.publish().expect("published");
    }

    #[test]
    fn who_may_read_may_search() {
        for (mode, dirs) in [(0o600, 0o700), (0o640, 0o750), (0o660, 0o770), (0o644, 0o755), (0o620, 0o720)] {
            assert_eq!(Ownership::with_mode(mode).dir_mode, dirs, "{mode:o}");
        }
    }

    #[test]
    fn everything_made_has_its_owner_and_mode() {
        let dir = tempfile::tempdir().expect("a directory");
        let wanted = may_give_to();
        let root = root_with(dir.path(), move |path| match path {
            "domain" => Ownership { dir_mode: 0o711, ..Ownership::default() },
            _ => wanted,
        });
        let path = MailboxPath::parse("domain/ann/Maildir").expect("a path");
        let maildir = root.mailbox(&path).expect("made");
        let at = dir.path().join("domain/ann/Maildir");
        deliver(&maildir, "nameless");
        maildir.nameless().give_up();
        deliver(&maildir, "named");
        maildir.write_tmp("3", &[IoSlice::new(b"x")]).and_then(|()| maildir.publish("3")).expect("published");
        let found = Found { dir: Subdir::New, name: "named".into(), size: 12 };
        maildir.replace(&found, &[IoSlice::new(b"again")]).expect("replaced");
        let group = wanted.gid.unwrap_or_else(|| owner_of(dir.path()).1);
        let owner = (wanted.uid.unwrap_or_else(|| owner_of(dir.path()).0), group);
        for (name, mode) in [
            ("..", 0o750),
            (".", 0o750),
            ("tmp", 0o750),
            ("new", 0o750),
            ("cur", 0o750),
            ("new/nameless", 0o640),
            ("new/named", 0o640),
            ("new/3", 0o640),
        ] {
            assert_eq!((mode_of(&at.join(name)), owner_of(&at.join(name))), (mode, owner), "{name}");
        }
        assert_eq!(mode_of(&dir.path().join("domain")), 0o711);
        assert_eq!(std::fs::read_dir(&at).expect("a directory").count(), 3, "nothing is left over");
    }

    #[test]
    fn a_file_that_cannot_be_given_away_leaves_nothing() {
        if rustix::process::geteuid().is_root() {
            return refused_by_the_file_system();
        }
        let dir = tempfile::tempdir().expect("a directory");
        let root = root_with(dir.path(), |_| Ownership { uid: Some(0), ..Ownership::default() });
        let error = root.mailbox(&MailboxPath::parse("ann/Maildir").expect("a path")).expect_err("not root");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(!dir.path().join("ann").exists());
    }

    /// Makes the file system refuse a change of owner, since root may do anything.
    fn refused_by_the_file_system() {
        let machine = Machine::new().expect("a machine");
        let rule = Arc::new(Mutex::new(Ownership::default()));
        let rule_now = rule.clone();
        let root = root_with(machine.path(), move |_| *rule_now.lock().expect("the rule"));
        let path = MailboxPath::parse("ann").expect("a path");
        root.mailbox(&path).expect("made");
        *rule.lock().expect("the rule") = may_give_to();
        let maildir = root.mailbox(&path).expect("opened");
        for names_needed in [false, true] {
            if names_needed {
                maildir.nameless().give_up();
            }
            // The file is made, and then cannot be given away.
            let due = machine.counts().1 + 2;
            machine.set_faults(Faults { fail_changes: Some((due..due + 1, Errno::PERM)), ..Faults::default() });
            let error = maildir.draft("name").expect_err("not given away");
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            for sub in ["tmp", "new"] {
                assert_eq!(std::fs::read_dir(machine.path().join("ann").join(sub)).expect("there").count(), 0);
            }
        }
        assert_eq!(machine.unrecorded().expect("looked"), Vec::<std::path::PathBuf>::new());
    }

    #[test]
    fn a_directory_has_its_mode_before_its_name() {
        let wanted = Ownership { dir_mode: 0o750, ..Ownership::default() };
        let path = MailboxPath::parse("ann/Maildir").expect("a path");
        for kill_before in 1.. {
            let machine = Machine::new().expect("a machine");
            let open = || root_with(machine.path(), move |_| wanted);
            machine.set_faults(Faults { kill_before: Some(kill_before), ..Faults::default() });
            let finished = open().mailbox(&path).is_ok();
            for name in ["ann", "ann/Maildir", "ann/Maildir/tmp", "ann/Maildir/new", "ann/Maildir/cur"] {
                let at = machine.path().join(name);
                assert!(!at.exists() || mode_of(&at) == 0o750, "{name}, killed before {kill_before}");
            }
            machine.go_on();
            open().mailbox(&path).expect("what was left unfinished is finished");
            let entries = std::fs::read_dir(machine.path().join("ann/Maildir")).expect("a Maildir").count();
            assert_eq!(entries, 3, "killed before {kill_before}");
            if finished {
                assert!(kill_before > 10, "made in {kill_before} steps");
                return;
            }
        }
    }

    #[test]
    fn many_make_the_same_directory_at_a_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = root_with(dir.path(), |_| Ownership { dir_mode: 0o750, ..Ownership::default() });
        let path = MailboxPath::parse("domain/ann/Maildir").expect("a path");
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| root.mailbox(&path).map(drop))).collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic").expect("made"));
        });
        assert_eq!(std::fs::read_dir(dir.path().join("domain/ann/Maildir")).expect("there").count(), 3);
        assert_eq!(std::fs::read_dir(dir.path().join("domain")).expect("there").count(), 1);
    }

    #[test]
    fn a_directory_of_others_is_not_given_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let planted = dir.path().join(".ann.new");
        std::fs::create_dir(&planted).expect("planted");
        std::fs::set_permissions(&planted, std::fs::Permissions::from_mode(0o777)).expect("open to all");
        let own = rustix::process::geteuid().as_raw();
        let wanted = Ownership { uid: Some(own + 1), ..Ownership::with_mode(0o640) };
        let error = root_with(dir.path(), move |_| wanted)
            .mailbox(&MailboxPath::parse("ann/Maildir").expect("a path"))
            .expect_err("not made by us");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!((mode_of(&planted), owner_of(&planted).0), (0o777, own));
    }
}
