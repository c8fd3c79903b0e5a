//! A host that exists and does not answer: a client that connects to it waits until its timeout.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::suite::SideError;

/// An address where connections are neither accepted nor refused, until this is dropped.
#[derive(Debug)]
pub struct Silent {
    _listener: TcpListener,
    /// Connections that fill the listen queue, so that the kernel drops further requests.
    _waiting: Vec<TcpStream>,
}

const FILL_MAX: usize = 64;
const ANSWER_MAX: Duration = Duration::from_millis(300);

impl Silent {
    /// Occupies an address of this machine.
    ///
    /// # Errors
    /// When the address cannot be bound, or connections succeed all the same.
    pub fn start(address: SocketAddr) -> Result<Self, SideError> {
        let failed = |error: std::io::Error| SideError::Failed(format!("a silent host at {address}: {error}"));
        let listener = TcpListener::bind(address).map_err(failed)?;
        rustix::net::listen(&listener, 0).map_err(|error| failed(error.into()))?;
        let mut waiting = Vec::new();
        while waiting.len() < FILL_MAX {
            match TcpStream::connect_timeout(&address, ANSWER_MAX) {
                Ok(stream) => waiting.push(stream),
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                    return Ok(Self { _listener: listener, _waiting: waiting });
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(SideError::Failed(format!("{address} still answers after {FILL_MAX} connections")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_host_neither_accepts_nor_refuses() {
        let port = posthaste_loadgen::process::free_address().unwrap().port();
        let address = SocketAddr::from(([127, 0, 0, 66], port));
        let silent = Silent::start(address).unwrap();
        let connected = TcpStream::connect_timeout(&address, Duration::from_millis(200));
        assert_eq!(connected.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        drop(silent);
        let refused = TcpStream::connect_timeout(&address, Duration::from_secs(5));
        assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    }
}
