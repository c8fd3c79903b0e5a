//! Tags that are flags, beside notmuch with `maildir.synchronize_flags`: after each step the same tags and the same file names.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::compare::{absent, run};
use crate::support::command;

fn message(id: u32) -> String {
    format!("From: ann{id}@example.org\nTo: bob@example.org\nSubject: number {id}\nMessage-ID: <{id}@x>\n\nhello\n")
}

/// Names in `new/` and `cur/`.
fn names(mail: &Path) -> BTreeSet<String> {
    let list = |sub: &'static str| {
        let entries = fs::read_dir(mail.join(sub)).unwrap();
        entries.map(move |entry| format!("{sub}/{}", entry.unwrap().file_name().into_string().unwrap()))
    };
    list("new").chain(list("cur")).collect()
}

fn tags(dump: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(dump);
    text.lines().filter(|line| line.starts_with('+')).map(str::to_owned).collect()
}

enum Step {
    /// Arguments of notmuch, and ours.
    Run(&'static [&'static str], &'static [&'static str]),
    /// Another program renames a file.
    Rename(&'static str, &'static str),
    Deliver(&'static str, u32),
}

use Step::{Deliver, Rename, Run};

const NEW: Step = Run(&["new", "--quiet"], &["index", "--quiet", "mail"]);

const STEPS: &[Step] = &[
    NEW,
    Run(&["tag", "-unread", "+todo", "--", "id:1@x"], &["tag", "-unread", "+todo", "--", "id:1@x"]),
    Run(&["tag", "+flagged", "+passed", "--", "id:2@x"], &["tag", "+flagged", "+passed", "--", "id:2@x"]),
    // In new/, and no flag changes.
    Run(&["tag", "+x", "--", "id:5@x"], &["tag", "+x", "--", "id:5@x"]),
    Rename("cur/3.a.h:2,FRS", "cur/3.a.h:2,D"),
    NEW,
    Run(&["tag", "+unread", "--", "id:1@x"], &["tag", "+unread", "--", "id:1@x"]),
    Run(&["tag", "+draft", "-inbox", "--", "id:4@x"], &["tag", "+draft", "-inbox", "--", "id:4@x"]),
    Run(&["restore", "--accumulate", "--input=some"], &["tag", "--restore", "some", "--accumulate"]),
    Deliver("new/6.a.h", 6),
    Deliver("cur/7.a.h:2,FS", 7),
    NEW,
    Run(&["restore", "--input=some"], &["tag", "--restore", "some"]),
    Run(&["tag", "+replied", "--", "*"], &["tag", "+replied", "--", "*"]),
    Run(
        &["tag", "--remove-all", "+only", "--", "id:2@x or id:6@x"],
        &["tag", "--remove-all", "+only", "--", "id:2@x or id:6@x"],
    ),
    Run(&["tag", "+unread", "--", "id:3@x"], &["tag", "+unread", "--", "id:3@x"]),
    Run(&["tag", "-replied", "--", "tag:unread"], &["tag", "-replied", "--", "tag:unread"]),
];

#[test]
fn tags_and_flags_follow_each_other_as_in_notmuch() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    for place in [&ours, &theirs] {
        for sub in ["new", "cur", "tmp"] {
            fs::create_dir_all(place.join("mail").join(sub)).unwrap();
        }
        for (id, name) in (1..).zip(["new/1.a.h", "cur/2.a.h:2,S", "cur/3.a.h:2,FRS", "cur/4.a.h:2,Sab", "new/5.a.h"]) {
            fs::write(place.join("mail").join(name), message(id)).unwrap();
        }
        fs::write(
            place.join("some"),
            "+inbox +replied -- id:1@x\n+unread -- id:2@x\n+a -- id:3@x\n+flagged -- id:5@x\n",
        )
        .unwrap();
    }
    let config = format!(
        "[database]\npath={}\n[user]\nname=x\nprimary_email=x@example.org\n[new]\ntags=unread;inbox\n[maildir]\nsynchronize_flags=true\n",
        theirs.join("mail").display()
    );
    fs::write(theirs.join("notmuch.conf"), config).unwrap();
    fs::create_dir(ours.join("index")).unwrap();
    fs::write(ours.join("index/config.toml"), "[new]\ntags = [\"inbox\"]\n[maildir]\nsynchronize_flags = true\n")
        .unwrap();
    for (number, step) in STEPS.iter().enumerate() {
        match step {
            Run(notmuch, posthaste) => {
                match run(&theirs, "notmuch", notmuch) {
                    Some(output) => assert!(output.status.success(), "{notmuch:?}: {output:?}"),
                    None => return absent("notmuch"),
                }
                let line = [&["--index", "index"], &posthaste[1..]].concat();
                let output = command(&ours, &[&posthaste[..1], &line].concat()).output().unwrap();
                assert!(output.status.success(), "{posthaste:?}: {output:?}");
            }
            Rename(old, new) => [&ours, &theirs]
                .iter()
                .for_each(|place| fs::rename(place.join("mail").join(old), place.join("mail").join(new)).unwrap()),
            Deliver(name, id) => [&ours, &theirs]
                .iter()
                .for_each(|place| fs::write(place.join("mail").join(name), message(*id)).unwrap()),
        }
        if let Run(notmuch, _) = step {
            let dump = command(&ours, &["tag", "--index", "index", "--dump"]).output().unwrap().stdout;
            let expected = run(&theirs, "notmuch", &["dump"]).unwrap().stdout;
            assert_eq!(tags(&dump), tags(&expected), "step {number}, {notmuch:?}");
            assert_eq!(names(&ours.join("mail")), names(&theirs.join("mail")), "step {number}, {notmuch:?}");
        }
    }
}
