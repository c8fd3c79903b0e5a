//! Listeners of protocols other than SMTP and LMTP: sockets, and the parts of a listener that a reload replaces.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_net::{Admission, Bound, CurrentCertificate, ListenError, ListenPlace, bind};

use crate::config::certificates::TlsInForce;
use crate::listen::rules::{connection_limits, rules, unix_access};
use posthaste_config::{Config, Listener, ListenerTls};

/// Ports tried if no listener is configured, the default first.
const PORTS_TRIED: u16 = 100;

/// Sockets that listen, for each listener of some protocols in their order.
#[derive(Debug)]
pub(crate) struct BoundListeners(pub Vec<(Vec<Bound>, TlsInForce)>);

impl BoundListeners {
    /// Listens at the places of `listeners`; `tls` has an entry for each, in their order. Waits until `deadline` for a
    /// predecessor that is ending. Without a configured listener, a busy port is replaced by the next free one.
    ///
    /// # Errors
    /// The first place that failed.
    pub fn bind<'a>(
        config: &Config,
        listeners: impl Iterator<Item = &'a Listener>,
        tls: Vec<TlsInForce>,
        deadline: Instant,
    ) -> Result<Self, ListenError> {
        let gives_way = config.has_default_listeners();
        let bound = listeners.zip(tls).map(|(listener, tls)| {
            let sockets = if gives_way {
                bind_next(config, default_address(listener))?
            } else {
                bind_by(config, listener, deadline)?
            };
            Ok((sockets, tls))
        });
        bound.collect::<Result<_, ListenError>>().map(Self)
    }

    /// The TCP addresses, with the chosen ports, each with the TLS of its listener.
    pub fn tcp(&self) -> impl Iterator<Item = (SocketAddr, ListenerTls)> {
        self.0
            .iter()
            .flat_map(|(sockets, tls)| sockets.iter().filter_map(Bound::local_addr).map(|address| (address, tls.mode)))
    }
}

fn bind_by(config: &Config, listener: &Listener, deadline: Instant) -> Result<Vec<Bound>, ListenError> {
    loop {
        match bind_at(config, place(config, listener)) {
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            bound => return bound,
        }
    }
}

fn default_address(listener: &Listener) -> SocketAddr {
    let address = listener.socket.address.as_deref().and_then(|address| address.parse().ok());
    address.expect("the default is an address")
}

fn bind_next(config: &Config, mut at: SocketAddr) -> Result<Vec<Bound>, ListenError> {
    let last = at.port().saturating_add(PORTS_TRIED - 1);
    loop {
        match bind_at(config, ListenPlace::Tcp(at.to_string())) {
            Err(error) if is_busy(&error) && at.port() < last => at.set_port(at.port() + 1),
            bound => return bound,
        }
    }
}

fn is_busy(error: &ListenError) -> bool {
    error.error.kind() == io::ErrorKind::AddrInUse
}

fn bind_at(config: &Config, place: ListenPlace) -> Result<Vec<Bound>, ListenError> {
    let bound = bind(vec![(place, ())], &connection_limits(config))?;
    Ok(bound.into_iter().map(|(socket, ())| socket).collect())
}

fn place(config: &Config, listener: &Listener) -> ListenPlace {
    match (&listener.socket.address, &listener.socket.unix) {
        (Some(address), _) => ListenPlace::Tcp(address.clone()),
        (None, Some(path)) => ListenPlace::Unix(path.clone(), unix_access(config, listener)),
        (None, None) => panic!("an unchecked configuration: a listener that listens nowhere"),
    }
}

/// The parts of one listener that a reload replaces, for new connections.
pub(crate) struct ServedListener {
    tls: TlsInForce,
    pub certificate: CurrentCertificate,
    pub admission: Arc<Admission>,
}

impl ServedListener {
    pub fn new(config: &Config, listener: &Listener, tls: TlsInForce) -> Self {
        let certificate = CurrentCertificate::new(tls.certificate());
        Self { tls, certificate, admission: Admission::new(rules(config, listener)) }
    }

    /// The mode of TLS.
    pub fn tls_mode(&self) -> ListenerTls {
        self.tls.mode
    }

    /// False if the old certificate stays.
    pub fn reload(&mut self, config: &Config, listener: &Listener) -> bool {
        let is_read = self.tls.reload(listener);
        // TLS stays on offer, so a certificate stays too.
        let certificate = self.tls.certificate();
        if certificate.is_there() {
            self.certificate.set(certificate);
        }
        self.admission.replace(rules(config, listener));
        is_read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_port_gives_way_where_no_listener_is_configured() {
        assert!(Config::default().has_default_listeners());
        let named = Config::parse(std::path::Path::new("x"), "[[listener]]\naddress = '127.0.0.1:2525'\n").unwrap();
        assert!(!named.has_default_listeners() && named.http_listeners().count() == 0);
        let config = Config::default();
        // Not the last of its range, so that others come after it.
        let busy = bind_next(&config, ([127, 0, 0, 1], 18_025).into()).unwrap();
        let at = busy[0].local_addr().unwrap();
        let next = bind_next(&config, at).unwrap()[0].local_addr().unwrap();
        assert!(next.port() > at.port() && next.port() < at.port() + PORTS_TRIED, "{next} after {at}");
    }
}
