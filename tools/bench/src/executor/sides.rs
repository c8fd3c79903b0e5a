//! The measured programs. A new one is a variant of [`Kind`] and one of [`Executor`].

use std::fs::File;
use std::io::{IoSlice, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use posthaste_delivery as ours;
use posthaste_delivery::local;
use posthaste_maildir::{Host, Maildir, NameSource};

use super::{Body, mailbox_paths};
use crate::suite::SideError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Journaled,
    /// Like `Journaled`, until every message is visible and a sync of its mount has made it durable there.
    JournaledToDisk,
    Standalone,
    Mailrs,
    /// One thread that writes and renames: the file system's own limit.
    NoSync,
    /// One thread that writes each file and calls fdatasync on it.
    PlainSync,
}

impl Kind {
    pub const ALL: [Self; 6] =
        [Self::Journaled, Self::JournaledToDisk, Self::Standalone, Self::Mailrs, Self::NoSync, Self::PlainSync];

    pub fn name(self) -> &'static str {
        match self {
            Self::Journaled => "posthaste journaled",
            Self::JournaledToDisk => "posthaste journaled to disk",
            Self::Standalone => "posthaste standalone",
            Self::Mailrs => "mailrs-delivery-executor 1.2",
            Self::NoSync => "plain writes",
            Self::PlainSync => "plain write + fdatasync",
        }
    }

    pub fn is_ours(self) -> bool {
        !matches!(self, Self::Mailrs | Self::NoSync | Self::PlainSync)
    }

    /// True if it is measured until all mail is in the mailboxes on stable storage.
    pub fn is_to_disk(self) -> bool {
        self == Self::JournaledToDisk
    }

    /// Durability at the moment it reports success.
    pub fn durability(self) -> &'static str {
        match self {
            Self::Journaled => "spool synced",
            Self::JournaledToDisk => "spool synced, then all of it visible and synced",
            Self::Standalone => "bytes and names synced",
            Self::Mailrs => "directories synced, files not",
            Self::NoSync => "nothing synced",
            Self::PlainSync => "bytes synced, names only by luck of the file system",
        }
    }

    /// Checks that this build of the program contains it.
    pub fn must_be_there(self) -> Result<(), SideError> {
        match self {
            Self::Mailrs if cfg!(not(feature = "peers")) => {
                Err(SideError::Absent("this program was built without the feature `peers`".into()))
            }
            _ => Ok(()),
        }
    }
}

/// A side that is ready to take messages into mailboxes below one directory.
#[derive(Clone)]
pub(super) enum Executor {
    Journaled {
        delivery: local::LocalDelivery,
        paths: Arc<[Arc<str>]>,
        to_sync: bool,
    },
    Standalone(ours::DeliveryExecutor, Arc<[PathBuf]>),
    #[cfg(feature = "peers")]
    Mailrs(mailrs_delivery_executor::DeliveryExecutor, Arc<[String]>),
    NoSync(Arc<(NameSource, Vec<Maildir>)>),
    PlainSync(Arc<(PathBuf, AtomicU64)>),
}

impl Executor {
    /// Starts `kind` on mailboxes below `base`. Needs a tokio runtime.
    pub fn start(kind: Kind, base: &Path, mailboxes: usize) -> Result<Self, SideError> {
        let paths = mailbox_paths(base, mailboxes);
        Ok(match kind {
            Kind::Journaled | Kind::JournaledToDisk => {
                let config = local::LocalConfig::new(base.join("spool"), base);
                let (delivery, _) = local::LocalDelivery::open(config).map_err(SideError::failed("spool"))?;
                Self::Journaled { delivery, paths: names(mailboxes), to_sync: kind.is_to_disk() }
            }
            Kind::Standalone => Self::Standalone(ours::DeliveryExecutor::spawn(), paths.into()),
            #[cfg(feature = "peers")]
            Kind::Mailrs => {
                let text = |path: &PathBuf| path.to_string_lossy().into_owned();
                let paths = paths.iter().map(text).collect();
                Self::Mailrs(mailrs_delivery_executor::DeliveryExecutor::spawn(), paths)
            }
            #[cfg(not(feature = "peers"))]
            Kind::Mailrs => return Err(SideError::Absent("not built in".into())),
            Kind::NoSync => {
                let names = NameSource::new(Host::of_this_machine()).map_err(SideError::failed("random bytes"))?;
                let open = |path: &PathBuf| Maildir::open_or_create(path);
                let mailboxes =
                    paths.iter().map(open).collect::<Result<_, _>>().map_err(SideError::failed("mailbox"))?;
                Self::NoSync(Arc::new((names, mailboxes)))
            }
            Kind::PlainSync => Self::PlainSync(Arc::new((base.to_owned(), AtomicU64::new(0)))),
        })
    }

    /// Delivers one message and waits until it is what the side calls durable.
    pub async fn deliver(&self, mailbox: usize, body: &Body) -> Result<(), SideError> {
        match self {
            Self::Journaled { delivery, paths, .. } => {
                let target = local::MailboxTarget { mailbox: Arc::clone(&paths[mailbox]), prefix: Bytes::new() };
                let message = local::MailboxMessage {
                    targets: vec![target],
                    body: local::GatheredBody::Memory(vec![body.bytes.clone()]),
                    line_ends: local::LineEnds::AsGiven,
                    also: Vec::new(),
                };
                delivery.deliver_message(message).await.map(drop).map_err(SideError::failed("spool"))
            }
            Self::Standalone(executor, paths) => {
                let delivered = executor.deliver(&paths[mailbox], body.bytes.clone()).await;
                delivered.map(drop).map_err(SideError::failed("standalone"))
            }
            #[cfg(feature = "peers")]
            Self::Mailrs(executor, paths) => {
                let delivered = executor.deliver(paths[mailbox].clone(), body.shared.clone()).await;
                delivered.map(drop).map_err(|error| SideError::Failed(format!("{error:?}")))
            }
            Self::NoSync(files) => {
                let size = body.bytes.len() as u64;
                let name = files.0.next(std::time::SystemTime::now(), size, size);
                let maildir = &files.1[mailbox];
                let written = maildir.write_tmp(name.as_str(), &[IoSlice::new(&body.bytes)]);
                written.and_then(|_| maildir.publish(name.as_str())).map_err(SideError::failed("plain write"))
            }
            Self::PlainSync(place) => {
                let name = place.0.join(format!("plain{}", place.1.fetch_add(1, Relaxed)));
                let write = || {
                    let mut file = File::create_new(name)?;
                    file.write_all(&body.bytes)?;
                    file.sync_data()
                };
                write().map_err(SideError::failed("plain write"))
            }
        }
    }

    /// Waits for the work left after everything was handed over.
    pub fn finish(&self) -> Result<(), SideError> {
        match self {
            Self::Journaled { delivery, to_sync: true, .. } => {
                let synced = tokio::task::block_in_place(|| delivery.sync(SYNC_PATIENCE));
                synced.map_err(|failed| SideError::Failed(format!("sync: {failed:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Number of tasks that hand messages over: one if the tasks do the work themselves.
    pub fn tasks(&self, tasks: usize) -> usize {
        if matches!(self, Self::NoSync(_) | Self::PlainSync(_)) { 1 } else { tasks }
    }
}

fn names(mailboxes: usize) -> Arc<[Arc<str>]> {
    (0..mailboxes).map(|n| format!("u{n}").into()).collect()
}

const SYNC_PATIENCE: Duration = Duration::from_secs(300);
