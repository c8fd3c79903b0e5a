//! Names that clients log in with, and the addresses that are theirs.

use std::sync::Arc;

use posthaste_message::address::{Address, AddressDomain as Host, ForwardPath};

use crate::aliases::AliasId;
use crate::directory::{Directory, Table};
use crate::names::{folded, folded_domain, user_name};
use crate::route::{Mailbox, Place, Route};
use crate::step::{AddressStep, Trace};

impl Directory {
    /// Normalises a login name to `user@domain`. Without a domain it belongs to the first one; a domain alias is
    /// replaced by its domain. The domain need not be ours. `None`: not a valid user name (RFC 8265).
    pub fn login_name(&self, name: &str) -> Option<String> {
        let (user, domain) = match name.rsplit_once('@') {
            Some((user, domain)) => (user, folded_domain(domain)?),
            None => (name, self.domains.first()?.name.as_str().into()),
        };
        let domain = self.by_name.get(&*domain).map_or(&*domain, |index| &self.domains[*index as usize].name);
        let user = user_name(user)?;
        (!user.is_empty() && !domain.is_empty()).then(|| format!("{user}@{domain}"))
    }

    /// The Maildir of `login`, which is in the form of [`Directory::login_name`]: its own, even if an alias of that
    /// name leads elsewhere. `None` if it is not a local user, or its mail is stored elsewhere.
    pub fn maildir_of(&self, login: &str) -> Option<Arc<str>> {
        let (user, domain) = login.rsplit_once('@')?;
        match self.own(*self.by_name.get(domain)?, user, user).ok()?.place {
            Place::Maildir(path) => Some(path),
            Place::Transport(_) | Place::Remote => None,
        }
    }

    /// True if `address` belongs to `login`, which is in the form of [`Directory::login_name`]: its own address, with
    /// or without a detail, or an alias that leads to it. Costs one look-up.
    pub fn is_address_of(&self, address: &Address, login: &str) -> bool {
        let Some((user, login_domain)) = login.rsplit_once('@') else { return false };
        let Host::Name(domain) = address.domain() else { return false };
        let Some(domain) = folded_domain(domain) else { return false };
        let Some(&own) = self.by_name.get(login_domain) else {
            return domain == login_domain && folded(address.local_part()) == user;
        };
        let table = &self.domains[own as usize];
        if self.by_name.get(&*domain) == Some(&own) && table.names(address.local_part(), user) {
            return true;
        }
        let mut search = Search { wanted: table.aliases.get(user).copied(), is_met: false };
        match self.of_path(&ForwardPath::Address(address.clone()), &mut search) {
            _ if search.is_met => true,
            Route::Local(mailboxes) => mailboxes.iter().any(|mailbox| {
                let found = mailbox.address.rsplit_once('@');
                found.is_some_and(|(local_part, domain)| domain == table.name && table.names(local_part, user))
            }),
            _ => false,
        }
    }

    /// True if mail for `address` reaches only `login`. Mailboxes that mail for the login itself reaches count as its
    /// own. Costs two look-ups.
    pub fn is_only_address_of(&self, address: &Address, login: &str) -> bool {
        if !self.is_address_of(address, login) {
            return false;
        }
        // Nobody else gets what is refused or discarded, or goes to another host by its own name.
        let Route::Local(reached) = self.recipient(&ForwardPath::Address(address.clone())) else { return true };
        let Some((user, domain)) = login.rsplit_once('@') else { return false };
        let Some(table) = self.by_name.get(domain).map(|domain| &self.domains[*domain as usize]) else { return false };
        let own = self.resolve(user, Some(domain));
        let is_own = |mailbox: &Mailbox| {
            let found = mailbox.address.rsplit_once('@');
            found.is_some_and(|(local_part, domain)| domain == table.name && table.names(local_part, user))
                || matches!(&own, Route::Local(own) if own.iter().any(|own| own.identity() == mailbox.identity()))
        };
        reached.iter().all(is_own)
    }
}

impl Table {
    /// True if a local part denotes `user`, with or without a detail.
    fn names(&self, local_part: &str, user: &str) -> bool {
        let name = folded(local_part);
        // Exact names come first, as when mail is delivered.
        let is_another = || self.has_user(&name) || self.aliases.contains_key(&*name);
        name == user || self.base(&name).is_some_and(|base| base == user) && !is_another()
    }
}

/// Looks for an alias on the path.
struct Search {
    wanted: Option<AliasId>,
    is_met: bool,
}

impl Trace for Search {
    fn step(&mut self, _: impl FnOnce() -> AddressStep) {}

    fn visit(&mut self, alias: AliasId) {
        self.is_met |= self.wanted == Some(alias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Domain;

    fn directory() -> Directory {
        let text = "name = \"example.org\"\ndomain_aliases = [\"b\u{fc}cher.example\"]\nusers = [\"ann\", \"bob\", \"carol\", \"ann+own\"]\n\
                    catch_all = \"carol\"\n[aliases]\nteam = [\"ann\", \"x@other.example\"]\nall = [\"team\", \"bob\"]\nbob = [\"bob\", \"archive@other.example\"]\n\
                    noreply.discard = true\n[accounts.ann]\nforward = [\"bob\"]\n[[pattern]]\nmatch = \"sales-(.*)\"\nto = \"ann\"\n";
        let any = "name = \"any.example\"\nusers = \"any\"\n";
        let domains: Vec<Domain> = [text, any].iter().map(|text| toml::from_str(text).unwrap()).collect();
        Directory::new(&domains, "Maildir").unwrap()
    }

    #[test]
    fn a_login_name_has_one_form() {
        let directory = directory();
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(directory.login_name(name).as_deref(), expected, "{name:?}");
        };
        check("ann", Some("ann@example.org"));
        check("Ann@Example.ORG", Some("ann@example.org"));
        check("ann@B\u{dc}CHER.example", Some("ann@example.org"));
        check("app@else.example.", Some("app@else.example"));
        for bad in ["", "@", "@example.org", "ann@", "a b@example.org", "a\0b"] {
            check(bad, None);
        }
    }

    #[test]
    fn an_alias_of_several_people_is_nobodys_own_address() {
        let directory = directory();
        let check = |address: &str, login: &str, expected: bool| {
            let parsed = Address::parse(address).unwrap();
            assert_eq!(directory.is_only_address_of(&parsed, login), expected, "{address} of {login}");
        };
        // A pattern and a catch-all that lead to one account alone; mail of bob goes to an archive as well.
        for (own, login) in [
            ("ann@example.org", "ann@example.org"),
            ("ann+x@xn--bcher-kva.example", "ann@example.org"),
            ("sales-eu@example.org", "ann@example.org"),
            ("bob@example.org", "bob@example.org"),
            ("anybody@example.org", "carol@example.org"),
            ("app@else.example", "app@else.example"),
            ("x@any.example", "x@any.example"),
        ] {
            check(own, login, true);
        }
        for (other, login) in [
            ("team@example.org", "ann@example.org"),
            ("all@example.org", "bob@example.org"),
            ("noreply@example.org", "ann@example.org"),
            ("bob@example.org", "ann@example.org"),
            ("x@any.example", "y@any.example"),
        ] {
            check(other, login, false);
        }
    }

    #[test]
    fn a_login_has_the_maildir_of_its_own_name() {
        let moved = "name = \"moved.example\"\nusers = [\"ann\"]\ntransport = \"lmtp:127.0.0.1:24\"\n";
        let domain: Domain = toml::from_str(moved).unwrap();
        let elsewhere = Directory::new(&[domain], "Maildir").unwrap();
        assert_eq!(elsewhere.maildir_of("ann@moved.example"), None);
        let directory = directory();
        let check = |login: &str, expected: Option<&str>| {
            assert_eq!(directory.maildir_of(login).as_deref(), expected, "{login}");
        };
        // Although an alias sends bob's mail elsewhere as well, and ann's is forwarded.
        check("bob@example.org", Some("example.org/bob/Maildir"));
        check("ann@example.org", Some("example.org/ann/Maildir"));
        check("x@any.example", Some("any.example/x/Maildir"));
        // No name leads out of its domain's directory.
        check("..@any.example", Some("any.example/%2e./Maildir"));
        for other in ["team@example.org", "zoe@example.org", "ann@else.example", "ann"] {
            check(other, None);
        }
    }

    #[test]
    fn addresses_that_lead_to_a_login_are_its_own() {
        let directory = directory();
        let check = |address: &str, login: &str, expected: bool| {
            let parsed = Address::parse(address).unwrap();
            assert_eq!(directory.is_address_of(&parsed, login), expected, "{address} of {login}");
        };
        for own in ["ann@example.org", "ANN@xn--bcher-kva.example", "ann+x@example.org", "team@example.org"] {
            check(own, "ann@example.org", true);
        }
        // By another alias, by a pattern, and although the mail of the user goes elsewhere.
        check("all@example.org", "ann@example.org", true);
        check("sales-eu@example.org", "ann@example.org", true);
        check("bob@example.org", "bob@example.org", true);
        check("anybody@example.org", "carol@example.org", true);
        for other in [
            "bob@example.org",
            "ann@any.example",
            "ann@other.example",
            "noreply@example.org",
            // A user with that very name.
            "ann+own@example.org",
            "anybody@example.org",
            "ann@[192.0.2.1]",
        ] {
            check(other, "ann@example.org", false);
        }
        check("dora@any.example", "dora@any.example", true);
        check("dora+x@any.example", "dora@any.example", true);
        check("eve@any.example", "dora@any.example", false);
        check("App@Else.example", "app@else.example", true);
        check("app@other.example", "app@else.example", false);
        check("ann@example.org", "ann", false);
    }
}
