//! A spool without a running server: the command's process opens the requested part, and answers like a server. This
//! includes exports and imports of the queue, under the lock of the spool. Nothing is sent meanwhile.

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::time::Duration;

use posthaste_control::Request;
use posthaste_dns::{Resolver, Settings as DnsSettings};
use posthaste_intake::Destination;
use posthaste_relay::sender::{
    Bounces, Config as RelayConfig, Delivering, Notices, Notifier, OutgoingNotice, Relay, Routing,
};
use posthaste_relay::session::SessionTimeouts;
use posthaste_shaping::ShapingRules;
use posthaste_spool::{FileSpool, Spool};
use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::UnixStream;
#[cfg(test)]
use {
    posthaste_queue::Secs,
    posthaste_queue::entry::{QueueEntry, Queued},
    posthaste_spool::{Batch, Body, Entry, Lsn},
    std::sync::mpsc,
};

use super::answering::{REQUEST_BYTES_MAX, answer};
use super::asker::Asker;
use super::closed_mailboxes::ClosedMailboxes;
use super::closed_spool::{ClosedError, check_closed, unopened, unreadable};
use super::{export, import};
use crate::receive::events::Events;
use crate::services::relay_log::RelayLog;
use posthaste_config::Config;

/// Answers a request on a stream like the control socket, then closes the spool. The number is the asking user. Errors
/// are those of the stream: errors of the request are in the answer.
pub type ClosedAnswer = Box<dyn FnOnce(StdStream, u32) -> io::Result<()>>;

/// Opens the requested part of a spool: mailboxes for a session about an account, the queue for an export or an import.
/// The spool is locked until the request is answered. Blocks while the spool is read.
///
/// # Errors
/// See [`ClosedError`].
pub fn open_closed(config: &Config, request: Request) -> Result<ClosedAnswer, ClosedError> {
    if let Request::Account { account } = request {
        let mailboxes = ClosedMailboxes::open(config)?;
        return Ok(Box::new(move |stream, uid| mailboxes.serve(account, stream, uid)));
    }
    let queue = ClosedQueue::open(config)?;
    Ok(Box::new(move |stream, uid| queue.serve(request, stream, uid)))
}

/// The queue, open.
pub(crate) struct ClosedQueue {
    relay: Relay,
    /// The event log, which records the commands.
    events: Option<Events>,
    host_name: String,
}

impl ClosedQueue {
    /// Opens the queue of this configuration. Blocks while the spool is read.
    ///
    /// # Errors
    /// See [`ClosedError`].
    pub fn open(config: &Config) -> Result<Self, ClosedError> {
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
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Answers an export or an import, then closes the queue.
    fn serve(self, request: Request, stream: StdStream, uid: u32) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let served = runtime.block_on(self.respond(request, stream, uid));
        self.relay.end_by(std::time::Instant::now() + PATIENCE);
        self.events.iter().for_each(|events| events.end(PATIENCE));
        served
    }

    async fn respond(&self, request: Request, stream: StdStream, uid: u32) -> io::Result<()> {
        let (read, write) = UnixStream::from_std(stream)?.into_split();
        let (relay, host) = (self.relay.clone(), self.host_name.clone());
        match request {
            Request::Import { release } => {
                import::import(BufReader::new(read.take(REQUEST_BYTES_MAX)), write, relay, uid, release).await
            }
            Request::Export { of, hold, .. } => {
                let asker = Asker { uid, ..Asker::default() };
                answer(write, move |answer| {
                    export::export(std::slice::from_ref(&relay), &asker, &host, &of, hold, answer)
                })
                .await
            }
            _ => answer(write, |_| Err("no server runs".to_owned())).await,
        }
    }
}

/// Settings of a relay without sending.
fn settings(config: &Config, log: RelayLog) -> Result<RelayConfig, posthaste_dns::SetupError> {
    // Nobody is asked: a machine without a resolver will do.
    let dns = DnsSettings { servers: vec![([127, 0, 0, 1], 53).into()], ..DnsSettings::default() };
    let section = &config.relay;
    Ok(RelayConfig {
        host_name: config.host_name.clone(),
        resolver: Arc::new(Resolver::new(&dns)?),
        port: section.port,
        routing: Routing::default(),
        queue_limits: section.queue_limits(),
        schedules: section.schedule.clone(),
        connections_max: 1,
        site_connections_max: 1,
        session_messages_max: 1,
        recipients_max: 1,
        shaping: Arc::new(ShapingRules::default()),
        timeouts: SessionTimeouts::default(),
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
        signer: None,
        lender: None,
        witnesses: None,
        observer: Some(Arc::new(log)),
    })
}

/// Sends no notices: those of expired mail wait for a server.
struct Nobody;

impl Notifier for Nobody {
    fn knows(&self, _: &str) -> bool {
        true
    }

    fn deliver(&self, _: OutgoingNotice) -> Delivering {
        Box::pin(std::future::ready(Err("no server runs".to_owned())))
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
impl ClosedQueue {
    /// The queue of a new spool, with the entries that `fill` appends.
    pub fn filled<T>(config: &Config, fill: impl FnOnce(&dyn Fn(QueueEntry) -> Lsn) -> T) -> (Self, T) {
        let dir = &config.storage.spool;
        std::fs::create_dir_all(dir).unwrap();
        let (spool, _) = FileSpool::open(dir, (&config.storage).into()).unwrap();
        let stream = spool.stream(posthaste_relay::sender::STREAM).unwrap();
        let filled = fill(&|entry| {
            let needs_body = matches!(entry, QueueEntry::Queued(_));
            let body = if needs_body { Body::inline(vec!["x\r\n".into()]) } else { Body::None };
            let (tell, told) = mpsc::channel();
            let entries = vec![Entry { stream, needs_body, payload: entry.encode().into() }];
            spool.append(Batch { entries, body }, Box::new(move |outcome| tell.send(outcome).unwrap()));
            told.recv().unwrap().unwrap()
        });
        drop(spool);
        (Self::open(config).unwrap(), filled)
    }
}

/// A message for so many recipients at there.example.
#[cfg(test)]
pub(crate) fn queued(received: Secs, recipients: u16) -> Queued {
    Queued::plain(received, "ann@here.example", (0..recipients).map(|number| format!("r{number}@there.example")))
}
