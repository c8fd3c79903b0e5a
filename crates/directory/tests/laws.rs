//! Laws that hold for any table of aliases.

use std::collections::BTreeSet;

use posthaste_directory::{AddressPattern, Directory, DirectoryRefusal, Domain, Route, Targets, Users};
use proptest::prelude::*;

const NAMES: [&str; 6] = ["ann", "bob", "carl", "dora", "emil", "fred"];

/// Aliases among few names in two domains, so that they meet, and loops are common.
fn tables() -> impl Strategy<Value = Vec<Domain>> {
    let name = prop::sample::select(&NAMES[..]);
    let target = (name.clone(), prop::sample::select(&["", "@a.example", "@b.example", "@c.example"][..]))
        .prop_map(|(name, domain)| format!("{name}{domain}"));
    let targets = prop_oneof![
        8 => prop::collection::vec(target.clone(), 1..4).prop_map(Targets::To),
        1 => Just(Targets::Discard),
    ];
    let aliases = prop::collection::btree_map(name.clone().prop_map(str::to_owned), targets, 0..5);
    let users = prop::collection::hash_set(name.prop_map(str::to_owned), 0..6);
    let domain = (aliases, users, prop::option::of(target), any::<bool>());
    (domain.clone(), domain).prop_map(|(first, second)| {
        let make = |(aliases, users, catch_all, has_pattern), name: &str| {
            let mut domain = Domain::named(name);
            domain.aliases = aliases;
            domain.users = Users::Listed(Vec::from_iter::<std::collections::HashSet<String>>(users));
            domain.catch_all = Option::map(catch_all, |target| Targets::To(vec![target]));
            if has_pattern {
                let to = Targets::To(vec!["$1".to_owned(), "$2".to_owned()]);
                domain.patterns.push(AddressPattern { expression: "([a-z]+)-([a-z]+)".to_owned(), to });
            }
            domain
        };
        let mut first = make(first, "a.example");
        first.domain_aliases.push("c.example".to_owned());
        vec![first, make(second, "b.example")]
    })
}

fn addresses() -> impl Iterator<Item = (String, &'static str)> {
    let simple = NAMES.iter().map(|name| (*name).to_owned());
    let double = NAMES.iter().flat_map(|first| NAMES.iter().map(move |second| format!("{first}-{second}")));
    let rest = ["nobody", "ann+x", "postmaster"].map(str::to_owned);
    let all: Vec<_> = simple.chain(double).chain(rest).collect();
    ["a.example", "b.example"]
        .into_iter()
        .flat_map(move |domain| all.clone().into_iter().map(move |name| (name, domain)))
}

/// Mailboxes in the order of their names.
fn reached(route: Route) -> Result<BTreeSet<String>, DirectoryRefusal> {
    match route {
        Route::Local(mailboxes) => {
            let paths: BTreeSet<_> = mailboxes.iter().map(|mailbox| mailbox.text().to_owned()).collect();
            assert_eq!(paths.len(), mailboxes.len(), "each mailbox once");
            assert!(!paths.is_empty());
            Ok(paths)
        }
        Route::Discard => Ok(BTreeSet::new()),
        Route::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

fn reversed(domains: &[Domain]) -> Vec<Domain> {
    let mut domains: Vec<Domain> = domains.to_vec();
    for domain in &mut domains {
        for targets in domain.aliases.values_mut().chain(domain.patterns.iter_mut().map(|pattern| &mut pattern.to)) {
            if let Targets::To(targets) = targets {
                targets.reverse();
            }
        }
    }
    domains.reverse();
    domains
}

/// The meaning of aliases, as simply as it can be said: the mailboxes of all that can be reached, those of aliases only where they lead back to themselves.
fn model(domains: &[Domain], name: &str, domain: &str) -> BTreeSet<String> {
    let domain_of = |name: &str| domains.iter().find(|domain| domain.names().any(|other| other == name)).unwrap();
    let targets = |(name, domain): &(String, String)| -> Vec<(String, String)> {
        let Some(Targets::To(targets)) = domain_of(domain).aliases.get(name) else { return Vec::new() };
        let target = |target: &String| {
            let (name, domain) = target.split_once('@').unwrap_or((target, domain));
            (name.to_owned(), domain_of(domain).name.clone())
        };
        targets.iter().map(target).collect()
    };
    let closure = |start: Vec<(String, String)>| {
        let (mut all, mut waiting) = (BTreeSet::new(), start);
        while let Some(next) = waiting.pop() {
            if all.insert(next.clone()) {
                waiting.extend(targets(&next));
            }
        }
        all
    };
    let mut reached = closure(vec![(name.to_owned(), domain.to_owned())]);
    reached.retain(|name| !domain_of(&name.1).aliases.contains_key(&name.0) || closure(targets(name)).contains(name));
    reached.into_iter().map(|(name, domain)| format!("{domain}/{name}/Maildir")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn an_alias_leads_to_all_that_can_be_reached_in_any_order(domains in tables()) {
        let directory = Directory::new(&domains, "Maildir");
        let turned = reversed(&domains);
        let other = Directory::new(&turned, "Maildir");
        // Which mistake is found first depends on the order, that there is one does not.
        prop_assert_eq!(directory.is_ok(), other.is_ok());
        let (Ok(directory), Ok(other)) = (directory, other) else { return Ok(()) };
        for (name, domain) in addresses() {
            let found = reached(directory.resolve(&name, Some(domain)));
            prop_assert_eq!(&found, &reached(other.resolve(&name, Some(domain))), "{}@{}", name, domain);
            let table = domains.iter().find(|table| table.name == domain).unwrap();
            if table.aliases.contains_key(&name) {
                prop_assert_eq!(found, Ok(model(&domains, &name, domain)), "{}@{}", name, domain);
            }
            if name == "postmaster" {
                prop_assert!(!reached(directory.resolve(&name, Some(domain))).unwrap().is_empty());
            }
        }
        for (name, _) in addresses() {
            let asked = |domain| directory.resolve(&name, Some(domain));
            prop_assert_eq!(reached(asked("a.example")), reached(asked("C.Example.")));
        }
    }

    #[test]
    fn no_local_part_and_no_pattern_makes_a_look_up_fail(
        local in ".{0,70}",
        expression in "[ab.*+?(|)$^{}0-9\\[\\]\\\\-]{0,12}",
        to in "[ab$0-9{}@.]{0,8}",
    ) {
        let mut domain = Domain::open_to_any("a.example");
        domain.patterns.push(AddressPattern { expression, to: Targets::To(vec![to]) });
        let Ok(directory) = Directory::new(&[domain], "Maildir") else { return Ok(()) };
        if let Ok(paths) = reached(directory.resolve(&local, Some("a.example"))) {
            prop_assert!(paths.iter().all(|path| path.starts_with("a.example/") && path.matches('/').count() == 2));
        }
    }
}
