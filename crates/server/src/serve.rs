//! Starting, reloading, stopping.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use posthaste_delivery::{Journaled, OpenError, ReplayReport};
use posthaste_smtp::driver::{BoundServer, ListenError, RunningServer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{self, Config, ConfigError, Limits, Listener, Loaded, LogFormat};
use crate::indexing::Indexing;
use crate::listening::{bind_when_free, connection_limits, settings};
use crate::memory::MemoryBudget;
use crate::opening::open_store;
use crate::owners::{Current, OwnerRules};
use crate::privileges::PrivilegeError;
use crate::ready::ReadyFd;
use crate::receive::{Receiver, Settings};
use crate::tidy::Tidy;
use crate::watch::Watch;

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The configuration cannot be used; nothing was touched.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The journal or the mail directory cannot be used, for example because another server uses it.
    #[error("{}: {error}", dir.display())]
    Storage {
        /// The journal's directory, or the data directory.
        dir: PathBuf,
        /// What is wrong with it.
        error: OpenError,
    },
    /// An address or path cannot be listened on; nothing was touched.
    #[error("cannot listen on {0}{hint}", hint = hint(.0))]
    Listen(#[from] ListenError),
    /// The server cannot run as the user that it should; no mail was touched.
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
    /// The descriptor for readiness cannot be written to; nothing was touched.
    #[error("--ready-fd {number}: {error}; give a descriptor that is open for writing, 3 or above")]
    ReadyFd {
        /// Its number.
        number: u32,
        /// What the system said.
        error: std::io::Error,
    },
    /// The system refuses something that every server needs.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

fn hint(error: &ListenError) -> String {
    let port = error.place.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let is_refused = error.error.kind() == std::io::ErrorKind::PermissionDenied;
    port.filter(|&port| is_refused && config::is_low(port))
        .map_or(String::new(), |_| format!(": {}", config::LOW_PORTS))
}

/// How a server has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// Whether all sessions ended in time.
    pub in_time: bool,
    /// Messages that are kept and wait for mailboxes: the next start has them delivered.
    pub waiting_messages: usize,
    /// Mailboxes that they wait for.
    pub waiting_mailboxes: usize,
}

/// A server at work.
pub struct Server {
    pub(crate) config: Config,
    receiver: Receiver,
    store: Journaled,
    pub(crate) running: RunningServer,
    pub(crate) replayed: ReplayReport,
    watch: Watch,
    tidy: Tidy,
    pub(crate) indexing: Option<Indexing>,
    owners: Current,
}

impl Server {
    /// Listens, opens the store and finishes what an earlier run left, and serves. Needs a tokio runtime.
    ///
    /// The process stays the user that it is. `user` and `group` of the configuration are for [`serve`], which owns the process: where they name somebody
    /// else, this is an error and not a server with more rights than it was to have.
    ///
    /// # Errors
    /// See [`ServeError`]; nothing listens then.
    pub async fn start(config: Config) -> Result<Self, ServeError> {
        crate::privileges::check_user(&config)?;
        crate::privileges::check_owners(&config)?;
        let configured = config.clone();
        let bound =
            tokio::task::spawn_blocking(move || bind_when_free(&configured)).await.map_err(std::io::Error::from)??;
        Self::start_on(bound, config).await
    }

    /// As [`Server::start`], on sockets that listen already: who connects meanwhile is greeted once the store is open.
    async fn start_on(bound: BoundServer, config: Config) -> Result<Self, ServeError> {
        let owners = Current::new(OwnerRules::of(&config));
        let (store, replayed) = open_store(&config, owners.owners()).await?;
        let memory = MemoryBudget::new(config.limits.memory_bytes);
        let receiver = Receiver::new(Settings::new(&config), store.clone(), memory, &config.storage.journal);
        let running = match bound.start(receiver.clone()) {
            Ok(running) => running,
            Err(error) => {
                store.shutdown().await;
                return Err(error.into());
            }
        };
        let watch = Watch::begin(store.clone(), receiver.clone());
        let tidy = Tidy::begin(config.storage.mail.clone());
        let indexing = Indexing::begin(&config.search, &config.storage.mail);
        Ok(Self { config, receiver, store, running, replayed, watch, tidy, indexing, owners })
    }

    /// The TCP addresses that it listens on, with the ports that were taken.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.running.local_addrs()
    }

    /// Puts host name, domains, limits, policies and who may connect of `config` in force for what begins from now on. Sessions go on.
    /// Returns the keys whose change needs a restart.
    pub fn reload(&mut self, config: Config) -> Vec<&'static str> {
        let restart = needs_restart(&self.config, &config);
        self.receiver.replace(Settings::new(&config));
        self.owners.replace(OwnerRules::of(&config));
        // What is not in force is told of again next time.
        let kept = &self.config;
        let limits = Limits { memory_bytes: kept.limits.memory_bytes, ..config.limits };
        let listeners = match have_same_sockets(&kept.listeners, &config.listeners) {
            true => config.listeners,
            false => kept.listeners.clone(),
        };
        self.config = Config {
            user: kept.user.clone(),
            group: kept.group.clone(),
            storage: kept.storage.clone(),
            search: kept.search.clone(),
            listeners,
            log: kept.log.clone(),
            limits,
            ..config
        };
        self.running.set_limits(connection_limits(&self.config));
        let settings = self.config.listeners.iter().map(|listener| settings(&self.config, listener)).collect();
        // Only TLS and AUTH can be asked for in vain.
        self.running.reconfigure_each(settings).expect("neither TLS nor AUTH is configured");
        restart
    }

    /// Takes no more connections, lets open transactions finish for `limits.shutdown_secs`, writes out what was
    /// received, for as long again at most, and ends.
    pub async fn shutdown(self) -> Stopped {
        let grace = Duration::from_secs(self.config.limits.shutdown_secs);
        let in_time = self.running.shutdown(grace).await;
        drop((self.watch, self.tidy));
        self.store.shutdown().await;
        if let Some(indexing) = self.indexing {
            indexing.end().await;
        }
        crate::repeats::log(&self.receiver.left_out(true));
        Stopped {
            in_time,
            waiting_messages: self.store.stats().waiting,
            waiting_mailboxes: self.store.waiting_mailboxes().len(),
        }
    }
}

/// What the command line of `posthaste serve` says.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// The configuration's file; see [`Config::load`].
    pub config: Option<PathBuf>,
    /// How log lines look, whatever the configuration says.
    pub log_format: Option<LogFormat>,
    /// A descriptor that a line is written to once all listeners are bound and the journal is replayed.
    pub ready_fd: Option<u32>,
}

/// Runs the server until SIGTERM or SIGINT; what `posthaste serve` does. A second of these signals calls `at_once`, which ends
/// the process: nothing may be waited for then, not even a store whose disk does not answer.
///
/// # Errors
/// See [`ServeError`].
pub fn serve(options: ServeOptions, at_once: impl FnOnce() -> std::convert::Infallible) -> Result<(), ServeError> {
    let ServeOptions { config, log_format, ready_fd } = options;
    // As the user that we begin as, who was given it.
    let ready = ready_fd.map(ReadyFd::open).transpose()?;
    let loaded = Loaded::load(config.as_deref())?;
    let mut source = Source { file: config, log_format, loaded };
    let config = source.config();
    // Before anything is made: a start that fails leaves nothing behind.
    let bound = bind_when_free(&config)?;
    raise_files_max();
    // And before there is a second thread.
    crate::privileges::give_up(&config)?;
    let log = crate::logging::start(&config.log);
    // What the log still holds is written first.
    let at_once = || {
        drop(log);
        at_once()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(run(config, bound, ready, &mut source, at_once));
    // A thread that a disk holds must not hold the end: what it does is in the journal.
    runtime.shutdown_background();
    outcome
}

/// Where the configuration comes from, and what it said last.
struct Source {
    file: Option<PathBuf>,
    log_format: Option<LogFormat>,
    loaded: Loaded,
}

impl Source {
    fn config(&self) -> Config {
        let mut config = self.loaded.config.clone();
        config.log.format = self.log_format.unwrap_or(config.log.format);
        config
    }

    /// After an error everything stays as it was.
    fn read_again(&mut self) -> Result<Config, ConfigError> {
        let loaded = self.loaded.again(self.file.as_deref())?;
        crate::privileges::check_owners(&loaded.config).map_err(|error| loaded.error(error.to_string()))?;
        self.loaded = loaded;
        Ok(self.config())
    }
}

async fn run(
    config: Config,
    bound: BoundServer,
    ready: Option<ReadyFd>,
    source: &mut Source,
    at_once: impl FnOnce() -> std::convert::Infallible,
) -> Result<(), ServeError> {
    // Before the first promise is made: a signal that comes early must not end us the hard way.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hang_up = signal(SignalKind::hangup())?;
    // Replaying a long journal takes its time, and so may a disk.
    let started = tokio::select! {
        started = Server::start_on(bound, config) => Some(started?),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    let Some(mut server) = started else {
        tracing::warn!("stopped before it began; what was promised is in the journal");
        match at_once() {}
    };
    // Who wants JSON gets lines of JSON and nothing else.
    print(&match server.config.log.format {
        LogFormat::Plain => server.banner(),
        LogFormat::Json => server.banner_json(),
    });
    if let Some(ready) = ready {
        ready.tell();
    }
    let owners = OwnerRules::of(&server.config);
    if rustix::process::geteuid().is_root() && server.config.user.is_none() && !owners.give_away() {
        tracing::warn!("runs as root: set `user`, so that it gives that up once it listens");
    }
    for bar in owners.barred(&server.config.storage.mail) {
        tracing::warn!("{bar}");
    }
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => reload(&mut server, &mut *source),
        }
    }
    tracing::info!("stopping: no new connections, open transactions may finish");
    let journal = server.config.storage.journal.clone();
    let shutdown = server.shutdown();
    let mut shutdown = std::pin::pin!(shutdown);
    tokio::select! {
        Stopped { in_time, waiting_messages, waiting_mailboxes } = &mut shutdown => {
            if waiting_messages > 0 {
                let journal = journal.display().to_string();
                tracing::warn!(
                    messages = waiting_messages,
                    mailboxes = waiting_mailboxes,
                    journal,
                    "mail still waits for its mailboxes; it is in the journal, and the next start goes on with it"
                );
            }
            tracing::info!(in_time, waiting = waiting_messages, "stopped");
            return Ok(());
        }
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::warn!("told twice: stopped without waiting; unfinished work is in the journal");
    match at_once() {}
}

fn reload(server: &mut Server, source: &mut Source) {
    match source.read_again() {
        Ok(config) => {
            let file = source.loaded.file.as_deref().map(|file| file.display().to_string());
            let restart = server.reload(config);
            tracing::info!(file, "configuration reloaded");
            if !restart.is_empty() {
                tracing::warn!(keys = restart.join(", "), "changed, but needs a restart");
            }
        }
        Err(error) => tracing::error!(error = error.in_one_line(), "configuration not reloaded, the old one stays"),
    }
}

/// Takes as many as it may: the soft limit is kept low for programs that use select(2), which this one does not.
fn raise_files_max() {
    let limit = getrlimit(Resource::Nofile);
    // That it stays as it is, is said in the banner.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let changed = [
        ("user", (&old.user, &old.group) != (&new.user, &new.group)),
        ("storage", old.storage != new.storage),
        ("listener", !have_same_sockets(&old.listeners, &new.listeners)),
        ("search", old.search != new.search),
        ("log", old.log != new.log),
        ("limits.memory_bytes", old.limits.memory_bytes != new.limits.memory_bytes),
    ];
    changed.into_iter().filter_map(|(key, changed)| changed.then_some(key)).collect()
}

/// Whether a server can go over from one to the other without opening or closing a socket.
fn have_same_sockets(old: &[Listener], new: &[Listener]) -> bool {
    old.len() == new.len() && old.iter().zip(new).all(|(old, new)| old.is_same_socket(new))
}

/// Writes to standard output; that nobody reads any more is no reason to stop receiving.
fn print(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
