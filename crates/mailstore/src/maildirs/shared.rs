//! Services and tables of a store, shared by its mailboxes.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use posthaste_maildir::{MailRoot, MailboxPath};
use tokio::sync::Semaphore;

use super::appender::MailAppender;
use super::copy_names::CopyNames;
use super::gone_dirs::GoneDirs;
use super::header_cache::HeaderCache;
use super::hot_dirs::HotDirs;
use super::locks::lock;
use super::moved_paths::MovedPaths;
use super::owner::Owner;
use super::quota::Quotas;
use super::read_turns::ReadTurns;
use crate::ledger::{MailLedger, MailLedgerError};
use crate::name::{FolderTable, UsualFolders};

/// True while delivery has not made all files of a batch.
pub type IsPending = dyn Fn(u64) -> bool + Send + Sync;

/// Services and tables of a store that its mailboxes share.
pub(super) struct Shared {
    pub root: Arc<MailRoot>,
    pub ledger: Arc<MailLedger>,
    pub is_pending: Box<IsPending>,
    pub gone_dirs: Arc<GoneDirs>,
    pub appender: MailAppender,
    pub copy_names: CopyNames,
    pub quotas: Quotas,
    /// Number of rebuilt mailboxes: since then paths stand for other ids.
    pub replaced: AtomicU64,
    pub header_cache: HeaderCache,
    pub hot_dirs: Arc<HotDirs>,
    /// Permits for threads that read messages, shared by all mailboxes.
    pub read_turns: Arc<Semaphore>,
    /// Folders of new accounts.
    usual_folders: RwLock<FolderTable>,
    pub moved_paths: MovedPaths,
    /// Accounts by path of their INBOX; `None` until needed.
    account_ids: Mutex<Option<HashMap<String, u32>>>,
}

impl Shared {
    /// `root_path`: path of `root`. Needs a tokio runtime.
    ///
    /// # Errors
    /// The table of mailboxes cannot be read.
    pub fn new(
        root_path: &Path,
        root: MailRoot,
        ledger: Arc<MailLedger>,
        is_pending: Box<IsPending>,
        header_cache: HeaderCache,
    ) -> Result<Self, MailLedgerError> {
        let root = Arc::new(root);
        // A kill came between their batch and their directories.
        let pending = ledger.pending_directories()?.into_iter();
        let leaving = pending.filter_map(|pending| String::from_utf8(pending.from.into()).ok());
        Ok(Self {
            gone_dirs: Arc::new(GoneDirs::new(Arc::clone(&root), root_path)),
            root,
            ledger,
            is_pending,
            appender: MailAppender::default(),
            copy_names: CopyNames::new(),
            quotas: Quotas::default(),
            replaced: AtomicU64::new(0),
            header_cache,
            hot_dirs: HotDirs::new(root_path),
            read_turns: ReadTurns::of_all(),
            usual_folders: RwLock::default(),
            moved_paths: MovedPaths::of(leaving),
            account_ids: Mutex::default(),
        })
    }

    /// Sets the names of the folders that the first login makes.
    pub fn name_usual_folders(&self, folders: FolderTable) {
        *self.usual_folders.write().unwrap_or_else(PoisonError::into_inner) = folders;
    }

    /// Names of the folders that the first login of the account with this INBOX makes.
    pub fn usual_folders(&self, inbox: &MailboxPath) -> Arc<UsualFolders> {
        let folders = self.usual_folders.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(folders.of(inbox.as_str()))
    }

    /// The account of an INBOX, if it is in the ledger. Blocks.
    pub fn owner(&self, inbox: &MailboxPath) -> Result<Option<u32>, MailLedgerError> {
        let mut ids = lock(&self.account_ids);
        if ids.is_none() {
            let rows = self.ledger.accounts()?.into_iter();
            *ids = Some(rows.map(|(id, row)| (String::from_utf8_lossy(&row.name).into_owned(), id)).collect());
        }
        Ok(ids.as_ref().and_then(|ids| ids.get(inbox.as_str()).copied()))
    }

    /// Records that the ledger has an account.
    pub fn note_account(&self, owner: &Owner) {
        if let Some(ids) = &mut *lock(&self.account_ids) {
            ids.entry(owner.path.as_str().to_owned()).or_insert(owner.id);
        }
    }
}
