//! HTTP with one request for each connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::Shared;

/// An answer of the authority.
pub(crate) struct Reply {
    pub status: u16,
    pub location: Option<String>,
    pub content_type: &'static str,
    pub body: String,
}

impl Reply {
    pub fn json(status: u16, body: &Value) -> Self {
        Self { status, location: None, content_type: "application/json", body: body.to_string() }
    }

    pub fn problem(kind: &str, detail: &str) -> Self {
        let kind = format!("urn:ietf:params:acme:error:{kind}");
        Self::json(403, &json!({ "type": kind, "detail": detail, "status": 403 }))
    }
}

/// A signed request.
pub(crate) struct Signed {
    /// `jwk` or `kid`, and other fields.
    pub header: Value,
    /// Null for POST-as-GET.
    pub payload: Value,
}

impl Signed {
    fn read(body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        let part = |name: &str| URL_SAFE_NO_PAD.decode(body[name].as_str()?).ok();
        let payload = part("payload")?;
        let payload = if payload.is_empty() { Value::Null } else { serde_json::from_slice(&payload).ok()? };
        Some(Self { header: serde_json::from_slice(&part("protected")?).ok()?, payload })
    }
}

pub(crate) fn serve(stream: TcpStream, config: Arc<ServerConfig>, shared: &Arc<Shared>) -> io::Result<()> {
    let session = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(session, stream);
    let mut octets = Vec::new();
    let head_end = loop {
        if let Some(at) = octets.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        more(&mut stream, &mut octets)?;
    };
    let head = String::from_utf8_lossy(&octets[..head_end]).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    while octets.len() < head_end + length.unwrap_or(0) {
        more(&mut stream, &mut octets)?;
    }
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let reply = match (method, Signed::read(&octets[head_end..])) {
        ("POST", Some(signed)) => shared.post(path, &signed),
        ("POST", None) => Reply::problem("malformed", "this is not a JWS"),
        _ => shared.get(path),
    };
    let location = reply.location.map_or(String::new(), |location| format!("Location: {location}\r\n"));
    let nonce = shared.state().next_number();
    write!(
        stream,
        "HTTP/1.1 {} X\r\nReplay-Nonce: nonce-{nonce}\r\n{location}Content-Type: {}\r\nContent-Length: {}\r\n\
         Retry-After: 0\r\nConnection: close\r\n\r\n{}",
        reply.status,
        reply.content_type,
        reply.body.len(),
        if method == "HEAD" { "" } else { &reply.body }
    )?;
    stream.conn.send_close_notify();
    stream.flush()
}

fn more(stream: &mut impl Read, octets: &mut Vec<u8>) -> io::Result<()> {
    let mut some = [0; 4096];
    match stream.read(&mut some)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        read => {
            octets.extend_from_slice(&some[..read]);
            Ok(())
        }
    }
}
