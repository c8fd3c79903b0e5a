//! Merges files into rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::automation::Builder;
use super::file::{self, File, Total};
use super::rules::{Kind, Section, Values};
use super::{ShapingError, ShapingRules, Sourced};

impl ShapingRules {
    /// Merges files: a later one overrides an earlier one by key; rules for replies add up.
    pub(super) fn merge(files: Vec<(File, String)>) -> Result<ShapingRules, ShapingError> {
        let mut rules = ShapingRules::default();
        let mut found = BTreeMap::<(usize, String), u32>::new();
        let mut builder = Builder::default();
        for (file, name) in files {
            for (limit, total) in file.limit {
                let from = from(&name, &format!("limit {limit}"));
                check_total(&total, &from)?;
                rules.limits.insert(limit, Sourced { value: total, from });
            }
            for (tenant, said) in file.tenant {
                let from = from(&name, &format!("tenant {tenant}"));
                let tenant = rules.tenants.entry(tenant).or_default();
                let rate = said.message_rate.map(|value| Sourced { value, from: from.clone() });
                tenant.message_rate.replace_if(rate);
                tenant.limits.extend(said.limits.into_iter().map(|value| Sourced { value, from: from.clone() }));
            }
            let default =
                Some((Kind::Default, String::new(), file.default)).filter(|(.., said)| *said != Default::default());
            let providers = file.provider.into_iter().map(|(name, said)| (Kind::Provider, name, said));
            let domains = file.domain.into_iter().map(|(name, said)| (Kind::Domain, name.to_lowercase(), said));
            for (kind, section, said) in default.into_iter().chain(providers).chain(domains) {
                let number = *found.entry((kind as usize, section.clone())).or_insert_with(|| {
                    let level = level(kind, &section);
                    rules.push(Section { kind, name: section.clone(), level, ..Section::default() })
                });
                rules.add(number, said, &name, &mut builder)?;
            }
        }
        let all: Vec<u32> = found.values().copied().collect();
        for number in all {
            let section = &rules.sections[number as usize];
            if section.kind == Kind::Domain {
                rules.by_domain.entry(section.name.clone()).or_default().push(number);
            }
        }
        rules.check_names()?;
        rules.automation = builder.build()?;
        Ok(rules)
    }

    fn push(&mut self, section: Section) -> u32 {
        self.sections.push(section);
        self.sections.len() as u32 - 1
    }

    /// The part of a section for a source.
    fn part(&mut self, number: u32, source: String, from: &Arc<str>) -> u32 {
        let Section { kind, name, level, parts, .. } = &self.sections[number as usize];
        if let Some(part) = parts.get(&source) {
            return *part;
        }
        let kind = *kind;
        let name = name.clone();
        let level = level + 1;
        let of = Some(Sourced { value: source.clone(), from: from.clone() });
        let part = self.push(Section { kind, name, level, source: of, ..Section::default() });
        self.sections[number as usize].parts.insert(source, part);
        part
    }

    fn add(&mut self, number: u32, said: file::Section, file: &str, builder: &mut Builder) -> Result<(), ShapingError> {
        let section = &mut self.sections[number as usize];
        let from = from(file, &section.title());
        let wrong = |why: &str| ShapingError::Meaning { section: from.to_string(), why: why.to_owned() };
        if said.replace {
            section.say_nothing();
            let parts: Vec<u32> = section.parts.values().copied().collect();
            parts.into_iter().for_each(|part| self.sections[part as usize].say_nothing());
            builder.drop_section(number);
            for patterns in [&mut self.by_domain, &mut self.by_mx] {
                patterns.values_mut().for_each(|sections| sections.retain(|other| *other != number));
            }
        }
        let section = &mut self.sections[number as usize];
        let says_which = !said.mx.is_empty() || !said.domains.is_empty();
        if section.source.is_some() && (says_which || !said.automation.is_empty() || !said.source.is_empty()) {
            return Err(wrong("a source has only limits: no `mx`, `domains`, `automation` or `source`"));
        }
        if (says_which || said.total != Total::default()) && section.kind != Kind::Provider {
            return Err(wrong("`mx`, `domains` and `total` are for providers"));
        }
        check_total(&said.total, &from)?;
        let counts = [
            said.connections,
            said.connections_per_address,
            said.messages_per_connection,
            said.recipients_per_message,
            said.failures_before_pause,
        ];
        if counts.contains(&Some(0)) {
            return Err(wrong("a count is at least 1; to send nothing, suspend it"));
        }
        if section.kind == Kind::Domain && !is_pattern(&section.name) {
            return Err(wrong("not a domain; to mean all domains below one, put a dot in front"));
        }
        let put = |place: &mut Option<Sourced<u32>>, value: Option<u32>| {
            place.replace_if(value.map(|value| Sourced { value, from: from.clone() }));
        };
        let values = &mut section.values;
        put(&mut values.connections, said.connections);
        put(&mut values.connections_per_address, said.connections_per_address);
        put(&mut values.messages_per_connection, said.messages_per_connection);
        put(&mut values.recipients_per_message, said.recipients_per_message);
        put(&mut values.failures_before_pause, said.failures_before_pause);
        let put = |place: &mut Option<Sourced<_>>, value: Option<_>| {
            place.replace_if(value.map(|value| Sourced { value, from: from.clone() }));
        };
        put(&mut values.connection_rate, said.connection_rate);
        put(&mut values.message_rate, said.message_rate);
        values.chunking.replace_if(said.chunking.map(|value| Sourced { value, from: from.clone() }));
        if said.total != Total::default() {
            section.total = vec![Sourced { value: said.total, from: from.clone() }];
        }
        section.limits.extend(said.limits.into_iter().map(|value| Sourced { value, from: from.clone() }));
        for pattern in said.mx.iter().chain(&said.domains) {
            if !is_pattern(pattern) {
                return Err(wrong(&format!(
                    "`{pattern}` is not a name; to mean all names below one, put a dot in front"
                )));
            }
        }
        for (patterns, index) in [(said.mx, &mut self.by_mx), (said.domains, &mut self.by_domain)] {
            for pattern in patterns {
                let sections = index.entry(pattern.to_lowercase()).or_default();
                if !sections.contains(&number) {
                    sections.push(number);
                }
            }
        }
        said.automation.into_iter().try_for_each(|rule| builder.add(number, rule, from.clone()))?;
        for (source, said) in said.source {
            let part = self.part(number, source, &from);
            self.add(part, said, file, builder)?;
        }
        Ok(())
    }

    /// Checks that named limits exist.
    fn check_names(&self) -> Result<(), ShapingError> {
        let named = self.sections.iter().flat_map(|section| &section.limits);
        let named = named.chain(self.tenants.values().flat_map(|tenant| &tenant.limits));
        for said in named {
            if !self.limits.contains_key(&said.value) {
                let why = format!("there is no `[limit.{}]`", said.value);
                return Err(ShapingError::Meaning { section: said.from.to_string(), why });
            }
        }
        Ok(())
    }
}

impl ShapingRules {
    /// Sources with limits of their own, each once.
    pub(super) fn sources(&self) -> Vec<String> {
        let named = self.sections.iter().filter_map(|section| section.source.as_ref());
        named.map(|source| source.value.to_string()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Checks for limits of unknown sources.
    ///
    /// # Errors
    /// [`ShapingError::Meaning`] for the first section with limits for a source outside `known`.
    pub fn check_sources(&self, known: &[&str]) -> Result<(), ShapingError> {
        let mut named = self.sections.iter().filter_map(|section| section.source.as_ref());
        let Some(unknown) = named.find(|source| !known.contains(&&*source.value)) else { return Ok(()) };
        let why = format!(
            "there is no source `{}`: add a [[relay.source]] of that name, or remove the section",
            unknown.value
        );
        Err(ShapingError::Meaning { section: unknown.from.to_string(), why })
    }
}

trait ReplaceIf<T> {
    fn replace_if(&mut self, value: Option<T>);
}

impl<T> ReplaceIf<T> for Option<T> {
    fn replace_if(&mut self, value: Option<T>) {
        if value.is_some() {
            *self = value;
        }
    }
}

impl Section {
    pub(super) fn title(&self) -> String {
        let title = match self.kind {
            Kind::Default => "default".to_owned(),
            Kind::Provider => format!("provider {}", self.name),
            Kind::Domain => format!("domain {}", self.name),
        };
        match &self.source {
            Some(source) => format!("{title} from {}", source.value),
            None => title,
        }
    }

    fn say_nothing(&mut self) {
        (self.values, self.total, self.limits) = (Values::default(), Vec::new(), Vec::new());
    }
}

/// The level of a section, always even: one more is that of its part for a source.
fn level(kind: Kind, name: &str) -> usize {
    match kind {
        Kind::Default => 0,
        Kind::Provider => 2,
        Kind::Domain if name.starts_with('.') => 2 + 2 * name.split('.').count(),
        Kind::Domain => usize::MAX - 1,
    }
}

fn from(file: &str, section: &str) -> Arc<str> {
    format!("{file}: {section}").into()
}

fn check_total(total: &Total, from: &Arc<str>) -> Result<(), ShapingError> {
    if total.connections == Some(0) {
        let why = "a count is at least 1; to send nothing, suspend it".to_owned();
        return Err(ShapingError::Meaning { section: from.to_string(), why });
    }
    Ok(())
}

/// True for a domain, a host or an address literal, or with a leading dot a suffix.
fn is_pattern(text: &str) -> bool {
    let name = text.strip_prefix('.').unwrap_or(text);
    let is_literal = name.len() > 2 && name.starts_with('[') && name.ends_with(']') && name.is_ascii();
    is_literal || posthaste_message::address::is_domain(name)
}
