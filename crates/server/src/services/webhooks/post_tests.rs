//! HTTPS: a server whose certificate is not trusted hears nothing, neither events nor signature.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::Poster;
use posthaste_config::Webhook;

/// An authority, with its certificate in a file.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
}

impl Authority {
    fn new(dir: &tempfile::TempDir, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let file = dir.path().join(name);
        let encoded = BASE64.encode(params.self_signed(&key).unwrap().der());
        let pem = format!("-----BEGIN CERTIFICATE-----\n{encoded}\n-----END CERTIFICATE-----\n");
        std::fs::write(&file, pem).unwrap();
        Self { issuer: Issuer::new(params, key), file }
    }

    /// A server of this name, which ends in the year `until`.
    fn server(&self, name: &str, until: i32) -> ServerConfig {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2019, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        builder.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key.into()).unwrap()
    }
}

/// An HTTPS server that says 200 to everything. What comes after each handshake, or that it failed, is told.
fn https(config: ServerConfig) -> (SocketAddr, Receiver<Result<String, String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let ((tell, told), config) = (channel(), Arc::new(config));
    let tell = Mutex::new(tell);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let heard = serve(stream, config.clone()).map_err(|error| error.to_string());
            if tell.lock().unwrap().send(heard).is_err() {
                return;
            }
        }
    });
    (address, told)
}

/// Reads a request: its first line, its signature and its body, a line each.
fn serve(stream: TcpStream, config: Arc<ServerConfig>) -> std::io::Result<String> {
    let tls = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut reader = BufReader::new(StreamOwned::new(tls, stream));
    let (mut first, mut line, mut length, mut signature) = (String::new(), String::new(), 0, String::new());
    reader.read_line(&mut first)?;
    while reader.read_line(&mut line)? > 0 && line != "\r\n" {
        let (key, value) = line.trim_end().split_once(": ").unwrap_or_default();
        match &*key.to_ascii_lowercase() {
            "content-length" => length = value.parse().unwrap(),
            "x-posthaste-signature" => value.clone_into(&mut signature),
            _ => {}
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
    Ok(format!("{}\n{signature}\n{}", first.trim_end(), String::from_utf8(body).unwrap()))
}

/// The poster's result for a server, and the request that the server has heard.
fn post(
    dir: &tempfile::TempDir,
    config: ServerConfig,
    ca_file: PathBuf,
) -> (Result<(), String>, Result<String, String>) {
    let (address, told) = https(config);
    let secret_file = dir.path().join("secret");
    std::fs::write(&secret_file, "a secret of the tests\n").unwrap();
    let poster = Poster::new(&Webhook {
        name: "crm".to_owned(),
        url: format!("https://{address}/events"),
        events: Vec::new(),
        batch: 1,
        timeout_secs: 60,
        secret_file: Some(secret_file),
        ca_file,
    });
    let said = poster.unwrap().post(b"[{}]");
    (said, told.recv().unwrap())
}

#[test]
fn a_server_of_a_trusted_authority_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(&dir, "ours");
    let (said, heard) = post(&dir, authority.server("127.0.0.1", 2999), authority.file.clone());
    assert_eq!(said, Ok(()));
    let heard = heard.unwrap();
    let lines: Vec<&str> = heard.lines().collect();
    assert_eq!((lines[0], lines[2]), ("POST /events HTTP/1.1", "[{}]"));
    assert!(lines[1].starts_with("sha256=") && lines[1].len() == 71, "{heard}");
}

#[test]
fn a_server_whose_certificate_is_not_trusted_hears_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new(&dir, "ours"), Authority::new(&dir, "theirs"));
    for (what, config) in [
        ("another authority", theirs.server("127.0.0.1", 2999)),
        ("another name", ours.server("hooks.example", 2999)),
        ("expired", ours.server("127.0.0.1", 2020)),
    ] {
        let (said, heard) = post(&dir, config, ours.file.clone());
        let error = said.expect_err(what);
        assert!(error.contains("certificate"), "{what}: {error}");
        assert!(heard.is_err(), "{what}: {heard:?}");
    }
}

#[test]
fn a_server_without_tls_hears_nothing_either() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(&dir, "ours");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut first = [0; 1];
        stream.read_exact(&mut first).unwrap();
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        tell.send(first[0]).unwrap();
    });
    let poster = Poster::new(&Webhook {
        name: "crm".to_owned(),
        url: format!("https://{address}/"),
        events: Vec::new(),
        batch: 1,
        timeout_secs: 60,
        secret_file: None,
        ca_file: authority.file,
    });
    assert!(poster.unwrap().post(b"[{}]").is_err());
    // The type of a handshake's record (RFC 8446 section 5.1), not the P of POST.
    assert_eq!(told.recv().unwrap(), 22);
}
