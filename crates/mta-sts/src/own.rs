//! The policy of a domain of ours, as others see it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use posthaste_dns::{OwnDomain, RecordSource};
use tokio::task::spawn_blocking;

use crate::StsPolicy;
use crate::fetch::Fetcher;

/// The id for the record of our domain's policy (section 3.1): at most 32 letters and digits, new with each change of
/// the policy. `None`: the policy is not served at its name with a certificate of the authorities in this file, and
/// must not be announced. `port` is 443 outside of tests.
pub async fn own_policy_id(own: &OwnDomain, source: RecordSource<'_>, port: u16, ca_file: &Path) -> Option<String> {
    let addresses = source.addresses(&format!("mta-sts.{}", own.domain)).await.unwrap_or_default();
    let domain = own.domain.clone();
    let ca_file = ca_file.to_owned();
    spawn_blocking(move || served(&domain, &addresses, port, ca_file)).await.ok().flatten()
}

fn served(domain: &str, addresses: &[IpAddr], port: u16, ca_file: PathBuf) -> Option<String> {
    let text = Fetcher::new(&ca_file).ok()?.of_own_host(port).fetch(domain, addresses).ok()?;
    StsPolicy::parse(&text).ok()?;
    let digest = digest(&SHA256, text.as_bytes());
    Some(digest.as_ref().iter().take(ID_OCTETS).map(|octet| format!("{octet:02x}")).collect())
}

/// Octets of a hash in an id.
const ID_OCTETS: usize = 8;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::fetch::tests::{WebServer, ok};

    #[test]
    fn a_policy_has_an_id_once_others_can_read_it() {
        let of = |host: &str, answer: String| {
            let web = WebServer::start(host, answer);
            served("a.example", &[Ipv4Addr::LOCALHOST.into()], web.port, web.ca_file.path().to_owned())
        };
        let policy = |secs: u32| ok(&format!("version: STSv1\nmode: testing\nmx: mx.a.example\nmax_age: {secs}\n"));
        let id = of("mta-sts.a.example", policy(1)).unwrap();
        assert!(id.len() == 16 && id.bytes().all(|octet| octet.is_ascii_alphanumeric()), "{id}");
        assert_eq!(of("mta-sts.a.example", policy(1)).as_ref(), Some(&id));
        assert_ne!(of("mta-sts.a.example", policy(2)), Some(id));
        assert_eq!(of("a.example", policy(1)), None, "the certificate of another name");
        assert_eq!(of("mta-sts.a.example", ok("version: STSv1\n")), None);
    }
}
