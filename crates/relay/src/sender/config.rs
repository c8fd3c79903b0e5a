use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_notify::dsn::DsnMessage;
use posthaste_smtp::Witness;
use posthaste_smtp::client::EightBit;
use posthaste_spool::Entry;

use super::bounces::Bounces;
use super::messages::NotSigned;
use super::mta_sts::MtaSts;
use super::notices::Notices;
use super::observer::Observer;
use super::queue_limit::QueueLimits;
use super::routing::Routing;
use crate::session::SessionTimeouts;
use posthaste_dns::Resolver;
use posthaste_queue::Schedules;
use posthaste_shaping::ShapingRules;
use posthaste_shaping::limits::Lender;

/// Settings of the relay.
#[derive(Clone)]
pub struct Config {
    /// Our name in EHLO and in notifications.
    pub host_name: String,
    /// Initial resolver of mail hosts; [`Relay::set_resolver`](super::Relay::set_resolver) changes it.
    pub resolver: Arc<Resolver>,
    /// Port of mail hosts: 25.
    pub port: u16,
    /// Initial routes, sources and pools; [`Relay::set_routing`](super::Relay::set_routing) changes them.
    pub routing: Routing,
    /// Initial bounds of waiting mail; [`Relay::set_queue_limits`](super::Relay::set_queue_limits) changes them.
    pub queue_limits: QueueLimits,
    /// Retry schedules.
    pub schedules: Schedules,
    /// Maximum concurrent connections.
    pub connections_max: usize,
    /// Maximum concurrent connections to one site.
    pub site_connections_max: usize,
    /// Maximum messages in one session.
    pub session_messages_max: u64,
    /// Maximum recipients in one transaction.
    pub recipients_max: usize,
    /// Limits for destinations, tenants and domains; the fields above are their defaults.
    pub shaping: Arc<ShapingRules>,
    /// Lends the tokens of rates that are shared with other relays. `None`: this relay has all tokens.
    pub lender: Option<Arc<dyn Lender>>,
    /// Timeouts of a session.
    pub timeouts: SessionTimeouts,
    /// Client TLS for STARTTLS where it is offered, without verification (RFC 7435). `None`: never.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// MTA-STS policies of other domains. `None`: ignored.
    pub mta_sts: Option<MtaSts>,
    /// Handling of messages with BODY=8BITMIME for hosts that do not offer it.
    pub eight_bit: EightBit,
    /// Maximum bytes of bodies and envelopes kept in memory for their first attempt. Other messages are read from the
    /// spool.
    pub memory_bytes: usize,
    /// Initial pause, in seconds, of a site none of whose hosts has answered. Doubles with each failure, up to half an
    /// hour.
    pub site_pause_secs: u32,
    /// Largest message, in bytes, that a notification returns whole; of a larger one it returns the header.
    pub returned_bytes_max: u64,
    /// Bounce handling.
    pub bounces: Bounces,
    /// True if the last run did not [end](posthaste_intake::Destination::end_by) cleanly. Waiting messages are then
    /// noted before each attempt, and a message in flight in three crashes is held.
    pub has_crashed: bool,
    /// Initial notices to senders; [`Relay::set_notices`](super::Relay::set_notices) changes them.
    pub notices: Notices,
    /// Delivers notifications.
    pub notifier: Arc<dyn Notifier>,
    /// Signs mail whose header [`Relay::set_generic`](super::Relay::set_generic) changes. `None`: it leaves without a signature.
    pub signer: Option<Arc<dyn LeavingSigner>>,
    /// Receives the dialogues of sessions.
    pub witnesses: Option<Arc<dyn Witnesses>>,
    /// Receives each attempt and other events.
    pub observer: Option<Arc<dyn Observer>>,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("host_name", &self.host_name)
            .field("routing", &self.routing)
            .finish_non_exhaustive()
    }
}

/// Settings that cannot change after the opening.
pub(super) struct FixedConfig {
    pub host_name: String,
    pub recipients_max: usize,
    pub timeouts: SessionTimeouts,
    pub eight_bit: EightBit,
    pub site_pause_secs: u32,
    pub returned_bytes_max: u64,
    pub bounces: Bounces,
    pub notifier: Arc<dyn Notifier>,
    pub signer: Option<Arc<dyn LeavingSigner>>,
    pub witnesses: Option<Arc<dyn Witnesses>>,
    pub observer: Option<Arc<dyn Observer>>,
}

/// TLS for hosts that offer it, without verifying them (RFC 7435): for [`Config::tls`].
///
/// # Errors
/// No certificate library is available.
pub fn opportunistic_tls() -> Result<Arc<rustls::ClientConfig>, posthaste_net::tls::TlsError> {
    posthaste_net::tls::client_config(&posthaste_net::tls::TlsTrust::Anything)
}

/// Receives the dialogues of sessions.
pub trait Witnesses: Send + Sync {
    /// Called when a session with a host's address opens; returns its witness, or `None` if none is wanted. Must not
    /// block.
    fn session(&self, host: &str, address: IpAddr) -> Option<Arc<dyn Witness>>;
}

/// Signs mail whose header has changed on its way out (RFC 6376).
pub trait LeavingSigner: Send + Sync {
    /// The `DKIM-Signature` fields for a message in pieces, each line ended by CRLF; empty if the author's domain has
    /// no key. Blocks while signing.
    ///
    /// # Errors
    /// The message must not leave unsigned: the reason.
    fn sign(&self, message: &[Bytes]) -> Result<String, NotSigned>;
}

/// Delivers notifications to senders, who may be local or remote.
pub trait Notifier: Send + Sync {
    /// True if the sender may exist. Also true if that is known only later, as for remote addresses.
    fn knows(&self, sender: &str) -> bool;

    /// Makes a notification durable in one batch: the message as the body, [`change`](OutgoingNotice::change), and the
    /// entries of its destinations.
    ///
    /// # Errors
    /// The reason; the caller retries.
    fn deliver(&self, notice: OutgoingNotice) -> Delivering;
}

/// Future of [`Notifier::deliver`]: true if the address exists. If it does not, nothing is appended.
pub type Delivering = Pin<Box<dyn Future<Output = Result<bool, String>> + Send>>;

/// A notification to be delivered.
#[derive(Debug, Clone)]
pub struct OutgoingNotice {
    /// Address of the reader: the sender, or the reader of double bounces.
    pub to: Arc<str>,
    /// The notification, with the empty sender.
    pub written: DsnMessage,
    /// The entry for the queue in the notification's batch.
    pub change: Entry,
    /// For a remote sender: the entry that makes the relay send the notification.
    pub remote: Entry,
}
