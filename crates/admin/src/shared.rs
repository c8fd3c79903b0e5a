//! State that all requests share.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::body::BodyRoom;
use crate::guard::HostNames;
use crate::history::History;
use crate::looks::{Cached, Seen};
use crate::page::Page;
use crate::rates::TokenRates;
use crate::session::{Grant, PageLinks, Sessions};
use crate::streams::LiveStreams;
use crate::token::{Token, hash};
use crate::token_file::{KnownTokens, TokensUnreadable};
use crate::view::{QueueStatus, ServerStatus, ServerView};

/// State that all requests share.
pub(crate) struct Shared<V> {
    pub view: V,
    pub tokens: KnownTokens,
    pub sessions: Sessions,
    pub links: Arc<PageLinks>,
    pub history: History,
    pub page: Page,
    pub room: BodyRoom,
    pub rates: TokenRates,
    /// Permits for concurrent requests to the queue.
    pub asks: Arc<Semaphore>,
    pub streams: LiveStreams,
    /// True once a request has started a drain.
    pub is_drained: AtomicBool,
    pub names: RwLock<Arc<HostNames>>,
    pub status: Cached<ServerStatus>,
    /// Cached queue status by tenant. The empty name, which no tenant has, is the whole queue.
    pub queues: Mutex<HashMap<String, Arc<OneQueue>>>,
    pub seen: Seen,
}

/// Cached status of a queue, or of a tenant's part of it.
#[derive(Debug, Default)]
pub(crate) struct OneQueue {
    looks: Cached<QueueStatus>,
    seen: Seen,
}

impl<V: ServerView> Shared<V> {
    pub fn names(&self) -> Arc<HostNames> {
        Arc::clone(&self.names.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The token of the first password; `None` if the text is not that password.
    pub async fn of_password(self: &Arc<Self>, presented: &str) -> Option<Arc<Token>> {
        let (shared, presented) = (Arc::clone(self), presented.to_owned());
        let look = move || shared.view.is_first_password(&presented).then(|| Token::of_password(hash(&presented)));
        spawn_blocking(look).await.ok().flatten().map(Arc::new)
    }

    /// Cached status of the server; `None` if it cannot be read in time.
    pub async fn status(self: &Arc<Self>) -> Option<Arc<ServerStatus>> {
        let shared = Arc::clone(self);
        let look = move || {
            let mut status = shared.view.status();
            shared.seen.date(&mut status.attention, unix_secs());
            status
        };
        self.status.get(look).await
    }

    /// Cached status of the queue, or of a tenant's part of it; in a cluster, of all nodes. `None` if it cannot be read
    /// in time.
    pub async fn queue(self: &Arc<Self>, tenant: Option<&str>) -> Option<Arc<QueueStatus>> {
        self.look_at_queue(tenant.unwrap_or_default(), tenant, V::whole_queue).await
    }

    /// This server's queue for a scrape. Never waits for work that grows with the queue: if the last read took long,
    /// its result is returned, and the next read starts in the background.
    pub async fn queue_for_scrape(self: &Arc<Self>) -> Option<Arc<QueueStatus>> {
        // A server that is no node has one look for pages and scrapes.
        let name = if self.view.is_node() { THIS_NODE } else { "" };
        let Some(last) = self.queue_of(name).looks.last_if_long() else {
            return self.look_at_queue(name, None, V::queue).await;
        };
        let shared = Arc::clone(self);
        tokio::spawn(async move { shared.look_at_queue(name, None, V::queue).await });
        Some(last)
    }

    async fn look_at_queue(
        self: &Arc<Self>,
        name: &str,
        tenant: Option<&str>,
        look: fn(&V, Option<&str>) -> QueueStatus,
    ) -> Option<Arc<QueueStatus>> {
        let one = self.queue_of(name);
        let (shared, looking, tenant) = (Arc::clone(self), Arc::clone(&one), tenant.map(str::to_owned));
        let look = move || {
            let mut queue = look(&shared.view, tenant.as_deref());
            looking.seen.date(&mut queue.attention, unix_secs());
            queue
        };
        one.looks.get(look).await
    }

    fn queue_of(&self, name: &str) -> Arc<OneQueue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(queues.entry(name.to_owned()).or_default())
    }

    /// The rights of a session.
    ///
    /// # Errors
    /// The file of tokens cannot be used.
    pub async fn of_session(&self, presented: &str, is_loopback: bool) -> Result<Option<Arc<Token>>, TokensUnreadable> {
        let now = unix_secs();
        match self.sessions.find(presented, now).await {
            None => Ok(None),
            Some(Grant::OfLink(token)) => Ok(Some(token)),
            Some(Grant::OfToken(of)) => {
                let is_first = || is_loopback && self.view.first_password() == Some(of);
                let token = self.tokens.find_hash(&of, now).await?;
                Ok(token.or_else(|| is_first().then(|| Arc::new(Token::of_password(of)))))
            }
        }
    }
}

/// Cache key of this node's part of the queue; no tenant has such a name.
const THIS_NODE: &str = "\0";

/// The wall clock, in seconds since 1970.
pub(crate) fn unix_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Maximum concurrent requests: some scan the whole queue.
pub(crate) const ASKS_MAX: usize = 4;
