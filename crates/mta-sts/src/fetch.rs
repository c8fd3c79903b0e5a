//! The fetch of a policy (RFC 8461 section 3.3) from a host that a stranger has named.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::crypto::aws_lc_rs::default_provider;
use ureq::http::Uri;
use ureq::tls::{PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use crate::public::is_public;

/// The file of authorities cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {text}")]
pub struct AuthoritiesError {
    path: String,
    text: String,
}

/// Fetches policies.
#[derive(Debug)]
pub struct Fetcher {
    authorities: Arc<Vec<ureq::tls::Certificate<'static>>>,
    /// 443, but in tests.
    port: u16,
    /// [`is_public`], but for a host of ours and in tests.
    is_allowed: fn(IpAddr) -> bool,
    /// Timeout for all addresses together.
    time: Duration,
}

impl Fetcher {
    /// Trusts the authorities of a PEM file. Blocks.
    ///
    /// # Errors
    /// [`AuthoritiesError`].
    pub fn new(ca_file: &Path) -> Result<Self, AuthoritiesError> {
        let failed = |text: String| AuthoritiesError { path: ca_file.display().to_string(), text };
        let text = std::fs::read(ca_file).map_err(|error| failed(error.to_string()))?;
        let certificates = parse_pem(&text).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        let certificates: Vec<_> = certificates.collect();
        if certificates.is_empty() {
            return Err(failed("no certificate in it".to_owned()));
        }
        Ok(Self { authorities: Arc::new(certificates), port: HTTPS, is_allowed: is_public, time: DEADLINE })
    }

    /// Fetches from our own host, at a port that the operator sets.
    pub fn of_own_host(self, port: u16) -> Self {
        Self { port, is_allowed: |_| true, time: OWN_DEADLINE, ..self }
    }

    #[cfg(test)]
    pub fn on_loopback(self, port: u16) -> Self {
        Self { port, is_allowed: |address| address.is_loopback(), ..self }
    }

    /// Fetches a domain's policy text from the first working address of `mta-sts.DOMAIN`. Blocks for a minute at most.
    ///
    /// # Errors
    /// The reason of the failure.
    pub fn fetch(&self, domain: &str, addresses: &[IpAddr]) -> Result<String, String> {
        let until = Instant::now() + self.time;
        let mut problem = format!("mta-sts.{domain} has no public address");
        for address in addresses.iter().filter(|address| (self.is_allowed)(**address)).take(ADDRESSES_MAX) {
            let left = until.saturating_duration_since(Instant::now()).min(PATIENCE);
            if left.is_zero() {
                break;
            }
            match self.get(domain, *address, left) {
                Ok(text) => return Ok(text),
                Err(error) => problem = format!("https://mta-sts.{domain} at {address}: {error}"),
            }
        }
        Err(problem)
    }

    fn get(&self, domain: &str, address: IpAddr, time: Duration) -> Result<String, String> {
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(default_provider()))
            .root_certs(RootCerts::Specific(Arc::clone(&self.authorities)));
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(time))
            .http_status_as_error(false)
            .https_only(true)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("posthaste/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls.build());
        let pinned = Pinned((address, self.port).into());
        let agent = ureq::Agent::with_parts(config.build(), DefaultConnector::default(), pinned);
        let port = if self.port == HTTPS { String::new() } else { format!(":{}", self.port) };
        let url = format!("https://mta-sts.{domain}{port}/.well-known/mta-sts.txt");
        let mut response = agent.get(&url).call().map_err(|error| error.to_string())?;
        if response.status() != 200 {
            return Err(format!("it answered {}", response.status()));
        }
        let octets = response.body_mut().with_config().limit(POLICY_BYTES_MAX).read_to_vec();
        String::from_utf8(octets.map_err(|error| error.to_string())?).map_err(|_| "the policy is not text".to_owned())
    }
}

/// Connects the name only to the checked address, so that a second DNS answer cannot redirect it.
#[derive(Debug)]
struct Pinned(SocketAddr);

impl Resolver for Pinned {
    fn resolve(&self, _: &Uri, _: &ureq::config::Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut addresses = self.empty();
        addresses.push(self.0);
        Ok(addresses)
    }
}

const HTTPS: u16 = 443;
/// Deadline for all addresses together.
const DEADLINE: Duration = Duration::from_secs(60);
/// Deadline for all addresses of our own host.
const OWN_DEADLINE: Duration = Duration::from_secs(10);
/// Timeout of one address, so that a silent one leaves time for others.
const PATIENCE: Duration = Duration::from_secs(20);
const ADDRESSES_MAX: usize = 8;
/// Maximum length of a policy (section 3.3).
const POLICY_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ServerConfig, ServerConnection, StreamOwned};

    use super::*;

    /// A web server on loopback that answers each connection with fixed octets.
    pub struct WebServer {
        pub port: u16,
        /// Its own certificate, as an authority.
        pub ca_file: tempfile::NamedTempFile,
        pub answered: Arc<AtomicUsize>,
    }

    impl WebServer {
        pub fn start(name: &str, answer: impl Into<String>) -> Self {
            let certified = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
            let ca_file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(ca_file.path(), certified.cert.pem()).unwrap();
            let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
            let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
            let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
            let config = Arc::new(config.with_single_cert(vec![certified.cert.der().clone()], key).unwrap());
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let answered = Arc::new(AtomicUsize::new(0));
            let answer = answer.into();
            let count = Arc::clone(&answered);
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let config = Arc::clone(&config);
                    let answer = answer.clone();
                    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream.unwrap());
                    let mut request = [0; 4096];
                    // A client that does not trust it says nothing.
                    if stream.read(&mut request).is_ok_and(|count| count > 0) {
                        count.fetch_add(1, Ordering::SeqCst);
                        let _ = stream.write_all(answer.as_bytes());
                        stream.conn.send_close_notify();
                        let _ = stream.flush();
                    }
                }
            });
            Self { port, ca_file, answered }
        }

        pub fn fetcher(&self) -> Fetcher {
            Fetcher::new(self.ca_file.path()).unwrap().on_loopback(self.port)
        }
    }

    pub fn ok(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    const LOOPBACK: &[IpAddr] = &[IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)];

    fn fetched(name: &str, answer: &str) -> Result<String, String> {
        WebServer::start(name, answer).fetcher().fetch("a.example", LOOPBACK)
    }

    #[test]
    fn only_a_plain_answer_of_the_right_host_counts() {
        let name = "mta-sts.a.example";
        assert_eq!(fetched(name, &ok("a policy")).as_deref(), Ok("a policy"));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na \r\n6\r\npolicy\r\n0\r\n\r\n";
        assert_eq!(fetched(name, chunked).as_deref(), Ok("a policy"));
        assert!(fetched("other.example", &ok("a policy")).is_err(), "the certificate of another");
        for answer in [
            "HTTP/1.1 404 Not Found\r\nContent-Length: 8\r\n\r\na policy".to_owned(),
            "HTTP/1.1 302 Found\r\nLocation: https://mta-sts.a.example/\r\nContent-Length: 0\r\n\r\n".to_owned(),
            ok(&"x".repeat((64 << 10) + 1)),
            "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nshort".to_owned(),
            "220 mx.a.example ESMTP\r\n".to_owned(),
            String::new(),
        ] {
            assert!(fetched(name, &answer).is_err(), "{answer:.60}");
        }
    }

    #[test]
    fn no_address_but_a_public_one_is_connected_to() {
        let server = WebServer::start("mta-sts.a.example", ok("a policy"));
        let fetcher = Fetcher { is_allowed: is_public, ..server.fetcher() };
        let inner =
            ["127.0.0.1", "::ffff:127.0.0.1", "::1", "10.0.0.1", "169.254.169.254"].map(|text| text.parse().unwrap());
        assert_eq!(fetcher.fetch("a.example", &inner), Err("mta-sts.a.example has no public address".to_owned()));
        assert_eq!(server.answered.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_file_without_certificates_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Fetcher::new(file.path()).unwrap_err().to_string().contains("no certificate"));
        assert!(Fetcher::new(Path::new("/nonexistent/ca.pem")).is_err());
    }
}
