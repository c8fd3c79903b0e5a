//! The process of `posthaste serve`: starting, reloading, stopping.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use posthaste_directory::Directory;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::error::ServeError;
use crate::config::start_files::StartFiles;
use crate::control::ready::Supervisor;
use crate::control::server::{MailServer, Reloaded, Stopped};
use crate::lifecycle::{START_ENDS, drain_requested};
use crate::listen::listening::{Bound, bind_when_free};
use posthaste_config::{Config, ConfigError, Loaded, LogFormat, OwnerRules};

/// Options of `posthaste serve`.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// The configuration's file; see [`Config::load`].
    pub config: Option<PathBuf>,
    /// Format of log lines; overrides the configuration.
    pub log_format: Option<LogFormat>,
    /// A descriptor to which a line is written once all listeners are bound and the spool is replayed.
    pub ready_fd: Option<u32>,
}

/// Runs the server until SIGTERM or SIGINT: the implementation of `posthaste serve`. A second signal calls `at_once`,
/// which ends the process without waiting, as a disk may not answer.
///
/// # Errors
/// See [`ServeError`].
pub fn serve(options: ServeOptions, at_once: fn() -> std::convert::Infallible) -> Result<(), ServeFailure> {
    let mut log_format = options.log_format.unwrap_or_default();
    run_process(options, &mut log_format, at_once).map_err(|error| ServeFailure { error, log_format })
}

/// The error that ended [`serve`], with its output form.
#[derive(Debug)]
pub struct ServeFailure {
    /// The error.
    pub error: ServeError,
    /// Format of the log, as far as known: for JSON print [`error_line`](crate::logging::error_line).
    pub log_format: LogFormat,
}

/// Runs the server; sets `format` to the configured one once it is read.
// No generics here: with them the whole start would be compiled once more, in the program.
fn run_process(
    options: ServeOptions,
    format: &mut LogFormat,
    at_once: fn() -> std::convert::Infallible,
) -> Result<(), ServeError> {
    let ServeOptions { config, log_format, ready_fd } = options;
    // Before privileges are dropped: the descriptor belongs to the user that starts the server.
    let mut supervisor = Supervisor::new(ready_fd)?;
    if let Err(error) = crate::services::transports::close_inherited_on_exec() {
        // With an older kernel, programs that get mail have what we were started with.
        tracing::debug!(error = error.to_string(), "inherited descriptors stay open in programs");
    }
    let loaded = Loaded::load(config.as_deref())?;
    *format = log_format.unwrap_or(loaded.config.log.format);
    crate::config::privileges::check_file(&loaded)?;
    let mut source = Source { file: config, log_format, loaded };
    let config = source.config();
    // Before anything is made: a start that fails leaves nothing behind.
    let bound = bind_when_free(&config, &source.loaded.directory)?;
    raise_files_max();
    // And before there is a second thread.
    crate::config::privileges::give_up(&config)?;
    let log = crate::logging::start(&config.log);
    if let Some(why) = &source.loaded.passed_over {
        tracing::warn!(why, "root does not read posthaste.toml in the working directory");
    }
    crate::services::panics::install();
    // What the log still holds is written first.
    let at_once = || {
        drop(log);
        at_once()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(run(config, bound, &mut supervisor, &mut source, at_once));
    // A thread that a disk holds must not hold the end: what it does is in the spool.
    runtime.shutdown_background();
    match outcome {
        // As asked for.
        Err(ServeError::Stopped) => Ok(()),
        outcome => outcome,
    }
}

/// The configuration's file and its last content.
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

    /// Reads the file again. After an error nothing is changed.
    fn read_again(&mut self) -> Result<Config, ConfigError> {
        let loaded = self.loaded.again(self.file.as_deref())?;
        crate::config::privileges::check_owners(&loaded.config).map_err(|error| loaded.error(error.to_string()))?;
        crate::config::privileges::check_transports(&loaded.config).map_err(|error| loaded.error(error.to_string()))?;
        crate::config::privileges::check_file(&loaded).map_err(|error| loaded.error(error.to_string()))?;
        self.loaded = loaded;
        Ok(self.config())
    }
}

async fn run(
    config: Config,
    bound: Bound,
    supervisor: &mut Supervisor,
    source: &mut Source,
    at_once: impl FnOnce() -> std::convert::Infallible,
) -> Result<(), ServeError> {
    let mut stop = StopSignals::new()?;
    let mut hang_up = signal(SignalKind::hangup())?;
    // Reading a full spool takes its time, and it cannot be interrupted. The wait for an engine can.
    let mut start = std::pin::pin!(MailServer::start_on(bound, config, Arc::clone(&source.loaded.directory)));
    let (mut server, is_stopping) = tokio::select! {
        started = &mut start => (started?, false),
        () = stop.next() => {
            supervisor.stopping();
            tracing::info!("stopping once the spool is replayed; a second signal exits now");
            START_ENDS.notify_one();
            tokio::select! {
                started = &mut start => (started?, true),
                () = stop.next() => {
                    tracing::warn!("second signal: exiting now; acknowledged mail is in the spool");
                    match at_once() {}
                }
            }
        }
    };
    let mut failed = None;
    let mut is_drained = false;
    if !is_stopping {
        announce(&server, &source.loaded.directory, supervisor);
        let mut daily = tokio::time::interval(DAY);
        let mut reloads = server.reloads.take().expect("nobody has taken them");
        loop {
            tokio::select! {
                () = stop.next() => break,
                () = drain_requested() => {
                    is_drained = true;
                    break;
                }
                service = server.failed() => {
                    tracing::error!(service, "a service has ended by itself, which is a bug: stopping");
                    failed = Some(ServeError::Failed { service });
                    break;
                }
                _ = hang_up.recv() => {
                    let _ = reload(&mut server, &mut *source);
                    daily.reset_immediately();
                }
                // Without a control socket nobody asks.
                Some(asked) = reloads.recv() => {
                    let _ = asked.send(reload(&mut server, &mut *source));
                    daily.reset_immediately();
                }
                // The first tick comes at once.
                _ = daily.tick() => tell_expiring(&server.config),
            }
        }
        supervisor.stopping();
        tracing::info!("stopping: no new connections, open transactions may finish");
    }
    let spool = server.config.storage.spool.clone();
    let shutdown = server.shutdown();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            stopped = &mut shutdown => {
                tell_left(&stopped, &spool);
                return failed.map_or(Ok(()), Err);
            }
            () = stop.next() => {}
        }
        if !std::mem::take(&mut is_drained) {
            break;
        }
        tracing::info!("signal during the drain, which continues; a second signal exits now");
    }
    tracing::warn!("second signal: exiting now without draining; acknowledged mail is in the spool");
    match at_once() {}
}

/// Logs the work that remains for the next start.
fn tell_left(stopped: &Stopped, spool: &Path) {
    let spool = spool.display().to_string();
    let Stopped { in_time, for_mailboxes, for_transports } = *stopped;
    if for_mailboxes.messages > 0 {
        tracing::warn!(
            messages = for_mailboxes.messages,
            mailboxes = for_mailboxes.places,
            spool,
            "mail still waits for its mailboxes; it stays in the spool, and the next start delivers it"
        );
    }
    if for_transports.messages > 0 {
        tracing::warn!(
            messages = for_transports.messages,
            transports = for_transports.places,
            spool,
            "mail still waits for programs, files or LMTP servers; it stays in the spool, and the next start tries it"
        );
    }
    let (waiting, waiting_for_transports) = (for_mailboxes.messages, for_transports.messages);
    tracing::info!(in_time, waiting, waiting_for_transports, "stopped");
}

/// Receives SIGTERM and SIGINT. Once made, they no longer end the process by themselves.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Prints the banner, logs warnings about this configuration, and reports readiness.
fn announce(server: &MailServer, directory: &Directory, supervisor: &mut Supervisor) {
    // With JSON, every line of output is JSON.
    let is_plain = server.config.log.format == LogFormat::Plain;
    let first_minute = if is_plain { server.first_minute_banner() } else { None };
    let is_first_minute = first_minute.is_some();
    print(&first_minute.unwrap_or_else(|| if is_plain { server.banner() } else { server.banner_json() }));
    supervisor.ready();
    if is_first_minute {
        for remark in server.remarks() {
            tracing::warn!("{remark}");
        }
        if let Some(restored) = server.restored() {
            tracing::info!(restored, "mail of the spool");
        }
    }
    let owners = OwnerRules::of(&server.config.domains);
    if rustix::process::geteuid().is_root() && server.config.user.is_none() && !owners.give_away() {
        tracing::warn!("running as root: set `user`, so that the server drops privileges after binding its sockets");
    }
    for warning in crate::config::certificates::exposed_keys(&server.config) {
        tracing::warn!("{warning}");
    }
    // Root has read them at the start.
    let out_of_reach =
        server.config.user.is_some().then(|| StartFiles::read(&server.config, directory).err()).flatten();
    for error in out_of_reach.into_iter().flatten() {
        tracing::warn!(
            error = error.to_string(),
            "the server's user cannot read this: a reload keeps the content from the start, so restart the server after a change"
        );
    }
    for bar in owners.barred(&server.config.storage.mail) {
        tracing::warn!("{bar}");
    }
}

/// Interval between checks of certificates.
const DAY: Duration = Duration::from_secs(86_400);

fn tell_expiring(config: &Config) {
    for warning in crate::config::expiry::warnings(config, SystemTime::now()) {
        tracing::warn!("{warning}");
    }
}

/// The answer to a reload request: keys that need a restart, and unusable values.
fn reload(server: &mut MailServer, source: &mut Source) -> Result<Value, String> {
    match source.read_again() {
        Ok(config) => {
            let file = source.loaded.file.as_deref().map(|file| file.display().to_string());
            let Reloaded { restart, kept } = server.reload_with(config, &source.loaded.directory);
            let changes: Vec<String> = restart.iter().map(ToString::to_string).collect();
            if !restart.is_empty() {
                tracing::warn!(changes = changes.join(", "), "these changes need a restart");
            }
            // The last line tells whether all is well.
            if kept.is_empty() {
                tracing::info!(file, "configuration reloaded")
            } else {
                tracing::error!(
                    file,
                    kept = kept.join(", "),
                    "configuration reloaded in part: these stay unchanged because of the errors above"
                )
            }
            Ok(json!({ "done": 1, "restart": changes, "kept": kept }))
        }
        Err(error) => {
            let error = error.in_one_line();
            tracing::error!(error, "configuration not reloaded; the old one stays in force");
            Err(format!("configuration not reloaded; the old one stays in force: {error}"))
        }
    }
}

/// Raises the limit of open files: the soft limit is kept low for programs that use select(2), which this one does not.
fn raise_files_max() {
    let limit = getrlimit(Resource::Nofile);
    // That it stays as it is, is said in the banner.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Writes to standard output. A closed pipe is ignored: it must not stop the server.
fn print(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_panic_in_a_delivery_thread_ends_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let text = format!("[storage]\ndata = \"{}\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n", data.display());
        let file = dir.path().join("posthaste.toml");
        std::fs::write(&file, text).unwrap();
        let loaded = Loaded::load(Some(&file)).unwrap();
        let config = loaded.config.clone();
        let (mut is_ready, ready) = std::io::pipe().unwrap();
        let mut supervisor = Supervisor::new(ready.as_raw_fd().try_into().ok()).unwrap();
        drop(ready);
        crate::services::panics::install();
        let panics = std::thread::spawn(move || {
            is_ready.read_to_string(&mut String::new()).unwrap();
            // The kernel keeps 15 bytes of a name.
            let names = std::fs::read_dir("/proc/self/task").unwrap().map_while(Result::ok);
            let names: Vec<_> = names.flat_map(|task| std::fs::read_to_string(task.path().join("comm"))).collect();
            for begin in crate::services::panics::THREADS {
                assert!(names.iter().any(|name| name.starts_with(begin)), "no thread {begin}: {names:?}");
            }
            let thread = std::thread::Builder::new().name("spool-keep".to_owned());
            thread.spawn(|| panic!("this test wants a thread that panics")).unwrap().join().unwrap_err();
        });
        let bound = bind_when_free(&config, &loaded.directory).unwrap();
        let mut source = Source { file: None, log_format: None, loaded };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(run(config, bound, &mut supervisor, &mut source, || panic!("nothing hangs")));
        assert!(matches!(ended, Err(ServeError::Failed { service: "delivery" })), "{ended:?}");
        panics.join().unwrap();
    }
}
