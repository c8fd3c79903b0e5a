//! Rules for a destination, in words.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use super::{NamedLimit, OfSite, Sections, ShapingRules, Sourced};

/// The rules for mail to a domain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// Domain of the recipients.
    pub domain: String,
    /// The messages' tenant; empty for none.
    pub tenant: String,
    /// The requested pool; empty for the tenant's.
    #[serde(default)]
    pub pool: String,
    /// Names of the sources that the mail may leave from.
    pub sources: Vec<String>,
    /// Mail hosts by preference; empty if there are none, or none are known.
    pub site: String,
    /// The reason why the domain has no mail hosts; `None` if it has some.
    pub problem: Option<String>,
    /// Sections that apply, most specific last.
    pub sections: Vec<String>,
    /// The resulting values.
    pub values: Vec<Value>,
    /// Waiting recipients; `None` without a server.
    pub waiting: Option<u64>,
    /// Limits in use now; empty without a server.
    pub now: Vec<Now>,
}

/// A value, and where it is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// The key, as in a section.
    pub key: String,
    /// Its scope: `site`, `provider google`, `limit all`, `domain`, `tenant`.
    pub of: String,
    /// The source whose mail it is for; empty for all those explained.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The value.
    pub value: String,
    /// File and section that set it; empty for the configuration.
    pub from: String,
}

/// The state of a limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Now {
    /// The name of the limit.
    pub what: String,
    /// Its state, as text.
    pub state: String,
    /// True if mail is delayed by the limit now.
    pub binds: bool,
    /// Seconds until it lets something through, if known.
    pub secs: Option<f64>,
}

/// Values used where no rule sets one.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    /// Maximum concurrent connections.
    pub connections: usize,
    /// Messages that one connection carries.
    pub messages_per_connection: u64,
    /// Maximum recipients of one transaction.
    pub recipients_per_message: usize,
}

impl ShapingRules {
    /// The rules for a tenant's mail to a domain with known mail hosts, by source.
    pub fn explain(
        &self,
        domain: &str,
        tenant: &str,
        sources: &[&str],
        hosts: &[&str],
        defaults: Defaults,
    ) -> Explained {
        let joined = self.of_domain(domain);
        let mut sections = Sections::new();
        let mut of_sources = Vec::new();
        for source in sources {
            let site = self.of_site(source, hosts, &joined);
            sections.extend(&site.sections);
            let mut values = Values(Vec::new());
            values.of_site(&site, defaults);
            let of_domain = self.messages_to(domain, source);
            values.put("message_rate", "domain", of_domain.message_rate.as_ref());
            values.named(&of_domain.limits, "messages to the domain");
            of_sources.push((*source, values.0));
        }
        let mut values = Values(by_source(of_sources));
        if let Some(of) = self.messages_of(tenant) {
            values.put("message_rate", "tenant", of.message_rate.as_ref());
            values.named(&of.limits, "messages of the tenant");
        }
        let mut values = values.0;
        values.dedup();
        let sections = self.in_order(sections).into_iter().map(|section| self.title(section)).collect();
        Explained { domain: domain.to_owned(), tenant: tenant.to_owned(), sections, values, ..Explained::default() }
    }
}

/// The rules common to all sources once, then those of each.
fn by_source(of_sources: Vec<(&str, Vec<Value>)>) -> Vec<Value> {
    let is_of_all = |value: &Value| of_sources.iter().all(|(_, values)| values.contains(value));
    let first = of_sources.first().map_or(&[][..], |(_, values)| values);
    let mut all: Vec<Value> = first.iter().filter(|value| is_of_all(value)).cloned().collect();
    for (source, values) in &of_sources {
        let alone = values.iter().filter(|value| !is_of_all(value)).cloned();
        all.extend(alone.map(|value| Value { source: (*source).to_owned(), ..value }));
    }
    all
}

struct Values(Vec<Value>);

impl Values {
    fn of_site(&mut self, site: &OfSite, defaults: Defaults) {
        self.put_or("connections", site.connections.as_ref(), defaults.connections);
        self.put("connection_rate", "site", site.connection_rate.as_ref());
        self.put("connections_per_address", "site", site.connections_per_address.as_ref());
        self.put("message_rate", "site", site.message_rate.as_ref());
        self.put_or("messages_per_connection", site.messages_per_connection.as_ref(), defaults.messages_per_connection);
        self.put_or("recipients_per_message", site.recipients_per_message.as_ref(), defaults.recipients_per_message);
        self.put("failures_before_pause", "site", site.failures_before_pause.as_ref());
        self.put("chunking", "site", site.chunking.as_ref());
        for Sourced { value: total, from } in &site.totals {
            let of = format!("provider {}", total.name);
            let said = |value: Option<String>| Some(Sourced { value: value?, from: from.clone() });
            let texts = [
                ("connections", total.connections.map(|value| value.to_string())),
                ("connection_rate", total.connection_rate.map(|value| value.to_string())),
                ("message_rate", total.message_rate.map(|value| value.to_string())),
            ];
            texts.into_iter().for_each(|(key, value)| self.put(key, &of, said(value).as_ref()));
        }
        self.named(&site.limits, "");
    }

    fn named(&mut self, limits: &[NamedLimit], what: &str) {
        for NamedLimit { name, limit } in limits {
            let of = if what.is_empty() { format!("limit {name}") } else { format!("limit {name}, for {what}") };
            let said = |value: Option<String>| Some(Sourced { value: value?, from: limit.from.clone() });
            if what.is_empty() {
                self.put("connections", &of, said(limit.value.connections.map(|most| most.to_string())).as_ref());
                let rate = limit.value.connection_rate.map(|rate| rate.to_string());
                self.put("connection_rate", &of, said(rate).as_ref());
            }
            let rate = limit.value.message_rate.map(|rate| rate.to_string());
            self.put("message_rate", &of, said(rate).as_ref());
        }
    }

    fn put<T: Display>(&mut self, key: &str, of: &str, said: Option<&Sourced<T>>) {
        let Some(said) = said else { return };
        let value = said.value.to_string();
        let from = said.from.to_string();
        self.0.push(Value { key: key.to_owned(), of: of.to_owned(), source: String::new(), value, from });
    }

    fn put_or(&mut self, key: &str, said: Option<&Sourced<u32>>, default: impl Display) {
        match said {
            Some(_) => self.put(key, "site", said),
            None => {
                let said = Sourced { value: default.to_string(), from: "[relay]".into() };
                self.put(key, "site", Some(&said));
            }
        }
    }
}
