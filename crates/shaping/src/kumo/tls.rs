//! Converts KumoMTA's `enable_tls` to `[[relay.tls_policy]]` of the server's configuration. There policies belong to
//! domains, and the first that fits applies.

use toml::Value;

use super::keys::{Ignored, suffix};

/// Policies for domains, for those below a suffix, and for all others.
#[derive(Default)]
pub(super) struct TlsPolicies {
    domains: Vec<(String, &'static str)>,
    suffixes: Vec<(String, &'static str)>,
    default: Option<&'static str>,
}

impl TlsPolicies {
    pub fn of_default(&mut self, section: &mut Value, ignored: &mut Ignored) {
        // Our default needs no table.
        self.default = tls_policy("default", section, ignored).filter(|policy| *policy != "opportunistic");
    }

    pub fn of_domain(&mut self, name: &str, section: &mut Value, ignored: &mut Ignored) {
        self.domains.extend(tls_policy(name, section, ignored).map(|policy| (name.to_lowercase(), policy)));
    }

    pub fn of_provider(&mut self, name: &str, section: &mut Value, ignored: &mut Ignored) {
        let title = format!("provider.{name}");
        let Some(policy) = tls_policy(&title, section, ignored) else { return };
        let Some(all) = section.get("match").and_then(Value::as_array) else { return };
        for (kind, name) in all.iter().filter_map(Value::as_table).flatten() {
            match (kind.as_str(), name.as_str()) {
                ("DomainSuffix", Some(name)) => self.suffixes.push((suffix(&name.to_lowercase()), policy)),
                _ => ignored.push(&title, "enable_tls", &format!("a policy is for domains, but {kind} names hosts")),
            }
        }
    }

    /// The tables as text, in the order of application.
    pub fn tables(&self) -> String {
        let named = self.domains.iter().chain(&self.suffixes).map(|(name, policy)| (Some(name), *policy));
        let all = named.chain(self.default.map(|policy| (None, policy)));
        let table = |(name, policy): (Option<&String>, &str)| {
            let domain = name.map(|name| format!("domain = {}\n", Value::String(name.clone()))).unwrap_or_default();
            format!("[[relay.tls_policy]]\n{domain}policy = \"{policy}\"\n")
        };
        all.map(table).collect::<Vec<_>>().join("\n")
    }
}

/// Removes `enable_tls` from a section and converts it.
fn tls_policy(title: &str, section: &mut Value, ignored: &mut Ignored) -> Option<&'static str> {
    let value = section.as_table_mut()?.remove("enable_tls")?;
    match value.as_str() {
        Some("Opportunistic") => {
            ignored.push(title, "enable_tls", "Opportunistic takes any certificate here, or none");
            Some("opportunistic")
        }
        Some("OpportunisticInsecure") => Some("opportunistic"),
        Some("Required") => Some("verified"),
        Some("RequiredInsecure") => Some("required"),
        Some("Disabled") => Some("off"),
        _ => {
            ignored.push(title, "enable_tls", "Posthaste has nothing like it");
            None
        }
    }
}
