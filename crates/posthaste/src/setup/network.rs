//! The network between this machine and other hosts: its addresses, and connections to others.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use posthaste_dns::{Resolver, join_all};

use super::finding::{Finding, Verdict};
use super::smarthost::Smarthost;
use super::wanted::Wanted;

/// The source addresses of this machine, one of each family.
pub fn own_addresses() -> Vec<IpAddr> {
    // To connect a UDP socket only looks up the route. Nothing is sent; the others are addresses of documentation.
    let toward = |any: &str, other: &str| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((other, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    [toward("0.0.0.0", "192.0.2.1"), toward("::", "2001:db8::1")].into_iter().flatten().collect()
}

/// A private address of this machine, and its public addresses (NAT).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nat {
    pub here: IpAddr,
    /// Addresses in DNS; empty without any.
    pub outside: Vec<IpAddr>,
}

impl Nat {
    /// Looks for a private IPv4 address of this machine. `None` also if the host has only IPv6 addresses in DNS.
    pub fn find(own: &[IpAddr], in_dns: &[IpAddr]) -> Option<Nat> {
        let here = *own.iter().find(|one| one.is_ipv4() && is_private(**one))?;
        let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) =
            in_dns.iter().copied().filter(|one| !is_private(*one)).partition(IpAddr::is_ipv4);
        (!v4.is_empty() || v6.is_empty()).then_some(Nat { here, outside: v4 })
    }

    /// The ports to be forwarded, as text.
    pub fn forward(&self, ports: &str) -> String {
        let outside = if self.outside.is_empty() { "your router".to_owned() } else { list(&self.outside) };
        format!("{ports} of {outside} to {}", self.here)
    }

    fn finding(&self, wanted: &Wanted) -> Finding {
        let mut text = format!("{} is private: forward {}", self.here, self.forward(&wanted.ports.text()));
        if self.outside.is_empty() && wanted.acme {
            text += &format!("; certificates need the router's address as that of {} in DNS first", wanted.host);
        }
        Finding::new("nat", text, Verdict::Note)
    }
}

/// Compares the addresses of the host in DNS with those of this machine.
pub fn of_addresses(wanted: &Wanted, own: &[IpAddr], in_dns: &[IpAddr], nat: Option<&Nat>) -> Vec<Finding> {
    let host = &wanted.host;
    let is_known = |family: &IpAddr| own.iter().any(|one| one.is_ipv4() == family.is_ipv4());
    let is_behind = |one: &IpAddr| nat.is_some_and(|nat| nat.outside.contains(one));
    let is_stranger = |one: &&IpAddr| is_known(one) && !is_behind(one) && !own.contains(*one) && !is_here(**one);
    let private: Vec<IpAddr> = in_dns.iter().filter(|one| is_private(**one)).copied().collect();
    let strangers: Vec<IpAddr> = in_dns.iter().filter(is_stranger).copied().collect();
    let (text, verdict) = if in_dns.is_empty() {
        let public: Vec<IpAddr> = own.iter().filter(|one| !is_private(**one)).copied().collect();
        let public = if public.is_empty() { "its public address".to_owned() } else { list(&public) };
        (format!("{host} has no address in DNS yet: add A or AAAA records with {public}"), Verdict::Note)
    } else if !private.is_empty() {
        (format!("{host} has {} in DNS, which others cannot reach", list(&private)), Verdict::Note)
    } else if !strangers.is_empty() {
        (
            format!("{host} has {} in DNS, which is not an address of this machine ({})", list(&strangers), list(own)),
            Verdict::Note,
        )
    } else {
        (format!("{host}  {}", list(in_dns)), Verdict::Ok)
    };
    let of_host = Finding::new("host", text, verdict);
    [of_host].into_iter().chain(nat.map(|nat| nat.finding(wanted))).collect()
}

/// Tries the mail hosts of large domains at the port of mail between hosts, until one greets. Blocks.
pub fn of_outbound(hosts: Vec<IpAddr>, port: u16) -> Finding {
    let tried = PROBED.join(", ");
    if hosts.is_empty() {
        let text = format!("not tried: DNS has no mail hosts of {tried}");
        return Finding::new("port 25", text, Verdict::Note);
    }
    if any(hosts, port, greets) {
        return Finding::new("port 25", "other hosts answer: mail goes out", Verdict::Ok);
    }
    let text = format!(
        "no other host answers ({tried}): it is blocked on the way out. Ask your provider, or send through a smarthost: \
         --smarthost HOST[:PORT] --smarthost-login FILE"
    );
    Finding::new("port 25", text, Verdict::Note)
}

/// Tries a connection with the smarthost. Blocks.
pub fn of_smarthost(smarthost: &Smarthost, addresses: Vec<IpAddr>) -> Finding {
    let at = smarthost.text();
    if addresses.is_empty() {
        return Finding::new("smarthost", format!("{at} has no address in DNS"), Verdict::Note);
    }
    if any(addresses, smarthost.port, |address| TcpStream::connect_timeout(&address, CONNECT_MAX).is_ok()) {
        Finding::new("smarthost", format!("{at} answers: mail for other hosts goes there"), Verdict::Ok)
    } else {
        Finding::new("smarthost", format!("{at} does not answer: mail for other hosts waits"), Verdict::Note)
    }
}

/// An address of each family of the first mail host of the domains that are tried.
pub async fn probed_hosts(resolver: &Resolver) -> Vec<IpAddr> {
    let of = async |domain: &'static str| {
        let found = resolver.destination(domain).await.ok()?;
        Some(addresses(resolver, &found.site.hosts().first()?.name).await)
    };
    join_all(PROBED.into_iter().map(of)).await.into_iter().flatten().flatten().collect()
}

/// An address of each family; empty without an answer.
pub async fn addresses(resolver: &Resolver, host: &str) -> Vec<IpAddr> {
    let Ok(found) = resolver.addresses(host).await else { return Vec::new() };
    let first = |is_ipv4: bool| found.all().iter().find(|address| address.is_ipv4() == is_ipv4).copied();
    [first(true), first(false)].into_iter().flatten().collect()
}

/// True as soon as one of the addresses passes the test. Results of slower ones are ignored.
fn any(addresses: Vec<IpAddr>, port: u16, passes: fn(SocketAddr) -> bool) -> bool {
    let (tell, told) = mpsc::channel();
    for address in addresses {
        let tell = tell.clone();
        std::thread::spawn(move || tell.send(passes((address, port).into())));
    }
    drop(tell);
    told.into_iter().any(|passes| passes)
}

/// True if an SMTP server answers, even to refuse mail from here.
fn greets(address: SocketAddr) -> bool {
    let code = || {
        let mut stream = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
        stream.set_read_timeout(Some(GREETING_MAX))?;
        let mut code = [0; 3];
        stream.read_exact(&mut code)?;
        Ok::<_, std::io::Error>(code)
    };
    code().is_ok_and(|code| code.iter().all(u8::is_ascii_digit))
}

/// Addresses without a route on the Internet (RFC 1918, RFC 6598, RFC 3927, RFC 4193, RFC 4291), including loopback.
fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            let is_shared = first == 100 && second & 0xc0 == 64;
            v4.is_private() || v4.is_link_local() || v4.is_loopback() || is_shared
        }
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local() || v6.is_loopback(),
    }
}

/// True if this machine has the address: it can be bound.
fn is_here(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// Domains whose mail hosts are hardly ever all unreachable.
const PROBED: [&str; 3] = ["gmail.com", "yahoo.com", "gmx.net"];
const CONNECT_MAX: Duration = Duration::from_secs(5);
const GREETING_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::setup::wanted::tests::wanted;

    fn ips(list: &[&str]) -> Vec<IpAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn told(own: &[&str], in_dns: &[&str]) -> Vec<(String, Verdict)> {
        let (own, in_dns) = (ips(own), ips(in_dns));
        let nat = Nat::find(&own, &in_dns);
        let findings = of_addresses(&wanted("ann@example.org"), &own, &in_dns, nat.as_ref());
        findings.into_iter().map(|finding| (finding.text, finding.verdict)).collect()
    }

    #[test]
    fn addresses_in_dns_are_compared_with_those_of_the_machine() {
        let one = |text: &str, verdict| vec![(text.to_owned(), verdict)];
        let both = ["192.0.2.10", "2001:db8::10"];
        assert_eq!(told(&both, &both), one("mx.example.org  192.0.2.10, 2001:db8::10", Verdict::Ok));
        assert_eq!(told(&both, &["192.0.2.10"]), one("mx.example.org  192.0.2.10", Verdict::Ok));
        let none = "mx.example.org has no address in DNS yet: add A or AAAA records with 192.0.2.10, 2001:db8::10";
        assert_eq!(told(&both, &[]), one(none, Verdict::Note));
        let other =
            "mx.example.org has 192.0.2.9 in DNS, which is not an address of this machine (192.0.2.10, 2001:db8::10)";
        assert_eq!(told(&both, &["192.0.2.9", "2001:db8::10"]), one(other, Verdict::Note));
        // Without a way out by that family nothing is known of it.
        assert_eq!(told(&["2001:db8::10"], &both), one("mx.example.org  192.0.2.10, 2001:db8::10", Verdict::Ok));
    }

    #[test]
    fn a_private_address_needs_its_ports_forwarded() {
        let behind = told(&["10.0.0.5", "2001:db8::10"], &["192.0.2.10", "2001:db8::10"]);
        assert_eq!(behind[0], ("mx.example.org  192.0.2.10, 2001:db8::10".to_owned(), Verdict::Ok));
        let forward = "10.0.0.5 is private: forward 25 465 587 993 443 of 192.0.2.10 to 10.0.0.5";
        assert_eq!(behind[1..], [(forward.to_owned(), Verdict::Note)]);
        let unknown = told(&["100.64.0.5"], &[]);
        assert!(unknown[0].0.ends_with("records with its public address"), "{unknown:?}");
        assert!(unknown[1].0.contains("443 of your router to 100.64.0.5; certificates need"), "{unknown:?}");
        let inside = told(&["192.168.1.5"], &["192.168.1.5"]);
        assert_eq!(inside[0].0, "mx.example.org has 192.168.1.5 in DNS, which others cannot reach");
        assert!(inside[1].0.contains("of your router"), "{inside:?}");
        // Mail comes by IPv6 alone.
        assert_eq!(told(&["10.0.0.5", "2001:db8::10"], &["2001:db8::10"]).len(), 1);
    }

    #[test]
    fn only_addresses_without_a_way_to_them_are_private() {
        for text in
            ["10.0.0.1", "172.31.0.1", "192.168.0.1", "100.127.0.1", "169.254.0.1", "127.0.0.1", "fd00::1", "fe80::1"]
        {
            assert!(is_private(text.parse().unwrap()), "{text}");
        }
        for text in ["192.0.2.1", "172.32.0.1", "100.128.0.1", "100.63.0.1", "2001:db8::1", "9.9.9.9"] {
            assert!(!is_private(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_host_must_greet_and_not_only_listen() {
        let (greeting, mute) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let port = greeting.local_addr().unwrap().port();
        let served = std::thread::spawn(move || greeting.accept().unwrap().0.write_all(b"554 no mail from here\r\n"));
        assert!(any(ips(&["127.0.0.1", "127.0.0.2"]), port, greets));
        served.join().unwrap().unwrap();
        let address = mute.local_addr().unwrap();
        // It accepts, and ends the session without a word.
        let ended = std::thread::spawn(move || drop(mute.accept().unwrap()));
        assert!(!greets(address));
        ended.join().unwrap();
    }
}
