//! Public files by HTTP: challenges of an authority, the MTA-STS policy (RFC 8461), settings of mail programs
//! (autoconfig).

use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

use posthaste_acme::{CHALLENGE_PATH, Challenges};
use posthaste_admin::PublicFile;

use posthaste_config::{Config, Listener, ListenerAuth, ListenerProtocol, ListenerTls};

const MTA_STS: &str = "/.well-known/mta-sts.txt";
/// Paths requested by mail programs, at the domain itself and at its `autoconfig.` name.
const AUTOCONFIG: [&str; 2] = ["/.well-known/autoconfig/mail/config-v1.1.xml", "/mail/config-v1.1.xml"];
/// Senders cache the policy for a week.
const POLICY_SECS: u32 = 7 * 86_400;

/// The public files of one configuration.
pub(crate) struct PublicFiles {
    challenges: Challenges,
    shown: RwLock<Arc<Shown>>,
}

struct Shown {
    /// Configured domains, in lower case.
    domains: Vec<String>,
    policy: String,
    /// Servers of users, as XML.
    servers: String,
}

impl PublicFiles {
    pub fn new(config: &Config, challenges: Challenges) -> Self {
        Self { challenges, shown: RwLock::new(Arc::new(Shown::of(config))) }
    }

    pub fn reload(&self, config: &Config) {
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Shown::of(config));
    }

    /// The file under this host name and path, of our domains only.
    pub fn get(&self, host: &str, path: &str) -> Option<PublicFile> {
        if let Some(token) = path.strip_prefix(CHALLENGE_PATH) {
            let text = self.challenges.answer(token)?;
            return Some(PublicFile { content_type: "application/octet-stream", text });
        }
        let shown = Arc::clone(&self.shown.read().unwrap_or_else(PoisonError::into_inner));
        let of_domain = |service: &str| host.strip_prefix(service).filter(|domain| shown.has(domain));
        if path == MTA_STS {
            of_domain("mta-sts.")?;
            return Some(PublicFile { content_type: "text/plain; charset=utf-8", text: shown.policy.clone() });
        }
        if AUTOCONFIG.contains(&path) {
            let domain = of_domain("autoconfig.").or_else(|| of_domain(""))?;
            let text = Some(shown.autoconfig(domain)).filter(|_| !shown.servers.is_empty())?;
            return Some(PublicFile { content_type: "text/xml; charset=utf-8", text });
        }
        None
    }
}

impl Shown {
    fn of(config: &Config) -> Self {
        let host = &config.host_name;
        let domains = config.domains.iter().flat_map(|of| [&of.name].into_iter().chain(&of.domain_aliases));
        let servers = config.listeners.iter().filter_map(|listener| server(listener, host));
        Self {
            domains: domains.map(|domain| domain.to_ascii_lowercase()).collect(),
            // Whoever cannot verify our certificate reports it, and delivers.
            policy: format!("version: STSv1\r\nmode: testing\r\nmx: {host}\r\nmax_age: {POLICY_SECS}\r\n"),
            servers: servers.collect(),
        }
    }

    fn has(&self, domain: &str) -> bool {
        self.domains.iter().any(|own| own == domain)
    }

    fn autoconfig(&self, domain: &str) -> String {
        let servers = &self.servers;
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<clientConfig version=\"1.1\">\n  <emailProvider id=\"{domain}\">\n    \
             <domain>{domain}</domain>\n    <displayName>{domain}</displayName>\n{servers}  </emailProvider>\n</clientConfig>\n"
        )
    }
}

/// The `incomingServer` or `outgoingServer` of a listener; `None` if it is not for users on other hosts.
fn server(listener: &Listener, host: &str) -> Option<String> {
    let (direction, kind) = match listener.protocol {
        ListenerProtocol::Imap => ("incoming", "imap"),
        ListenerProtocol::Pop3 => ("incoming", "pop3"),
        ListenerProtocol::Smtp if listener.auth.is_some_and(|auth| auth != ListenerAuth::Off) => ("outgoing", "smtp"),
        _ => return None,
    };
    let socket = match listener.tls_mode() {
        ListenerTls::Implicit => "SSL",
        ListenerTls::StartTls | ListenerTls::Required => "STARTTLS",
        ListenerTls::Off => return None,
    };
    if listener.is_local() {
        return None;
    }
    let (_, port) = listener.socket.address.as_deref()?.rsplit_once(':')?;
    let mut xml = String::new();
    let _ = write!(
        xml,
        "    <{direction}Server type=\"{kind}\">\n      <hostname>{host}</hostname>\n      <port>{port}</port>\n      \
         <socketType>{socket}</socketType>\n      <authentication>password-cleartext</authentication>\n      \
         <username>%EMAILADDRESS%</username>\n    </{direction}Server>\n"
    );
    Some(xml)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn files(more: &str) -> PublicFiles {
        let text = format!(
            "host_name = 'mx.example.org'\n[auth]\nfile = 'p'\n[tls]\ncertificate = 'c'\n[[domain]]\nname = 'Example.org'\n\
             domain_aliases = ['example.net']\n[[listener]]\naddress = '[::]:25'\n{more}"
        );
        PublicFiles::new(&Config::parse(Path::new("x"), &text).unwrap(), Challenges::default())
    }

    #[test]
    fn the_policy_and_autoconfig_are_for_our_domains_only() {
        let files = files(
            "[[listener]]\naddress = '[::]:993'\nprotocol = 'imap'\n[[listener]]\naddress = '127.0.0.1:143'\nprotocol = 'imap'\n\
             [[listener]]\naddress = '[::]:465'\nauth = 'required'\n[[listener]]\naddress = '0.0.0.0:587'\ntls = 'required'\nauth = 'required'\n",
        );
        for host in ["mta-sts.example.org", "mta-sts.example.net"] {
            let policy = files.get(host, MTA_STS).unwrap();
            assert_eq!(policy.text, "version: STSv1\r\nmode: testing\r\nmx: mx.example.org\r\nmax_age: 604800\r\n");
            assert_eq!(policy.content_type, "text/plain; charset=utf-8");
        }
        for host in ["", "example.org", "mta-sts.example.com", "mta-sts.", "mx.example.org", "a.mta-sts.example.org"] {
            assert_eq!(files.get(host, MTA_STS), None, "{host}");
        }
        for (host, path) in [
            ("autoconfig.example.org", AUTOCONFIG[1]),
            ("autoconfig.example.net", AUTOCONFIG[0]),
            ("example.org", AUTOCONFIG[0]),
        ] {
            let text = files.get(host, path).unwrap().text;
            let domain = host.trim_start_matches("autoconfig.");
            assert!(text.contains(&format!("<domain>{domain}</domain>")), "{text}");
            assert_eq!(text.matches("<incomingServer type=\"imap\">").count(), 1, "{text}");
            assert_eq!(text.matches("<outgoingServer type=\"smtp\">").count(), 2, "{text}");
            assert!(text.contains("<port>993</port>\n      <socketType>SSL</socketType>"), "{text}");
            assert!(text.contains("<port>587</port>\n      <socketType>STARTTLS</socketType>"), "{text}");
            assert!(!text.contains("<port>25</port>") && !text.contains("<port>143</port>"), "{text}");
        }
        assert_eq!(files.get("autoconfig.example.com", AUTOCONFIG[1]), None);
        assert_eq!(files.get("example.org", "/.well-known/other"), None);
    }

    #[test]
    fn without_servers_for_users_there_is_no_autoconfig() {
        let files = files("");
        assert_eq!(files.get("autoconfig.example.org", AUTOCONFIG[1]), None);
        assert!(files.get("mta-sts.example.org", MTA_STS).is_some());
    }
}
