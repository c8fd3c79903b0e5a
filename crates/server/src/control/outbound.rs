//! `posthaste route`: the configured route of mail to another host, found without a running server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use posthaste_accounts::Logins;
use posthaste_control::{MailSender, NotSent, OutboundRoute, RouteFinder};
use posthaste_directory::DirectoryRefusal;
use posthaste_dns::Resolver;
use posthaste_intake::Mail;
use posthaste_relay::sender::{HostSettings, MtaSts, PreviewOf, RouteTls, Routing, opportunistic_tls};
use posthaste_relay::session::TlsPolicy;
use posthaste_smtp::driver::Peer;
use posthaste_smtp::sasl::Identity;
use posthaste_smtp::{ForwardPath, Protocol, Reply, ReversePath};
use tokio::runtime::Runtime;

use crate::config::error::ServeError;
use crate::config::start_files::load_logins;
use crate::receive::logins::{self, Session};
use crate::receive::maps::Exists;
use crate::receive::settings::Settings;
use crate::receive::tenants::Labels;
use posthaste_config::{Config, ListenerAuth, Loaded};

/// Finds routes for the mail of one sender.
#[derive(Debug)]
struct OutboundRoutes {
    settings: Settings,
    routing: Routing,
    resolver: Resolver,
    hosts: HostSettings,
    from: ReversePath,
    /// Possible sessions of the sender, with their names.
    sessions: Vec<(String, Session)>,
    runtime: Runtime,
}

/// Why no route can be found.
#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    /// A file of the configuration cannot be used.
    #[error(transparent)]
    Files(#[from] ServeError),
    /// The login does not exist.
    #[error("there is no login `{0}`")]
    NoLogin(String),
    /// No listener accepts this sender.
    #[error("no [[listener]] lets {0}")]
    NoListener(String),
}

/// Reads the routes with their passwords and certificates, and logins if one is named.
///
/// # Errors
/// See [`OutboundError`].
pub fn open_routes(loaded: &Loaded, sender: MailSender) -> Result<Box<dyn RouteFinder>, OutboundError> {
    Ok(Box::new(OutboundRoutes::open(loaded, sender)?))
}

impl OutboundRoutes {
    fn open(loaded: &Loaded, sender: MailSender) -> Result<Self, OutboundError> {
        let (config, directory) = (&loaded.config, &loaded.directory);
        let logins = match &sender.login {
            Some(_) => load_logins(config, directory).map_err(ServeError::from)?,
            None => Arc::default(),
        };
        let settings = Settings::new(config, directory.clone(), logins.clone());
        let dns = |error: &dyn std::fmt::Display| ServeError::Dns(error.to_string());
        let (policy, is_implicit) = (TlsPolicy::Opportunistic, false);
        let tls = config.relay.tls.then(opportunistic_tls).transpose().map_err(|error| dns(&error))?;
        let tls = tls.map(|config| RouteTls { policy, is_implicit, config, name: None });
        // A running server says why it has none.
        let mta_sts = MtaSts::open(&config.relay, None);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ServeError::from)?;
        let sessions = sessions(config, &settings, &logins, &sender)?;
        Ok(Self {
            settings,
            routing: config.relay.routing().map_err(ServeError::from)?,
            resolver: crate::config::resolver::resolver(config).map_err(|error| dns(&error))?,
            hosts: HostSettings { port: config.relay.port, tls, mta_sts: mta_sts.unwrap_or_default() },
            from: sender.from.unwrap_or(ReversePath::Null),
            sessions,
            runtime,
        })
    }

    /// Checks like [`Receiver`](crate::receive::handler::Receiver) at MAIL and RCPT. True if the next hop must be
    /// asked.
    fn check(&self, session: &Session, path: &ForwardPath) -> Result<bool, Reply> {
        let settings = &self.settings;
        if settings.lacks_login(session) {
            return Err(Reply::new(530, "5.7.0", "Authentication required"));
        }
        if let Some((name, login)) = settings.login(session)
            && !logins::may_send_as(login, name, &self.from, &settings.directory)
        {
            return Err(Reply::new(553, "5.7.1", "Not an address of yours, you cannot send mail from it"));
        }
        let address = path.address().ok_or_else(|| DirectoryRefusal::Relay.reply())?;
        if !settings.may_relay(session, &address.domain().to_string()) {
            return Err(DirectoryRefusal::Relay.reply());
        }
        match settings.maps.has_recipient(address) {
            Exists::Yes => Ok(false),
            Exists::AskNextHop => Ok(true),
            Exists::No => Err(DirectoryRefusal::UnknownUser.reply()),
        }
    }

    fn way(&self, path: &ForwardPath, sender: &str, session: &Session, asks_ahead: bool) -> OutboundRoute {
        let settings = &self.settings;
        let mut labelled = Mail::default();
        let login = settings.login(session).map(|(_, login)| login);
        let trust = (settings.is_trusted(session), login);
        settings.tenants.label(&mut labelled, session, &self.from, trust, Labels::default());
        let Mail { tenant, campaign, pool, .. } = labelled;
        let domain = path.address().map_or_else(String::new, |address| address.domain().to_string());
        let of = PreviewOf { domain: &domain, tenant: &tenant, campaign: &campaign, pool: &pool };
        let hops = self.runtime.block_on(self.routing.preview(&self.resolver, &self.hosts, of));
        OutboundRoute {
            recipient: path.bare(),
            taken_from: sender.to_owned(),
            tenant: tenant.to_string(),
            campaign: campaign.to_string(),
            asks_ahead,
            hops,
        }
    }
}

impl RouteFinder for OutboundRoutes {
    fn sent(&self, path: &ForwardPath) -> Result<OutboundRoute, NotSent> {
        let mut refused = None;
        for (sender, session) in &self.sessions {
            match self.check(session, path) {
                Ok(asks_ahead) => return Ok(self.way(path, sender, session, asks_ahead)),
                Err(reply) => drop(refused.get_or_insert(NotSent { sender: sender.clone(), reply })),
            }
        }
        Err(refused.expect("there is a session"))
    }

    fn forwarded(&self, address: &str) -> Option<OutboundRoute> {
        let path = ForwardPath::parse(&format!("<{address}>")).ok()?;
        let (sender, session) = self.sessions.first()?;
        Some(self.way(&path, sender, session, false))
    }
}

/// The possible sessions of a sender: one, or one at each listener that accepts it.
fn sessions(
    config: &Config,
    settings: &Settings,
    logins: &Logins,
    sender: &MailSender,
) -> Result<Vec<(String, Session)>, OutboundError> {
    let login = match &sender.login {
        Some(name) => {
            let form = settings.directory.login_name(name).filter(|form| logins.get(form).is_some());
            Some(form.ok_or_else(|| OutboundError::NoLogin(name.clone()))?)
        }
        None => None,
    };
    if sender.client.is_none() && login.is_none() {
        let local = Peer::Local { uid: rustix::process::getuid().as_raw() };
        return Ok(vec![("programs on this machine".to_owned(), session(0, local, None, logins))]);
    }
    let mut found = Vec::new();
    for (number, listener) in config.listeners.iter().enumerate() {
        let allows = |ip: &IpAddr| {
            listener.socket.allow.as_ref().is_none_or(|allow| allow.0.iter().any(|network| network.contains(ip)))
        };
        let local = listener.socket.address.as_ref().and_then(|address| address.parse().ok());
        let local = local.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let peer = match sender.client.map(|ip| ip.to_canonical()) {
            Some(_) if listener.socket.address.is_none() => continue,
            Some(ip) if !allows(&ip) => continue,
            Some(ip) => Peer::Tcp { remote: SocketAddr::from((ip, 0)), local },
            // Any client.
            None => Peer::Unix,
        };
        let session = session(number, peer, login.as_deref(), logins);
        if login.is_some() && settings.auth_mode(&session) == ListenerAuth::Off {
            continue;
        }
        let who = match (&login, sender.client) {
            (Some(login), Some(ip)) => format!("{login} from {ip}"),
            (Some(login), None) => login.clone(),
            (None, ip) => ip.map_or_else(String::new, |ip| format!("client {ip}")),
        };
        found.push((format!("{who} at {listener}"), session));
    }
    let what = if login.is_some() { "this client log in" } else { "this client connect" };
    if found.is_empty() { Err(OutboundError::NoListener(what.to_owned())) } else { Ok(found) }
}

fn session(listener: usize, peer: Peer, login: Option<&str>, logins: &Logins) -> Session {
    let identity = |name: &str| {
        let (authentication_id, authorization_id) = (name.to_owned(), name.to_owned());
        Box::new(Identity { mechanism: "PLAIN", authentication_id, authorization_id })
    };
    Session {
        id: 0,
        listener,
        peer,
        helo: None,
        protocol: Protocol::Smtp,
        extended: true,
        tls: None,
        identity: login.map(identity),
        state: login.and_then(|name| logins.get(name)).map(|login| login.secrets.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[[listener]]\naddress = '127.0.0.1:25'\n[[listener]]\naddress = '127.0.0.1:587'\nauth = 'required'\n\
        allow = ['10.0.0.0/8']\ntenant = 'desk'\n[[domain]]\nname = 'here.example'\nusers = ['ann']\n[auth]\nfile = 'FILE'\n\
        [dns]\nservers = ['127.0.0.1:1']\n[dns.hosts]\n'far.example' = ['192.0.2.1']\n'listed.example' = ['192.0.2.2']\n\
        [relay]\nnetworks = ['192.0.2.0/24']\ndomains = ['listed.example']\n[[relay.recipients]]\ndomain = 'listed.example'\nusers = ['joe']\n\
        [[relay.tenant]]\nname = 'news'\nsender_domains = ['here.example']\n";

    /// The party from which mail is taken and its tenant, or the code of the refusal.
    fn check(client: Option<&str>, login: Option<&str>, from: &str, to: &str, expected: Result<(&str, &str), u16>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("logins");
        let hash = "$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        std::fs::write(&file, format!("ann:{hash}:tenant=own\n")).unwrap();
        let path = dir.path().join("posthaste.toml");
        std::fs::write(&path, CONFIG.replace("FILE", &file.display().to_string())).unwrap();
        let from = (!from.is_empty()).then(|| ReversePath::parse(&format!("<{from}>")).unwrap());
        let client = client.map(|client| client.parse().unwrap());
        let sender = MailSender { from, client, login: login.map(str::to_owned) };
        let routes = OutboundRoutes::open(&Loaded::load(Some(&path)).unwrap(), sender).unwrap();
        let found = routes.sent(&ForwardPath::parse(&format!("<{to}>")).unwrap());
        let found = found.as_ref().map(|way| (&*way.taken_from, &*way.tenant)).map_err(|not| not.reply.code());
        assert_eq!(found, expected, "{client:?} {login:?} {to}");
    }

    #[test]
    fn who_may_send_is_as_in_a_session() {
        check(None, None, "", "x@far.example", Ok(("programs on this machine", "")));
        check(None, None, "ann@here.example", "x@far.example", Ok(("programs on this machine", "news")));
        check(Some("192.0.2.9"), None, "", "x@far.example", Ok(("client 192.0.2.9 at 127.0.0.1:25", "")));
        check(Some("198.51.100.1"), None, "", "x@far.example", Err(550));
        check(Some("198.51.100.1"), None, "", "joe@listed.example", Ok(("client 198.51.100.1 at 127.0.0.1:25", "")));
        check(Some("198.51.100.1"), None, "", "eve@listed.example", Err(550));
        let at = "ann@here.example at 127.0.0.1:587";
        check(None, Some("ann"), "ann@here.example", "x@far.example", Ok((at, "own")));
        check(None, Some("ANN@here.example"), "eve@here.example", "x@far.example", Err(553));
        let at = "ann@here.example from 10.0.0.1 at 127.0.0.1:587";
        check(Some("10.0.0.1"), Some("ann"), "", "x@far.example", Ok((at, "own")));
    }

    #[test]
    fn a_sender_without_a_listener_or_a_name_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("posthaste.toml");
        std::fs::write(&path, "[[listener]]\naddress = '127.0.0.1:25'\nallow = ['127.0.0.1']\n").unwrap();
        let open = |sender| OutboundRoutes::open(&Loaded::load(Some(&path)).unwrap(), sender).unwrap_err().to_string();
        let client = Some("192.0.2.1".parse().unwrap());
        let error = open(MailSender { client, ..MailSender::default() });
        assert_eq!(error, "no [[listener]] lets this client connect");
        let error = open(MailSender { login: Some("ann".into()), ..MailSender::default() });
        assert_eq!(error, "there is no login `ann`");
    }
}
