//! TLS with the connection and by STARTTLS, AUTH inside it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use posthaste_loadgen::load::{Auth, AuthMechanism, Outcome, Plan, Server, TlsTrust, client_config};
use posthaste_loadgen::values::{Address, TlsStart};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::support::{agreeable, answer_lines, errors, go, plan, scripted, server};

struct Identity {
    config: Arc<ServerConfig>,
    pem: String,
}

/// A certificate for `localhost`, signed by itself.
fn identity() -> Identity {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a server's configuration");
    Identity { config: Arc::new(config), pem: made.cert.pem() }
}

fn encrypted(config: &Arc<ServerConfig>, stream: TcpStream) -> impl Read + Write + use<> {
    StreamOwned::new(ServerConnection::new(Arc::clone(config)).expect("a session"), stream)
}

/// Answers in TLS from the start, and wants user `u` with password `p` if it is asked to authenticate anybody.
fn smtps(config: Arc<ServerConfig>) -> SocketAddr {
    scripted(move |stream| answer_lines(encrypted(&config, stream), "220 mx\r\n", with_auth()))
}

fn with_auth() -> impl Fn(&str) -> String {
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let plain = format!("AUTH PLAIN {}", encode("\0u\0p"));
    let (user, password) = (encode("u"), encode("p"));
    move |said: &str| match said {
        said if said.starts_with("EHLO") => "250-mx\r\n250-PIPELINING\r\n250 AUTH PLAIN LOGIN\r\n".into(),
        said if said == plain || said == password => "235 2.7.0 welcome\r\n".into(),
        "AUTH LOGIN" => "334 VXNlcm5hbWU6\r\n".into(),
        said if said == user => "334 UGFzc3dvcmQ6\r\n".into(),
        said if said.starts_with("AUTH ") => "535 5.7.8 no\r\n".into(),
        said => agreeable(said),
    }
}

/// Says hello in the clear, then encrypts. The commands heard in the clear are noted.
fn starttls(config: Arc<ServerConfig>, heard: Arc<Mutex<Vec<String>>>) -> SocketAddr {
    scripted(move |mut stream| {
        stream.write_all(b"220 mx\r\n").unwrap();
        loop {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                let mut octet = [0];
                if !stream.read(&mut octet).is_ok_and(|octets| octets == 1) {
                    return;
                }
                line.push(octet[0]);
            }
            let said = String::from_utf8(line).unwrap().trim_end().to_owned();
            heard.lock().unwrap().push(said.clone());
            if said == "STARTTLS" {
                break;
            }
            stream.write_all(b"250-mx\r\n250 STARTTLS\r\n").unwrap();
        }
        stream.write_all(b"220 go\r\n").unwrap();
        answer_lines(encrypted(&config, stream), "", with_auth());
    })
}

fn send(address: SocketAddr, tls: TlsStart, trust: &TlsTrust, name: &str, change: impl Fn(&mut Plan)) -> Outcome {
    let tls_name = Some(name.to_owned().try_into().unwrap());
    let server = Server { tls, tls_name, ..server(Address::Tcp(address)) };
    let mut plan = plan(server, 10);
    plan.tls = Some(client_config(trust).unwrap());
    plan.connections = 2;
    plan.per_connection = posthaste_loadgen::values::PerConnection::Count(5.try_into().unwrap());
    change(&mut plan);
    go(plan)
}

#[test]
fn mail_goes_through_tls_of_both_kinds() {
    let identity = identity();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let outcome = send(smtps(identity.config.clone()), TlsStart::AtOnce, &TlsTrust::Anything, "other", |_| {});
    assert_eq!((outcome.total.acked, errors(&outcome)), (10, vec![]));
    let address = starttls(identity.config.clone(), heard.clone());
    let outcome = send(address, TlsStart::StartTls, &TlsTrust::Anything, "localhost", |plan| {
        plan.pool = Arc::new(posthaste_loadgen::load::Pool::generated(&"300k".parse().unwrap(), &[], "a@b", 1));
    });
    assert_eq!((outcome.total.acked, errors(&outcome)), (10, vec![]));
    assert!(heard.lock().unwrap().iter().all(|said| said == "STARTTLS" || said.starts_with("EHLO")));
}

#[test]
fn a_certificate_is_checked_against_its_authority_and_name() {
    let identity = identity();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    std::fs::write(&path, &identity.pem).unwrap();
    let trust = TlsTrust::Authorities(path.clone());
    let check =
        |identity: &Identity, name| send(smtps(identity.config.clone()), TlsStart::AtOnce, &trust, name, |_| {});
    assert_eq!(check(&identity, "localhost").total.acked, 10);
    assert_eq!(errors(&check(&identity, "mx.example.org")), [("tls certificate", 10)]);
    assert_eq!(errors(&check(&self::identity(), "localhost")), [("tls certificate", 10)]);
    std::fs::write(&path, "no certificate").unwrap();
    assert!(client_config(&TlsTrust::Authorities(path)).is_err());
}

#[test]
fn clients_authenticate_and_are_refused() {
    let identity = identity();
    let check = |mechanism, password: &str| {
        send(smtps(identity.config.clone()), TlsStart::AtOnce, &TlsTrust::Anything, "localhost", |plan| {
            plan.auth = Some(Auth { mechanism, user: "u".into(), password: password.into() });
        })
    };
    assert_eq!(check(AuthMechanism::Plain, "p").total.acked, 10);
    assert_eq!(check(AuthMechanism::Login, "p").total.acked, 10);
    assert_eq!(errors(&check(AuthMechanism::Plain, "x")), [("auth 535", 10)]);
}

#[test]
fn what_cannot_be_encrypted_is_not_sent() {
    let plain = scripted(|stream| answer_lines(stream, "220 mx\r\n", agreeable));
    let outcome = send(plain, TlsStart::StartTls, &TlsTrust::Anything, "localhost", |_| {});
    assert_eq!(errors(&outcome), [("starttls not offered", 10)]);
    // Plain text where TLS is expected.
    let outcome = send(plain, TlsStart::AtOnce, &TlsTrust::Anything, "localhost", |_| {});
    assert_eq!(errors(&outcome), [("tls handshake", 10)]);
}

#[test]
fn octets_smuggled_after_the_starttls_reply_end_the_session() {
    let smuggler = scripted(|stream| {
        answer_lines(stream, "220 mx\r\n", |said| match said {
            "STARTTLS" => "220 go\r\n250 injected\r\n".into(),
            said if said.starts_with("EHLO") => "250-mx\r\n250 STARTTLS\r\n".into(),
            said => agreeable(said),
        });
    });
    let outcome = send(smuggler, TlsStart::StartTls, &TlsTrust::Anything, "localhost", |_| {});
    assert_eq!(errors(&outcome), [("starttls garbage", 10)]);
}
