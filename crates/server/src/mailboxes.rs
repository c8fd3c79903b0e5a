//! The mailboxes with their UIDs and flags, as protocols serve them.

use std::sync::Arc;
use std::task::{Context, Poll};

use posthaste_delivery::local::LocalDelivery;
use posthaste_maildir::MailboxPath;
use posthaste_mailstore::ledger::{LedgerReport, MailLedger, applied_in};
use posthaste_mailstore::{MaildirLogins, MaildirStore};
use posthaste_spool::{Damage, Lsn};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::error::ServeError;
use crate::opening::log_damaged;
use crate::receive::Receiver;
use crate::services::{Ending, OnFailure, Service, end_blocking};
use posthaste_config::Config;

pub(crate) const NAME: &str = "mailboxes";
/// The remedy where they cannot be opened.
pub(crate) const HELP: &str =
    "mail is received, and nobody can read it by IMAP or POP3: repair the cause, then restart the server";
/// The directory of the table of mailboxes, below that of all data.
pub const MAILSTORE_DIRECTORY: &str = "mailstore";

/// The last batch that the table of mailboxes has. A table that cannot be read is told when it is opened.
pub(crate) fn last_lsn(config: &Config) -> Lsn {
    Lsn::new(applied_in(&config.storage.data.join(MAILSTORE_DIRECTORY)).unwrap_or(0))
}

/// The open mailboxes.
pub(crate) struct Mailboxes {
    ledger: Arc<MailLedger>,
    store: Arc<MaildirStore>,
}

impl Mailboxes {
    /// Opens the table, and reads from the spool what it lacks.
    ///
    /// # Errors
    /// [`ServeError::Service`].
    ///
    /// `damage`: of the spool, as its opening reported it.
    pub async fn open(config: &Config, damage: &[Damage], delivery: &LocalDelivery) -> Result<Self, ServeError> {
        let (spool, nonce) = (Arc::clone(delivery.intake().spool()), delivery.file_nonce());
        let (dir, mail) = (config.storage.data.join(MAILSTORE_DIRECTORY), config.storage.mail.clone());
        let (host, damage) = (config.host_name.to_string(), damage.to_vec());
        let (awaits, files) = (delivery.clone(), delivery.clone());
        let open = move || {
            let (ledger, report) =
                MailLedger::open(spool, &damage, &dir, &host, nonce).map_err(std::io::Error::other)?;
            let ledger = Arc::new(ledger);
            let store =
                MaildirStore::open(&mail, Arc::clone(&ledger), Box::new(move |lsn| awaits.needs_body(Lsn::new(lsn))))?;
            store.open_for_append(files.intake().clone(), Arc::new(files));
            Ok((Self { ledger, store: Arc::new(store) }, report))
        };
        let opened = spawn_blocking(open).await.map_err(std::io::Error::from).flatten();
        let (mailboxes, report) = opened.map_err(|error| ServeError::Service { service: NAME, error })?;
        tell(&report);
        Ok(mailboxes)
    }

    /// True if an earlier start had mailboxes.
    pub fn are_kept(config: &Config) -> bool {
        config.storage.data.join(MAILSTORE_DIRECTORY).is_dir()
    }

    pub fn store(&self) -> &Arc<MaildirStore> {
        &self.store
    }
}

/// The mailboxes of the users.
pub(crate) fn of_users(store: Arc<MaildirStore>, receiver: Receiver) -> Arc<MaildirLogins> {
    let find = move |login: &str| MailboxPath::parse(&receiver.settings().directory.maildir_of(login)?).ok();
    Arc::new(MaildirLogins::new(store, Box::new(find)))
}

fn tell(report: &LedgerReport) {
    let LedgerReport { replayed, damaged, lost, other_spool, has_skipped, unknown } = report;
    log_damaged(damaged, NAME);
    if let Some((applied, position)) = lost {
        tracing::error!(
            applied,
            position,
            "the table of mailboxes lost a commit: UIDs and flags of that time are lost"
        );
    }
    if let Some((applied, last)) = other_spool {
        tracing::error!(applied, last, "the spool ends before the table of mailboxes: this is another spool");
    }
    if *has_skipped {
        tracing::error!("each mailbox leaves out 1,048,576 UIDs: some of those that were given may be lost");
    }
    if let Some(first) = unknown.first() {
        tracing::error!(
            batches = unknown.len(),
            first,
            "entries of mailboxes that a later version wrote are passed over"
        );
    }
    tracing::info!(replayed, "mailboxes opened");
}

impl Service for Mailboxes {
    fn name(&self) -> &'static str {
        NAME
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("nobody can read mail")
    }

    fn stop(self: Box<Self>, _: Instant) -> Ending<'static> {
        end_blocking(move || self.ledger.end())
    }

    fn poll_failed(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}
