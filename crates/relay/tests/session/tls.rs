//! STARTTLS by policy, and passwords only over permitted channels.

use std::sync::Arc;

use posthaste_net::tls::{TlsTrust, client_config, server_config_from};
use posthaste_net::{Certificate, Stream};
use posthaste_relay::session::{
    Channel, Loss, OutgoingSession, RecipientFate, RunEnd, SessionAuth, SessionOpenError, SessionSettings,
    SessionTimeouts, SessionTls, TlsPolicy,
};
use posthaste_smtp::client::ClientError;
use posthaste_smtp::sasl::Credentials;
use rustls::pki_types::ServerName;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::{Act, At, List, Script, Seen, settings};

/// A server for `mx.example`, and the trust in it.
pub struct Site {
    certificate: Certificate,
    authorities: Arc<rustls::ClientConfig>,
}

impl Site {
    pub fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["mx.example".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let config = server_config_from(vec![made.cert.der().clone()], key.into()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let authorities = Arc::new(builder.unwrap().with_root_certificates(roots).with_no_client_auth());
        Self { certificate: Certificate::new(config), authorities }
    }

    fn settings(&self, policy: TlsPolicy) -> SessionSettings {
        let verified = policy == TlsPolicy::Verified;
        let config = if verified { Arc::clone(&self.authorities) } else { client_config(&TlsTrust::Anything).unwrap() };
        let name = ServerName::try_from("mx.example").unwrap();
        SessionSettings {
            tls: Some(SessionTls { policy, is_implicit: false, config, name, is_dane: false }),
            ..settings()
        }
    }

    /// With TLS from the first octet on.
    pub fn settings_from_the_first_octet(&self) -> SessionSettings {
        let mut settings = self.settings(TlsPolicy::Verified);
        settings.tls.as_mut().unwrap().is_implicit = true;
        settings
    }

    /// The script with TLS from the first octet on.
    pub fn serve_encrypted(&self, script: Script) -> (Stream, JoinHandle<Seen>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let certificate = self.certificate.clone();
        let serving = async move {
            let (stream, _) = certificate.accept(Stream::Unix(theirs)).await.unwrap();
            script.over(stream).await
        };
        (Stream::Unix(ours), tokio::spawn(serving))
    }

    /// The script in the clear up to STARTTLS, and again after it.
    fn serve(&self, script: Script) -> (Stream, JoinHandle<Seen>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let certificate = self.certificate.clone();
        let serving = async move {
            let mut stream = Stream::Unix(theirs);
            let mut seen = Seen::default();
            if script.talk(&mut stream, &mut seen, true).await.is_some()
                && let Ok((mut stream, _)) = certificate.accept(stream).await
            {
                seen.lines.push("TLS".into());
                script.talk(&mut stream, &mut seen, false).await;
            }
            seen
        };
        (Stream::Unix(ours), tokio::spawn(serving))
    }

    /// Opens a session, sends two messages and QUIT. Returns its protection or the error, and the commands that the
    /// server received.
    async fn send(
        &self,
        script: Script,
        settings: &SessionSettings,
    ) -> (Result<Channel, SessionOpenError>, Vec<String>) {
        let (stream, server) = self.serve(script);
        let channel = match OutgoingSession::open_over(stream, settings).await {
            Ok(mut session) => {
                let mut list = List::two();
                assert!(matches!(session.run(&mut list).await, RunEnd::NoMore));
                assert!(
                    list.fates
                        .iter()
                        .flat_map(|(_, fates)| fates)
                        .all(|fate| matches!(fate, RecipientFate::Delivered(_)))
                );
                let channel = session.channel();
                session.quit().await;
                Ok(channel)
            }
            Err(error) => Err(error),
        };
        (channel, server.await.unwrap().lines)
    }
}

fn offering(extensions: &[&'static str]) -> Script {
    Script { extensions: extensions.to_vec(), ..Script::default() }
}

fn refusing(at: At, said: &str) -> Script {
    Script { extensions: vec!["STARTTLS"], ..Script::odd(at, 0, Act::Say(said.to_owned())) }
}

#[tokio::test(start_paused = true)]
async fn encryption_is_used_where_it_is_offered() {
    let site = Site::new();
    for (policy, expected) in [
        (TlsPolicy::Opportunistic, Channel::Encrypted),
        (TlsPolicy::Required, Channel::Encrypted),
        (TlsPolicy::Verified, Channel::Verified),
    ] {
        let (channel, lines) = site.send(offering(&["STARTTLS", "PIPELINING"]), &site.settings(policy)).await;
        assert_eq!(channel.unwrap(), expected);
        assert_eq!(lines[..4], ["EHLO c.example", "STARTTLS", "TLS", "EHLO c.example"]);
    }
    // Off: not even where it is offered.
    let (channel, lines) = site.send(offering(&["STARTTLS"]), &settings()).await;
    assert!(channel.unwrap() == Channel::Clear && !lines.contains(&"STARTTLS".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn without_an_offer_the_policy_decides() {
    let site = Site::new();
    let (channel, _) = site.send(offering(&[]), &site.settings(TlsPolicy::Opportunistic)).await;
    assert_eq!(channel.unwrap(), Channel::Clear);
    let (channel, _) =
        site.send(refusing(At::StartTls, "454 not now\r\n"), &site.settings(TlsPolicy::Opportunistic)).await;
    assert_eq!(channel.unwrap(), Channel::Clear);
    for policy in [TlsPolicy::Required, TlsPolicy::Verified] {
        let (channel, lines) = site.send(offering(&[]), &site.settings(policy)).await;
        assert!(matches!(channel, Err(SessionOpenError::NoStartTls)), "{channel:?}");
        assert_eq!(lines, ["EHLO c.example"]);
        let (channel, _) = site.send(refusing(At::StartTls, "454 not now\r\n"), &site.settings(policy)).await;
        assert_eq!(channel.unwrap_err().reply().unwrap().code(), 454);
    }
}

#[tokio::test(start_paused = true)]
async fn clear_text_follows_a_failed_handshake_if_opportunistic() {
    let site = Site::new();
    let broken = || Script { extensions: vec!["STARTTLS"], ..Script::odd(At::Dot, 9, Act::Close) };
    for (policy, may_retry) in [(TlsPolicy::Opportunistic, true), (TlsPolicy::Required, false)] {
        // The server says 220 and closes, or says nothing more.
        for is_silent in [false, true] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let serving = async move {
                let mut stream = Stream::Unix(theirs);
                let mut seen = Seen::default();
                broken().talk(&mut stream, &mut seen, true).await.unwrap();
                if is_silent {
                    tokio::time::sleep(SessionTimeouts::default().connect * 2).await;
                }
            };
            let server = tokio::spawn(serving);
            let begun = Instant::now();
            let mut settings = site.settings(policy);
            let error = OutgoingSession::open_over(Stream::Unix(ours), &settings).await.unwrap_err();
            assert!(matches!(error, SessionOpenError::Handshake { .. }), "{error}");
            assert_eq!(error.may_retry_in_clear(), may_retry);
            assert_eq!(begun.elapsed() >= SessionTimeouts::default().connect, is_silent);
            server.await.unwrap();
            // The caller connects again.
            settings.tls = None;
            let (channel, _) = site.send(broken(), &settings).await;
            assert_eq!(channel.unwrap(), Channel::Clear);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_lost_by_tls_may_be_followed_by_clear_text() {
    let site = Site::new();
    let odd = |at: At, number: usize, act: Act| Script { extensions: vec!["STARTTLS"], ..Script::odd(at, number, act) };
    let say = |text: &str| Act::Say(text.to_owned());
    for (at, number, act, expected) in [
        (At::StartTls, 0, Act::Close, true),
        (At::StartTls, 0, Act::Silence, true),
        (At::StartTls, 0, say("421 4.3.0 bye\r\n"), true),
        (At::Ehlo, 1, Act::Close, true),
        (At::Ehlo, 1, Act::Silence, true),
        (At::Ehlo, 1, say("421 4.3.2 busy\r\n"), false),
        (At::Ehlo, 1, say("454 4.3.0 not now\r\n"), false),
        (At::Ehlo, 0, Act::Close, false),
    ] {
        for policy in [TlsPolicy::Opportunistic, TlsPolicy::Required] {
            let (channel, _) = site.send(odd(at, number, act.clone()), &site.settings(policy)).await;
            let may_retry = channel.expect_err(&format!("{at:?} {act:?} {policy:?}")).may_retry_in_clear();
            assert_eq!(may_retry, expected && policy == TlsPolicy::Opportunistic, "{at:?} {act:?} {policy:?}");
        }
        let mut with_password = site.settings(TlsPolicy::Opportunistic);
        with_password.auth =
            Some(SessionAuth { credentials: Credentials::new("ann", "secret"), needs: Channel::Encrypted });
        let (channel, _) = site.send(odd(at, number, act), &with_password).await;
        assert!(!channel.unwrap_err().may_retry_in_clear(), "{at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_without_the_name_or_the_trust_is_refused() {
    let site = Site::new();
    let other = Site::new();
    let mut wrong_name = site.settings(TlsPolicy::Verified);
    wrong_name.tls.as_mut().unwrap().name = ServerName::try_from("other.example").unwrap();
    for settings in [wrong_name, other.settings(TlsPolicy::Verified)] {
        let (channel, lines) = site.send(offering(&["STARTTLS"]), &settings).await;
        let error = channel.unwrap_err();
        assert!(matches!(error, SessionOpenError::Handshake { may_retry_in_clear: false, .. }), "{error}");
        assert!(!lines.iter().any(|line| line.starts_with("MAIL")), "{lines:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn octets_behind_the_reply_to_starttls_end_the_session() {
    let site = Site::new();
    let script = refusing(At::StartTls, "220 go\r\n250 mx\r\n");
    let (channel, _) = site.send(script, &site.settings(TlsPolicy::Opportunistic)).await;
    let error = channel.unwrap_err();
    assert!(matches!(error, SessionOpenError::Lost(Loss::Protocol(ClientError::TlsInjection))), "{error}");
}

#[tokio::test(start_paused = true)]
async fn encryption_can_begin_with_the_first_octet() {
    let site = Site::new();
    let settings = site.settings_from_the_first_octet();
    let (stream, server) = site.serve_encrypted(Script::default());
    let mut session = OutgoingSession::open_over(stream, &settings).await.unwrap();
    assert_eq!(session.channel(), Channel::Verified);
    let mut list = List::two();
    assert!(matches!(session.run(&mut list).await, RunEnd::NoMore));
    session.quit().await;
    assert_eq!(server.await.unwrap().kept.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_password_goes_only_where_it_may() {
    let site = Site::new();
    let offer = || offering(&["STARTTLS", "AUTH PLAIN", "PIPELINING"]);
    let with_auth = |mut settings: SessionSettings, needs: Channel| {
        settings.auth = Some(SessionAuth { credentials: Credentials::new("ann", "secret"), needs });
        settings
    };
    let is_said = |lines: &[String]| lines.iter().any(|line| line.starts_with("AUTH"));
    let cases = [
        (settings(), Channel::Clear),
        (site.settings(TlsPolicy::Opportunistic), Channel::Encrypted),
        (site.settings(TlsPolicy::Verified), Channel::Verified),
    ];
    for (settings, is) in cases {
        for needs in [Channel::Clear, Channel::Encrypted, Channel::Verified] {
            let (channel, lines) = site.send(offer(), &with_auth(settings.clone(), needs)).await;
            assert_eq!(is_said(&lines), is >= needs, "{is:?}, {needs:?}");
            match channel {
                Ok(channel) => assert!(channel == is && is >= needs),
                Err(error) => {
                    assert!(matches!(error, SessionOpenError::Unprotected(channel) if channel == is && is < needs))
                }
            }
        }
    }
    let needy = with_auth(site.settings(TlsPolicy::Opportunistic), Channel::Clear);
    // With a password a failed handshake is not followed by clear text.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let serving = async move {
        let script = offering(&["STARTTLS"]);
        assert!(script.talk(&mut Stream::Unix(theirs), &mut Seen::default(), true).await.is_some());
    };
    let server = tokio::spawn(serving);
    let error = OutgoingSession::open_over(Stream::Unix(ours), &needy).await.unwrap_err();
    assert!(matches!(error, SessionOpenError::Handshake { may_retry_in_clear: false, .. }), "{error}");
    server.await.unwrap();
    let (channel, _) = site.send(offering(&["STARTTLS", "AUTH X-OWN"]), &needy).await;
    assert!(matches!(channel, Err(SessionOpenError::NoMechanism)), "{channel:?}");
    let wrong = Script { odd: vec![(At::Auth, 0, Act::Say("535 5.7.8 no\r\n".into()))], ..offer() };
    let (channel, _) = site.send(wrong, &needy).await;
    assert_eq!(channel.unwrap_err().reply().unwrap().code(), 535);
}
