//! The facts for the DNS records of a domain, from the configuration.

use posthaste_directory::names::folded_domain;
use posthaste_directory::{Directory, Route};
use posthaste_dns::OwnDomain;
use posthaste_smtp::ForwardPath;

use crate::{Config, Listener, ListenerAuth, ListenerProtocol, ListenerTls};

impl Config {
    /// The facts for the records of the domain `name`, given in lower-case A-labels. Without DKIM keys, which are in
    /// files. `directory` is that of the configuration.
    pub fn own_domain(&self, directory: &Directory, name: &str) -> OwnDomain {
        let host = folded_domain(&self.host_name).map_or_else(|| self.host_name.clone(), |host| host.into_owned());
        // An account of its own, if there is one; postmaster is always taken.
        let reports = format!("reports@{name}");
        let is_taken = ForwardPath::parse(&format!("<{reports}>"))
            .is_ok_and(|path| matches!(directory.recipient(&path), Route::Local(_)));
        OwnDomain {
            keys: Vec::new(),
            domain: name.to_owned(),
            host,
            reports: if is_taken { reports } else { format!("postmaster@{name}") },
            services: services(self),
            has_web: self.listeners.iter().any(is_web),
            policy_id: None,
        }
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
