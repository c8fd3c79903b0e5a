//! Durable mail delivery for programs with many tasks: all waiting messages share one sync.
//!
//! For every async program that stores mail (SMTP or LMTP server, IMAP APPEND, importer). It speaks no protocol.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! use posthaste_delivery::DeliveryExecutor;
//!
//! // The spool in `dir/spool`, the mailboxes in `dir/mail`.
//! let (executor, _report) = DeliveryExecutor::with_journal(&dir)?;
//! let id = executor.deliver("ann", "Subject: hello\n\nbody\n").await?;
//! // From here on no power cut takes it away. It gets into its Maildir right after, at the latest before this returns:
//! executor.shutdown().await;
//! let file = executor.locate("ann", &id)?.expect("delivered");
//! assert_eq!(std::fs::read_to_string(file)?, "Subject: hello\n\nbody\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok(())
//! # }
//! ```
//!
//! **Standalone mode** ([`DeliveryExecutor::spawn`] and friends): `Ok` means that the message is in the Maildir's
//! `new/`, with its bytes and its name on stable storage. Messages queued when a flusher is free become one batch, for
//! any mailboxes: write all, sync, rename all, sync. One `syncfs` serves the renames of one batch and the bytes of the
//! next.
//!
//! **Journaled mode** ([`DeliveryExecutor::with_journal`], [`LocalDelivery`]): `Ok` means that the message is in a
//! spool on stable storage. It reaches its Maildirs right after; syncs of each mail mount make those durable later.
//! Opening finishes deliveries that a crash interrupted.
//!
//! An error at one mailbox affects no other; a failed sync is reported to every message that it covers. Each mounted
//! file system has its own queue and threads, so a slow or hanging one delays nobody else's mail.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cache;
mod error;
mod flusher;
mod lanes;
pub mod local;
mod seams;
mod session;
mod standalone;
mod stats;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
pub use posthaste_intake::IntakeError;
use posthaste_maildir::{MailboxPath, Maildir};
pub use posthaste_maildir::{Owners, Ownership};

pub use error::{DeliveryError, MessageId};
pub use session::SessionTag;
pub use stats::DeliveryStats;

use local::{
    GatheredBody, LineEnds, LocalConfig, LocalDelivery, LocalOpenError, MailboxMessage, MailboxTarget, ReplayReport,
};
use standalone::Standalone;

/// Default of the messages in one batch at most.
///
/// Measured (bench `executor`, 256 tasks, 2 shared cores, ext4, thousand messages a second at 1 / 64 / 2000 mailboxes,
/// median of 3, two flushes): 64: 4.1 / 6.8 / 9.0; 128: 3.4 / 6.5 / 10.2; 256: 3.6 / 6.5 / 11.1. Larger batches gain
/// only where each message has its own mailbox, by about the noise of the runs, and make everybody in them wait longer.
pub const DEFAULT_MAX_BATCH: usize = 64;

/// Default time for which a partial batch waits for more messages: none. Messages that arrive during a sync form the
/// next batch.
///
/// Measured likewise: a lone message takes 0.4 ms (a plain write and `fdatasync` 0.2 ms); with a window of 10 ms it
/// takes 11.8 ms.
pub const DEFAULT_MAX_WAIT: Duration = Duration::ZERO;

/// Default of the concurrent batches for each mounted file system.
///
/// Measured as for [`DEFAULT_MAX_BATCH`], batches of 64: 1 flush 3.5 / 2.9 / 5.7; 2 flushes 4.1 / 6.8 / 9.0; 3 flushes
/// 3.6 / 5.3 / 10.6. The second writes while the first waits for the device; a third mostly makes batches smaller.
pub const DEFAULT_MAX_CONCURRENT_FLUSHES: usize = 2;

/// Takes messages from any number of tasks and makes them durable together.
///
/// Clones share one executor. Dropping the last flushes accepted messages and ends the threads;
/// [`shutdown`](Self::shutdown) waits for that.
#[derive(Clone, Debug)]
pub struct DeliveryExecutor {
    mode: Mode,
}

#[derive(Clone, Debug)]
enum Mode {
    Standalone(Standalone),
    Journaled { delivery: LocalDelivery, mail_root: Arc<Path> },
}

impl DeliveryExecutor {
    /// A standalone executor with the defaults.
    ///
    /// The first message for a file system starts its threads; no tokio runtime is needed to call this.
    pub fn spawn() -> Self {
        Self::with_config(DEFAULT_MAX_BATCH, DEFAULT_MAX_WAIT)
    }

    /// A standalone executor with limits of its batches' size and waiting time.
    pub fn with_config(max_batch: usize, max_wait: Duration) -> Self {
        Self::with_full_config(max_batch, max_wait, DEFAULT_MAX_CONCURRENT_FLUSHES)
    }

    /// A standalone executor. Values of 0 for `max_batch` and `max_concurrent_flushes` count as 1.
    ///
    /// Queued messages are bounded: 16 batches per file system; beyond that `deliver` waits.
    pub fn with_full_config(max_batch: usize, max_wait: Duration, max_concurrent_flushes: usize) -> Self {
        let config = flusher::Config {
            max_batch: max_batch.max(1),
            max_wait,
            max_concurrent_flushes: max_concurrent_flushes.max(1),
        };
        Self { mode: Mode::Standalone(Standalone::new(config)) }
    }

    /// A journaled executor with its spool in `dir/spool` and its mailboxes below `dir/mail`, and the report of its
    /// opening.
    ///
    /// # Errors
    /// See [`LocalOpenError`].
    pub fn with_journal(dir: impl AsRef<Path>) -> Result<(Self, ReplayReport), LocalOpenError> {
        let dir = dir.as_ref();
        let config = LocalConfig::new(dir.join("spool"), dir.join("mail"));
        Self::with_journal_config(config)
    }

    /// A journaled executor. [`LocalDelivery`] itself offers more: several mailboxes for one message, bodies larger
    /// than memory.
    ///
    /// # Errors
    /// See [`LocalOpenError`].
    pub fn with_journal_config(config: LocalConfig) -> Result<(Self, ReplayReport), LocalOpenError> {
        let mail_root = config.mail_root.as_path().into();
        let (delivery, report) = LocalDelivery::open(config)?;
        Ok((Self { mode: Mode::Journaled { delivery, mail_root } }, report))
    }

    /// Delivers one message to the Maildir at `path` and returns once it is durable.
    ///
    /// The bytes are written unchanged; [`locate`](Self::locate) finds the file. A missing Maildir is made (mode 0700).
    /// The path is trusted: absolute, or relative to the working directory. In journaled mode it must be below the mail
    /// root, absolute or relative to it; otherwise [`DeliveryError::BadMailbox`]. The message then becomes visible
    /// shortly after this returns. Dropping the future once the message is queued does not take it back.
    ///
    /// # Errors
    /// [`DeliveryError`]: each variant says what the caller can do. After an error no file of this message exists,
    /// unless one could not be removed after a failed sync.
    pub async fn deliver(&self, path: impl AsRef<Path>, body: impl Into<Bytes>) -> Result<MessageId, DeliveryError> {
        match &self.mode {
            Mode::Standalone(standalone) => standalone.deliver(path.as_ref(), body.into()).await,
            Mode::Journaled { delivery, mail_root } => {
                let mailbox = mailbox_below(mail_root, path.as_ref())?;
                let target = MailboxTarget { mailbox: mailbox.into(), prefix: Bytes::new() };
                let body = GatheredBody::Memory(vec![body.into()]);
                let message =
                    MailboxMessage { targets: vec![target], body, line_ends: LineEnds::AsGiven, also: Vec::new() };
                let kept = delivery.deliver_message(message).await?;
                Ok(kept.names().next().expect("one name for one target"))
            }
        }
    }

    /// Finds the file of a message: in `new/` or `cur/` of the Maildir at `path`, under a name that begins with its id.
    /// `None` if it is not there: in journaled mode it may not be delivered yet, and a mail reader may have moved or
    /// removed it. `path` is the one given to [`deliver`](Self::deliver). Reads a directory, so it may block.
    ///
    /// # Errors
    /// [`DeliveryError::BadMailbox`] as for `deliver`, [`DeliveryError::Mailbox`] when the Maildir cannot be read.
    pub fn locate(&self, path: impl AsRef<Path>, id: &MessageId) -> Result<Option<PathBuf>, DeliveryError> {
        let path = match &self.mode {
            Mode::Standalone(_) => path.as_ref().to_owned(),
            Mode::Journaled { mail_root, .. } => mail_root.join(mailbox_below(mail_root, path.as_ref())?),
        };
        let maildir = match Maildir::open(&path) {
            Ok(maildir) => maildir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(DeliveryError::Mailbox(error)),
        };
        let found = maildir.find(id.as_str()).map_err(DeliveryError::Mailbox)?;
        Ok(found.map(|found| path.join(found.dir.as_str()).join(found.name)))
    }

    /// Statistics since the start.
    pub fn stats(&self) -> DeliveryStats {
        match &self.mode {
            Mode::Standalone(standalone) => standalone.stats(),
            Mode::Journaled { delivery, .. } => delivery.stats().into(),
        }
    }

    /// Refuses further messages on all clones, flushes accepted ones, and returns once the threads have ended.
    pub async fn shutdown(&self) {
        match &self.mode {
            Mode::Standalone(standalone) => standalone.shutdown().await,
            Mode::Journaled { delivery, .. } => delivery.shutdown().await,
        }
    }
}

/// The name of the mailbox at `path`, which is absolute or relative to the mail root.
fn mailbox_below<'a>(mail_root: &Path, path: &'a Path) -> Result<&'a str, DeliveryError> {
    let bad = |why: String| DeliveryError::BadMailbox(format!("{}: {why}", path.display()).into());
    let below = match path.strip_prefix(mail_root) {
        Ok(below) => below,
        Err(_) if path.is_absolute() => {
            return Err(bad(format!("lies outside the mail root, {}", mail_root.display())));
        }
        Err(_) => path,
    };
    let mailbox = below.to_str().ok_or_else(|| bad("not UTF-8".into()))?;
    MailboxPath::parse(mailbox).map_err(|error| bad(error.to_string()))?;
    Ok(mailbox)
}

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
