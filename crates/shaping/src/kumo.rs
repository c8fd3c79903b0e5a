//! Converts shaping files of KumoMTA to ours, as far as their terms have an equivalent.

mod keys;
mod tls;

use posthaste_units::Rate;
use toml::{Table, Value};

use self::keys::{Ignored, suffix};
use self::tls::TlsPolicies;
use super::file::FILE_BYTES_MAX;
use super::{ShapingError, ShapingRules};

/// Result of a conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// The resulting shaping file, for [`ShapingRules::parse`].
    pub shaping: String,
    /// Tables `[[relay.tls_policy]]` for the server's configuration, from `enable_tls`, in the order of application.
    pub tls_policies: String,
    /// Keys without an equivalent: `section: key: reason`.
    pub ignored: Vec<String>,
    /// Sources with limits of their own, each once: the configuration must define them.
    pub sources: Vec<String>,
}

/// Error of a conversion.
#[derive(Debug, thiserror::Error)]
pub enum KumoError {
    /// Not TOML.
    #[error("it is not TOML: {0}")]
    Toml(String),
    /// Larger than 16 MiB.
    #[error("it is larger than 16 MiB")]
    Size,
    /// The result is not a valid shaping file.
    #[error("it cannot be converted: {0}")]
    Shaping(#[from] ShapingError),
}

/// Converts a file.
///
/// # Errors
/// See [`KumoError`].
pub fn convert(text: &str) -> Result<Converted, KumoError> {
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(KumoError::Size);
    }
    let file: Table = text.parse().map_err(|error: toml::de::Error| KumoError::Toml(error.message().to_owned()))?;
    let mut made = Table::new();
    let mut ignored = Ignored(Vec::new());
    let mut tls = TlsPolicies::default();
    for (name, value) in file {
        match (name.as_str(), value) {
            ("provider", Value::Table(providers)) => {
                for (name, mut value) in providers {
                    tls.of_provider(&name, &mut value, &mut ignored);
                    let section = section(&format!("provider.{name}"), value, true, &mut ignored);
                    put(&mut made, &["provider", &name], section, &mut ignored);
                }
            }
            ("default", mut value) => {
                tls.of_default(&mut value, &mut ignored);
                let section = section("default", value, false, &mut ignored);
                put(&mut made, &["default"], section, &mut ignored);
            }
            (domain, mut value) => {
                tls.of_domain(domain, &mut value, &mut ignored);
                let section = section(domain, value, false, &mut ignored);
                put(&mut made, &["domain", &domain.to_lowercase()], section, &mut ignored);
            }
        }
    }
    let shaping = made.to_string();
    let rules = ShapingRules::parse("shaping.toml", &shaping)?;
    // A list gives one for each entry.
    ignored.0.dedup();
    Ok(Converted { shaping, tls_policies: tls.tables(), ignored: ignored.0, sources: rules.sources() })
}

/// Adds a section at `path`, unless nothing in it could be converted.
fn put(made: &mut Table, path: &[&str], section: Table, ignored: &mut Ignored) {
    if section.is_empty() {
        return;
    }
    if let Err(error) = check(path, &section) {
        return ignored.push(&path.join("."), "the section", &error.to_string());
    }
    let mut table = made;
    for name in &path[..path.len() - 1] {
        let inner = table.entry((*name).to_owned()).or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(inner) = inner else { return };
        table = inner;
    }
    table.insert(path[path.len() - 1].to_owned(), Value::Table(section));
}

fn check(path: &[&str], section: &Table) -> Result<(), ShapingError> {
    let nested = |inner, name: &&str| Value::Table(Table::from_iter([((*name).to_owned(), inner)]));
    let file = path.iter().rev().fold(Value::Table(section.clone()), nested);
    ShapingRules::parse("shaping.toml", &toml::to_string(&file).unwrap_or_default()).map(drop)
}

fn section(title: &str, value: Value, is_provider: bool, ignored: &mut Ignored) -> Table {
    let mut out = Table::new();
    let mut total = Table::new();
    let Value::Table(keys) = value else {
        ignored.push(title, "", "it is not a section");
        return out;
    };
    for (key, value) in keys {
        let mut number = |to: &mut Table, name: &str| match value.as_integer().filter(|n| (1..1 << 31).contains(n)) {
            Some(count) => drop(to.insert(name.to_owned(), Value::Integer(count))),
            // With a leading scope, such as "local:32".
            None => match value.as_str().and_then(|text| unscoped(text).replace([',', '_'], "").parse::<u32>().ok()) {
                Some(count) if count > 0 => drop(to.insert(name.to_owned(), Value::Integer(count.into()))),
                _ => ignored.push(title, &key, "no number that can be had"),
            },
        };
        match key.as_str() {
            "connection_limit" => number(&mut out, "connections"),
            "max_deliveries_per_connection" => number(&mut out, "messages_per_connection"),
            "consecutive_connection_failures_before_delay" => number(&mut out, "failures_before_pause"),
            "max_recipients_per_batch" => number(&mut out, "recipients_per_message"),
            "provider_connection_limit" if is_provider => number(&mut total, "connections"),
            "max_connection_rate" | "max_message_rate" | "provider_max_message_rate" => match rate(&value) {
                Some(rate) if key == "provider_max_message_rate" => {
                    total.insert("message_rate".to_owned(), Value::String(rate.to_string()));
                }
                Some(rate) => {
                    out.insert(key.trim_start_matches("max_").to_owned(), Value::String(rate.to_string()));
                }
                None => ignored.push(title, &key, "an impossible rate"),
            },
            "replace_base" => drop(out.insert("replace".to_owned(), Value::Boolean(value.as_bool().unwrap_or(false)))),
            "mx_rollup" if value.as_bool() == Some(true) => {}
            "match" if is_provider => matches(title, &value, &mut out, ignored),
            "automation" => automations(title, value, &mut out, ignored),
            "sources" if title == "default" => ignored.push(title, &key, "KumoMTA applies it to nothing"),
            "sources" => of_sources(title, value, is_provider, &mut out, ignored),
            _ => ignored.push(title, &key, "Posthaste has nothing like it"),
        }
    }
    if !total.is_empty() {
        out.insert("total".to_owned(), Value::Table(total));
    }
    out
}

fn of_sources(title: &str, value: Value, is_provider: bool, out: &mut Table, ignored: &mut Ignored) {
    let Value::Table(sources) = value else { return ignored.push(title, "sources", "it is not a section") };
    let mut made = Table::new();
    for (source, mut value) in sources {
        let title = format!("{title}.sources.{source}");
        for key in ["match", "automation", "sources"] {
            if value.as_table_mut().and_then(|keys| keys.remove(key)).is_some() {
                ignored.push(&title, key, "a source has only limits");
            }
        }
        let section = section(&title, value, is_provider, ignored);
        if !section.is_empty() {
            made.insert(source, Value::Table(section));
        }
    }
    if !made.is_empty() {
        out.insert("source".to_owned(), Value::Table(made));
    }
}

/// Strips the scope from one of their limits.
fn unscoped(text: &str) -> &str {
    text.trim().strip_prefix("local:").unwrap_or(text).trim()
}

/// Parses `100/min`, `1,000/hour`, `local:5/s`, each with an optional `,max_burst=20`.
fn rate(value: &Value) -> Option<Rate> {
    let text = unscoped(value.as_str()?);
    let (text, burst) = match text.split_once(",max_burst=") {
        Some((text, burst)) => (text, Some(burst.trim().parse::<u32>().ok()?)),
        None => (text, None),
    };
    let (count, time) = text.split_once('/')?;
    let count: u32 = count.trim().replace([',', '_'], "").parse().ok()?;
    let time = match time.trim() {
        "hr" | "hrs" => "hour",
        other => other,
    };
    let rate: Rate = format!("{count}/{time}").parse().ok()?;
    match burst {
        Some(burst) => Rate::new(rate.count(), rate.seconds(), burst).ok(),
        None => Some(rate),
    }
}

fn matches(title: &str, value: &Value, out: &mut Table, ignored: &mut Ignored) {
    let mut mx = Vec::new();
    let mut domains = Vec::new();
    for one in value.as_array().into_iter().flatten() {
        for (kind, name) in one.as_table().into_iter().flatten() {
            let Some(name) = name.as_str().map(str::to_lowercase) else { continue };
            match kind.as_str() {
                "MXSuffix" => mx.push(Value::String(suffix(&name))),
                "HostName" => mx.push(Value::String(name)),
                "DomainSuffix" => domains.push(Value::String(suffix(&name))),
                _ => ignored.push(title, &format!("match {kind}"), "Posthaste has nothing like it"),
            }
        }
    }
    for (key, list) in [("mx", mx), ("domains", domains)] {
        if !list.is_empty() {
            out.insert(key.to_owned(), Value::Array(list));
        }
    }
}

/// Converts a suffix: theirs is any end of a text, ours begins at a dot.
fn automations(title: &str, value: Value, out: &mut Table, ignored: &mut Ignored) {
    let mut made = Vec::new();
    for rule in value.as_array().into_iter().flatten().filter_map(Value::as_table) {
        match automation(rule) {
            Ok(rules) => {
                for ours in rules {
                    let alone = Table::from_iter([("automation".to_owned(), vec![ours.clone()].into())]);
                    match check(&["default"], &alone) {
                        Ok(()) => made.push(Value::Table(ours)),
                        Err(error) => ignored.push(title, &named(rule), &error.to_string()),
                    }
                }
            }
            Err(why) => ignored.push(title, &named(rule), why),
        }
    }
    if !made.is_empty() {
        out.insert("automation".to_owned(), Value::Array(made));
    }
}

/// A title of an automation, for people.
fn named(rule: &Table) -> String {
    let regex = rule.get("regex").map(Value::to_string).unwrap_or_default();
    format!("automation {}", regex.chars().take(100).collect::<String>())
}

/// Converts an automation to one rule for each action.
fn automation(rule: &Table) -> Result<Vec<Table>, &'static str> {
    let patterns = match rule.get("regex") {
        Some(Value::String(regex)) => vec![regex.clone()],
        Some(Value::Array(all)) => all.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect(),
        _ => return Err("it has no regex"),
    };
    if rule.get("match_internal").and_then(Value::as_bool) == Some(true) {
        return Err("rules do not apply to replies of our own");
    }
    let time = rule.get("duration").and_then(Value::as_str).ok_or("it has no duration")?;
    let secs = posthaste_units::duration(time).map_err(|_| "a duration that cannot be read")?.as_secs().max(1);
    let mut all = Vec::new();
    let actions = match rule.get("action") {
        Some(Value::Array(actions)) => actions.clone(),
        Some(action) => vec![action.clone()],
        None => return Err("it has no action"),
    };
    for action in actions {
        let mut made = Table::new();
        made.insert("patterns".to_owned(), patterns.clone().into());
        if let Some(Value::Table(trigger)) = rule.get("trigger") {
            let threshold = trigger.get("Threshold").and_then(rate).ok_or("an unknown trigger")?;
            made.insert("after".to_owned(), format!("{}/{}s", threshold.count(), threshold.seconds()).into());
        }
        made.insert("for".to_owned(), Value::Integer(secs as i64));
        match &action {
            Value::String(name) => {
                let (action, of) = match name.as_str() {
                    "Suspend" => ("suspend", "site"),
                    "SuspendTenant" => ("suspend", "tenant"),
                    "SuspendCampaign" => ("suspend", "campaign"),
                    "Bounce" => ("bounce", "domain"),
                    "BounceTenant" => ("bounce", "tenant"),
                    "BounceCampaign" => ("bounce", "campaign"),
                    _ => return Err("an unknown action"),
                };
                made.insert("action".to_owned(), action.into());
                made.insert("of".to_owned(), of.into());
            }
            Value::Table(set) => {
                let set = set.get("SetConfig").and_then(Value::as_table).ok_or("an unknown action")?;
                let value = set.get("value").ok_or("SetConfig without a value")?;
                made.insert("action".to_owned(), "slow".into());
                match set.get("name").and_then(Value::as_str) {
                    Some("max_message_rate") => {
                        let rate = rate(value).ok_or("SetConfig with an impossible rate")?;
                        made.insert("message_rate".to_owned(), rate.to_string().into());
                    }
                    Some("connection_limit") => {
                        let most = value.as_integer().filter(|most| (1..1 << 31).contains(most));
                        made.insert("connections".to_owned(), most.ok_or("SetConfig with no number")?.into());
                    }
                    _ => return Err("SetConfig of a key that cannot be slowed down"),
                }
            }
            _ => return Err("an unknown action"),
        }
        all.push(made);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAMPLE: &str = r#"
        ["default"]
        connection_limit = 10
        max_connection_rate = "100/min"
        max_deliveries_per_connection = 100
        consecutive_connection_failures_before_delay = 7
        max_message_rate = "100/s,max_burst=200"
        enable_tls = "RequiredInsecure"
        [provider."big"]
        match = [{MXSuffix=".Big.example"}, {DomainSuffix="big.example"}, {Else="x"}]
        provider_connection_limit = "local:5"
        enable_tls = "Disabled"
        provider_max_message_rate = "1,000/hr"
        [[provider."big".automation]]
        regex = "\\[TS04\\]"
        action = "Suspend"
        trigger = {Threshold="10/hr"}
        duration = "2 hours"
        ["Closed.example"]
        enable_tls = "Required"
        ["any.example"]
        enable_tls = "Opportunistic"
        ["odd.example"]
        enable_tls = "Sometimes"
        [["Closed.example".automation]]
        regex = ["RL0000", "closed"]
        action = [{SetConfig={name="max_message_rate", value="1/min"}}, "Bounce"]
        duration = "90 minutes"
        [["Closed.example".automation]]
        regex = "no auth"
        action = ["SuspendTenant", "SuspendCampaign", "BounceTenant"]
        duration = "1 hour"
        [["Closed.example".automation]]
        regex = "odd one"
        action = "SuspendEverything"
        duration = "1 hour"
        ["Closed.example".sources."ip-1"]
        connection_limit = 2
        tls_prefer_openssl = true
        automation = []
        [provider."big".sources."ip 2"]
        max_message_rate = "10/min"
        provider_connection_limit = 2
        ["default".sources."ip-1"]
        connection_limit = 1
    "#;

    #[test]
    fn what_has_an_equivalent_is_converted_and_the_rest_is_named() {
        let converted = convert(SAMPLE).unwrap();
        let rules = ShapingRules::parse("shaping.toml", &converted.shaping).unwrap();
        let big = rules.of_site("ip-1", &["mx1.big.example"], &rules.of_domain("other.example"));
        assert_eq!(big.connections.unwrap().value, 10);
        assert_eq!(big.failures_before_pause.unwrap().value, 7);
        assert_eq!(big.totals[0].value.connections, Some(5));
        assert_eq!(big.totals[0].value.message_rate.unwrap(), "1000/hour".parse().unwrap());
        assert_eq!(big.message_rate.unwrap().value, "100/s, burst 200".parse().unwrap());
        let automation: Vec<_> =
            rules.automation().rules().iter().map(|rule| (rule.action, rule.target, rule.after, rule.secs)).collect();
        use super::super::file::{AutomationAction, AutomationTarget};
        let expected = [
            (AutomationAction::Suspend, AutomationTarget::Site, (10, 3600), 7200),
            (AutomationAction::Slow, AutomationTarget::Site, (1, 1), 5400),
            (AutomationAction::Bounce, AutomationTarget::Domain, (1, 1), 5400),
            (AutomationAction::Suspend, AutomationTarget::Tenant, (1, 1), 3600),
            (AutomationAction::Suspend, AutomationTarget::Campaign, (1, 1), 3600),
            (AutomationAction::Bounce, AutomationTarget::Tenant, (1, 1), 3600),
        ];
        assert!(expected.iter().all(|rule| automation.contains(rule)) && automation.len() == 6, "{automation:?}");
        let of = |source: &str, domain: &str| rules.of_site(source, &["mx1.big.example"], &rules.of_domain(domain));
        let big = of("ip 2", "other.example");
        let totals: Vec<_> = big.totals.iter().filter_map(|total| total.value.connections).collect();
        assert_eq!((big.message_rate.unwrap().value, totals), ("10/min".parse().unwrap(), vec![2]));
        let connections = |source, domain| of(source, domain).connections.unwrap().value;
        assert_eq!((connections("ip-1", "closed.example"), connections("ip 2", "closed.example")), (2, 10));
        let expected = [
            "[provider.big] enable_tls: a policy is for domains, but MXSuffix names hosts",
            "[provider.big] enable_tls: a policy is for domains, but Else names hosts",
            "[any.example] enable_tls: Opportunistic takes any certificate here, or none",
            "[odd.example] enable_tls: Posthaste has nothing like it",
            "[default] sources: KumoMTA applies it to nothing",
            "[provider.big] match Else: Posthaste has nothing like it",
            "[Closed.example] automation \"odd one\": an unknown action",
            "[Closed.example.sources.ip-1] automation: a source has only limits",
            "[Closed.example.sources.ip-1] tls_prefer_openssl: Posthaste has nothing like it",
        ];
        let mut ignored: Vec<&str> = converted.ignored.iter().map(String::as_str).collect();
        ignored.sort_unstable();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(ignored, expected);
        let policies: Table = converted.tls_policies.parse().unwrap();
        let policy = |table: &Value| {
            let text = |key: &str| table.get(key).map(|value| value.as_str().unwrap().to_owned());
            (text("domain").unwrap_or_default(), text("policy").unwrap())
        };
        let policies: Vec<_> = policies["relay"]["tls_policy"].as_array().unwrap().iter().map(policy).collect();
        let expected = [
            ("closed.example", "verified"),
            ("any.example", "opportunistic"),
            (".big.example", "off"),
            ("", "required"),
        ];
        assert_eq!(policies, expected.map(|(domain, policy)| (domain.to_owned(), policy.to_owned())));
    }

    #[test]
    fn what_is_no_file_of_theirs_is_an_error() {
        assert!(matches!(convert("[a"), Err(KumoError::Toml(_))));
        assert!(matches!(convert(&" ".repeat(17 << 20)), Err(KumoError::Size)));
        assert_eq!(
            convert("").unwrap(),
            Converted { shaping: String::new(), tls_policies: String::new(), ignored: Vec::new(), sources: Vec::new() }
        );
        assert_eq!(convert("x = 1").unwrap().ignored.len(), 1);
    }

    proptest! {
        /// Any value gives a valid file of ours or an error.
        #[test]
        fn any_value_is_converted_or_named(
            key in prop::sample::select(vec![
                "connection_limit", "max_message_rate", "match", "automation", "provider_connection_limit", "replace_base", "sources", "enable_tls", "x",
            ]),
            value in prop_oneof![
                any::<i64>().prop_map(|number| number.to_string()),
                "[a-z0-9/,:._ ]{0,20}".prop_map(|text| format!("\"{text}\"")),
                Just("[{}]".to_owned()),
                "[a-z. ]{0,8}".prop_map(|name| format!("{{'{name}' = {{connection_limit = 1, max_message_rate = '{name}', sources = {{}}}}}}")),
                "[a-z]{1,8}".prop_map(|text| format!("[{{regex = \"{text}\", action = \"Suspend\", duration = \"{text}\"}}]")),
            ],
        ) {
            let _ = convert(&format!("[default]\n{key} = {value}\n[provider.a]\n{key} = {value}\n['b.example']\n{key} = {value}\n"));
        }
    }
}
