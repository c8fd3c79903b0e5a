//! Networks whose clients may inject without a token.

use std::net::IpAddr;
use std::sync::Arc;

use posthaste_net::{ByNetwork, IpNet};

use crate::Token;

/// Networks whose clients inject mail without a token.
#[derive(Debug, Default)]
pub struct InjectNetworks {
    allowed: Vec<IpNet>,
    /// The token that stands for a client.
    tokens: Option<ByNetwork<Arc<Token>>>,
}

impl InjectNetworks {
    /// Allows clients of `allowed`. Each is charged to the smallest matching network of `tenants`, or to no tenant.
    pub fn new(allowed: Vec<IpNet>, tenants: impl IntoIterator<Item = (IpNet, Option<String>)>) -> Self {
        let token = |(network, tenant): (IpNet, Option<String>)| {
            (network, Arc::new(Token::of_network(&network.to_string(), tenant)))
        };
        let others = Arc::new(Token::of_network("other", None));
        let tokens = ByNetwork::new(others, tenants.into_iter().map(token).collect());
        Self { allowed, tokens: Some(tokens) }
    }

    /// The token of a client; `None` if it must present one.
    pub(crate) fn token_of(&self, client: IpAddr) -> Option<Arc<Token>> {
        let client = client.to_canonical();
        let is_allowed = self.allowed.iter().any(|network| network.contains(&client));
        self.tokens.as_ref().filter(|_| is_allowed).map(|tokens| Arc::clone(tokens.get(Some(client))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_counts_for_the_smallest_network_it_is_in() {
        let net = |text: &str| posthaste_net::network(text).unwrap();
        let tenants = [(net("10.0.0.0/8"), Some("wide".to_owned())), (net("10.1.0.0/16"), Some("near".to_owned()))];
        let networks = InjectNetworks::new(vec![net("10.0.0.0/8"), net("192.0.2.1")], tenants);
        let tenant = |client: &str| {
            let token = networks.token_of(client.parse().unwrap());
            token.map(|token| token.tenant().unwrap_or_default().to_owned())
        };
        assert_eq!(tenant("10.1.2.3").as_deref(), Some("near"));
        assert_eq!(tenant("::ffff:10.2.2.3").as_deref(), Some("wide"));
        assert_eq!(tenant("192.0.2.1").as_deref(), Some(""));
        assert_eq!((tenant("192.0.2.2"), tenant("::1")), (None, None));
        assert!(InjectNetworks::default().token_of("10.1.2.3".parse().unwrap()).is_none());
    }
}
