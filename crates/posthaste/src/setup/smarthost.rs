//! A provider's relay for all outgoing mail, where port 25 is blocked.

use std::path::Path;

use posthaste_relay::sender::{Hosts, RouteSection};

use super::password_file::head_of;
use crate::queue::AnyError;

/// A next hop for all mail to other hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Smarthost {
    /// A host name, or an address in brackets.
    pub host: String,
    pub port: u16,
    pub username: Option<String>,
    /// `None` also if an earlier run has stored it in its file.
    pub password: Option<String>,
}

impl Smarthost {
    /// Reads `HOST[:PORT]`, and a file with a name and a password in its first two lines.
    ///
    /// # Errors
    /// A value is invalid, or the file cannot be read.
    pub fn read(text: &str, login: Option<&Path>) -> Result<Self, AnyError> {
        let wrong = || format!("`{text}` is not a smarthost, such as smtp.example.net:587");
        let (host, port) = match text.rsplit_once(':') {
            // Within brackets it is a colon of IPv6.
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| wrong())?),
            _ => (text, SUBMISSION),
        };
        if port == 0 || !posthaste_dns::is_next_hop(host) {
            return Err(wrong().into());
        }
        let (username, password) = login.map(login_of).transpose()?.unzip();
        Ok(Self { host: host.to_owned(), port, username, password })
    }

    /// The smarthost that a written configuration has.
    pub fn of_route(route: &RouteSection) -> Option<Self> {
        match &route.host {
            Hosts::One(host) => {
                Some(Self { host: host.clone(), port: route.port, username: route.username.clone(), password: None })
            }
            Hosts::Several(_) => None,
        }
    }

    /// True for the same next hop, with any login.
    pub fn is_at(&self, other: &Self) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }

    pub fn text(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

fn login_of(file: &Path) -> Result<(String, String), AnyError> {
    let text = head_of(file)?;
    let mut lines = text.lines();
    match (lines.next(), lines.next()) {
        (Some(name), Some(password)) if is_plain(name) && is_plain(password) => {
            Ok((name.to_owned(), password.to_owned()))
        }
        _ => Err(format!("{}: no name in its first line and password in its second", file.display()).into()),
    }
}

/// True if it fits on one line of the configuration and of the password file.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_control)
}

/// Port of submission with STARTTLS (RFC 6409).
const SUBMISSION: u16 = 587;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smarthost_is_a_host_and_perhaps_a_port() {
        for (text, expected) in [
            ("smtp.example.net", Some(("smtp.example.net", 587))),
            ("smtp.example.net:465", Some(("smtp.example.net", 465))),
            ("[192.0.2.7]:25", Some(("[192.0.2.7]", 25))),
            ("[IPv6:2001:db8::7]", Some(("[IPv6:2001:db8::7]", 587))),
            ("192.0.2.7", None),
            ("smtp.example.net:0", None),
            ("smtp.example.net:65536", None),
            ("smtp.example.net:", None),
            ("2001:db8::7", None),
            ("a b:25", None),
            ("", None),
        ] {
            let read = Smarthost::read(text, None).ok();
            assert_eq!(read.as_ref().map(|read| (&*read.host, read.port)), expected, "{text}");
        }
    }

    #[test]
    fn a_login_is_two_lines() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("login");
        for (text, expected) in [
            ("ann\nsecret", Some(("ann", "secret"))),
            ("ann\r\nsecret\r\nmore\n", Some(("ann", "secret"))),
            ("ann\n", None),
            ("\nsecret\n", None),
            ("ann\nse\tcret\n", None),
        ] {
            std::fs::write(&file, text).unwrap();
            let read = Smarthost::read("smtp.example.net", Some(&file)).ok();
            let login = read.as_ref().and_then(|read| read.username.as_deref().zip(read.password.as_deref()));
            assert_eq!(login, expected, "{text:?}");
        }
    }
}
