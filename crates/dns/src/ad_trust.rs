use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::proto::op::{Message, Query};
use hickory_resolver::proto::rr::{DNSClass, Name, RecordType};
use tokio::time::timeout;

use crate::client::Failure;
use crate::own_servers::over_udp;
use crate::slots::Asker;
use crate::zone_reply::text;
use crate::{Pace, Resolver, Settings, SetupError};

/// Why the bit AD of the resolvers is not to be believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnprovenAd {
    /// The resolvers are unknown.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Anybody on the path to it can set the bit.
    #[error("the resolver {0} is not on this machine: its answers can be forged on the way")]
    Far(IpAddr),
    /// A forwarder, which may pass on its upstream's AD bit.
    #[error("the resolver {0} is {1}: it may pass on an AD bit that another server set")]
    Forwarder(IpAddr, &'static str),
    /// A name that is signed, without the bit AD.
    #[error("the resolver {0} does not say that `{name}` is signed: it does not validate DNSSEC", name = SIGNED)]
    NotSigned(IpAddr),
    /// It returned an answer with a broken signature.
    #[error("the resolver {0} does not validate DNSSEC: it answers for {name}, whose signature is broken", name = BROKEN)]
    NotValidated(IpAddr),
    /// No answer to a test.
    #[error("the resolver {server} has no answer for `{name}`: {why}")]
    Unanswered {
        /// The resolver.
        server: IpAddr,
        /// The name that it was asked for.
        name: &'static str,
        /// Error of the probe.
        why: String,
    },
}

impl Settings {
    /// Tests that the AD bit of the resolvers can be trusted, and returns them. Each must be on this machine and must
    /// not be a forwarder. It must authenticate a signed name, and refuse a name with a broken signature.
    ///
    /// # Errors
    /// [`UnprovenAd`]: [`trust_ad`](Self::trust_ad) has to stay off.
    pub async fn prove_ad(&self) -> Result<Vec<SocketAddr>, UnprovenAd> {
        let servers = Resolver::new(self)?.client.servers.clone();
        for server in &servers {
            if !server.ip().to_canonical().is_loopback() {
                return Err(UnprovenAd::Far(server.ip()));
            }
            if let Some(forwarder) = forwarder_at(server.ip().to_canonical()) {
                return Err(UnprovenAd::Forwarder(server.ip(), forwarder));
            }
            if is_dnsmasq(*server, Duration::from_secs(self.timeout_secs) / 3).await {
                return Err(UnprovenAd::Forwarder(server.ip(), "dnsmasq"));
            }
            self.prove_one(*server).await?;
        }
        Ok(servers)
    }

    async fn prove_one(&self, server: SocketAddr) -> Result<(), UnprovenAd> {
        // Alone: of several, each has to prove it.
        let resolver = Resolver::new(&Settings { servers: vec![server], trust_ad: true, ..self.clone() })?;
        let client = &resolver.client;
        let server = server.ip();
        let ask = async |name: &'static str, kind| {
            client.ask(name, kind, client.slots().slot(Pace::Quick, Asker::Connection).await).await
        };
        let unanswered = |name, why: String| UnprovenAd::Unanswered { server, name, why };
        match ask(SIGNED, RecordType::NS).await {
            Ok(records) if records.is_secure => {}
            Ok(_) | Err(Failure::NoSuchName { .. } | Failure::NoData { .. }) => {
                return Err(UnprovenAd::NotSigned(server));
            }
            Err(failure) => return Err(unanswered(SIGNED, failure.unanswered().unwrap_or_default())),
        }
        match ask(BROKEN, RecordType::A).await {
            // SERVFAIL: what is wanted.
            Err(Failure::Unanswered(_)) => Ok(()),
            Err(Failure::Timeout(why)) => Err(unanswered(BROKEN, why.to_owned())),
            _ => Err(UnprovenAd::NotValidated(server)),
        }
    }
}

/// The forwarder that has this address by default.
fn forwarder_at(ip: IpAddr) -> Option<&'static str> {
    match ip.to_string().as_str() {
        // The two stubs of systemd-resolved(8).
        "127.0.0.53" | "127.0.0.54" => Some("systemd-resolved"),
        // In the container, but it asks the servers of the host, and leaves AD as it comes.
        "127.0.0.11" => Some("Docker's"),
        _ => None,
    }
}

/// True if the server identifies itself as dnsmasq. Other servers answer differently or not at all.
async fn is_dnsmasq(server: SocketAddr, time: Duration) -> bool {
    let mut question = Query::query(Name::from_ascii("version.bind.").expect("a name"), RecordType::TXT);
    question.set_query_class(DNSClass::CH);
    let mut query = Message::query();
    query.add_query(question);
    let Ok(octets) = query.to_vec() else { return false };
    let Ok(Ok(answer)) = timeout(time, over_udp(server, &octets, &query)).await else { return false };
    answer.answers.iter().filter_map(|record| text(&record.data)).any(|version| version.starts_with("dnsmasq"))
}

/// A zone that has been signed since 2009.
const SIGNED: &str = "org";
/// A public test name with a broken signature.
const BROKEN: &str = "www.dnssec-failed.org";

#[cfg(test)]
mod tests {
    use posthaste_dns_stub::{Kind, Server, Zone};

    use super::*;

    fn zone() -> Zone {
        Zone::default().ns("org", "a.nic.example").a(BROKEN, "192.0.2.1".parse().unwrap())
    }

    async fn prove(servers: &[SocketAddr]) -> Result<usize, String> {
        let settings = Settings { servers: servers.to_vec(), timeout_secs: 90, ..Settings::default() };
        settings.prove_ad().await.map(|found| found.len()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_resolver_that_knows_signed_and_forged_names_is_proven() {
        let validating = || Server::start(zone().signed("org").fails_for(BROKEN, Kind::A));
        let (one, other) = (validating(), validating());
        assert_eq!(prove(&[one.address(), other.address()]).await, Ok(2));
    }

    #[tokio::test]
    async fn others_are_not_and_it_is_said_why() {
        let signed = || zone().signed("org").fails_for(BROKEN, Kind::A);
        for (zone, why) in [
            (zone().fails_for(BROKEN, Kind::A), "does not say that `org` is signed"),
            (zone().signed("org"), "it answers for www.dnssec-failed.org, whose signature is broken"),
            (Zone::default().signed("org"), "does not say that `org` is signed"),
            (signed().txt("version.bind", "dnsmasq-2.90"), "is dnsmasq"),
            (signed().fails_for("org", Kind::Other(2)), "has no answer for `org`"),
        ] {
            let server = Server::start(zone);
            let told = prove(&[server.address()]).await.unwrap_err();
            assert!(told.contains(why), "{why}: {told}");
        }
        let good = Server::start(signed().txt("version.bind", "unbound 1.17.1"));
        assert_eq!(prove(&[good.address()]).await, Ok(1));
        let far = prove(&[good.address(), "192.0.2.53:53".parse().unwrap()]).await.unwrap_err();
        assert!(far.contains("192.0.2.53 is not on this machine"), "{far}");
        for (stub, why) in [
            ("127.0.0.53:53", "systemd-resolved"),
            ("[::ffff:127.0.0.54]:53", "systemd-resolved"),
            ("127.0.0.11:53", "Docker's"),
        ] {
            let told = prove(&[stub.parse().unwrap()]).await.unwrap_err();
            assert!(told.contains(why), "{told}");
        }
    }
}
