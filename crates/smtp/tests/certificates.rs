//! Clients with certificates, and a handler's events of handshakes.
#![cfg(feature = "tls")]

use std::sync::Arc;
use std::time::Duration;

use posthaste_smtp::driver::{
    Client, ClientBuilder, ConnectError, Handler, IncomingBody, RunningServer, Server, Session, SmtpSessionEnd,
};
use posthaste_smtp::server::Config;
use posthaste_smtp::{Address, Envelope, MailFrom, MessageOutcome, RcptTo, Reply};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Far longer than any step takes unless it hangs.
const LONG: Duration = Duration::from_secs(60);

/// Reports its events, and refuses mallory.
struct Noting(mpsc::UnboundedSender<String>);

impl Noting {
    fn note(&self, text: impl Into<String>) {
        // The test may end before its last session.
        let _ = self.0.send(text.into());
    }
}

impl Handler for Noting {
    type State = ();
    type Transaction = ();

    async fn connect(&self, _: &mut Session) -> Result<(), Reply> {
        self.note("connect");
        Ok(())
    }
    async fn tls_started(&self, session: &mut Session) -> Result<(), Reply> {
        let tls = session.tls.as_ref().expect("it has begun");
        assert!(session.helo.is_none() && tls.version == "TLSv1_3" && tls.server_name.as_deref() == Some("localhost"));
        let names = tls.client.as_ref().map_or(String::new(), |client| client.dns_names.join(" "));
        self.note(format!("tls with {names}"));
        if names == "mallory.example" { Err(Reply::new(421, "4.7.0", "not you")) } else { Ok(()) }
    }
    fn tls_failed(&self, session: &Session, error: &std::io::Error) {
        assert!(session.tls.is_none(), "{error}");
        self.note("tls failed");
    }
    async fn hello(&self, session: &mut Session) -> Result<(), Reply> {
        self.note(if session.tls.is_some() { "hello over tls" } else { "hello" });
        Ok(())
    }
    async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
        Ok(())
    }
    async fn message(&self, session: &mut Session, _: (), _: Envelope, _: &mut IncomingBody<'_>) -> MessageOutcome {
        let client = session.tls.as_ref().and_then(|tls| tls.client.as_ref()).expect("it was shown");
        MessageOutcome::accepted(described(&client.chain))
    }
    fn ended(&self, _: Session, end: SmtpSessionEnd) {
        self.note(format!("{end:?}"));
    }
}

/// Each ends with a signature.
fn described(chain: &[Vec<u8>]) -> String {
    chain.iter().map(|der| format!("{} octets with {:x?}", der.len(), &der[der.len() - 16..])).collect()
}

struct Fixture {
    server: RunningServer,
    told: mpsc::UnboundedReceiver<String>,
    implicit: bool,
}

impl Fixture {
    async fn start(tls: Arc<ServerConfig>, implicit: bool) -> Self {
        let (tell, told) = mpsc::unbounded_channel();
        let config = Config { starttls: true, ..Config::new("mx.example.org") };
        let builder = Server::builder().config(config).tls(tls).implicit_tls(implicit).listen("127.0.0.1:0");
        Fixture { server: builder.start(Noting(tell)).await.unwrap(), told, implicit }
    }

    async fn connect(&self, trust: Arc<ClientConfig>) -> Result<Client, ConnectError> {
        let (builder, name) = (Client::builder("c.example"), "localhost".try_into().unwrap());
        let encrypted = if self.implicit { ClientBuilder::implicit_tls } else { ClientBuilder::starttls };
        timeout(LONG, encrypted(builder, trust, name).connect(self.server.local_addrs()[0])).await.expect("in time")
    }

    /// Expects these events next, in this order.
    async fn told(&mut self, expected: &[&str]) {
        for expected in expected {
            assert_eq!(timeout(LONG, self.told.recv()).await.expect("in time").unwrap(), *expected);
        }
    }
}

/// A server's configuration that asks clients for certificates of an authority, and a client's with one for `name`.
fn with_client_certificate(name: &str) -> (Arc<ServerConfig>, Arc<ClientConfig>, Vec<u8>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let server = made.cert.der().clone();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let client = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let roots = |der: &CertificateDer<'static>| {
        let mut store = rustls::RootCertStore::empty();
        store.add(der.clone()).unwrap();
        store
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots(authority_certificate.der())),
        Arc::clone(&provider),
    );
    let verifier = verifier.allow_unauthenticated().build().unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_client_cert_verifier(verifier);
    let server_key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let server_config = builder.with_single_cert(vec![server.clone()], server_key.into()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots(&server));
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let client_config = builder.with_client_auth_cert(vec![client.der().clone()], key.into()).unwrap();
    (Arc::new(server_config), Arc::new(client_config), client.der().to_vec())
}

#[tokio::test]
async fn a_client_certificate_is_an_identity_and_may_be_refused() {
    for implicit in [false, true] {
        let (server, trust, shown) = with_client_certificate("relay.example");
        let mut fixture = Fixture::start(server, implicit).await;
        let before = if implicit { &["connect"][..] } else { &["connect", "hello"] };
        let mut relay = fixture.connect(trust).await.unwrap();
        let address = "a@example.org".parse::<Address>().unwrap();
        let (mail, rcpts) = (MailFrom::new(address.clone()), vec![RcptTo::new(address)]);
        let reply = relay.send(mail, rcpts, vec!["x\r\n".into()]).await.unwrap().recipients.remove(0).reply;
        assert_eq!(reply.to_string(), format!("250 2.0.0 {}", described(&[shown])));
        relay.quit().await.unwrap();
        fixture.told(&[before, &["tls with relay.example", "hello over tls", "Quit"]].concat()).await;

        // From another authority: no session with implicit TLS.
        let (_, stranger, _) = with_client_certificate("relay.example");
        let mut stranger = (*stranger).clone();
        stranger.dangerous().set_certificate_verifier(Arc::new(Anyone));
        fixture.connect(Arc::new(stranger)).await.unwrap_err();
        if implicit {
            fixture.told(&["tls failed"]).await
        } else {
            fixture.told(&["connect", "hello", "tls failed", "Tls"]).await
        }

        // From the same authority, and refused by the handler.
        let (server, trust, _) = with_client_certificate("mallory.example");
        let mut fixture = Fixture::start(server, implicit).await;
        let error = fixture.connect(trust).await.unwrap_err().to_string();
        assert!(error.contains("421 4.7.0 not you"), "{error}");
        fixture.told(&[before, &["tls with mallory.example", "Closed"]].concat()).await;
    }
}

/// Accepts every server's certificate.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
