//! The commands that do what mu's and notmuch's do, beside notmuch's own output over the same mail where it is installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::search::Place;

/// Set where a comparison that is not made is a failure.
const REQUIRED: &str = "CI_REQUIRE_PEERS";

const THIRD: &str = "From: me@example.org\nSubject: Re: Rye bread\nMessage-ID: <3@example.org>\nReferences: <1@example.org>\n <2@example.net>\n\
                     Reply-To: Readers <list@example.org>\nDate: Thu, 06 Mar 2025 10:40:00 +0000\n\nthird\n";

fn place() -> Place {
    let place = Place::new();
    fs::write(place.path().join("mail/cur/3.c.host:2,F"), THIRD).unwrap();
    place.says(0, &["index", "--quiet", "mail"]);
    place
}

/// notmuch over the same mail; `None` if it is not there.
fn notmuch(dir: &Path) -> Option<impl Fn(&[&str]) -> String> {
    let config = dir.join("notmuch.conf");
    let mail = dir.join("mail");
    let text = format!(
        "[database]\npath={}\n[user]\nname=Me\nprimary_email=me@example.org\n[new]\ntags=\n[maildir]\nsynchronize_flags=true\n",
        mail.display()
    );
    fs::write(&config, text).unwrap();
    let run = move |args: &[&str]| {
        let mut command = Command::new("notmuch");
        command.args(args).env("NOTMUCH_CONFIG", &config).env("TZ", "UTC").env("LC_ALL", "C.UTF-8");
        command.output().map(|output| String::from_utf8(output.stdout).unwrap())
    };
    if run(&["new", "--quiet"]).is_err() {
        assert!(std::env::var_os(REQUIRED).is_none(), "notmuch is not installed");
        println!("notmuch is not installed: nothing is compared");
        return None;
    }
    Some(move |args: &[&str]| run(args).unwrap())
}

/// Without the number that each program gives a thread.
fn without_thread(line: &str) -> String {
    line.split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap_or_default()
}

#[test]
fn conversations_are_printed_as_notmuch_prints_them() {
    let place = place();
    let text = place.says(0, &["search", "rye"]);
    assert_eq!(
        text,
        "thread:0000000000000000   2025-03-06 [3/3] Ann, Bob, me@example.org; Rye bread (attachment flagged unread)\n"
    );
    let one = place.says(0, &["search", "oven"]);
    assert!(one.contains(" 2025-03-05 [1/3] Bob| Ann, me@example.org; Rye bread ("), "{one}");
    assert_eq!(place.says(0, &["search", "--output=threads", "oven"]), "thread:0000000000000000\n");
    assert_eq!(place.says(0, &["find", "--count", "thread:0000000000000000"]), "3\n");
    assert_eq!(
        place.says(0, &["search", "--output=messages", "--sort=oldest-first", "rye", "-n", "2"]),
        "id:1@example.org\nid:2@example.net\n"
    );
    assert_eq!(place.says(0, &["search", "--output=tags", "rye"]), "attachment\nflagged\nunread\n");
    assert_eq!(place.says(0, &["search", "--output=files", "from:ann", "--format=text0"]).matches('\0').count(), 1);
    place.says(1, &["search", "wheat"]);
    let sexp = place.says(0, &["search", "--format=sexp", "oven"]);
    assert!(sexp.starts_with("((:authors \"Bob| Ann, me@example.org\"") && sexp.contains(":total 3"), "{sexp}");
    // Two files are one message.
    fs::copy(place.path().join("mail/cur/1.a.host:2,S"), place.path().join("mail/.Sent/cur/7.g.host:2,S")).unwrap();
    place.says(0, &["index", "--quiet"]);
    assert!(place.says(0, &["search", "rye"]).contains(" [3/3(4)] "));
    assert_eq!(place.says(0, &["count", "rye"]), "3\n");
    assert_eq!(place.says(0, &["count", "--output=files", "rye"]), "4\n");
    assert_eq!(place.says(0, &["count", "--output=threads", "rye"]), "1\n");
    assert_eq!(place.says(0, &["count", "wheat"]), "0\n");
    let Some(notmuch) = notmuch(place.path()) else { return };
    for line in
        [&["search", "bread"][..], &["search", "oven"], &["search", "--sort=oldest-first", "from:bob or from:me"]]
    {
        assert_eq!(without_thread(&place.says(0, line)), without_thread(&notmuch(line)), "{line:?}");
    }
    for line in [
        &["count", "bread"][..],
        &["count", "--output=files", "*"],
        &["count", "--output=threads", "*"],
        &["count", "wheat"],
    ] {
        assert_eq!(place.says(0, line), notmuch(line), "{line:?}");
    }
    for line in [&["search", "--output=messages", "bread"][..], &["search", "--output=tags", "*"]] {
        assert_eq!(place.says(0, line), notmuch(line), "{line:?}");
    }
    let json = |text: &str| -> Value {
        let mut value: Value = serde_json::from_str(text).unwrap();
        value[0]["thread"] = Value::Null;
        value
    };
    let line = ["search", "--format=json", "oven"];
    assert_eq!(json(&place.says(0, &line)), json(&notmuch(&line)));
}

#[test]
fn contacts_are_printed_as_mu_prints_them() {
    let place = place();
    assert_eq!(place.says(0, &["cfind", "^bob"]), "Bob bob@example.net\n");
    assert_eq!(
        place.says(0, &["cfind", "--format=mutt-alias", "ann|bob"]),
        "alias Ann Ann <ann@example.org>\nalias Bob Bob <bob@example.net>\n"
    );
    assert_eq!(place.says(0, &["cfind", "--format=csv", "-n1", "^me@|<me@"]), ",\"me@example.org\"\n");
    assert_eq!(place.says(0, &["cfind", "--format=mutt-ab", "bob"]), "1 addresses\nbob@example.net\tBob\t\n");
    place.says(1, &["cfind", "nobody"]);
    assert_eq!(place.run(&["cfind", "(x"]).status.code(), Some(2));
    place.says(1, &["cfind", "--after", "9999999999"]);
}
