//! Starting, reloading, stopping.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use posthaste_delivery::local::{LocalDelivery, OpenError, ReplayReport};
use posthaste_smtp::driver::{BoundServer, ListenError, RunningServer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{self, Config, ConfigError, Loaded, LogFormat};
use crate::indexing::Indexing;
use crate::listening::{bind_when_free, connection_limits, settings};
use crate::memory::MemoryBudget;
use crate::opening::open_store;
use crate::owners::{Current, OwnerRules};
use crate::privileges::PrivilegeError;
use crate::ready::Supervisor;
use crate::receive::{Receiver, Settings};
use crate::reload::merged;
use crate::tidy::Tidy;
use crate::watch::Watch;

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The configuration cannot be used; nothing was touched.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The spool or the mail directory cannot be used, for example because another server uses it.
    #[error("{}: {error}", dir.display())]
    Storage {
        /// The spool's directory, or the data directory.
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
    store: LocalDelivery,
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
        let receiver = Receiver::new(Settings::new(&config), store.clone(), memory, &config.storage.spool);
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

    /// Puts `config` in force for new connections and recipients, as far as a running server can. Open sessions go on.
    /// Returns the changes that need a restart.
    pub fn reload(&mut self, config: Config) -> Vec<String> {
        let (config, restart) = merged(&self.config, config);
        self.config = config;
        self.receiver.replace(Settings::new(&self.config));
        self.owners.replace(OwnerRules::of(&self.config));
        self.running.set_limits(connection_limits(&self.config));
        let settings = self.config.listeners.iter().map(|listener| settings(&self.config, listener)).collect();
        // Fails only if TLS or AUTH is asked for.
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
    /// Format of log lines; overrides the configuration.
    pub log_format: Option<LogFormat>,
    /// A descriptor that a line is written to once all listeners are bound and the spool is replayed.
    pub ready_fd: Option<u32>,
}

/// Runs the server until SIGTERM or SIGINT; what `posthaste serve` does. A second of these signals calls `at_once`, which ends
/// the process: nothing may be waited for then, not even a store whose disk does not answer.
///
/// # Errors
/// See [`ServeError`].
pub fn serve(options: ServeOptions, at_once: impl FnOnce() -> std::convert::Infallible) -> Result<(), ServeError> {
    let ServeOptions { config, log_format, ready_fd } = options;
    // Before privileges are dropped: the descriptor belongs to the user that starts the server.
    let mut supervisor = Supervisor::new(ready_fd)?;
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
    let outcome = runtime.block_on(run(config, bound, &mut supervisor, &mut source, at_once));
    // A thread that a disk holds must not hold the end: what it does is in the spool.
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
    supervisor: &mut Supervisor,
    source: &mut Source,
    at_once: impl FnOnce() -> std::convert::Infallible,
) -> Result<(), ServeError> {
    let mut stop = StopSignals::new()?;
    let mut hang_up = signal(SignalKind::hangup())?;
    // Reading a full spool takes its time, and it cannot be interrupted.
    let mut start = std::pin::pin!(Server::start_on(bound, config));
    let (mut server, is_stopping) = tokio::select! {
        started = &mut start => (started?, false),
        () = stop.next() => {
            supervisor.stopping();
            tracing::info!("stopping once the spool is replayed; a second signal exits now");
            tokio::select! {
                started = &mut start => (started?, true),
                () = stop.next() => {
                    tracing::warn!("second signal: exiting now; acknowledged mail is in the spool");
                    match at_once() {}
                }
            }
        }
    };
    if !is_stopping {
        announce(&server, supervisor);
        loop {
            tokio::select! {
                () = stop.next() => break,
                _ = hang_up.recv() => reload(&mut server, &mut *source),
            }
        }
        supervisor.stopping();
        tracing::info!("stopping: no new connections, open transactions may finish");
    }
    let spool = server.config.storage.spool.clone();
    let shutdown = server.shutdown();
    let mut shutdown = std::pin::pin!(shutdown);
    tokio::select! {
        Stopped { in_time, waiting_messages, waiting_mailboxes } = &mut shutdown => {
            if waiting_messages > 0 {
                let spool = spool.display().to_string();
                tracing::warn!(
                    messages = waiting_messages,
                    mailboxes = waiting_mailboxes,
                    spool,
                    "mail still waits for its mailboxes; it stays in the spool, and the next start delivers it"
                );
            }
            tracing::info!(in_time, waiting = waiting_messages, "stopped");
            return Ok(());
        }
        () = stop.next() => {}
    }
    tracing::warn!("second signal: exiting now without draining; acknowledged mail is in the spool");
    match at_once() {}
}

/// SIGTERM and SIGINT. From its making on they no longer end the process by themselves.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next of them.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Prints the banner, logs warnings about this configuration, and reports readiness.
fn announce(server: &Server, supervisor: &mut Supervisor) {
    // With JSON, every line of output is JSON.
    print(&match server.config.log.format {
        LogFormat::Plain => server.banner(),
        LogFormat::Json => server.banner_json(),
    });
    supervisor.ready();
    let owners = OwnerRules::of(&server.config);
    if rustix::process::geteuid().is_root() && server.config.user.is_none() && !owners.give_away() {
        tracing::warn!("running as root: set `user`, so that the server drops privileges after binding its sockets");
    }
    for bar in owners.barred(&server.config.storage.mail) {
        tracing::warn!("{bar}");
    }
}

fn reload(server: &mut Server, source: &mut Source) {
    match source.read_again() {
        Ok(config) => {
            let file = source.loaded.file.as_deref().map(|file| file.display().to_string());
            let restart = server.reload(config);
            tracing::info!(file, "configuration reloaded");
            if !restart.is_empty() {
                tracing::warn!(changes = restart.join(", "), "these changes need a restart");
            }
        }
        Err(error) => {
            tracing::error!(error = error.in_one_line(), "configuration not reloaded; the old one stays in force")
        }
    }
}

/// Takes as many as it may: the soft limit is kept low for programs that use select(2), which this one does not.
fn raise_files_max() {
    let limit = getrlimit(Resource::Nofile);
    // That it stays as it is, is said in the banner.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Writes to standard output; that nobody reads any more is no reason to stop receiving.
fn print(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
