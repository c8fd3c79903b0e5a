//! Settings of the caller.

use std::future::Future;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;

/// Future of a DNS answer.
pub type LookupAnswer<'a, T> = Pin<Box<dyn Future<Output = Result<T, LookupError>> + Send + 'a>>;

/// Why a query has no usable answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookupError {
    /// DNS has answered: there is no such record, or none that fits.
    Missing(String),
    /// No answer, so nothing is known.
    Unknown(String),
}

/// Looks up a host name in DNS.
pub trait NameLookup: Send + Sync + 'static {
    /// All addresses of `name`, at least one.
    fn addresses<'a>(&'a self, name: &'a str) -> LookupAnswer<'a, Vec<IpAddr>>;

    /// Checks that clients which know the name's key from elsewhere, such as from TLSA records, take a new certificate with the key `key`, a
    /// SubjectPublicKeyInfo in DER.
    fn allows_key<'a>(&'a self, name: &'a str, key: &'a [u8]) -> LookupAnswer<'a, ()>;
}

/// Validation methods by which an authority verifies a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// TLS-ALPN-01: a handshake with the host (RFC 8737).
    Tls,
    /// HTTP-01: a request without TLS (RFC 8555 section 8.3).
    Http,
    /// By a TXT record (RFC 8555 section 8.4), which this program writes.
    Dns(PathBuf),
}

/// Ports at which an authority looks for challenges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// HTTP port.
    pub http: u16,
    /// TLS port.
    pub tls: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self { http: 80, tls: 443 }
    }
}

/// The wanted certificates, and their authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeSettings {
    /// Names that want a certificate, the most important first.
    pub names: Vec<String>,
    /// The URL of the authority's directory.
    pub directory: String,
    /// PEM file of the authorities that may sign the directory's own certificate.
    pub ca_file: PathBuf,
    /// An e-mail address for the authority.
    pub contact: Option<String>,
    /// Directory of account, certificates and failures.
    pub dir: PathBuf,
    /// Validation method.
    pub way: Way,
    /// Public addresses of a host behind NAT, where the checks before an order only warn. Empty: an address is ours if
    /// this host has it.
    pub addresses: Vec<IpAddr>,
    /// Gives each certificate a new key, if the look-up [allows](NameLookup::allows_key) it. The next key is made when
    /// the present certificate is obtained.
    pub new_key: bool,
    /// Ports on which the authority looks for challenges.
    pub ports: Ports,
}

impl AcmeSettings {
    /// True if `addresses` are configured: only a host behind NAT needs them.
    pub(crate) fn is_behind_nat(&self) -> bool {
        !self.addresses.is_empty()
    }
}
