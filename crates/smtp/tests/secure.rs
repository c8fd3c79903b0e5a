//! TLS and AUTH between the two tokio drivers, and against hostile peers.
#![cfg(feature = "tls")]

use std::sync::Arc;
use std::time::Duration;

use posthaste_smtp::client::{self, ClientError, Step};
use posthaste_smtp::driver::{
    Certificate, Client, ClientBuilder, ConnectError, Handler, IncomingBody, ListenerSettings, RunningServer, Server,
    ServerBuilder, ServerSetupError, Session, SmtpSessionEnd,
};
use posthaste_smtp::sasl::Credentials;
use posthaste_smtp::sasl::scram::{ScramKeys, ScramProof};
use posthaste_smtp::server::Config;
use posthaste_smtp::tls::{TlsTrust, client_config, server_config, server_config_from};
use posthaste_smtp::{Address, Envelope, MailFrom, MessageOutcome, RcptTo, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::nobody::Nobody;

/// Far longer than any step takes unless it hangs.
const LONG: Duration = Duration::from_secs(60);

/// Accepts mail from clients authenticated as ann, and reports messages and ends of sessions.
struct Strict {
    messages: mpsc::UnboundedSender<(Session, Vec<u8>)>,
    ends: mpsc::UnboundedSender<(Session, SmtpSessionEnd)>,
    /// Verdicts on AUTH.
    told: mpsc::UnboundedSender<String>,
    needs_identity: bool,
}

impl Handler for Strict {
    type State = ();
    type Transaction = ();

    fn auth_ended(&self, session: &mut Session, mechanism: &'static str, refusal: Option<&Reply>) {
        let code = refusal.map_or(235, Reply::code);
        assert_eq!(session.identity.is_some(), code == 235);
        let _ = self.told.send(format!("{mechanism} {code}"));
    }
    async fn authenticate(
        &self,
        session: &mut Session,
        mechanism: &'static str,
        credentials: Credentials,
    ) -> Result<String, Reply> {
        assert!(session.helo.is_some());
        assert!(["PLAIN", "LOGIN"].contains(&mechanism));
        match (credentials.user.as_str(), credentials.password.as_str()) {
            ("ann", "secret") => Ok(credentials.acts_for.unwrap_or_else(|| "ann@example.org".into())),
            ("ann", "go away") => Err(Reply::new(421, "4.7.0", "Too many guesses")),
            _ => Err(Reply::new(535, "5.7.8", "Authentication credentials invalid")),
        }
    }
    async fn scram_keys(&self, session: &mut Session, user: &str) -> Result<Option<ScramKeys>, Reply> {
        assert!(session.helo.is_some());
        Ok((user == "ann").then(|| ScramKeys::new("secret", 0).unwrap()))
    }
    /// Accepts a wrong proof, which must not help.
    async fn scram_proof(&self, _: &mut Session, proof: &ScramProof) -> Result<String, Reply> {
        Ok(format!("{}@example.org", proof.user()))
    }
    async fn mail(&self, session: &mut Session, _: &mut (), _: &MailFrom) -> Result<(), Reply> {
        match session.identity {
            None if self.needs_identity => Err(Reply::new(530, "5.7.0", "Authentication required")),
            _ => Ok(()),
        }
    }
    async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
        Ok(())
    }
    async fn message(&self, session: &mut Session, _: (), _: Envelope, body: &mut IncomingBody<'_>) -> MessageOutcome {
        let mut whole = Vec::new();
        while let Some(chunk) = body.chunk().await {
            match chunk {
                Ok(bytes) => whole.extend_from_slice(&bytes),
                Err(error) => return error.reply().into(),
            }
        }
        self.messages.send((session.clone(), whole)).unwrap();
        MessageOutcome::accepted("kept")
    }
    fn ended(&self, session: Session, end: SmtpSessionEnd) {
        // The test may end before its last session.
        let _ = self.ends.send((session, end));
    }
}

struct Fixture {
    server: RunningServer,
    messages: mpsc::UnboundedReceiver<(Session, Vec<u8>)>,
    ends: mpsc::UnboundedReceiver<(Session, SmtpSessionEnd)>,
    told: mpsc::UnboundedReceiver<String>,
    /// The certificate that a client must trust.
    certificate: Vec<u8>,
}

fn identity() -> (Arc<rustls::ServerConfig>, Vec<u8>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    (server_config_from(vec![certificate.clone()], key.into()).unwrap(), certificate.to_vec())
}

fn offering(mechanisms: &[&str]) -> Config {
    let auth_mechanisms = mechanisms.iter().map(|name| name.to_string()).collect();
    Config { starttls: true, auth_mechanisms, ..Config::new("mx.example.org") }
}

async fn start(config: Config, implicit_tls: bool) -> Fixture {
    let needs_identity = !config.auth_mechanisms.is_empty();
    let (tls, certificate) = identity();
    let has_tls = config.starttls || implicit_tls;
    let mut builder = Server::builder().config(config).implicit_tls(implicit_tls).listen("127.0.0.1:0");
    if has_tls {
        builder = builder.tls(tls);
    }
    let (messages, received) = mpsc::unbounded_channel();
    let (ends, ended) = mpsc::unbounded_channel();
    let (told, told_of) = mpsc::unbounded_channel();
    let server = builder.start(Strict { messages, ends, told, needs_identity }).await.unwrap();
    Fixture { server, messages: received, ends: ended, told: told_of, certificate }
}

impl Fixture {
    fn client(&self) -> ClientBuilder {
        Client::builder("client.example").starttls(self.trust(), "localhost".try_into().unwrap())
    }

    fn trust(&self) -> Arc<rustls::ClientConfig> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("roots.pem");
        std::fs::write(&path, pem("CERTIFICATE", &self.certificate)).unwrap();
        client_config(&TlsTrust::Authorities(path)).unwrap()
    }

    async fn connect(&self, builder: ClientBuilder) -> Result<Client, ConnectError> {
        timeout(LONG, builder.connect(self.server.local_addrs()[0])).await.expect("in time")
    }

    async fn talk(&self) -> Talk {
        Talk(TcpStream::connect(self.server.local_addrs()[0]).await.unwrap())
    }

    async fn end(&mut self) -> SmtpSessionEnd {
        timeout(LONG, self.ends.recv()).await.expect("in time").unwrap().1
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

fn ann() -> Credentials {
    Credentials::new("ann", "secret")
}

fn envelope() -> (MailFrom, Vec<RcptTo>) {
    let address = |text: &str| text.parse::<Address>().unwrap();
    (MailFrom::new(address("ann@example.org")), vec![RcptTo::new(address("bob@example.org"))])
}

/// A dialogue in octets, encrypted or not.
struct Talk<S = TcpStream>(S);

impl<S: AsyncReadExt + AsyncWriteExt + Unpin> Talk<S> {
    async fn say(&mut self, text: &str) -> &mut Self {
        self.0.write_all(text.as_bytes()).await.unwrap();
        self.0.flush().await.unwrap();
        self
    }

    /// Reads to the end of a last line that begins with `code`.
    async fn hear(&mut self, code: &str) -> String {
        let mut heard = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&heard);
            if text.ends_with("\r\n") && text.lines().last().is_some_and(|line| line.starts_with(&format!("{code} "))) {
                return text.into_owned();
            }
            let read = timeout(LONG, self.0.read_buf(&mut heard)).await;
            let read = read.unwrap_or_else(|_| panic!("no {code}: {:?}", String::from_utf8_lossy(&heard)));
            assert_ne!(read.unwrap(), 0, "closed instead of {code}: {:?}", String::from_utf8_lossy(&heard));
        }
    }

    async fn hear_close(&mut self) {
        let mut rest = Vec::new();
        timeout(LONG, self.0.read_to_end(&mut rest)).await.expect("closed in time").expect("no reset");
        assert_eq!(String::from_utf8_lossy(&rest), "");
    }
}

async fn shake_hands(fixture: &Fixture, talk: Talk) -> Talk<tokio_rustls::client::TlsStream<TcpStream>> {
    let connector = tokio_rustls::TlsConnector::from(fixture.trust());
    Talk(timeout(LONG, connector.connect("localhost".try_into().unwrap(), talk.0)).await.expect("in time").unwrap())
}

#[tokio::test]
async fn mail_goes_over_starttls_from_those_who_authenticate() {
    for mechanisms in [&["PLAIN", "LOGIN"][..], &["LOGIN"]] {
        let mut fixture = start(offering(mechanisms), false).await;
        let mut client = fixture.connect(fixture.client().credentials(ann())).await.unwrap();
        assert_eq!(client.extensions().auth, mechanisms);
        assert!(!client.extensions().starttls, "it is not offered twice");
        for octets in [0, 100, 100_000, 3_000_000] {
            let body = format!("Subject: x\r\n\r\n{}", ".a line\r\n".repeat(octets / 9));
            let (mail, rcpts) = envelope();
            let outcome = timeout(LONG, client.send(mail, rcpts, vec![body.clone().into()])).await.unwrap().unwrap();
            assert!(outcome.recipients[0].is_delivered(), "{outcome:?}");
            let (session, got) = fixture.messages.recv().await.unwrap();
            assert!(got == body.as_bytes(), "{} octets of {}", got.len(), body.len());
            assert_eq!(session.with_keyword(false), "ESMTPSA");
            let identity = session.identity.expect("she has shown it");
            assert_eq!(identity.mechanism, mechanisms[0]);
            assert_eq!((&*identity.authentication_id, &*identity.authorization_id), ("ann", "ann@example.org"));
            let tls = session.tls.unwrap();
            assert_eq!((tls.version.as_str(), tls.server_name.as_deref()), ("TLSv1_3", Some("localhost")));
            assert!(tls.cipher.starts_with("TLS13_") && tls.client.is_none(), "{tls:?}");
        }
        client.quit().await.unwrap();
        assert_eq!(fixture.end().await, SmtpSessionEnd::Quit);
        assert!(fixture.server.shutdown(LONG).await);
    }
}

#[tokio::test]
async fn scram_shows_the_password_without_sending_it() {
    let mut fixture = start(offering(&["PLAIN", "SCRAM-SHA-256"]), false).await;
    let mut client = fixture.connect(fixture.client().credentials(ann())).await.unwrap();
    let (mail, rcpts) = envelope();
    assert!(client.send(mail, rcpts, vec!["x\r\n".into()]).await.unwrap().recipients[0].is_delivered());
    let identity = fixture.messages.recv().await.unwrap().0.identity.expect("she has shown it");
    assert_eq!(identity.mechanism, "SCRAM-SHA-256");
    assert_eq!((&*identity.authentication_id, &*identity.authorization_id), ("ann", "ann@example.org"));
    assert_eq!(fixture.told.recv().await.unwrap(), "SCRAM-SHA-256 235");
    client.quit().await.unwrap();
    let for_bob = Credentials { acts_for: Some("bob".into()), ..ann() };
    for (credentials, code) in
        [(Credentials::new("ann", "guess"), 535), (Credentials::new("nobody", "secret"), 535), (for_bob, 501)]
    {
        match fixture.connect(fixture.client().credentials(credentials)).await.unwrap_err() {
            ConnectError::Protocol(ClientError::Auth(reply)) => assert_eq!(reply.code(), code),
            other => panic!("{other:?}"),
        }
        assert_eq!(fixture.told.recv().await.unwrap(), format!("SCRAM-SHA-256 {code}"), "the handler is told");
    }
    // Steps in the wrong order, and two exchanges on one connection.
    let mut talk = shake_hands(&fixture, {
        let mut talk = fixture.talk().await;
        talk.hear("220").await;
        talk.say("EHLO c.example\r\n").await.hear("250").await;
        talk.say("STARTTLS\r\n").await.hear("220").await;
        talk
    })
    .await;
    talk.say("EHLO c.example\r\n").await.hear("250").await;
    talk.say("AUTH SCRAM-SHA-256\r\n").await.hear("334").await;
    talk.say("\r\n").await.hear("501").await;
    // n,,n=ann,r=abc
    talk.say("AUTH SCRAM-SHA-256 biwsbj1hbm4scj1hYmM=\r\n").await.hear("334").await;
    talk.say("*\r\n").await.hear("501").await;
    talk.say("AUTH SCRAM-SHA-256 biwsbj1hbm4scj1hYmM=\r\n").await.hear("334").await;
    talk.say("\r\n").await.hear("535").await;
    talk.say("AUTH PLAIN AGFubgBzZWNyZXQ=\r\n").await.hear("235").await;
}

#[test]
fn a_server_that_does_not_know_the_password_is_not_believed() {
    let after = |replies: &[&str]| {
        let mut machine = client::Machine::new(client::Config::new("c.example")).unwrap();
        let mut input = bytes::BytesMut::from("220 x\r\n250-x\r\n250 AUTH PLAIN SCRAM-SHA-256\r\n");
        assert!(matches!(machine.step(&mut input), Ok(client::Event::Ready)));
        machine.take_output();
        assert!(machine.authenticate(&ann()));
        let said = machine.take_output().concat();
        assert!(said.starts_with(b"AUTH SCRAM-SHA-256 "), "{said:?}");
        let mut input = bytes::BytesMut::from(replies.concat().as_bytes());
        machine.step(&mut input).unwrap_err()
    };
    for reply in ["235 2.7.0 welcome\r\n", "334 ?\r\n", "334 cj14\r\n", "334 \r\n"] {
        let error = after(&[reply]);
        assert!(matches!(error, ClientError::NotShown(_)), "{reply}: {error:?}");
    }
    assert!(matches!(after(&["535 5.7.8 no\r\n"]), ClientError::Auth(reply) if reply.code() == 535));
}

/// A client that has read an EHLO reply with these lines.
fn greeted(lines: &[&str]) -> client::Machine {
    let mut machine = client::Machine::new(client::Config::new("c.example")).unwrap();
    let lines: String = lines.iter().map(|line| format!("250-{line}\r\n")).collect();
    let mut input = bytes::BytesMut::from(format!("220 x\r\n250-x\r\n{lines}250 HELP\r\n").as_str());
    assert!(matches!(machine.step(&mut input), Ok(client::Event::Ready)));
    machine.take_output();
    machine
}

#[test]
fn auth_with_an_equals_sign_offers_mechanisms_too() {
    for (lines, expected) in [
        (&["AUTH=LOGIN PLAIN"][..], &["LOGIN", "PLAIN"][..]),
        (&["AUTH=LOGIN"], &["LOGIN"]),
        (&["auth=plain"], &["PLAIN"]),
        (&["AUTH= LOGIN"], &["LOGIN"]),
        (&["AUTH PLAIN LOGIN", "AUTH=PLAIN LOGIN"], &["PLAIN", "LOGIN"]),
        (&["AUTH=LOGIN", "AUTH CRAM-MD5 PLAIN login"], &["LOGIN", "CRAM-MD5", "PLAIN"]),
        (&["AUTH", "AUTH="], &[]),
        (&["AUTHX=LOGIN", "XAUTH LOGIN"], &[]),
    ] {
        assert_eq!(greeted(lines).extensions().auth, expected, "{lines:?}");
    }
    let many: Vec<String> = (0..40).map(|number| format!("AUTH=M{number} N{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(greeted(&many).extensions().auth.len(), 32);
    let (said, is_ready) = auth_dialogue("AUTH=LOGIN", &["334 VXNlcm5hbWU6", "334 UGFzc3dvcmQ6", "235 2.7.0 ok"]);
    assert!(is_ready && said[0] == "AUTH LOGIN", "{said:?}");
}

/// The client's commands in AUTH, given the mechanisms in the EHLO reply and the server's replies; true if the session
/// continues.
fn auth_dialogue(offered: &str, replies: &[&str]) -> (Vec<String>, bool) {
    let mut machine = greeted(&[offered]);
    assert!(machine.authenticate(&ann()));
    let mut said = Vec::new();
    for reply in replies {
        let line = String::from_utf8(machine.take_output().concat()).unwrap();
        said.push(line.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
        match machine.step(&mut bytes::BytesMut::from(format!("{reply}\r\n").as_str())) {
            Ok(client::Event::NeedInput) => {}
            Ok(client::Event::Ready) => return (said, true),
            Err(ClientError::Auth(_)) => return (said, false),
            other => panic!("{other:?}"),
        }
    }
    panic!("{said:?}: nobody has decided");
}

#[test]
fn a_refused_mechanism_is_followed_by_the_next() {
    let login = ["334 VXNlcm5hbWU6", "334 UGFzc3dvcmQ6", "235 2.7.0 ok"];
    for refusal in [
        "504 5.5.4 Unrecognized authentication type",
        "504 no",
        "535 5.7.8 Authentication mechanism is not enabled",
        "535 5.7.4 no",
        "500 5.5.1 what?",
        "534 5.7.9 this Mechanism is too weak",
    ] {
        let (said, is_ready) = auth_dialogue("AUTH PLAIN LOGIN", &[&[refusal][..], &login].concat());
        assert!(is_ready && said[0].starts_with("AUTH PLAIN") && said[1] == "AUTH LOGIN", "{refusal}: {said:?}");
    }
    let (said, is_ready) = auth_dialogue("AUTH SCRAM-SHA-256 PLAIN LOGIN", &[&["504 no"; 2][..], &login].concat());
    assert!(is_ready && said.len() == 5, "{said:?}");
    assert!(said[0].starts_with("AUTH SCRAM-SHA-256") && said[1].starts_with("AUTH PLAIN") && said[2] == "AUTH LOGIN");
}

#[test]
fn a_refused_password_is_not_said_twice() {
    for refusal in [
        "535 5.7.8 no",
        "535 5.7.8 Username and Password not accepted",
        "454 4.7.0 Temporary authentication failure",
        "534 5.7.9 Application-specific password required",
        "421 4.7.0 mechanism",
        // Its parameters are wrong.
        "501 5.5.2 Not what the mechanism asks for",
    ] {
        let (said, is_ready) = auth_dialogue("AUTH PLAIN LOGIN", &[refusal]);
        assert!(!is_ready && said.len() == 1, "{refusal}: {said:?}");
    }
    // Nor is there another mechanism.
    assert!(!auth_dialogue("AUTH LOGIN PLAIN", &["504 no", "504 no"]).1);
    assert!(!auth_dialogue("AUTH PLAIN", &["504 no"]).1);
}

#[tokio::test]
async fn tls_can_begin_at_once() {
    let mut fixture = start(Config { starttls: false, ..offering(&["PLAIN"]) }, true).await;
    let builder = Client::builder("c.example").implicit_tls(fixture.trust(), "localhost".try_into().unwrap());
    let mut client = fixture.connect(builder.credentials(ann())).await.unwrap();
    assert!(!client.extensions().starttls);
    let (mail, rcpts) = envelope();
    assert!(client.send(mail, rcpts, vec!["x\r\n".into()]).await.unwrap().recipients[0].is_delivered());
    assert_eq!(fixture.messages.recv().await.unwrap().0.with_keyword(true), "UTF8SMTPSA");
    client.quit().await.unwrap();
    assert_eq!(fixture.end().await, SmtpSessionEnd::Quit);
    // A client in the clear gets no session at all.
    let mut talk = fixture.talk().await;
    talk.say("EHLO client.example\r\n").await;
    let mut rest = Vec::new();
    let _ = timeout(LONG, talk.0.read_to_end(&mut rest)).await.expect("closed in time");
    assert!(!rest.starts_with(b"220"), "{rest:?}");
    assert!(fixture.server.shutdown(LONG).await);
    assert!(fixture.ends.recv().await.is_none());
}

#[tokio::test]
async fn a_session_starts_over_behind_starttls() {
    let mut fixture = start(Config { auth_needs_tls: false, ..offering(&["PLAIN"]) }, false).await;
    let mut talk = fixture.talk().await;
    talk.hear("220").await;
    talk.say("EHLO client.example\r\n").await.hear("250").await;
    talk.say("AUTH PLAIN AGFubgBzZWNyZXQ=\r\n").await.hear("235").await;
    talk.say("STARTTLS\r\n").await.hear("220").await;
    let mut talk = shake_hands(&fixture, talk).await;
    talk.say("MAIL FROM:<a@example.org>\r\n").await.hear("503").await;
    let hello = talk.say("EHLO other.example\r\n").await.hear("250").await;
    assert!(!hello.contains("STARTTLS") && hello.contains("AUTH PLAIN"), "{hello}");
    talk.say("STARTTLS\r\n").await.hear("503").await;
    // An identity from before STARTTLS is forgotten.
    talk.say("MAIL FROM:<a@example.org>\r\n").await.hear("530").await;
    talk.say("AUTH PLAIN\r\n").await.hear("334").await;
    talk.say("AGFubgBzZWNyZXQ=\r\n").await.hear("235").await;
    talk.say("MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n").await.hear("354").await;
    talk.say("x\r\n.\r\nQUIT\r\n").await.hear("221").await;
    talk.hear_close().await;
    let (session, _) = fixture.messages.recv().await.unwrap();
    assert_eq!(session.helo.as_deref(), Some("other.example"));
    assert_eq!(fixture.end().await, SmtpSessionEnd::Quit);
}

#[tokio::test]
async fn what_comes_with_starttls_in_the_clear_is_never_executed() {
    let mut fixture = start(offering(&[]), false).await;
    let mut talk = fixture.talk().await;
    talk.hear("220").await;
    talk.say("EHLO client.example\r\n").await.hear("250").await;
    talk.say("STARTTLS\r\nMAIL FROM:<forged@example.org>\r\n").await.hear("554").await;
    talk.hear_close().await;
    assert_eq!(fixture.end().await, SmtpSessionEnd::Closed);
    // A moment later it is part of a handshake, and an invalid one.
    let mut talk = fixture.talk().await;
    talk.hear("220").await;
    talk.say("EHLO client.example\r\n").await.hear("250").await;
    talk.say("STARTTLS\r\n").await.hear("220").await;
    talk.say("MAIL FROM:<forged@example.org>\r\n").await;
    let mut rest = Vec::new();
    let _ = timeout(LONG, talk.0.read_to_end(&mut rest)).await.expect("closed in time");
    assert!(!rest.starts_with(b"250"), "{rest:?}");
    assert_eq!(fixture.end().await, SmtpSessionEnd::Tls);
    assert!(fixture.server.shutdown(LONG).await);
}

#[tokio::test]
async fn a_server_that_requires_tls_takes_no_mail_without() {
    let mut fixture = start(Config { requires_tls: true, ..offering(&[]) }, false).await;
    let mut talk = fixture.talk().await;
    talk.hear("220").await;
    talk.say("MAIL FROM:<a@example.org>\r\n").await.hear("503").await;
    talk.say("EHLO client.example\r\n").await.hear("250").await;
    let mail = "MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nBDAT 14 LAST\r\nMAIL FROM:<x\r\nNOOP\r\n";
    let refused = talk.say(mail).await.hear("250").await;
    let codes: Vec<&str> = refused.lines().map(|line| &line[..3]).collect();
    assert_eq!(codes, ["530", "503", "503", "250"], "the chunk is not a command: {refused}");
    talk.say("VRFY ann\r\n").await.hear("530").await;
    talk.say("STARTTLS\r\n").await.hear("220").await;
    let mut talk = shake_hands(&fixture, talk).await;
    talk.say("EHLO client.example\r\n").await.hear("250").await;
    talk.say("MAIL FROM:<a@example.org>\r\n").await.hear("250").await;
    talk.say("QUIT\r\n").await.hear("221").await;
    assert_eq!(fixture.end().await, SmtpSessionEnd::Quit);
}

#[tokio::test]
async fn a_listener_has_its_own_certificate_and_takes_a_new_one() {
    let (mut first, (other, other_der)) = (start(offering(&[]), false).await, identity());
    let settings = |config: Config, certificate: Option<&Arc<rustls::ServerConfig>>| {
        let certificate = certificate.map_or_else(Default::default, |one| Certificate::new(one.clone()));
        vec![ListenerSettings { certificate, ..config.into() }]
    };
    let mut before = first.talk().await;
    before.hear("220").await;
    before.say("EHLO client.example\r\n").await.hear("250").await;
    first.server.reconfigure_each(settings(offering(&[]), Some(&other))).unwrap();
    assert!(first.connect(first.client()).await.is_err(), "the old one is not shown any more");
    let own = std::mem::replace(&mut first.certificate, other_der);
    first.connect(first.client()).await.unwrap().quit().await.unwrap();
    // A session that was already open has the newest one, too.
    before.say("STARTTLS\r\n").await.hear("220").await;
    shake_hands(&first, before).await;
    // STARTTLS is no longer offered, but was.
    let mut before = first.talk().await;
    before.hear("220").await;
    before.say("EHLO client.example\r\n").await.hear("250").await;
    first.server.reconfigure_each(settings(Config::new("mx.example.org"), None)).unwrap();
    assert!(matches!(first.connect(first.client()).await, Err(ConnectError::NoStartTls)));
    before.say("STARTTLS\r\n").await.hear("220").await;
    // The server's certificate, for a listener without its own.
    first.certificate = own;
    shake_hands(&first, before).await;
}

#[tokio::test]
async fn passwords_do_not_go_in_the_clear() {
    let mut fixture = start(offering(&["PLAIN"]), false).await;
    let mut talk = fixture.talk().await;
    talk.hear("220").await;
    let hello = talk.say("EHLO client.example\r\n").await.hear("250").await;
    assert!(!hello.contains("AUTH"), "{hello}");
    talk.say("AUTH PLAIN AGFubgBzZWNyZXQ=\r\n").await.hear("538").await;
    talk.say("MAIL FROM:<a@example.org>\r\n").await.hear("530").await;
    drop(talk);
    assert_eq!(fixture.end().await, SmtpSessionEnd::Disconnected);
    let in_the_clear = || Client::builder("client.example").credentials(ann());
    assert!(matches!(fixture.connect(in_the_clear()).await, Err(ConnectError::PlaintextAuth)));
    // The client would, if told; this server does not offer it.
    let told_to = in_the_clear().allow_plaintext_auth(true);
    assert!(matches!(fixture.connect(told_to).await, Err(ConnectError::NoMechanism)));
    let open = start(Config { auth_needs_tls: false, ..offering(&["PLAIN"]) }, false).await;
    open.connect(in_the_clear().allow_plaintext_auth(true)).await.unwrap();
}

#[tokio::test]
async fn refusals_of_tls_and_auth_are_told_apart() {
    let mut fixture = start(offering(&["PLAIN", "LOGIN"]), false).await;
    for (password, code) in [("wrong", 535), ("go away", 421)] {
        let refused = fixture.connect(fixture.client().credentials(Credentials::new("ann", password))).await;
        let Err(ConnectError::Protocol(ClientError::Auth(reply))) = refused else { panic!("{refused:?}") };
        assert_eq!(reply.code(), code);
        fixture.end().await;
    }
    // A certificate for another name, and one from an unknown authority.
    let other = Client::builder("c.example").starttls(fixture.trust(), "other.example".try_into().unwrap());
    let untrusted = start(offering(&[]), false).await;
    for refused in [fixture.connect(other).await, untrusted.connect(fixture.client()).await] {
        let Err(ConnectError::Io { step: Step::Handshake, error }) = refused else { panic!("{refused:?}") };
        assert!(error.to_string().contains("certificate"), "{error}");
    }
    assert_eq!(fixture.end().await, SmtpSessionEnd::Tls);
    let plain = start(Config::new("mx.example.org"), false).await;
    assert!(matches!(plain.connect(plain.client()).await, Err(ConnectError::NoStartTls)));
    assert!(matches!(plain.connect(plain.client().credentials(ann())).await, Err(ConnectError::NoStartTls)));
}

#[tokio::test]
async fn answers_to_challenges_may_be_bad_or_taken_back() {
    let fixture = start(Config { auth_needs_tls: false, ..offering(&["PLAIN", "LOGIN"]) }, false).await;
    let mut talk = fixture.talk().await;
    talk.hear("220").await;
    talk.say("EHLO client.example\r\n").await.hear("250").await;
    for mechanism in ["PLAIN", "LOGIN"] {
        for (answer, code) in [("*", "501"), ("!!", "501"), ("QQ", "501"), (&"A".repeat(12_287), "500"), ("", "501")] {
            talk.say(&format!("AUTH {mechanism}\r\n")).await.hear("334").await;
            talk.say(&format!("{answer}\r\n")).await.hear(code).await;
        }
    }
    assert!(talk.say("AUTH LOGIN\r\n").await.hear("334").await.contains("VXNlcm5hbWU6"));
    assert!(talk.say("YW5u\r\n").await.hear("334").await.contains("UGFzc3dvcmQ6"));
    talk.say("c2VjcmV0\r\n").await.hear("235").await;
    talk.say("AUTH LOGIN\r\n").await.hear("503").await;
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_handshake() {
    let mut fixture = start(offering(&[]), false).await;
    let mut talk = fixture.talk().await;
    talk.hear("220").await;
    talk.say("EHLO client.example\r\n").await.hear("250").await;
    talk.say("STARTTLS\r\n").await.hear("220").await;
    let shutdown = timeout(LONG, fixture.server.shutdown(Duration::from_secs(3600)));
    assert!(shutdown.await.expect("in time"));
    assert_eq!(fixture.ends.recv().await.unwrap().1, SmtpSessionEnd::ShutDown);
}

#[tokio::test]
async fn a_handshake_takes_no_longer_than_a_command() {
    let mut config = offering(&[]);
    config.limits.timeouts.command = Duration::from_secs(5);
    let mut fixture = start(config, false).await;
    let mut talk = fixture.talk().await;
    talk.hear("220").await;
    talk.say("EHLO client.example\r\nSTARTTLS\r\n").await.hear("220").await;
    assert_eq!(fixture.end().await, SmtpSessionEnd::TimedOut);
}

#[tokio::test]
async fn settings_that_cannot_be_kept_to_are_refused() {
    let refused = async |builder: ServerBuilder| {
        let error = builder.listen("127.0.0.1:0").start(Nobody).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        error.get_ref().and_then(|inner| inner.downcast_ref::<ServerSetupError>()).cloned().unwrap()
    };
    let auth = |mechanisms: &[&str]| Config { starttls: false, ..offering(mechanisms) };
    assert_eq!(refused(Server::builder().config(offering(&[]))).await, ServerSetupError::NoCertificate);
    assert_eq!(refused(Server::builder().implicit_tls(true)).await, ServerSetupError::NoCertificate);
    assert_eq!(refused(Server::builder().config(auth(&["PLAIN"]))).await, ServerSetupError::AuthWithoutTls);
    // A certificate that is never used does not help.
    assert_eq!(
        refused(Server::builder().config(auth(&["PLAIN"])).tls(identity().0)).await,
        ServerSetupError::AuthWithoutTls
    );
    let in_vain = Config { requires_tls: true, starttls: false, ..offering(&[]) };
    assert_eq!(refused(Server::builder().config(in_vain).tls(identity().0)).await, ServerSetupError::NoTls);
    // Nor is an unused one accepted silently: a program that calls `tls` wants it.
    assert_eq!(refused(Server::builder().tls(identity().0)).await, ServerSetupError::CertificateUnused);
    let own = ListenerSettings { certificate: Certificate::new(identity().0), ..offering(&[]).into() };
    assert_eq!(refused(Server::builder().tls(identity().0).settings(own)).await, ServerSetupError::CertificateUnused);
    let unknown = auth(&["PLAIN", "CRAM-MD5"]);
    assert_eq!(refused(Server::builder().config(unknown)).await, ServerSetupError::Mechanism("CRAM-MD5".into()));
    let server = Server::builder().listen("127.0.0.1:0").start(Nobody).await.unwrap();
    assert_eq!(server.reconfigure(offering(&[])), Err(ServerSetupError::NoCertificate));
    assert_eq!(server.reconfigure(auth(&[])), Ok(()));
}

#[test]
fn certificates_come_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(&chain, pem("CERTIFICATE", made.cert.der())).unwrap();
    std::fs::write(&key, pem("PRIVATE KEY", &made.signing_key.serialize_der())).unwrap();
    server_config(&chain, &key).unwrap();
    std::fs::write(&key, pem("PRIVATE KEY", &other.signing_key.serialize_der())).unwrap();
    let error = server_config(&chain, &key).unwrap_err().to_string();
    assert!(error.contains("key.pem does not belong to the certificate in"), "{error}");
    std::fs::write(&key, "").unwrap();
    let error = server_config(&chain, &key).unwrap_err().to_string();
    assert!(error.ends_with("key.pem: no private key in it"), "{error}");
    std::fs::write(&chain, "").unwrap();
    let error = server_config(&chain, &key).unwrap_err().to_string();
    assert!(error.contains("chain.pem") && error.contains("no certificate"), "{error}");
    assert!(server_config(&folder.path().join("none"), &key).unwrap_err().to_string().contains("none"));
}

/// The name is checked before the connection, and the error of a lost session names the step.
#[tokio::test]
async fn a_client_has_errors_and_no_panics() {
    let fixture = start(Config::new("mx.example.org"), false).await;
    for name in ["", "a b", "a\r\nRSET"] {
        let refused = fixture.connect(Client::builder(name)).await;
        assert!(matches!(refused, Err(ConnectError::Protocol(ClientError::BadName(_)))), "{refused:?}");
    }
    let config = client::Config::new("c.example");
    let mut client = fixture.connect(Client::builder("").config(config)).await.unwrap();
    let (mail, rcpts) = envelope();
    let nobody = client.send(mail.clone(), Vec::new(), vec!["x\r\n".into()]).await;
    assert_eq!(nobody.unwrap_err().to_string(), "no recipients");
    assert!(fixture.server.shutdown(LONG).await);
    let outcome = client.send(mail.clone(), rcpts.clone(), vec!["x\r\n".into()]).await.unwrap();
    assert_eq!(outcome.recipients[0].reply.code(), 421, "{outcome:?}");
    assert!(!client.is_open());
    let closed = client.send(mail, rcpts, vec!["x\r\n".into()]).await;
    assert_eq!(closed.unwrap_err().to_string(), "the session is over");
    client.quit().await.unwrap();
}
