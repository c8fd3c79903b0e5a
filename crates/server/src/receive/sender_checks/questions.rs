use std::net::IpAddr;
use std::sync::Arc;

use posthaste_authres::{Dns, NoAnswer};
use posthaste_dns::{DnsError, Resolver};

/// The resolver as SPF and DMARC ask it.
pub(super) struct Questions(pub Arc<Resolver>);

impl Dns for Questions {
    async fn texts(&self, name: &str) -> Result<Arc<[String]>, NoAnswer> {
        self.0.of_strangers().texts(name).await.map_err(no_answer)
    }

    async fn addresses(&self, name: &str, is_ipv6: bool) -> Result<Vec<IpAddr>, NoAnswer> {
        self.0.of_strangers().addresses(name, is_ipv6).await.map_err(no_answer)
    }

    async fn mail_hosts(&self, name: &str) -> Result<Vec<String>, NoAnswer> {
        self.0.of_strangers().mail_hosts(name).await.map_err(no_answer)
    }

    async fn names(&self, address: IpAddr) -> Result<Vec<String>, NoAnswer> {
        self.0.of_strangers().names(address).await.map_err(no_answer)
    }
}

fn no_answer(error: DnsError) -> NoAnswer {
    match error {
        DnsError::Unanswered { .. } => NoAnswer::Temporary,
        _ => NoAnswer::NoSuchName,
    }
}
