//! Obtains certificates: names in order, each when it is due.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use instant_acme::{Account, AccountCredentials, Error, NewAccount};
use posthaste_net::CertificateList;
use rcgen::{KeyPair, PublicKeyData};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::backoff::{Wait, Waits};
use crate::challenge::Challenges;
use crate::client::Client;
use crate::error::AcmeError;
use crate::files::{self, AccountFile, Kept};
use crate::order::{Obtained, Wanted, identifier};
use crate::probe;
use crate::settings::{AcmeSettings, LookupError, NameLookup, Way};

/// Interval between checks of all names. A name whose DNS record has appeared gets its certificate then.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// Timeout of all steps for one name.
const NAME_PATIENCE: Duration = Duration::from_secs(1200);
/// Interval between renewal queries, if the authority suggests none or an invalid one.
const ASK_AGAIN: Duration = Duration::from_secs(6 * 3600);
const ASKS_WAIT_MAX: usize = 8;
/// Maximum addresses of a name that are checked.
const ADDRESSES_MAX: usize = 16;
/// Bytes of a reason that are kept and logged.
const WHY_BYTES_MAX: usize = 1000;
/// Maximum remembered reasons, which are not logged again.
const TOLD_MAX: usize = 1000;

/// The state of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameState {
    /// The name.
    pub name: String,
    /// Expiry of its certificate, in seconds since 1970. `None` without a certificate.
    pub ends: Option<u64>,
    /// The last failure, if it has not succeeded since.
    pub why: Option<String>,
    /// Time of the retry after a failure, in seconds since 1970.
    pub next: u64,
}

/// The result of one try for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameOutcome {
    /// The name.
    pub name: String,
    /// True if a new certificate is in force.
    pub is_new: bool,
    /// The failure.
    pub why: Option<String>,
    /// Why clients that know the key from elsewhere would refuse the new key, or why the key did not change.
    pub about_key: Option<String>,
    /// End of its certificate, in seconds since 1970.
    pub ends: Option<u64>,
}

struct Ask {
    /// True: tries names that are not due, too.
    all: bool,
    answer: oneshot::Sender<Vec<NameOutcome>>,
}

/// A running worker. It ends when all handles are dropped.
#[derive(Debug, Clone)]
pub struct AcmeHandle {
    asks: mpsc::Sender<Ask>,
    states: Arc<Mutex<Vec<NameState>>>,
}

impl AcmeHandle {
    /// Tries at once each name whose certificate is missing or due, whatever failed before; with `all` each name.
    /// `None` if the worker has ended or too many requests wait.
    pub async fn renew(&self, all: bool) -> Option<Vec<NameOutcome>> {
        let (answer, answered) = oneshot::channel();
        self.asks.try_send(Ask { all, answer }).ok()?;
        answered.await.ok()
    }

    /// Like [`renew`](Self::renew), but does not wait for the result.
    pub fn try_at_once(&self) {
        // If so many ask, names are tried anyway.
        let _ = self.asks.try_send(Ask { all: false, answer: oneshot::channel().0 });
    }

    /// The state of each name.
    pub fn states(&self) -> Vec<NameState> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Puts the stored certificates into `list` and starts the worker. Blocks; needs a tokio runtime.
///
/// # Errors
/// [`AcmeError::File`]: the directory cannot be made, or others can read a key in it.
pub fn start(
    settings: AcmeSettings,
    challenges: Challenges,
    lookup: Arc<dyn NameLookup>,
    list: Arc<CertificateList>,
) -> Result<(AcmeHandle, JoinHandle<()>), AcmeError> {
    files::make_dir(&settings.dir)?;
    let mut kept = BTreeMap::new();
    for name in &settings.names {
        if let Some(one) = Kept::read(&settings.dir, name)? {
            kept.insert(name.clone(), one);
            if settings.new_key {
                // So that its records can be published in time. Else a renewal makes it.
                let _ = files::next_key(&settings.dir, name, files::present_key(&settings.dir, name).as_ref());
            }
        }
    }
    let waits = Waits::read(&settings.dir);
    let (asks, asked) = mpsc::channel(ASKS_WAIT_MAX);
    let states = Arc::default();
    let handle = AcmeHandle { asks, states: Arc::clone(&states) };
    let worker =
        Worker { settings, challenges, lookup, list, kept, waits, states, account: None, told: BTreeSet::new() };
    worker.publish();
    Ok((handle, tokio::spawn(worker.run(asked))))
}

struct Worker {
    settings: AcmeSettings,
    challenges: Challenges,
    lookup: Arc<dyn NameLookup>,
    list: Arc<CertificateList>,
    kept: BTreeMap<String, Kept>,
    waits: Waits,
    states: Arc<Mutex<Vec<NameState>>>,
    /// Account of the check in progress.
    account: Option<Account>,
    /// Names without a record that were already logged.
    told: BTreeSet<(String, String)>,
}

impl Worker {
    async fn run(mut self, mut asked: mpsc::Receiver<Ask>) {
        let mut ask = None;
        loop {
            let (at_once, all) = (ask.is_some(), ask.as_ref().is_some_and(|ask: &Ask| ask.all));
            let outcomes = self.look(at_once, all).await;
            if let Some(Ask { answer, .. }) = ask.take() {
                // Who asked may have gone.
                let _ = answer.send(outcomes);
            }
            match timeout(LOOK_EVERY, asked.recv()).await {
                Ok(None) => return,
                Ok(some) => ask = some,
                Err(_) => {}
            }
        }
    }

    /// Tries each name, then closes connections to the authority.
    async fn look(&mut self, at_once: bool, all: bool) -> Vec<NameOutcome> {
        let mut outcomes = Vec::new();
        for name in self.settings.names.clone() {
            let is_due = all || self.is_due(&name).await;
            let next = self.waits.of.get(&name).map_or(0, |wait| wait.next);
            let mut outcome = NameOutcome { name, is_new: false, why: None, about_key: None, ends: None };
            if is_due && (at_once || next <= now()) {
                match self.renew(&outcome.name).await {
                    Ok(about_key) => (outcome.is_new, outcome.about_key) = (true, about_key),
                    Err(error) => outcome.why = Some(self.failed(&outcome.name, &error)),
                }
                self.save().await;
            }
            outcome.ends = self.kept.get(&outcome.name).map(|kept| kept.not_after);
            outcomes.push(outcome);
        }
        self.account = None;
        outcomes
    }

    async fn is_due(&mut self, name: &str) -> bool {
        let Some(kept) = self.kept.get(name).cloned() else { return true };
        if self.waits.of.get(name).is_none_or(|wait| wait.ask_at <= now()) {
            self.ask_when(name, &kept).await;
            self.save().await;
        }
        let wait = self.waits.of.get(name).cloned().unwrap_or_default();
        wait.renewal(&kept) <= now()
    }

    /// Asks the authority for its renewal window and picks a random time in it (RFC 9773 section 4.2). Without an
    /// answer the last window counts.
    async fn ask_when(&mut self, name: &str, kept: &Kept) {
        let asked = async {
            let id = identifier(kept)?;
            self.account().await.ok()?.renewal_info(&id).await.ok()
        };
        let asked = timeout(NAME_PATIENCE, asked).await.ok().flatten();
        let wait = self.waits.of.entry(name.to_owned()).or_default();
        let Some((info, again)) = asked else {
            wait.ask_at = now() + ASK_AGAIN.as_secs();
            return;
        };
        let window = info.suggested_window;
        let (start, end) = (window.start.unix_timestamp().max(0) as u64, window.end.unix_timestamp().max(0) as u64);
        if !wait.renew_at.is_some_and(|at| (start..=end).contains(&at)) {
            wait.renew_at = Some(start + random() % (end.saturating_sub(start) + 1));
        }
        wait.ask_at = now() + again.as_secs().clamp(3600, 86_400);
    }

    /// Obtains a certificate and puts it in force. Returns the warning about its key, if any.
    async fn renew(&mut self, name: &str) -> Result<Option<String>, AcmeError> {
        let renewed = timeout(NAME_PATIENCE, self.obtain(name)).await;
        let (obtained, about_key) = renewed.unwrap_or_else(|_| Err(AcmeError::Authority(Error::Timeout(None))))?;
        let Obtained { kept, pem } = obtained;
        let file = files::certificate_file(&self.settings.dir, name);
        let shown = file.display().to_string();
        blocking(move || files::write(&file, pem.as_bytes())).await?;
        tracing::info!(name, file = shown, "a new certificate is in force");
        self.kept.insert(name.to_owned(), kept);
        self.waits.of.insert(name.to_owned(), Wait::default());
        self.publish();
        if self.settings.new_key {
            // Without it the next renewal makes one.
            let _ = self.keys(name).await;
        }
        if let Some(why) = &about_key {
            let new_key = self.settings.new_key;
            tracing::warn!(
                name,
                why,
                new_key,
                "a new certificate that other hosts may refuse: see `posthaste dns check`"
            );
        }
        Ok(about_key)
    }

    /// The present key of a name, if any, and the next one if keys change.
    async fn keys(&self, name: &str) -> Result<(Option<KeyPair>, Option<KeyPair>), AcmeError> {
        let (dir, name, new_key) = (self.settings.dir.clone(), name.to_owned(), self.settings.new_key);
        let has_present = self.kept.contains_key(&name);
        blocking(move || {
            let present = has_present.then(|| files::present_key(&dir, &name)).flatten();
            let next = if new_key { Some(files::next_key(&dir, &name, present.as_ref())?) } else { None };
            Ok((present, next))
        })
        .await
    }

    /// The key of a new certificate, and the warning about it. If clients do not accept the next key yet, the present
    /// one stays: they would refuse the host.
    async fn key(&self, name: &str) -> Result<(KeyPair, Option<String>), AcmeError> {
        match self.keys(name).await? {
            (Some(present), Some(next)) => match self.about_key(name, next.subject_public_key_info()).await {
                None => Ok((next, None)),
                why => Ok((present, why)),
            },
            (present, next) => {
                let made = || KeyPair::generate().map_err(|error| AcmeError::File(error.to_string()));
                let key = present.or(next).map_or_else(made, Ok)?;
                let why = self.about_key(name, key.subject_public_key_info()).await;
                Ok((key, why))
            }
        }
    }

    async fn about_key(&self, name: &str, key: Vec<u8>) -> Option<String> {
        self.lookup.allows_key(name, &key).await.err().map(|why| match why {
            LookupError::Missing(why) => format!("other hosts expect another key: {why}"),
            LookupError::Unknown(why) => format!("nobody knows whether other hosts expect another key: {why}"),
        })
    }

    async fn obtain(&mut self, name: &str) -> Result<(Obtained, Option<String>), AcmeError> {
        self.check(name).await?;
        let account = self.account().await?;
        let (key, about_key) = self.key(name).await?;
        let before = self.kept.get(name);
        // Only an authority that says when it wants renewals takes account of what replaces what.
        let knows_renewals = self.waits.of.get(name).is_some_and(|wait| wait.renew_at.is_some());
        let replaces = before.filter(|_| knows_renewals);
        let wanted = Wanted { name, way: &self.settings.way, key, replaces };
        let obtained = wanted.obtain(&account, &self.challenges).await;
        if let Err(AcmeError::Authority(Error::Api(problem))) = &obtained
            && problem.r#type.as_deref() == Some(NO_ACCOUNT)
        {
            self.account = None;
            let dir = self.settings.dir.clone();
            let _ = spawn_blocking(move || AccountFile::forget(&dir)).await;
        }
        Ok((obtained?, about_key))
    }

    /// Checks that the name points here and that a challenge can be fetched through it. Behind NAT both may fail
    /// although the name is right.
    async fn check(&self, name: &str) -> Result<(), AcmeError> {
        let settings = &self.settings;
        if matches!(settings.way, Way::Dns(_)) {
            return Ok(());
        }
        let mut addresses = self.lookup.addresses(name).await?;
        addresses.truncate(ADDRESSES_MAX);
        let is_ours = |address: &IpAddr| {
            if settings.is_behind_nat() { settings.addresses.contains(address) } else { is_of_this_host(*address) }
        };
        let strangers: Vec<IpAddr> = addresses.iter().filter(|address| !is_ours(address)).copied().collect();
        let found = if strangers.is_empty() {
            probe::look(&self.challenges, &settings.way, settings.ports, name, &addresses).await
        } else {
            Err(AcmeError::Elsewhere(strangers))
        };
        match found {
            Err(error) if settings.is_behind_nat() => {
                let error = error.to_string();
                tracing::warn!(
                    name,
                    error,
                    "our own check failed, but this host is behind NAT: ordering the certificate anyway"
                );
                Ok(())
            }
            found => found,
        }
    }

    /// Returns the account, which the first call creates. The configuration has accepted the authority's terms.
    async fn account(&mut self) -> Result<Account, AcmeError> {
        if let Some(account) = &self.account {
            return Ok(account.clone());
        }
        let (ca_file, dir, directory) =
            (self.settings.ca_file.clone(), self.settings.dir.clone(), self.settings.directory.clone());
        let of_directory = directory.clone();
        let read = blocking(move || Ok((Client::new(&ca_file)?, AccountFile::read(&dir, &of_directory)))).await?;
        let (client, kept) = read;
        let builder = || Account::builder_with_http(Box::new(client.clone()));
        let known = kept.and_then(|kept| serde_json::from_value::<AccountCredentials>(kept.credentials).ok());
        let account = match known {
            Some(credentials) => builder().from_credentials(credentials).await?,
            None => {
                let contact = self.settings.contact.as_ref().map(|address| format!("mailto:{address}"));
                let contact: Vec<&str> = contact.as_deref().into_iter().collect();
                let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
                let (account, credentials) = builder().create(&new, directory.clone(), None).await?;
                let credentials =
                    serde_json::to_value(credentials).map_err(|error| AcmeError::File(error.to_string()))?;
                let (made, dir) = (AccountFile { directory, credentials }, self.settings.dir.clone());
                blocking(move || made.write(&dir)).await?;
                account
            }
        };
        self.account = Some(account.clone());
        Ok(account)
    }

    /// Logs a failure. A missing record is logged once and looked up again soon, as that costs nothing.
    fn failed(&mut self, name: &str, error: &AcmeError) -> String {
        // The authority's and the program's words, and names from DNS, are a stranger's text.
        let mut why = error.to_string();
        why.truncate(why.floor_char_boundary(WHY_BYTES_MAX));
        let wait = self.waits.of.entry(name.to_owned()).or_default();
        if error.is_of_dns() {
            wait.why = Some(why.clone());
            if self.told.len() >= TOLD_MAX {
                self.told.clear();
            }
            if self.told.insert((name.to_owned(), why.clone())) {
                let help = match error {
                    AcmeError::NoAnswer(_) => "no certificate for this name: DNS does not answer; it is asked again",
                    _ => "no certificate for this name: correct its DNS record, which does not point here",
                };
                tracing::warn!(name, error = why, "{help}");
            }
        } else {
            wait.failed(now(), why.clone());
            let minutes = (wait.next.saturating_sub(now()) + 30) / 60;
            tracing::warn!(
                name,
                error = why,
                minutes,
                "cannot renew the certificate of this name; retrying automatically"
            );
        }
        self.publish();
        why
    }

    /// Puts the certificates in force and publishes their state.
    fn publish(&self) {
        let names = &self.settings.names;
        self.list.set(names.iter().filter_map(|name| self.kept.get(name)).map(|kept| Arc::clone(&kept.key)));
        let state = |name: &String| {
            let wait = self.waits.of.get(name).cloned().unwrap_or_default();
            let ends = self.kept.get(name).map(|kept| kept.not_after);
            NameState { name: name.clone(), ends, why: wait.why, next: wait.next }
        };
        *self.states.lock().unwrap_or_else(PoisonError::into_inner) = names.iter().map(state).collect();
    }

    async fn save(&mut self) {
        let names: BTreeSet<&String> = self.settings.names.iter().collect();
        self.waits.of.retain(|name, _| names.contains(name));
        let waits = std::mem::take(&mut self.waits);
        let saved = spawn_blocking(move || (waits.write(), waits)).await;
        match saved {
            Ok((written, waits)) => {
                self.waits = waits;
                if let Err(error) = written {
                    tracing::error!(
                        error = error.to_string(),
                        "cannot save the retry times of certificates: a restart retries them at once"
                    );
                }
            }
            // The runtime ends.
            Err(_) => self.waits = Waits::read(&self.settings.dir),
        }
    }
}

const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AcmeError> + Send + 'static,
) -> Result<T, AcmeError> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(AcmeError::File(error.to_string())))
}

/// True if this host has the address and others can reach it: a socket can be bound to it.
fn is_of_this_host(address: IpAddr) -> bool {
    !address.is_loopback() && !address.is_unspecified() && UdpSocket::bind((address, 0)).is_ok()
}

/// Current time, in seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn random() -> u64 {
    let mut octets = [0; 8];
    // Any moment will do, if the kernel has none.
    let _ = getrandom(&mut octets, GetRandomFlags::empty());
    u64::from_ne_bytes(octets)
}
