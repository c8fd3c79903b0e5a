//! The facts for the DNS records of a domain, from the configuration.

use std::path::PathBuf;

use posthaste_dane::{HostCertificate, HostFiles};
use posthaste_directory::names::folded_domain;
use posthaste_directory::{Directory, Route};
use posthaste_dns::OwnDomain;
use posthaste_smtp::ForwardPath;

use crate::acme::{acme_file, acme_next_key_file};
use crate::{Config, Listener, ListenerAuth, ListenerProtocol, ListenerTls};

impl Config {
    /// Data for the DNS records of the domain `name`, given in lower-case A-labels. DKIM keys are missing, as they are
    /// in files. `directory` is that of the configuration.
    pub fn own_domain(&self, directory: &Directory, name: &str) -> OwnDomain {
        let host = self.folded_host();
        // An account of its own, if there is one; postmaster is always taken.
        let reports = format!("reports@{name}");
        let has_web = self.listeners.iter().any(is_web);
        let is_taken = ForwardPath::parse(&format!("<{reports}>"))
            .is_ok_and(|path| matches!(directory.recipient(&path), Route::Local(_)));
        OwnDomain {
            keys: Vec::new(),
            domain: name.to_owned(),
            host,
            reports: if is_taken { reports } else { format!("postmaster@{name}") },
            services: services(self),
            has_web,
            behind_web: self.listeners.iter().filter(|_| !has_web).find_map(behind_web),
            policy_id: None,
        }
    }

    /// Seconds after its last signature for which a DKIM key's record is needed: the maximum age of waiting mail and
    /// two days.
    pub fn dkim_record_secs(&self) -> u64 {
        let schedules = &self.relay.schedule;
        let ages = schedules.rules.iter().map(|rule| rule.schedule.max_age_secs);
        ages.fold(schedules.default.max_age_secs, u64::max) + 2 * A_DAY
    }

    /// The certificate of port 25, read from its files. Blocks. Empty if no listener there has TLS.
    pub fn host_certificate(&self) -> HostCertificate {
        let takes_mail = |of: &&Listener| {
            of.protocol == ListenerProtocol::Smtp && of.has_port(SMTP) && of.tls_mode() != ListenerTls::Off
        };
        let Some(listener) = self.listeners.iter().find(takes_mail) else { return HostCertificate::default() };
        let host = self.folded_host();
        let dir = self.acme_dir();
        let files = HostFiles {
            configured: listener.certificate_files().into_iter().map(|files| files.chain).collect(),
            obtained: self.acme_names().iter().map(|name| acme_file(&dir, name)).collect(),
            self_made: Some(self.self_made_file()),
            next_key: self.acme.new_key.then(|| acme_next_key_file(&dir, &host)),
        };
        HostCertificate::read(&host, &files)
    }

    /// File of the self-made certificate for listeners with TLS and without another one.
    pub fn self_made_file(&self) -> PathBuf {
        self.storage.data.join("self-made.pem")
    }

    fn folded_host(&self) -> String {
        folded_domain(&self.host_name).map_or_else(|| self.host_name.clone(), |host| host.into_owned())
    }
}

const A_DAY: u64 = 86_400;
/// Mail between hosts.
const SMTP: u16 = 25;

/// True for an HTTPS listener that is open to other hosts.
fn is_web(listener: &Listener) -> bool {
    listener.protocol == ListenerProtocol::Http && listener.tls_mode() == ListenerTls::Implicit && !listener.is_local()
}

/// The address of an HTTP listener for this host's programs, among them its web server.
fn behind_web(listener: &Listener) -> Option<String> {
    let is_inner =
        listener.protocol == ListenerProtocol::Http && listener.tls_mode() == ListenerTls::Off && listener.is_near();
    listener.socket.address.clone().filter(|_| is_inner)
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
