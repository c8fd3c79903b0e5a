//! The MTA-STS policy of a domain as other hosts see it (RFC 8461 section 3.3).

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use posthaste_config::Config;
use posthaste_dns::{OwnDomain, RecordSource};
use posthaste_net::tls::{TlsTrust, client_config};
use ring::digest::{SHA256, digest};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

/// The port of HTTPS.
pub const HTTPS: u16 = 443;

/// Adds the id of the domain's policy, if the policy is served: a record without a policy must not be printed.
pub async fn with_policy(own: &OwnDomain, source: RecordSource<'_>, config: &Config, port: u16) -> OwnDomain {
    let mut own = own.clone();
    if own.has_web {
        let (host, trust) = (format!("mta-sts.{}", own.domain), TlsTrust::Authorities(config.acme.ca_file.clone()));
        let addresses = source.addresses(&host).await.unwrap_or_default();
        let asking = tokio::task::spawn_blocking(move || served(&host, &addresses, port, &trust));
        own.policy_id = asking.await.ok().flatten().map(|policy| id(&policy));
    }
    own
}

/// An id that changes with the policy: at most 32 letters and digits.
fn id(policy: &str) -> String {
    digest(&SHA256, policy.as_bytes()).as_ref().iter().take(8).map(|octet| format!("{octet:02x}")).collect()
}

/// The policy from the first address that answers. Blocks.
fn served(host: &str, addresses: &[IpAddr], port: u16, trust: &TlsTrust) -> Option<String> {
    let text =
        addresses.iter().take(ADDRESSES_MAX).find_map(|address| get(host, (*address, port).into(), trust).ok())?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let is_policy = head.starts_with("HTTP/1.1 200 ") && body.starts_with("version: STSv1");
    is_policy.then(|| body.to_owned())
}

fn get(host: &str, at: SocketAddr, trust: &TlsTrust) -> Result<String, Box<dyn std::error::Error>> {
    let stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let connection = ClientConnection::new(client_config(trust)?, ServerName::try_from(host.to_owned())?)?;
    let mut stream = StreamOwned::new(connection, stream);
    write!(stream, "GET /.well-known/mta-sts.txt HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut text = Vec::new();
    let read = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut text);
    // Many servers end without the alert of TLS.
    if text.is_empty() {
        read?;
    }
    Ok(String::from_utf8(text)?)
}

const PATIENCE: Duration = Duration::from_secs(5);
const ADDRESSES_MAX: usize = 4;
/// Senders accept no larger policy (RFC 8461 section 3.3).
const ANSWER_BYTES_MAX: u64 = 64 << 10;
