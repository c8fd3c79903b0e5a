//! The tables of `docs/configuration.md` are generated from the doc comments of the configuration's structs.

use std::fs;

use posthaste_manual::declared_table;
use serde_json::Value;

use crate::documents::root;
use crate::support::command;

/// A table of the document: the line above it, the place of its defaults in `config show --json`, and its structs, with their files below `crates/`.
struct Table {
    under: &'static str,
    defaults: &'static str,
    structs: &'static [(&'static str, &'static str)],
}

const fn table(under: &'static str, defaults: &'static str, structs: &'static [(&'static str, &'static str)]) -> Table {
    Table { under, defaults, structs }
}

/// The tables; that of `Config` has only the keys before its first section.
const TABLES: [Table; 38] = [
    table("## Top level", "", &[("config/src/config.rs", "Config")]),
    table("## `[storage]`", "/storage", &[("delivery/src/local/section.rs", "Storage")]),
    table("## `[[listener]]`", "", &[("net/src/section.rs", "Socket"), ("config/src/listeners.rs", "Listener")]),
    table("## `[tls]`", "/tls", &[("config/src/tls.rs", "Tls")]),
    table("## `[acme]`", "/acme", &[("config/src/acme.rs", "Acme")]),
    table("## `[auth]`", "/auth", &[("config/src/auth.rs", "Auth")]),
    table("## `[quota]`", "/quota", &[("config/src/quota.rs", "Quota")]),
    table("## `[mailstore]`", "/mailstore", &[("config/src/mailstore.rs", "MailstoreSection")]),
    table("## `[imap]`", "/imap", &[("config/src/imap.rs", "Imap")]),
    table("## `[http]`", "/http", &[("config/src/http.rs", "Http")]),
    table("## `[[network]]`", "", &[("config/src/listeners.rs", "Network")]),
    table("## `[[domain]]`", "", &[("directory/src/config.rs", "Domain")]),
    table(
        "## `[limits]`",
        "/limits",
        &[
            ("net/src/section.rs", "ConnectionLimits"),
            ("smtp/src/section.rs", "SessionLimits"),
            ("config/src/limits.rs", "ReceiveLimits"),
            ("config/src/limits.rs", "ProcessLimits"),
        ],
    ),
    table("## `[policy]`", "/policy", &[("smtp/src/section.rs", "Policy")]),
    table("## `[transport]`", "/transport", &[("transport/src/section.rs", "Section")]),
    table("## `[relay]`", "/relay", &[("relay/src/sender/section.rs", "Section")]),
    table("### Recipients", "", &[("relay/src/sender/maps.rs", "RecipientsSection")]),
    table("### Maps", "/relay/maps", &[("relay/src/sender/maps.rs", "MapsSection")]),
    table("### Tenants", "", &[("relay/src/sender/tenants.rs", "TenantSection")]),
    table("### Schedule", "/relay/schedule/default", &[("queue/src/schedule.rs", "RetrySchedule")]),
    table("### Bounces", "/relay/bounces", &[("relay/src/sender/bounces.rs", "BounceSection")]),
    table("### Notices", "/relay/notices", &[("relay/src/sender/notices.rs", "NoticeSection")]),
    table("### Return path", "", &[("relay/src/sender/bounces.rs", "ReturnPathSection")]),
    table("### Forwarded mail", "", &[("relay/src/sender/section.rs", "SrsSection")]),
    table("### Routes", "", &[("relay/src/sender/route_section.rs", "RouteSection")]),
    table("### TLS policies", "", &[("relay/src/sender/source_section.rs", "TlsSection")]),
    table("A source:", "", &[("relay/src/sender/source_section.rs", "SourceSection")]),
    table("A pool:", "", &[("relay/src/sender/source_section.rs", "PoolSection")]),
    table("## `[checks]`", "/checks", &[("config/src/checks.rs", "Checks")]),
    table("## `[dkim]`", "/dkim", &[("config/src/dkim.rs", "Dkim")]),
    table("## `[dns]`", "/dns", &[("dns/src/section.rs", "Settings")]),
    table("## `[cluster]`", "", &[("config/src/cluster.rs", "Cluster")]),
    table("### Shards", "", &[("config/src/cluster.rs", "ClusterShard")]),
    table("## `[search]`", "/search", &[("search/src/section.rs", "Section")]),
    table("## `[events]`", "/events", &[("events/src/section.rs", "Section")]),
    table("## `[[webhook]]`", "", &[("config/src/webhooks.rs", "Webhook")]),
    table("## `[pickup]`", "/pickup", &[("pickup/src/section.rs", "Section")]),
    table("## `[log]`", "/log", &[("config/src/log.rs", "Log")]),
];

impl Table {
    /// Its rows; `shown` gives the defaults that no doc comment states.
    fn rows(&self, shown: &Value) -> String {
        let defaults = if self.defaults.is_empty() { &Value::Null } else { shown.pointer(self.defaults).unwrap() };
        let keys = self.structs.iter().flat_map(|(file, name)| {
            let source = fs::read_to_string(root().join("crates").join(file)).unwrap();
            declared_table(&source, name).unwrap_or_else(|| panic!("{file} has no struct {name}")).keys
        });
        keys.take_while(|key| self.under != "## Top level" || key.name != "storage")
            .map(|key| key.row(&default_text(&defaults[&key.name])))
            .collect()
    }

    /// Replaces the rows in `document`.
    fn renew(&self, document: &mut String, rows: &str) {
        let line = format!("\n{}\n", self.under);
        let from = document.find(&line).unwrap_or_else(|| panic!("no line {line}")) + line.len();
        let from = from + document[from..].find("\n| `").unwrap() + 1;
        let to = document[from..].find("\n\n").map_or(document.len(), |end| from + end + 1);
        document.replace_range(from..to, rows);
    }
}

/// With `POSTHASTE_RENEW=1` the document is written instead of compared.
#[test]
fn tables_of_keys_are_the_doc_comments() {
    let dir = tempfile::tempdir().unwrap();
    let shown = command(dir.path(), &["config", "show", "--json"]).output().unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let path = root().join("docs/configuration.md");
    let document = fs::read_to_string(&path).unwrap();
    let mut renewed = document.clone();
    for table in &TABLES {
        table.renew(&mut renewed, &table.rows(&shown));
    }
    if std::env::var_os("POSTHASTE_RENEW").is_some() {
        return fs::write(path, renewed).unwrap();
    }
    for (old, new) in document.lines().zip(renewed.lines()) {
        assert_eq!(old, new, "a row differs from its doc comment: POSTHASTE_RENEW=1 writes the tables anew");
    }
    assert_eq!(document.lines().count(), renewed.lines().count());
}

#[test]
fn every_table_of_keys_is_made_of_doc_comments() {
    let document = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let tables = document.lines().filter(|line| line.starts_with("| key | default |")).count();
    assert_eq!(tables, TABLES.len());
}

/// A default in the form of the tables.
fn default_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Number(number) => number.to_string(),
        value => format!("`{value}`"),
    }
}
