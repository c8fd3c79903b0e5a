//! Tags by rule, tags that are flags, dumps, and the few changes that are made to a Maildir.

use std::fs;

use crate::search::Place;

impl Place {
    pub fn settings(&self, text: &str) {
        let dir = self.path().join("data/posthaste/search");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("config.toml"), text).unwrap();
    }

    pub fn add(&self, name: &str, text: &str) {
        fs::write(self.path().join("mail/cur").join(name), text).unwrap();
    }

    pub fn names(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path().join("mail").join(dir)).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn new_mail_gets_tags_by_rule_once() {
    let place = Place::new();
    place.settings(
        "[new]\ntags = [\"inbox\"]\n[[new.rule]]\nquery = \"from:bob\"\nadd = [\"bob\"]\nremove = [\"inbox\"]\n",
    );
    let tags = |query: &str| place.says(0, &["find", "-f", "x", query]);
    place.says(0, &["index", "--quiet", "mail"]);
    assert_eq!((tags("from:ann"), tags("from:bob")), ("(inbox)\n".to_owned(), "(bob)\n".to_owned()));
    // What a person takes away stays away, also where the index is built again.
    place.says(0, &["tag", "-inbox", "from:ann"]);
    place.says(0, &["index", "--quiet", "--list-all"]);
    place.says(0, &["index", "rebuild", "--quiet"]);
    assert_eq!((tags("from:ann"), tags("from:bob")), ("\n".to_owned(), "(bob)\n".to_owned()));
    // Tags that were restored before a message came are what it gets.
    fs::write(place.path().join("dump"), "+early -- id:8@example.org\n").unwrap();
    assert!(place.says(0, &["tag", "--restore", "dump"]).contains("; 1 message of the dump not in the index"));
    place.add("8.h.host:2,S", "Message-ID: <8@example.org>\nSubject: eight\n\nx\n");
    place.add("9.h.host:2,S", "Message-ID: <9@example.org>\nSubject: nine\n\nx\n");
    place.says(0, &["index", "--quiet"]);
    assert_eq!((tags("subject:eight"), tags("subject:nine")), ("(early)\n".to_owned(), "(inbox)\n".to_owned()));
    // A rule that cannot be used is refused before anything is done.
    place.settings("[new]\ntags = [\"inbox\"]\n[[new.rule]]\nquery = \"date:x\"\nadd = [\"a\"]\n");
    place.add("10.h.host:2,S", "Message-ID: <10@example.org>\nSubject: ten\n\nx\n");
    for line in [&["index", "--quiet"][..], &["index", "--watch"], &["index", "rebuild"], &["new"]] {
        let refused = place.run(line);
        assert_eq!(refused.status.code(), Some(2), "{line:?}");
        assert!(
            String::from_utf8_lossy(&refused.stderr).contains("config.toml: line 4: `x` is not a date"),
            "{refused:?}"
        );
    }
    assert!(place.says(0, &["info"]).contains("config.toml: line 4: `x` is not a date"));
    place.says(1, &["find", "subject:ten"]);
    place.settings("[new]\ntags = [\"inbox\", \"late\"]\n");
    place.says(0, &["index", "--quiet"]);
    assert_eq!(tags("subject:ten"), "(inbox late)\n");
    assert_eq!(tags("subject:nine"), "(inbox)\n");
    // A second copy of what is known is no new mail.
    place.says(0, &["tag", "-inbox", "--", "subject:nine"]);
    place.add("11.h.host:2,S", "Message-ID: <9@example.org>\nSubject: nine\nX-Copy: 2\n\nx\n");
    place.says(0, &["index", "--quiet"]);
    assert_eq!(tags("subject:nine"), "\n\n");
    let info = place.says(0, &["info"]);
    assert!(info.contains("settings  new mail: +inbox +late\n"), "{info}");
}

#[test]
fn new_mail_that_a_rebuild_finds_first_gets_tags_by_rule() {
    let place = Place::new();
    let rules = "[new]\ntags = [\"inbox\"]\n[[new.rule]]\nquery = \"from:carl\"\nadd = [\"carl\"]\n";
    place.settings(rules);
    place.says(0, &["index", "--quiet", "mail"]);
    place.says(0, &["tag", "-inbox", "*"]);
    let tags = |query: &str| place.says(0, &["find", "-f", "x", query]);
    // A rebuild that was asked for, and one that other headers in the settings ask for.
    place.add("8.h.host:2,S", "From: carl@x.example\nMessage-ID: <8@example.org>\nSubject: eight\n\nx\n");
    place.settings(&format!("{rules}[hook]\nafter_index = \"echo $POSTHASTE_NEW of $POSTHASTE_MESSAGES new\"\n"));
    let rebuilt = place.run(&["index", "rebuild", "--quiet"]);
    assert_eq!((rebuilt.status.code(), &*String::from_utf8_lossy(&rebuilt.stderr)), (Some(0), "1 of 3 new\n"));
    assert_eq!((tags("subject:eight"), tags("from:ann")), ("(carl inbox)\n".to_owned(), "\n".to_owned()));
    place.says(0, &["tag", "-inbox", "subject:eight"]);
    place.settings(&format!("headers = [\"X-Spam-Score\"]\n{rules}"));
    place.add("9.h.host:2,S", "Message-ID: <9@example.org>\nSubject: nine\n\nx\n");
    place.says(0, &["index", "--quiet"]);
    assert_eq!((tags("subject:nine"), tags("subject:eight")), ("(inbox)\n".to_owned(), "(carl)\n".to_owned()));
    // Nothing is new to another rebuild.
    place.says(0, &["index", "rebuild", "--quiet"]);
    assert_eq!((tags("subject:nine"), tags("from:ann")), ("(inbox)\n".to_owned(), "\n".to_owned()));
}

#[test]
fn rules_that_come_later_leave_old_mail_alone() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    place.settings("[new]\ntags = [\"inbox\"]\n");
    place.says(0, &["index", "--quiet", "--list-all"]);
    assert_eq!(place.says(0, &["tag", "--list"]), "");
    place.add("9.h.host:2,S", "Message-ID: <9@example.org>\nSubject: nine\n\nx\n");
    let report: serde_json::Value = serde_json::from_str(&place.says(0, &["index", "--json"])).unwrap();
    assert_eq!((&report["added"], &report["tagged"]), (&1.into(), &1.into()));
    assert_eq!(place.says(0, &["tag", "--list"]), "      1  inbox\n");
}

#[test]
fn a_hook_runs_after_what_changed_and_fails_nothing() {
    let place = Place::new();
    place.settings("[hook]\nafter_index = \"echo $POSTHASTE_NEW $POSTHASTE_FLAGS_CHANGED $POSTHASTE_REMOVED $POSTHASTE_MESSAGES >> ran; exit 3\"\n");
    let ran = || fs::read_to_string(place.path().join("ran")).unwrap_or_default();
    let first = place.run(&["index", "--quiet", "mail"]);
    assert_eq!(first.status.code(), Some(0), "{first:?}");
    assert!(String::from_utf8_lossy(&first.stderr).contains("failed: exit status: 3"), "{first:?}");
    assert_eq!(ran(), "2 0 0 2\n");
    place.says(0, &["index", "--quiet", "--list-all"]);
    assert_eq!(ran(), "2 0 0 2\n", "nothing changed");
    fs::rename(place.path().join("mail/cur/1.a.host:2,S"), place.path().join("mail/cur/1.a.host:2,FS")).unwrap();
    place.says(0, &["new", "--no-hooks", "--full-scan"]);
    assert_eq!(ran(), "2 0 0 2\n");
    fs::remove_file(place.path().join("mail/cur/1.a.host:2,FS")).unwrap();
    assert_eq!(place.says(0, &["new", "--full-scan"]), "No new mail. Removed 1 message.\n");
    assert_eq!(ran(), "2 0 0 2\n0 0 1 1\n");
    // The hook may write to the index.
    let program = env!("CARGO_BIN_EXE_posthaste");
    place.settings(&format!("[hook]\nafter_index = \"{program} tag +hooked -- '*'\"\n"));
    place.add("9.h.host:2,S", "Message-ID: <9@example.org>\nSubject: nine\n\nx\n");
    assert_eq!(place.says(0, &["new"]), "Added 1 new message to the database.\n");
    assert_eq!(place.says(0, &["count", "tag:hooked"]), "2\n");
}

#[test]
fn a_dump_replaces_or_adds_and_says_what_is_lost() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    place.says(0, &["tag", "+a", "+b", "--", "*"]);
    fs::write(place.path().join("dump"), "+c -- id:1@example.org\n+a +b -- id:2@example.net\n").unwrap();
    let tags = || place.says(0, &["find", "-f", "x", "from:ann"]);
    let warning = |line: &[&str], said: &str| {
        let output = place.run(line);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), said);
        String::from_utf8(output.stdout).unwrap()
    };
    let would = "posthaste: 1 message would lose 2 tags that the dump does not give; `--accumulate` keeps such tags\n";
    assert_eq!(warning(&["tag", "--restore", "dump", "--dry-run"], would), "1 message would be changed\n");
    assert_eq!(tags(), "(a b)\n");
    assert_eq!(warning(&["tag", "--restore", "--accumulate", "dump"], ""), "1 message changed\n");
    assert_eq!(tags(), "(a b c)\n");
    assert_eq!(warning(&["tag", "--restore", "dump"], &would.replace("would lose", "lost")), "1 message changed\n");
    assert_eq!(tags(), "(c)\n");
    assert_eq!(warning(&["tag", "--restore", "dump"], ""), "0 messages changed\n");
}

#[test]
fn tags_are_flags_where_that_is_wanted() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    let kept = place.run(&["tag", "-unread", "+mine", "--", "from:bob"]);
    assert!(
        String::from_utf8_lossy(&kept.stderr).contains("`posthaste find --flag +S QUERY` changes that"),
        "{kept:?}"
    );
    assert_eq!(place.names(".Sent/new"), ["2.b.host"], "nothing was asked for");
    place.settings("[maildir]\nsynchronize_flags = true\n");
    assert_eq!(place.says(0, &["tag", "-unread", "+replied", "+todo", "--", "from:bob"]), "1 message changed\n");
    assert_eq!((place.names(".Sent/new").len(), place.names(".Sent/cur")), (0, vec!["2.b.host:2,RS".to_owned()]));
    assert_eq!(place.says(0, &["find", "-f", "g,x", "from:bob"]), "replied,seen,attach  (mine replied todo)\n");
    place.says(1, &["find", "tag:unread"]);
    // And back: another program changes the flag.
    fs::rename(place.path().join("mail/.Sent/cur/2.b.host:2,RS"), place.path().join("mail/.Sent/cur/2.b.host:2,"))
        .unwrap();
    place.says(0, &["index", "--quiet", "--list-all"]);
    assert_eq!(place.says(0, &["count", "tag:unread"]), "1\n");
    place.says(0, &["tag", "+flagged", "--", "*"]);
    assert_eq!(place.names("cur"), ["1.a.host:2,FS"]);
    assert_eq!(place.says(0, &["tag", "--list"]), "      2  flagged\n      1  mine\n      1  todo\n      1  unread\n");
    let dump = "+flagged -- id:1@example.org\n+flagged +mine +todo +unread -- id:2@example.net\n";
    assert!(place.says(0, &["tag", "--dump"]).ends_with(dump));
    // A dump brings flags, too, and takes them away.
    fs::write(place.path().join("dump"), "+unread -- id:1@example.org\n+todo -- id:2@example.net\n").unwrap();
    assert_eq!(place.says(0, &["tag", "--restore", "dump", "--accumulate"]), "1 message changed\n");
    assert_eq!(
        (place.names("cur"), place.names(".Sent/cur")),
        (vec!["1.a.host:2,F".into()], vec!["2.b.host:2,F".into()])
    );
    assert_eq!(place.says(0, &["tag", "--restore", "dump"]), "2 messages changed\n");
    assert_eq!(
        (place.names("cur"), place.names(".Sent/cur")),
        (vec!["1.a.host:2,".into()], vec!["2.b.host:2,S".into()])
    );
    assert_eq!(place.says(0, &["tag", "--remove-all", "--", "*"]), "2 messages changed\n");
    assert_eq!(place.names("cur"), ["1.a.host:2,S"]);
    // Copies of flags in the tag store do not count, until they are not flags any more.
    place.settings("");
    place.says(0, &["tag", "+unread", "--", "from:ann"]);
    assert_eq!(place.says(0, &["count", "tag:unread"]), "1\n");
    place.settings("[maildir]\nsynchronize_flags = true\n");
    place.says(0, &["index", "--quiet"]);
    assert_eq!(place.says(1, &["find", "--count", "tag:unread"]), "0\n");
}

#[test]
fn a_file_that_was_renamed_or_has_gone_is_found_again_or_told() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    fs::rename(place.path().join("mail/cur/1.a.host:2,S"), place.path().join("mail/cur/1.a.host:2,RS")).unwrap();
    fs::remove_file(place.path().join("mail/.Sent/new/2.b.host")).unwrap();
    let told = place.run(&["find", "--flag", "+F", "rye"]);
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    assert_eq!(String::from_utf8_lossy(&told.stdout), "1 message changed\n");
    assert!(String::from_utf8_lossy(&told.stderr).contains("2.b.host: no longer exists"), "{told:?}");
    assert_eq!(place.names("cur"), ["1.a.host:2,FRS"]);
}

#[test]
fn flags_are_set_and_messages_moved_only_where_asked() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    place.says(0, &["tag", "+kept", "--", "*"]);
    let planned = place.says(0, &["find", "--flag", "+FS-T", "--move", "/Sent", "--dry-run", "rye"]);
    assert!(
        planned.contains("/mail/cur/1.a.host:2,S -> ") && planned.contains("/mail/.Sent/cur/1.a.host:2,FS\n"),
        "{planned}"
    );
    assert!(planned.ends_with("2 messages would be changed\n"), "{planned}");
    assert_eq!(
        (place.names("cur"), place.names(".Sent/new")),
        (vec!["1.a.host:2,S".to_owned()], vec!["2.b.host".to_owned()])
    );
    assert_eq!(place.says(0, &["find", "from:bob", "--flag", "+SF"]), "1 message changed\n");
    assert_eq!(place.names(".Sent/cur"), ["2.b.host:2,FS"]);
    assert_eq!(place.says(0, &["find", "from:bob", "--flag=-F"]), "1 message changed\n");
    assert_eq!(place.says(0, &["find", "rye", "--move", "/.Sent"]), "1 message changed\n", "the other lies there");
    assert_eq!(place.names(".Sent/cur"), ["1.a.host:2,S", "2.b.host:2,S"]);
    assert_eq!(place.names("cur").len(), 0);
    // The index knows, and tags go along.
    assert_eq!(place.says(0, &["find", "-f", "m,x", "rye"]), "/.Sent  (kept)\n/.Sent  (kept)\n");
    assert_eq!(place.says(0, &["find", "--move", "/", "from:ann"]), "1 message changed\n");
    // The same message is there already under another flag.
    fs::copy(place.path().join("mail/cur/1.a.host:2,S"), place.path().join("mail/.Sent/cur/1.a.host:2,R")).unwrap();
    place.says(0, &["index", "--quiet"]);
    place.says(0, &["find", "--move", "Sent", "maildir:/"]);
    assert_eq!(place.names(".Sent/cur"), ["1.a.host:2,R", "1.a.host_1:2,S", "2.b.host:2,S"]);
    for (line, said) in [
        (["find", "--move=/Nowhere", "rye"], "there is no folder `/Nowhere`"),
        (["find", "--flag=+x", "rye"], "flags are written `+S-F`"),
        (["find", "--dry-run", "rye"], "--dry-run needs"),
        (["find", "--flag", "+T"], "give a query for the messages to change"),
        (["find", "--move", "/"], "give a query for the messages to change"),
    ] {
        let refused = place.run(&line);
        assert_eq!(refused.status.code(), Some(2), "{line:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(said), "{refused:?}");
    }
    place.says(1, &["find", "--flag", "+S", "wheat"]);
    assert!(place.says(0, &["info", "--folders"]).contains("folder    /.Sent\n"));
}

#[test]
fn verify_names_a_damaged_file_and_exits_with_1() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    place.says(0, &["tag", "+a", "--", "rye"]);
    place.says(0, &["index", "verify"]);
    let index = place.path().join("data/posthaste/search");
    let mut files = Vec::new();
    let mut dirs = vec![index.clone()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() { dirs.push(entry) } else { files.push(entry) }
        }
    }
    let with = |ending: &str| files.iter().find(|file| file.to_str().unwrap().ends_with(ending)).cloned();
    for file in [with(".store"), with("tags.redb")].map(|file| file.unwrap_or_else(|| panic!("{files:?}"))) {
        let whole = fs::read(&file).unwrap();
        let mut damaged = whole.clone();
        // The names of tags, and stored fields, lie somewhere in the file: all of it but the first page is altered.
        let from = if file.ends_with("tags.redb") { 4096 } else { 0 };
        damaged[from..].iter_mut().for_each(|octet| *octet ^= 0x40);
        fs::write(&file, &damaged).unwrap();
        let said = place.run(&["index", "verify"]);
        let text = String::from_utf8([said.stdout, said.stderr].concat()).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        assert_eq!(said.status.code(), Some(1), "{name}: {text}");
        assert!(text.contains(name), "{name}: {text}");
        fs::write(&file, &whole).unwrap();
        place.says(0, &["index", "verify"]);
    }
}
