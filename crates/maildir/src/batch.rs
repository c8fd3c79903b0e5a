//! Many messages, few syncs: write all, sync, rename all, sync.
//!
//! A batch moves through three states, and only the last one reports success:
//!
//! | state | its messages are | a power cut now leaves |
//! | --- | --- | --- |
//! | [`Written`] | in `tmp/` | litter in `tmp/`, perhaps empty or torn |
//! | [`Synced`] | in `tmp/`, their bytes on stable storage | whole files in `tmp/` |
//! | [`RenamedMail`] | in `new/`, the rename not yet on stable storage | each message whole in `new/` or whole in `tmp/` |
//! | (result) | in `new/`, durable | the message in `new/` |
//!
//! [`sync`] takes one `RenamedMail` and one `Written` batch. One `syncfs` makes the renames of the former and the bytes
//! of the latter durable, so a steady writer pays for one `syncfs` a batch, not two.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;

use crate::line_ends::wire_size_as_stored;
use crate::maildir::{Maildir, Subdir};
use crate::mount::Mount;
use crate::name::{NameSource, UniqueName};

/// Why a message of a batch was not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The message could not be written or renamed. None of its files is left, and other messages are not affected.
    #[error("the message could not be stored: {0}")]
    Message(#[source] io::Error),
    /// A sync that covered it failed, and with it every other message of the batch on the same mount. The file was
    /// removed, as far as the file system still allows. Another sync never repairs this: write the message again.
    #[error("the file system could not be synced: {0}")]
    Sync(#[source] io::Error),
}

/// The way to make a message durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncBy {
    /// By `syncfs` of its mount, which many messages share. Where `syncfs` is not to be trusted this means
    /// [`SyncBy::File`].
    FileSystem,
    /// By fsync of its file and of `new/`: the fastest way for one message or a few, as it does not wait for other
    /// programs' dirty pages. Where it would not cover earlier changes of names (a new mailbox, btrfs) this means
    /// `FileSystem`.
    File,
}

/// The `syncfs` descriptors of one thread, one for each mount. Not to be shared: see [`Mount`].
#[derive(Debug, Default)]
pub struct SyncMounts(HashMap<u64, Mount>);

impl SyncMounts {
    /// No mount yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a descriptor for the mailbox's mount, unless there is one.
    fn ensure(&mut self, maildir: &Maildir) -> io::Result<()> {
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.0.entry(maildir.facts().device) {
            vacant.insert(Mount::of_dir(maildir.new_dir())?);
        }
        Ok(())
    }

    /// Calls `syncfs` once. After an error the descriptor is dropped: it has reported its error, and the next write
    /// opens a new one.
    fn sync(&mut self, device: u64) -> io::Result<()> {
        // Missing only if the caller mixed up its `SyncMounts`: nothing vouches for what was written before one is opened.
        let mount = self.0.get(&device).ok_or_else(|| io::Error::other("written with another set of mounts"))?;
        mount.sync().inspect_err(|_| drop(self.0.remove(&device)))
    }
}

#[derive(Debug)]
struct Item<T> {
    maildir: Arc<Maildir>,
    name: UniqueName,
    /// Open while it awaits its own fsync; `None` when the mount's `syncfs` serves it.
    file: Option<OwnedFd>,
    by: SyncBy,
    tag: T,
}

/// Outcome of each message: its tag, and its name in `new/` or the error.
pub type Outcomes<T> = Vec<(T, Result<UniqueName, StoreError>)>;

/// Messages written to `tmp/`.
#[derive(Debug)]
pub struct Written<T>(Vec<Item<T>>);

/// Messages in `tmp/` whose bytes are durable.
#[derive(Debug)]
#[must_use = "the messages are not visible yet"]
pub struct Synced<T>(Vec<Item<T>>);

/// Messages renamed into `new/`; the renames are not durable yet.
#[derive(Debug)]
#[must_use = "the messages are not durable yet"]
pub struct RenamedMail<T>(Vec<Item<T>>);

impl<T> Default for Written<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Default for RenamedMail<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Written<T> {
    /// Writes one message into its mailbox's `tmp/`. `tag` is returned with the outcome.
    ///
    /// # Errors
    /// [`StoreError::Message`] with the tag: the other messages of the batch are not affected.
    pub fn write(
        &mut self,
        mounts: &mut SyncMounts,
        maildir: Arc<Maildir>,
        name: UniqueName,
        parts: &[IoSlice<'_>],
        by: SyncBy,
        tag: T,
    ) -> Result<(), (T, StoreError)> {
        let by = match (maildir.facts().syncfs_trusted, by) {
            (false, _) => SyncBy::File,
            (true, SyncBy::File) if maildir.facts().ordered_log && !maildir.is_fresh() => SyncBy::File,
            (true, _) => SyncBy::FileSystem,
        };
        let written = mounts.ensure(&maildir).and_then(|()| maildir.write_tmp_open(name.as_str(), parts));
        match written {
            Ok(file) => {
                let file = (by == SyncBy::File).then_some(file);
                self.0.push(Item { maildir, name, file, by, tag });
                Ok(())
            }
            Err(e) => Err((tag, StoreError::Message(e))),
        }
    }

    /// Number of messages written.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if no message was written.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Synced<T> {
    /// Renames the messages into `new/`. A message that cannot be renamed is removed and reported at once; the rest is
    /// `RenamedMail`.
    pub fn publish(self) -> (RenamedMail<T>, Outcomes<T>) {
        let mut published = Vec::with_capacity(self.0.len());
        let mut failed = Vec::new();
        for item in self.0 {
            match item.maildir.publish(item.name.as_str()) {
                Ok(()) => published.push(item),
                Err(e) => failed.push(item.fail_in_tmp(StoreError::Message(e))),
            }
        }
        (RenamedMail(published), failed)
    }
}

impl<T> RenamedMail<T> {
    /// True if there is nothing to sync.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Item<T> {
    fn fail_in_tmp(self, error: StoreError) -> (T, Result<UniqueName, StoreError>) {
        // Files that cannot be removed now are removed by cleanup_tmp.
        let _ = self.maildir.remove_tmp(self.name.as_str());
        (self.tag, Err(error))
    }

    fn fail_in_new(self, error: StoreError) -> (T, Result<UniqueName, StoreError>) {
        // The sender will try again; a copy that stays would be a duplicate.
        let _ = self.maildir.remove(Subdir::New, self.name.as_str());
        (self.tag, Err(error))
    }
}

/// Makes the renames of `published` and the bytes of `written` durable: one `syncfs` for each mount that either needs.
///
/// The outcomes cover every message of `published`, and the failed ones of `written`. The rest of `written` goes on to
/// [`Synced::publish`].
pub fn sync<T>(mounts: &mut SyncMounts, published: RenamedMail<T>, written: Written<T>) -> (Synced<T>, Outcomes<T>) {
    let mut syncs = Syncs::new(mounts);
    let fresh: Vec<Arc<Maildir>> =
        written.0.iter().filter(|i| i.maildir.is_fresh()).map(|i| i.maildir.clone()).collect();
    // All fsyncs and syncfs before the first outcome; a shared one runs once and serves all it covers.
    let mut outcomes = Vec::with_capacity(published.0.len());
    for item in published.0 {
        outcomes.push(match syncs.names(&item) {
            Ok(()) => (item.tag, Ok(item.name)),
            Err(e) => item.fail_in_new(StoreError::Sync(e)),
        });
    }
    let mut synced = Vec::with_capacity(written.0.len());
    for mut item in written.0 {
        match syncs.bytes(&mut item) {
            Ok(()) => synced.push(item),
            Err(e) => outcomes.push(item.fail_in_tmp(StoreError::Sync(e))),
        }
    }
    for maildir in fresh {
        if syncs.covered(&maildir) {
            maildir.set_synced();
        }
    }
    (Synced(synced), outcomes)
}

/// The syncs of one round, each done once and remembered.
struct Syncs<'a> {
    mounts: &'a mut SyncMounts,
    by_device: HashMap<u64, io::Result<()>>,
    by_dir: HashMap<*const Maildir, io::Result<()>>,
}

impl<'a> Syncs<'a> {
    fn new(mounts: &'a mut SyncMounts) -> Self {
        Self { mounts, by_device: HashMap::new(), by_dir: HashMap::new() }
    }

    fn names<T>(&mut self, item: &Item<T>) -> io::Result<()> {
        match item.by {
            SyncBy::FileSystem => self.file_system(&item.maildir),
            SyncBy::File => {
                let dir = self.by_dir.entry(Arc::as_ptr(&item.maildir));
                copy(dir.or_insert_with(|| Ok(posthaste_fsops::fsync(item.maildir.new_dir())?)))
            }
        }
    }

    fn bytes<T>(&mut self, item: &mut Item<T>) -> io::Result<()> {
        match item.file.take() {
            Some(file) => Ok(posthaste_fsops::fsync(&file)?),
            None => self.file_system(&item.maildir),
        }
    }

    fn file_system(&mut self, maildir: &Maildir) -> io::Result<()> {
        let device = maildir.facts().device;
        let mounts = &mut *self.mounts;
        copy(self.by_device.entry(device).or_insert_with(|| mounts.sync(device)))
    }

    fn covered(&self, maildir: &Maildir) -> bool {
        matches!(self.by_device.get(&maildir.facts().device), Some(Ok(())))
    }
}

/// Copies an error that several messages share.
fn copy(result: &io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) => Ok(()),
        Err(e) => Err(e.raw_os_error().map_or_else(|| e.kind().into(), io::Error::from_raw_os_error)),
    }
}

/// Delivers a batch, to any number of mailboxes on any number of mounts, and returns when it is durable: two `syncfs`
/// for each mount. Bodies are written as they are. Outcomes are in the order of the messages.
pub fn deliver_batch(
    mounts: &mut SyncMounts,
    names: &NameSource,
    now: SystemTime,
    messages: &[(Arc<Maildir>, &[u8])],
) -> Vec<Result<UniqueName, StoreError>> {
    let mut written = Written::default();
    let mut outcomes = Vec::with_capacity(messages.len());
    for (index, (maildir, body)) in messages.iter().enumerate() {
        let name = names.next(now, body.len() as u64, wire_size_as_stored(body));
        let parts = [IoSlice::new(body)];
        match written.write(mounts, maildir.clone(), name, &parts, SyncBy::FileSystem, index) {
            Ok(()) => {}
            Err((index, e)) => outcomes.push((index, Err(e))),
        }
    }
    let (synced, failed) = sync(mounts, RenamedMail::default(), written);
    outcomes.extend(failed);
    let (published, failed) = synced.publish();
    outcomes.extend(failed);
    outcomes.extend(sync(mounts, published, Written::default()).1);
    outcomes.sort_unstable_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}
