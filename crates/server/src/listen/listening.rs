//! Listeners: configured sockets with their settings, all as one service.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use posthaste_accounts::Logins;
use posthaste_directory::Directory;
use posthaste_smtp::Protocol;
use posthaste_smtp::driver::{
    Backlog, BoundServer, ByNetwork, IpNet, ListenerSettings, RunningServer, Server as SmtpServer, ServerBuilder,
};
use posthaste_smtp::server::Config as SmtpConfig;

use crate::config::certificate_lists::OwnCertificates;
use crate::config::certificates::TlsInForce;
use crate::config::dkim::DomainSigners;
use crate::config::engine_login::EngineLogin;
use crate::config::error::ServeError;
use crate::config::start_files::{RelayFiles, StartFiles, load_logins};
use crate::lifecycle::{Ending, OnFailure, Service, drain_listeners};
use crate::listen::bound::BoundListeners;
use crate::listen::rules::{connection_limits, rules, unix_access};
use crate::receive::handler::Receiver;
use crate::receive::logins::mechanisms;
use crate::receive::settings::Settings;
use posthaste_config::{Config, Listener, ListenerAuth, ListenerProtocol, ListenerTls, Network};

/// All mail listeners, which end together.
pub(crate) struct Listeners {
    receiver: Receiver,
    /// TLS of each, in their order.
    tls: Vec<TlsInForce>,
    logins: Arc<Logins>,
    signers: Arc<DomainSigners>,
    /// Until the drain.
    running: Option<RunningServer>,
}

/// Listening sockets, and the files read before.
#[derive(Debug)]
pub(crate) struct Bound {
    pub sockets: Sockets,
    /// The certificates of all listeners, in addition to configured ones.
    pub own: OwnCertificates,
    pub relay: RelayFiles,
    pub engine: EngineLogin,
    pub http: BoundListeners,
    /// Listeners of IMAP and POP3.
    pub reading: BoundListeners,
}

/// Listening sockets, with their certificates, logins and signing keys.
#[derive(Debug)]
pub(crate) struct Sockets {
    server: BoundServer,
    tls: Vec<TlsInForce>,
    pub logins: Arc<Logins>,
    pub signers: Arc<DomainSigners>,
}

/// Addresses for clients.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    /// The TCP addresses, with the chosen ports.
    pub tcp: Vec<SocketAddr>,
    /// The first one with SMTP.
    pub smtp: Option<SocketAddr>,
    /// Addresses of IMAP and POP3 listeners.
    pub reading: Vec<(ListenerProtocol, SocketAddr)>,
    /// Addresses of HTTP listeners; true: with TLS.
    pub http: Vec<(SocketAddr, bool)>,
    pub backlog: Backlog,
}

impl Listeners {
    /// Serves clients, including those that have connected since the sockets were bound.
    ///
    /// # Errors
    /// [`ServeError::Service`].
    pub fn start(
        Sockets { server, tls, logins, signers }: Sockets,
        receiver: Receiver,
    ) -> Result<(Self, Addresses), ServeError> {
        let running = server.start(receiver.clone());
        let running = running.map_err(|error| ServeError::Service { service: NAME, error })?;
        let addresses = Addresses {
            tcp: running.local_addrs().to_vec(),
            smtp: running.local_addr_for(Protocol::Smtp),
            reading: Vec::new(),
            http: Vec::new(),
            backlog: running.backlog(),
        };
        Ok((Self { receiver, tls, logins, signers, running: Some(running) }, addresses))
    }
}

impl Service for Listeners {
    fn name(&self) -> &'static str {
        NAME
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::Stop
    }

    /// Applies to new connections and recipients. Open sessions continue.
    fn reload(&mut self, config: &Config, directory: &Arc<Directory>) -> Vec<&'static str> {
        let mut kept = Vec::new();
        match load_logins(config, directory) {
            Ok(logins) => self.logins = logins,
            Err(error) => {
                let error = error.to_string();
                tracing::error!(error, "cannot read the logins; keeping the old ones");
                kept.push("logins");
            }
        }
        match DomainSigners::read(config) {
            Ok(signers) => {
                signers.unreadable().for_each(log_unreadable);
                self.signers = signers;
            }
            Err(error) => {
                let error = error.to_string();
                tracing::error!(error, "cannot read the DKIM keys; keeping the old ones");
                kept.push("DKIM keys");
            }
        }
        let settings_now = Settings::new(config, Arc::clone(directory), Arc::clone(&self.logins));
        self.receiver.replace(settings_now.signing(Arc::clone(&self.signers)));
        let Some(running) = &self.running else { return kept };
        running.set_limits(connection_limits(config));
        let mechanisms = mechanisms(&self.logins);
        let mut settings_of = Vec::new();
        for (listener, tls) in config.mail_listeners().zip(&mut self.tls) {
            if !tls.reload(listener) {
                kept.push("a certificate");
            }
            settings_of.push(settings(config, listener, tls, &mechanisms));
        }
        let put = running.reconfigure_each(settings_of);
        put.expect("AUTH is offered where it can be, and what has TLS has a certificate");
        kept
    }

    fn drain(&mut self, deadline: tokio::time::Instant) -> Ending<'_> {
        let listeners = self.running.take().map(RunningServer::into_listeners);
        drain_listeners(listeners, deadline, "open sessions were ended before their transactions")
    }

    /// Closes the sockets, unless a drain has ended all sessions.
    fn stop(mut self: Box<Self>, deadline: tokio::time::Instant) -> Ending<'static> {
        Box::pin(async move { self.drain(deadline).await })
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.running.as_mut().map_or(Poll::Pending, |running| running.poll_failed(cx))
    }
}

const NAME: &str = "listeners";

/// Reads the configured files, and listens. A killed predecessor keeps its sockets until the kernel has cleaned up, so
/// this waits a little.
///
/// # Errors
/// The first problem of [`StartFiles::read`], or [`ServeError::Listen`].
pub(crate) fn bind_when_free(config: &Config, directory: &Directory) -> Result<Bound, ServeError> {
    let StartFiles { tls, own, logins, signers, relay, engine } = StartFiles::read_or_first(config, directory)?;
    let mut of_http = Vec::new();
    let mut of_reading = Vec::new();
    let mut of_mail = Vec::new();
    for (listener, tls) in config.listeners.iter().zip(tls) {
        match listener.protocol {
            ListenerProtocol::Http => of_http.push(tls),
            ListenerProtocol::Imap | ListenerProtocol::Pop3 => of_reading.push(tls),
            ListenerProtocol::Smtp | ListenerProtocol::Lmtp => of_mail.push(tls),
        }
    }
    let tls = of_mail;
    signers.unreadable().for_each(log_unreadable);
    let deadline = Instant::now() + PREDECESSOR_PATIENCE;
    loop {
        match builder(config, &tls, &mechanisms(&logins)).bind() {
            Err(error) if error.error.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            bound => {
                let sockets = Sockets { server: bound?, tls, logins, signers };
                let http = BoundListeners::bind(config, config.http_listeners(), of_http, deadline)?;
                let reading = BoundListeners::bind(config, config.reading_listeners(), of_reading, deadline)?;
                return Ok(Bound { sockets, own, relay, engine, http, reading });
            }
        }
    }
}

fn log_unreadable(why: &str) {
    tracing::error!(why, "a DKIM key cannot be used: mail of its domain waits, unless dkim.unsigned is set");
}

fn builder(config: &Config, tls: &[TlsInForce], mechanisms: &[String]) -> ServerBuilder {
    let builder = SmtpServer::builder().limits(connection_limits(config));
    config.mail_listeners().zip(tls).fold(builder, |builder, (listener, tls)| {
        let builder = builder
            .settings(settings(config, listener, tls, mechanisms))
            .implicit_tls(tls.mode == ListenerTls::Implicit);
        match (&listener.socket.address, &listener.socket.unix) {
            (Some(address), _) => builder.listen(address.to_string()),
            (None, Some(path)) => builder.listen_unix_with(path, unix_access(config, listener)),
            (None, None) => panic!("an unchecked configuration: a listener that listens nowhere"),
        }
    })
}

/// A mail listener: its rules, and the session settings of each network. `mechanisms`: for AUTH, if offered.
fn settings(config: &Config, listener: &Listener, tls: &TlsInForce, mechanisms: &[String]) -> ListenerSettings {
    let each = || config.networks.iter().flat_map(Network::each);
    let has_tls = tls.mode != ListenerTls::Off;
    let smtp_config = |network: Option<IpNet>, own| {
        let smtp_config = with_auth(config.smtp_session(listener, own), listener, own, has_tls, mechanisms);
        with_dsn(smtp_config, config, listener, network, own)
    };
    // Networks that may relay have one of their own as well, as those that they are in have it otherwise.
    let around = |network: IpNet| {
        each().filter(|(other, _)| other.contains(&network)).max_by_key(|(other, _)| other.prefix_len())
    };
    let trusted = config.relay.networks.0.iter().map(|network| (*network, around(*network).map(|(_, own)| own)));
    let networks = each().map(|(network, own)| (network, Some(own))).chain(trusted);
    let configs = networks.map(|(network, own)| (network, smtp_config(Some(network), own))).collect();
    let configs = ByNetwork::new(smtp_config(None, None), configs);
    let starttls = matches!(tls.mode, ListenerTls::StartTls | ListenerTls::Required);
    let requires_tls = tls.mode == ListenerTls::Required;
    let configs = configs.map(|config| SmtpConfig { starttls, requires_tls, ..config });
    ListenerSettings { configs, rules: rules(config, listener), certificate: tls.certificate() }
}

/// Offers AUTH if the listener does. If a password could be read on the way, TLS is required first; without TLS, such
/// as after a failed reload of its certificate, there is no AUTH.
fn with_auth(
    mut config: SmtpConfig,
    listener: &Listener,
    network: Option<&Network>,
    has_tls: bool,
    mechanisms: &[String],
) -> SmtpConfig {
    config.auth_needs_tls = listener.auth_needs_tls();
    if listener.auth_mode(network) != ListenerAuth::Off && (has_tls || !config.auth_needs_tls) {
        config.auth_mechanisms = mechanisms.to_vec();
    }
    config
}

/// Offers DSN to clients that may relay, unless the policy decides: a success notice goes to any sender that the client
/// names. `own`: the policy of the smallest network around `network`.
fn with_dsn(
    mut smtp_config: SmtpConfig,
    config: &Config,
    listener: &Listener,
    network: Option<IpNet>,
    own: Option<&Network>,
) -> SmtpConfig {
    let policy = listener.policy.over(&config.policy);
    let policy = own.map_or_else(|| policy.clone(), |own| own.policy.over(&policy));
    let may_relay = own.and_then(|own| own.relay).or(listener.relay);
    (smtp_config.dsn, smtp_config.dsn_for_logins) = match policy.dsn.or(may_relay) {
        Some(says) => (says, false),
        None => {
            let is_within = |trusted: &IpNet| network.is_some_and(|network| trusted.contains(&network));
            // Who has not logged in there sends nothing, and most clients say EHLO before they do.
            let needs_login = listener.auth_mode(own) == ListenerAuth::Required;
            (needs_login || config.relay.networks.0.iter().any(is_within), true)
        }
    };
    smtp_config
}

/// Time for which a start waits for a predecessor's sockets and spool.
pub(crate) const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use posthaste_smtp::section::PolicyOverrides;
    use posthaste_units::keys::Keys;

    use super::*;
    use posthaste_config::LimitOverrides;

    /// A value other than the default.
    fn value_of(key: &str) -> &'static str {
        match key {
            "bare_newlines" => "\"fix\"",
            "long_lines" => "\"reject\"",
            "nul_octets" => "\"accept\"",
            "forbidden_commands" => "[]",
            "dsn" | "lenient_commands" => "true",
            _ if key.ends_with("_bytes") => "4097",
            _ => "7",
        }
    }

    /// Debug text of all settings in force at the one listener. `directory` stays the same, as another prints its
    /// parts in another order.
    fn in_force(directory: &Arc<Directory>, table: &str, keys: &str) -> String {
        let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
        let text = match table {
            "listener" => format!("{listener}{keys}"),
            _ => format!("{listener}[[network]]\ncidr = \"192.0.2.1\"\n{keys}"),
        };
        let config = Config::parse(std::path::Path::new("test.toml"), &text).unwrap();
        let at = &config.listeners[0];
        format!(
            "{:?} {:?} {:?}",
            settings(&config, at, &TlsInForce::default(), &[]),
            Settings::new(&config, Arc::clone(directory), Arc::default()),
            connection_limits(&config)
        )
    }

    #[test]
    fn dsn_is_offered_to_relaying_clients_or_as_the_policy_says() {
        let check = |keys: &str, of_listener: &str, expected: [(&str, bool, bool); 4]| {
            let text = format!(
                "[[listener]]\naddress = '127.0.0.1:0'\n{of_listener}\n[relay]\nnetworks = ['10.0.0.0/8', '192.0.2.0/24']\n\
                 [[network]]\ncidr = ['10.1.0.0/16']\n[[network]]\ncidr = ['192.0.0.0/16']\nlimits.errors = 9\n{keys}"
            );
            let config = Config::parse(std::path::Path::new("test.toml"), &text).unwrap();
            let settings = settings(&config, &config.listeners[0], &TlsInForce::default(), &[]);
            for (ip, to_all, to_logins) in expected {
                let found = settings.configs.get(Some(ip.parse().unwrap()));
                assert_eq!((found.dsn, found.dsn_for_logins), (to_all, to_logins), "{ip} with {keys}{of_listener}");
                let errors = if ip.starts_with("192.") { 9 } else { config.limits.session.errors };
                assert_eq!(found.limits.errors, errors, "{ip}: what a network has is in force for its part, too");
            }
        };
        let [ten, part, net, stranger] = ["10.2.0.1", "10.1.0.1", "192.0.2.1", "198.51.100.1"];
        let usual = [(ten, true, true), (part, true, true), (net, true, true), (stranger, false, true)];
        check("", "", usual);
        check("relay = false", "", [usual[0], usual[1], (net, false, false), usual[3]]);
        check("policy.dsn = false", "", [usual[0], usual[1], (net, false, false), usual[3]]);
        check("", "relay = true", [ten, part, net, stranger].map(|ip| (ip, true, false)));
        check("", "relay = false", [ten, part, net, stranger].map(|ip| (ip, false, false)));
        check("", "policy.dsn = true", [ten, part, net, stranger].map(|ip| (ip, true, false)));
        check(
            "policy.dsn = true",
            "policy.dsn = false",
            [(ten, false, false), (part, false, false), (net, true, false), (stranger, false, false)],
        );
        check("[policy]\ndsn = false", "", [ten, part, net, stranger].map(|ip| (ip, false, false)));
        check("", "auth = 'required'\n[auth]\nfile = 'x'", [ten, part, net, stranger].map(|ip| (ip, true, true)));
    }

    #[test]
    fn limits_and_policies_of_listener_and_network_are_applied() {
        let directory = Arc::new(Config::default().directory());
        for table in ["listener", "network"] {
            let without = in_force(&directory, table, "");
            assert_eq!(in_force(&directory, table, ""), without, "only a key makes a difference");
            for (section, keys) in [("limits", LimitOverrides::keys()), ("policy", PolicyOverrides::keys())] {
                for key in keys {
                    let keys = format!("{section} = {{ {key} = {} }}\n", value_of(key));
                    let with = in_force(&directory, table, &keys);
                    assert_ne!(with, without, "{section}.{key} of a {table} is read and then forgotten");
                }
            }
        }
    }

    #[test]
    fn a_network_comes_before_a_listener_and_this_before_all() {
        // The example of the manual.
        let manual =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md")).unwrap();
        let text = manual.split("```toml\n").find(|block| block.contains("\n[[network]]\n")).unwrap();
        let text = text.split("```").next().unwrap();
        // The user of the tests need not have the group.
        let config = Config::parse(std::path::Path::new("x"), &text.replace("group = \"postfix\"\n", "")).unwrap();
        let message_bytes = |listener: usize, ip: &str| {
            let settings = settings(&config, &config.listeners[listener], &TlsInForce::default(), &[]);
            settings.configs.get(Some(ip.parse().unwrap())).limits.message_bytes
        };
        assert_eq!(message_bytes(0, "192.0.2.1"), 25 << 20);
        assert_eq!(message_bytes(0, "198.51.100.7"), 100 << 20);
        assert_eq!(message_bytes(1, "192.0.2.1"), 50 << 20);
        let limits = connection_limits(&config);
        assert_eq!((limits.connections, limits.networks[0].1.connections), (20_000, Some(2000)));
    }
}
