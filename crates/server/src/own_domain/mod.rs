//! Domains of ours as DNS is to know them, beside the records that are there.

mod check;
mod policy;
mod shown;

use posthaste_config::{Config, Listener, ListenerAuth, ListenerProtocol, ListenerTls};
use posthaste_directory::names::folded_domain;
use posthaste_directory::{Directory, Route};
use posthaste_dkim::{KeyDirectory, KeyRecord, KeyState, StoreError};
use posthaste_dns::OwnDomain;
use posthaste_smtp::ForwardPath;

pub use check::{CheckError, DomainCheck, ask_own_servers, of_record};
pub use policy::{HTTPS, with_policy};
pub(crate) use shown::{KnownRecords, OwnDomains};

/// A domain with its data from the configuration and the keys.
#[derive(Debug)]
pub struct DescribedDomain {
    /// The data of its records.
    pub own: OwnDomain,
    /// Keys that cannot be used: the file, and why.
    pub unreadable: Vec<String>,
}

/// The name of a domain in lower-case A-labels. `None`: it is none.
pub fn domain_name(text: &str) -> Option<String> {
    let name = folded_domain(text.trim_end_matches('.')).filter(|name| posthaste_dkim::is_domain(name))?;
    Some(name.into_owned())
}

impl DescribedDomain {
    /// The domain with this [`domain_name`]. `directory` is that of `config`. Blocks.
    ///
    /// # Errors
    /// The directory of keys cannot be used.
    pub fn of(config: &Config, directory: &Directory, name: &str) -> Result<Self, StoreError> {
        let host = folded_domain(&config.host_name).map_or_else(|| config.host_name.clone(), |host| host.into_owned());
        // An account of its own, if there is one; postmaster is always taken.
        let reports = format!("reports@{name}");
        let is_taken = ForwardPath::parse(&format!("<{reports}>"))
            .is_ok_and(|path| matches!(directory.recipient(&path), Route::Local(_)));
        let reports = if is_taken { reports } else { format!("postmaster@{name}") };
        let (mut keys, mut unreadable) = (Vec::new(), Vec::new());
        for key in KeyDirectory::new(&config.dkim.dir).keys(name)? {
            match &key.file {
                Ok(file) if file.state != KeyState::Old => {
                    keys.push((key.selector, KeyRecord::of(&file.key).to_string()));
                }
                Ok(_) => {}
                Err(why) => unreadable.push(format!("{}: {why}", key.path.display())),
            }
        }
        let own = OwnDomain {
            keys,
            domain: name.to_owned(),
            host,
            reports,
            services: services(config),
            has_web: config.listeners.iter().any(is_web),
            policy_id: None,
        };
        Ok(Self { own, unreadable })
    }
}

/// True for an HTTPS listener that is open to other hosts.
fn is_web(listener: &Listener) -> bool {
    listener.protocol == ListenerProtocol::Http && listener.tls_mode() == ListenerTls::Implicit && !listener.is_local()
}

/// Services with TLS from the first octet, at the first port of each.
fn services(config: &Config) -> Vec<(&'static str, u16)> {
    let name = |listener: &Listener| match listener.protocol {
        _ if listener.tls != Some(ListenerTls::Implicit) => None,
        ListenerProtocol::Imap => Some("_imaps"),
        ListenerProtocol::Pop3 => Some("_pop3s"),
        ListenerProtocol::Smtp if listener.auth_mode(None) != ListenerAuth::Off => Some("_submissions"),
        _ => None,
    };
    let mut services: Vec<(&'static str, u16)> = Vec::new();
    for listener in &config.listeners {
        let port = listener.socket.address.as_deref().and_then(|address| address.rsplit(':').next()?.parse().ok());
        if let (Some(name), Some(port)) = (name(listener), port)
            && !services.iter().any(|(known, _)| *known == name)
        {
            services.push((name, port));
        }
    }
    services
}
