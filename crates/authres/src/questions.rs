use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

/// Why a DNS query has no records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// NXDOMAIN: no such name, and none below it (RFC 8020).
    NoSuchName,
    /// No answer in time, or an unusable one.
    Temporary,
}

/// Answers DNS queries. An existing name without such records has an empty answer. Labels are 1 to 63 octets long, of
/// any value.
pub trait Dns: Sync {
    /// The TXT records, the strings of each joined without a blank.
    fn texts(&self, name: &str) -> impl Future<Output = Result<Arc<[String]>, NoAnswer>> + Send;
    /// Addresses of one family: A, or AAAA if `is_ipv6`.
    fn addresses(&self, name: &str, is_ipv6: bool) -> impl Future<Output = Result<Vec<IpAddr>, NoAnswer>> + Send;
    /// The hosts of the MX records, without a null MX.
    fn mail_hosts(&self, name: &str) -> impl Future<Output = Result<Vec<String>, NoAnswer>> + Send;
    /// The names of an address (PTR).
    fn names(&self, address: IpAddr) -> impl Future<Output = Result<Vec<String>, NoAnswer>> + Send;
}
