//! Index, find, threads, view, extract, addresses, tag, info: output, and exit status.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::support::command;

const FIRST: &str = "From: Ann <ann@example.org>\nTo: Bob <bob@example.net>\nSubject: Rye bread\nMessage-ID: <1@example.org>\n\
                     Date: Tue, 04 Mar 2025 10:40:00 +0000\n\nTwo days of work.\nFrom here on: flour.\n";
const ANSWER: &str = "From: Bob <bob@example.net>\nTo: Ann <ann@example.org>\nSubject: Re: Rye bread\nMessage-ID: <2@example.net>\n\
                      In-Reply-To: <1@example.org>\nDate: Wed, 05 Mar 2025 10:40:00 +0000\nContent-Type: multipart/mixed; boundary=b\n\n\
                      --b\n\nWhich oven?\x1b[31m\n--b\nContent-Type: text/plain; name=\"../oven list.txt\"\nContent-Disposition: attachment\n\nwood\n--b--\n";

pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["mail", "mail/.Sent"] {
            for sub in ["new", "cur", "tmp"] {
                fs::create_dir_all(dir.path().join(folder).join(sub)).unwrap();
            }
        }
        fs::write(dir.path().join("mail/cur/1.a.host:2,S"), FIRST).unwrap();
        fs::write(dir.path().join("mail/.Sent/new/2.b.host"), ANSWER).unwrap();
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn run(&self, line: &[&str]) -> Output {
        command(self.path(), line)
            .env("TZ", "UTC")
            .env("XDG_DATA_HOME", self.path().join("data"))
            .env_remove("EMAIL")
            .output()
            .unwrap()
    }

    /// Runs a command. Returns standard output; the exit status must be `code`.
    pub fn says(&self, code: i32, line: &[&str]) -> String {
        let output = self.run(line);
        assert_eq!(output.status.code(), Some(code), "{line:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn the_first_minute_needs_no_configuration() {
    let place = Place::new();
    let lost = place.run(&["find", "x"]);
    assert_eq!(lost.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&lost.stderr).contains("make one with `posthaste index MAILDIR`"));
    assert!(place.says(0, &["index", "mail"]).starts_with("2 messages in 2 folders: 2 new"));
    assert!(place.path().join("data/posthaste/search/current").is_file());
    assert_eq!(
        place.says(0, &["find", "rye"]),
        "2025-03-05 10:40  Bob  Re: Rye bread\n2025-03-04 10:40  Ann  Rye bread\n"
    );
    assert_eq!(
        place.says(0, &["find", "--threads", "rye"]),
        "2025-03-04 10:40  Ann  Rye bread\n2025-03-05 10:40  Bob  └▸\n"
    );
    assert_eq!(place.says(0, &["find", "--count", "flag:unread"]), "1\n");
    assert_eq!(place.says(1, &["find", "wheat"]), "");
    assert_eq!(place.says(0, &["find", "-f", "m,i", "maildir:/.Sent"]), "/.Sent  2@example.net\n");
    assert_eq!(place.says(0, &["find", "-n", "1", "--offset", "1", "-f", "s"]), "Rye bread\n");
    assert_eq!(place.says(0, &["find", "-u", "-r", "--reverse", "-f", "from", "ann and not to:ann"]), "Ann\nBob\n");
    assert_eq!(place.says(0, &["index", "verify"]).lines().count(), 1);
}

#[test]
fn options_of_mu_and_notmuch_are_known_and_none_is_searched_for() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    assert_eq!(place.says(0, &["find", "--sortfield", "d", "-z", "-f", "f", "rye"]), "Ann\nBob\n");
    assert_eq!(
        place.says(0, &["find", "--sort=oldest-first", "--output=messages", "rye"]),
        "id:1@example.org\nid:2@example.net\n"
    );
    assert_eq!(place.says(0, &["find", "--output=threads", "rye"]).lines().count(), 1, "both are in one");
    assert_eq!(place.says(0, &["find", "--count", "--output=threads", "rye"]), "1\n");
    place.says(0, &["tag", "+b", "+a", "--", "rye"]);
    assert_eq!(place.says(0, &["find", "--output=tags", "rye"]), "a\nb\n");
    assert_eq!(place.says(0, &["find", "--count", "mimetype:plain", "file:*"]), "1\n");
    assert_eq!(place.says(0, &["find", "--count", "folder:/^.Sent$/"]), "1\n");
    assert_eq!(place.says(0, &["find", "--count", "related:1@example.org"]), "2\n");
    let absent = place.run(&["find", "lastmod:1.."]);
    assert!(String::from_utf8_lossy(&absent.stderr).contains("no counter of changes"), "{absent:?}");
    assert!(place.says(0, &["find", "--output=files", "from:ann"]).ends_with("/mail/cur/1.a.host:2,S\n"));
    place.says(1, &["find", "--after", "99999999999", "rye"]);
    place.says(0, &["find", "--after", "0", "rye"]);
    for line in [["find", "rye", "--cuont"], ["find", "rye", "-y"], ["threads", "rye", "-z"], ["view", "rye", "--raw"]]
    {
        let refused = place.run(&line);
        assert_eq!(refused.status.code(), Some(2), "{line:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("is not an option here"), "{refused:?}");
    }
    assert_eq!(place.says(0, &["find", "subject:rye", "-n", "1", "-f", "s"]), "Re: Rye bread\n");
    assert_eq!(place.says(0, &["find", "rye", "-n1", "-z", "-f", "s"]), "Rye bread\n");
    assert_eq!(place.says(0, &["threads", "rye", "-n5"]).lines().count(), 1);
    assert_eq!(place.says(0, &["find", "--count", "rye", "-oven"]), "1\n");
    assert_eq!(place.says(0, &["find", "--count", "references:1@example.org"]), "1\n");
    assert_eq!(place.says(0, &["find", "--count", "changed:1h.. rye"]), "2\n");
}

#[test]
fn a_wrong_query_is_pointed_at() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    let wrong = place.run(&["find", "rye and", "form:ann"]);
    assert_eq!(wrong.status.code(), Some(2));
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert!(
        said.contains("did you mean `from:`?") && said.ends_with("\n  rye and form:ann\n          ^^^^\n"),
        "{said}"
    );
    assert!(wrong.stdout.is_empty());
}

#[test]
fn formats_are_what_other_programs_read() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    let json: serde_json::Value = serde_json::from_str(&place.says(0, &["find", "--json", "oven"])).unwrap();
    assert_eq!(json[0]["subject"], "Re: Rye bread");
    assert_eq!(json[0]["from"][0]["address"], "bob@example.net");
    assert_eq!(json[0]["attachments"][0], "../oven list.txt");
    let sexp = place.says(0, &["find", "-o", "sexp", "from:ann"]);
    assert!(
        sexp.contains(":from ((:email \"ann@example.org\" :name \"Ann\"))") && sexp.contains(":flags (seen)"),
        "{sexp}"
    );
    let mbox = place.says(0, &["find", "-o", "mbox", "from:ann"]);
    assert!(
        mbox.starts_with("From ann@example.org Tue Mar  4 10:40:00 2025\nFrom: Ann")
            && mbox.contains("\n>From here on"),
        "{mbox}"
    );
    place.says(0, &["find", "-o", "links", "--linksdir", "found", "rye"]);
    let link = fs::read_dir(place.path().join("found/cur")).unwrap().next().unwrap().unwrap();
    assert_eq!(fs::read_to_string(link.path()).unwrap(), FIRST);
    place.says(0, &["find", "-o", "links", "--linksdir", "found", "--clearlinks", "nonsense or oven"]);
    assert_eq!(fs::read_dir(place.path().join("found/cur")).unwrap().count(), 0);
    let threads: serde_json::Value = serde_json::from_str(&place.says(0, &["threads", "--json", "oven"])).unwrap();
    assert_eq!((&threads[0]["matched"], &threads[0]["total"]), (&1.into(), &2.into()));
    assert!(place.says(0, &["threads", "oven"]).ends_with("2025-03-05 10:40 [1/2] Ann, Bob; Rye bread\n"));
}

#[test]
fn messages_are_shown_and_attachments_saved_without_harm() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    let text = place.says(0, &["view", "from:bob"]);
    assert!(text.contains("Subject: Re: Rye bread\n") && text.contains("Which oven?\u{fffd}[31m\n"), "{text}");
    assert_eq!(place.says(0, &["view", "-o", "raw", "mail/cur/1.a.host:2,S"]), FIRST);
    assert!(place.says(0, &["view", "-o", "headers", "from:ann"]).ends_with("+0000\n\n"));
    assert!(place.says(0, &["extract", "from:bob"]).contains("../oven list.txt"));
    place.says(0, &["extract", "-a", "--target-dir", "data", "from:bob"]);
    assert_eq!(fs::read_to_string(place.path().join("data/oven list.txt")).unwrap().trim(), "wood");
    place.says(1, &["extract", "-a", "--target-dir", "data", "from:bob"]);
    place.says(0, &["extract", "--save-all", "--overwrite", "--target-dir", "data", "from:bob"]);
    assert!(fs::read_to_string(place.path().join("data/part-1")).unwrap().starts_with("Which oven?"));
    let (first, second) = ("mail/cur/1.a.host:2,S", "mail/.Sent/new/2.b.host");
    assert_eq!(place.says(0, &["view", "-o", "raw", first, second]), format!("{FIRST}\n\x0c\n{ANSWER}"));
    assert_eq!(place.run(&["extract", first, second]).status.code(), Some(2), "not the first of them alone");
    let missing = place.run(&["view", first, "missing.eml"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("missing.eml: No such file"), "{missing:?}");
    let hostile = "Content-Type: text/\x1b[31mx; name=a\n\nx\n";
    fs::write(place.path().join("hostile"), hostile).unwrap();
    assert!(!place.says(0, &["extract", "hostile"]).contains('\x1b'));
    assert_eq!(place.says(0, &["addresses", "-n", "1"]), "      2  Ann <ann@example.org>\n");
    assert_eq!(place.says(0, &["addresses", "-o", "csv", "--output=sender", "oven"]), "Bob,bob@example.net,1\n");
    assert_eq!(
        place.says(0, &["addresses", "-n1", "--output=sender", "--output=count"]),
        "      1  Ann <ann@example.org>\n"
    );
    let for_mutt = place.says(0, &["addresses", "-o", "mutt-ab", "--output=recipients", "oven"]);
    assert_eq!(for_mutt, "1 address\nann@example.org\tAnn\t1\n");
}

#[test]
fn tags_are_kept_dumped_and_restored() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    assert_eq!(place.says(0, &["tag", "+baking", "+todo", "--", "rye"]), "2 messages changed\n");
    assert_eq!(place.says(0, &["tag", "-todo", "from:ann"]), "1 message changed\n");
    assert_eq!(place.says(0, &["find", "-f", "s,x", "tag:todo"]), "Re: Rye bread  (baking todo)\n");
    assert_eq!(place.says(0, &["tag", "--list"]), "      2  baking\n      1  todo\n");
    let dump = place.says(0, &["tag", "--dump"]);
    assert_eq!(
        dump,
        "#notmuch-dump batch-tag:3 config,tags\n+baking -- id:1@example.org\n+baking +todo -- id:2@example.net\n"
    );
    place.says(0, &["index", "rebuild", "--quiet"]);
    assert_eq!(place.says(0, &["find", "--count", "tag:baking"]), "2\n");
    fs::write(place.path().join("dump"), "+later -- id:1@example.org\n+early -- id:9@example.org\n").unwrap();
    assert!(
        place
            .says(0, &["tag", "--restore", "dump"])
            .starts_with("1 message changed; 1 message of the dump not in the index")
    );
    assert_eq!(place.says(0, &["find", "-f", "x", "from:ann"]), "(later)\n");
    assert_eq!(place.says(0, &["tag", "--remove-all", "+one", "*"]), "2 messages changed\n");
    assert_eq!(place.says(0, &["tag", "--list"]), "      2  one\n");
    assert_eq!(place.says(0, &["tag", "--remove-all", "*"]), "2 messages changed\n");
    assert_eq!(place.says(0, &["tag", "--list"]), "");
    // A message that comes after its tags.
    fs::write(place.path().join("mail/cur/9.c.host:2,"), "Message-ID: <9@example.org>\nSubject: nine\n\nx\n").unwrap();
    place.says(0, &["index", "--quiet"]);
    assert_eq!(place.says(0, &["find", "-f", "s", "tag:early"]), "nine\n");
    assert_eq!(place.run(&["tag", "rye"]).status.code(), Some(2));
    assert_eq!(place.run(&["tag", "+x", "--", "nothing"]).status.code(), Some(1));
}

#[test]
fn mail_with_a_tag_for_it_is_left_out_unless_it_is_asked_for() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    place.says(0, &["tag", "+spam", "--", "from:ann"]);
    let count = |line: &[&str]| place.says(0, &[&["find", "--count"], line].concat());
    assert_eq!(count(&["rye"]), "1\n");
    assert_eq!(count(&["--exclude=false", "rye"]), "2\n");
    assert_eq!(count(&["--exclude-tags=other", "rye"]), "2\n");
    for query in ["tag:spam", "is:spam rye", "thread:{tag:spam} from:ann"] {
        assert_eq!(count(&[query]), "1\n", "{query} names the tag");
    }
    // In a thread that another message brought it is shown, if it is not to be left out of everything.
    assert_eq!(count(&["--include-related", "oven"]), "2\n");
    assert_eq!(count(&["--include-related", "--exclude=all", "oven"]), "1\n");
    place.says(1, &["threads", "from:ann"]);
    assert!(place.says(0, &["threads", "oven"]).contains(" [1/2] "));
    assert!(place.says(0, &["threads", "--exclude=all", "oven"]).contains(" [1/1] "));
    assert_eq!(place.says(0, &["addresses", "--output=sender"]), "      1  Bob <bob@example.net>\n");
    // What names a message or changes it looks at all of them.
    assert!(place.says(0, &["view", "msgid:1@example.org"]).contains("Two days of work."));
    assert_eq!(place.says(0, &["tag", "-spam", "rye"]), "1 message changed\n");
    assert_eq!(count(&["rye"]), "2\n");
}

#[test]
fn an_option_takes_an_attached_value_and_a_list_ends() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    assert_eq!(place.says(0, &["find", "-fs", "-n1", "rye"]), "Re: Rye bread\n");
    assert!(place.says(0, &["find", "-ojson", "-zn1", "rye"]).contains("ann@example.org"));
    assert_eq!(place.says(0, &["find", "-fs", "rye", "-oven"]), "Rye bread\n");
    assert_eq!(place.says(0, &["find", "rye", "--maxnum", "1", "--fields=s"]), "Re: Rye bread\n");
    assert_eq!(place.says(0, &["find", "-fs", "--", "-oven"]), "Rye bread\n");
    for (line, said) in [
        (["find", "rye", "--cuont"], "is not an option here"),
        (["find", "--cuont", "rye"], "unexpected argument '--cuont' found"),
        (["find", "--output=files", "-osexp"], "plain, text0 or json"),
    ] {
        let wrong = place.run(&line);
        assert_eq!(wrong.status.code(), Some(2), "{line:?}");
        assert!(String::from_utf8_lossy(&wrong.stderr).contains(said), "{wrong:?}");
    }
    let ids = ["find", "--output=messages", "--sort=oldest-first"];
    assert_eq!(place.says(0, &ids), "id:1@example.org\nid:2@example.net\n");
    assert_eq!(place.says(0, &[&ids[..], &["--format=text0"]].concat()), "id:1@example.org\0id:2@example.net\0");
    assert_eq!(place.says(0, &[&ids[..], &["--json"]].concat()), "[\"1@example.org\",\"2@example.net\"]\n");
    assert_eq!(place.says(0, &["find", "-otext0", "-fs", "rye"]), "Re: Rye bread\0Rye bread\0");
    assert_eq!(place.says(0, &["find", "-fs", "path:.Sent/new"]), "Re: Rye bread\n");
    place.says(1, &["find", "path:.Sent/cur"]);
}

#[test]
fn queries_are_saved_used_dumped_and_restored() {
    let place = Place::new();
    assert_eq!(place.run(&["query", "save", "mine", "rye"]).status.code(), Some(2), "no index, no query");
    place.says(0, &["index", "--quiet", "mail"]);
    place.says(0, &["query", "save", "mine", "from:ann", "or", "subject:\"no such\""]);
    place.says(0, &["query", "save", "my reading", "query:mine", "not tag:done"]);
    let listed = "mine        from:ann or subject:\"no such\"\nmy reading  query:mine not tag:done\n";
    assert_eq!(place.says(0, &["query", "list"]), listed);
    assert_eq!(place.says(0, &["query", "show", "my reading"]), "query:mine not tag:done\n");
    assert_eq!(place.says(0, &["find", "-f", "s", "query:\"my reading\""]), "Rye bread\n");
    assert_eq!(place.says(0, &["find", "-f", "s", "not query:mine"]), "Re: Rye bread\n");
    assert_eq!(place.says(0, &["find", "-b", "mine", "-f", "s"]), "Rye bread\n");
    place.says(1, &["find", "--bookmark", "mine", "oven"]);
    assert_eq!(place.says(0, &["tag", "+done", "query:mine"]), "1 message changed\n");
    place.says(1, &["find", "query:\"my reading\""]);
    // What cannot be read, or leads back to itself, is refused where it is saved, and changes nothing.
    for (line, said) in [
        (["query", "save", "mine", "a query:\"my reading\""], "\n  a query:\"my reading\"\n          ^^^^^^^^^^^^\n"),
        (["query", "save", "new", "date:x"], "\n  date:x\n       ^\n"),
        (["query", "save", "a\"b", "x"], "cannot be the name of a saved query\n"),
        (["find", "--count", "rye", "query:nine"], "\n  rye query:nine\n            ^^^^\n"),
    ] {
        let wrong = place.run(&line);
        assert_eq!(wrong.status.code(), Some(2), "{line:?}");
        let stderr = String::from_utf8(wrong.stderr).unwrap();
        assert!(stderr.ends_with(said), "{stderr}");
    }
    place.says(0, &["index", "rebuild", "--quiet"]);
    assert_eq!(place.says(0, &["query", "list"]), listed, "rebuilt");
    // Which index it is can be said on either side of the word.
    for line in [["index", "--index", "nowhere", "verify"], ["index", "verify", "--index", "nowhere"]] {
        assert_ne!(place.run(&line).status.code(), Some(0), "{line:?}");
    }
    assert_eq!(place.run(&["index", "--quiet", "rebuild"]).status.code(), Some(2));
    // What is derived may be removed altogether.
    let index = place.path().join("data/posthaste/search");
    fs::remove_file(index.join("current")).unwrap();
    place.says(0, &["index", "--quiet", "mail"]);
    assert_eq!(place.says(0, &["query", "list"]), listed, "made anew");
    let dump = place.says(0, &["tag", "--dump"]);
    assert_eq!(
        dump,
        "#notmuch-dump batch-tag:3 config,tags\n#@ query.mine from%3aann%20or%20subject%3a%22no%20such%22\n\
         #@ query.my%20reading query%3amine%20not%20tag%3adone\n+done -- id:1@example.org\n"
    );
    place.says(0, &["query", "save", "梁礼", "x"]);
    assert!(place.says(0, &["query", "list"]).ends_with("done\n梁礼        x\n"), "cells, not characters");
    place.says(0, &["query", "delete", "梁礼"]);
    place.says(0, &["query", "delete", "mine"]);
    place.says(1, &["query", "delete", "mine"]);
    place.says(1, &["query", "show", "mine"]);
    fs::write(place.path().join("dump"), dump.replace("tag%3adone", "date%3a2025")).unwrap();
    assert_eq!(place.says(0, &["tag", "--restore", "dump"]), "0 messages changed, 2 saved queries changed\n");
    assert_eq!(place.says(0, &["tag", "--restore", "dump"]), "0 messages changed\n");
    assert_eq!(place.says(0, &["query", "show", "my reading"]), "query:mine not date:2025\n");
    // As notmuch dumps a setting that it was told to forget.
    fs::write(place.path().join("dump"), "#@ query.mine \n").unwrap();
    place.says(0, &["tag", "--restore", "dump"]);
    assert_eq!(place.says(0, &["query", "list", "--json"]), "{\"my reading\":\"query:mine not date:2025\"}\n");
}

#[test]
fn info_says_what_there_is() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    let info: serde_json::Value = serde_json::from_str(&place.says(0, &["info", "--json"])).unwrap();
    assert_eq!((&info["messages"], &info["folders"]), (&2.into(), &2.into()));
    assert_eq!(info["mail_bytes"], (FIRST.len() + ANSWER.len()) as u64);
}

#[test]
fn trees_stand_in_columns() {
    let place = Place::new();
    let others = [
        ("3.c.host:2,S", "梁礼学 <l@example.org>", "Re: Rye bread", "2@example.net", "06"),
        ("4.d.host:2,S", "Somebody With A Very Long Name <s@example.org>", "Yeast", "1@example.org", "07"),
    ];
    for (file, from, subject, answered, day) in others {
        let date = format!("{day} Mar 2025 10:40:00 +0000");
        let text = format!("From: {from}\nSubject: {subject}\nIn-Reply-To: <{answered}>\nDate: {date}\n\nx\n");
        fs::write(place.path().join("mail/cur").join(file), text).unwrap();
    }
    place.says(0, &["index", "--quiet", "mail"]);
    let expected = "2025-03-04 10:40  Ann                       Rye bread\n\
                    2025-03-05 10:40  Bob                       ├▸\n\
                    2025-03-06 10:40  梁礼学                    │ └▸\n\
                    2025-03-07 10:40  Somebody With A Very Lo…  └▸Yeast\n";
    assert_eq!(place.says(0, &["find", "--threads"]), expected);
    let json: serde_json::Value = serde_json::from_str(&place.says(0, &["find", "--threads", "--json"])).unwrap();
    let levels: Vec<_> = json.as_array().unwrap().iter().map(|message| message["level"].as_u64()).collect();
    assert_eq!(levels, [Some(0), Some(1), Some(2), Some(1)]);
    let sexp = place.says(0, &["find", "--threads", "-o", "sexp"]);
    assert!(sexp.lines().nth(2).unwrap().ends_with(" :meta (:level 2))"), "{sexp}");
}

#[test]
fn hits_are_handed_to_commands_and_ordered_by_relevance() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    assert_eq!(
        place.says(0, &["find", "--exec", "grep -h ^Subject", "--reverse"]),
        "Subject: Rye bread\nSubject: Re: Rye bread\n"
    );
    place.says(1, &["find", "--exec", "false"]);
    place.says(1, &["find", "--exec", "true", "wheat"]);
    // No letters of a word are a command.
    place.says(2, &["find", "-term", "rye"]);
    place.says(0, &["find", "rye", "--", "bread"]);
    fs::write(
        place.path().join("mail/cur/3.c.host:2,S"),
        "Subject: oven\nDate: Mon, 03 Mar 2025 10:40:00 +0000\n\nx\n",
    )
    .unwrap();
    place.says(0, &["index", "--quiet"]);
    assert_eq!(place.says(0, &["find", "-f", "s", "oven"]), "Re: Rye bread\noven\n");
    assert_eq!(place.says(0, &["find", "-f", "s", "--sort", "relevance", "oven"]), "oven\nRe: Rye bread\n");
}

#[test]
fn shells_get_something_to_complete_with() {
    let place = Place::new();
    for (shell, mark) in [("bash", "complete -F"), ("zsh", "#compdef posthaste"), ("fish", "complete -c posthaste")] {
        let script = place.says(0, &["completions", shell]);
        assert!(script.contains(mark) && script.contains("include-related"), "{shell}");
    }
}

#[test]
fn without_an_index_the_mail_itself_is_searched() {
    let place = Place::new();
    let found = "2025-03-05 10:40  Bob  Re: Rye bread\n2025-03-04 10:40  Ann  Rye bread\n";
    assert_eq!(place.says(0, &["find", "--scan", "mail", "rye"]), found);
    assert_eq!(place.says(0, &["threads", "--scan", "mail", "rye"]).lines().count(), 1);
    assert_eq!(place.says(1, &["find", "--scan", "mail/.Sent", "flour"]), "");
    assert_eq!(place.says(0, &["find", "--scan", "mail", "--count", "header:message-id:example"]), "2\n");
    let wrong = place.run(&["find", "--scan", "nowhere", "header:Message-ID"]);
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("a header's name and a value"),
        "before anything is read: {wrong:?}"
    );
    // Numbers of a scan mean nothing to an index, so nothing is changed by them.
    for change in [["--flag", "+F"], ["--move", "/Sent"]] {
        let refused = place.run(&[&["find", "--scan", "mail"][..], &change, &["rye"]].concat());
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("only messages in an index can be moved or flagged"));
        assert!(
            place.path().join("mail/cur/1.a.host:2,S").exists()
                && place.path().join("mail/.Sent/new/2.b.host").exists()
        );
    }
    assert!(!place.path().join("data").exists(), "nothing is kept");
    // The usual Maildir needs no option.
    let find = |home: &str, line: &[&str]| {
        let mut command = command(place.path(), line);
        command.env("TZ", "UTC").env("XDG_DATA_HOME", place.path().join("data")).env_remove("MAILDIR");
        command.env("HOME", place.path().join(home)).output().unwrap()
    };
    fs::create_dir(place.path().join("home")).unwrap();
    let lost = find("home", &["find", "rye"]);
    assert_eq!(lost.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&lost.stderr).contains("find --scan MAILDIR"));
    fs::rename(place.path().join("mail"), place.path().join("home/Maildir")).unwrap();
    let refused = find("home", &["find", "--flag", "+F", "rye"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(place.path().join("home/Maildir/cur/1.a.host:2,S").exists());
    let told = find("home", &["find", "rye"]);
    assert_eq!(String::from_utf8_lossy(&told.stdout), found);
    assert!(String::from_utf8_lossy(&told.stderr).contains("no index: reading all mail in "));
    // A directory of Maildirs, as mbsync writes it.
    fs::create_dir(place.path().join("home/accounts")).unwrap();
    fs::rename(place.path().join("home/Maildir"), place.path().join("home/accounts/work")).unwrap();
    fs::rename(place.path().join("home/accounts"), place.path().join("home/Maildir")).unwrap();
    let told = find("home", &["find", "rye"]);
    assert_eq!((told.status.code(), &*String::from_utf8_lossy(&told.stdout)), (Some(0), found), "{told:?}");
    // What has no Maildir in it is reported.
    fs::remove_dir_all(place.path().join("home/Maildir/work")).unwrap();
    let nothing = find("home", &["find", "rye"]);
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("no Maildir"), "{nothing:?}");
}

#[test]
fn a_header_is_indexed_when_it_is_named() {
    let place = Place::new();
    fs::write(place.path().join("mail/cur/3.c.host:2,S"), "From: c@x.example\nX-Spam-Score: 7.5\n\nbuy\n").unwrap();
    place.says(0, &["index", "--quiet", "mail"]);
    let unknown = place.run(&["find", "header:X-Spam-Score:>5"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("`posthaste index --header X-Spam-Score`"),
        "{unknown:?}"
    );
    let built = place.run(&["index", "--header", "X-Spam-Score"]);
    assert_eq!(built.status.code(), Some(0), "{built:?}");
    assert!(String::from_utf8_lossy(&built.stderr).contains("other headers than before: X-Spam-Score"), "{built:?}");
    assert!(place.says(0, &["find", "header:x-spam-score:>5"]).contains("c@x.example"));
    assert_eq!(place.says(0, &["find", "--count", "not header:X-Spam-Score:*"]), "2\n");
    assert!(place.says(0, &["info"]).contains("\nheaders   X-Spam-Score\n"));
    assert_eq!(place.says(0, &["complete", "posthaste find header:X"]), "header:X-Spam-Score:\n");
    assert!(place.run(&["index", "--header", "X-Spam-Score"]).stderr.is_empty(), "it is there already");
    assert_eq!(place.run(&["index", "--header", "X Y"]).status.code(), Some(2));
}
