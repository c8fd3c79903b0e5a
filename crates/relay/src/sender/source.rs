//! Where mail leaves from: sources with addresses and a name of their own, and pools of them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

/// A place that mail leaves from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its name, for pools and logs.
    pub name: Arc<str>,
    /// The address that IPv4 connections are made from.
    pub ipv4: Option<Ipv4Addr>,
    /// The address that IPv6 connections are made from. With neither the system chooses; with one of them the source has that family alone.
    pub ipv6: Option<Ipv6Addr>,
    /// Its name in EHLO; `None`: the host name.
    pub ehlo: Option<String>,
}

impl Source {
    /// A source whose addresses the system chooses.
    pub fn new(name: &str) -> Self {
        Source { name: name.into(), ipv4: None, ipv6: None, ehlo: None }
    }
}

/// Sources that share mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name, for routes.
    pub name: String,
    /// The tenants whose mail it sends; none: everybody's.
    pub tenants: Vec<String>,
    /// Names of sources with their weights: their parts of the messages. At least one.
    pub sources: Vec<(Arc<str>, u32)>,
}

/// A source at work.
#[derive(Debug)]
pub(super) struct Egress {
    pub settings: Source,
    /// Why it is suspended.
    trouble: Mutex<Option<String>>,
}

impl Egress {
    pub fn new(settings: Source) -> Self {
        Egress { settings, trouble: Mutex::new(None) }
    }

    pub fn name(&self) -> &Arc<str> {
        &self.settings.name
    }

    /// The address to connect to `address` from: `Some(None)` leaves it to the system, `None`: the source lacks the family.
    pub fn local(&self, address: IpAddr) -> Option<Option<IpAddr>> {
        let Source { ipv4, ipv6, .. } = self.settings;
        if ipv4.is_none() && ipv6.is_none() {
            return Some(None);
        }
        let own = if address.is_ipv4() { ipv4.map(IpAddr::from) } else { ipv6.map(IpAddr::from) };
        own.map(Some)
    }

    /// Its address cannot be used. Whether this is news.
    pub fn suspend(&self, error: &io::Error) -> bool {
        self.trouble.lock().expect("a source").replace(error.to_string()).is_none()
    }

    /// Why nothing is sent from it.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().expect("a source").clone()
    }

    pub fn is_suspended(&self) -> bool {
        self.trouble.lock().expect("a source").is_some()
    }

    /// Ends the suspension if its addresses can be bound again. Whether it has ended now.
    pub fn try_resume(&self) -> bool {
        let mut trouble = self.trouble.lock().expect("a source");
        if trouble.is_none() {
            return false;
        }
        let Source { ipv4, ipv6, .. } = self.settings;
        let own = ipv4.map(IpAddr::from).into_iter().chain(ipv6.map(IpAddr::from));
        let mut bound = own.map(|address| TcpListener::bind(SocketAddr::new(address, 0)));
        if bound.all(|bound| bound.is_ok()) {
            *trouble = None;
        }
        trouble.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_the_families_of_its_addresses() {
        let (v4, v6): (IpAddr, IpAddr) = ("192.0.2.9".parse().unwrap(), "2001:db8::9".parse().unwrap());
        let local = |ipv4: Option<&str>, ipv6: Option<&str>| {
            let source = Source {
                ipv4: ipv4.map(|address| address.parse().unwrap()),
                ipv6: ipv6.map(|address| address.parse().unwrap()),
                ..Source::new("a")
            };
            let egress = Egress::new(source);
            [egress.local(v4), egress.local(v6)]
        };
        assert_eq!(local(None, None), [Some(None), Some(None)]);
        assert_eq!(local(Some("192.0.2.1"), None), [Some(Some("192.0.2.1".parse().unwrap())), None]);
        assert_eq!(local(None, Some("2001:db8::1")), [None, Some(Some("2001:db8::1".parse().unwrap()))]);
    }

    #[test]
    fn a_suspended_source_comes_back_once_its_address_can_be_bound() {
        let at = |address: &str| Egress::new(Source { ipv4: Some(address.parse().unwrap()), ..Source::new("a") });
        // Of the documentation (RFC 5737): no machine has it.
        let (here, not_here) = (at("127.0.0.9"), at("192.0.2.1"));
        for egress in [&here, &not_here] {
            assert!(!egress.try_resume() && !egress.is_suspended(), "it was not suspended");
            assert!(egress.suspend(&io::ErrorKind::AddrNotAvailable.into()));
            assert!(!egress.suspend(&io::ErrorKind::AddrNotAvailable.into()), "no news");
            assert!(egress.is_suspended() && egress.trouble().is_some());
        }
        assert!(here.try_resume() && !here.is_suspended());
        assert!(!not_here.try_resume() && not_here.is_suspended());
    }
}
