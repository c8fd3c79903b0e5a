use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use posthaste_notify::dsn::Written;
use posthaste_smtp::Witness;
use posthaste_smtp::client::EightBit;
use posthaste_spool::Entry;

use super::bounces::Bounces;
use super::mta_sts::MtaSts;
use super::notices::Notices;
use super::observer::Observer;
use super::room::RoomLimits;
use super::route::{Manner, RouteTls};
use super::routing::Routing;
use crate::queue::Schedules;
use crate::session::{Timeouts, TlsPolicy};
use crate::shaping::Rules;
use posthaste_dns::Resolver;

/// How the relay sends.
#[derive(Clone)]
pub struct Config {
    /// Our name in EHLO and in notifications.
    pub host_name: String,
    /// Finds mail hosts, at first: [`Relay::set_resolver`](super::Relay::set_resolver) changes it.
    pub resolver: Arc<Resolver>,
    /// The port of mail hosts: 25.
    pub port: u16,
    /// Routes, sources and pools, at first: [`Relay::set_routing`](super::Relay::set_routing) changes them.
    pub routing: Routing,
    /// Bounds of waiting mail, at first: [`Relay::set_room`](super::Relay::set_room) changes them.
    pub room: RoomLimits,
    /// When recipients are tried again.
    pub schedules: Schedules,
    /// Connections at a time.
    pub connections_max: usize,
    /// Connections to one site at a time.
    pub site_connections_max: usize,
    /// Messages in one session.
    pub session_messages_max: u64,
    /// Recipients of one transaction.
    pub recipients_max: usize,
    /// Limits for destinations, tenants and domains; what it does not say is as above.
    pub shaping: Arc<Rules>,
    /// Timeouts of a session.
    pub timeouts: Timeouts,
    /// STARTTLS is used where it is offered; nothing is verified (RFC 7435). `None`: never.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Policies of other domains. `None`: none counts.
    pub mta_sts: Option<MtaSts>,
    /// Messages with BODY=8BITMIME for hosts that do not offer it.
    pub eight_bit: EightBit,
    /// Bytes of bodies and envelopes that are kept in memory for their first attempt. What is above is read from the spool.
    pub memory_bytes: usize,
    /// Seconds until a site is tried again none of whose hosts has answered, at first: doubled with each failure, up to half an hour.
    pub site_pause_secs: u32,
    /// Bytes of a message that a notification returns at most; of a longer one its header.
    pub returned_bytes_max: u64,
    /// Handling of bounces.
    pub bounces: Bounces,
    /// The last run was not [ended](posthaste_intake::Destination::end_by): what waits is noted before each attempt, and a message at work in three crashes is held.
    pub has_crashed: bool,
    /// How senders are told, at first: [`Relay::set_notices`](super::Relay::set_notices) changes it.
    pub notices: Notices,
    /// Where notifications go.
    pub notifier: Arc<dyn Notifier>,
    /// Hears the dialogues of sessions.
    pub witnesses: Option<Arc<dyn Witnesses>>,
    /// Hears of each attempt.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Config {
    /// How mail hosts are spoken to that no rule is for.
    pub(super) fn manner(&self) -> Manner {
        let (policy, is_implicit) = (TlsPolicy::Opportunistic, false);
        let tls = self.tls.clone().map(|config| RouteTls { policy, is_implicit, config, name: None });
        Manner::of_hosts(self.port, tls)
    }

    /// How hosts are spoken to whose domain enforces MTA-STS.
    pub(super) fn enforced(&self) -> Option<Manner> {
        self.mta_sts.as_ref().map(|mta_sts| mta_sts.manner(self.port))
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("host_name", &self.host_name)
            .field("routing", &self.routing)
            .finish_non_exhaustive()
    }
}

/// Hears dialogues.
pub trait Witnesses: Send + Sync {
    /// Hears a session with an address of a host; asked when it is opened. It must not block.
    fn session(&self, host: &str, address: IpAddr) -> Option<Arc<dyn Witness>>;
}

/// Delivers notifications to senders, who may be local or remote.
pub trait Notifier: Send + Sync {
    /// True if there may be such a sender. What is known only later, such as that a remote one does not exist, counts as there.
    fn knows(&self, sender: &str) -> bool;

    /// Makes a notification durable: one batch with it as the body, with [`change`](Notice::change), and with the entries of those who deliver it.
    ///
    /// # Errors
    /// Why not; it is tried again.
    fn deliver(&self, notice: Notice) -> Delivering;
}

/// The future of [`Notifier::deliver`]: whether the address exists. If not, nothing is appended.
pub type Delivering = Pin<Box<dyn Future<Output = Result<bool, String>> + Send>>;

/// A notification to be delivered.
#[derive(Debug, Clone)]
pub struct Notice {
    /// The address that it goes to: the sender, or who gets copies of double bounces.
    pub to: Arc<str>,
    /// It, from the empty sender.
    pub written: Written,
    /// The entry for the queue in its batch.
    pub change: Entry,
    /// For a remote sender: the entry that has the relay send it.
    pub remote: Entry,
}
