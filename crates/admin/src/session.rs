//! Browser sessions: they replace a token or a link, so that neither stays in the browser.
//!
//! A session stands for a token and ends with it, or for a link printed by `posthaste page`. Hashes of session secrets
//! are in the file `sessions` of the data directory, so that a restart of the server logs nobody out.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::scope::Scope;
use crate::token::{Secret, Token, TokenHash, hash, hex, unhex};
use crate::token_file::nofollow;

/// A session, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Session {
    hash: TokenHash,
    /// Expiry, in seconds since 1970.
    until: u64,
    grant: Grant,
}

/// The rights of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Grant {
    /// The rights of the token with this hash, while it exists.
    OfToken(TokenHash),
    /// The rights that a link gave.
    OfLink(Arc<Token>),
}

/// User name of a link's session in the log and in events.
const LINK_NAME: &str = "page-link";
const FILE: &str = "sessions";
/// Maximum sessions. Beyond it, the token with the most sessions loses its oldest.
const SESSIONS_MAX: usize = 1000;
/// Maximum sessions of one token, and of all links together. Beyond it the oldest one is dropped.
const OWN_SESSIONS_MAX: usize = 50;
/// Maximum octets of a line: two hashes, a number, names of scopes.
const LINE_BYTES: u64 = 512;
/// Timeout for the disk. After it, sessions are kept in memory only.
const DISK_PATIENCE: Duration = Duration::from_secs(5);

impl Session {
    /// The token whose share of the table it uses. All links share one, as only the operator makes them.
    fn owner(&self) -> Option<TokenHash> {
        match &self.grant {
            Grant::OfToken(of) => Some(*of),
            Grant::OfLink(_) => None,
        }
    }

    /// A line of the file: hash, expiry, and the token's hash or the scopes.
    fn to_line(&self) -> String {
        let grant = match &self.grant {
            Grant::OfToken(of) => format!("token {}", hex(of)),
            Grant::OfLink(token) => {
                let scopes: Vec<&str> = token.scopes().iter().map(|scope| scope.name()).collect();
                format!("link {}", scopes.join(","))
            }
        };
        format!("{} {} {grant}\n", hex(&self.hash), self.until)
    }

    /// `None` if the line is malformed.
    fn parse(line: &str) -> Option<Self> {
        let [hash, until, kind, of] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        let (hash, until) = (unhex(hash)?, until.parse().ok()?);
        let grant = match kind {
            "token" => Grant::OfToken(unhex(of)?),
            "link" => {
                let scopes = of.split(',').map(|scope| scope.parse().ok()).collect::<Option<_>>()?;
                Grant::OfLink(Arc::new(Token::with_hash(LINK_NAME, hash, scopes, Some(until)).ok()?))
            }
            _ => return None,
        };
        Some(Self { hash, until, grant })
    }
}

/// Sessions in memory.
#[derive(Debug, Default)]
struct Known {
    /// Oldest first, at most [`SESSIONS_MAX`].
    sessions: Vec<Session>,
    /// True once the file's sessions are in the table. Until then the file is not written.
    is_read: bool,
}

impl Known {
    /// Adds a session. A token that logs in repeatedly ends its own sessions, never those of another.
    fn add(&mut self, session: Session, now: u64) {
        self.sessions.retain(|session| session.until > now);
        if self.count(session.owner()) >= OWN_SESSIONS_MAX {
            self.remove_oldest(session.owner());
        }
        if self.sessions.len() >= SESSIONS_MAX {
            let owners = self.sessions.iter().map(Session::owner);
            let most = owners.max_by_key(|owner| self.count(*owner)).expect("the table is full");
            self.remove_oldest(most);
        }
        self.sessions.push(session);
    }

    fn count(&self, owner: Option<TokenHash>) -> usize {
        self.sessions.iter().filter(|session| session.owner() == owner).count()
    }

    fn remove_oldest(&mut self, owner: Option<TokenHash>) {
        if let Some(oldest) = self.sessions.iter().position(|session| session.owner() == owner) {
            self.sessions.remove(oldest);
        }
    }
}

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    dir: PathBuf,
    known: Arc<Mutex<Known>>,
    /// A read that timed out: the disk did not answer.
    reading: AsyncMutex<Option<JoinHandle<()>>>,
    /// A write that timed out: the disk did not answer.
    writing: AsyncMutex<Option<JoinHandle<()>>>,
}

impl Sessions {
    /// Opens the sessions of a data directory.
    pub fn in_directory(data: &Path) -> Self {
        Self {
            dir: data.to_owned(),
            known: Arc::default(),
            reading: AsyncMutex::default(),
            writing: AsyncMutex::default(),
        }
    }

    /// The rights of a session that is valid at `now`, in seconds since 1970.
    pub async fn find(&self, presented: &str, now: u64) -> Option<Grant> {
        self.load().await;
        let known = lock(&self.known);
        let wanted = hash(presented);
        let session = known.sessions.iter().find(|session| session.hash == wanted)?;
        (session.until > now).then(|| session.grant.clone())
    }

    /// Begins a session of a token.
    pub async fn begin_of_token(&self, token: &TokenHash, until: u64, now: u64) -> Secret {
        let secret = Secret::of_session();
        self.begin(Session { hash: secret.hash(), until, grant: Grant::OfToken(*token) }, now).await;
        secret
    }

    /// Begins a session of a link.
    pub async fn begin_of_link(&self, link: &Link, now: u64) -> (Secret, Arc<Token>) {
        let (secret, until) = (Secret::of_session(), now.saturating_add(link.session_secs));
        let token = Token::with_hash(LINK_NAME, secret.hash(), link.scopes.iter().copied().collect(), Some(until));
        let token = Arc::new(token.expect("a link has scopes"));
        self.begin(Session { hash: secret.hash(), until, grant: Grant::OfLink(Arc::clone(&token)) }, now).await;
        (secret, token)
    }

    async fn begin(&self, session: Session, now: u64) {
        self.load().await;
        lock(&self.known).add(session, now);
        self.save().await;
    }

    /// Ends a session.
    pub async fn end(&self, presented: &str) {
        self.load().await;
        let ended = hash(presented);
        let is_removed = {
            let mut known = lock(&self.known);
            let before = known.sessions.len();
            known.sessions.retain(|session| session.hash != ended);
            known.sessions.len() < before
        };
        if is_removed {
            self.save().await;
        }
    }

    /// Reads the file once. If it is missing or others can read it, there are no sessions.
    async fn load(&self) {
        if lock(&self.known).is_read {
            return;
        }
        let read_once = async {
            let mut reading = self.reading.lock().await;
            if lock(&self.known).is_read {
                return;
            }
            let running = reading.get_or_insert_with(|| {
                let (dir, known) = (self.dir.clone(), Arc::clone(&self.known));
                spawn_blocking(move || {
                    let mut sessions = read(&dir.join(FILE)).unwrap_or_default();
                    let mut known = lock(&known);
                    // What has begun meanwhile is younger.
                    sessions.append(&mut known.sessions);
                    known.sessions = sessions;
                    known.is_read = true;
                })
            });
            let _ = running.await;
            *reading = None;
        };
        let _ = timeout(DISK_PATIENCE, read_once).await;
    }

    /// Writes the file, one write at a time. After a failure the sessions remain valid until the server stops.
    async fn save(&self) {
        if !lock(&self.known).is_read {
            return;
        }
        let mut writing = self.writing.lock().await;
        if let Some(running) = writing.as_mut()
            && timeout(DISK_PATIENCE, running).await.is_err()
        {
            return;
        }
        let (dir, known) = (self.dir.clone(), Arc::clone(&self.known));
        let mut running = spawn_blocking(move || {
            let text: String = lock(&known).sessions.iter().map(Session::to_line).collect();
            if let Err(error) = write(&dir, &text) {
                let file = dir.join(FILE).display().to_string();
                tracing::warn!(
                    file,
                    error = error.to_string(),
                    "cannot save sessions of the page: they end with this run of the server"
                );
            }
        });
        *writing = timeout(DISK_PATIENCE, &mut running).await.is_err().then_some(running);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sessions of a file, oldest first.
fn read(file: &Path) -> io::Result<Vec<Session>> {
    let file = OpenOptions::new().read(true).custom_flags(nofollow()).open(file)?;
    let found = file.metadata()?;
    if !found.is_file() || found.permissions().mode() & 0o077 != 0 {
        return Err(ErrorKind::PermissionDenied.into());
    }
    let mut text = String::new();
    file.take(LINE_BYTES * SESSIONS_MAX as u64).read_to_string(&mut text)?;
    Ok(text.lines().filter_map(Session::parse).take(SESSIONS_MAX).collect())
}

fn write(dir: &Path, text: &str) -> io::Result<()> {
    Ok(posthaste_fsops::replace_file(&dir.join(FILE), Mode::RUSR | Mode::WUSR, text.as_bytes())?)
}

/// Unused links to the page. Each opens one session.
#[derive(Debug, Default)]
pub struct PageLinks(Mutex<HashMap<TokenHash, Link>>);

/// An unused link's rights and expiry.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    until: Instant,
    pub scopes: Vec<Scope>,
    /// Lifetime of the session, in seconds.
    pub session_secs: u64,
}

/// Lifetime of a link, in seconds.
pub const LINK_SECS: u64 = 600;
/// Maximum unused links. Beyond it the oldest one is dropped.
const LINKS_MAX: usize = 100;

impl PageLinks {
    /// Makes the secret of a link, for `/#k=`. It works once, within [`LINK_SECS`], and opens a session of
    /// `session_secs` with these scopes, at least one.
    pub fn make(&self, scopes: Vec<Scope>, session_secs: u64) -> Secret {
        self.make_at(Instant::now(), scopes, session_secs)
    }

    fn make_at(&self, now: Instant, scopes: Vec<Scope>, session_secs: u64) -> Secret {
        assert!(!scopes.is_empty(), "a link that opens nothing");
        let secret = Secret::of_link();
        let mut links = lock(&self.0);
        links.retain(|_, link| link.until > now);
        if links.len() >= LINKS_MAX
            && let Some(oldest) = links.iter().min_by_key(|(_, link)| link.until).map(|(hash, _)| *hash)
        {
            links.remove(&oldest);
        }
        links.insert(secret.hash(), Link { until: now + Duration::from_secs(LINK_SECS), scopes, session_secs });
        secret
    }

    /// The scopes of an unused link.
    pub fn scopes_of(&self, presented: &str) -> Option<Vec<Scope>> {
        lock(&self.0).get(&hash(presented)).map(|link| link.scopes.clone())
    }

    /// Consumes a link.
    pub(crate) fn take(&self, presented: &str) -> Option<Link> {
        self.take_at(Instant::now(), presented)
    }

    fn take_at(&self, now: Instant, presented: &str) -> Option<Link> {
        lock(&self.0).remove(&hash(presented)).filter(|link| link.until > now)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn a_link_opens_once_and_not_after_ten_minutes() {
        let (links, now) = (PageLinks::default(), Instant::now());
        let secs = Duration::from_secs;
        let make = || links.make_at(now, vec![Scope::QueueRead], 60);
        let link = make();
        assert!(links.take_at(now, "phl_0000").is_none());
        assert_eq!(links.take_at(now + secs(599), link.reveal()).unwrap().session_secs, 60);
        assert!(links.take_at(now, link.reveal()).is_none(), "a second use");
        assert!(links.take_at(now + secs(600), make().reveal()).is_none(), "too late");
        let first = make();
        (0..LINKS_MAX as u64).for_each(|_| _ = links.make_at(now + secs(1), vec![Scope::QueueRead], 60));
        assert!(links.take_at(now, first.reveal()).is_none() && lock(&links.0).len() == LINKS_MAX);
    }

    #[tokio::test]
    async fn sessions_survive_a_restart_and_end() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions::in_directory(dir.path());
        let of_token = sessions.begin_of_token(&[7; 32], 100, 1).await;
        let link = PageLinks::default();
        let link = link.take(link.make(vec![Scope::QueueRead, Scope::ServerRead], 50).reveal()).unwrap();
        let (of_link, token) = sessions.begin_of_link(&link, 1).await;
        assert_eq!((token.name(), token.until()), (LINK_NAME, Some(51)));
        let path = dir.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&of_token.reveal()[4..]) && !text.contains(&of_link.reveal()[4..]), "{text}");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        let again = Sessions::in_directory(dir.path());
        assert_eq!(again.find(of_token.reveal(), 99).await, Some(Grant::OfToken([7; 32])));
        assert_eq!(again.find(of_token.reveal(), 100).await, None, "it has ended");
        assert_eq!(again.find(of_link.reveal(), 50).await, Some(Grant::OfLink(token)));
        again.end(of_link.reveal()).await;
        assert_eq!(again.find(of_link.reveal(), 2).await, None, "logged out");
        assert_eq!(Sessions::in_directory(dir.path()).find(of_link.reveal(), 2).await, None);
    }

    #[tokio::test]
    async fn a_session_file_that_is_readable_or_damaged_logs_nobody_in() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions::in_directory(dir.path());
        let secret = sessions.begin_of_token(&[7; 32], 100, 1).await;
        let path = dir.path().join(FILE);
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert_eq!(Sessions::in_directory(dir.path()).find(secret.reveal(), 1).await, None);
        for text in ["", "nonsense\n", "a b c d\n", "0 0 token 0\n"] {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            assert_eq!(Sessions::in_directory(dir.path()).find(secret.reveal(), 1).await, None);
        }
        let line = format!("nonsense\n{} 100 token {}\n", hex(&secret.hash()), hex(&[7; 32]));
        std::fs::write(&path, line).unwrap();
        let again = Sessions::in_directory(dir.path());
        assert_eq!(again.find(secret.reveal(), 1).await, Some(Grant::OfToken([7; 32])), "other lines are read");
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_while_the_disk_hangs_ends_no_other_session() {
        let dir = tempfile::tempdir().unwrap();
        let first = Sessions::in_directory(dir.path()).begin_of_token(&[7; 32], 100, 1).await;
        let again = Sessions::in_directory(dir.path());
        let hung = again.reading.lock().await;
        let second = again.begin_of_token(&[8; 32], 100, 1).await;
        assert_eq!(again.find(second.reveal(), 1).await, Some(Grant::OfToken([8; 32])), "from memory");
        drop(hung);
        assert_eq!(again.find(first.reveal(), 1).await, Some(Grant::OfToken([7; 32])));
        again.begin_of_token(&[9; 32], 100, 1).await;
        let restarted = Sessions::in_directory(dir.path());
        for secret in [&first, &second] {
            assert!(restarted.find(secret.reveal(), 1).await.is_some(), "in the file");
        }
    }

    #[tokio::test]
    async fn repeated_logins_of_a_token_end_its_own_sessions_alone() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Sessions::in_directory(dir.path());
        let other = sessions.begin_of_token(&[8; 32], 10, 1).await;
        let link = PageLinks::default();
        let link = link.take(link.make(vec![Scope::QueueRead], 50).reveal()).unwrap();
        let (of_link, _) = sessions.begin_of_link(&link, 1).await;
        // All end at one time, as those of a token with an end do.
        let mut own = Vec::new();
        for _ in 0..=OWN_SESSIONS_MAX {
            own.push(sessions.begin_of_token(&[7; 32], 20, 1).await);
        }
        for sessions in [&sessions, &Sessions::in_directory(dir.path())] {
            assert_eq!(sessions.find(own[0].reveal(), 1).await, None, "the oldest of its own");
            for kept in own[1..].iter().chain([&other, &of_link]) {
                assert!(sessions.find(kept.reveal(), 1).await.is_some());
            }
        }
        let again = Sessions::in_directory(dir.path());
        again.begin_of_token(&[7; 32], 20, 1).await;
        assert_eq!(again.find(own[1].reveal(), 1).await, None, "in the order of the file");
        assert!(again.find(own[2].reveal(), 1).await.is_some());
    }

    #[test]
    fn a_full_table_takes_from_whoever_has_the_most() {
        let mut known = Known::default();
        let session = |number: u64, of: u64| {
            let hash = |number: u64| hash(&number.to_string());
            Session { hash: hash(number), until: 20, grant: Grant::OfToken(hash(of)) }
        };
        // One token with 50 sessions in between, all others with one.
        let of = |number: u64| if number % 20 == 7 { 0 } else { number + 1 };
        (0..SESSIONS_MAX as u64).for_each(|number| known.add(session(number, of(number)), 1));
        assert_eq!((known.sessions.len(), known.count(session(0, 0).owner())), (SESSIONS_MAX, OWN_SESSIONS_MAX));
        known.add(session(SESSIONS_MAX as u64, u64::MAX), 1);
        assert_eq!((known.sessions.len(), known.count(session(0, 0).owner())), (SESSIONS_MAX, OWN_SESSIONS_MAX - 1));
        assert!(!known.sessions.contains(&session(7, 0)) && known.sessions.contains(&session(0, 1)));
        known.add(session(2000, u64::MAX - 1), 20);
        assert_eq!(known.sessions.len(), 1, "ended ones go first");
    }
}
