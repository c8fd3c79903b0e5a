//! SEARCH of IMAP by the index of all mail.
//!
//! Messages are identified by file. The session reads those that are not indexed yet, so the answer does not depend
//! on the index's progress.

use std::collections::VecDeque;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use posthaste_imap::driver::TextSearch;
use posthaste_imap::session::{TextAnswer, TextKey};
use posthaste_mailstore::MailboxFiles;
use posthaste_search::{FolderFiles, IndexError, Searcher};

use posthaste_config::Search;

/// Interval of checks for a newer commit; newer messages are read meanwhile.
const COMMIT_KEPT: Duration = Duration::from_secs(1);
/// Maximum folders whose files are cached, and maximum of all files.
const FOLDERS_MAX: usize = 64;
const FILES_MAX: usize = 4_000_000;

/// The index, as the sessions ask it.
#[derive(Debug, Clone)]
pub(crate) struct IndexSearch(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    /// The directory of all mail, absolute.
    mail: PathBuf,
    opened: Mutex<Option<Arc<Opened>>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IndexSearch").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// A commit of the index, open for search.
struct Opened {
    searcher: Searcher,
    looked_at: Mutex<Instant>,
    /// Least recently used first.
    folders: Mutex<VecDeque<(String, Arc<FolderFiles>)>>,
}

impl IndexSearch {
    /// `None` if mail is not indexed.
    pub fn new(config: &Search, mail: &Path) -> Option<Self> {
        let mail = std::path::absolute(mail).unwrap_or_else(|_| mail.to_owned());
        config.index.then(|| Self(Arc::new(Inner { dir: config.dir.clone(), mail, opened: Mutex::default() })))
    }
}

impl TextSearch for IndexSearch {
    fn find(
        &self,
        files: Arc<dyn MailboxFiles>,
        keys: Vec<TextKey>,
    ) -> Pin<Box<dyn Future<Output = Vec<Option<TextAnswer>>> + Send>> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let answers = tokio::task::spawn_blocking(move || inner.find(&*files, &keys)).await;
            match answers {
                Ok(Ok(answers)) => answers,
                Ok(Err(error)) => {
                    tracing::debug!(
                        error = error.to_string(),
                        "the search index is unreadable: IMAP searches read the mail itself"
                    );
                    Vec::new()
                }
                Err(_) => Vec::new(),
            }
        })
    }
}

impl Inner {
    fn find(&self, files: &dyn MailboxFiles, keys: &[TextKey]) -> Result<Vec<Option<TextAnswer>>, IndexError> {
        let opened = self.opened()?;
        let known = opened.files_in(&self.mail, files.folder())?;
        let searched: Result<Vec<_>, IndexError> =
            keys.iter().map(|key| opened.searcher.containing(&key.field, &key.needle)).collect();
        let searched = searched?;
        let mut answers: Vec<Option<TextAnswer>> =
            searched.iter().map(|searched| searched.as_ref().map(|_| TextAnswer::default())).collect();
        files.for_each(&mut |uid, name| {
            let Some(number) = known.number(name) else { return };
            for (answer, searched) in answers.iter_mut().zip(&searched) {
                let (Some(answer), Some(searched)) = (answer, searched) else { continue };
                if searched.open.get(number) {
                    continue;
                }
                answer.known.push(uid.get());
                if searched.found.get(number) {
                    answer.found.push(uid.get());
                }
            }
        });
        Ok(answers)
    }

    fn opened(&self) -> Result<Arc<Opened>, IndexError> {
        let mut opened = lock(&self.opened);
        if let Some(opened) = &*opened {
            let mut looked_at = lock(&opened.looked_at);
            if looked_at.elapsed() < COMMIT_KEPT {
                return Ok(Arc::clone(opened));
            }
            if opened.searcher.snapshot().is_newest() {
                *looked_at = Instant::now();
                return Ok(Arc::clone(opened));
            }
        }
        // Files of the old commit are given back first.
        *opened = None;
        let searcher = Searcher::open(&self.dir)?;
        let new = Opened { searcher, looked_at: Mutex::new(Instant::now()), folders: Mutex::default() };
        Ok(Arc::clone(opened.insert(Arc::new(new))))
    }
}

impl Opened {
    fn files_in(&self, mail: &Path, folder: String) -> Result<Arc<FolderFiles>, IndexError> {
        {
            let mut folders = lock(&self.folders);
            if let Some(at) = folders.iter().position(|(known, _)| *known == folder)
                && let Some(known) = folders.remove(at)
            {
                let files = Arc::clone(&known.1);
                folders.push_back(known);
                return Ok(files);
            }
        }
        let files = Arc::new(self.searcher.files_in(mail, &folder)?);
        let mut folders = lock(&self.folders);
        folders.push_back((folder, Arc::clone(&files)));
        let count = |folders: &VecDeque<(String, Arc<FolderFiles>)>| -> usize {
            folders.iter().map(|(_, files)| files.len()).sum()
        };
        while folders.len() > FOLDERS_MAX || folders.len() > 1 && count(&folders) > FILES_MAX {
            folders.pop_front();
        }
        Ok(files)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Each holder leaves it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
