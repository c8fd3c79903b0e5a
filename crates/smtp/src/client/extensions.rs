//! Extensions that a server offers.

use crate::reply::Reply;

/// Extensions that the server offers in its reply to EHLO or LHLO.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extensions {
    /// PIPELINING (RFC 2920).
    pub pipelining: bool,
    /// SIZE (RFC 1870); the inner value is the limit in octets, if one was given.
    pub size: Option<Option<u64>>,
    /// 8BITMIME (RFC 6152).
    pub eight_bit_mime: bool,
    /// SMTPUTF8 (RFC 6531).
    pub smtputf8: bool,
    /// CHUNKING (RFC 3030).
    pub chunking: bool,
    /// DSN (RFC 3461).
    pub dsn: bool,
    /// FUTURERELEASE (RFC 4865).
    pub future_release: bool,
    /// XEXPIRES, of this project.
    pub expires: bool,
    /// STARTTLS (RFC 3207).
    pub starttls: bool,
    /// AUTH mechanisms (RFC 4954).
    pub auth: Vec<String>,
    /// RCPTMAX of LIMITS (RFC 9422).
    pub recipients_max: Option<u64>,
    /// RCPTDOMAINMAX of LIMITS (RFC 9422).
    pub recipient_domains_max: Option<u64>,
    /// MAILMAX of LIMITS (RFC 9422).
    pub messages_max: Option<u64>,
}

impl Extensions {
    /// Reads the reply to EHLO or LHLO.
    pub fn read(reply: &Reply) -> Self {
        let mut extensions = Self::default();
        // The first line is the server's name.
        for line in reply.text().lines().skip(1) {
            let mut words = line.split_ascii_whitespace();
            let keyword = words.next().unwrap_or_default().to_ascii_uppercase();
            // `AUTH=LOGIN PLAIN`, the form of drafts before RFC 2554, in addition to `AUTH` or alone.
            if let Some(first) = keyword.strip_prefix("AUTH=") {
                extensions.add_auth([first].into_iter().chain(words));
                continue;
            }
            match keyword.as_str() {
                "PIPELINING" => extensions.pipelining = true,
                "SIZE" => {
                    let limit = words.next().and_then(|word| word.parse().ok());
                    extensions.size = Some(limit.filter(|limit| *limit > 0));
                }
                "8BITMIME" => extensions.eight_bit_mime = true,
                "SMTPUTF8" => extensions.smtputf8 = true,
                "CHUNKING" => extensions.chunking = true,
                "DSN" => extensions.dsn = true,
                "FUTURERELEASE" => extensions.future_release = true,
                "XEXPIRES" => extensions.expires = true,
                "STARTTLS" => extensions.starttls = true,
                "AUTH" => extensions.add_auth(words),
                "LIMITS" => {
                    for word in words {
                        match word.split_once('=') {
                            Some(("RCPTMAX", value)) => extensions.recipients_max = value.parse().ok(),
                            Some(("RCPTDOMAINMAX", value)) => extensions.recipient_domains_max = value.parse().ok(),
                            Some(("MAILMAX", value)) => extensions.messages_max = value.parse().ok(),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        extensions
    }

    /// Adds mechanisms, each once.
    fn add_auth<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        // RFC 4422 section 3.1.
        for name in names.filter(|name| (1..=20).contains(&name.len())) {
            if self.auth.len() < AUTH_MAX && !self.auth.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                self.auth.push(name.to_owned());
            }
        }
    }
}

/// Kept AUTH mechanisms at most.
const AUTH_MAX: usize = 32;
