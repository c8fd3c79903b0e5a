//! Our equivalents of mu's and notmuch's commands, compared with notmuch's output over the same mail if it is
//! installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::search::Place;

/// Set if a missing comparison is a failure.
const REQUIRED: &str = "CI_REQUIRE_PEERS";

const THIRD: &str = "From: me@example.org\nSubject: Re: Rye bread\nMessage-ID: <3@example.org>\nReferences: <1@example.org>\n <2@example.net>\n\
                     Reply-To: Readers <list@example.org>\nDate: Thu, 06 Mar 2025 10:40:00 +0000\n\nthird\n";

fn place() -> Place {
    let place = Place::new();
    fs::write(place.path().join("mail/cur/3.c.host:2,F"), THIRD).unwrap();
    place.says(0, &["index", "--quiet", "mail"]);
    place
}

/// Runs notmuch over the same mail; `None` if it is not installed.
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

/// A line without the program's own number of the thread.
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
    assert_eq!(place.says(0, &["cfind", "--format=mutt-ab", "bob"]), "1 address\nbob@example.net\tBob\t\n");
    place.says(1, &["cfind", "nobody"]);
    assert_eq!(place.run(&["cfind", "(x"]).status.code(), Some(2));
    place.says(1, &["cfind", "--after", "9999999999"]);
}

const PARTS: &str = "From: Bob <bob@example.net>\nTo: me@example.org, \"Doe, C\" <c@example.org>\nCc: Eve <eve@example.org>\nSubject: =?utf-8?Q?Gr=C3=BC=C3=9Fe?=\n\
                     Message-ID: <4@example.net>\nDate: Fri, 07 Mar 2025 10:40:00 +0100\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n\
                     --b\nContent-Type: multipart/alternative; boundary=c\n\n--c\nContent-Type: text/plain; charset=utf-8\n\nWhich oven?\n> quoted\n\
                     --c\nContent-Type: text/html\n\n<p>Which oven?\n--c--\n\
                     --b\nContent-Type: image/png; name=\"cat.png\"\nContent-Disposition: attachment; filename=\"cat.png\"\nContent-Transfer-Encoding: base64\n\n\
                     iVBORw0KGgo=\n\
                     --b\nContent-Type: text/plain; name=\"x.txt\"\nContent-Disposition: attachment\n\ntext att\n\
                     --b\nContent-Type: message/rfc822\n\nFrom: Eve <eve@example.org>\nTo: z@example.org\nSubject: enclosed\n\
                     Date: Wed, 05 Mar 2025 11:40:00 +0000\n\ninner\n--b--\n";

#[test]
fn threads_and_parts_are_shown_as_notmuch_shows_them() {
    let place = place();
    fs::write(place.path().join("mail/cur/4.d.host:2,S"), PARTS).unwrap();
    place.says(0, &["index", "--quiet"]);
    let json = |line: &[&str]| -> Value { serde_json::from_str(&place.says(0, line)).unwrap() };
    let thread = json(&["show", "--format=json", "oven", "subject:rye"]);
    // [[[Ann, [[Bob, [[me, []]]]]]]]
    assert_eq!((&thread[0][0][0]["id"], &thread[0][0][0]["match"]), (&"1@example.org".into(), &false.into()));
    assert_eq!(
        (&thread[0][0][1][0][0]["id"], &thread[0][0][1][0][0]["match"]),
        (&"2@example.net".into(), &true.into())
    );
    assert_eq!(thread[0][0][1][0][1][0][0]["headers"]["Reply-To"], "Readers <list@example.org>");
    let parts = json(&["show", "--format=json", "id:4@example.net"]);
    let body = &parts[0][0][0]["body"][0];
    assert_eq!((&body["id"], &body["content"][0]["content"][1]["id"]), (&1.into(), &4.into()));
    assert_eq!(body["content"][3]["content"][0]["body"][0]["content"], "inner");
    assert_eq!(body["content"][0]["content"][1]["content"], Value::Null, "HTML only if it is asked for");
    let html = json(&["show", "--format=json", "--include-html", "id:4@example.net"]);
    assert_eq!(html[0][0][0]["body"][0]["content"][0]["content"][1]["content"], "<p>Which oven?");
    assert_eq!(json(&["show", "--format=json", "--body=false", "id:4@example.net"])[0][0][0]["body"], Value::Null);
    let png = place.run(&["show", "--part=5", "id:4@example.net"]);
    assert_eq!(png.stdout, b"\x89PNG\r\n\x1a\n");
    assert_eq!(place.says(0, &["show", "--format=raw", "id:4@example.net"]), PARTS);
    assert_eq!(place.run(&["show", "--format=raw", "rye"]).status.code(), Some(2), "one message");
    assert_eq!(place.run(&["show", "--part=99", "id:4@example.net"]).status.code(), Some(2));
    place.says(1, &["show", "wheat"]);
    let text = place.says(0, &["show", "id:4@example.net"]);
    assert!(text.starts_with("\x0cmessage{ id:4@example.net depth:0 match:1 excluded:0 filename:/"), "{text}");
    assert!(
        text.contains("\x0cattachment{ ID: 5, Filename: cat.png, Content-type: image/png\nNon-text part: image/png\n"),
        "{text}"
    );
    assert!(place.says(0, &["show", "--format=sexp", "rye"]).starts_with("((("));
    let Some(notmuch) = notmuch(place.path()) else { return };
    for line in [
        &["show", "--format=json", "id:4@example.net"][..],
        &["show", "--format=json", "--include-html", "id:4@example.net"],
        &["show", "--format=json", "--body=false", "from:ann"],
        &["show", "--format=json", "id:2@example.net"],
    ] {
        let theirs: Value = serde_json::from_str(&notmuch(line)).unwrap();
        assert_eq!(json(line), theirs, "{line:?}");
    }
}

#[test]
fn answers_begin_as_notmuch_begins_them() {
    let place = place();
    fs::write(place.path().join("mail/cur/4.d.host:2,S"), PARTS).unwrap();
    place.says(0, &["index", "--quiet"]);
    let nobody = place.run(&["reply", "id:4@example.net"]);
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("no From field: set $EMAIL"), "{nobody:?}");
    let settings = "[user]\nname = \"Me\"\naddresses = [\"me@example.org\"]\n";
    fs::write(place.path().join("data/posthaste/search/config.toml"), settings).unwrap();
    let answer = place.says(0, &["reply", "id:4@example.net"]);
    let expected = "From: Me <me@example.org>\nSubject: Re: Grüße\nTo: Bob <bob@example.net>, \"Doe, C\" <c@example.org>\nCc: Eve <eve@example.org>\n\
                    In-Reply-To: <4@example.net>\nReferences: <4@example.net>\n\n\
                    On Fri, 07 Mar 2025 10:40:00 +0100, Bob <bob@example.net> wrote:\n> Which oven?\n> > quoted\n";
    assert_eq!(answer, expected);
    fs::write(place.path().join("bare.eml"), "Subject: x\n\nhello\n").unwrap();
    assert!(place.says(0, &["reply", "bare.eml"]).ends_with("\n\nsomebody wrote:\n> hello\n"));
    let to_sender =
        place.says(0, &["reply", "--reply-to=sender", "--from", "other@example.org", "mail/cur/4.d.host:2,S"]);
    assert!(
        to_sender.starts_with("From: Me <other@example.org>\n")
            && to_sender.contains("\nTo: Bob <bob@example.net>\nIn-"),
        "{to_sender}"
    );
    let to_list = place.says(0, &["reply", "--format=headers-only", "id:3@example.org"]);
    assert!(to_list.contains("To: Readers <list@example.org>\n"), "{to_list}");
    assert!(to_list.ends_with("References: <1@example.org> <2@example.net> <3@example.org>\n"), "{to_list}");
    let json: Value = serde_json::from_str(&place.says(0, &["reply", "--format=json", "id:4@example.net"])).unwrap();
    assert_eq!(json["reply-headers"]["In-reply-to"], "<4@example.net>");
    assert_eq!(json["original"]["body"][0]["content-type"], "multipart/mixed");
    place.says(1, &["reply", "wheat"]);
    let Some(notmuch) = notmuch(place.path()) else { return };
    let of = |text: &str| -> Value { serde_json::from_str::<Value>(text).unwrap()["reply-headers"].take() };
    for id in ["id:4@example.net", "id:1@example.org", "id:3@example.org"] {
        let line = ["reply", "--format=json", id];
        let (mut ours, mut theirs) = (of(&place.says(0, &line)), of(&notmuch(&line)));
        // They put oneself last in another order; who is written to is the same.
        let sorted = |value: &mut Value| {
            let mut all: Vec<String> = value["To"].as_str().unwrap_or("").split(", ").map(str::to_owned).collect();
            all.sort();
            value["To"] = all.into();
        };
        sorted(&mut ours);
        sorted(&mut theirs);
        assert_eq!(ours, theirs, "{id}");
    }
}

#[test]
fn features_of_mu_and_notmuch_we_lack_are_answered() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    for (line, said) in [
        (&["find", "--nocolor", "rye"][..], "no --nocolor: NO_COLOR=1"),
        (&["find", "rye", "--nocolor"], "no --nocolor: NO_COLOR=1"),
        (&["find", "--muhome=/x", "rye"], "no --muhome: --index DIR"),
        (&["search", "--output=files", "--duplicate=1", "rye"], "`posthaste find --skip-dups --output files QUERY`"),
        (&["search", "--output=files", "rye", "--duplicate=1"], "`posthaste find --skip-dups --output files QUERY`"),
        (&["show", "--decrypt=true", "rye"], "signatures not checked"),
        (&["view", "--verify", "rye"], "signatures not checked"),
        (&["count", "--lastmod"], "nothing counts changes"),
        (&["tag", "--batch"], "`posthaste tag --restore FILE --accumulate`"),
        (&["tag", "--input=x", "--batch"], "`posthaste tag --restore FILE --accumulate`"),
        (&["init", "--maildir=/x"], "no command `init`: `posthaste index MAILDIR`"),
        (&["dump"], "`posthaste tag --dump`"),
        (&["restore", "--accumulate"], "`posthaste tag --restore FILE`"),
        (&["reindex", "*"], "`posthaste index rebuild`"),
        (&["move", "x", "/y"], "`posthaste find --move /FOLDER QUERY`"),
        (&["flag", "+S", "rye"], "`posthaste find --flag +S QUERY`"),
        (&["config", "get", "user.name"], "no command `config get`"),
        (&["index", "--lazy-check"], "`index` looks at what changed"),
    ] {
        let refused = place.run(line);
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(told.contains(said) && told.lines().count() == 1, "{line:?}: {told}");
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0), "{line:?}");
    }
    // What works as it is typed there.
    assert_eq!(place.says(0, &["cfind", "@example\\.net$"]), "Bob bob@example.net\n");
    assert_eq!(place.says(0, &["cfind", "^ann"]), "Ann ann@example.org\n");
    assert!(place.says(0, &["address", "--output=sender", "--format=json", "*"]).contains("bob@example.net"));
    assert!(place.says(0, &["view", "--format=plain", "oven"]).contains("Which oven?"));
    assert_eq!(place.says(0, &["show", "--format=sexp", "rye"]).lines().count(), 1);
}
