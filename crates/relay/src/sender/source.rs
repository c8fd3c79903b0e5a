//! Sources of mail, each with addresses and a name, and pools of them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::warm_up::{WarmUp, Warming};
use crate::session::Proxy;
use posthaste_queue::Secs;

/// A local address and host name that mail is sent from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingSource {
    /// Its name, for pools and logs.
    pub name: Arc<str>,
    /// Local address of IPv4 connections, here or at the proxy.
    pub ipv4: Option<Ipv4Addr>,
    /// Local address of IPv6 connections. With neither, the system chooses; with only one, the source has only that
    /// family.
    pub ipv6: Option<Ipv6Addr>,
    /// Its name in EHLO; `None`: the host name.
    pub ehlo: Option<String>,
    /// The proxy that makes its connections; `None`: direct.
    pub proxy: Option<Proxy>,
    /// Limit of its first days; `None`: no limit.
    pub warm_up: Option<WarmUp>,
}

impl OutgoingSource {
    /// A source whose addresses the system chooses.
    pub fn new(name: &str) -> Self {
        OutgoingSource { name: name.into(), ipv4: None, ipv6: None, ehlo: None, proxy: None, warm_up: None }
    }
}

/// Sources that share mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name, for routes.
    pub name: String,
    /// The tenants whose mail it sends; `None`: all. Mail that names it is sent in any case.
    pub tenants: Option<Vec<String>>,
    /// Names of sources with their weights. At least one.
    pub sources: Vec<(Arc<str>, u32)>,
}

/// A source in use.
#[derive(Debug)]
pub(super) struct Egress {
    pub settings: OutgoingSource,
    /// True while nothing may be sent from it.
    is_unusable: AtomicBool,
    /// The reason, if it is suspended.
    trouble: Mutex<Option<String>>,
    warming: Option<Warming>,
}

impl Egress {
    pub fn new(settings: OutgoingSource) -> Self {
        let warming = settings.warm_up.clone().map(Warming::new);
        Egress { settings, is_unusable: AtomicBool::new(false), trouble: Mutex::new(None), warming }
    }

    pub fn name(&self) -> &Arc<str> {
        &self.settings.name
    }

    /// The local address for a connection to `address`: `Some(None)` leaves it to the system, `None`: the source lacks
    /// the family.
    pub fn local(&self, address: IpAddr) -> Option<Option<IpAddr>> {
        let OutgoingSource { ipv4, ipv6, .. } = self.settings;
        if ipv4.is_none() && ipv6.is_none() {
            return Some(None);
        }
        let own = if address.is_ipv4() { ipv4.map(IpAddr::from) } else { ipv6.map(IpAddr::from) };
        own.map(Some)
    }

    /// True if mail may be sent from it now.
    pub fn is_usable(&self) -> bool {
        !self.is_unusable.load(Ordering::Relaxed)
    }

    /// Counts a message. `false`: send neither it nor others until [`look`](Self::look) allows it.
    pub fn take(&self, now: Secs) -> bool {
        let Some(warming) = &self.warming else { return true };
        let is_taken = warming.take(now);
        if !is_taken {
            self.is_unusable.store(true, Ordering::Relaxed);
        }
        is_taken
    }

    /// Suspends the source: its address or proxy cannot be used. True if it was not suspended before.
    pub fn suspend(&self, error: &io::Error) -> bool {
        let mut trouble = self.trouble.lock().expect("a source");
        self.is_unusable.store(true, Ordering::Relaxed);
        trouble.replace(error.to_string()).is_none()
    }

    /// The reason why nothing is sent from it.
    pub fn trouble(&self) -> Option<String> {
        if self.is_usable() {
            return None;
        }
        let trouble = self.trouble.lock().expect("a source").clone();
        Some(trouble.unwrap_or_else(|| "it has sent as much as its warm-up allows".to_owned()))
    }

    pub fn is_suspended(&self) -> bool {
        self.trouble.lock().expect("a source").is_some()
    }

    /// Checks a source that is not suspended. True if it has become usable now.
    pub fn look(&self, now: Secs) -> bool {
        if self.is_usable() || self.warming.as_ref().is_some_and(|warming| !warming.is_worth_it(now)) {
            return false;
        }
        let trouble = self.trouble.lock().expect("a source");
        if trouble.is_none() {
            self.is_unusable.store(false, Ordering::Relaxed);
        }
        trouble.is_none()
    }

    /// Ends the suspension if the addresses, or the proxy, can be used again. True if this call ended it.
    pub async fn try_resume(&self) -> bool {
        if !self.is_suspended() || self.check().await.is_err() {
            return false;
        }
        let mut trouble = self.trouble.lock().expect("a source");
        self.is_unusable.store(false, Ordering::Relaxed);
        trouble.take().is_some()
    }

    async fn check(&self) -> io::Result<()> {
        let OutgoingSource { ipv4, ipv6, proxy, .. } = &self.settings;
        if let Some(proxy) = proxy {
            return timeout(PROXY_PATIENCE, TcpStream::connect(proxy.server())).await?.map(drop);
        }
        let mut own = ipv4.map(IpAddr::from).into_iter().chain(ipv6.map(IpAddr::from));
        own.try_for_each(|address| TcpListener::bind(SocketAddr::new(address, 0)).map(drop))
    }
}

/// Time for a proxy to accept a connection.
const PROXY_PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_the_families_of_its_addresses() {
        let v4: IpAddr = "192.0.2.9".parse().unwrap();
        let v6: IpAddr = "2001:db8::9".parse().unwrap();
        let local = |ipv4: Option<&str>, ipv6: Option<&str>| {
            let source = OutgoingSource {
                ipv4: ipv4.map(|address| address.parse().unwrap()),
                ipv6: ipv6.map(|address| address.parse().unwrap()),
                ..OutgoingSource::new("a")
            };
            let egress = Egress::new(source);
            [egress.local(v4), egress.local(v6)]
        };
        assert_eq!(local(None, None), [Some(None), Some(None)]);
        assert_eq!(local(Some("192.0.2.1"), None), [Some(Some("192.0.2.1".parse().unwrap())), None]);
        assert_eq!(local(None, Some("2001:db8::1")), [None, Some(Some("2001:db8::1".parse().unwrap()))]);
    }

    #[tokio::test]
    async fn a_suspended_source_comes_back_once_its_address_can_be_bound() {
        let at = |address: &str| {
            Egress::new(OutgoingSource { ipv4: Some(address.parse().unwrap()), ..OutgoingSource::new("a") })
        };
        // Addresses for documentation (RFC 5737): no machine has them.
        let here = at("127.0.0.9");
        let not_here = at("192.0.2.1");
        for egress in [&here, &not_here] {
            assert!(!egress.try_resume().await && egress.is_usable() && !egress.is_suspended(), "it was not suspended");
            assert!(egress.suspend(&io::ErrorKind::AddrNotAvailable.into()));
            assert!(!egress.suspend(&io::ErrorKind::AddrNotAvailable.into()), "no news");
            assert!(egress.is_suspended() && !egress.is_usable() && egress.trouble().is_some());
            assert!(!egress.look(0), "not by itself");
        }
        assert!(here.try_resume().await && !here.is_suspended() && here.is_usable());
        assert!(!not_here.try_resume().await && not_here.is_suspended());
    }

    #[test]
    fn a_source_that_warms_up_rests_when_it_has_sent_enough() {
        let warm_up = WarmUp { since: 0, per_day: vec![86_400] };
        let egress = Egress::new(OutgoingSource { warm_up: Some(warm_up), ..OutgoingSource::new("a") });
        assert!(egress.is_usable() && !egress.take(100) && !egress.is_usable());
        assert_eq!(egress.trouble().as_deref(), Some("it has sent as much as its warm-up allows"));
        assert!(!egress.look(101) && egress.look(102) && egress.is_usable() && egress.take(102) && egress.take(102));
        assert!(!egress.take(102) && !egress.is_suspended());
    }
}
