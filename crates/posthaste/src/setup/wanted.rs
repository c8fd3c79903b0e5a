//! The server that is wanted, and its configuration of at most 25 lines.

use std::fmt::Write as _;
use std::path::Path;

use posthaste_config::Loaded;
use posthaste_directory::names::folded_domain;
use serde_json::Value;

use super::place::{Place, USER};
use crate::queue::AnyError;

/// The address that setup was asked for, and how its server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub user: String,
    pub domain: String,
    /// The name of the host.
    pub host: String,
    pub ports: Ports,
    /// Certificates come from an authority.
    pub acme: bool,
    /// The address at which all listeners are: `[::]`, or `0.0.0.0` on a machine without IPv6.
    pub any: &'static str,
    /// Resolvers other than the machine's.
    pub resolvers: Vec<String>,
    /// They have proven that they validate DNSSEC.
    pub trust_ad: bool,
}

/// The ports of the listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    pub smtp: u16,
    pub submissions: u16,
    pub submission: u16,
    pub imaps: u16,
    /// `None`: another program has it.
    pub https: Option<u16>,
}

impl Wanted {
    /// The user and the domain of an address, the domain in lower-case A-labels.
    ///
    /// # Errors
    /// It is no address that setup makes an account for.
    pub fn address(address: &str) -> Result<(String, String), AnyError> {
        let wrong = || format!("`{address}` is no address such as ann@example.org");
        let (user, domain) = address.rsplit_once('@').ok_or_else(wrong)?;
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        let domain = folded_domain(domain).filter(|domain| posthaste_dkim::is_domain(domain)).ok_or_else(wrong)?;
        if user.is_empty() || !user.chars().all(is_plain) || !domain.contains('.') {
            return Err(
                format!("{}: letters a-z, digits and . _ - before the @, and a domain of your own", wrong()).into()
            );
        }
        Ok((user.to_owned(), domain.into_owned()))
    }

    pub fn address_of(&self, user: &str) -> String {
        format!("{user}@{}", self.domain)
    }

    /// Keeps to the port for HTTPS, or to none, and to the trust in the resolvers, as it was when the configuration was
    /// written.
    pub fn keep_written(&mut self, place: &Place, https: u16) {
        let written = std::fs::read(place.config()).unwrap_or_default();
        let is_written = |wanted: &Self| written == wanted.config(place).as_bytes();
        let others = [Some(https), None].into_iter().flat_map(|https| [true, false].map(|trust_ad| (https, trust_ad)));
        let others: Vec<Self> = others
            .map(|(https, trust_ad)| Self { ports: Ports { https, ..self.ports }, trust_ad, ..self.clone() })
            .collect();
        if !is_written(self)
            && let Some(other) = others.into_iter().find(is_written)
        {
            *self = other;
        }
    }

    /// The configuration. It is written once.
    pub fn config(&self, place: &Place) -> String {
        let Self { host, domain, any, ports, .. } = self;
        let mut text =
            format!("# Written once by `posthaste setup {}`; it is yours to change.\n", self.address_of(&self.user));
        let _ = writeln!(text, "host_name = \"{host}\"");
        if place.is_system {
            let _ = writeln!(text, "user = \"{USER}\"");
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
            None => text += "    { address = \"127.0.0.1:8025\", protocol = \"http\" },\n",
        }
        let _ = writeln!(text, "]\n[storage]\ndata = {}", toml(&place.data));
        let _ = writeln!(text, "[auth]\nfile = {}", toml(&place.passwords()));
        if self.acme {
            let _ = writeln!(text, "[acme]\nenabled = true\ncontact = \"{}\"", self.address_of("postmaster"));
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

    fn aliases(&self) -> String {
        let names = ["postmaster", "abuse"].into_iter().filter(|name| *name != self.user);
        let aliases: Vec<String> = names.map(|name| format!("{name} = [\"{}\"]", self.user)).collect();
        format!("{{ {} }}", aliases.join(", "))
    }

    /// The configuration as a start reads it, but for the user, who may not be there yet.
    ///
    /// # Errors
    /// It cannot be one.
    pub fn loaded(&self, place: &Place) -> Result<Loaded, AnyError> {
        let place = Place { is_system: false, ..place.clone() };
        Ok(Loaded::parse(&place.config(), &self.config(&place))?)
    }
}

/// As TOML has it, whose strings and lists are those of JSON.
fn toml(path: &Path) -> Value {
    path.to_string_lossy().into()
}

pub const REPORTS: &str = "reports";

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(address: &str) -> Wanted {
        let (user, domain) = Wanted::address(address).unwrap();
        let ports = Ports { smtp: 25, submissions: 465, submission: 587, imaps: 993, https: Some(443) };
        Wanted {
            user,
            host: format!("mx.{domain}"),
            domain,
            ports,
            acme: true,
            any: "[::]",
            resolvers: vec!["192.0.2.53".into()],
            trust_ad: true,
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
                let text = wanted.config(&place(true));
                assert!(text.lines().count() <= 25, "{text}");
                let config = wanted.loaded(&place(false)).unwrap_or_else(|error| panic!("{error}\n{text}")).config;
                assert_eq!((config.listeners.len(), config.storage.data), (5, place(false).data), "{text}");
            }
        }
    }

    #[test]
    fn an_address_is_a_plain_name_and_a_domain() {
        assert_eq!(Wanted::address("ann@Example.ORG").unwrap(), ("ann".into(), "example.org".into()));
        assert_eq!(Wanted::address("a@bücher.example").unwrap().1, "xn--bcher-kva.example");
        for wrong in [
            "",
            "ann",
            "@example.org",
            "ann@",
            "ann@localhost",
            "Ann@example.org",
            "a\"b@example.org",
            "ann@127.0.0.1",
            "a b@example.org",
        ] {
            assert!(Wanted::address(wrong).is_err(), "{wrong}");
        }
    }
}
