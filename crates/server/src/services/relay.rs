//! The relay: opening, access rights, notifications, and log lines.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};

use posthaste_consumer::StreamOpenError;
use posthaste_directory::{Directory, DirectoryRefusal, Mailboxes, Route};
use posthaste_dns::{Resolver, Settings as DnsSettings, SetupError};
use posthaste_intake::{Destination, GatheredBody, Intake, Mail, MailPlace, MailRecipient, NotifyWhen};
use posthaste_notify::dsn::DsnMessage;
use posthaste_relay::sender::{
    Bounces, BouncesError, Config as RelayConfig, Delivering, MtaSts, Notifier, OutgoingNotice, Relay, RelayOpenReport,
    STREAM, opportunistic_tls,
};
use posthaste_relay::session::SessionTimeouts;
use posthaste_smtp::{BodyType, Envelope, ForwardPath, MailFrom, RcptTo, ReversePath};
use posthaste_spool::{Entry, Spool};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::config::error::ServeError;
use crate::config::forward::Back;
use crate::config::resolver::resolver;
use crate::config::start_files::RelayFiles;
use crate::lifecycle::{Ending, OnFailure, Service, end_blocking};
use crate::receive::events::EventRecorder;
use crate::receive::handler::{Receiver, WeakReceiver};
use crate::receive::transaction::Transaction;
use crate::services::opening::log_damaged;
use crate::services::relay_log::RelayLog;
use crate::services::relay_signatures::LeavingSignatures;
use posthaste_config::Config;

/// Mail to other hosts. Open if the configuration lets anybody relay and hosts can be found, or if mail waits.
pub(crate) struct RelayService {
    relay: Option<Relay>,
    receiver: WeakReceiver,
    /// Resolver and its limits.
    dns: DnsSettings,
    /// Marker file that exists while the relay runs. If a start finds it, the last run has crashed.
    running: PathBuf,
}

impl RelayService {
    /// Opens the queue, and continues an earlier run's mail.
    ///
    /// A queue that cannot be opened is stuck: its mail is deferred, and stays in the spool.
    ///
    /// # Errors
    /// An unusable name in the configuration.
    pub async fn start(config: &Config, mut files: RelayFiles, receiver: Receiver) -> Result<Self, ServeError> {
        let forwarding = std::mem::take(&mut files.forwarding);
        let running = config.storage.data.join(RUNNING);
        let dns = config.dns.clone();
        if let Ok(resolver) = &files.resolver {
            receiver.remote().set_resolver(Arc::clone(resolver));
        }
        let config = config.clone();
        let weak = receiver.downgrade();
        let spool = receiver.destinations().intake().spool().clone();
        let recorder = receiver.events().cloned();
        let opened =
            spawn_blocking(move || open(&config, files, spool, weak, recorder)).await.map_err(std::io::Error::from)?;
        let relay = match opened {
            Err(ServeError::Relay(error)) => stuck(&receiver, &error, help(&error)),
            Err(ServeError::Bounces(error @ (BouncesError::Suppression(_) | BouncesError::Originals(_)))) => {
                stuck(&receiver, &error, BOUNCE_FILES_HELP)
            }
            opened => opened?,
        };
        if let Some(relay) = &relay {
            receiver.remote().open(relay.clone(), forwarding);
        }
        Ok(Self { relay, receiver: receiver.downgrade(), dns, running })
    }

    /// Makes a new resolver if `[dns]` has changed, or a file may have. Otherwise answers stay in the cache.
    fn reload_resolver(&mut self, config: &Config) -> Result<(), SetupError> {
        let Some(receiver) = self.receiver.upgrade() else { return Ok(()) };
        if self.dns == config.dns && config.dns.hosts_file.is_none() {
            return Ok(());
        }
        let resolver = resolver(config)?;
        warn_of_far(&resolver);
        let resolver = Arc::new(match receiver.remote().resolver() {
            Some(before) => resolver.counting_after(&before),
            None => resolver,
        });
        if let Some(relay) = &self.relay {
            relay.set_resolver(Arc::clone(&resolver));
        }
        receiver.remote().set_resolver(resolver);
        self.dns = config.dns.clone();
        Ok(())
    }
}

impl Service for RelayService {
    fn name(&self) -> &'static str {
        "relay"
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("mail for other hosts waits in the spool")
    }

    /// Applies limits, routes, TLS policies, sources, pools and `[dns]` of the new configuration, also to waiting mail.
    /// Pauses continue.
    fn reload(&mut self, config: &Config, _: &Arc<Directory>) -> Vec<&'static str> {
        let mut kept = Vec::new();
        if let Err(error) = self.reload_resolver(config) {
            tracing::error!(error = error.to_string(), "cannot use the new DNS settings; keeping the old ones");
            kept.push("dns");
        }
        self.relay.iter().for_each(|relay| kept.extend(reload(relay, config)));
        kept
    }

    /// Finishes transactions in progress, and begins none.
    fn stop(self: Box<Self>, deadline: Instant) -> Ending<'static> {
        end_blocking(move || {
            let Some(relay) = self.relay else { return };
            relay.end_by(deadline.into_std());
            // If it stays, the next start is more careful than it need be.
            let _ = std::fs::remove_file(self.running);
        })
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.relay.as_ref().map_or(Poll::Pending, |relay| relay.poll_failed(cx))
    }
}

/// Applies limits, routes, TLS policies, sources, pools, rules and templates of `config`. Returns parts that stay
/// unchanged.
pub(crate) fn reload(relay: &Relay, config: &Config) -> Vec<&'static str> {
    let mut kept = Vec::new();
    match config.relay.shaping_rules(config.limit_shares()) {
        Ok(rules) => relay.set_shaping(rules),
        Err(error) => {
            tracing::error!(error = error.to_string(), "cannot load relay.shaping; keeping the old limits");
            kept.push("relay.shaping");
        }
    }
    match config.relay.routing() {
        Ok(routing) => relay.set_routing(&routing),
        Err(error) => {
            let error = error.to_string();
            tracing::error!(error, "cannot load routes, TLS policies, sources or pools; keeping the old ones");
            kept.push("routes, TLS policies, sources and pools");
        }
    }
    let section = &config.relay.bounces;
    if let Err(error) = relay.bounces().classes.load(section.classes_file.as_deref()) {
        let error = error.to_string();
        tracing::error!(error, "cannot load the bounce rules; keeping the old ones");
        kept.push("classes of replies");
    }
    relay.set_generic(config.relay.maps.generic.map());
    match config.relay.notices.read() {
        Ok(notices) => relay.set_notices(notices),
        Err(error) => {
            let error = error.to_string();
            tracing::error!(error, "cannot load relay.notices; keeping the old templates");
            kept.push("relay.notices");
        }
    }
    relay.set_queue_limits(&config.relay.queue_limits());
    kept
}

/// A file in the data directory that exists while the relay runs.
const RUNNING: &str = "relay.running";
/// The directory of policies, below `storage.data`.
const POLICIES: &str = "mta-sts";

/// Warns of resolvers trusted for DNSSEC although their answers can be forged on the way.
pub(crate) fn warn_of_far(resolver: &Resolver) {
    for server in resolver.believed_from_afar() {
        let server = server.to_string();
        tracing::warn!(server, "dns.trust_ad: the resolver is not on this machine, so DANE protects nothing");
    }
}

/// Opens the relay, if anybody may use it or mail waits. Blocks.
fn open(
    config: &Config,
    files: RelayFiles,
    spool: Arc<dyn Spool>,
    receiver: WeakReceiver,
    recorder: Option<EventRecorder>,
) -> Result<Option<Relay>, ServeError> {
    let is_waiting = spool.streams().iter().any(|stream| stream.name == STREAM && stream.entries + stream.bodies > 0);
    let section = &config.relay;
    let Some(of_server) = receiver.upgrade() else { return Ok(None) };
    let has_forwards =
        of_server.settings().directory.has_remote() || section.srs.is_some() || section.return_path.is_some();
    // Notices of local success have the words of the relay.
    let has_templates = section.notices.templates.is_some();
    let is_needed = is_waiting || config.lets_clients_relay() || has_forwards || has_templates;
    if !is_needed && !section.local_users {
        return Ok(None);
    }
    let resolver = match &files.resolver {
        Ok(resolver) => Arc::clone(resolver),
        Err(error) if is_needed => return Err(ServeError::Dns(error.to_string())),
        Err(error) => {
            let error = error.to_string();
            tracing::info!(error, "no resolver: local users cannot send mail to other hosts");
            return Ok(None);
        }
    };
    warn_of_far(&resolver);
    let running = config.storage.data.join(RUNNING);
    let has_crashed = running.exists();
    if let Err(error) = std::fs::write(&running, "") {
        let path = running.display().to_string();
        let error = error.to_string();
        tracing::warn!(
            path,
            error,
            "cannot write the crash marker: a message that crashes the server will not be found"
        );
    }
    let senders = Arc::new(Senders { receiver });
    let settings =
        RelayConfig { has_crashed, ..relay_config(config, files, resolver, &of_server, (senders, recorder))? };
    drop(of_server);
    let (relay, report) = Relay::open(spool, settings).map_err(ServeError::Relay)?;
    relay.set_generic(config.relay.maps.generic.map());
    tell_opened(&report, &config.storage.spool);
    Ok(Some(relay))
}

/// Logs the report of an opened queue. `spool`: directory of the spool.
pub(crate) fn tell_opened(report: &RelayOpenReport, spool: &Path) {
    log_damaged(&report.damaged, "the queue");
    log_uncertain(report, spool);
    if report.quarantined > 0 {
        let recipients = report.quarantined;
        tracing::error!(recipients, "held: these recipients were in flight in three crashes of the server");
    }
    if report.recipients > 0 {
        tracing::info!(recipients = report.recipients, "mail waits for other hosts");
    }
}

/// The settings of a queue. Opens the files of bounces, so call it once.
///
/// # Errors
/// An unusable name in the configuration.
pub(crate) fn relay_config(
    config: &Config,
    files: RelayFiles,
    resolver: Arc<Resolver>,
    receiver: &Receiver,
    (notifier, recorder): (Arc<dyn Notifier>, Option<EventRecorder>),
) -> Result<RelayConfig, ServeError> {
    let section = &config.relay;
    let meters = Arc::clone(receiver.meters());
    Ok(RelayConfig {
        host_name: config.host_name.clone(),
        resolver,
        port: section.port,
        routing: files.routing,
        queue_limits: section.queue_limits(),
        schedules: section.schedule.clone(),
        connections_max: section.connections,
        site_connections_max: config.site_connections(),
        session_messages_max: section.messages_per_connection,
        recipients_max: section.recipients_per_message,
        shaping: files.shaping,
        lender: None,
        timeouts: SessionTimeouts::default(),
        tls: section.tls.then(opportunistic_tls).transpose().map_err(|error| ServeError::Dns(error.to_string()))?,
        mta_sts: mta_sts(config),
        eight_bit: section.eight_bit.into(),
        memory_bytes: usize::try_from(section.memory_bytes).unwrap_or(usize::MAX),
        site_pause_secs: u32::try_from(section.unreachable_secs).unwrap_or(u32::MAX),
        returned_bytes_max: section.returned_bytes,
        bounces: Bounces::open(files.bounces, &section.bounces, &config.storage.data)?,
        has_crashed: false,
        notices: files.notices,
        notifier,
        signer: Some(Arc::new(LeavingSignatures::of(receiver))),
        witnesses: Some(Arc::new(receiver.live().clone())),
        observer: Some(Arc::new(RelayLog { recorder, meters })),
    })
}

/// MTA-STS policies, if they are enabled and can be fetched.
fn mta_sts(config: &Config) -> Option<MtaSts> {
    let opened = MtaSts::open(&config.relay, Some(&config.storage.data.join(POLICIES)));
    opened.unwrap_or_else(|error| {
        let error = error.to_string();
        tracing::warn!(error, "MTA-STS policies are ignored: set relay.mta_sts_ca_file, or relay.mta_sts = false");
        None
    })
}

fn stuck(receiver: &Receiver, error: &dyn std::fmt::Display, help: &str) -> Option<Relay> {
    receiver.destinations().stuck().add(STREAM, error, help);
    receiver.remote().set_stuck(format!("{error}; {help}"));
    None
}

/// The remedy for a damaged or lost suppression list, or file of return paths.
const BOUNCE_FILES_HELP: &str = "stop the server, put this file back, or remove it and the file beside it that ends in `.made` to begin an empty one, and start it again";

/// Advice for a queue that cannot be opened.
fn help(error: &StreamOpenError) -> &'static str {
    match error {
        StreamOpenError::State { .. } => "start the version of Posthaste that wrote it",
        StreamOpenError::Restore(_) => "stop the server, run `posthaste spool repair`, and start it again",
        _ => "stop the server, run `posthaste spool verify`, and start it again once the disk can be read",
    }
}

/// Logs unreadable snapshots, and their consequences.
fn log_uncertain(report: &RelayOpenReport, spool: &Path) {
    for unreadable in &report.unreadable {
        let file = spool.join(&unreadable.place).display().to_string();
        let what = &unreadable.what;
        match report.uncertain {
            None => tracing::error!(
                file,
                what,
                "a snapshot of the queue cannot be read: the previous one and the log replace it"
            ),
            Some(_) => tracing::error!(file, what, "a snapshot of the queue cannot be read"),
        }
    }
    let Some(through) = report.uncertain else { return };
    if report.uncertain_recipients > 0 {
        tracing::error!(
            recipients = report.uncertain_recipients,
            "held: it is unknown if they have their mail. `posthaste queue list --held` shows them, `posthaste queue release` sends them, \
             `posthaste queue delete` drops them"
        );
    }
    tracing::error!(
        %through,
        "suspensions, diversions and slow-downs of the queue up to this batch may be lost: make them again"
    );
}

/// Delivers notifications as mail from the empty sender.
struct Senders {
    receiver: WeakReceiver,
}

impl Notifier for Senders {
    fn knows(&self, sender: &str) -> bool {
        // A server that ends has it asked again after its start.
        self.receiver.upgrade().is_none_or(|receiver| receiver.knows(sender))
    }

    fn deliver(&self, notice: OutgoingNotice) -> Delivering {
        let receiver = self.receiver.clone();
        Box::pin(async move {
            let receiver = receiver.upgrade().ok_or("the server ends")?;
            receiver.notify(&notice.to, notice.written, Some(notice.change), Some(notice.remote)).await
        })
    }
}

/// The addressee of a notification.
struct Addressee {
    path: ForwardPath,
    /// True if the sender was restored from a rewritten address.
    is_rewritten: bool,
    /// The mailboxes of a local sender.
    mailboxes: Option<Mailboxes>,
}

impl Receiver {
    /// True if a notification for `sender` may reach somebody.
    pub fn knows(&self, sender: &str) -> bool {
        self.addressee(sender).is_some()
    }

    /// The addressee of a notification for `sender`; `None` if there is none.
    fn addressee(&self, sender: &str) -> Option<Addressee> {
        let path = ForwardPath::parse(&format!("<{sender}>")).ok()?;
        // A sender that we have rewritten stands for the original sender.
        let (path, is_rewritten) = match self.remote().back(&path) {
            Back::Ordinary => (path, false),
            Back::Sender(back) => (back, true),
            Back::Invalid => return None,
        };
        let mailboxes = match self.settings().directory.recipient(&path) {
            Route::Local(mailboxes) => Some(mailboxes),
            Route::Refused(DirectoryRefusal::Relay) => None,
            _ => return None,
        };
        Some(Addressee { path, is_rewritten, mailboxes })
    }

    /// True if mail for `sender` goes to local mailboxes.
    pub fn is_ours(&self, sender: &str) -> bool {
        self.addressee(sender).is_some_and(|addressee| addressee.mailboxes.is_some())
    }

    /// True if a refusal may be reported to `sender` of a local program: at other hosts only if the program itself may
    /// send there.
    pub fn may_tell_program(&self, sender: &str) -> bool {
        let is_ours = |addressee: Addressee| addressee.mailboxes.is_some();
        self.addressee(sender).is_some_and(|addressee| is_ours(addressee) || self.settings().lets_programs_relay())
    }

    /// Makes a notification for `sender` durable. `told`: entry for the same batch, of the stream that must notify.
    /// `remote`: the queue's entry that sends it to another host. True if the sender can be notified at all; otherwise
    /// nothing is stored.
    ///
    /// # Errors
    /// The notification cannot be stored now.
    pub async fn notify(
        &self,
        sender: &str,
        written: DsnMessage,
        told: Option<Entry>,
        remote: Option<Entry>,
    ) -> Result<bool, String> {
        // Not handed over meanwhile.
        let begun = self.cluster().and_then(|cluster| cluster.begin(told.is_some()));
        let by = self.destinations().under(begun.as_ref().map(|begun| &**begun.shard()));
        self.notify_by(by, sender, written, told, remote).await
    }

    /// Like [`notify`](Self::notify), for a stream of another spool, with its own destinations.
    ///
    /// # Errors
    /// The notification cannot be stored now.
    pub async fn notify_by(
        &self,
        (intake, destinations): (&Intake, &[Arc<dyn Destination>]),
        sender: &str,
        written: DsnMessage,
        told: Option<Entry>,
        remote: Option<Entry>,
    ) -> Result<bool, String> {
        let Some(Addressee { path, is_rewritten, mailboxes }) = self.addressee(sender) else { return Ok(false) };
        let remote = remote.filter(|_| !is_rewritten && mailboxes.is_none());
        let has_entry = remote.is_some();
        let also = told.into_iter().chain(remote).collect();
        let mail = match mailboxes {
            Some(mailboxes) => self.notified(RcptTo::new(path), mailboxes, &written)?,
            None if has_entry => Mail::default(),
            None if self.remote().is_open() => notification(&path, &written),
            None if self.remote().stuck().is_some() => return Err("the queue is stuck".to_owned()),
            None => return Ok(false),
        };
        if mail.recipients.is_empty() && !has_entry {
            return Err("its mailbox cannot be served now".to_owned());
        }
        let front = self.sign_notice(&written)?;
        let mail = Mail { also, front, ..mail };
        let body = GatheredBody::Memory(written.message);
        let kept = intake.accept(destinations, &mail, body).await;
        kept.map(|_| true).map_err(|error| error.to_string())
    }

    /// A notification for local mailboxes.
    fn notified(&self, rcpt: RcptTo, mailboxes: Mailboxes, written: &DsnMessage) -> Result<Mail<'static>, String> {
        let mut mail = MailFrom::new(ReversePath::Null);
        mail.body = if written.is_8bit { BodyType::EightBitMime } else { BodyType::SevenBit };
        mail.smtputf8 = written.smtputf8;
        let mut transaction = Transaction::default();
        let full = |_| "no memory for a notification".to_owned();
        transaction.add(&rcpt, Some(mailboxes), self.memory()).map_err(full)?;
        Ok(self.mail(&transaction, &Envelope { mail, recipients: vec![rcpt] }))
    }
}

/// A notification to a sender at another host. Its own outcome is not reported.
fn notification(to: &ForwardPath, written: &DsnMessage) -> Mail<'static> {
    let notify = Some(NotifyWhen { success: false, failure: false, delay: false });
    let recipient = MailRecipient { address: to.bare().into(), notify, ..MailRecipient::to(MailPlace::Remote) };
    Mail {
        is_8bit: written.is_8bit,
        smtputf8: written.smtputf8,
        may_sign: true,
        recipients: vec![recipient],
        ..Mail::default()
    }
}
