//! Who gets a message: from a recipient's address to the mailboxes that it stands for.
//!
//! Routes are worked out once, when the configuration is read; asking them costs a few look-ups.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;

use posthaste_smtp::address::{Domain as Host, is_domain, quoted};
use posthaste_smtp::{ForwardPath, Reply};
use posthaste_units::words::{Key, Problem};

use crate::config::{Domain, Users};
use crate::names::{directory_name, folded, folded_domain, user_name};

/// One mailbox that a recipient stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mailbox {
    /// `domain/user/` and the name that the directory was given for mailboxes. Each part is safe as the name of a file.
    pub path: Arc<str>,
    /// What Delivered-To says.
    pub address: String,
}

/// The mailboxes that a recipient stands for: at least one, as a slice.
#[derive(Debug, Clone)]
pub enum Mailboxes {
    /// A user's own.
    One(Mailbox),
    /// Those of an alias.
    Alias(Arc<[Mailbox]>),
}

impl Deref for Mailboxes {
    type Target = [Mailbox];

    fn deref(&self) -> &[Mailbox] {
        match self {
            Self::One(mailbox) => std::slice::from_ref(mailbox),
            Self::Alias(mailboxes) => mailboxes,
        }
    }
}

/// Why a recipient is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteError {
    /// The domain is not ours: 550 5.7.1.
    Relay,
    /// The domain is ours and has no such user: 550 5.1.1.
    UnknownUser,
    /// The local part cannot be kept as a directory: 550 5.1.3.
    BadName,
}

impl RouteError {
    /// What the client is told.
    pub fn reply(self) -> Reply {
        match self {
            Self::Relay => Reply::new(550, "5.7.1", "We do not relay"),
            Self::UnknownUser => Reply::new(550, "5.1.1", "No such user here"),
            Self::BadName => Reply::new(550, "5.1.3", "Not a mailbox name that can be used here"),
        }
    }
}

/// All domains, users and aliases.
#[derive(Debug)]
pub struct Directory {
    domains: HashMap<String, DomainRoutes>,
    /// The domain of recipients that come without one, `<postmaster>` among them.
    first: String,
}

#[derive(Debug)]
struct DomainRoutes {
    /// In its one form.
    name: String,
    directory: String,
    /// The last part of each mailbox's path.
    mailbox: Arc<str>,
    /// `None`: anybody.
    users: Option<HashSet<String>>,
    aliases: HashMap<String, Arc<[Mailbox]>>,
    catch_all: Option<Arc<[Mailbox]>>,
    separator: Option<char>,
}

impl Directory {
    /// Works the routes of all domains out. `mailbox` is the last part of each mailbox's path, such as `Maildir`.
    ///
    /// # Errors
    /// What is wrong with the domains, as entries of a list `domain`.
    pub fn new(list: &[Domain], mailbox: &str) -> Result<Self, Problem> {
        let mailbox: Arc<str> = mailbox.into();
        let mut domains = HashMap::new();
        for (index, domain) in list.iter().enumerate() {
            let routes = DomainRoutes::new(domain, &mailbox).map_err(|problem| within(index, problem))?;
            let name = routes.name.clone();
            if domains.insert(name.clone(), routes).is_some() {
                let message = match name == domain.name.to_ascii_lowercase() {
                    true => format!("there is a domain `{}` already", domain.name),
                    false => format!("`{}` is another way to write `{name}`, which is there already", domain.name),
                };
                return Err(within(index, Problem::new(["name".into()], message)));
            }
        }
        let first = list.first().map(|domain| domain_of(domain).into_owned()).unwrap_or_default();
        let mut routes = Self { domains, first };
        let expanded = Expander::new(list, &routes).all()?;
        for (domain, (aliases, catch_all)) in expanded {
            let found = routes.domains.get_mut(&domain).expect("expansions are keyed by the domains above");
            found.aliases = aliases;
            found.catch_all = catch_all;
        }
        Ok(routes)
    }

    /// The mailboxes of a recipient.
    ///
    /// # Errors
    /// [`RouteError`] says which reply the client gets.
    pub fn recipient(&self, path: &ForwardPath) -> Result<Mailboxes, RouteError> {
        match path {
            ForwardPath::Local(local_part) => self.resolve(local_part.as_str(), None),
            ForwardPath::Address(address) => match address.domain() {
                Host::Name(name) => self.resolve(address.local_part(), Some(name)),
                // Never one of ours.
                Host::Ip(_) | Host::Literal(_) => Err(RouteError::Relay),
            },
        }
    }

    /// The mailboxes of `local_part@domain`; `None` means the first of our domains, as for `<postmaster>` (RFC 5321
    /// section 4.1.1.3).
    ///
    /// # Errors
    /// [`RouteError`] says which reply the client gets.
    pub fn resolve(&self, local_part: &str, domain: Option<&str>) -> Result<Mailboxes, RouteError> {
        let name = match domain {
            Some(domain) => folded_domain(domain).ok_or(RouteError::Relay)?,
            None => Cow::Borrowed(&*self.first),
        };
        let routes = self.domains.get(&*name).ok_or(RouteError::Relay)?;
        routes.resolve(local_part, &name)
    }
}

impl DomainRoutes {
    fn new(domain: &Domain, mailbox: &Arc<str>) -> Result<Self, Problem> {
        if !is_domain(&domain.name) {
            return Err(Problem::new(["name".into()], "not a domain"));
        }
        let name = folded_domain(&domain.name)
            .filter(|name| is_domain(name))
            .ok_or_else(|| Problem::new(["name".into()], "not a domain: DNS has no form of this name"))?;
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
        let name = name.into_owned();
        let mailbox = Arc::clone(mailbox);
        Ok(Self { name, directory, mailbox, users, aliases: HashMap::new(), catch_all: None, separator })
    }

    /// Exact names come first, then the part before the separator, then whoever takes the rest.
    fn resolve(&self, local_part: &str, domain: &str) -> Result<Mailboxes, RouteError> {
        let name = folded(local_part);
        // Also keeps names out that could never be looked up.
        let whole = directory_name(&name).map_err(|_| RouteError::BadName)?;
        let base = self.separator.and_then(|separator| name.split_once(separator)).map(|(base, _)| folded(base));
        let base = base.as_deref().filter(|base| !base.is_empty());
        let mailbox = |user: &str| {
            let of_base;
            let user = match user == name {
                true => &whole,
                false => {
                    of_base = directory_name(user).map_err(|_| RouteError::BadName)?;
                    &of_base
                }
            };
            let path = format!("{}/{user}/{}", self.directory, self.mailbox).into();
            Ok(Mailboxes::One(Mailbox { path, address: format!("{}@{domain}", quoted(local_part)) }))
        };
        for name in [Some(&*name), base].into_iter().flatten() {
            if let Some(mailboxes) = self.aliases.get(name) {
                return Ok(Mailboxes::Alias(Arc::clone(mailboxes)));
            }
            if self.users.as_ref().is_some_and(|users| users.contains(name)) {
                return mailbox(name);
            }
        }
        let name = base.unwrap_or(&name);
        match &self.catch_all {
            // A mailbox is made for it, so it has to be one that nothing else can be mistaken for.
            _ if self.users.is_none() && user_name(name).is_none() => Err(RouteError::BadName),
            _ if self.users.is_none() => mailbox(name),
            Some(mailboxes) => Ok(Mailboxes::Alias(Arc::clone(mailboxes))),
            // RFC 5321 section 4.5.1: mail for the postmaster is accepted by every server.
            None if name == "postmaster" => mailbox(name),
            None => Err(RouteError::UnknownUser),
        }
    }
}

/// The one form of a domain whose routes have been made, so that it has one.
fn domain_of(domain: &Domain) -> Cow<'_, str> {
    folded_domain(&domain.name).expect("routes have been made for it")
}

fn listed(users: &[String]) -> Result<HashSet<String>, Problem> {
    let mut found = HashSet::new();
    for (index, user) in users.iter().enumerate() {
        let at = ["users".into(), index.into()];
        let folded = folded(user).into_owned();
        if user.contains('@') {
            return Err(Problem::new(at, "a user is the part before the `@` alone"));
        }
        if directory_name(&folded).is_err() {
            return Err(Problem::new(at, "not a name for a mailbox"));
        }
        if !found.insert(folded) {
            return Err(Problem::new(at, format!("the user `{user}` is there twice")));
        }
    }
    Ok(found)
}

type Expanded = (HashMap<String, Arc<[Mailbox]>>, Option<Arc<[Mailbox]>>);

/// Follows aliases to mailboxes.
struct Expander<'a> {
    list: &'a [Domain],
    routes: &'a Directory,
    by_name: HashMap<String, (&'a Domain, BTreeMap<String, &'a [String]>)>,
}

impl<'a> Expander<'a> {
    fn new(list: &'a [Domain], routes: &'a Directory) -> Self {
        let folded = |domain: &'a Domain| {
            let aliases =
                domain.aliases.iter().map(|(name, targets)| (self::folded(name).into_owned(), targets.0.as_slice()));
            (domain_of(domain).into_owned(), (domain, aliases.collect()))
        };
        Self { list, routes, by_name: list.iter().map(folded).collect() }
    }

    fn all(&self) -> Result<Vec<(String, Expanded)>, Problem> {
        let mut all = Vec::new();
        for (index, domain) in self.list.iter().enumerate() {
            let expanded = self.domain(domain).map_err(|problem| within(index, problem))?;
            all.push((domain_of(domain).into_owned(), expanded));
        }
        Ok(all)
    }

    fn domain(&self, domain: &Domain) -> Result<Expanded, Problem> {
        let name = domain_of(domain);
        let mut aliases = HashMap::new();
        for (alias, targets) in &domain.aliases {
            let at = vec!["aliases".into(), Key::Name(alias.clone())];
            let folded = folded(alias).into_owned();
            if alias.contains('@') || directory_name(&folded).is_err() {
                return Err(Problem::new(at, format!("`{alias}` is not the local part of an address")));
            }
            if targets.0.is_empty() {
                return Err(Problem::new(at, format!("the alias `{alias}` leads nowhere")));
            }
            let mut path = vec![(folded.clone(), name.to_string())];
            let mut found = Found::default();
            for (index, target) in targets.0.iter().enumerate() {
                let problem = |message| Problem::new([at.clone(), vec![index.into()]].concat(), message);
                self.follow(target, &name, &mut path, &mut found).map_err(problem)?;
            }
            if aliases.insert(folded, found.mailboxes.into()).is_some() {
                return Err(Problem::new(at, format!("there is an alias `{alias}` already")));
            }
        }
        let catch_all = match &domain.catch_all {
            None => None,
            Some(_) if domain.users == Users::Any => {
                return Err(Problem::new(["catch_all".into()], "nothing is left to catch where `users` is \"any\""));
            }
            Some(target) => {
                let mut found = Found::default();
                self.follow(target, &name, &mut Vec::new(), &mut found)
                    .map_err(|message| Problem::new(["catch_all".into()], message))?;
                Some(found.mailboxes.into())
            }
        };
        Ok((aliases, catch_all))
    }

    /// Adds what `target`, written in `domain`, leads to. `path` holds the aliases that are being followed.
    fn follow(
        &self,
        target: &str,
        domain: &str,
        path: &mut Vec<(String, String)>,
        found: &mut Found,
    ) -> Result<(), String> {
        let (local, domain) = match target.rsplit_once('@') {
            Some((local, domain)) => {
                let name = folded_domain(domain).ok_or_else(|| format!("`{domain}` is not a domain"))?;
                (local, name.into_owned())
            }
            None => (target, domain.to_owned()),
        };
        let Some((_, aliases)) = self.by_name.get(&domain) else {
            return Err(format!("`{domain}` is not one of our domains, and mail is not passed on to others"));
        };
        let here = (folded(local).into_owned(), domain);
        let back = path.contains(&here);
        if let (Some(targets), false) = (aliases.get(&here.0), back) {
            path.push(here.clone());
            for target in *targets {
                self.follow(target, &here.1, path, found)?;
            }
            path.pop();
            return Ok(());
        }
        // An alias that leads back to itself means the mailbox of the same name, as in `bob = ["bob", "alice"]`.
        let routes = &self.routes.domains[&here.1];
        match routes.resolve(local, &here.1) {
            Ok(mailboxes) => found.add(&mailboxes),
            Err(_) if back => Err(format!("the alias `{target}` leads back to itself")),
            Err(RouteError::BadName) => Err(format!("`{target}` is not a name for a mailbox")),
            Err(_) => Err(format!("there is no user or alias `{target}`")),
        }
    }
}

#[derive(Default)]
struct Found {
    mailboxes: Vec<Mailbox>,
    seen: HashSet<Arc<str>>,
}

impl Found {
    fn add(&mut self, mailboxes: &[Mailbox]) -> Result<(), String> {
        for mailbox in mailboxes {
            if self.seen.insert(mailbox.path.clone()) {
                self.mailboxes.push(mailbox.clone());
            }
        }
        match self.mailboxes.len() {
            0..=ALIAS_MAILBOXES_MAX => Ok(()),
            _ => Err(format!("leads to more than {ALIAS_MAILBOXES_MAX} mailboxes")),
        }
    }
}

fn within(domain: usize, problem: Problem) -> Problem {
    problem.within(["domain".into(), domain.into()])
}

/// One message to an alias becomes this many entries at most.
const ALIAS_MAILBOXES_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Section {
        domain: Vec<Domain>,
    }

    fn directory(text: &str) -> Result<Directory, Problem> {
        Directory::new(&toml::from_str::<Section>(text).expect("TOML").domain, "Maildir")
    }

    const CONFIG: &str = r#"

        [[domain]]
        name = "Example.ORG"
        users = ["alice", "Bob"]
        catch_all = "bob"
        aliases = { team = ["alice", "bob", "carol@open.example"], both = ["team", "alice"], bob = ["bob", "alice"] }

        [[domain]]
        name = "open.example"
        users = "any"

        [[domain]]
        name = "strict.example"
        users = ["dash"]
        sub_addressing = "-"
    "#;

    fn routes() -> Directory {
        directory(CONFIG).unwrap()
    }

    fn check(address: &str, expected: Result<&[&str], RouteError>) {
        let (local, domain) = address.rsplit_once('@').unwrap();
        let found = routes()
            .resolve(local, Some(domain))
            .map(|mailboxes| mailboxes.iter().map(|mailbox| mailbox.path.to_string()).collect::<Vec<_>>());
        assert_eq!(found, expected.map(|list| list.iter().map(|&s| s.to_owned()).collect()), "{address}");
    }

    #[test]
    fn users_are_found_without_regard_to_case() {
        check("ALICE@example.org", Ok(&["example.org/alice/Maildir"]));
        check("dash@STRICT.example.", Ok(&["strict.example/dash/Maildir"]));
    }

    #[test]
    fn a_detail_behind_the_separator_is_the_users_own() {
        check("alice+lists@example.org", Ok(&["example.org/alice/Maildir"]));
        check("dash-a-b@strict.example", Ok(&["strict.example/dash/Maildir"]));
        check("new+x@open.example", Ok(&["open.example/new/Maildir"]));
        check("+x@open.example", Ok(&["open.example/+x/Maildir"]));
    }

    #[test]
    fn aliases_expand_and_each_mailbox_comes_once() {
        let all = ["example.org/alice/Maildir", "example.org/bob/Maildir", "open.example/carol/Maildir"];
        let mut found: Vec<String> = routes()
            .resolve("both", Some("example.org"))
            .unwrap()
            .iter()
            .map(|mailbox| mailbox.path.to_string())
            .collect();
        found.sort();
        assert_eq!(found, all);
    }

    #[test]
    fn an_alias_may_name_the_mailbox_of_its_own_name() {
        check("bob@example.org", Ok(&["example.org/bob/Maildir", "example.org/alice/Maildir"]));
    }

    #[test]
    fn who_is_unknown_goes_to_the_catch_all_or_is_refused() {
        check("nobody@example.org", Ok(&["example.org/bob/Maildir", "example.org/alice/Maildir"]));
        check("nobody@strict.example", Err(RouteError::UnknownUser));
        check("a@elsewhere.example", Err(RouteError::Relay));
    }

    #[test]
    fn the_postmaster_is_always_reached() {
        check("Postmaster@strict.example", Ok(&["strict.example/postmaster/Maildir"]));
        let found = routes().resolve("postmaster", None).unwrap();
        assert_eq!(&*found[0].path, "example.org/bob/Maildir");
    }

    #[test]
    fn a_name_is_reached_however_it_is_written_and_by_no_other() {
        const NAMES: &str = r#"
            [[domain]]
            name = "listed.example"
            users = ["karl", "jos\u00e9", "ann"]
            aliases = { "re\u0301my" = "ann" }
            [[domain]]
            name = "any.example"
            users = "any"
        "#;
        let routes = directory(NAMES).unwrap();
        let check = |local: &str, domain: &str, expected: Result<&str, RouteError>| {
            let found = routes.resolve(local, Some(domain)).map(|mailboxes| mailboxes[0].path.to_string());
            assert_eq!(found.as_deref().map_err(|error| *error), expected, "{local:?} {domain}");
        };
        for jose in ["jos\u{e9}", "JOS\u{c9}", "jose\u{301}", "Jose\u{301}+x"] {
            check(jose, "listed.example", Ok("listed.example/jos%c3%a9/Maildir"));
            check(jose, "any.example", Ok("any.example/jos%c3%a9/Maildir"));
        }
        check("r\u{e9}my", "listed.example", Ok("listed.example/ann/Maildir"));
        check("\u{ff2b}arl", "listed.example", Ok("listed.example/karl/Maildir"));
        check("\u{212a}arl", "listed.example", Err(RouteError::UnknownUser));
        check("\u{212a}arl+x", "listed.example", Err(RouteError::UnknownUser));
        check("\u{212a}arl", "any.example", Err(RouteError::BadName));
        check("a b", "any.example", Err(RouteError::BadName));
        check("karl+\u{212a}", "any.example", Ok("any.example/karl/Maildir"));
        // A sender who looks this domain up asks DNS for the same.
        check("karl", "li\u{17f}ted.example", Ok("listed.example/karl/Maildir"));
    }

    #[test]
    fn letters_and_a_labels_of_a_domain_are_one_domain() {
        const MAILBOX: &str = "xn--bcher-kva.example/ann/Maildir";
        for (name, target) in
            [("b\u{fc}cher.example", "xn--bcher-kva.example"), ("XN--bcher-KVA.example", "B\u{dc}CHER.example")]
        {
            let text = format!(
                "[[domain]]\nname = \"{name}\"\nusers = [\"ann\"]\n\
                 aliases = {{ all = \"ann@{target}\" }}\n[[domain]]\nname = \"other.example\"\ncatch_all = \"ann@{target}\"\n"
            );
            let routes = directory(&text).unwrap();
            for domain in [
                "b\u{fc}cher.example",
                "B\u{dc}CHER.Example.",
                "bu\u{308}cher.example",
                "xn--bcher-kva.example",
                "Xn--Bcher-Kva.EXAMPLE",
                "\u{ff42}\u{fc}cher\u{3002}example",
            ] {
                for local in ["ann", "all"] {
                    let found =
                        routes.resolve(local, Some(domain)).unwrap_or_else(|error| panic!("{domain}: {error:?}"));
                    assert_eq!(&*found[0].path, MAILBOX, "{domain}");
                    assert_eq!(found[0].address, "ann@xn--bcher-kva.example");
                }
            }
            assert_eq!(&*routes.resolve("x", Some("other.example")).unwrap()[0].path, MAILBOX);
            // One A-label that stands for nothing, and one that no letters are written as.
            for domain in
                ["bucher.example", "xn--a.example", "xn--bcher-kv.example", "xn--.example", "xn--abc-.example"]
            {
                assert_eq!(routes.resolve("ann", Some(domain)).unwrap_err(), RouteError::Relay, "{domain}");
            }
        }
        let error = |names: [&str; 2]| {
            let [first, second] = names.map(|name| format!("[[domain]]\nname = \"{name}\"\n"));
            directory(&(first + &second)).unwrap_err().message
        };
        assert!(error(["xn--bcher-kva.example", "b\u{fc}cher.example"]).ends_with(
            "`b\u{fc}cher.example` is another way to write `xn--bcher-kva.example`, which is there already"
        ));
        assert!(error(["a.example", "A.example"]).ends_with("there is a domain `A.example` already"));
        assert!(error(["a.example", "xn--a.example"]).ends_with("not a domain: DNS has no form of this name"));
    }

    #[test]
    fn delivered_to_keeps_the_quotes() {
        for (local, expected) in [
            ("alice+x", "alice+x@example.org"),
            ("alice+<bob@victim.example>, x", "\"alice+<bob@victim.example>, x\"@example.org"),
            ("alice+a\"b\\", "\"alice+a\\\"b\\\\\"@example.org"),
        ] {
            assert_eq!(routes().resolve(local, Some("example.org")).unwrap()[0].address, expected);
        }
    }

    #[test]
    fn hostile_names_stay_inside_their_domain() {
        check("../../etc@open.example", Ok(&["open.example/%2e.%2f..%2fetc/Maildir"]));
        check("..@open.example", Ok(&["open.example/%2e./Maildir"]));
        check("a/b@open.example", Ok(&["open.example/a%2fb/Maildir"]));
        check("a\0b@open.example", Err(RouteError::BadName));
    }
}
