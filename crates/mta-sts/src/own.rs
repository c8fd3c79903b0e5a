//! The policy of a domain of ours, as others see it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use posthaste_dns::{OwnDomain, RecordSource};
use tokio::task::spawn_blocking;

use crate::StsPolicy;
use crate::fetch::Fetcher;

/// Our domain as others see it by HTTPS at `port`, which is 443 outside of tests.
///
/// - `has_web` is true also if a web server of this host passes requests on to us: something then has the port.
/// - `policy_id` is the id for the record of the domain's policy (section 3.1): at most 32 letters and digits, new with
///   each change of the policy. `None`: no policy that permits our host is served at its name with a certificate of the
///   authorities in this file. Nothing must be announced then.
pub async fn seen_by_https(own: &OwnDomain, source: RecordSource<'_>, port: u16, ca_file: &Path) -> OwnDomain {
    let mut own = own.clone();
    if !own.has_web && own.behind_web.is_none() {
        return own;
    }
    let of_host = source.addresses(&own.host).await.unwrap_or_default();
    let of_policy = source.addresses(&format!("mta-sts.{}", own.domain)).await.unwrap_or_default();
    let ca_file = ca_file.to_owned();
    let unseen = own.clone();
    let seen = spawn_blocking(move || {
        own.has_web = own.has_web || has_port(&of_host, port);
        own.policy_id = if own.has_web { served(&own, &of_policy, port, ca_file) } else { None };
        own
    });
    seen.await.unwrap_or(unseen)
}

/// True if something listens at the port on this host. Its public addresses may not be reachable from inside (NAT).
fn has_port(of_host: &[IpAddr], port: u16) -> bool {
    let local = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
    let mut all = local.iter().chain(of_host.iter().take(ADDRESSES_MAX));
    all.any(|address| TcpStream::connect_timeout(&SocketAddr::new(*address, port), CONNECT_MAX).is_ok())
}

fn served(own: &OwnDomain, addresses: &[IpAddr], port: u16, ca_file: PathBuf) -> Option<String> {
    let text = Fetcher::new(&ca_file).ok()?.of_own_host(port).fetch(&own.domain, addresses).ok()?;
    StsPolicy::parse(&text).ok().filter(|policy| policy.permits(&own.host))?;
    let digest = digest(&SHA256, text.as_bytes());
    Some(digest.as_ref().iter().take(ID_OCTETS).map(|octet| format!("{octet:02x}")).collect())
}

/// Addresses of the host that are tried.
const ADDRESSES_MAX: usize = 4;
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Octets of a hash in an id.
const ID_OCTETS: usize = 8;

#[cfg(test)]
mod tests {
    use posthaste_dns::{Resolver, Settings};
    use posthaste_dns_stub::{Server, Zone};

    use super::*;
    use crate::fetch::tests::{WebServer, ok};

    const HOST: &str = "mx.a.example";

    fn own() -> OwnDomain {
        OwnDomain { domain: "a.example".to_owned(), host: HOST.to_owned(), ..OwnDomain::default() }
    }

    fn policy(host: &str, secs: u32) -> String {
        ok(&format!("version: STSv1\nmode: testing\nmx: {host}\nmax_age: {secs}\n"))
    }

    #[test]
    fn a_policy_has_an_id_once_others_can_read_it() {
        let of = |name: &str, answer: String| {
            let web = WebServer::start(name, answer);
            served(&own(), &[Ipv4Addr::LOCALHOST.into()], web.port, web.ca_file.path().to_owned())
        };
        let id = of("mta-sts.a.example", policy(HOST, 1)).unwrap();
        assert!(id.len() == 16 && id.bytes().all(|octet| octet.is_ascii_alphanumeric()), "{id}");
        assert_eq!(of("mta-sts.a.example", policy(HOST, 1)).as_ref(), Some(&id));
        assert_ne!(of("mta-sts.a.example", policy(HOST, 2)), Some(id));
        assert_eq!(of("a.example", policy(HOST, 1)), None, "the certificate of another name");
        assert_eq!(of("mta-sts.a.example", ok("version: STSv1\n")), None);
        assert_eq!(of("mta-sts.a.example", policy("mx.b.example", 1)), None, "mail was received elsewhere so far");
    }

    #[tokio::test]
    async fn a_web_server_in_front_counts_while_it_listens() {
        let zone = Zone::default().a("mta-sts.a.example", Ipv4Addr::LOCALHOST);
        let dns = Server::start(zone);
        let resolver = Resolver::new(&Settings { servers: vec![dns.address()], ..Settings::default() }).unwrap();
        let web = WebServer::start("mta-sts.a.example", policy(HOST, 1));
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let seen = async |own: OwnDomain, port: u16| {
            let own = seen_by_https(&own, RecordSource::Resolver(&resolver), port, web.ca_file.path()).await;
            (own.has_web, own.policy_id.is_some())
        };
        let behind = OwnDomain { behind_web: Some("127.0.0.1:8025".to_owned()), ..own() };
        assert_eq!(seen(behind.clone(), web.port).await, (true, true));
        assert_eq!(seen(behind, unused).await, (false, false));
        assert_eq!(seen(own(), web.port).await, (false, false), "the web server has nothing to do with us");
        assert_eq!(seen(OwnDomain { has_web: true, ..own() }, web.port).await, (true, true));
    }
}
