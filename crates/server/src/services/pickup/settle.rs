//! Settles a file after its message was received, refused or deferred.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use posthaste_pickup::{EntryError, PickupDirectory, PickupEntry, PickupHead, PickupMessage, PickupReadError};
use posthaste_smtp::RcptTo;

use super::handover::Fates;

/// The directory and its subdirectory for refused files.
#[derive(Debug)]
pub(super) struct Place {
    pub directory: PickupDirectory,
    pub refused: PickupDirectory,
}

/// Remaining work on a file.
#[derive(Debug, Clone)]
pub(super) enum Settlement {
    /// Remove the file: all of its recipients have the message.
    Remove,
    /// Move the file away: it is unreadable, or all recipients were refused.
    Refuse,
    /// Write the file again for the remaining recipients.
    Split {
        /// Recipients refused for good: a file among the refused is for them.
        refused: Vec<RcptTo>,
        /// Recipients to try again: the file is for them from now on.
        rest: Vec<RcptTo>,
    },
    /// Leave the file unchanged.
    Keep,
}

/// Why a settlement failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SettleError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Entry(#[from] EntryError),
    #[error(transparent)]
    Read(#[from] PickupReadError),
}

/// Name of the directory of refused files.
pub(super) const REFUSED: &str = "refused";

impl Settlement {
    pub fn of(fates: Fates) -> Self {
        let Fates { accepted, refused, later, at_once, .. } = fates;
        let mut rest = at_once;
        rest.extend(later.into_iter().map(|(rcpt, _)| rcpt));
        match (accepted, refused.is_empty(), rest.is_empty()) {
            (0, true, _) => Self::Keep,
            (_, true, true) => Self::Remove,
            (0, false, true) => Self::Refuse,
            _ => Self::Split { refused: refused.into_iter().map(|(rcpt, _)| rcpt).collect(), rest },
        }
    }
}

impl Place {
    /// Opens both directories, creating missing ones.
    ///
    /// # Errors
    /// They cannot be created or read, or the server could not remove files there.
    pub fn open(path: &std::path::Path) -> io::Result<Arc<Self>> {
        let own = rustix::process::geteuid();
        let check = |directory: &PickupDirectory, or_any: bool| {
            let uid = directory.uid();
            if uid == own.as_raw() || or_any {
                return Ok(());
            }
            let what = format!("{} belongs to uid {uid}: give it to the server's user", directory.path().display());
            Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
        };
        let directory = PickupDirectory::make(path)?;
        check(&directory, own.is_root())?;
        let refused = directory.make_below(REFUSED)?;
        // Anybody who may write to the directory may have made it first.
        check(&refused, false)?;
        Ok(Arc::new(Self { directory, refused }))
    }

    /// Carries it out durably. Blocks.
    ///
    /// # Errors
    /// It is incomplete. Retry before the message is passed on again.
    pub fn settle(&self, name: &OsStr, settlement: &Settlement) -> Result<(), SettleError> {
        match settlement {
            Settlement::Keep => return Ok(()),
            Settlement::Remove => self.directory.remove(name)?,
            Settlement::Refuse => {
                self.directory.move_to(name, &self.refused, &self.refused.free_name(name))?;
                self.refused.sync()?;
            }
            Settlement::Split { refused, rest } => {
                if !refused.is_empty() {
                    // An earlier attempt may have left one there.
                    self.copy_for(name, refused, &self.refused, &self.refused.free_name(name))?;
                }
                if rest.is_empty() {
                    self.directory.remove(name)?
                } else {
                    self.copy_for(name, rest, &self.directory, name)?
                }
            }
        }
        Ok(self.directory.sync()?)
    }

    /// A copy of the message for other recipients.
    fn copy_for(
        &self,
        name: &OsStr,
        recipients: &[RcptTo],
        to: &PickupDirectory,
        new_name: &OsStr,
    ) -> Result<(), SettleError> {
        let mut message = match PickupMessage::open(&self.directory, name) {
            // Its author has removed it.
            Err(PickupReadError::Gone) => return Ok(()),
            opened => opened?,
        };
        let uid = Some(message.uid());
        let head = PickupHead { mail: message.head().mail.clone(), recipients: recipients.to_vec(), uid };
        let mut entry = PickupEntry::begin(&self.directory, head, None)?;
        while let Some(piece) = message.read()? {
            entry.write(&piece)?;
        }
        Ok(entry.finish_as(to, new_name)?)
    }
}

#[cfg(test)]
mod tests {
    use posthaste_smtp::{ForwardPath, MailFrom, Reply, ReversePath};

    use super::*;

    fn rcpt(name: &str) -> RcptTo {
        RcptTo::new(ForwardPath::parse(&format!("<{name}@example.org>")).unwrap())
    }

    fn put(place: &Place, names: &[&str]) -> String {
        let head = PickupHead::new(
            MailFrom::new(ReversePath::parse("<a@example.org>").unwrap()),
            names.iter().map(|name| rcpt(name)).collect(),
        );
        let mut entry = PickupEntry::begin(&place.directory, head, None).unwrap();
        entry.write(b"Subject: x\r\n\r\n").unwrap();
        entry.finish().unwrap()
    }

    /// The recipients of the file in `directory`.
    fn recipients(directory: &PickupDirectory, name: &str) -> Option<Vec<String>> {
        let mut message = PickupMessage::open(directory, name.as_ref()).ok()?;
        while message.read().unwrap().is_some() {}
        Some(message.head().recipients.iter().map(|rcpt| rcpt.forward_path.local_part().to_owned()).collect())
    }

    #[test]
    fn each_recipient_has_a_fate_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let place = Place::open(&place.path().join("pickup")).unwrap();
        let (yes, no, later) = (Reply::ok("x"), Reply::new(550, "5.1.1", "x"), Reply::new(452, "4.2.2", "x"));
        let check = |fates: &[(&str, &Reply)], refused: Option<&[&str]>, rest: Option<&[&str]>| {
            let name = put(&place, &fates.iter().map(|(name, _)| *name).collect::<Vec<_>>());
            let mut all = Fates::default();
            for (name, reply) in fates {
                match reply.code() {
                    250 => all.accepted += 1,
                    550 => all.refused.push((rcpt(name), (*reply).clone())),
                    _ => all.later.push((rcpt(name), (*reply).clone())),
                }
            }
            place.settle(name.as_ref(), &Settlement::of(all)).unwrap();
            let as_text = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            assert_eq!(recipients(&place.refused, &name), refused.map(as_text), "{fates:?}");
            assert_eq!(recipients(&place.directory, &name), rest.map(as_text), "{fates:?}");
        };
        check(&[("a", &yes), ("b", &yes)], None, None);
        check(&[("a", &no), ("b", &no)], Some(&["a", "b"]), None);
        check(&[("a", &later), ("b", &later)], None, Some(&["a", "b"]));
        check(&[("a", &yes), ("b", &no), ("c", &later), ("d", &no)], Some(&["b", "d"]), Some(&["c"]));
        check(&[("a", &yes), ("b", &no)], Some(&["b"]), None);
        check(&[("a", &yes), ("b", &later)], None, Some(&["b"]));
        check(&[("a", &no), ("b", &later)], Some(&["a"]), Some(&["b"]));
    }

    #[test]
    fn a_directory_for_refused_mail_made_by_others_is_not_used() {
        let place = tempfile::tempdir().unwrap();
        let (own, elsewhere) = (place.path().join("pickup"), place.path().join("elsewhere"));
        std::fs::create_dir(&own).unwrap();
        std::fs::create_dir(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, own.join(REFUSED)).unwrap();
        assert!(Place::open(&own).is_err());
        std::fs::remove_file(own.join(REFUSED)).unwrap();
        std::fs::create_dir(own.join(REFUSED)).unwrap();
        assert!(Place::open(&own).is_ok());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(own.join(REFUSED), Some(4711), None).unwrap();
            let error = Place::open(&own).unwrap_err().to_string();
            assert!(error.contains("belongs to uid 4711"), "{error}");
        }
    }

    #[test]
    fn what_was_refused_before_is_not_replaced() {
        let place = tempfile::tempdir().unwrap();
        let place = Place::open(&place.path().join("pickup")).unwrap();
        let name = put(&place, &["a", "b", "c"]);
        let split =
            |refused: &str, rest: &str| Settlement::Split { refused: vec![rcpt(refused)], rest: vec![rcpt(rest)] };
        place.settle(name.as_ref(), &split("a", "b")).unwrap();
        place.settle(name.as_ref(), &split("b", "c")).unwrap();
        place.settle(name.as_ref(), &Settlement::Refuse).unwrap();
        for (number, expected) in ["a", "b", "c"].iter().enumerate() {
            let name = if number == 0 { name.clone() } else { format!("{name}.{number}") };
            assert_eq!(recipients(&place.refused, &name).unwrap(), [*expected]);
        }
        assert_eq!(place.directory.names().unwrap().len(), 0);
    }

    #[test]
    fn a_file_that_its_owner_took_back_is_no_trouble() {
        let place = tempfile::tempdir().unwrap();
        let place = Place::open(&place.path().join("pickup")).unwrap();
        for settlement in [
            Settlement::Remove,
            Settlement::Refuse,
            Settlement::Split { refused: vec![rcpt("a")], rest: vec![rcpt("b")] },
        ] {
            place.settle("gone".as_ref(), &settlement).unwrap();
        }
        assert_eq!(place.directory.names().unwrap().len(), 0);
    }
}
