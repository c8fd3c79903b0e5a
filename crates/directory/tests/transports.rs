//! Mail that goes to programs, files and LMTP servers.

use std::collections::BTreeSet;

use posthaste_directory::{Directory, Domain, Place, Route};
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
    name = "example.org"
    domain_aliases = ["example.net"]
    users = ["ann", "bob"]
    catch_all = "lmtp:elsewhere:24"
    [domain.aliases]
    list = "|/usr/bin/list -v"
    postmaster = ["list", "/var/mail/all"]
    bob = ["bob", "/var/mail/all", "list"]
    [[domain.pattern]]
    match = "for-(.+)"
    to = "list+$1"
    [[domain.pattern]]
    match = "fixed-.+"
    to = "list"

    [[domain]]
    name = "far.example"
    users = ["ann", "carl"]
    transport = "lmtp:unix:/run/dovecot/lmtp"
    accounts = { carl = { transport = "|/usr/bin/carl" } }
"#;

/// Where mail for an address goes, and as which.
fn places(directory: &Directory, address: &str) -> Vec<(String, String)> {
    let (local, domain) = address.rsplit_once('@').unwrap();
    let Route::Local(mailboxes) = directory.resolve(local, Some(domain)) else { panic!("{address} is refused") };
    mailboxes.iter().map(|mailbox| (mailbox.text().to_owned(), mailbox.address.to_string())).collect()
}

#[test]
fn a_transport_gets_the_mail_as_the_address_that_leads_there() {
    let directory = directory(CONFIG).unwrap();
    let check = |address: &str, expected: &[(&str, &str)]| {
        let expected: Vec<_> = expected.iter().map(|(place, to)| ((*place).to_owned(), (*to).to_owned())).collect();
        assert_eq!(places(&directory, address), expected, "{address}");
    };
    let list = "|/usr/bin/list -v";
    check("List+x@example.net", &[(list, "List+x@example.org")]);
    check("for-me@example.org", &[(list, "list+me@example.org")]);
    check("fixed-me@example.org", &[(list, "list@example.org")]);
    check("anybody@example.org", &[("lmtp:elsewhere:24", "anybody@example.org")]);
    // Those of another alias have that one's address.
    check("postmaster@example.org", &[("/var/mail/all", "postmaster@example.org"), (list, "list@example.org")]);
    let bob = "example.org/bob/Maildir";
    check(
        "bob+x@example.org",
        &[(bob, "bob@example.org"), ("/var/mail/all", "bob+x@example.org"), (list, "list@example.org")],
    );
    check("Ann+x@far.example", &[("lmtp:unix:/run/dovecot/lmtp", "Ann+x@far.example")]);
    check("carl@far.example", &[("|/usr/bin/carl", "carl@far.example")]);
    let detail = |address: &str| directory.detail(address).unwrap_or("none").to_owned();
    assert_eq!(
        ["a+b+c@example.org", "a@example.org", "\"a+b\"@example.org", "a+b@other"].map(detail),
        ["b+c", "none", "none", "none"]
    );
    let domains = toml::from_str::<Section>(CONFIG).unwrap().domain;
    let all = domains.iter().flat_map(Domain::transports).map(|transport| transport.to_string());
    let all: BTreeSet<String> = all.collect();
    assert_eq!(
        Vec::from_iter(all),
        ["/var/mail/all", "lmtp:elsewhere:24", "lmtp:unix:/run/dovecot/lmtp", "|/usr/bin/carl", list]
    );
}

#[test]
fn a_file_gets_a_message_once_and_a_server_once_per_address() {
    let directory = directory(CONFIG).unwrap();
    let identities = |address: &str| -> Vec<_> {
        let (local, domain) = address.rsplit_once('@').unwrap();
        let Route::Local(mailboxes) = directory.resolve(local, Some(domain)) else { panic!("{address}") };
        let of_transport = mailboxes.iter().filter(|mailbox| matches!(mailbox.place, Place::Transport(_)));
        of_transport.map(|mailbox| (mailbox.identity().0.to_owned(), mailbox.identity().1.is_some())).collect()
    };
    let expected = [("/var/mail/all".to_owned(), false), ("|/usr/bin/list -v".to_owned(), true)];
    assert_eq!(identities("bob@example.org"), expected);
}

#[test]
fn a_mistake_is_found_at_its_place() {
    let check = |keys: &str, at: &str, message: &str| {
        let Problem { at: found, message: said } =
            directory(&format!("[[domain]]\nname = \"a.example\"\nusers = [\"ann\"]\n{keys}\n")).unwrap_err();
        let name = |key: &Key| match key {
            Key::Name(name) => name.clone(),
            Key::Index(index) => index.to_string(),
        };
        assert_eq!(found.iter().map(name).collect::<Vec<_>>().join("."), format!("domain.0.{at}"), "{keys}: {said}");
        assert!(said.contains(message), "{keys}: {said}");
    };
    check("aliases = { x = [\"ann\", \"|list\"] }", "aliases.x.1", "`list` is not an absolute path");
    check("aliases = { x = \"/a/../b\" }", "aliases.x.0", "not an absolute path");
    check("catch_all = \"lmtp:here\"", "catch_all.0", "write lmtp:unix:");
    check("transport = \"ann\"", "transport", "write \"|/program argument\"");
    check("transport = \"lmtp:a:b\"", "transport", "`b` is not a port");
    check("accounts = { ann = { transport = \"|\" } }", "accounts.ann.transport", "after `|`");
    // What a client says must not get into a command.
    let pattern = "[[domain.pattern]]\nmatch = \"a(.)\"\nto = [\"ann\", \"|/bin/x $1\"]";
    check(pattern, "pattern.0.to.1", "make an alias for this");
}
