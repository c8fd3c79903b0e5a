//! Where mail goes, for configurations as they are written.

use posthaste_directory::{AddressStep, Directory, DirectoryRefusal, Domain, Route, Rule};
use posthaste_smtp::ForwardPath;
use posthaste_units::words::{Key, Problem};

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

/// Paths and addresses of the mailboxes; none: the mail is discarded.
fn mailboxes(route: Route) -> Result<Vec<(String, String)>, DirectoryRefusal> {
    match route {
        Route::Local(mailboxes) => {
            Ok(mailboxes.iter().map(|found| (found.text().to_owned(), found.address.to_string())).collect())
        }
        Route::Discard => Ok(Vec::new()),
        Route::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

fn paths(directory: &Directory, address: &str) -> Result<Vec<String>, DirectoryRefusal> {
    let (local, domain) = address.rsplit_once('@').unwrap();
    mailboxes(directory.resolve(local, Some(domain))).map(|found| found.into_iter().map(|(path, _)| path).collect())
}

fn check_in(directory: &Directory, address: &str, expected: Result<&[&str], DirectoryRefusal>) {
    let expected = expected.map(|list| list.iter().map(|&path| path.to_owned()).collect::<Vec<_>>());
    assert_eq!(paths(directory, address), expected, "{address}");
}

fn check(address: &str, expected: Result<&[&str], DirectoryRefusal>) {
    check_in(&routes(), address, expected);
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
    let mut found = paths(&routes(), "both@example.org").unwrap();
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
    check("nobody@strict.example", Err(DirectoryRefusal::UnknownUser));
    check("a@elsewhere.example", Err(DirectoryRefusal::Relay));
}

#[test]
fn the_postmaster_is_always_reached() {
    check("Postmaster@strict.example", Ok(&["strict.example/postmaster/Maildir"]));
    let found = mailboxes(routes().resolve("postmaster", None)).unwrap();
    assert_eq!(found[0].0, "example.org/bob/Maildir");
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
    let check = |local: &str, domain: &str, expected: Result<&str, DirectoryRefusal>| {
        let found = mailboxes(routes.resolve(local, Some(domain))).map(|mailboxes| mailboxes[0].0.clone());
        assert_eq!(found.as_deref(), expected.as_ref().copied(), "{local:?} {domain}");
    };
    for jose in ["jos\u{e9}", "JOS\u{c9}", "jose\u{301}", "Jose\u{301}+x"] {
        check(jose, "listed.example", Ok("listed.example/jos%c3%a9/Maildir"));
        check(jose, "any.example", Ok("any.example/jos%c3%a9/Maildir"));
    }
    check("r\u{e9}my", "listed.example", Ok("listed.example/ann/Maildir"));
    check("\u{ff2b}arl", "listed.example", Ok("listed.example/karl/Maildir"));
    check("\u{212a}arl", "listed.example", Err(DirectoryRefusal::UnknownUser));
    check("\u{212a}arl+x", "listed.example", Err(DirectoryRefusal::UnknownUser));
    check("\u{212a}arl", "any.example", Err(DirectoryRefusal::BadName));
    check("a b", "any.example", Err(DirectoryRefusal::BadName));
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
                let found = mailboxes(routes.resolve(local, Some(domain)));
                assert_eq!(found, Ok(vec![(MAILBOX.to_owned(), "ann@xn--bcher-kva.example".to_owned())]), "{domain}");
            }
        }
        check_in(&routes, "x@other.example", Ok(&[MAILBOX]));
        // One A-label that stands for nothing, and one that no letters are written as.
        for domain in ["bucher.example", "xn--a.example", "xn--bcher-kv.example", "xn--.example", "xn--abc-.example"] {
            assert_eq!(mailboxes(routes.resolve("ann", Some(domain))), Err(DirectoryRefusal::Relay), "{domain}");
        }
    }
    let error = |names: [&str; 2]| {
        let [first, second] = names.map(|name| format!("[[domain]]\nname = \"{name}\"\n"));
        directory(&(first + &second)).unwrap_err().message
    };
    assert!(
        error(["xn--bcher-kva.example", "b\u{fc}cher.example"])
            .ends_with("`b\u{fc}cher.example` is another spelling of `xn--bcher-kva.example`, which is listed, too")
    );
    assert!(error(["a.example", "A.example"]).ends_with("the domain `A.example` is listed twice"));
    assert!(error(["a.example", "xn--a.example"]).ends_with("not a domain: it has no form in DNS"));
}

#[test]
fn delivered_to_keeps_the_quotes() {
    for (local, expected) in [
        ("alice+x", "alice+x@example.org"),
        ("alice+<bob@victim.example>, x", "\"alice+<bob@victim.example>, x\"@example.org"),
        ("alice+a\"b\\", "\"alice+a\\\"b\\\\\"@example.org"),
    ] {
        assert_eq!(mailboxes(routes().resolve(local, Some("example.org"))).unwrap()[0].1, expected);
    }
}

#[test]
fn hostile_names_stay_inside_their_domain() {
    check("../../etc@open.example", Ok(&["open.example/%2e.%2f..%2fetc/Maildir"]));
    check("..@open.example", Ok(&["open.example/%2e./Maildir"]));
    check("a/b@open.example", Ok(&["open.example/a%2fb/Maildir"]));
    check("a\0b@open.example", Err(DirectoryRefusal::BadName));
}

fn of(text: &str) -> Directory {
    directory(text).unwrap_or_else(|problem| panic!("{problem:?}"))
}

/// The place, with dots between, and what is wrong there.
fn problem(text: &str) -> (String, String) {
    let Problem { at, message } = directory(text).expect_err(text);
    let step = |key: &Key| match key {
        Key::Name(name) => name.clone(),
        Key::Index(index) => index.to_string(),
    };
    (at.iter().map(step).collect::<Vec<_>>().join("."), message)
}

#[test]
fn other_names_of_a_domain_are_the_domain() {
    let directory = of(r#"
        [[domain]]
        name = "example.org"
        domain_aliases = ["example.net", "b\u00fccher.example"]
        users = ["alice"]
        [domain.aliases]
        team = "alice@example.net"
        [[domain]]
        name = "other.example"
        aliases = { x = "team@xn--bcher-kva.example" }
    "#);
    for address in ["alice@example.net", "team@EXAMPLE.net.", "alice+x@xn--bcher-kva.example", "x@other.example"] {
        check_in(&directory, address, Ok(&["example.org/alice/Maildir"]));
    }
    let found = mailboxes(directory.resolve("Alice+x", Some("example.net"))).unwrap();
    assert_eq!(found[0].1, "Alice+x@example.org");
    check_in(&directory, "nobody@example.net", Err(DirectoryRefusal::UnknownUser));
    check_in(&directory, "postmaster@example.net", Ok(&["example.org/postmaster/Maildir"]));
    let of_two = |aliases: &str| {
        problem(&format!(
            "[[domain]]\nname = \"a.example\"\n[[domain]]\nname = \"b.example\"\ndomain_aliases = [{aliases}]\n"
        ))
    };
    let at = |index: usize| format!("domain.1.domain_aliases.{index}");
    assert_eq!(of_two("\"A.example\""), (at(0), "the domain `A.example` is listed twice".to_owned()));
    assert_eq!(of_two("\"c.example\", \"b.example\""), (at(1), "the domain `b.example` is listed twice".to_owned()));
    assert_eq!(of_two("\"c..example\""), (at(0), "`c..example` is not a domain, such as example.org".to_owned()));
}

const PATTERNS: &str = r#"
    [[domain]]
    name = "example.org"
    users = ["alice", "lee", "support"]
    aliases = { staff = ["alice", "lee"], gone = { refuse = "550 5.1.6 Moved to example.com" } }
    catch_all = { refuse = "Write to support@example.org" }

    [[domain.pattern]]
    match = "([a-z]+)\\.(?<last>[a-z]+)"
    to = "${last}"

    [[domain.pattern]]
    match = "support-([0-9]+)"
    to = ["support+$1", "box-$1@any.example", "staff"]

    [[domain.pattern]]
    match = "(no-?reply|bounces?).*"
    to = { discard = true }

    [[domain.pattern]]
    match = "all-.*"
    to = ["staff", "alice"]

    [[domain.pattern]]
    match = "old-.*"
    to = { refuse = "450 4.2.1 Try again next week" }

    [[domain.pattern]]
    match = ".*lee"
    to = "alice"

    [[domain]]
    name = "any.example"
    users = "any"
    [[domain.pattern]]
    match = "x-(.*)"
    to = "$1"
"#;

#[test]
fn patterns_come_after_names_and_the_first_that_matches_decides() {
    let directory = of(PATTERNS);
    let check = |address: &str, expected: Result<&[&str], DirectoryRefusal>| check_in(&directory, address, expected);
    check("Ann.Lee@example.org", Ok(&["example.org/lee/Maildir"]));
    // The detail is left out when nothing matches all of it.
    check("ann.lee+x@example.org", Ok(&["example.org/lee/Maildir"]));
    // One that leads to nobody does not go on to the next.
    check("ann.nobody@example.org", Err(DirectoryRefusal::UnknownUser));
    let both = [
        "example.org/support/Maildir",
        "any.example/box-7/Maildir",
        "example.org/alice/Maildir",
        "example.org/lee/Maildir",
    ];
    check("SUPPORT-7@example.org", Ok(&both));
    check("lee@example.org", Ok(&["example.org/lee/Maildir"]));
    check("xlee@example.org", Ok(&["example.org/alice/Maildir"]));
    check("all-hands@example.org", Ok(&["example.org/alice/Maildir", "example.org/lee/Maildir"]));
    check("no-reply@example.org", Ok(&[]));
    check("bounces+a=b@example.org", Ok(&[]));
    check("x-ann@any.example", Ok(&["any.example/ann/Maildir"]));
    check("x-@any.example", Err(DirectoryRefusal::BadName));
    check("ann@any.example", Ok(&["any.example/ann/Maildir"]));
    let reply = |address: &str| paths(&directory, address).unwrap_err().reply().to_string();
    assert_eq!(reply("old-x@example.org"), "450 4.2.1 Try again next week");
    assert_eq!(reply("gone@example.org"), "550 5.1.6 Moved to example.com");
    assert_eq!(reply("gone+x@example.org"), "550 5.1.6 Moved to example.com");
    assert_eq!(reply("nobody@example.org"), "550 5.1.1 Write to support@example.org");
    assert_eq!(reply("nobody@elsewhere.example"), "550 5.7.1 We do not relay");
}

#[test]
fn a_pattern_makes_mailboxes_for_its_targets_up_to_a_bound() {
    let list: String = (0..600).map(|user| format!("\"user{user}@any.example\", ")).collect();
    let directory = of(&format!(
        "[[domain]]\nname = \"a.example\"\naliases = {{ one = [{list}], two = [{}] }}\n\
         [[domain.pattern]]\nmatch = \"(one|two)-(.*)\"\nto = [\"$1\", \"$2\"]\n\
         [[domain]]\nname = \"any.example\"\nusers = \"any\"\n",
        list.replace("user", "other")
    ));
    assert_eq!(paths(&directory, "one-one@a.example").unwrap().len(), 600, "each mailbox once");
    check_in(&directory, "one-two@a.example", Err(DirectoryRefusal::TooManyMailboxes));
}

#[test]
fn the_postmaster_is_reached_whatever_is_discarded_or_refused() {
    for rest in ["{ discard = true }", "{ refuse = \"no\" }", "\"nobody\"", "\"ann\""] {
        let directory = of(&format!(
            "[[domain]]\nname = \"a.example\"\nusers = [\"ann\"]\naliases = {{ nobody = {{ discard = true }} }}\n\
             catch_all = {rest}\n[[domain.pattern]]\nmatch = \".*\"\nto = {{ discard = true }}\n"
        ));
        let expected = if rest == "\"ann\"" { "a.example/ann/Maildir" } else { "a.example/postmaster/Maildir" };
        for address in ["postmaster@a.example", "PostMaster+x@a.example"] {
            check_in(&directory, address, Ok(&[expected]));
        }
    }
    for to in ["{ discard = true }", "{ refuse = \"no\" }", "\"nobody\""] {
        let text =
            format!("[[domain]]\nname = \"a.example\"\n[domain.aliases]\nnobody.discard = true\npostmaster = {to}\n");
        let (at, message) = problem(&text);
        assert_eq!(at, "domain.0.aliases.postmaster");
        assert_eq!(message, "mail for the postmaster has to reach a mailbox (RFC 5321 section 4.5.1)");
    }
}

#[test]
fn who_leads_back_to_himself_keeps_a_copy() {
    let directory = of(r#"
        [[domain]]
        name = "a.example"
        users = ["ann", "bob", "carl"]
        [domain.aliases]
        ann = ["ann", "bob"]
        bob = ["carl", "bob", "ann"]
        both = ["bob", "ann"]
        carl = ["carl+copy", "bob"]
    "#);
    let all = ["a.example/ann/Maildir", "a.example/bob/Maildir", "a.example/carl/Maildir"];
    for name in ["ann", "bob", "both", "carl"] {
        let mut found = paths(&directory, &format!("{name}@a.example")).unwrap();
        found.sort();
        assert_eq!(found, all, "{name}");
    }
}

#[test]
fn a_mistake_is_found_at_its_place() {
    let check = |aliases: &str, at: &str, message: &str| {
        let text = format!(
            "[[domain]]\nname = \"a.example\"\nusers = [\"ann\"]\n{aliases}\n[[domain]]\nname = \"any.example\"\nusers = \"any\"\n"
        );
        assert_eq!(problem(&text), (format!("domain.0.{at}"), message.to_owned()), "{aliases}");
    };
    check(
        "aliases = { a = \"b\", b = \"ann\", c = [] }",
        "aliases.c",
        "has no target; write { discard = true } to discard its mail",
    );
    check(
        "aliases = { x = [\"ann\", \"y\"], y = [\"z\"], z = \"y\" }",
        "aliases.y.0",
        "the alias `y` leads back to itself, and there is no user of that name",
    );
    check("aliases = { x = [\"ann\", \"nobody\"] }", "aliases.x.1", "there is no user or alias `nobody`");
    check("aliases = { x = \"@a.example\" }", "aliases.x.0", "`@a.example` cannot be a mailbox name");
    check("aliases = { x = \"a b@any.example\" }", "aliases.x.0", "`a b@any.example` cannot be a mailbox name");
    check("aliases = { x = \"ann@localhost\" }", "aliases.x.0", "`localhost` is not one of our domains");
    check(
        "aliases = { x = \"a b@b.example\" }",
        "aliases.x.0",
        "`a b@b.example` is not an address that other hosts take",
    );
    check(
        "aliases = { ann = \"ann\" }\naccounts = { ann.forward = [\"ann@b.example\"] }",
        "accounts.ann.forward",
        "there is an alias `ann`, too: remove one of the two",
    );
    check(
        "accounts = { ann.forward = [\"ann@b.example\", \"nobody\"] }",
        "accounts.ann.forward.1",
        "there is no user or alias `nobody`",
    );
    check(
        "aliases = { x = [\"ann\", \"y\"], y = { refuse = \"gone\" } }",
        "aliases.x.1",
        "mail for `y` is refused, so all mail for `x` would be",
    );
    check(
        "aliases = { x = { refuse = \"250 2.0.0 ok\" } }",
        "aliases.x.refuse",
        "250 does not refuse a recipient; write 450 to 452, or 550 to 554",
    );
    check("catch_all = [\"ann\", \"nobody\"]", "catch_all.1", "there is no user or alias `nobody`");
    let pattern = |keys: &str| format!("[[domain.pattern]]\n{keys}\n");
    check(&pattern("match = \"a(\"\nto = \"ann\""), "pattern.0.match", "not a regular expression: unclosed group");
    check(&pattern("match = \"a\"\nto = [\"ann\", \"$1\"]"), "pattern.0.to.1", "the pattern has no group `1`");
    check(&pattern("match = \"a(.)\"\nto = [\"$1\", \"bob\"]"), "pattern.0.to.1", "there is no user or alias `bob`");
    check(
        &pattern("match = \"a(.)\"\nto = \"$1@$1.example\""),
        "pattern.0.to.0",
        "`$1.example` is not one of our domains; make an alias whose target is that address, and name the alias here",
    );
    check(
        &pattern("match = \"a\"\nto = []"),
        "pattern.0.to",
        "has no target; write { discard = true } to discard its mail",
    );
    check(
        &pattern("match = \"a\"\nto = { refuse = \"\" }"),
        "pattern.0.to.refuse",
        "a reply is one line of ASCII, of 1 to 400 characters",
    );
    check(&pattern("match = \"a\"\nto = \"ann\"").repeat(101), "pattern.100", "a domain has at most 100 patterns");
}

#[test]
fn each_step_of_a_look_up_is_told() {
    let directory = of(&format!(
        "{PATTERNS}\n[[domain]]\nname = \"b.example\"\ndomain_aliases = [\"c.example\"]\nusers = [\"bob\"]\naliases = {{ team = [\"bob\", \"staff@example.org\"] }}\n"
    ));
    let explain = |path: &str| directory.explain(&ForwardPath::parse(path).unwrap());
    let step = |address: &str, rule: Rule, to: &[&str]| AddressStep {
        address: address.to_owned(),
        rule,
        to: to.iter().map(|&to| to.to_owned()).collect(),
    };
    let (steps, route) = explain("<Team+X@C.example>");
    assert_eq!(
        steps,
        [
            step("Team+X@C.example", Rule::OneForm, &["team+x@c.example"]),
            step("team+x@c.example", Rule::DomainAlias, &["team+x@b.example"]),
            step("team+x@b.example", Rule::Detail, &["team@b.example"]),
            step("team@b.example", Rule::Alias, &["bob@b.example", "staff@example.org"]),
            step("staff@example.org", Rule::Alias, &["alice@example.org", "lee@example.org"]),
        ]
    );
    assert_eq!(mailboxes(route).unwrap().len(), 3);
    assert_eq!(explain("<bob@b.example>").0, []);
    assert_eq!(explain("<postmaster>").0, [step("postmaster", Rule::FirstDomain, &["postmaster@example.org"])]);
    let support = Rule::Pattern("support-([0-9]+)".to_owned());
    let (steps, _) = explain("<support-7@example.org>");
    assert_eq!(
        steps,
        [
            step(
                "support-7@example.org",
                support,
                &["support+7@example.org", "box-7@any.example", "staff@example.org"]
            ),
            step("staff@example.org", Rule::Alias, &["alice@example.org", "lee@example.org"]),
        ]
    );
    let (steps, route) = explain("<nobody@example.org>");
    assert_eq!(steps, [step("nobody@example.org", Rule::CatchAll, &[])]);
    assert!(matches!(route, Route::Refused(DirectoryRefusal::Configured(_))));
    assert_eq!(explain("<a@[127.0.0.1]>"), (Vec::new(), Route::Refused(DirectoryRefusal::Relay)));
}

#[test]
fn aliases_and_accounts_lead_to_other_hosts() {
    let directory = directory(
        r#"
        [[domain]]
        name = "example.org"
        users = ["ann", "bob", "carl"]
        catch_all = "rest@B\u00fccher.example"
        aliases = { team = ["ann", "x@other.example", "more"], more = ["x@OTHER.example", "y@other.example"] }
        [domain.accounts]
        bob.forward = ["bob@other.example"]
        carl = { forward = ["carl@other.example", "bob"], keep_copy = true }
        "#,
    )
    .unwrap();
    assert!(directory.has_remote() && !routes().has_remote());
    check_in(&directory, "team@example.org", Ok(&["example.org/ann/Maildir", "x@other.example", "y@other.example"]));
    check_in(&directory, "bob+x@example.org", Ok(&["bob@other.example"]));
    check_in(
        &directory,
        "carl@example.org",
        Ok(&["example.org/carl/Maildir", "carl@other.example", "bob@other.example"]),
    );
    check_in(&directory, "nobody@example.org", Ok(&["rest@xn--bcher-kva.example"]));
    check_in(&directory, "postmaster@example.org", Ok(&["rest@xn--bcher-kva.example"]));
}
