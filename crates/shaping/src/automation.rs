//! Rules for replies: matching a reply, and counting up to a threshold.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use posthaste_units::Rate;
use regex::{RegexBuilder, RegexSet, RegexSetBuilder};

use super::file::{self, AutomationAction, AutomationTarget};
use super::{MailScope, Sections, ShapingError};

/// A rule that acts on matching replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutomationRule {
    /// Number of the section that contains the rule.
    pub section: u32,
    /// File and section of the rule, for display.
    pub from: Arc<str>,
    /// Classes of replies that it matches, beside its patterns.
    pub classes: Vec<String>,
    /// Replies, and the seconds within which they count.
    pub after: (u32, u32),
    /// The action.
    pub action: AutomationAction,
    /// The scope of the action.
    pub target: AutomationTarget,
    /// Duration of the action, in seconds.
    pub secs: u32,
    /// Rate of messages, for slowing down.
    pub message_rate: Option<Rate>,
    /// Maximum connections while slowed down; `None`: not limited.
    pub connections: Option<u32>,
}

/// All rules.
#[derive(Debug, Default)]
pub struct Automation {
    rules: Vec<AutomationRule>,
    patterns: RegexSet,
    /// Index of the rule that each pattern belongs to.
    owners: Vec<u32>,
}

/// Collects rules.
#[derive(Debug, Default)]
pub(super) struct Builder {
    rules: Vec<(AutomationRule, Vec<String>)>,
}

impl Builder {
    pub fn drop_section(&mut self, section: u32) {
        self.rules.retain(|(rule, _)| rule.section != section);
    }

    pub fn add(&mut self, section: u32, said: file::Automation, from: Arc<str>) -> Result<(), ShapingError> {
        let wrong = |why: String| Err(ShapingError::Meaning { section: format!("{from}: automation"), why });
        if said.patterns.is_empty() && said.classes.is_empty() {
            return wrong("it needs `patterns` or `classes`".to_owned());
        }
        for pattern in &said.patterns {
            if let Err(why) = check_pattern(pattern) {
                let pattern: String = pattern.chars().take(100).collect();
                return wrong(format!("pattern `{pattern}`: {why}"));
            }
        }
        let secs = match u32::try_from(said.secs) {
            Ok(secs) if (1..=SECS_MAX).contains(&secs) => secs,
            _ => return wrong("`for` is 1 second to a year".to_owned()),
        };
        let after = match said.after.as_deref().map(str::parse::<Rate>) {
            None => (1, 1),
            Some(Ok(rate)) if rate.count() <= COUNT_MAX => (rate.count(), rate.seconds()),
            Some(Ok(_)) => return wrong(format!("`after` counts {COUNT_MAX} replies at most")),
            Some(Err(error)) => return wrong(format!("after: {error}")),
        };
        let is_slow = said.message_rate.is_some() || said.connections.is_some();
        match said.action {
            AutomationAction::Slow if !is_slow => {
                return wrong("`slow` needs `message_rate` or `connections`".to_owned());
            }
            AutomationAction::Slow if said.connections == Some(0) => return wrong("a count is at least 1".to_owned()),
            AutomationAction::Slow if said.connections.is_some() && said.of != AutomationTarget::Site => {
                return wrong("`connections` needs `of = \"site\"`".to_owned());
            }
            AutomationAction::Slow => {}
            _ if is_slow => return wrong("`message_rate` and `connections` are for `slow` only".to_owned()),
            AutomationAction::Bounce if said.of == AutomationTarget::Site => {
                return wrong("mail is bounced by domain: set `of` to `domain`, `tenant` or `campaign`".to_owned());
            }
            _ => {}
        }
        let rule = AutomationRule {
            section,
            from,
            classes: said.classes,
            after,
            action: said.action,
            target: said.of,
            secs,
            message_rate: said.message_rate,
            connections: said.connections,
        };
        self.rules.push((rule, said.patterns));
        Ok(())
    }

    pub fn build(self) -> Result<Automation, ShapingError> {
        let mut all = Automation::default();
        let mut patterns = Vec::new();
        for (number, (rule, of_rule)) in self.rules.into_iter().enumerate() {
            all.owners.extend(of_rule.iter().map(|_| number as u32));
            patterns.extend(of_rule);
            all.rules.push(rule);
        }
        let built = RegexSetBuilder::new(patterns).case_insensitive(true).size_limit(SET_BYTES_MAX).build();
        all.patterns = built.map_err(|_| ShapingError::Meaning {
            section: "automation".to_owned(),
            why: "the patterns together are too large".to_owned(),
        })?;
        Ok(all)
    }
}

impl Automation {
    /// See [`ShapingRules::share`](super::ShapingRules::share).
    pub(super) fn share(&mut self, parts: u32) {
        for rule in &mut self.rules {
            rule.message_rate = rule.message_rate.map(|rate| rate.share(parts));
            rule.connections = rule.connections.map(|most| (most / parts).max(1));
        }
    }

    /// The rules.
    pub fn rules(&self) -> &[AutomationRule] {
        &self.rules
    }

    /// Numbers of the rules in these sections that match a line `code enhanced text`, ascending, each once. Calls
    /// `class` for the line's class only if needed.
    pub fn matching(&self, line: &str, sections: &Sections, class: impl FnOnce() -> String) -> Vec<u32> {
        if self.rules.is_empty() {
            return Vec::new();
        }
        let line = &line[..line.floor_char_boundary(LINE_BYTES_MAX)];
        let mut found: Vec<u32> = self.patterns.matches(line).iter().map(|pattern| self.owners[pattern]).collect();
        if self.rules.iter().any(|rule| !rule.classes.is_empty()) {
            let class = class();
            let is_it = |rule: &AutomationRule| rule.classes.contains(&class);
            found.extend((0..).zip(&self.rules).filter(|(_, rule)| is_it(rule)).map(|(number, _)| number));
        }
        found.retain(|number| sections.contains(&self.rules[*number as usize].section));
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Recent replies, by rule and scope. In memory only.
#[derive(Debug, Default)]
pub struct Counts {
    seen: HashMap<(u32, MailScope), VecDeque<u64>>,
}

impl Counts {
    /// Counts a reply at a time in seconds. True if the rule applies now; the count then starts anew.
    pub fn is_enough(&mut self, number: u32, rule: &AutomationRule, of: &MailScope, now: u64) -> bool {
        let (count, secs) = rule.after;
        if count <= 1 {
            return true;
        }
        if self.seen.len() >= COUNTED_MAX {
            // Forgetting only makes a rule apply later.
            self.seen.clear();
        }
        let times = self.seen.entry((number, of.clone())).or_default();
        while times.front().is_some_and(|time| time.saturating_add(secs.into()) <= now) {
            times.pop_front();
        }
        times.push_back(now);
        if times.len() < count as usize {
            return false;
        }
        self.seen.remove(&(number, of.clone()));
        true
    }
}

fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err("it is too long".to_owned());
    }
    match RegexBuilder::new(pattern).case_insensitive(true).size_limit(COMPILED_BYTES_MAX).build() {
        Err(regex::Error::CompiledTooBig(_)) => Err("it is too large: avoid counts such as {1000}".to_owned()),
        Err(error) => Err(error.to_string().lines().last().unwrap_or_default().to_owned()),
        Ok(regex) if regex.is_match("") => Err("it matches everything".to_owned()),
        Ok(_) => Ok(()),
    }
}

/// Octets of a line of a reply that are matched.
pub const LINE_BYTES_MAX: usize = 2000;
const SECS_MAX: u32 = 366 * 86_400;
/// Maximum number of replies in the threshold of a rule.
const COUNT_MAX: u32 = 1000;
/// Maximum counted pairs of rule and scope; beyond it all counts start anew.
const COUNTED_MAX: usize = 10_000;
const PATTERN_BYTES_MAX: usize = 1000;
const COMPILED_BYTES_MAX: usize = 1 << 20;
const SET_BYTES_MAX: usize = 64 << 20;
