//! The token file in the data directory: one line for each token, replaced by `rename`, read again after a change.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::file_state::{OpenFile, Stamp};
use crate::token::{self, Token, TokenHash};

/// The name of the file in the data directory.
pub const TOKEN_FILE: &str = "tokens";
/// Maximum octets of the file: about 10,000 tokens.
const FILE_BYTES_MAX: u64 = 2 << 20;
const HEADING: &str =
    "# name, SHA-256 of the secret, scopes, end, tenant, sender domains, networks; made by `posthaste token`\n";
/// The last line: without it the file was truncated.
const END: &str = "# the end";

/// The file of tokens.
#[derive(Debug, Clone)]
pub struct TokenFile {
    dir: PathBuf,
}

/// Why the file of tokens cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {kind}", path.display())]
pub struct TokenFileError {
    /// Path of the file.
    pub path: PathBuf,
    /// The problem with the file.
    pub kind: TokenFileErrorKind,
}

/// A problem with the token file, or a failed change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenFileErrorKind {
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Not a regular file, but a directory, a pipe or a device.
    #[error("this is not a regular file")]
    NoFile,
    /// Other users could read or change it.
    #[error("other users can open it; run chmod 600")]
    Exposed,
    /// A line is malformed.
    #[error(
        "line {number}: {why}; remove this line or the file, then make the lost tokens again: `posthaste token add NAME --scope SCOPES`"
    )]
    Line {
        /// Line number, from 1.
        number: usize,
        /// The mistake in the line.
        why: String,
    },
    /// The end line is missing: the file was truncated.
    #[error(
        "its last line is not `{END}`: it was cut off; restore the file, or append this line and make the missing tokens again: `posthaste token add NAME --scope SCOPES`"
    )]
    CutOff,
    /// The file is larger than the maximum.
    #[error(
        "it is larger than {FILE_BYTES_MAX} bytes; remove it, then make its tokens again: `posthaste token add NAME --scope SCOPES`"
    )]
    TooLarge,
    /// There already is a token of that name.
    #[error("the token `{0}` already exists")]
    Known(String),
    /// No token has that name.
    #[error("there is no token `{0}`")]
    Unknown(String),
}

impl TokenFile {
    /// The token file of a data directory.
    pub fn in_directory(data: &Path) -> Self {
        Self { dir: data.to_owned() }
    }

    /// The data directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self) -> PathBuf {
        self.dir.join(TOKEN_FILE)
    }

    fn error(&self, kind: impl Into<TokenFileErrorKind>) -> TokenFileError {
        TokenFileError { path: self.path(), kind: kind.into() }
    }

    /// All tokens in the order of their creation; empty without a file. Blocks.
    ///
    /// # Errors
    /// The file cannot be read, other users can read it, or a line is malformed.
    pub fn read(&self) -> Result<Vec<Token>, TokenFileError> {
        self.read_whole().map(|(tokens, ..)| tokens).map_err(|kind| self.error(kind))
    }

    /// The tokens, and the open file with its state before it was read.
    fn read_whole(&self) -> Result<(Vec<Token>, Stamp, Option<OpenFile>), TokenFileErrorKind> {
        let mut file = match OpenOptions::new().read(true).custom_flags(nofollow()).open(self.path()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((Vec::new(), Stamp::default(), None)),
            file => file?,
        };
        let open = OpenFile::new(file.try_clone()?);
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(TokenFileErrorKind::NoFile);
        }
        if found.mode() & 0o077 != 0 {
            return Err(TokenFileErrorKind::Exposed);
        }
        let mut text = String::new();
        Read::by_ref(&mut file).take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(TokenFileErrorKind::TooLarge);
        }
        Ok((parse(&text)?, Stamp::of(&found), open))
    }

    /// Adds a token. Durable once this returns. Blocks.
    ///
    /// # Errors
    /// As [`read`](Self::read); a token of that name exists, or the file cannot be written.
    pub fn add(&self, token: Token) -> Result<(), TokenFileError> {
        self.change(|tokens| {
            if tokens.iter().any(|known| known.name() == token.name()) {
                return Err(TokenFileErrorKind::Known(token.name().to_owned()));
            }
            tokens.push(token);
            Ok(())
        })
    }

    /// Removes a token. A running server refuses it from then on. Blocks.
    ///
    /// # Errors
    /// As [`read`](Self::read); there is no token of that name, or the file cannot be written.
    pub fn remove(&self, name: &str) -> Result<(), TokenFileError> {
        self.change(|tokens| {
            let at = tokens.iter().position(|known| known.name() == name);
            tokens.remove(at.ok_or_else(|| TokenFileErrorKind::Unknown(name.chars().take(100).collect()))?);
            Ok(())
        })
    }

    /// Changes the whole file, one change at a time.
    fn change(
        &self,
        change: impl FnOnce(&mut Vec<Token>) -> Result<(), TokenFileErrorKind>,
    ) -> Result<(), TokenFileError> {
        let changed = || {
            let lock = private().create(true).truncate(false).open(self.dir.join("tokens.lock"))?;
            flock(&lock, FlockOperation::LockExclusive).map_err(io::Error::from)?;
            let (mut tokens, ..) = self.read_whole()?;
            change(&mut tokens)?;
            self.write(&tokens)?;
            Ok(())
        };
        changed().map_err(|kind: TokenFileErrorKind| self.error(kind))
    }

    fn write(&self, tokens: &[Token]) -> io::Result<()> {
        let lines: String = tokens.iter().map(Token::to_line).collect();
        let text = format!("{HEADING}{lines}{END}\n");
        Ok(posthaste_fsops::replace_file(&self.path(), Mode::RUSR | Mode::WUSR, text.as_bytes())?)
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(nofollow());
    options
}

/// Open flags: do not follow a symbolic link, do not block on a pipe.
pub(crate) fn nofollow() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

fn parse(text: &str) -> Result<Vec<Token>, TokenFileErrorKind> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let token = |(index, line)| Token::parse(line).map_err(|why| TokenFileErrorKind::Line { number: index + 1, why });
    let tokens = lines.map(token).collect::<Result<_, _>>()?;
    if text.lines().last() == Some(END) && text.ends_with('\n') { Ok(tokens) } else { Err(TokenFileErrorKind::CutOff) }
}

/// The valid tokens: the file is read again after a change.
#[derive(Debug)]
pub(crate) struct KnownTokens {
    file: TokenFile,
    looks: AsyncMutex<Looks>,
    /// Start and outcome of the last read.
    recent: Mutex<Option<(Instant, Arc<ReadTokens>)>>,
    /// Number of requests that needed a read.
    asked: AtomicU64,
}

/// The tokens of one read of the file.
#[derive(Debug)]
struct ReadTokens {
    by_hash: HashMap<TokenHash, Arc<Token>>,
    stamp: Stamp,
    open: Option<OpenFile>,
}

#[derive(Debug, Default)]
struct Looks {
    read: Option<Arc<ReadTokens>>,
    /// Value of `asked` when the read started: it serves all requests up to this number.
    covers: u64,
    #[cfg(test)]
    begun: usize,
    /// A read that timed out: the disk did not answer.
    left: Option<JoinHandle<Look>>,
}

type Look = Result<Arc<ReadTokens>, TokenFileErrorKind>;

/// The token file cannot be used: every request is refused, and the log has the reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TokensUnreadable;

impl KnownTokens {
    pub fn new(file: TokenFile) -> Self {
        Self { file, looks: AsyncMutex::default(), recent: Mutex::default(), asked: AtomicU64::new(0) }
    }

    /// The token with this secret, unless it has expired at `now`, in seconds since 1970.
    ///
    /// # Errors
    /// The file cannot be used, or its disk does not answer within [`LOOK_PATIENCE`].
    pub async fn find(&self, presented: &str, now: u64) -> Result<Option<Arc<Token>>, TokensUnreadable> {
        self.find_hash(&token::hash(presented), now).await
    }

    /// The token with this hash, as [`find`](Self::find).
    pub async fn find_hash(&self, hash: &TokenHash, now: u64) -> Result<Option<Arc<Token>>, TokensUnreadable> {
        let known = timeout(LOOK_PATIENCE, self.known()).await.unwrap_or(Err(TokensUnreadable))?;
        Ok(known.by_hash.get(hash).filter(|token| !token.has_ended(now)).cloned())
    }

    /// All tokens, by name.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn all(&self) -> Result<Vec<Arc<Token>>, TokensUnreadable> {
        let known = timeout(LOOK_PATIENCE, self.known()).await.unwrap_or(Err(TokensUnreadable))?;
        let mut all: Vec<_> = known.by_hash.values().cloned().collect();
        all.sort_by(|one, other| one.name().cmp(other.name()));
        Ok(all)
    }

    /// Reads the file on a blocking thread, one read at a time, so a hanging disk blocks one thread. Waiting requests
    /// share the next read.
    async fn known(&self) -> Result<Arc<ReadTokens>, TokensUnreadable> {
        if let Some(known) = self.unchanged() {
            return Ok(known);
        }
        let own = self.asked.fetch_add(1, Ordering::Release) + 1;
        let mut looks = self.looks.lock().await;
        if let Some(known) = looks.read.as_ref().filter(|_| looks.covers >= own) {
            return Ok(Arc::clone(known));
        }
        if let Some(left) = &mut looks.left {
            // It began before this request did, so that its outcome may be too old.
            let _ = left.await;
            looks.left = None;
        }
        let (file, before) = (self.file.clone(), looks.read.clone());
        // All of them asked before the look begins.
        let covers = self.asked.load(Ordering::Acquire);
        #[cfg(test)]
        {
            looks.begun += 1;
        }
        let begun = Instant::now();
        let look = looks.left.insert(spawn_blocking(move || look(&file, before)));
        let found = look.await;
        looks.left = None;
        match found.unwrap_or_else(|error| Err(io::Error::from(error).into())) {
            Ok(known) => {
                (looks.read, looks.covers) = (Some(Arc::clone(&known)), covers);
                *self.recent() = Some((begun, Arc::clone(&known)));
                Ok(known)
            }
            Err(kind) => {
                *self.recent() = None;
                let error = self.file.error(kind).to_string();
                // Once for each change: a later success names the next one.
                if looks.read.take().is_some() {
                    tracing::error!(error, "the token file is unusable: every token is refused");
                }
                Err(TokensUnreadable)
            }
        }
    }

    /// The tokens of the last read, if the open file has not changed. Most requests need no other thread. Once a second
    /// the file's name is checked.
    fn unchanged(&self) -> Option<Arc<ReadTokens>> {
        let (begun, known) = self.recent().clone()?;
        let is_same = begun.elapsed() < NAME_AGE_MAX && known.open.as_ref().is_some_and(OpenFile::is_unchanged);
        is_same.then_some(known)
    }

    fn recent(&self) -> MutexGuard<'_, Option<(Instant, Arc<ReadTokens>)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the tokens, or returns `before` if the file is unchanged. Blocks.
fn look(file: &TokenFile, before: Option<Arc<ReadTokens>>) -> Look {
    let stamp = std::fs::symlink_metadata(file.path()).map(|found| Stamp::of(&found)).unwrap_or_default();
    if let Some(before) = before.filter(|before| before.stamp == stamp) {
        return Ok(before);
    }
    let (tokens, stamp, open) = file.read_whole()?;
    let by_hash = tokens.into_iter().map(|token| (*token.hash(), Arc::new(token))).collect();
    Ok(Arc::new(ReadTokens { by_hash, stamp, open }))
}

/// Interval between checks of the file's name.
const NAME_AGE_MAX: Duration = Duration::from_secs(1);
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::scope::Scope;
    use crate::token::Secret;

    fn token(name: &str, until: Option<u64>) -> (Secret, Token) {
        let secret = Secret::random();
        let token = Token::new(name, &secret, [Scope::Inject].into(), until).unwrap();
        (secret, token)
    }

    #[test]
    fn tokens_are_kept_in_a_private_file_without_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let file = TokenFile::in_directory(dir.path());
        assert_eq!(file.read().unwrap(), []);
        let ((secret, shop), (_, web)) = (token("shop", None), token("web", Some(7)));
        file.add(shop.clone()).unwrap();
        file.add(web.clone()).unwrap();
        assert_eq!(file.read().unwrap(), [shop.clone(), web.clone()]);
        let error = file.add(token("shop", None).1).unwrap_err().to_string();
        assert!(error.ends_with("the token `shop` already exists"), "{error}");
        let path = dir.path().join(TOKEN_FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert!(!std::fs::read_to_string(&path).unwrap().contains(&secret.reveal()[4..]));
        file.remove("shop").unwrap();
        assert_eq!(file.read().unwrap(), [web]);
        assert!(file.remove("shop").unwrap_err().to_string().ends_with("there is no token `shop`"));
    }

    #[test]
    fn a_file_cut_off_anywhere_is_told_with_its_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let (file, path) = (TokenFile::in_directory(dir.path()), dir.path().join(TOKEN_FILE));
        for (name, until) in [("shop", None), ("web", Some(1_800_000_000))] {
            file.add(token(name, until).1).unwrap();
        }
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let error = file.read().expect_err("it is cut off").to_string();
            let named = path.to_str().unwrap();
            assert!(error.starts_with(named) && error.contains("`posthaste token add "), "{cut}: {error}");
        }
    }

    #[tokio::test]
    async fn a_running_server_sees_each_change_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = TokenFile::in_directory(dir.path());
        let known = KnownTokens::new(file.clone());
        let find = async |secret: &Secret, now| {
            known.find(secret.reveal(), now).await.unwrap().map(|token| token.name().to_owned())
        };
        let ((secret, shop), (short, brief)) = (token("shop", None), token("brief", Some(100)));
        assert_eq!(find(&secret, 1).await, None);
        file.add(shop).unwrap();
        assert_eq!(find(&secret, 1).await.as_deref(), Some("shop"));
        file.add(brief).unwrap();
        assert_eq!((find(&short, 99).await.as_deref(), find(&short, 100).await), (Some("brief"), None), "a token ends");
        file.remove("shop").unwrap();
        assert_eq!(find(&secret, 1).await, None);
    }

    #[tokio::test]
    async fn requests_that_wait_share_a_look() {
        let dir = tempfile::tempdir().unwrap();
        let file = TokenFile::in_directory(dir.path());
        let (secret, shop) = token("shop", None);
        file.add(shop).unwrap();
        let known = Arc::new(KnownTokens::new(file));
        let busy = known.looks.lock().await;
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let (known, presented) = (Arc::clone(&known), secret.reveal().to_owned());
            asking.spawn(async move { known.find(&presented, 1).await.unwrap().is_some() });
        }
        while known.asked.load(Ordering::Acquire) < 20 {
            tokio::task::yield_now().await;
        }
        drop(busy);
        assert_eq!(asking.join_all().await, [true; 20]);
        assert_eq!(known.looks.lock().await.begun, 1);
        known.find(secret.reveal(), 1).await.unwrap();
        assert_eq!(known.looks.lock().await.begun, 1, "an open file that is as it was needs none");
        known.file.remove("shop").unwrap();
        assert_eq!(known.find(secret.reveal(), 1).await, Ok(None));
        assert_eq!(known.looks.lock().await.begun, 2, "another file took its place");
        known.recent().as_mut().unwrap().0 -= NAME_AGE_MAX;
        known.find(secret.reveal(), 1).await.unwrap();
        assert_eq!(known.looks.lock().await.begun, 3, "its name is looked at each second");
    }

    #[tokio::test]
    async fn a_file_that_others_can_open_or_that_is_wrong_lets_nobody_in() {
        let dir = tempfile::tempdir().unwrap();
        let (file, path) = (TokenFile::in_directory(dir.path()), dir.path().join(TOKEN_FILE));
        let (secret, shop) = token("shop", None);
        file.add(shop).unwrap();
        let known = KnownTokens::new(file.clone());
        assert!(known.find(secret.reveal(), 1).await.unwrap().is_some());
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert_eq!(known.find(secret.reveal(), 1).await, Err(TokensUnreadable));
        assert!(file.read().unwrap_err().to_string().contains("chmod 600"));
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(known.find(secret.reveal(), 1).await.unwrap().is_some());
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text + "nonsense\n").unwrap();
        assert_eq!(known.find(secret.reveal(), 1).await, Err(TokensUnreadable));
        assert!(file.read().unwrap_err().to_string().contains("line 4: "));
        let elsewhere = dir.path().join("elsewhere");
        std::fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert_eq!(known.find(secret.reveal(), 1).await, Err(TokensUnreadable), "a symbolic link is not followed");
    }
}
