//! Messages in the Maildirs of one mount: delivery, search, rewriting.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use posthaste_fsops::Space;
use posthaste_maildir::{Found, Host, MailboxPath, Maildir, Mount, NewFile, UniqueName};
use posthaste_spool::{Lsn, MessageReader};

use super::common::Common;
use super::content::{Content, Source};
use super::entry::MailboxDelivery;
use super::held::HeldBody;
use super::looking::{FoundMessages, copy, look};
use super::losses::{Lost, given_up};
use super::message::MailboxTarget;
use super::mount_dir::MountDir;
use super::room::{MailRoom, need_of};
use super::table::{Taken, Task};
use crate::seams::Step;
use crate::session::SessionTag;

/// A body in memory, with its share of the memory for all bodies.
pub(crate) type Held = Arc<HeldBody>;
/// A target taken by a thread.
pub(crate) type Job = Taken<Held>;

/// Result of a thread's work on a target.
#[derive(Debug, Clone)]
pub(crate) enum Done {
    /// The file was written by this attempt.
    Written,
    /// The file existed, or the mailbox's owner has removed it.
    Found,
    /// The target is given up for good.
    GivenUp(Lost),
    /// No file was written: the mailbox was removed.
    Removed,
}

/// The mailboxes of one mount.
pub(crate) struct Files {
    common: Common,
    dir: MountDir,
    room: MailRoom,
    /// Descriptor for syncs; used by the syncing thread only.
    descriptor: Mutex<Option<Mount>>,
}

impl Files {
    /// `floor`: space to keep free on the file system.
    pub fn new(common: Common, point: Arc<str>, floor: Space) -> Self {
        let dir = MountDir::new(&common.root_path, point);
        let room = MailRoom::new(floor, dir.path().display().to_string());
        Files { common, dir, room, descriptor: Mutex::default() }
    }

    pub fn common(&self) -> &Common {
        &self.common
    }

    /// Its mount point below the mail root; empty for the root's own file system.
    pub fn point(&self) -> &Arc<str> {
        self.dir.point()
    }

    pub fn room(&self) -> &MailRoom {
        &self.room
    }

    /// Free space of the mount's file system. File systems mounted below it since the start count as part of it. Blocks
    /// while the mount hangs.
    ///
    /// # Errors
    /// The file system's error.
    pub fn space(&self) -> io::Result<Space> {
        Space::of(self.dir.path())
    }

    /// Finds the file system of the mount: see [`MountDir::find`]. Blocks while it hangs.
    ///
    /// # Errors
    /// An error of [`MountDir::find`].
    pub fn find_place(&self) -> io::Result<SessionTag> {
        let (session, mount) = self.dir.find(&self.common)?;
        *lock(&self.descriptor) = Some(mount);
        Ok(session)
    }

    /// True if the file system is due for a check, because it was missing or short of space.
    pub fn is_look_due(&self, now: Instant) -> bool {
        self.room.is_look_due(now) || self.dir.is_look_due(now)
    }

    /// Checks the file system. Blocks while it hangs.
    pub fn look_again(&self, now: Instant, has_waiting: bool) {
        if self.dir.is_look_due(now) {
            self.dir.look_again(now);
        }
        if self.room.is_look_due(now) {
            self.room.look_again(now, has_waiting, || self.space());
        }
    }

    /// True if the file system has come back since the last call.
    pub fn take_return(&self) -> bool {
        self.dir.take_return()
    }

    /// Describes the file system at the mount's path, if it is another one.
    pub fn missing(&self) -> Option<Arc<str>> {
        self.dir.missing()
    }

    /// The reason why the mount is not bound to its file system; `None` if it is.
    pub fn unbound(&self) -> Option<Arc<str>> {
        self.dir.unbound()
    }

    /// Makes all earlier writes to the mount durable. An error is final for all that was not durable: see
    /// [`Mount::sync`].
    pub fn sync(&self) -> io::Result<()> {
        self.common.seams.pass(Step::SyncOf(self.dir.point()))?;
        let mut descriptor = lock(&self.descriptor);
        let mount = descriptor.as_mut().ok_or(io::ErrorKind::NotFound)?;
        if !mount.facts().syncfs_trusted {
            // Each file was synced when it was written.
            return Ok(());
        }
        mount.sync().inspect_err(|_| {
            // The old descriptor has reported its error.
            if let Ok(fresh) = Mount::of_dir(&*mount) {
                *mount = fresh;
            }
        })
    }

    /// Delivers to targets in one mailbox; returns the result of each. Calls `step` before each step that may be slow.
    pub fn work_off(&self, mailbox: &str, jobs: &[Job], step: &dyn Fn()) -> Vec<io::Result<Done>> {
        let all_fail = |error: io::Error| jobs.iter().map(|_| Err(copy(&error))).collect();
        step();
        // Targets of removed mailboxes come in separate groups.
        if jobs.iter().all(|job| job.is_removed) {
            return jobs.iter().map(|_| Ok(Done::Removed)).collect();
        }
        // Checked before any directory is made.
        let least = jobs.iter().map(|job| job.body_len).min().unwrap_or_default();
        if let Err(refused) = self.room.check(need_of(least), self.common.seams.now(), || self.space()) {
            return jobs.iter().map(|_| Err(refused.clone().into())).collect();
        }
        let (maildir, is_foreign) = match self.maildir(mailbox) {
            Ok(opened) => opened,
            Err(error) => return all_fail(error),
        };
        // Opened before the writes whose sync it reports.
        let own_sync = is_foreign.then(|| Mount::of_dir(File::open(self.common.root_path.join(mailbox))?)).transpose();
        let own_sync = match own_sync {
            Ok(own_sync) => own_sync.filter(|mount| mount.facts().syncfs_trusted),
            Err(error) => return all_fail(error),
        };
        let sought: Vec<String> = jobs.iter().filter(|job| job.task != Task::Write).map(Job::name_key).collect();
        step();
        let there = if sought.is_empty() { Ok(FoundMessages::default()) } else { look(&maildir, &sought) };
        let work = |job: &Job| {
            let reader = self.reader(job);
            match self.work(&maildir, job, &reader, &there, step) {
                Ok(true) => Ok(Done::Written),
                Ok(false) => Ok(Done::Found),
                Err(failed) => {
                    let is_there = there.as_ref().is_ok_and(|there| there.has(&job.name_key()));
                    given_up(&reader, is_there, failed).map(Done::GivenUp)
                }
            }
        };
        let outcomes: Vec<_> = jobs.iter().map(work).collect();
        step();
        match own_sync.map_or(Ok(()), |mount| mount.sync()) {
            Ok(()) => outcomes,
            Err(error) => all_fail(error),
        }
    }

    fn reader(&self, job: &Job) -> MessageReader {
        match &job.body {
            Some(held) => MessageReader::in_memory(Arc::clone(&held.parts)),
            None => MessageReader::in_spool(Arc::clone(&self.common.spool), job.key.0, job.body_len),
        }
    }

    fn work(
        &self,
        maildir: &Maildir,
        job: &Job,
        reader: &MessageReader,
        there: &io::Result<FoundMessages>,
        step: &dyn Fn(),
    ) -> io::Result<bool> {
        step();
        self.common.seams.pass(Step::Message(&job.target().mailbox))?;
        let target = job.target();
        let source = Source { reader, large: job.deliver.large, step };
        let content = Content::new(target, job.deliver.line_ends, job.deliver.internal_date, source)?;
        let name = name_of(&job.deliver, job.key, content.disk_size, content.wire_size);
        if job.task == Task::Write {
            self.take_room(&content)?;
            return deliver(maildir, &name, &content).map(|()| true);
        }
        let found = there.as_ref().map_err(copy)?.get(&job.name_key())?.cloned();
        let renew = |found: Option<&Found>| match found {
            // As for visible mail: whoever removed the file does not want it again.
            None if self.common.expunged.contains(&job.key) => {
                self.renew(maildir, Task::RenewIfThere, &name, &content, None)
            }
            found => self.renew(maildir, job.task, &name, &content, found),
        };
        match renew(found.as_ref()) {
            // The owner has moved the file since the look-up.
            Err(error) if error.kind() == io::ErrorKind::NotFound && found.is_some() => {
                let looked = look(maildir, &[job.name_key()])?;
                renew(looked.get(&job.name_key())?)
            }
            renewed => renewed,
        }
    }

    fn renew(
        &self,
        maildir: &Maildir,
        task: Task,
        name: &UniqueName,
        content: &Content<'_>,
        found: Option<&Found>,
    ) -> io::Result<bool> {
        let is_trusted = maildir.facts().syncfs_trusted;
        let Some(found) = found else {
            if task == Task::RenewIfThere {
                // A power cut must not restore a part of the file: nothing would repair it.
                return if is_trusted { Ok(false) } else { maildir.sync_names().map(|()| false) };
            }
            // A file in tmp/ with this name was never visible.
            let _ = maildir.remove_tmp(name.as_str());
            self.take_room(content)?;
            return deliver(maildir, name, content).map(|()| true);
        };
        // Where each file is fsynced alone, a readable file may be one whose fsync failed.
        if task == Task::LookFirst && is_trusted && content.is_in(maildir.open_message(found.dir, &found.name)?)? {
            return Ok(false);
        }
        self.take_room(content)?;
        maildir.replace_with(found, |file: &mut NewFile| {
            content.write_to(file)?;
            file.set_modified(content.modified)
        })?;
        if !is_trusted {
            match maildir.sync_message(found.dir, &found.name) {
                // The owner has just moved the file.
                Err(error) if error.kind() == io::ErrorKind::NotFound => sync_found(maildir, &found.name)?,
                synced => synced?,
            }
        }
        Ok(true)
    }

    /// Reserves disk space; call it before a file is written.
    fn take_room(&self, content: &Content<'_>) -> io::Result<()> {
        let taken = self.room.take(need_of(content.disk_size), self.common.seams.now(), || self.space());
        taken.map_err(io::Error::from)
    }

    /// The mailbox, made if missing. True if it is on another file system than at acceptance, which this mount's sync
    /// does not cover.
    fn maildir(&self, mailbox: &str) -> io::Result<(Arc<Maildir>, bool)> {
        self.common.seams.pass(Step::Mailbox(mailbox))?;
        let found = self.dir.found()?;
        let ownership = found.root.ownership_of(mailbox);
        let is_current = |open: &Maildir| open.ownership() == ownership;
        let path = self.common.root_path.join(mailbox);
        let maildir = self.common.open.get(mailbox, &path, is_current, || {
            self.dir.check(&found, self.common.seams.now())?;
            let parsed = MailboxPath::parse(mailbox);
            let parsed = parsed.map_err(|error| io::Error::new(io::ErrorKind::InvalidFilename, error))?;
            found.root.mailbox(&parsed)
        })?;
        // Subvolumes of one file system differ in device numbers and share the mount.
        let is_foreign = maildir.facts().device != found.facts.device && SessionTag::of(&path)? != found.session;
        Ok((maildir, is_foreign))
    }
}

impl Job {
    fn target(&self) -> &MailboxTarget {
        let target = self.deliver.targets.iter().find(|(number, _)| *number == self.key.1);
        &target.expect("a target of its message").1
    }

    /// The part of the file name that survives a move by a mail reader.
    fn name_key(&self) -> String {
        name_of(&self.deliver, self.key, 0, 0).key().to_owned()
    }
}

/// Writes one message and makes it visible.
fn deliver(maildir: &Maildir, name: &UniqueName, content: &Content<'_>) -> io::Result<()> {
    let mut draft = maildir.draft(name.as_str()).or_else(|error| match error.kind() {
        // Left by an attempt that a crash interrupted: nothing became visible.
        io::ErrorKind::AlreadyExists => {
            maildir.remove_tmp(name.as_str())?;
            maildir.draft(name.as_str())
        }
        _ => Err(error),
    })?;
    content.write_to(&mut draft)?;
    draft.set_modified(content.modified)?;
    match draft.publish() {
        // Visible already: an earlier attempt published it and failed afterwards.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        published => published?,
    }
    if maildir.facts().syncfs_trusted { Ok(()) } else { sync_found(maildir, name.as_str()) }
}

/// Finds a message's current file and fsyncs it.
fn sync_found(maildir: &Maildir, name: &str) -> io::Result<()> {
    match maildir.find(name)? {
        Some(found) => maildir.sync_message(found.dir, &found.name),
        None => maildir.sync_names(),
    }
}

/// The name of a target's file. It follows from the entry, so that an earlier delivery is found.
fn name_of(deliver: &MailboxDelivery, (body, number): (Lsn, u16), disk_size: u64, wire_size: u64) -> UniqueName {
    let unique = unique_of(body.get(), deliver.nonce, number);
    UniqueName::new(deliver.secs, &unique, &Host::new(&deliver.host), disk_size, wire_size)
}

/// The part of a file's name unique to message and target.
pub(crate) fn unique_of(id: u64, nonce: u32, number: u16) -> String {
    format!("{}R{nonce:08x}T{number}", mark_of(id))
}

/// Prefix of the unique part, the same for all targets of the message.
pub(super) fn mark_of(id: u64) -> String {
    format!("J{id:x}")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds a mount's lock")
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("point", self.point()).finish_non_exhaustive()
    }
}
