//! A session about the mail of one account: creates, renames and removes mailboxes, reads and adds messages.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use posthaste_config::Config;
use posthaste_control::{AddedMail, MailAnswer, MailCommand, MailDone, MailPiece, MailRow, PIECE_BYTES_MAX};
use posthaste_maildir::{MailboxPath, is_keyword};
use posthaste_mailstore::{
    AppendRequest, ListOptions, MailAccount, MailboxId, MailboxName, MailboxView, MaildirLogins, MaildirStore,
    Mailstore as _, MailstoreError, MessageFlags, MessageSet, MessageWriter, NamePattern, NumberRange, RowOptions,
    SelectMode, Uid,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Take};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::OwnedMutexGuard;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::answering::PATIENCE;
use super::transfer::hex;

/// The path of a login's Maildir.
pub(crate) type MaildirOf = dyn Fn(&str) -> Option<String> + Send + Sync;

/// The mail of all accounts, for clients of the control socket.
#[derive(Clone)]
pub(crate) struct ControlMailboxes(Arc<ControlMailboxParts>);

struct ControlMailboxParts {
    logins: MaildirLogins,
    maildir_of: Arc<MaildirOf>,
    root: PathBuf,
    /// 0: no limit.
    message_bytes: AtomicU64,
    /// Locks for adding mail, by the path of the account's INBOX: one session at a time.
    adding: Mutex<HashMap<MailboxPath, Weak<AccountLock>>>,
}

type AccountLock = tokio::sync::Mutex<()>;

/// An account, as opened for a session.
struct Found {
    account: Arc<dyn MailAccount>,
    adding: Arc<AccountLock>,
}

impl ControlMailboxes {
    pub fn new(config: &Config, store: Arc<MaildirStore>, maildir_of: Arc<MaildirOf>) -> Self {
        let known = Arc::clone(&maildir_of);
        let find = move |name: &str| MailboxPath::parse(&known(name).unwrap_or_else(|| name.to_owned())).ok();
        let logins = MaildirLogins::new(store, Box::new(find)).with_usual_folders();
        let (root, message_bytes) = (config.storage.mail.clone(), config.limits.session.message_bytes.into());
        let adding = Mutex::default();
        Self(Arc::new(ControlMailboxParts { logins, maildir_of, root, message_bytes, adding }))
    }

    /// Changes the longest message for later sessions; 0 for no limit.
    pub fn set_message_bytes(&self, bytes: u64) {
        self.0.message_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The mailboxes of a login, or of an existing Maildir.
    async fn account(&self, name: &str) -> Result<Found, String> {
        let parts = &self.0;
        let none = || format!("{name}: there is no such login, and no such Maildir below {}", parts.root.display());
        let of_login = (parts.maildir_of)(name);
        let path = MailboxPath::parse(of_login.as_deref().unwrap_or(name)).map_err(|_| none())?;
        if of_login.is_none() {
            let dir = parts.root.join(path.as_str()).join("cur");
            if !spawn_blocking(move || dir.is_dir()).await.map_err(|error| error.to_string())? {
                return Err(none());
            }
        }
        let account = parts.logins.account(name).await.map_err(|error| format!("{name}: {error}"))?;
        Ok(Found { account, adding: self.lock_of(path) })
    }

    fn lock_of(&self, path: MailboxPath) -> Arc<AccountLock> {
        let mut locks = self.0.adding.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        let held = locks.get(&path).and_then(Weak::upgrade);
        held.unwrap_or_else(|| {
            let lock = Arc::<AccountLock>::default();
            locks.insert(path, Arc::downgrade(&lock));
            lock
        })
    }
}

/// The client's side of the connection.
pub(super) type Commands = BufReader<Take<OwnedReadHalf>>;

/// Answers commands about an account until the client disconnects. `uid`: the asking user.
pub(super) async fn serve(
    commands: Commands,
    write: OwnedWriteHalf,
    mailboxes: Option<ControlMailboxes>,
    name: String,
    uid: u32,
) -> io::Result<()> {
    let mut client = Client { commands, write };
    let found = match &mailboxes {
        Some(mailboxes) => mailboxes.account(&name).await,
        None => Err(NO_MAILBOXES.to_owned()),
    };
    let Found { account, adding } = match found {
        Ok(found) => found,
        Err(error) => return client.say(&MailAnswer::Error(error)).await,
    };
    client.say(&MailAnswer::Done(MailDone::default())).await?;
    let limit = mailboxes.map_or(0, |mailboxes| mailboxes.0.message_bytes.load(Ordering::Relaxed));
    let mut session = Session { account, adding, adds: None, selected: None, client, limit, name, uid, added: 0 };
    let ended = session.run().await;
    if session.added > 0 {
        let Session { name, added, .. } = &session;
        tracing::info!(uid, account = name, added, "the operator has added mail to an account");
    }
    ended
}

struct Client {
    commands: Commands,
    write: OwnedWriteHalf,
}

impl Client {
    async fn say(&mut self, line: &impl Serialize) -> io::Result<()> {
        let line = serde_json::to_string(line)? + "\n";
        timeout(PATIENCE, self.write.write_all(line.as_bytes())).await?
    }

    /// Reads a command; `None` at the end.
    async fn hear<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        self.commands.get_mut().set_limit(LINE_BYTES_MAX);
        let mut line = Vec::new();
        timeout(IDLE_PATIENCE, self.commands.read_until(b'\n', &mut line)).await??;
        if line.is_empty() {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&line)?))
    }

    async fn octets(&mut self, count: u32) -> io::Result<Bytes> {
        if count > PIECE_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.commands.get_mut().set_limit(count.into());
        let mut octets = vec![0; count as usize];
        timeout(IDLE_PATIENCE, self.commands.read_exact(&mut octets)).await??;
        Ok(octets.into())
    }
}

struct Selected {
    id: MailboxId,
    view: Box<dyn MailboxView>,
}

struct Session {
    account: Arc<dyn MailAccount>,
    adding: Arc<AccountLock>,
    /// Lock of the only session that adds mail to the account.
    adds: Option<OwnedMutexGuard<()>>,
    selected: Option<Selected>,
    client: Client,
    /// Octets of a message; 0: no limit.
    limit: u64,
    name: String,
    uid: u32,
    added: u64,
}

/// Maximum octets of a message; 0: no limit.
type Answered = io::Result<Result<MailDone, MailstoreError>>;

impl Session {
    async fn run(&mut self) -> io::Result<()> {
        while let Some(command) = self.client.hear::<MailCommand>().await? {
            let answer = match command {
                MailCommand::Add(mail) => self.add(mail).await?,
                command => self.perform(command).await?.map_or_else(|error| answer_of(&error), MailAnswer::Done),
            };
            self.client.say(&answer).await?;
        }
        Ok(())
    }

    async fn perform(&mut self, command: MailCommand) -> Answered {
        let (uid, account) = (self.uid, &*self.name);
        match command {
            MailCommand::Mailboxes => self.list().await,
            MailCommand::Create { mailbox } => {
                let made = self.create(&mailbox).await.map(drop);
                tracing::info!(uid, account, mailbox, is_made = made.is_ok(), "the operator makes a mailbox");
                Ok(made.map(|()| MailDone { made: true, ..MailDone::default() }))
            }
            MailCommand::Rename { mailbox, to } => {
                let renamed = self.rename(&mailbox, &to).await;
                tracing::info!(uid, account, mailbox, to, is_done = renamed.is_ok(), "the operator renames a mailbox");
                Ok(renamed.map(|()| MailDone::default()))
            }
            MailCommand::Delete { mailbox, expect } => {
                let deleted = self.delete(&mailbox, expect).await;
                tracing::info!(uid, account, mailbox, is_done = deleted.is_ok(), "the operator deletes a mailbox");
                Ok(deleted)
            }
            MailCommand::Empty { mailbox } => {
                let emptied = self.empty(&mailbox).await;
                tracing::info!(uid, account, mailbox, is_done = emptied.is_ok(), "the operator empties a mailbox");
                Ok(emptied)
            }
            MailCommand::Rebuild { mailbox, renew } => {
                let rebuilt = self.rebuild(&mailbox, renew).await;
                tracing::info!(uid, account, mailbox, is_done = rebuilt.is_ok(), "the operator rebuilds a mailbox");
                Ok(rebuilt)
            }
            MailCommand::Open { mailbox, make } => Ok(self.open(&mailbox, make).await),
            MailCommand::Folder => self.folder().await,
            MailCommand::Rows { from, digests } => self.rows(from, digests).await,
            MailCommand::Read { uid } => self.read(uid).await,
            MailCommand::Add(_) => Ok(Err(MailstoreError::Cannot("answered elsewhere"))),
        }
    }

    async fn list(&mut self) -> Answered {
        let all = [NamePattern::new("*")];
        let mut listing = match self.account.list(&all, ListOptions::default()).await {
            Ok(listing) => listing,
            Err(error) => return Ok(Err(error)),
        };
        loop {
            match listing.next().await {
                Ok(Some(mailbox)) if mailbox.id.is_none() => {}
                Ok(Some(mailbox)) => self.client.say(&mailbox.name.as_str()).await?,
                Ok(None) => return Ok(Ok(MailDone::default())),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    async fn create(&self, mailbox: &str) -> Result<MailboxId, MailstoreError> {
        self.account.create(&new_name(mailbox)?, None).await
    }

    async fn find(&self, mailbox: &str) -> Result<MailboxId, MailstoreError> {
        let name = MailboxName::parse(mailbox).map_err(|_| MailstoreError::NoMailbox)?;
        self.account.find(&name).await?.ok_or(MailstoreError::NoMailbox)
    }

    async fn rename(&self, mailbox: &str, to: &str) -> Result<(), MailstoreError> {
        self.account.rename(self.find(mailbox).await?, &new_name(to)?).await
    }

    async fn delete(&self, mailbox: &str, expect: Option<u32>) -> Result<MailDone, MailstoreError> {
        let id = self.find(mailbox).await?;
        let messages = self.account.status(id).await?.exists;
        if expect.is_some_and(|expect| expect != messages) {
            return Err(MailstoreError::Cannot("its number of messages has changed"));
        }
        self.account.delete(id).await?;
        Ok(MailDone { messages, ..MailDone::default() })
    }

    async fn empty(&self, mailbox: &str) -> Result<MailDone, MailstoreError> {
        let view = self.account.select(self.find(mailbox).await?, SelectMode::KeepsRecent).await?;
        view.remove(&MessageSet::all()).await?;
        Ok(MailDone { messages: view.exists(), ..MailDone::default() })
    }

    async fn rebuild(&self, mailbox: &str, renew: bool) -> Result<MailDone, MailstoreError> {
        let rebuilt = self.account.rebuild(self.find(mailbox).await?, renew).await?;
        let (uid_validity, uid_next) = (rebuilt.uid_validity.get(), rebuilt.uid_next.get());
        let (messages, made) = (rebuilt.messages, !rebuilt.keeps_uids);
        Ok(MailDone { uid_validity, uid_next, messages, made, ..MailDone::default() })
    }

    async fn open(&mut self, mailbox: &str, make: bool) -> Result<MailDone, MailstoreError> {
        self.selected = None;
        if make && self.adds.is_none() {
            // A session whose client has gone still adds what it has got.
            let lock = timeout(PATIENCE, Arc::clone(&self.adding).lock_owned()).await;
            self.adds = Some(lock.map_err(|_| MailstoreError::Unavailable(BUSY.to_owned()))?);
        }
        let (id, made) = match self.find(mailbox).await {
            Err(MailstoreError::NoMailbox) if make => {
                let name = new_name(mailbox)?;
                let made = self.account.create(&name, None).await?;
                // Many clients show only these.
                self.account.subscribe(&name, true).await?;
                (made, true)
            }
            found => (found?, false),
        };
        let view = self.account.select(id, SelectMode::ReadOnly).await?;
        let (uid_validity, uid_next) = (view.uid_validity().get(), view.uid_next().get());
        let messages = view.exists();
        self.selected = Some(Selected { id, view });
        Ok(MailDone { uid_validity, uid_next, messages, made, ..MailDone::default() })
    }

    async fn folder(&mut self) -> Answered {
        let Some(Selected { view, .. }) = &self.selected else { return Ok(Err(NOT_SELECTED)) };
        match view.files().await {
            Ok(files) => {
                if let Some(files) = files {
                    self.client.say(&files.folder()).await?;
                }
                Ok(Ok(MailDone::default()))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    async fn rows(&mut self, from: u32, digests: bool) -> Answered {
        let Some(Selected { view, .. }) = &self.selected else { return Ok(Err(NOT_SELECTED)) };
        let keywords = view.keywords();
        let set = MessageSet::Uids(vec![NumberRange { first: from.max(1), last: u32::MAX }]);
        let mut rows = view.rows(&set, RowOptions::default());
        loop {
            let some = match rows.next().await {
                Ok(some) if some.is_empty() => return Ok(Ok(MailDone::default())),
                Ok(some) => some,
                Err(error) => return Ok(Err(error)),
            };
            for row in some {
                // Of one that cannot be read there is none.
                let sha256 = if digests { digest(&**view, row.uid).await.ok() } else { None };
                let flags = keywords.names(row.flags).map(str::to_owned).collect();
                let date = row.internal_date.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                self.client.say(&MailRow { uid: row.uid.get(), flags, date, sha256 }).await?;
            }
        }
    }

    async fn read(&mut self, uid: u32) -> Answered {
        let Some(Selected { view, .. }) = &self.selected else { return Ok(Err(NOT_SELECTED)) };
        let Some(uid) = Uid::new(uid) else { return Ok(Err(MailstoreError::Gone)) };
        let body = match view.body(uid).await {
            Ok(body) => body,
            Err(error) => return Ok(Err(error)),
        };
        let mut at = 0;
        while at < body.len() {
            let piece = match body.read(at, body.len()).await {
                Ok(piece) => piece,
                Err(error) => return Ok(Err(error)),
            };
            at += piece.len() as u64;
            for part in piece.chunks(PIECE_BYTES_MAX as usize) {
                self.client.say(&MailPiece::Data(u32::try_from(part.len()).expect("it is short"))).await?;
                timeout(PATIENCE, self.client.write.write_all(part)).await??;
            }
        }
        Ok(Ok(MailDone::default()))
    }

    /// I/O error of the connection, or the command's result.
    async fn add(&mut self, mail: AddedMail) -> io::Result<MailAnswer> {
        let mut bytes = mail.bytes;
        let mut writer = self.begin(mail).await;
        let mut octets = 0;
        loop {
            match self.client.hear::<MailPiece>().await? {
                Some(MailPiece::Data(count)) => {
                    let piece = self.client.octets(count).await?;
                    octets += u64::from(count);
                    if let Ok(open) = &mut writer
                        && let Err(error) = open.write(piece).await
                    {
                        writer = Err(answer_of(&error));
                    }
                }
                Some(MailPiece::File(name)) => {
                    octets += bytes;
                    if let Ok(open) = &mut writer
                        && let Err(error) = open.take_file(name).await
                    {
                        writer = Err(answer_of(&error));
                    }
                }
                Some(MailPiece::Next(mail)) => {
                    if octets != bytes {
                        writer = writer.and(Err(MailAnswer::Refused(OTHER_LENGTH.to_owned())));
                    }
                    (octets, bytes) = (0, mail.bytes);
                    writer = match (writer, self.request(mail)) {
                        (Ok(mut open), Ok(request)) => {
                            open.next(request).await.map(|()| open).map_err(|error| answer_of(&error))
                        }
                        (Err(answer), _) | (_, Err(answer)) => Err(answer),
                    };
                }
                Some(MailPiece::End) => break,
                Some(MailPiece::Drop) => return Ok(MailAnswer::Refused("it was not sent completely".to_owned())),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let writer = match writer {
            Ok(writer) if octets == bytes => writer,
            Ok(_) => return Ok(MailAnswer::Refused(OTHER_LENGTH.to_owned())),
            Err(answer) => return Ok(answer),
        };
        Ok(match writer.finish().await {
            Ok(added) => {
                self.added += u64::from(added.count);
                let (uid_validity, uid) = (added.uid_validity.get(), added.uid.get());
                MailAnswer::Done(MailDone { uid_validity, uid, ..MailDone::default() })
            }
            Err(error) => answer_of(&error),
        })
    }

    async fn begin(&self, mail: AddedMail) -> Result<Box<dyn MessageWriter>, MailAnswer> {
        let Some(Selected { id, .. }) = &self.selected else { return Err(answer_of(&NOT_SELECTED)) };
        if self.adds.is_none() {
            return Err(MailAnswer::Refused("the mailbox was not opened to add mail".to_owned()));
        }
        let request = self.request(mail)?;
        self.account.append(*id, request).await.map_err(|error| answer_of(&error))
    }

    fn request(&self, mail: AddedMail) -> Result<AppendRequest, MailAnswer> {
        let AddedMail { flags, date, bytes } = mail;
        if bytes == 0 {
            return Err(MailAnswer::Refused("it is empty".to_owned()));
        }
        if self.limit > 0 && bytes > self.limit {
            return Err(MailAnswer::Refused(format!("it is longer than limits.message_bytes, {} bytes", self.limit)));
        }
        let mut request = AppendRequest {
            flags: MessageFlags::NONE,
            keywords: Vec::new(),
            internal_date: date.and_then(|secs| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(secs))),
            octets: bytes,
        };
        for name in flags {
            match MessageFlags::SYSTEM.iter().find(|(_, system)| system.eq_ignore_ascii_case(&name)) {
                Some((flag, _)) => request.flags = request.flags.with(*flag),
                // `\Recent` is not a flag of a message.
                None if name.starts_with('\\') => {}
                None if is_keyword(&name) => request.keywords.push(name),
                None => return Err(MailAnswer::Refused(format!("`{name}` is not a keyword"))),
            }
        }
        Ok(request)
    }
}

/// The SHA-256 of a message, in hexadecimal.
async fn digest(view: &dyn MailboxView, uid: Uid) -> Result<String, MailstoreError> {
    let body = view.body(uid).await?;
    let (mut digest, mut at) = (Context::new(&SHA256), 0);
    while at < body.len() {
        let piece = body.read(at, body.len()).await?;
        digest.update(&piece);
        at += piece.len() as u64;
    }
    Ok(hex(digest.finish().as_ref()))
}

/// Checks the name of a new mailbox by the rules of CREATE.
fn new_name(name: &str) -> Result<MailboxName, MailstoreError> {
    let name = name.strip_suffix('/').unwrap_or(name);
    MailboxName::parse(name).map_err(|_| MailstoreError::Cannot("this cannot be the name of a mailbox"))
}

fn answer_of(error: &MailstoreError) -> MailAnswer {
    let text = match error {
        MailstoreError::NoSpace => "there is no room: the disk is full".to_owned(),
        MailstoreError::OverQuota => "the account's quota is used up".to_owned(),
        MailstoreError::Limit => "over a limit: of keywords, or of mailboxes".to_owned(),
        error => error.to_string(),
    };
    match error {
        MailstoreError::NoSpace
        | MailstoreError::OverQuota
        | MailstoreError::Unavailable(_)
        | MailstoreError::ReadOnly => MailAnswer::Error(text),
        _ => MailAnswer::Refused(text),
    }
}

const NOT_SELECTED: MailstoreError = MailstoreError::Cannot("no mailbox is selected");
const OTHER_LENGTH: &str = "it has another length than its first line says";
const BUSY: &str = "another import into this account is under way";
const NO_MAILBOXES: &str =
    "this server keeps no mailboxes: a [[listener]] with protocol = \"imap\" or \"pop3\" makes it do so";
/// A line has a command with a mailbox's name, or flags.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Wait for a silent client: it may be reading from a slow disk.
const IDLE_PATIENCE: Duration = Duration::from_secs(300);
