//! The server that is wanted, and its configuration of at most 25 lines.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

use posthaste_config::Loaded;
use posthaste_directory::names::folded_domain;
use serde_json::Value;

use super::place::{Place, USER};
use super::smarthost::Smarthost;
use crate::queue::AnyError;

/// The address to set up, and how its server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub user: String,
    pub domain: String,
    /// The name of the host.
    pub host: String,
    pub ports: Ports,
    /// True if certificates come from an authority.
    pub acme: bool,
    /// The address of all listeners: `[::]`, or `0.0.0.0` on a machine without IPv6.
    pub any: &'static str,
    /// Resolvers other than the machine's.
    pub resolvers: Vec<String>,
    /// They have proven that they validate DNSSEC.
    pub trust_ad: bool,
    /// Public addresses of this host, if it has none itself (NAT).
    pub addresses: Vec<IpAddr>,
    /// The next hop of all outgoing mail, instead of the recipients' hosts.
    pub smarthost: Option<Smarthost>,
}

/// The ports of the listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    pub smtp: u16,
    pub submissions: u16,
    pub submission: u16,
    pub imaps: u16,
    /// `None`: another program uses it.
    pub https: Option<u16>,
    /// Port on loopback for a web server that has the HTTPS port.
    pub behind_web: u16,
}

impl Ports {
    /// The ports of mail.
    pub fn needed(self) -> [u16; 4] {
        [self.smtp, self.submissions, self.submission, self.imaps]
    }

    /// All, with blanks in between.
    pub fn text(self) -> String {
        self.needed().iter().chain(&self.https).map(u16::to_string).collect::<Vec<_>>().join(" ")
    }
}

impl Wanted {
    /// The user and the domain of an address, both in lower case, the domain in A-labels.
    ///
    /// # Errors
    /// Setup cannot make an account for the address.
    pub fn address(address: &str) -> Result<(String, String), AnyError> {
        let wrong = || format!("`{address}` is not an address such as ann@example.org");
        let (user, domain) = address.rsplit_once('@').ok_or_else(wrong)?;
        let user = user.to_ascii_lowercase();
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        let domain = folded_domain(domain).filter(|domain| posthaste_dkim::is_domain(domain)).ok_or_else(wrong)?;
        if user.is_empty() || !user.chars().all(is_plain) || !domain.contains('.') {
            return Err(
                format!("{}: letters a-z, digits and . _ - before the @, and a domain of your own", wrong()).into()
            );
        }
        Ok((user, domain.into_owned()))
    }

    pub fn address_of(&self, user: &str) -> String {
        format!("{user}@{}", self.domain)
    }

    /// The configuration that an earlier run wrote for this address, including later edits. Its first line marks it.
    pub fn written(&self, place: &Place) -> Option<String> {
        let text = std::fs::read_to_string(place.config()).ok()?;
        text.starts_with(&self.mark()).then_some(text)
    }

    fn mark(&self) -> String {
        format!("# Written once by `posthaste setup {}`;", self.address_of(&self.user))
    }

    /// Keeps to a written configuration in all that depends on the machine and on DNS, and to its smarthost.
    pub fn keep_written(&mut self, place: &Place, https: u16) {
        let Ok(text) = std::fs::read_to_string(place.config()) else { return };
        // One that cannot be read is not ours.
        let Ok(Loaded { config, .. }) = Loaded::parse(&place.config(), &without_user(&text)) else { return };
        self.ports.https = config.listeners.iter().any(|listener| listener.has_port(https)).then_some(https);
        self.trust_ad = config.dns.trust_ad;
        self.addresses = config.acme.addresses;
        let written = config.relay.route.first().and_then(Smarthost::of_route);
        let is_new = |asked: &Smarthost| written.as_ref().is_none_or(|written| !written.is_at(asked));
        // A login is given once.
        if self.smarthost.as_ref().is_none_or(|asked| asked.username.is_none() && !is_new(asked)) {
            self.smarthost = written;
        }
    }

    /// The configuration. It is written once.
    pub fn config(&self, place: &Place) -> String {
        let Self { host, domain, any, ports, .. } = self;
        let mut text = format!("{} it is yours to change.\n", self.mark());
        let _ = writeln!(text, "host_name = \"{host}\"");
        if place.is_system {
            let _ = writeln!(text, "user = \"{USER}\"");
        }
        if self.acme {
            let contact = self.address_of("postmaster");
            let addresses = if self.addresses.is_empty() {
                String::new()
            } else {
                format!(", addresses = {:?}", self.addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>())
            };
            let _ = writeln!(text, "acme = {{ enabled = true, contact = \"{contact}\"{addresses} }}");
        }
        let _ = writeln!(text, "listener = [");
        let mut listener = |port: u16, rest: &str| {
            let _ = writeln!(text, "    {{ address = \"{any}:{port}\", {rest} }},");
        };
        listener(ports.smtp, "tls = \"starttls\"");
        listener(ports.submissions, "tls = \"implicit\", auth = \"required\"");
        listener(ports.submission, "tls = \"required\", auth = \"required\"");
        listener(ports.imaps, "tls = \"implicit\", protocol = \"imap\"");
        match ports.https {
            Some(port) => listener(port, "tls = \"implicit\", protocol = \"http\""),
            // For the web server that has port 443.
            None => {
                let _ = writeln!(text, "    {{ address = \"127.0.0.1:{}\", protocol = \"http\" }},", ports.behind_web);
            }
        }
        let _ = writeln!(text, "]\n[storage]\ndata = {}", toml(&place.data));
        let _ = writeln!(text, "[auth]\nfile = {}", toml(&place.passwords()));
        if let Some(smarthost) = &self.smarthost {
            let _ = writeln!(text, "[relay]\nroute = [{}]", route(smarthost, place));
        }
        if !self.resolvers.is_empty() || self.trust_ad {
            text += "[dns]\n";
        }
        if !self.resolvers.is_empty() {
            let _ = writeln!(text, "servers = {:?}", self.resolvers);
        }
        if self.trust_ad {
            text += "trust_ad = true\n";
        }
        let _ =
            writeln!(text, "[[domain]]\nname = \"{domain}\"\nusers = {:?}\naliases = {}", self.users(), self.aliases());
        text
    }

    /// The user, and the mailbox of the reports that other hosts send.
    pub fn users(&self) -> Vec<&str> {
        let mut users = vec![&*self.user, REPORTS];
        users.dedup();
        users
    }

    /// The aliases, which lead to the user.
    pub fn alias_names(&self) -> Vec<&'static str> {
        ["postmaster", "abuse"].into_iter().filter(|name| *name != self.user).collect()
    }

    fn aliases(&self) -> String {
        let names = self.alias_names().into_iter();
        let aliases: Vec<String> = names.map(|name| format!("{name} = [\"{}\"]", self.user)).collect();
        format!("{{ {} }}", aliases.join(", "))
    }

    /// The configuration as read at a start, the written one if there is one, except for the user, who may not exist
    /// yet.
    ///
    /// # Errors
    /// It is invalid.
    pub fn loaded(&self, place: &Place) -> Result<Loaded, AnyError> {
        let text = self.written(place).unwrap_or_else(|| self.config(place));
        Ok(Loaded::parse(&place.config(), &without_user(&text))?)
    }
}

/// The text with an empty line in place of the user, so that positions in it do not change.
fn without_user(text: &str) -> String {
    text.split_inclusive('\n').map(|line| if line.starts_with("user = ") { "\n" } else { line }).collect()
}

/// A route as an inline table.
fn route(smarthost: &Smarthost, place: &Place) -> String {
    let Smarthost { host, port, username, .. } = smarthost;
    let login = match username {
        Some(username) => {
            let username = Value::from(&**username);
            let file = toml(&place.smarthost_password());
            format!(", username = {username}, password_file = {file}")
        }
        None => String::new(),
    };
    format!("{{ host = {}, port = {port}{login} }}", Value::from(&**host))
}

/// A value as TOML, whose strings and lists are those of JSON.
fn toml(path: &Path) -> Value {
    path.to_string_lossy().into()
}

pub const REPORTS: &str = "reports";

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Settings for a machine that has everything.
    pub fn wanted(address: &str) -> Wanted {
        let (user, domain) = Wanted::address(address).unwrap();
        let ports =
            Ports { smtp: 25, submissions: 465, submission: 587, imaps: 993, https: Some(443), behind_web: 8025 };
        Wanted {
            user,
            host: format!("mx.{domain}"),
            domain,
            ports,
            acme: true,
            any: "[::]",
            resolvers: vec!["192.0.2.53".into()],
            trust_ad: true,
            addresses: vec![],
            smarthost: None,
        }
    }

    fn smarthost() -> Smarthost {
        Smarthost {
            host: "smtp.example.net".into(),
            port: 465,
            username: Some("ann \"the\\ sender".into()),
            password: Some("secret".into()),
        }
    }

    fn place(is_system: bool) -> Place {
        Place { config_dir: "/etc/posthaste".into(), data: "/var/lib/post \"haste\\".into(), is_system }
    }

    #[test]
    fn the_configuration_has_at_most_25_lines_and_can_be_read() {
        for address in [
            "ann@example.org",
            "reports@example.org",
            "postmaster@example.org",
            "abuse@example.org",
            "ann@bücher.example",
        ] {
            for https in [Some(443), None] {
                let mut wanted = wanted(address);
                wanted.ports.https = https;
                wanted.smarthost = Some(smarthost());
                wanted.addresses = vec!["192.0.2.10".parse().unwrap(), "2001:db8::10".parse().unwrap()];
                let text = wanted.config(&place(true));
                assert!(text.lines().count() <= 25, "{text}");
                let config = wanted.loaded(&place(false)).unwrap_or_else(|error| panic!("{error}\n{text}")).config;
                assert_eq!((config.listeners.len(), config.storage.data), (5, place(false).data), "{text}");
                assert_eq!(config.acme.addresses, wanted.addresses);
                let route = Smarthost::of_route(&config.relay.route[0]).unwrap();
                assert_eq!(Some(route), wanted.smarthost.map(|smarthost| Smarthost { password: None, ..smarthost }));
                assert!(!text.contains("secret"), "{text}");
            }
        }
    }

    #[test]
    fn a_written_configuration_is_kept_to_whatever_is_found_now() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { config_dir: dir.path().into(), data: "/var/lib/posthaste".into(), is_system: true };
        let found = wanted("ann@example.org");
        for (https, trust_ad, addresses, smarthost) in [
            (Some(443), true, vec![], None),
            (None, false, vec!["192.0.2.10".parse().unwrap()], Some(Smarthost { password: None, ..smarthost() })),
        ] {
            let ports = Ports { https, ..found.ports };
            let written = Wanted { ports, trust_ad, addresses, smarthost, ..found.clone() };
            std::fs::write(place.config(), written.config(&place)).unwrap();
            let mut kept = found.clone();
            kept.keep_written(&place, 443);
            assert_eq!(kept, written);
        }
        // With the same smarthost the login of the file counts, with another it would be another configuration.
        let without_login = Smarthost { username: None, password: None, ..smarthost() };
        let other = Smarthost { port: 587, ..without_login.clone() };
        for (asked, expected) in [(without_login, Some("ann")), (other, None)] {
            let mut kept = Wanted { smarthost: Some(asked), ..found.clone() };
            kept.keep_written(&place, 443);
            let username = kept.smarthost.and_then(|smarthost| smarthost.username);
            assert_eq!(username.as_ref().and_then(|name| name.split(' ').next()), expected);
        }
    }

    #[test]
    fn an_address_is_a_plain_name_and_a_domain() {
        assert_eq!(Wanted::address("Ann@Example.ORG.").unwrap(), ("ann".into(), "example.org".into()));
        assert_eq!(Wanted::address("a@bücher.example").unwrap().1, "xn--bcher-kva.example");
        for wrong in
            ["", "ann", "@example.org", "ann@", "ann@localhost", "a\"b@example.org", "ann@127.0.0.1", "a b@example.org"]
        {
            assert!(Wanted::address(wrong).is_err(), "{wrong}");
        }
    }
}
