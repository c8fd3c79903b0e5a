//! The mailboxes with their UIDs and flags, as protocols serve them.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_intake::{Destination, Intake, MemoryBudget};
use posthaste_maildir::MailboxPath;
use posthaste_mailstore::ledger::{LedgerReport, MailLedger, MailLedgerError, applied_in};
use posthaste_mailstore::table::{FILE as TABLE_FILE, MetaError};
use posthaste_mailstore::{FileWriter, FolderTable, MaildirLogins, MaildirStore, QuotaTable};
use posthaste_spool::{Damage, Lsn, Spool, StoreKind};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::config::error::ServeError;
use crate::lifecycle::{Ending, OnFailure, Service, end_blocking};
use crate::receive::handler::Receiver;
use crate::services::opening::log_damaged;
use posthaste_config::Config;
use posthaste_directory::Directory;

pub(crate) const NAME: &str = "mailboxes";
/// Timeout of a mailbox's removal for deliveries in flight.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(10);

/// The last batch in the table of mailboxes: batches of a new spool begin above it. An existing spool continues its
/// numbers, and an unreadable table is reported when it is opened.
///
/// # Errors
/// [`ServeError::UnknownLsn`]: the spool is new, and its first numbers could repeat those in the table.
pub(crate) fn last_lsn(config: &Config) -> Result<Lsn, ServeError> {
    match applied_in(&config.mailstore_dir()) {
        Ok(applied) => Ok(Lsn::new(applied)),
        Err(_) if StoreKind::of(&config.storage.spool).is_some() => Ok(Lsn::ZERO),
        Err(error) => Err(ServeError::UnknownLsn { table: table_of(config), error: error.to_string() }),
    }
}

fn table_of(config: &Config) -> PathBuf {
    config.mailstore_dir().join(TABLE_FILE)
}

/// Mailboxes that could not be opened.
pub(crate) struct UnreadableMailboxes {
    pub error: String,
    /// Remedy for the operator.
    pub help: String,
}

impl UnreadableMailboxes {
    fn of_ledger(error: &MailLedgerError, table: &Path) -> Self {
        let table = table.display();
        let (error, remedy) = match error {
            MailLedgerError::Table(MetaError::Damaged(_) | MetaError::Value(_)) => (
                format!("{table}: {error}"),
                format!(
                    "stop the server, put this file back, or remove it (`rm {table}`: each mailbox gets new UIDs, and clients load their mail again), \
                     and start it again"
                ),
            ),
            MailLedgerError::Table(MetaError::Disk(_) | MetaError::NoRoom(_)) => {
                (format!("{table}: {error}"), CAUSE.to_owned())
            }
            error => (error.to_string(), CAUSE.to_owned()),
        };
        Self { error, help: format!("{UNREADABLE}: {remedy}") }
    }

    fn of_system(error: std::io::Error) -> Self {
        Self { error: error.to_string(), help: format!("{UNREADABLE}: {CAUSE}") }
    }
}

const UNREADABLE: &str = "mail is received, and nobody can read it by IMAP or POP3";
const CAUSE: &str = "repair the cause, then restart the server";

/// Removes a mailbox by a time.
type RemoveMailbox = Box<dyn Fn(&str, std::time::Instant) -> Result<(), String> + Send + Sync>;

type SettleMaildirs = Box<dyn Fn(Duration) -> Result<(), String> + Send + Sync>;

/// The files of mail that is delivered.
pub(crate) struct DeliveredFiles {
    /// True if a mailbox still lacks the mail of a batch, or its file is not durable.
    pub awaits: Box<dyn Fn(Lsn) -> bool + Send + Sync>,
    /// Destination that writes the files.
    pub writer: Arc<dyn Destination>,
    /// Cancels the delivery of mail accepted so far for a mailbox.
    pub remove: RemoveMailbox,
    /// Makes files in progress durable, with a timeout.
    pub settle: SettleMaildirs,
}

/// Facts of the table of mailboxes that delivery acts on.
pub(crate) struct KnownMail {
    /// Part of the names of files, random for each start.
    pub nonce: u32,
    /// Targets of expunged messages.
    pub expunged: HashSet<(Lsn, u16)>,
}

/// The open table of mailboxes.
pub(crate) struct MailTable {
    ledger: Arc<MailLedger>,
    nonce: u32,
    expunged: HashSet<(Lsn, u16)>,
}

impl MailTable {
    /// Opens the table, and reads missing entries from the spool: before delivery makes files of an interrupted run.
    /// `damage`: reported by the spool's opening.
    pub async fn open(config: &Config, damage: &[Damage], spool: Arc<dyn Spool>) -> Result<Self, UnreadableMailboxes> {
        let table = table_of(config);
        let host = config.host_name.to_string();
        let damage = damage.to_vec();
        // Keyed with random bytes of the system for each of its values.
        let nonce = RandomState::new().hash_one(0_u8) as u32;
        let open = move || {
            let dir = table.parent().expect("it is in a directory");
            let opened = MailLedger::open(spool, &damage, dir, &host, nonce);
            let opened = opened.and_then(|(ledger, report)| Ok((ledger.expunged_mail()?, ledger, report)));
            let (expunged, ledger, report) = opened.map_err(|error| UnreadableMailboxes::of_ledger(&error, &table))?;
            let expunged = expunged.into_iter().map(|(lsn, number)| (Lsn::new(lsn), number)).collect();
            Ok((Self { ledger: Arc::new(ledger), nonce, expunged }, report))
        };
        let opened = spawn_blocking(open).await.map_err(|error| UnreadableMailboxes::of_system(error.into()));
        let (opened, report) = opened.flatten()?;
        tell(&report, &table_of(config));
        Ok(opened)
    }

    /// The mail that the mailboxes know, for delivery.
    pub fn known(&self) -> KnownMail {
        KnownMail { nonce: self.nonce, expunged: self.expunged.clone() }
    }
}

/// The open mailboxes.
pub(crate) struct Mailboxes {
    ledger: Arc<MailLedger>,
    store: Arc<MaildirStore>,
}

impl Mailboxes {
    /// Serves the mailboxes of a table. `files`: access to their writers.
    pub async fn open(
        MailTable { ledger, .. }: MailTable,
        config: &Config,
        (intake, memory): (Intake, MemoryBudget),
        files: DeliveredFiles,
    ) -> Result<Self, UnreadableMailboxes> {
        let mail = config.storage.mail.clone();
        let cache = config.mailstore_dir();
        let quotas = quotas_of(config, &config.directory());
        let folders = folders_of(config);
        let DeliveredFiles { awaits, writer, remove, settle } = files;
        let open = move || {
            let is_pending = Box::new(move |lsn| awaits(Lsn::new(lsn)));
            let store = MaildirStore::open_cached(&mail, Arc::clone(&ledger), is_pending, &cache)
                .map_err(UnreadableMailboxes::of_system)?;
            let forget = move |mailbox: &MailboxPath| {
                remove(mailbox.as_str(), std::time::Instant::now() + REMOVAL_PATIENCE).map_err(std::io::Error::other)
            };
            let settle = move || settle(REMOVAL_PATIENCE).map_err(std::io::Error::other);
            let writer = FileWriter { files: writer, forget: Box::new(forget), settle: Box::new(settle) };
            store.open_for_append(intake, writer, memory);
            store.limit(quotas);
            store.name_usual_folders(folders);
            Ok(Self { ledger, store: Arc::new(store) })
        };
        spawn_blocking(open).await.map_err(|error| UnreadableMailboxes::of_system(error.into())).flatten()
    }

    /// True if an earlier start had mailboxes.
    pub fn are_kept(config: &Config) -> bool {
        config.mailstore_dir().is_dir()
    }

    pub fn store(&self) -> &Arc<MaildirStore> {
        &self.store
    }
}

fn quotas_of(config: &Config, directory: &Directory) -> QuotaTable {
    config.quota.table(&config.domains, directory).expect("checked with the configuration")
}

fn folders_of(config: &Config) -> FolderTable {
    config.mailstore.usual_folders(&config.domains).expect("checked with the configuration")
}

/// The mailboxes of the users.
pub(crate) fn of_users(store: Arc<MaildirStore>, receiver: Receiver) -> Arc<MaildirLogins> {
    let find = move |login: &str| MailboxPath::parse(&receiver.settings().directory.maildir_of(login)?).ok();
    Arc::new(MaildirLogins::new(store, Box::new(find)).with_usual_folders())
}

fn tell(report: &LedgerReport, table: &Path) {
    let LedgerReport { replayed, damaged, lost, other_spool, has_skipped, unknown } = report;
    log_damaged(damaged, NAME);
    if let Some((0, _)) = lost {
        let file = table.display();
        tracing::error!(
            %file,
            "the table of mailboxes is gone, and a new one was made: each mailbox gets new UIDs, and clients load their mail again. If you have the file, \
             stop the server, put it back, and start it again"
        );
    } else if let Some((applied, position)) = lost {
        tracing::error!(
            applied,
            position,
            "the table of mailboxes lost a commit: UIDs and flags of that time are lost"
        );
    }
    if let Some((applied, last)) = other_spool {
        tracing::error!(%applied, %last, "the table of mailboxes is newer than the spool: this is another spool");
    }
    if *has_skipped {
        tracing::error!("each mailbox skips 1,048,576 UIDs: some assigned ones may be lost");
    }
    if let Some(first) = unknown.first() {
        tracing::error!(
            batches = unknown.len(),
            %first,
            "skipped entries of mailboxes that a later version wrote"
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

    fn reload(&mut self, config: &Config, directory: &Arc<Directory>) -> Vec<&'static str> {
        self.store.limit(quotas_of(config, directory));
        self.store.name_usual_folders(folders_of(config));
        Vec::new()
    }

    fn stop(self: Box<Self>, _: Instant) -> Ending<'static> {
        end_blocking(move || {
            self.store.note_listings();
            self.ledger.end();
            // Last: a directory may hang.
            self.store.write_uid_lists();
        })
    }

    fn poll_failed(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}
