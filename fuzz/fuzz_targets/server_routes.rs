//! From a recipient's address to mailboxes: one address a line. Whoever it is, the path is one that may be handed to the kernel and lies in a
//! directory of a domain of ours; who is not the same user does not get the same mailbox, and who is the same does, however it is written.
#![no_main]

use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use posthaste_config::Config;
use posthaste_directory::{AddressStep, Directory, DirectoryRefusal, Mailbox, Route, Rule};
use posthaste_maildir::MailboxPath;
use posthaste_message::address::AddressDomain;
use posthaste_message::write_delivered_to;
use posthaste_smtp::ForwardPath;

const CONFIG: &str = r#"
    host_name = "mx.example"

    [[domain]]
    name = "open.example"
    users = "any"

    [[domain]]
    name = "bücher.example"
    users = "any"
    sub_addressing = ""

    [[domain]]
    name = "strict.example"
    users = ["dash", "jörg"]
    sub_addressing = "-"

    [[domain]]
    name = "Example.ORG"
    users = ["alice", "Bob"]
    catch_all = "bob"
    domain_aliases = ["example.net"]
    aliases = { team = ["alice", "bob", "carol@open.example"], bob = ["bob", "alice"], nobody = { discard = true } }

    [[domain.pattern]]
    match = "(.+)\\.(?<last>.+)"
    to = ["${last}", "$1@open.example"]

    [[domain.pattern]]
    match = "([a-z]+-)*x"
    to = { refuse = "450 4.2.1 Later" }
"#;

static ROUTES: LazyLock<Directory> =
    LazyLock::new(|| Config::parse(Path::new("posthaste.toml"), CONFIG).expect("a configuration").directory());

fuzz_target!(|text: &str| {
    let (mut of_user, mut of_directory) = (HashMap::new(), HashMap::new());
    for path in text.lines().take(64).filter_map(|line| ForwardPath::parse(line).ok()) {
        let (steps, route) = ROUTES.explain(&path);
        assert_eq!(route, ROUTES.recipient(&path), "{path}");
        // No mailboxes: discarded.
        let found = match route {
            Route::Local(mailboxes) => Ok(mailboxes.to_vec()),
            Route::Discard => Ok(Vec::new()),
            Route::Refused(refusal) => Err(refusal),
            other => panic!("{path}: {other:?}"),
        };
        let domain = match &path {
            ForwardPath::Local(_) => "open.example".to_owned(),
            ForwardPath::Address(address) => match address.domain() {
                AddressDomain::Name(name) => {
                    let name = name.strip_suffix('.').unwrap_or(name).to_lowercase();
                    if name == "xn--bcher-kva.example" { "bücher.example".to_owned() } else { name }
                }
                AddressDomain::Ip(_) | AddressDomain::Literal(_) => String::new(),
            },
        };
        for mailbox in found.iter().flatten() {
            check(mailbox);
        }
        let name = path.local_part().to_lowercase();
        // What is written with three characters for an octet fits; `""` is an address and no name for a directory.
        if name.len() > 80 || name.is_empty() {
            continue;
        }
        // Which others there are (RFC 8265) is tested beside the code: here, that they reach nobody else.
        let is_plain = name.bytes().all(|octet| octet.is_ascii_graphic());
        match &*domain {
            "open.example" | "bücher.example"
                if !is_plain && found.as_ref().err() == Some(&DirectoryRefusal::BadName) => {}
            "open.example" | "bücher.example" => {
                let found = found.unwrap_or_else(|error| panic!("{path}: {error:?}"));
                let has_details = domain == "open.example";
                let user = (if has_details { without_detail(&name, '+') } else { name.clone() }, domain);
                let [mailbox] = &*found else { panic!("{path} has {found:?}") };
                let directory = mailbox.text().to_owned();
                assert_eq!(*of_user.entry(user.clone()).or_insert_with(|| directory.clone()), directory, "{path}");
                if !is_plain {
                    // Wide, composed and decomposed letters are the same name.
                    continue;
                }
                assert_eq!(*of_directory.entry(directory).or_insert_with(|| user.clone()), user, "{path}");
            }
            "strict.example" => {
                let user = without_detail(&name, '-');
                let is_known = ["dash", "postmaster"].contains(&&*user);
                assert!(is_known == found.is_ok() || !is_plain, "{path}");
                assert!(name != "jörg" || found.is_ok(), "{path}");
            }
            // What a pattern leads to lies in a domain of ours, and nobody need be there.
            "example.org" | "example.net"
                if steps.iter().any(|AddressStep { rule, .. }| matches!(rule, Rule::Pattern(_))) => {}
            "example.org" | "example.net" => {
                let ours = ["example.org/alice/Maildir", "example.org/bob/Maildir", "open.example/carol/Maildir"];
                let found = found.unwrap_or_else(|error| panic!("{path}: {error:?}"));
                assert!(found.iter().all(|mailbox| ours.contains(&mailbox.text())), "{path}");
            }
            // More ways to write a domain in letters (UTS 46) are tested beside the code: what they find lies in a domain of ours.
            name if !name.is_ascii() || name.contains("xn--") => {}
            _ => assert_eq!(found.err(), Some(DirectoryRefusal::Relay), "{path}"),
        }
    }
});

fn check(mailbox: &Mailbox) {
    let path = MailboxPath::parse(mailbox.text()).expect("a path for the kernel");
    let [domain, user, "Maildir"] = path.components().collect::<Vec<_>>()[..] else { panic!("{path:?}") };
    assert!(["open.example", "xn--bcher-kva.example", "strict.example", "example.org"].contains(&domain), "{path:?}");
    assert!(!user.starts_with('.') && user.bytes().all(|octet| octet.is_ascii_graphic()), "{path:?}");
    let mut field = Vec::new();
    write_delivered_to(&mut field, &mailbox.address);
    assert!(field.ends_with(b"\r\n") && !field[..field.len() - 2].iter().any(|octet| b"\r\n".contains(octet)));
}

fn without_detail(name: &str, separator: char) -> String {
    name.split_once(separator).map_or(name, |(user, _)| if user.is_empty() { name } else { user }).to_owned()
}
