//! A running server: its services in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use posthaste_consumer::{StreamOpenError, poison_watch};
use posthaste_directory::Directory;
use posthaste_intake::{Left, MemoryBudget};
use posthaste_maildir::MailboxPath;
use posthaste_mailstore::{MailArrivals, MaildirStore};
use posthaste_watch::Watch as Workers;
use tokio::sync::mpsc;

use crate::config::error::ServeError;
use crate::config::own_certificates::CertificateService;
use crate::control::http::HttpService;
use crate::control::page_links::PageLinkMaker;
use crate::control::requests::{Control, ControlMailboxes, ControlSocket, ReloadAsked};
use crate::lifecycle::Services;
use crate::listen::listening::{Addresses, Bound, Listeners, bind_when_free};
use crate::listen::reading::{self, ReadingService};
use crate::receive::destinations::Destinations;
use crate::receive::events::{self, Events};
use crate::receive::handler::Receiver;
use crate::receive::known_networks::KnownNetworksService;
use crate::receive::logins;
use crate::receive::settings::Settings;
use crate::receive::stuck::StuckStreams;
use crate::repeats::Repeats;
use crate::services::cluster::OpenShards;
use crate::services::indexing::Indexing;
use crate::services::inject::InjectKeys;
use crate::services::mailboxes::{self, Mailboxes, UnreadableMailboxes, of_users};
use crate::services::maildirs::{MailAlerts, OpenedMail, note_stuck_mounts, open_mail};
use crate::services::opening::{OpenedSpool, Restored, open_spool};
use crate::services::pickup::Pickup;
use crate::services::relay::RelayService;
use crate::services::tidy::Tidy;
use crate::services::transports::TransportService;
use crate::services::watch::{OpeningWatch, Watch};
use crate::services::webhooks::Webhooks;
use posthaste_config::{Config, ListenerTls, NeedsRestart};

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// True if all sessions ended before the deadline.
    pub in_time: bool,
    /// Messages that are in the spool and not in all of their mailboxes: the next start has them delivered.
    pub for_mailboxes: Left,
    /// Messages not yet passed to programs, files and LMTP servers.
    pub for_transports: Left,
}

/// A running server.
pub struct MailServer {
    pub(crate) config: Config,
    services: Services,
    pub(crate) receiver: Receiver,
    pub(crate) addresses: Addresses,
    pub(crate) replayed: Restored,
    pub(crate) is_indexing: bool,
    pub(crate) page: Option<PageLinkMaker>,
    /// Reload requests of the control socket, until the main loop takes the receiver.
    pub(crate) reloads: Option<mpsc::Receiver<ReloadAsked>>,
}

impl MailServer {
    /// Listens, opens the store and finishes what an earlier run left, and serves. Needs a tokio runtime.
    ///
    /// The process keeps its user. `user` and `group` of the configuration are for [`serve`](crate::serve), which owns
    /// the process. If they name another user or group, the start fails: the server would have more rights than
    /// intended.
    ///
    /// # Errors
    /// See [`ServeError`]; nothing listens then.
    pub async fn start(config: Config) -> Result<Self, ServeError> {
        crate::config::privileges::check_user(&config)?;
        crate::config::privileges::check_owners(&config)?;
        crate::config::privileges::check_transports(&config)?;
        let directory = Arc::new(config.directory());
        let (configured, known) = (config.clone(), Arc::clone(&directory));
        let bind = move || bind_when_free(&configured, &known);
        let bound = tokio::task::spawn_blocking(bind).await.map_err(std::io::Error::from)??;
        Self::start_on(bound, config, directory).await
    }

    /// Like [`MailServer::start`], on sockets that listen already: clients that connect meanwhile are greeted once the store is open.
    pub(crate) async fn start_on(bound: Bound, config: Config, directory: Arc<Directory>) -> Result<Self, ServeError> {
        let mut services = Services::default();
        match start_services(&mut services, bound, &config, directory).await {
            Ok(Started { receiver, addresses, replayed, is_indexing, page, reloads }) => {
                Ok(Self { config, services, receiver, addresses, replayed, is_indexing, page, reloads: Some(reloads) })
            }
            Err(error) => {
                services.stop(Duration::from_secs(config.limits.process.shutdown_secs)).await;
                Err(error)
            }
        }
    }

    /// TCP addresses of the server, with the chosen ports.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses.tcp
    }

    /// Applies `config` to new connections and recipients, as far as possible without a restart. Open sessions
    /// continue. Returns the changes that need a restart.
    ///
    /// # Panics
    /// When the configuration was not checked, as [`Config::parse`] does.
    pub fn reload(&mut self, config: Config) -> Vec<NeedsRestart> {
        let directory = Arc::new(config.directory());
        self.reload_with(config, &directory).restart
    }

    /// Like [`reload`](Self::reload), with the directory of `config`.
    pub(crate) fn reload_with(&mut self, config: Config, directory: &Arc<Directory>) -> Reloaded {
        let (config, mut restart) = self.config.reloaded(&config);
        // It was not opened, as nothing could come to it.
        if !self.receiver.remote().is_open()
            && config.lets_clients_relay()
            && !restart.iter().any(|change| change.is_of("relay"))
        {
            restart.push(NeedsRestart::new("relay"));
        }
        // Nobody counts mail.
        if self.receiver.destinations().mailboxes().is_none() && config.quota.is_set(&config.domains) {
            restart.push(NeedsRestart::new("quota"));
        }
        self.config = config;
        let kept = self.services.reload(&self.config, directory);
        self.receiver.destinations().retry();
        Reloaded { restart, kept }
    }

    /// Waits until a part fails that receiving needs, and returns its name. Only a bug can cause that; call
    /// [`shutdown`](Self::shutdown) then. Failures of other parts are logged. Dropping the future loses nothing.
    pub async fn failed(&mut self) -> &'static str {
        self.services.failed().await
    }

    /// Accepts no more connections, waits up to `limits.shutdown_secs` for open transactions, then as long again for
    /// writing received mail, and ends.
    pub async fn shutdown(self) -> Stopped {
        let in_time = self.services.shutdown(Duration::from_secs(self.config.limits.process.shutdown_secs)).await;
        let (for_mailboxes, for_transports) = self.receiver.destinations().left();
        Stopped { in_time, for_mailboxes, for_transports }
    }
}

/// Parts that a reload has not put in force.
pub(crate) struct Reloaded {
    /// Changes that need a restart.
    pub restart: Vec<NeedsRestart>,
    /// Parts that cannot be used: the old stays in force.
    pub kept: Vec<&'static str>,
}

/// Services that the server itself calls.
struct Started {
    receiver: Receiver,
    addresses: Addresses,
    replayed: Restored,
    is_indexing: bool,
    page: Option<PageLinkMaker>,
    reloads: mpsc::Receiver<ReloadAsked>,
}

/// Starts cleaning `tmp/`. Needs the table of mailboxes, which knows the copies in `tmp/`.
fn begin_tidy(config: &Config, mailboxes: Option<Arc<MaildirStore>>, are_unreadable: bool) -> Option<Tidy> {
    let place = move |path: &MailboxPath| match &mailboxes {
        Some(mailboxes) => mailboxes.place_copies(path).map_err(|error| error.to_string()),
        None if are_unreadable => Err("the table of mailboxes cannot be read".to_owned()),
        None => Ok(()),
    };
    Tidy::begin(config.storage.mail.clone(), Box::new(place))
}

/// Access to mailboxes for the control socket.
fn control_mailboxes(config: &Config, store: Arc<MaildirStore>, receiver: &Receiver) -> ControlMailboxes {
    let receiver = receiver.downgrade();
    let maildir_of = move |name: &str| {
        let settings = receiver.upgrade()?.settings();
        Some(settings.directory.maildir_of(&settings.directory.login_name(name)?)?.to_string())
    };
    ControlMailboxes::new(config, store, Arc::new(maildir_of))
}

/// Starts each service after those that it uses. On failure the started ones are in `services`, to be stopped.
async fn start_services(
    services: &mut Services,
    bound: Bound,
    config: &Config,
    directory: Arc<Directory>,
) -> Result<Started, ServeError> {
    let repeats = Arc::<Repeats>::default();
    let workers = Workers::default();
    // Until the watch can ask all consumers.
    let _opening = OpeningWatch::begin(workers.clone());
    let OpenedSpool { intake, events, without_events, found } =
        open_spool(config, Arc::clone(&repeats), workers, mailboxes::last_lsn(config)?).await?;
    let events_of_mail = events.as_ref().map(Events::recorder);
    let memory = MemoryBudget::new(config.limits.process.memory_bytes);
    // Also where nobody reads any more: a stream that nobody advances keeps its entries in the spool.
    let has_readers =
        !bound.reading.0.is_empty() || Mailboxes::are_kept(config) || config.quota.is_set(&config.domains);
    let accepts = (intake.clone(), memory.clone());
    let OpenedMail { maildirs, store, replayed, mailboxes: opened, failed } =
        open_mail(config, accepts, &found.damage, events_of_mail.clone(), has_readers).await?;
    services.add(maildirs);
    let mailboxes = opened.as_ref().map(|mailboxes| Arc::clone(mailboxes.store()));
    // It stops after all that accept mail.
    opened.into_iter().for_each(|mailboxes| services.add(mailboxes));
    let destinations = Destinations::new(store.clone(), mailboxes.clone().map(MailArrivals::new), events_of_mail);
    // What delivery says until its end is to be written as well.
    events.into_iter().for_each(|events| services.add_stopping_last(events));
    let Bound { sockets, own, relay, engine, http, reading: of_readers } = bound;
    let shards = OpenShards::open(config, engine, Arc::clone(&repeats)).await?;
    let destinations = match &shards {
        Some(shards) => destinations.accepted_by(shards.intake().clone()),
        None => destinations,
    };
    let certificates = CertificateService::start(own.clone(), config).await?;
    let acme = certificates.acme();
    services.add(certificates);
    let settings = Settings::new(config, directory, Arc::clone(&sockets.logins)).signing(Arc::clone(&sockets.signers));
    let receiver = Receiver::new(settings, destinations, memory, &config.storage.spool, repeats)
        .gated(logins::open_gate(&config.storage.data))
        .with_first_password(logins::first_password(config).await?);
    note_stuck_mounts(&store, receiver.destinations().stuck());
    let tidy = begin_tidy(config, mailboxes.clone(), failed.is_some());
    note_stuck_streams(receiver.destinations().stuck(), failed, without_events);
    services.add(TransportService::start(config, &receiver).await?);
    match shards {
        Some(shards) => services.add(shards.start(config, relay, receiver.clone()).await?),
        None => services.add(RelayService::start(config, relay, receiver.clone()).await?),
    }
    // Stopped after the listeners: the last logins are saved as well.
    services.add(KnownNetworksService::begin(receiver.clone()));
    // A client that has its greeting can be sure that commands find this server.
    let control = ControlSocket::listen(&config.storage.data);
    let (listeners, mut addresses) = Listeners::start(sockets, receiver.clone())?;
    services.add(listeners);
    addresses.http = http.tcp().map(|(address, tls)| (address, tls == ListenerTls::Implicit)).collect();
    let keys = InjectKeys::start(&receiver).await;
    services.add(keys.service());
    let http = HttpService::start(http, config, receiver.clone(), keys, own.challenges.clone()).await?;
    let is_first_minute = receiver.first_password().is_some();
    let page = http.as_ref().map(|http| PageLinkMaker::new(http.links(), config, &addresses.http, is_first_minute));
    http.into_iter().for_each(|http| services.add(http));
    let mail = mailboxes.clone().map(|store| control_mailboxes(config, store, &receiver));
    if let Some(mailboxes) = mailboxes.filter(|_| !of_readers.0.is_empty()) {
        addresses.reading = reading::addresses(&of_readers, config);
        let readable = of_users(mailboxes, receiver.clone());
        services.add(ReadingService::start(of_readers, config, readable, &receiver)?);
    }
    if config.pickup.enabled {
        services.add(Pickup::begin(config, receiver.clone()).await);
    }
    let (asks, reloads) = mpsc::channel(1);
    services.add(Control::begin(control, receiver.clone(), (page.clone(), mail, acme), asks));
    if receiver.events().is_some() {
        services.add(Webhooks::begin(config, poison_watch(intake.spool()), Arc::clone(&receiver.meters().webhooks)));
    }
    services.add(Watch::begin(MailAlerts::new(store), receiver.clone()));
    tidy.into_iter().for_each(|tidy| services.add(tidy));
    let is_indexing = begin_indexing(services, config, has_readers);
    Ok(Started { receiver, addresses, replayed, is_indexing, page, reloads })
}

/// Notes the streams that are not open. Mail is still received and kept.
fn note_stuck_streams(
    stuck: &StuckStreams,
    failed: Option<UnreadableMailboxes>,
    without_events: Option<StreamOpenError>,
) {
    if let Some(failed) = failed {
        stuck.add(mailboxes::NAME, &failed.error, &failed.help);
    }
    if let Some(why) = without_events {
        stuck.add(events::STREAM, &why, events::HELP);
    }
}

/// Starts to index deliveries if the configuration wants it; true then.
fn begin_indexing(services: &mut Services, config: &Config, has_readers: bool) -> bool {
    let indexing = Indexing::begin(&config.search, &config.storage.mail, has_readers);
    let is_indexing = indexing.is_some();
    // What delivery writes until its end is to be found as well.
    indexing.into_iter().for_each(|indexing| services.add_stopping_last(indexing));
    is_indexing
}
