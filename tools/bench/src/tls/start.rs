//! The client's side of STARTTLS, and a certificate for peers.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use posthaste_smtp::tls::{TlsTrust, client_config as trusting};
use rustls::client::Resumption;
use rustls::{ClientConfig, ClientConnection};

use crate::peers::program;
use crate::suite::SideError;

/// Takes any certificate, and resumes no session: each handshake is a full one.
pub(crate) fn client_config() -> Result<Arc<ClientConfig>, SideError> {
    let mut config = (*trusting(&TlsTrust::Anything).map_err(SideError::failed("TLS"))?).clone();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// A key of P-256 and its certificate, made in `dir`: one PEM file, the key first.
pub(super) fn own_pair(dir: &Path) -> Result<PathBuf, SideError> {
    let [key, certificate, both] = ["key.pem", "certificate.pem", "both.pem"].map(|name| dir.join(name));
    let mut command = Command::new(program("openssl", "openssl")?);
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]);
    command.args(["-subj", "/CN=localhost", "-keyout"]).arg(&key).arg("-out").arg(&certificate).stdin(Stdio::null());
    let made = command.output().map_err(SideError::failed("openssl"))?;
    if !made.status.success() {
        return Err(SideError::Failed(format!("openssl: {}", String::from_utf8_lossy(&made.stderr).trim())));
    }
    let read = |file: &Path| std::fs::read_to_string(file).map_err(SideError::failed("a certificate"));
    std::fs::write(&both, read(&key)? + &read(&certificate)?).map_err(SideError::failed("a certificate"))?;
    Ok(both)
}

/// An SMTP session after EHLO, perhaps encrypted.
pub(crate) struct Session {
    stream: BufReader<TcpStream>,
    tls: Option<Box<ClientConnection>>,
}

const PATIENCE: Duration = Duration::from_secs(30);

impl Session {
    /// Connects and says EHLO; with `tls` a second time, after STARTTLS.
    pub fn open(address: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        // Ten thousand of these are open, and a reply is short.
        let mut session = Self { stream: BufReader::with_capacity(REPLY_OCTETS, stream), tls: None };
        session.read_reply()?;
        session.say("EHLO bench.invalid")?;
        if let Some(config) = tls {
            session.say("STARTTLS")?;
            let name = "localhost".try_into().expect("a name");
            let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
            while tls.is_handshaking() {
                tls.complete_io(session.stream.get_mut())?;
            }
            session.tls = Some(Box::new(tls));
            session.say("EHLO bench.invalid")?;
        }
        Ok(session)
    }

    /// Sends a line and reads the reply, which must be positive.
    pub fn say(&mut self, line: &str) -> io::Result<()> {
        let line = format!("{line}\r\n");
        let stream = self.stream.get_mut();
        match &mut self.tls {
            Some(tls) => rustls::Stream::new(&mut **tls, stream).write_all(line.as_bytes())?,
            None => stream.write_all(line.as_bytes())?,
        }
        self.read_reply()
    }

    fn read_reply(&mut self) -> io::Result<()> {
        match &mut self.tls {
            // It speaks in turn: nothing follows a reply.
            Some(tls) => read_reply(&mut BufReader::new(rustls::Stream::new(&mut **tls, self.stream.get_mut()))),
            None => read_reply(&mut self.stream),
        }
    }
}

const REPLY_OCTETS: usize = 1024;

/// Reads a whole reply, which must be positive.
fn read_reply(stream: &mut BufReader<impl Read>) -> io::Result<()> {
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !line.starts_with('2') {
            return Err(io::Error::other(line.trim_end().to_owned()));
        }
        if line.as_bytes().get(3) == Some(&b' ') {
            return Ok(());
        }
    }
}
