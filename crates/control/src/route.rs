//! The configured route of mail to another host: the question of `posthaste route`, and the answer.

use std::net::IpAddr;

use posthaste_relay::sender::RoutePreview;
use posthaste_smtp::{ForwardPath, Reply, ReversePath};
use serde::Serialize;

/// The sender of the mail. With neither `client` nor `login`: a program on this machine.
#[derive(Debug, Clone, Default)]
pub struct MailSender {
    /// The sender's address. `None`: any.
    pub from: Option<ReversePath>,
    /// The address that it connects from.
    pub client: Option<IpAddr>,
    /// The login that it uses.
    pub login: Option<String>,
}

/// Finds routes for the mail of one sender.
pub trait RouteFinder {
    /// The route of mail that is sent to an address at another host. Blocks: DNS records are looked up.
    ///
    /// # Errors
    /// The mail is not accepted.
    fn sent(&self, path: &ForwardPath) -> Result<OutboundRoute, NotSent>;

    /// The route of mail that an alias of ours leads to an address at another host. Blocks, as [`sent`](Self::sent).
    fn forwarded(&self, address: &str) -> Option<OutboundRoute>;
}

/// The route of mail to one address.
#[derive(Debug, Clone, Serialize)]
pub struct OutboundRoute {
    /// The recipient.
    pub recipient: String,
    /// The client or login that submits it.
    pub taken_from: String,
    /// The account that is charged; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The campaign; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub campaign: String,
    /// The next hop is asked for the recipient before it is accepted.
    pub asks_ahead: bool,
    /// Its next hop.
    #[serde(flatten)]
    pub hops: RoutePreview,
}

/// Every login that was asked for is refused.
#[derive(Debug, Clone)]
pub struct NotSent {
    /// The client or login that may not.
    pub sender: String,
    /// The reply to them.
    pub reply: Reply,
}
