//! The configured route of mail to another host: the query of `posthaste route`, and the answer.

use std::net::IpAddr;

use posthaste_relay::sender::RoutePreview;
use posthaste_smtp::{ForwardPath, Reply, ReversePath};
use serde::Serialize;

/// The sender of the mail. With neither `client` nor `login`: a program on this machine.
#[derive(Debug, Clone, Default)]
pub struct MailSender {
    /// Sender address; `None`: any.
    pub from: Option<ReversePath>,
    /// Address of the client.
    pub client: Option<IpAddr>,
    /// Name of the login.
    pub login: Option<String>,
}

/// Finds routes for the mail of one sender.
pub trait RouteFinder {
    /// Route of a message that the sender submits for an address at another host. Blocks on DNS.
    ///
    /// # Errors
    /// The mail is not accepted.
    fn sent(&self, path: &ForwardPath) -> Result<OutboundRoute, NotSent>;

    /// Route of mail that a local alias forwards to an address at another host. Blocks on DNS.
    fn forwarded(&self, address: &str) -> Option<OutboundRoute>;
}

/// The route of mail to one address.
#[derive(Debug, Clone, Serialize)]
pub struct OutboundRoute {
    /// Recipient address.
    pub recipient: String,
    /// The client or login that submits it.
    pub taken_from: String,
    /// The account that is charged; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The campaign; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub campaign: String,
    /// True if the next hop is asked about the recipient before the mail is accepted.
    pub asks_ahead: bool,
    /// Next hops for the recipient.
    #[serde(flatten)]
    pub hops: RoutePreview,
}

/// Every login that was asked for is refused.
#[derive(Debug, Clone)]
pub struct NotSent {
    /// The client or login that is refused.
    pub sender: String,
    /// The reply to the refused sender.
    pub reply: Reply,
}
