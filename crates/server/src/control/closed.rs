//! The queue of a server that does not run: exports and imports, under the lock of its spool. Nothing is sent meanwhile.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use posthaste_control::Request;
use posthaste_dns::{Resolver, Settings as DnsSettings};
use posthaste_intake::Destination;
use posthaste_relay::sender::{Bounces, Config as RelayConfig, Delivering, Notice, Notices, Notifier, Relay, Routing};
use posthaste_relay::session::Timeouts;
use posthaste_relay::shaping::Rules;
use posthaste_spool::{ClosedFileSpool, FileSpool, OpenError, Spool};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;

use super::{Asker, REQUEST_BYTES_MAX, answer, export, import};
use crate::events::Events;
use crate::relay_log::RelayLog;
use posthaste_config::Config;

/// The queue, open. Others cannot open it meanwhile, a server neither.
pub struct ClosedQueue {
    relay: Relay,
    /// The event log, which has the acts, too.
    events: Option<Events>,
    host_name: String,
}

/// Why the queue, or the mailboxes, cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClosedQueueError {
    /// There is no spool.
    #[error("no server runs with its data in {}, and no spool is there", data.display())]
    Absent {
        /// The data directory.
        data: PathBuf,
    },
    /// Another process has the spool.
    #[error("{}: the spool is in use, and no server answers at its control socket", dir.display())]
    InUse {
        /// The spool's directory.
        dir: PathBuf,
    },
    /// It cannot be read, or threads cannot be started.
    #[error("{}: {error}", dir.display())]
    Unreadable {
        /// The spool's directory.
        dir: PathBuf,
        /// The cause.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Checks that there is a spool, which opening would make, and that nobody has it.
pub(super) fn check_closed(config: &Config) -> Result<(), ClosedQueueError> {
    let dir = &config.storage.spool;
    if !dir.is_dir() {
        return Err(ClosedQueueError::Absent { data: config.storage.data.clone() });
    }
    match ClosedFileSpool::is_in_use(dir) {
        Ok(false) => Ok(()),
        Ok(true) => Err(ClosedQueueError::InUse { dir: dir.clone() }),
        Err(error) => Err(unopened(dir, error)),
    }
}

fn unopened(dir: &Path, error: OpenError) -> ClosedQueueError {
    match error {
        OpenError::Locked => ClosedQueueError::InUse { dir: dir.to_owned() },
        error => ClosedQueueError::Unreadable { dir: dir.to_owned(), error: error.into() },
    }
}

pub(super) fn unreadable(
    config: &Config,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> ClosedQueueError {
    ClosedQueueError::Unreadable { dir: config.storage.spool.clone(), error: error.into() }
}

impl ClosedQueue {
    /// Opens the queue of this configuration. Blocks while the spool is read.
    ///
    /// # Errors
    /// See [`ClosedQueueError`].
    pub fn open(config: &Config) -> Result<Self, ClosedQueueError> {
        check_closed(config)?;
        let dir = &config.storage.spool;
        let failed = |error| unopened(dir, error);
        let (spool, _) = FileSpool::open(dir, (&config.storage).into()).map_err(failed)?;
        let spool: Arc<dyn Spool> = Arc::new(spool);
        let events = config.events.enabled.then(|| Events::open(config, &spool)).transpose();
        let events = events.map_err(|error| unreadable(config, error))?.flatten();
        let recorder = events.as_ref().map(Events::recorder);
        let settings = settings(config, RelayLog { recorder, meters: Arc::default() })
            .map_err(|error| unreadable(config, error))?;
        let (relay, _) = Relay::open_idle(spool, settings).map_err(|error| unreadable(config, error))?;
        Ok(Self { relay, events, host_name: config.host_name.clone() })
    }

    #[cfg(test)]
    pub(super) fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Reads one request and answers it as the control socket does, then closes the queue. Only an export and an import are answered. `uid`: who asks.
    ///
    /// # Errors
    /// Errors of the stream; an error of the request is in the answer.
    pub fn serve(self, stream: StdStream, uid: u32) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let served = runtime.block_on(self.respond(stream, uid));
        self.relay.end_by(std::time::Instant::now() + PATIENCE);
        self.events.iter().for_each(|events| events.end(PATIENCE));
        served
    }

    async fn respond(&self, stream: StdStream, uid: u32) -> io::Result<()> {
        let (read, write) = UnixStream::from_std(stream)?.into_split();
        let (mut lines, mut line) = (BufReader::new(read.take(REQUEST_BYTES_MAX)), String::new());
        lines.read_line(&mut line).await?;
        let (relay, host) = (self.relay.clone(), self.host_name.clone());
        match serde_json::from_str::<Request>(&line) {
            Ok(Request::Import { release }) => import::import(lines, write, relay, uid, release).await,
            Ok(Request::Export { of, hold }) => {
                let asker = Asker { uid, ..Asker::default() };
                answer(write, move |answer| export::export(&relay, &asker, &host, &of, hold, answer)).await
            }
            Ok(_) => answer(write, |_| Err("no server runs".to_owned())).await,
            Err(error) => answer(write, move |_| Err(format!("not a request: {error}"))).await,
        }
    }
}

/// Settings of a relay that sends nothing.
fn settings(config: &Config, log: RelayLog) -> Result<RelayConfig, posthaste_dns::SetupError> {
    // Nobody is asked: a machine without a resolver will do.
    let dns = DnsSettings { servers: vec![([127, 0, 0, 1], 53).into()], ..DnsSettings::default() };
    let section = &config.relay;
    Ok(RelayConfig {
        host_name: config.host_name.clone(),
        resolver: Arc::new(Resolver::new(&dns)?),
        port: section.port,
        routing: Routing::default(),
        room: section.room(),
        schedules: section.schedule.clone(),
        connections_max: 1,
        site_connections_max: 1,
        session_messages_max: 1,
        recipients_max: 1,
        shaping: Arc::new(Rules::default()),
        timeouts: Timeouts::default(),
        tls: None,
        mta_sts: None,
        eight_bit: section.eight_bit.into(),
        memory_bytes: 0,
        site_pause_secs: 1,
        returned_bytes_max: 0,
        bounces: Bounces::default(),
        has_crashed: false,
        notices: Notices::default(),
        notifier: Arc::new(Nobody),
        witnesses: None,
        observer: Some(Arc::new(log)),
    })
}

/// Tells nobody: what is given up waits for a server.
struct Nobody;

impl Notifier for Nobody {
    fn knows(&self, _: &str) -> bool {
        true
    }

    fn deliver(&self, _: Notice) -> Delivering {
        Box::pin(std::future::ready(Err("no server runs".to_owned())))
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
