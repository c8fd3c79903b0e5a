//! The mailboxes of a stopped server, under the lock of its spool. Nothing is received or sent meanwhile.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::time::Duration;

use posthaste_config::Config;
use posthaste_intake::MemoryBudget;
use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

use super::account::{self, ControlMailboxes};
use super::answering::REQUEST_BYTES_MAX;
use super::closed_spool::{ClosedError, check_closed, unreadable};
use crate::lifecycle::Services;
use crate::receive::events::Events;
use crate::repeats::Repeats;
use crate::services::mailboxes::{MailTable, Mailboxes, last_lsn};
use crate::services::maildirs::MaildirService;
use crate::services::opening::open_spool;

/// The mailboxes, open.
pub(super) struct ClosedMailboxes {
    runtime: Runtime,
    services: Services,
    control: ControlMailboxes,
}

impl ClosedMailboxes {
    /// Opens the mailboxes of this configuration. Blocks while the spool is read.
    ///
    /// # Errors
    /// See [`ClosedError`].
    pub fn open(config: &Config) -> Result<Self, ClosedError> {
        check_closed(config)?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| unreadable(config, error))?;
        let mut services = Services::default();
        match runtime.block_on(open(config, &mut services)) {
            Ok(control) => Ok(Self { runtime, services, control }),
            Err(error) => {
                runtime.block_on(services.stop(PATIENCE));
                Err(error)
            }
        }
    }

    /// Serves a session about an account, then closes the mailboxes.
    pub fn serve(self, account: String, stream: StdStream, uid: u32) -> io::Result<()> {
        let Self { runtime, services, control } = self;
        stream.set_nonblocking(true)?;
        let served = runtime.block_on(async {
            let (read, write) = UnixStream::from_std(stream)?.into_split();
            let commands = BufReader::new(read.take(REQUEST_BYTES_MAX));
            account::serve(commands, write, Some(control), account, uid).await
        });
        runtime.block_on(services.shutdown(PATIENCE));
        served
    }
}

/// Opens mailboxes. Delivery makes the files of added messages, and finishes an earlier run's work.
async fn open(config: &Config, services: &mut Services) -> Result<ControlMailboxes, ClosedError> {
    let last = last_lsn(config).map_err(|error| unreadable(config, error))?;
    let opened = open_spool(config, Arc::<Repeats>::default(), posthaste_watch::Watch::default(), last).await;
    let opened = opened.map_err(|error| unreadable(config, error))?;
    if let Some(error) = opened.without_events {
        let error = error.to_string();
        tracing::error!(error, "the event log cannot be opened: no events are recorded");
    }
    let recorder = opened.events.as_ref().map(Events::recorder);
    let (intake, damage) = (opened.intake, opened.found.damage);
    let table = MailTable::open(config, &damage, Arc::clone(intake.spool())).await;
    let table = table.map_err(|failed| unreadable(config, failed.error))?;
    let maildirs = MaildirService::open(config, intake.clone(), &damage, recorder, Some(table.known())).await;
    let (maildirs, _, _) = maildirs.map_err(|error| unreadable(config, error))?;
    let files = maildirs.files();
    services.add(maildirs);
    if let Some(events) = opened.events {
        services.add_stopping_last(events);
    }
    let memory = MemoryBudget::new(config.limits.process.memory_bytes);
    let mailboxes = Mailboxes::open(table, config, (intake, memory), files).await;
    let mailboxes = mailboxes.map_err(|failed| unreadable(config, failed.error))?;
    let directory = config.directory();
    let maildir_of = move |name: &str| Some(directory.maildir_of(&directory.login_name(name)?)?.to_string());
    let control = ControlMailboxes::new(config, Arc::clone(mailboxes.store()), Arc::new(maildir_of));
    services.add(mailboxes);
    Ok(control)
}

const PATIENCE: Duration = Duration::from_secs(60);
