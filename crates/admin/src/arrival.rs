//! The connection of a request.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::HeaderMap;
use posthaste_net::{CurrentPhase, IpNet, Peer, Phase};

use crate::client::{ClientAddress, is_unlisted_proxy};
use crate::inject_from::InjectNetworks;
use crate::token::Token;

/// The connection of a request, and the listener that accepted it.
pub(crate) struct Arrival {
    pub peer: Peer,
    pub proxies: Arc<Vec<IpNet>>,
    pub inject_from: Arc<InjectNetworks>,
    pub phase: Arc<CurrentPhase>,
    pub is_loopback: bool,
    pub is_public: bool,
    pub is_encrypted: bool,
}

impl Arrival {
    pub fn client(&self, headers: &HeaderMap) -> ClientAddress {
        ClientAddress::of(&self.peer, headers, &self.proxies)
    }

    /// True if a proxy that is not in `proxies` sent the request.
    pub fn is_of_unlisted_proxy(&self, headers: &HeaderMap) -> bool {
        is_unlisted_proxy(&self.peer, headers, &self.proxies)
    }

    /// The client's address, where it gives rights; `None` if it is not certain.
    pub fn known_client(&self, headers: &HeaderMap) -> Option<IpAddr> {
        self.client(headers).0.filter(|_| !self.is_of_unlisted_proxy(headers))
    }

    /// The token of a client that may inject without one, by its network. `None` for a proxy that names no client or is
    /// not in `proxies`.
    pub fn of_network(&self, headers: &HeaderMap) -> Option<Arc<Token>> {
        let client = self.known_client(headers)?;
        let is_proxy = self.proxies.iter().any(|network| network.contains(&client.to_canonical()));
        self.inject_from.token_of(client).filter(|_| !is_proxy)
    }

    pub fn phase(&self) -> Arc<CurrentPhase> {
        Arc::clone(&self.phase)
    }

    pub fn is_draining(&self) -> bool {
        self.phase.reached(Phase::Draining)
    }

    /// True if a browser accepts a secure cookie: over TLS, which a proxy in front may terminate.
    pub fn takes_cookies(&self) -> bool {
        self.is_encrypted || !self.is_loopback
    }
}
