//! `[[webhook]]`: HTTP servers that receive events.

use std::collections::HashSet;
use std::path::PathBuf;

use crate::reload::{NeedsRestart, Reload, all_of};
use crate::urls::{NO_LOGIN, has_login};
use posthaste_units::values::{self, Table};
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

/// An HTTP server that receives events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// At most 64 letters, digits and hyphens; the webhook's progress is kept under this name. Default: (required).
    pub name: String,
    /// The address that events are posted to, `http://` or `https://`. Default: (required).
    pub url: String,
    /// Kinds of events, such as `["bounced", "expired", "feedback"]`; none: all. Default: `[]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    /// Events in one request at most; up to 10,000. Default: `100`.
    #[serde(default = "batch", deserialize_with = "values::count")]
    pub batch: usize,
    /// A request that takes longer has failed; at most 10 minutes. Default: `30`.
    #[serde(default = "timeout_secs", deserialize_with = "values::secs")]
    pub timeout_secs: u64,
    /// A file with the secret that signs each request, at least 8 bytes; the server's user must be able to read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// Certificates of the authorities that are trusted for `https://`. Default: `/etc/ssl/certs/ca-certificates.crt`.
    #[serde(default = "ca_file")]
    pub ca_file: PathBuf,
}

impl Table for Webhook {
    const NAME: &str = "webhook";
}

impl Reload for Vec<Webhook> {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

fn batch() -> usize {
    100
}

fn timeout_secs() -> u64 {
    30
}

fn ca_file() -> PathBuf {
    "/etc/ssl/certs/ca-certificates.crt".into()
}

/// Every event that the log can have.
const EVENTS: [&str; 20] = [
    "received",
    "delivered",
    "deferred",
    "interrupted",
    "bounced",
    "expired",
    "suppressed",
    "double_bounced",
    "admin",
    "feedback",
    "waiting",
    "held",
    "given_up",
    "login",
    "refused",
    "aborted",
    "tls_failed",
    "shard",
    "left_out",
    "unreadable",
];

/// Validates the section.
pub(super) fn check(webhooks: &[Webhook], has_events: bool) -> Result<(), Problem> {
    let mut names = HashSet::new();
    for (index, webhook) in webhooks.iter().enumerate() {
        let problem = |key: &'static str, message: String| {
            Err(Problem::new(["webhook".into(), index.into(), key.into()], message))
        };
        if !has_events {
            return problem("name", "webhooks need the event log: set `enabled = true` in [events]".to_owned());
        }
        let Webhook { name, url, events, batch, timeout_secs, .. } = webhook;
        let is_name = (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !is_name {
            return problem("name", "a name has 1 to 64 letters, digits and hyphens".to_owned());
        }
        if !names.insert(name) {
            return problem("name", format!("the webhook `{name}` is listed twice"));
        }
        if has_login(url) {
            return problem("name", format!("url: {NO_LOGIN}"));
        }
        if let Err(why) = check_url(url) {
            return problem("url", why);
        }
        if let Some(unknown) = events.iter().find(|event| !EVENTS.contains(&event.as_str())) {
            return problem("events", format!("there is no event `{unknown}`, only {}", EVENTS.join(", ")));
        }
        if !(1..=10_000).contains(batch) {
            return problem("batch", "must be between 1 and 10000".to_owned());
        }
        if !(1..=600).contains(timeout_secs) {
            return problem("timeout_secs", "must be between 1 second and 10 minutes".to_owned());
        }
    }
    Ok(())
}

fn check_url(url: &str) -> Result<(), String> {
    let wrong = || format!("`{url}` is not a URL such as https://hooks.example.org/mail");
    let parsed: http::Uri = url.parse().map_err(|_| wrong())?;
    let is_http = matches!(parsed.scheme_str(), Some("http" | "https"));
    if is_http && parsed.host().is_some_and(|host| !host.is_empty()) { Ok(()) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_text(text: &str, expected: Option<&str>) {
        let table: std::collections::HashMap<String, Vec<Webhook>> = toml::from_str(text).unwrap();
        let found = check(&table["webhook"], true).err().map(|problem| problem.message);
        match (found, expected) {
            (None, None) => {}
            (Some(found), Some(expected)) if found.contains(expected) => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        let of = |rest: &str| format!("[[webhook]]\nname = \"a\"\nurl = \"https://h.example/x?y=1\"\n{rest}");
        check_text(&of("events = [\"bounced\"]\ntimeout_secs = \"1m\""), None);
        check_text(&of("events = [\"bonced\"]"), Some("no event `bonced`"));
        check_text(&of("batch = 0"), Some("between 1 and 10000"));
        check_text(&of("timeout_secs = \"1h\""), Some("10 minutes"));
        check_text(&of(&of("")), Some("is listed twice"));
        check_text("[[webhook]]\nname = \"../x\"\nurl = \"http://h\"", Some("letters, digits"));
        for url in ["h.example/x", "ftp://h.example", "http:///x", "", "http://h example/"] {
            check_text(&format!("[[webhook]]\nname = \"a\"\nurl = \"{url}\""), Some("is not a URL"));
        }
        for url in ["https://ann:canary@h.example/", "ann:canary@h example"] {
            let text = format!("[[webhook]]\nname = \"a\"\nurl = \"{url}\"\n");
            check_text(&text, Some("no name and no password"));
            let told = crate::Config::parse(std::path::Path::new("x"), &text).unwrap_err().to_string();
            assert!(told.contains("url: ") && !told.contains("canary"), "{told}");
        }
        let webhook = Webhook {
            name: "a".into(),
            url: "http://h".into(),
            events: Vec::new(),
            batch: 1,
            timeout_secs: 1,
            secret_file: None,
            ca_file: ca_file(),
        };
        assert!(check(&[webhook], false).unwrap_err().message.contains("need the event log"));
    }
}
