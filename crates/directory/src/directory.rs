//! Resolves a recipient's address to its mailboxes.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use posthaste_message::address::{AddressDomain as Host, ForwardPath, quoted};

use crate::aliases::{Action, AliasId, Aliases, Found, Target};
use crate::names::{directory_name, folded, folded_domain, user_name};
use crate::pattern::{Expression, Template};
use crate::route::{DirectoryRefusal, Mailbox, Place, Route};
use crate::step::{AddressStep, Rule, Trace};
use crate::transport::Transport;

/// All domains, users and aliases. Built once, when the configuration is read; a look-up takes no lock and never waits.
#[derive(Debug)]
pub struct Directory {
    pub(crate) domains: Vec<Table>,
    /// Domains by normalised name, including domain aliases.
    pub(crate) by_name: HashMap<Box<str>, u32>,
    pub(crate) aliases: Aliases,
    /// The last part of each mailbox's path.
    pub(crate) mailbox: Arc<str>,
}

/// One domain.
#[derive(Debug)]
pub(crate) struct Table {
    /// Normalised name.
    pub name: String,
    pub directory: String,
    /// `None`: everybody.
    pub users: Option<HashSet<Box<str>>>,
    pub aliases: HashMap<Box<str>, AliasId>,
    pub patterns: Vec<(Expression, PatternTarget)>,
    pub catch_all: Option<CatchAll>,
    pub separator: Option<char>,
    /// Mail with a detail is for a folder.
    pub detail_folders: bool,
    /// Transport for its users' mail, instead of Maildirs.
    pub transport: Option<Arc<Transport>>,
    /// Transports of single users.
    pub transports: HashMap<Box<str>, Arc<Transport>>,
}

/// Targets of a pattern's matches.
#[derive(Debug)]
pub(crate) enum PatternTarget {
    /// All lead to the same mailboxes.
    Alias(AliasId),
    /// Templates of local parts, each with its domain.
    Filled(Vec<(Template, u32)>),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct CatchAll {
    pub alias: AliasId,
    /// True if the alias ends in a mailbox: then it may serve as the domain's postmaster.
    pub delivers: bool,
}

impl Directory {
    /// The route of mail for a recipient. Without a domain it belongs to the first one, as `<postmaster>` does (RFC 5321 section 4.1.1.3).
    pub fn recipient(&self, path: &ForwardPath) -> Route {
        self.of_path(path, &mut ())
    }

    /// Like [`Directory::recipient`], with each step of the look-up.
    pub fn explain(&self, path: &ForwardPath) -> (Vec<AddressStep>, Route) {
        let mut steps = Vec::new();
        let route = self.of_path(path, &mut steps);
        (steps, route)
    }

    /// True if we receive mail for `domain`.
    pub fn is_ours(&self, domain: &str) -> bool {
        folded_domain(domain).is_some_and(|name| self.by_name.contains_key(&*name))
    }

    /// True if an alias leads to another host.
    pub fn has_remote(&self) -> bool {
        self.aliases.has_remote()
    }

    pub(crate) fn of_path(&self, path: &ForwardPath, trace: &mut impl Trace) -> Route {
        let found = match path {
            ForwardPath::Local(local_part) => self.look_up(local_part.as_str(), None, trace),
            ForwardPath::Address(address) => match address.domain() {
                Host::Name(name) => self.look_up(address.local_part(), Some(name), trace),
                // Never one of our domains.
                Host::Ip(_) | Host::Literal(_) => Err(DirectoryRefusal::Relay),
            },
        };
        found.unwrap_or_else(Route::Refused)
    }

    /// As [`Directory::recipient`], for `local_part@domain` without quotes; `None` means the first of our domains.
    pub fn resolve(&self, local_part: &str, domain: Option<&str>) -> Route {
        self.look_up(local_part, domain, &mut ()).unwrap_or_else(Route::Refused)
    }

    /// Exact names come first, then those before the separator, then patterns, then the account that takes the rest.
    fn look_up(
        &self,
        local_part: &str,
        domain: Option<&str>,
        trace: &mut impl Trace,
    ) -> Result<Route, DirectoryRefusal> {
        let table = match domain {
            Some(domain) => {
                let name = folded_domain(domain).ok_or(DirectoryRefusal::Relay)?;
                &self.domains[*self.by_name.get(&*name).ok_or(DirectoryRefusal::Relay)? as usize]
            }
            None => self.domains.first().ok_or(DirectoryRefusal::Relay)?,
        };
        let name = folded(local_part);
        table.trace_forms(local_part, &name, domain, trace);
        // Also keeps names out that could never be looked up.
        directory_name(&name).map_err(|_| DirectoryRefusal::BadName)?;
        let base = table.base(&name);
        for found in [Some(&*name), base.as_deref()].into_iter().flatten() {
            if let Some(&alias) = table.aliases.get(found) {
                table.trace_detail(&name, found, trace);
                return self.follow(alias, || table.address(found), Rule::Alias, || table.address(local_part), trace);
            }
            if table.has_user(found) {
                table.trace_detail(&name, found, trace);
                return self.mailbox(table, found, local_part).map(|mailbox| Route::Local(mailbox.into()));
            }
        }
        let rest = base.as_deref().unwrap_or(&name);
        // RFC 5321 section 4.5.1: mail for the postmaster is accepted by every server.
        let is_postmaster = rest == "postmaster";
        for found in [Some(&*name), base.as_deref()].into_iter().flatten().filter(|_| !is_postmaster) {
            for (expression, lead) in &table.patterns {
                let Some(captures) = expression.captures(found) else { continue };
                table.trace_detail(&name, found, trace);
                let rule = || Rule::Pattern(expression.text.clone());
                return match lead {
                    PatternTarget::Alias(alias) => {
                        self.follow(*alias, || table.address(found), rule(), || table.address(local_part), trace)
                    }
                    PatternTarget::Filled(templates) => {
                        let fill = |(template, domain): &(Template, u32)| (template.fill(&captures), *domain);
                        let targets: Vec<_> = templates.iter().map(fill).collect();
                        trace.step(|| {
                            let to =
                                targets.iter().map(|(local, domain)| self.domains[*domain as usize].address(local));
                            AddressStep { address: table.address(found), rule: rule(), to: to.collect() }
                        });
                        self.follow_each(&targets, trace)
                    }
                };
            }
        }
        match table.catch_all {
            // A mailbox is made for this name, so it must not be confusable with anything else.
            _ if table.users.is_none() && user_name(rest).is_none() => Err(DirectoryRefusal::BadName),
            Some(CatchAll { alias, delivers }) if delivers || !is_postmaster => {
                self.follow(alias, || table.address(&name), Rule::CatchAll, || table.address(local_part), trace)
            }
            _ if table.users.is_none() || is_postmaster => {
                table.trace_detail(&name, rest, trace);
                self.mailbox(table, rest, local_part).map(|mailbox| Route::Local(mailbox.into()))
            }
            _ => Err(DirectoryRefusal::UnknownUser),
        }
    }

    /// Resolves a target of an alias or pattern: a user or an alias, with or without a detail. Patterns and the
    /// catch-all apply to recipients only, so that aliases can be expanded in advance.
    pub(crate) fn target(&self, domain: u32, local_part: &str) -> Result<Target, DirectoryRefusal> {
        let table = &self.domains[domain as usize];
        let name = folded(local_part);
        directory_name(&name).map_err(|_| DirectoryRefusal::BadName)?;
        if let Some(&alias) = table.aliases.get(&*name) {
            return Ok(Target::Alias(alias));
        }
        let base = table.base(&name);
        if let Some(user) = [Some(&*name), base.as_deref()].into_iter().flatten().find(|name| table.has_user(name)) {
            return self.mailbox(table, user, local_part).map(Target::Mailbox);
        }
        if let Some(&alias) = base.as_deref().and_then(|base| table.aliases.get(base)) {
            return Ok(Target::Alias(alias));
        }
        self.own(domain, base.as_deref().unwrap_or(&name), local_part).map(Target::Mailbox)
    }

    /// The mailbox of `user`, without regard to aliases.
    pub(crate) fn own(&self, domain: u32, user: &str, local_part: &str) -> Result<Mailbox, DirectoryRefusal> {
        let table = &self.domains[domain as usize];
        match &table.users {
            Some(users) if users.contains(user) || user == "postmaster" => self.mailbox(table, user, local_part),
            Some(_) => Err(DirectoryRefusal::UnknownUser),
            None if user_name(user).is_none() => Err(DirectoryRefusal::BadName),
            None => self.mailbox(table, user, local_part),
        }
    }

    fn mailbox(&self, table: &Table, user: &str, local_part: &str) -> Result<Mailbox, DirectoryRefusal> {
        let directory = directory_name(user).map_err(|_| DirectoryRefusal::BadName)?;
        let place = match table.transports.get(user).or(table.transport.as_ref()) {
            Some(transport) => Place::Transport(Arc::clone(transport)),
            None => Place::Maildir(format!("{}/{directory}/{}", table.directory, self.mailbox).into()),
        };
        Ok(Mailbox { place, address: table.address(local_part).into() })
    }

    /// The detail after the separator of a local address, as in [`Mailbox::address`]: `lists` in
    /// `alice+lists@example.org`.
    pub fn detail<'a>(&self, address: &'a str) -> Option<&'a str> {
        let (local_part, domain) = address.rsplit_once('@')?;
        let table = &self.domains[*self.by_name.get(domain)? as usize];
        let is_quoted = local_part.starts_with('"');
        local_part.split_once(table.separator?).map(|(_, detail)| detail).filter(|_| !is_quoted)
    }

    /// The folder for mail with a detail, if the domain allows it: `lists` for `alice+lists@example.org`.
    pub fn folder<'a>(&self, mailbox: &'a Mailbox) -> Option<&'a str> {
        let (_, domain) = mailbox.address.rsplit_once('@')?;
        let table = &self.domains[*self.by_name.get(domain)? as usize];
        let Place::Maildir(_) = &mailbox.place else { return None };
        let detail = self.detail(&mailbox.address).filter(|detail| table.detail_folders && !detail.is_empty())?;
        // A user's name may have the separator in it.
        let (base, _) = mailbox.address.split_once(table.separator?)?;
        let own = self.mailbox(table, &folded(base), base).ok()?;
        (own.place == mailbox.place).then_some(detail)
    }

    fn follow_each(&self, targets: &[(String, u32)], trace: &mut impl Trace) -> Result<Route, DirectoryRefusal> {
        let mut found = Found::default();
        for (local, domain) in targets {
            match self.target(*domain, local)? {
                Target::Mailbox(mailbox) => found.add(mailbox),
                Target::Alias(alias) => {
                    let address = || self.domains[*domain as usize].address(local);
                    self.follow_into(alias, &mut found, Rule::Alias, || self.name_of(alias), address, trace)?;
                }
            }
        }
        found.route()
    }

    fn follow(
        &self,
        alias: AliasId,
        address: impl Fn() -> String,
        rule: Rule,
        recipient: impl Fn() -> String,
        trace: &mut impl Trace,
    ) -> Result<Route, DirectoryRefusal> {
        let mut found = Found::default();
        self.follow_into(alias, &mut found, rule, address, recipient, trace)?;
        found.route()
    }

    /// Adds the mailboxes of `start`; `address` and `rule` say how `recipient` reached it.
    fn follow_into(
        &self,
        start: AliasId,
        found: &mut Found,
        rule: Rule,
        address: impl Fn() -> String,
        recipient: impl Fn() -> String,
        trace: &mut impl Trace,
    ) -> Result<(), DirectoryRefusal> {
        self.aliases.follow(start, recipient, found, |alias| {
            trace.visit(alias);
            trace.step(|| {
                let targets = if let Action::To(targets) = self.aliases.action(alias) { &**targets } else { &[] };
                let to = targets.iter().map(|target| match target {
                    Target::Mailbox(Mailbox { place: Place::Transport(transport), .. }) => transport.to_string(),
                    Target::Mailbox(mailbox) => mailbox.address.to_string(),
                    Target::Alias(alias) => self.name_of(*alias),
                });
                let (address, rule) =
                    if alias == start { (address(), rule.clone()) } else { (self.name_of(alias), Rule::Alias) };
                AddressStep { address, rule, to: to.collect() }
            });
        })
    }

    /// The address of an alias, by a search of all aliases.
    fn name_of(&self, alias: AliasId) -> String {
        let found = self.domains.iter().find_map(|table| {
            let (name, _) = table.aliases.iter().find(|(_, id)| **id == alias)?;
            Some(table.address(name))
        });
        found.unwrap_or_default()
    }
}

impl Table {
    /// The part before the separator, if there is a detail.
    pub(crate) fn base<'a>(&self, name: &'a str) -> Option<Cow<'a, str>> {
        let (base, _) = name.split_once(self.separator?)?;
        Some(folded(base)).filter(|base| !base.is_empty())
    }

    pub(crate) fn has_user(&self, name: &str) -> bool {
        self.users.as_ref().is_some_and(|users| users.contains(name))
    }

    pub(crate) fn address(&self, local_part: &str) -> String {
        format!("{}@{}", quoted(local_part), self.name)
    }

    fn trace_forms(&self, local_part: &str, name: &str, domain: Option<&str>, trace: &mut impl Trace) {
        let Some(domain) = domain else {
            return trace.step(|| AddressStep {
                address: quoted(local_part).to_string(),
                rule: Rule::FirstDomain,
                to: vec![self.address(name)],
            });
        };
        let folded = folded_domain(domain).unwrap_or_default();
        if (name, &*folded) != (local_part, domain) {
            trace.step(|| AddressStep {
                address: format!("{}@{domain}", quoted(local_part)),
                rule: Rule::OneForm,
                to: vec![format!("{}@{folded}", quoted(name))],
            });
        }
        if folded != self.name {
            trace.step(|| AddressStep {
                address: format!("{}@{folded}", quoted(name)),
                rule: Rule::DomainAlias,
                to: vec![self.address(name)],
            });
        }
    }

    fn trace_detail(&self, name: &str, found: &str, trace: &mut impl Trace) {
        if name != found {
            trace.step(|| AddressStep {
                address: self.address(name),
                rule: Rule::Detail,
                to: vec![self.address(found)],
            });
        }
    }
}
