//! Starting, reloading, stopping.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use posthaste_delivery::{Journaled, JournaledConfig, OpenError, Owners, ReplayReport};
use posthaste_smtp::driver::{BoundServer, ListenError, RunningServer, Server as SmtpServer, ServerBuilder};
use posthaste_smtp::server::Config as SmtpConfig;
use posthaste_units::wrapped;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{self, Config, ConfigError, Limits, Loaded, LogFormat, Protocol};
use crate::indexing::Indexing;
use crate::memory::{LARGE_BODY_BYTES, MemoryBudget};
use crate::owners::{Current, OwnerRules};
use crate::privileges::PrivilegeError;
use crate::receive::{Receiver, Settings};
use crate::routing::Routes;
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
    config: Config,
    receiver: Receiver,
    store: Journaled,
    running: RunningServer,
    replayed: ReplayReport,
    watch: Watch,
    tidy: Tidy,
    indexing: Option<Indexing>,
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
        let settings = config.clone();
        let bound =
            tokio::task::spawn_blocking(move || bind_when_free(&settings)).await.map_err(std::io::Error::from)??;
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

    /// Puts host name, domains, limits and policies of `config` in force for what begins from now on. Sessions go on.
    /// Returns the keys whose change needs a restart.
    pub fn reload(&mut self, config: Config) -> Vec<&'static str> {
        let restart = needs_restart(&self.config, &config);
        self.receiver.replace(Settings::new(&config));
        self.owners.replace(OwnerRules::of(&config));
        // Only TLS and AUTH can be asked for in vain.
        self.running.reconfigure(smtp_config(&config)).expect("neither TLS nor AUTH is configured");
        // What is not in force is told of again next time.
        let kept = &self.config;
        let limits = Limits {
            connections: kept.limits.connections,
            connections_per_address: kept.limits.connections_per_address,
            memory_bytes: kept.limits.memory_bytes,
            ..config.limits
        };
        self.config = Config {
            user: kept.user.clone(),
            group: kept.group.clone(),
            storage: kept.storage.clone(),
            search: kept.search.clone(),
            listeners: kept.listeners.clone(),
            log: kept.log.clone(),
            limits,
            ..config
        };
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

    /// What is printed at the start, as one line of JSON.
    pub fn banner_json(&self) -> String {
        let unix = self.config.listeners.iter().filter_map(|listener| listener.unix.as_ref());
        let listening: Vec<String> = self.addresses().iter().map(ToString::to_string).collect();
        let listening = [listening, unix.map(|path| path.display().to_string()).collect()].concat();
        let domains: Vec<&str> = self.config.domains.iter().map(|domain| domain.name.as_str()).collect();
        let ReplayReport { messages, restored, deferred, .. } = self.replayed;
        let banner = serde_json::json!({
            "message": "ready", "version": env!("CARGO_PKG_VERSION"), "host_name": self.config.host_name,
            "listening": listening, "receiving": domains, "mail": self.config.storage.mail,
            "journal_messages": messages, "restored": restored, "deferred": deferred, "damaged": damaged(&self.replayed),
        });
        format!("{banner}\n")
    }

    /// What is printed at the start: where it listens, what it receives, how to try it.
    pub fn banner(&self) -> String {
        let mut out = format!("Posthaste {} as {}\n", env!("CARGO_PKG_VERSION"), self.config.host_name);
        for address in self.addresses() {
            let _ = writeln!(out, "  listening  {address}");
        }
        let backlog = self.running.backlog();
        if backlog.is_limited_by_somaxconn() {
            let _ = writeln!(
                out,
                "  note       {}",
                wrapped(
                    &format!(
                        "{} connections may wait to be accepted, not {}: raise net.core.somaxconn",
                        backlog.granted, backlog.wanted
                    ),
                    13
                )
            );
        }
        let connections = self.config.limits.connections;
        if let Some(files) = files_max().filter(|&files| files < connections as u64) {
            let _ = writeln!(
                out,
                "  note       {}",
                wrapped(
                    &format!(
                        "{files} files may be open, so there will be no {connections} connections: raise LimitNOFILE (ulimit -Hn)"
                    ),
                    13
                )
            );
        }
        for path in self.config.listeners.iter().filter_map(|listener| listener.unix.as_ref()) {
            let _ = writeln!(out, "  listening  {}", path.display());
        }
        let domains: Vec<&str> = self.config.domains.iter().map(|domain| domain.name.as_str()).collect();
        let _ = writeln!(out, "  receiving  {}", domains.join(", "));
        let _ = writeln!(out, "  mail       {}", self.config.storage.mail.display());
        if self.indexing.is_some() {
            let _ =
                writeln!(out, "  indexing   into {0}; `posthaste find --index {0}`", self.config.search.dir.display());
        }
        let _ = writeln!(out, "  restored   {}", restored(&self.replayed));
        if let Some(damaged) = damaged(&self.replayed) {
            let _ = writeln!(out, "  DAMAGED    {damaged}");
        }
        if let (Some(address), [domain, ..]) = (self.running.local_addr_for(Protocol::Smtp), domains.as_slice()) {
            let user = example_user(&self.config);
            // As it is on disk: a name of the configuration may be in capitals, or have letters that a directory's has not.
            let path = Routes::of(&self.config).resolve(&user, Some(domain));
            let path = path.map_or_else(|_| format!("{domain}/{user}/Maildir"), |found| found[0].directory.to_string());
            let _ = write!(
                out,
                "Try it:\n  printf 'Subject: hello\\r\\n\\r\\nworld\\r\\n' | curl smtp://{address} \
                 --mail-from you@{domain} --mail-rcpt {user}@{domain} -T -\n  \
                 cat {}/{path}/new/*\n",
                self.config.storage.mail.display()
            );
        }
        out + "Ready; Ctrl-C or SIGTERM ends it.\n"
    }
}

/// Runs the server until SIGTERM or SIGINT; what `posthaste serve` does. A second of these signals calls `at_once`, which ends
/// the process: nothing may be waited for then, not even a store whose disk does not answer.
///
/// # Errors
/// See [`ServeError`].
pub fn serve(
    config_file: Option<PathBuf>,
    log_format: Option<LogFormat>,
    at_once: impl FnOnce() -> std::convert::Infallible,
) -> Result<(), ServeError> {
    let loaded = Loaded::load(config_file.as_deref())?;
    let mut source = Source { file: config_file, log_format, loaded };
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
    let outcome = runtime.block_on(run(config, bound, &mut source, at_once));
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

async fn open_store(config: &Config, owners: Owners) -> Result<(Journaled, ReplayReport), ServeError> {
    let storage = &config.storage;
    let journaled = JournaledConfig {
        host: config.host_name.clone(),
        // Gathered bodies are no larger than this, their trace fields included.
        inline_bytes_max: (LARGE_BODY_BYTES + (64 << 10)) as u64,
        journal: posthaste_journal::Config {
            segment_bytes: storage.journal_segment_bytes,
            max_segments: storage.journal_segments,
            ..posthaste_journal::Config::default()
        },
        pending_bytes_max: storage.mailbox_pending_bytes,
        checkpoint_bytes: storage.checkpoint_bytes,
        shutdown_patience: Duration::from_secs(config.limits.shutdown_secs.max(1)),
        checkpoint_interval: Duration::from_secs(storage.checkpoint_secs),
        backlog_bytes: MemoryBudget::of_store(config.limits.memory_bytes),
        owners,
        ..JournaledConfig::new(&storage.journal, &storage.mail)
    };
    let settings = config.clone();
    let open = move || {
        let path = settings.storage.mail.clone();
        crate::privileges::make_mail_directory(&settings).map_err(|error| OpenError::Io { path, error })?;
        open_when_free(&journaled)
    };
    let opened = tokio::task::spawn_blocking(open).await;
    let (journal, data) = (storage.journal.clone(), storage.data.clone());
    let (store, report) = opened.map_err(std::io::Error::from)?.map_err(|error| {
        let dir = if matches!(error, OpenError::Journal(_)) { journal } else { data };
        ServeError::Storage { dir, error }
    })?;
    for damage in &report.damage {
        let (segment, offset, what) = (damage.segment.as_str(), damage.offset, damage.what);
        let (first, last) = damage.seqs.unzip();
        if damage.promised {
            tracing::error!(segment, offset, first, last, what, "promised mail is damaged in the journal");
        } else {
            tracing::info!(segment, offset, first, last, what, "torn tail of an earlier run: nothing was promised");
        }
    }
    if let Some((_, error)) = report.unreadable.first() {
        let (records, error) = (report.unreadable.len(), error.to_string());
        tracing::error!(
            records,
            error,
            "records that cannot be read stay in the journal; the error is that of the first"
        );
    }
    let ReplayReport { messages, restored, deferred, .. } = report;
    tracing::info!(messages, restored, deferred, "journal replayed");
    Ok((store, report))
}

/// Opens the store. A predecessor that was killed holds its locks until the kernel has taken it apart, so this waits a little.
fn open_when_free(config: &JournaledConfig) -> Result<(Journaled, ReplayReport), OpenError> {
    let deadline = Instant::now() + PREDECESSOR_PATIENCE;
    loop {
        match Journaled::open(config.clone()) {
            Err(OpenError::Journal(posthaste_journal::OpenError::Locked)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            opened => return opened,
        }
    }
}

/// Listens. A predecessor that was killed has its sockets until the kernel has taken it apart, so this waits a little.
fn bind_when_free(config: &Config) -> Result<BoundServer, ListenError> {
    let deadline = Instant::now() + PREDECESSOR_PATIENCE;
    loop {
        match builder(config).bind() {
            Err(error) if error.error.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            bound => return bound,
        }
    }
}

fn builder(config: &Config) -> ServerBuilder {
    let limits = &config.limits;
    let mut builder = SmtpServer::builder()
        .config(smtp_config(config))
        .max_connections(limits.connections)
        .max_connections_per_address(limits.connections_per_address);
    for listener in &config.listeners {
        builder = builder.protocol(listener.protocol);
        builder = match (&listener.address, &listener.unix) {
            (Some(address), _) => builder.listen(address.to_string()),
            (None, Some(path)) => {
                let access = listener.unix_access();
                let mut access = access.unwrap_or_else(|problem| panic!("an unchecked configuration: {problem:?}"));
                access.group = access.group.or_else(|| crate::privileges::group_to_be(config));
                builder.listen_unix_with(path, access)
            }
            (None, None) => builder,
        };
    }
    builder
}

fn smtp_config(config: &Config) -> SmtpConfig {
    SmtpConfig {
        limits: (&config.limits).into(),
        bare_newlines: config.policy.bare_newlines,
        forbidden_commands: config.policy.forbidden_commands.clone(),
        nul_octets: config.policy.nul_octets,
        long_lines: config.policy.long_lines,
        ..SmtpConfig::new(&config.host_name)
    }
}

/// Files that this process may have open; each connection is one. `None` for any number.
fn files_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Takes as many as it may: the soft limit is kept low for programs that use select(2), which this one does not.
fn raise_files_max() {
    let limit = getrlimit(Resource::Nofile);
    // That it stays as it is, is said in the banner.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let (a, b) = (&old.limits, &new.limits);
    let changed = [
        ("user", (&old.user, &old.group) != (&new.user, &new.group)),
        ("storage", old.storage != new.storage),
        ("listener", old.listeners != new.listeners),
        ("search", old.search != new.search),
        ("log", old.log != new.log),
        ("limits.connections", a.connections != b.connections),
        ("limits.connections_per_address", a.connections_per_address != b.connections_per_address),
        ("limits.memory_bytes", a.memory_bytes != b.memory_bytes),
    ];
    changed.into_iter().filter_map(|(key, changed)| changed.then_some(key)).collect()
}

fn restored(report: &ReplayReport) -> String {
    let of = match report.messages {
        0 => return "nothing was left unfinished".to_owned(),
        1 => "1 message in the journal".to_owned(),
        many => format!("{many} messages in the journal"),
    };
    match (report.restored, report.deferred) {
        (0, 0) => format!("nothing; {of}, all in their mailboxes"),
        (0, deferred) => format!("nothing; {of}, {}", mailbox_entries(deferred) + " cannot be written yet"),
        (restored, 0) => format!("{} of {of}", mailbox_entries(restored)),
        (restored, deferred) => format!("{} of {of}, {deferred} cannot be written yet", mailbox_entries(restored)),
    }
}

fn mailbox_entries(count: usize) -> String {
    if count == 1 { "1 mailbox entry".to_owned() } else { format!("{count} mailbox entries") }
}

/// What was promised and could not be read.
fn damaged(report: &ReplayReport) -> Option<String> {
    let places = report.damage.iter().filter(|damage| damage.promised).count();
    let records = report.unreadable.len();
    let text = format!("promised mail in the journal: places set aside {places}, records not readable now {records}");
    (places + records > 0).then(|| text + "; see the log")
}

/// A user that the banner can name: the first that there is.
fn example_user(config: &Config) -> String {
    match config.domains.first().map(|domain| &domain.users) {
        Some(config::Users::Listed(users)) => users.first().map_or("postmaster", String::as_str).to_owned(),
        _ => "me".to_owned(),
    }
}

/// Writes to standard output; that nobody reads any more is no reason to stop receiving.
fn print(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// How long a start waits for a process that is being ended to let the journal go.
const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(3);
