use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Addresses that this server listens on.
#[derive(Debug, Default)]
pub(super) struct OwnListeners(Vec<SocketAddr>);

/// An address and port of our listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OwnPort {
    pub port: u16,
    /// True if a listener names the address, and it is not loopback.
    pub is_named: bool,
}

impl OwnListeners {
    pub fn new(listeners: impl IntoIterator<Item = SocketAddr>) -> Self {
        let canonical = |listener: SocketAddr| SocketAddr::new(listener.ip().to_canonical(), listener.port());
        Self(listeners.into_iter().map(canonical).collect())
    }

    pub fn has_port(&self, port: u16) -> bool {
        self.0.iter().any(|listener| listener.port() == port)
    }

    /// The ports at which mail sent to `address` returns to us. A listener without an address covers all of this
    /// machine.
    pub fn ports_at(&self, address: IpAddr) -> Vec<OwnPort> {
        let is_here = self.0.iter().any(|listener| listener.ip().is_unspecified()) && is_of_this_machine(address);
        let is_ours = |listener: &&SocketAddr| match listener.ip() {
            ip if ip.is_unspecified() => is_here,
            ip => ip == address,
        };
        let port = |listener: &SocketAddr| OwnPort {
            port: listener.port(),
            is_named: listener.ip() == address && !address.is_loopback(),
        };
        self.0.iter().filter(is_ours).map(port).collect()
    }
}

/// True if the machine has the address: it can be bound, and an address that no machine has cannot. Checked each time,
/// as addresses change.
fn is_of_this_machine(address: IpAddr) -> bool {
    // Bound with `ip_nonlocal_bind` alone. Mail that only we could take is given up, so an error of another kind, such as too many open files, proves nothing.
    let nobodys = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::new(240, 0, 0, 1)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1)),
    };
    let bind = |address: IpAddr| UdpSocket::bind((address, 0)).map_err(|error| error.kind());
    address.is_loopback() || bind(address).is_ok() && bind(nobodys).err() == Some(ErrorKind::AddrNotAvailable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(listeners: &[&str], address: &str) -> Vec<(u16, bool)> {
        let listeners = OwnListeners::new(listeners.iter().map(|listener| listener.parse().unwrap()));
        listeners.ports_at(address.parse().unwrap()).iter().map(|own| (own.port, own.is_named)).collect()
    }

    #[test]
    fn a_listener_without_address_has_all_of_this_machine() {
        let named = ["192.0.2.9:25", "127.0.0.1:26", "[2001:db8::9]:27"];
        assert_eq!(ports(&named, "192.0.2.9"), [(25, true)]);
        assert_eq!(ports(&named, "127.0.0.1"), [(26, false)]);
        assert_eq!(ports(&named, "2001:db8::9"), [(27, true)]);
        assert_eq!(ports(&named, "127.0.0.2"), []);
        for any in ["0.0.0.0:25", "[::]:25"] {
            for address in ["127.0.0.1", "127.0.0.77", "::1"] {
                assert_eq!(ports(&[any], address), [(25, false)], "{any} {address}");
            }
            for address in ["192.0.2.9", "2001:db8::9"] {
                assert_eq!(ports(&[any], address), [], "{any} {address}");
            }
        }
    }
}
