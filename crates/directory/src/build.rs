//! Builds a directory from a configuration, and validates it.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use posthaste_message::address::{ForwardPath, is_domain, quoted};
use posthaste_units::words::{Key, Problem};

use crate::aliases::{self, Action, AliasId, Aliases, Checked, Target, Wrong};
use crate::config::{Domain, Targets, Users};
use crate::directory::{CatchAll, Directory, PatternTarget, Table};
use crate::names::{directory_name, folded, folded_domain};
use crate::pattern::{Expression, Template};
use crate::route::{DirectoryRefusal, Mailbox, Place};
use crate::transport::Transport;

impl Directory {
    /// Makes the directory of these domains. `mailbox` is the last part of each mailbox's path, such as `Maildir`.
    ///
    /// # Errors
    /// A mistake in the domains, as entries of a list `domain`.
    pub fn new(domains: &[Domain], mailbox: &str) -> Result<Self, Problem> {
        let mut directory = Self {
            domains: Vec::with_capacity(domains.len()),
            by_name: HashMap::new(),
            aliases: Aliases::default(),
            mailbox: mailbox.into(),
        };
        for (index, domain) in domains.iter().enumerate() {
            directory.add(domain).map_err(|problem| within(index, problem))?;
        }
        let mut origins = Vec::new();
        for (index, domain) in domains.iter().enumerate() {
            let names = named(domain, index, &mut origins).map_err(|problem| within(index, problem))?;
            directory.domains[index].aliases = names;
        }
        let mut actions = Vec::with_capacity(origins.len());
        for origin in &origins {
            let action = directory.action(&origin.targets, origin.domain as u32, origin.name());
            actions.push(action.map_err(|problem| origin.problem(problem))?);
        }
        let mut catch_alls = Vec::new();
        for (index, domain) in domains.iter().enumerate() {
            let problem = |problem| within(index, problem);
            let patterns = directory.patterns(domain, index as u32, &mut origins, &mut actions).map_err(problem)?;
            directory.domains[index].patterns = patterns;
            if let Some(targets) = directory.catch_all(domain, index as u32).map_err(problem)? {
                catch_alls.push((index, actions.len() as AliasId));
                origins.push(Origin {
                    domain: index,
                    at: At::CatchAll,
                    targets: Cow::Borrowed(domain.catch_all.as_ref().expect("it has one")),
                });
                actions.push(targets);
            }
        }
        let own = |alias: AliasId| {
            let Origin { domain, at: At::Alias(name) | At::Forward(name), .. } = origins[alias as usize] else {
                return None;
            };
            let user = folded(name);
            directory.own(domain as u32, &user, &user).ok()
        };
        let name = |alias: AliasId| match &origins[alias as usize].at {
            At::Alias(name) | At::Forward(name) => (*name).to_owned(),
            At::Pattern(index) => domains[origins[alias as usize].domain].patterns[*index].expression.clone(),
            At::CatchAll => "catch_all".to_owned(),
        };
        let checked = aliases::check(actions, own, name);
        let Checked { aliases, delivers } = checked.map_err(|Wrong { alias, target, message }| {
            origins[alias as usize].problem(Problem::new([target.into()], message))
        })?;
        for (index, alias) in catch_alls {
            directory.domains[index].catch_all = Some(CatchAll { alias, delivers: delivers[alias as usize] });
        }
        for table in &directory.domains {
            if let Some(&alias) = table.aliases.get("postmaster").filter(|alias| !delivers[**alias as usize]) {
                let message = "mail for the postmaster has to reach a mailbox (RFC 5321 section 4.5.1)";
                return Err(origins[alias as usize].problem(Problem::new([], message)));
            }
        }
        directory.aliases = aliases;
        Ok(directory)
    }

    /// Adds a domain with its users.
    fn add(&mut self, domain: &Domain) -> Result<(), Problem> {
        let name = domain_name(&domain.name).map_err(|message| Problem::new(["name".into()], message))?;
        let directory = directory_name(&name)
            .map_err(|_| Problem::new(["name".into()], "the domain is too long to be a directory"))?;
        let mut separator = domain.sub_addressing.chars();
        let separator = match (separator.next(), separator.next()) {
            (None, _) => None,
            (Some(c), None) if c.is_ascii_punctuation() && !matches!(c, '@' | '.' | '"' | '\\') => Some(c),
            _ => return Err(Problem::new(["sub_addressing".into()], "one character such as `+` or `-`, or empty")),
        };
        let users = match &domain.users {
            Users::Any => None,
            Users::Listed(users) => Some(listed(users)?),
        };
        let index = self.domains.len() as u32;
        self.name(&domain.name, &name, index).map_err(|message| Problem::new(["name".into()], message))?;
        for (position, alias) in domain.domain_aliases.iter().enumerate() {
            let problem = |message| Problem::new(["domain_aliases".into(), position.into()], message);
            let name = domain_name(alias).map_err(problem)?;
            self.name(alias, &name, index).map_err(problem)?;
        }
        let name = name.into_owned();
        let aliases = HashMap::new();
        let patterns = Vec::new();
        let catch_all = None;
        let of_all =
            domain.transport.as_deref().map(|text| transport(text, || vec!["transport".into()])).transpose()?;
        let mut transports = HashMap::new();
        for (account, settings) in &domain.accounts {
            let at = || vec!["accounts".into(), Key::Name(account.clone()), "transport".into()];
            if let Some(text) = &settings.transport {
                transports.insert(folded(account).into(), transport(text, at)?);
            }
        }
        self.domains.push(Table {
            name,
            directory,
            users,
            aliases,
            patterns,
            catch_all,
            separator,
            detail_folders: domain.detail_folders,
            transport: of_all,
            transports,
        });
        Ok(())
    }

    fn name(&mut self, given: &str, name: &str, domain: u32) -> Result<(), String> {
        match self.by_name.entry(name.into()) {
            Entry::Vacant(entry) => {
                entry.insert(domain);
                Ok(())
            }
            Entry::Occupied(_) if name == given.to_ascii_lowercase() => {
                Err(format!("the domain `{given}` is listed twice"))
            }
            Entry::Occupied(_) => Err(format!("`{given}` is another spelling of `{name}`, which is listed, too")),
        }
    }

    /// The action of `targets` of the alias `name` in `domain`. Errors point at the target.
    fn action(&self, targets: &Targets, domain: u32, name: &str) -> Result<Action, Problem> {
        let targets = match targets {
            Targets::Discard => return Ok(Action::Discard),
            Targets::Refuse(reply) => {
                let refusal =
                    DirectoryRefusal::configured(reply).map_err(|message| Problem::new(["refuse".into()], message))?;
                return Ok(Action::Refuse(refusal));
            }
            Targets::To(targets) => targets,
        };
        if targets.is_empty() {
            return Err(Problem::new([], "has no target; write { discard = true } to discard its mail"));
        }
        let target = |(index, target): (usize, &String)| {
            self.written_target(target, domain, name).map_err(|message| Problem::new([index.into()], message))
        };
        targets.iter().enumerate().map(target).collect::<Result<_, _>>().map(Action::To)
    }

    fn written_target(&self, target: &str, domain: u32, name: &str) -> Result<Target, String> {
        if let Some(transport) = Transport::parse(target) {
            let place = Place::Transport(transport?.into());
            let address = format!("{}@{}", quoted(&folded(name)), self.domains[domain as usize].name).into();
            return Ok(Target::Mailbox(Mailbox { place, address }));
        }
        if let Some(mailbox) = self.outside(target)? {
            return Ok(Target::Mailbox(mailbox));
        }
        let (local, domain) = self.parts(target, domain)?;
        self.known_target(local, domain, target)
    }

    /// The target's address if it is at another host; `None` if its domain is ours.
    fn outside(&self, target: &str) -> Result<Option<Mailbox>, String> {
        let Some((local, domain)) = target.rsplit_once('@') else { return Ok(None) };
        let domain = folded_domain(domain).ok_or_else(|| format!("`{domain}` is not a domain"))?;
        if self.by_name.contains_key(&*domain) {
            return Ok(None);
        }
        // A name without a dot is a mistake: no mail host of another network has one.
        if !domain.contains('.') {
            return Err(format!("`{domain}` is not one of our domains"));
        }
        let address = format!("{local}@{domain}");
        if !address.is_ascii() || ForwardPath::parse(&format!("<{address}>")).is_err() {
            return Err(format!("`{target}` is not an address that other hosts take"));
        }
        Ok(Some(Mailbox { place: Place::Remote, address: address.into() }))
    }

    /// `written`: the target as configured.
    fn known_target(&self, local: &str, domain: u32, written: &str) -> Result<Target, String> {
        self.target(domain, local).map_err(|refusal| match refusal {
            DirectoryRefusal::BadName => format!("`{written}` cannot be a mailbox name"),
            _ => format!("there is no user or alias `{written}`"),
        })
    }

    /// Local part and domain of a target in `domain`.
    fn parts<'a>(&self, target: &'a str, domain: u32) -> Result<(&'a str, u32), String> {
        let Some((local, domain)) = target.rsplit_once('@') else { return Ok((target, domain)) };
        let name = folded_domain(domain).ok_or_else(|| format!("`{domain}` is not a domain"))?;
        let index = self.by_name.get(&*name).copied();
        let index = index.ok_or_else(|| {
            format!("`{domain}` is not one of our domains; make an alias whose target is that address, and name the alias here")
        })?;
        Ok((local, index))
    }

    /// The patterns of a domain. Patterns without groups in their targets become aliases without a name.
    fn patterns<'a>(
        &self,
        domain: &'a Domain,
        index: u32,
        origins: &mut Vec<Origin<'a>>,
        actions: &mut Vec<Action>,
    ) -> Result<Vec<(Expression, PatternTarget)>, Problem> {
        if domain.patterns.len() > PATTERNS_MAX {
            let at = ["pattern".into(), PATTERNS_MAX.into()];
            return Err(Problem::new(at, format!("a domain has at most {PATTERNS_MAX} patterns")));
        }
        let mut patterns = Vec::with_capacity(domain.patterns.len());
        for (number, pattern) in domain.patterns.iter().enumerate() {
            let at = |key: &str| vec!["pattern".into(), number.into(), key.into()];
            let expression =
                Expression::new(&pattern.expression).map_err(|message| Problem::new(at("match"), message))?;
            let mut templates = Vec::new();
            let mut fixed = Vec::new();
            let written = if let Targets::To(targets) = &pattern.to { targets.as_slice() } else { &[] };
            for (position, target) in written.iter().enumerate() {
                let problem = |message| Problem::new([at("to"), vec![position.into()]].concat(), message);
                if Transport::parse(target).is_some() {
                    let message =
                        "a pattern leads to users and aliases; make an alias for this and lead the pattern to it";
                    return Err(problem(message.to_owned()));
                }
                let (local, domain) = self.parts(target, index).map_err(problem)?;
                let template = Template::new(local, &expression).map_err(problem)?;
                if let Some(local) = template.fixed() {
                    fixed.push(self.known_target(&local, domain, target).map_err(problem)?);
                }
                templates.push((template, domain));
            }
            let lead = if fixed.len() < templates.len() {
                PatternTarget::Filled(templates)
            } else {
                let alias = actions.len() as AliasId;
                actions.push(if fixed.is_empty() {
                    self.action(&pattern.to, index, "").map_err(|problem| problem.within(at("to")))?
                } else {
                    Action::To(fixed.into())
                });
                origins.push(Origin {
                    domain: index as usize,
                    at: At::Pattern(number),
                    targets: Cow::Borrowed(&pattern.to),
                });
                PatternTarget::Alias(alias)
            };
            patterns.push((expression, lead));
        }
        Ok(patterns)
    }

    fn catch_all(&self, domain: &Domain, index: u32) -> Result<Option<Action>, Problem> {
        let Some(targets) = &domain.catch_all else { return Ok(None) };
        if domain.users == Users::Any {
            return Err(Problem::new(["catch_all".into()], "not with `users` as \"any\""));
        }
        self.action(targets, index, "").map(Some).map_err(|problem| problem.within(["catch_all".into()]))
    }
}

/// The origin of an alias.
struct Origin<'a> {
    domain: usize,
    at: At<'a>,
    targets: Cow<'a, Targets>,
}

enum At<'a> {
    Alias(&'a str),
    /// `forward` of an account.
    Forward(&'a str),
    Pattern(usize),
    CatchAll,
}

impl Origin<'_> {
    /// The alias's name. Never called for patterns and a catch-all, which have none.
    fn name(&self) -> &str {
        if let At::Alias(name) | At::Forward(name) = self.at { name } else { "" }
    }

    /// Attaches an error to one target, or to all of them.
    fn problem(&self, problem: Problem) -> Problem {
        let at = match &self.at {
            At::Alias(name) => vec!["aliases".into(), Key::Name((*name).to_owned())],
            At::Forward(name) => vec!["accounts".into(), Key::Name((*name).to_owned()), "forward".into()],
            At::Pattern(index) => vec!["pattern".into(), (*index).into(), "to".into()],
            At::CatchAll => vec!["catch_all".into()],
        };
        within(self.domain, problem.within(at))
    }
}

/// Gives the aliases of a domain their ids.
fn named<'a>(
    domain: &'a Domain,
    index: usize,
    origins: &mut Vec<Origin<'a>>,
) -> Result<HashMap<Box<str>, AliasId>, Problem> {
    let mut names = HashMap::with_capacity(domain.aliases.len());
    for (alias, targets) in &domain.aliases {
        let at = || ["aliases".into(), Key::Name(alias.clone())];
        let folded = folded(alias);
        if alias.contains('@') || directory_name(&folded).is_err() {
            return Err(Problem::new(at(), format!("`{alias}` is not the local part of an address")));
        }
        if names.insert(folded.into(), origins.len() as AliasId).is_some() {
            return Err(Problem::new(at(), format!("the alias `{alias}` is listed twice")));
        }
        origins.push(Origin { domain: index, at: At::Alias(alias), targets: Cow::Borrowed(targets) });
    }
    for (account, settings) in domain.accounts.iter().filter(|(_, settings)| !settings.forward.is_empty()) {
        let at = || ["accounts".into(), Key::Name(account.clone()), "forward".into()];
        if names.insert(folded(account).into(), origins.len() as AliasId).is_some() {
            return Err(Problem::new(at(), format!("there is an alias `{account}`, too: remove one of the two")));
        }
        // An alias that leads to its own name keeps the mail there.
        let own = settings.keep_copy.then(|| account.clone());
        let targets = Targets::To(settings.forward.iter().cloned().chain(own).collect());
        origins.push(Origin { domain: index, at: At::Forward(account), targets: Cow::Owned(targets) });
    }
    Ok(names)
}

/// A transport of a domain or of a user.
fn transport(text: &str, at: impl Fn() -> Vec<Key>) -> Result<Arc<Transport>, Problem> {
    const FORMS: &str = "write \"|/program argument\", \"/file\", \"lmtp:unix:/socket\" or \"lmtp:host:port\"";
    let parsed = Transport::parse(text).unwrap_or_else(|| Err(FORMS.to_owned()));
    parsed.map(Arc::new).map_err(|message| Problem::new(at(), message))
}

/// Normalises a configured domain.
fn domain_name(name: &str) -> Result<Cow<'_, str>, String> {
    if !is_domain(name) {
        return Err(format!("`{name}` is not a domain, such as example.org"));
    }
    let folded = folded_domain(name).filter(|name| is_domain(name));
    folded.ok_or_else(|| "not a domain: it has no form in DNS".to_owned())
}

fn listed(users: &[String]) -> Result<HashSet<Box<str>>, Problem> {
    let mut found = HashSet::with_capacity(users.len());
    for (index, user) in users.iter().enumerate() {
        let at = ["users".into(), index.into()];
        let folded = folded(user);
        if user.contains('@') {
            return Err(Problem::new(at, "write only the part before the `@`"));
        }
        if directory_name(&folded).is_err() {
            return Err(Problem::new(at, "cannot be a mailbox name"));
        }
        if !found.insert(folded.into()) {
            return Err(Problem::new(at, format!("the user `{user}` is listed twice")));
        }
    }
    Ok(found)
}

fn within(domain: usize, problem: Problem) -> Problem {
    problem.within(["domain".into(), domain.into()])
}

/// Maximum patterns of one domain; an unknown recipient is compared with all of them.
const PATTERNS_MAX: usize = 100;
