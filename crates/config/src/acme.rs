//! `[acme]`: certificates from an authority.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use posthaste_message::address::is_domain;
use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

use crate::reload::{NeedsRestart, Reload, all_of};
use crate::urls::{NO_LOGIN, has_login};

/// Certificates from an authority, such as Let's Encrypt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Acme {
    /// `true`: certificates for `host_name`, for `mta-sts.` and `autoconfig.` of each domain, and for `names` are obtained and renewed
    /// ([certificates.md](certificates.md)). By this you accept the authority's terms.
    pub enabled: bool,
    /// Further names that want a certificate.
    pub names: Vec<String>,
    /// The addresses by which others reach this host, where it has none of its own (NAT).
    pub addresses: Vec<IpAddr>,
    /// The authority's directory.
    pub directory: String,
    /// The authorities that the directory's own certificate is verified by, in PEM.
    pub ca_file: PathBuf,
    /// An e-mail address for the authority, which tells there of trouble.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contact: Option<String>,
    /// A program that writes a TXT record, where others reach neither port 443 nor port 80; its arguments are the record's name and its value
    /// ([certificates.md](certificates.md#without-ports-80-and-443)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_program: Option<PathBuf>,
    /// `true`: each certificate has a new key, once [TLSA records](certificates.md#tlsa-records) of the host name it.
    pub new_key: bool,
}

impl Default for Acme {
    fn default() -> Self {
        Self {
            enabled: false,
            names: Vec::new(),
            addresses: Vec::new(),
            directory: "https://acme-v02.api.letsencrypt.org/directory".to_owned(),
            ca_file: "/etc/ssl/certs/ca-certificates.crt".into(),
            contact: None,
            dns_program: None,
            new_key: false,
        }
    }
}

impl Table for Acme {
    const NAME: &str = "acme";
}

impl Reload for Acme {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

/// Top-level names that no authority signs for.
const LOCAL: [&str; 6] = ["local", "localhost", "test", "invalid", "internal", "onion"];

/// Why no authority signs for a name.
pub(super) fn unsigned(name: &str) -> Option<&'static str> {
    let last = name.rsplit('.').next().unwrap_or(name);
    match () {
        () if name.parse::<IpAddr>().is_ok() || last.bytes().all(|octet| octet.is_ascii_digit()) => {
            Some("an address: an authority wants a name")
        }
        () if !name.is_ascii() || !is_domain(name) => Some("not a host name, such as mail.example.org"),
        () if !name.contains('.') => Some("a name without a dot is known on this network alone"),
        () if LOCAL.iter().any(|local| last.eq_ignore_ascii_case(local)) => Some("no authority signs for such a name"),
        () => None,
    }
}

impl Acme {
    /// Validates the section, for a server of this name.
    pub(super) fn check(&self, host_name: &str) -> Result<(), Problem> {
        let problem = |key: &'static str, message: &str| Err(Problem::new([Acme::NAME.into(), key.into()], message));
        if has_login(&self.directory) {
            return Err(Problem::new([Acme::NAME.into()], format!("directory: {NO_LOGIN}")));
        }
        if !self.directory.starts_with("https://") {
            return problem("directory", "a URL that begins with https://");
        }
        if self.contact.as_ref().is_some_and(|it| !it.contains('@') || it.contains([' ', ':', '?', ','])) {
            return problem("contact", "an e-mail address, such as \"postmaster@example.org\"");
        }
        if self.dns_program.as_ref().is_some_and(|program| !program.is_absolute()) {
            return problem("dns_program", "an absolute path");
        }
        for (index, name) in self.names.iter().enumerate() {
            if let Some(why) = unsigned(name) {
                return Err(Problem::new([Acme::NAME.into(), "names".into(), index.into()], why));
            }
        }
        match unsigned(host_name).filter(|_| self.enabled) {
            Some(why) => problem("enabled", &format!("host_name = `{host_name}`: {why}")),
            None => Ok(()),
        }
    }
}

/// The file of a name's key and certificate in the [directory](crate::Config::acme_dir).
pub fn acme_file(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.pem"))
}

/// The file of the key that a name's next certificate has, if keys change.
pub fn acme_next_key_file(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.next-key"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::tests::error_of;
    use crate::{Config, ListenerTls};

    #[test]
    fn names_are_those_of_the_host_its_domains_and_more() {
        let text = "host_name = 'mx.Example.org'\n[acme]\nenabled = true\nnames = ['mail.example.net', 'mx.example.org']\n\
                    [[domain]]\nname = 'example.org'\n[[domain]]\nname = 'here.test'\n";
        let config = Config::parse(Path::new("x"), text).unwrap();
        let expected = ["mx.example.org", "mta-sts.example.org", "autoconfig.example.org", "mail.example.net"];
        assert_eq!(config.acme_names(), expected);
        assert_eq!(Config::parse(Path::new("x"), &config.to_toml()).unwrap(), config);
        let off = Config::parse(Path::new("x"), &text.replace("true", "false")).unwrap();
        assert!(off.acme_names().is_empty());
    }

    #[test]
    fn loopback_literals_local_test_and_single_labels_are_an_error() {
        for name in
            ["localhost", "mx", "192.0.2.1", "2001:db8::1", "mx.local", "mx.example.TEST", "a.localhost", "-.org"]
        {
            let error = error_of(&format!("[acme]\nnames = ['a.example.org', '{name}']\n"));
            assert!(error.contains("2:27: "), "{name}: {error}");
        }
        for name in ["localhost", "mx", "mx.test"] {
            let error = error_of(&format!("host_name = '{name}'\n[acme]\nenabled = true\n"));
            assert!(error.contains("3:11: host_name = "), "{name}: {error}");
        }
        for (keys, place) in [
            ("directory = 'http://a.example/'", "2:13: "),
            ("contact = 'ann'", "2:11: "),
            ("dns_program = 'a'", "2:15: "),
        ] {
            let error = error_of(&format!("[acme]\n{keys}\n"));
            assert!(error.contains(place), "{keys}: {error}");
        }
        let told = error_of("[acme]\ndirectory = 'https://ann:canary@a.example/'\n");
        assert!(told.contains("no name and no password") && !told.contains("canary"), "{told}");
    }

    #[test]
    fn listeners_have_tls_by_default_and_port_80_has_none() {
        let head = "host_name = 'mx.example.org'\n[acme]\nenabled = true\n[auth]\nfile = 'p'\n[[listener]]\n";
        for (keys, mode) in [
            ("address = '[::]:25'", ListenerTls::StartTls),
            ("address = '[::]:465'", ListenerTls::Implicit),
            ("address = '[::]:993'\nprotocol = 'imap'", ListenerTls::Implicit),
            ("address = '[::]:443'\nprotocol = 'http'", ListenerTls::Implicit),
            ("address = '[::]:80'\nprotocol = 'http'", ListenerTls::Off),
            ("address = '127.0.0.1:80'\nprotocol = 'http'", ListenerTls::Off),
        ] {
            let config = Config::parse(Path::new("x"), &format!("{head}{keys}\n")).unwrap();
            let listener = &config.listeners[0];
            assert_eq!(listener.tls_mode(), mode, "{keys}");
            assert_eq!(listener.is_public(), keys.starts_with("address = '[::]:80'"), "{keys}");
        }
        assert!(error_of("[[listener]]\naddress = '[::]:80'\nprotocol = 'http'\n").contains("tokens would cross"));
    }
}
