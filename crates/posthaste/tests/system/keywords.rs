//! Tags that are keywords of a Maildir, as Dovecot stores them too.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::compare::absent;
use crate::search::Place;
use crate::support::command;

impl Place {
    fn table(&self, text: &[u8]) {
        // As Dovecot does it: another file takes its place.
        let table = self.path().join("mail/dovecot-keywords");
        fs::write(table.with_extension("next"), text).unwrap();
        fs::rename(table.with_extension("next"), table).unwrap();
    }
}

const BOTH: &str = "[maildir]\nsynchronize_keywords = true\nnew_keywords = [\"work\"]\n";

#[test]
fn keywords_are_tags_and_tags_keywords() {
    let place = Place::new();
    place.settings(BOTH);
    place.add("3.c.host:2,Sac", "From: Cy <cy@example.org>\nMessage-ID: <3@example.org>\nSubject: Barley\n\nx\n");
    place.table(b"0 todo\n2 $Junk\n3 unread\n4 -x\n5 two words\n");
    place.says(0, &["index", "--quiet", "mail"]);
    let tags = |query: &str| place.says(0, &["find", "-f", "x", query]);
    assert_eq!(tags("tag:todo"), "($Junk todo)\n");
    assert_eq!(place.says(0, &["tag", "--list"]), "      1  $Junk\n      1  todo\n");
    assert_eq!(place.says(0, &["tag", "--dump"]).lines().last(), Some("+%24Junk +todo -- id:3@example.org"));
    // A name that the table has sets its letter; one that is to be a keyword gets the next letter; any other is a tag of the index.
    assert_eq!(place.says(0, &["tag", "-$Junk", "+work", "+own", "--", "id:3@example.org"]), "1 message changed\n");
    assert_eq!(place.names("cur"), ["1.a.host:2,S", "3.c.host:2,Sab"]);
    let table = fs::read_to_string(place.path().join("mail/dovecot-keywords")).unwrap();
    assert_eq!(table, "0 todo\n1 work\n2 $Junk\n3 unread\n4 -x\n5 two words\n");
    assert_eq!(tags("tag:work"), "(own todo work)\n");
    // What another program does counts with the next index: letters, and the name of a letter though no mail has changed.
    fs::rename(place.path().join("mail/cur/3.c.host:2,Sab"), place.path().join("mail/cur/3.c.host:2,Sbcz")).unwrap();
    place.table(b"1 job\n2 $Junk\n");
    place.says(0, &["index", "--quiet"]);
    assert_eq!(tags("id:3@example.org"), "($Junk job own)\n");
    place.table(b"1 work\n1 Job\n2 $Junk\n");
    place.says(0, &["index", "--quiet"]);
    assert_eq!(tags("id:3@example.org"), "($Junk Job own)\n");
    fs::remove_file(place.path().join("mail/dovecot-keywords")).unwrap();
    place.says(0, &["index", "--quiet"]);
    assert_eq!(tags("id:3@example.org"), "(own)\n");
    // Another folder has a table of its own, and a dump brings keywords back.
    fs::write(place.path().join("dump"), "+work -- id:2@example.net\n").unwrap();
    place.says(0, &["tag", "--restore", "dump"]);
    assert_eq!(fs::read_to_string(place.path().join("mail/.Sent/dovecot-keywords")).unwrap(), "0 work\n");
    assert_eq!(place.names(".Sent/cur"), ["2.b.host:2,a"]);
    place.says(0, &["tag", "--remove-all", "--", "id:2@example.net"]);
    assert_eq!(place.names(".Sent/cur"), ["2.b.host:2,"]);
    // Without the setting a letter is a letter.
    place.table(b"2 $Junk\n");
    place.settings("");
    place.says(0, &["index", "--quiet"]);
    assert_eq!(tags("id:3@example.org"), "(own)\n");
}

#[test]
fn a_tag_that_becomes_a_keyword_is_not_lost() {
    let place = Place::new();
    place.settings(BOTH);
    place.says(0, &["index", "--quiet", "mail"]);
    place.says(0, &["tag", "+todo", "--", "*"]);
    assert_eq!(place.names("cur"), ["1.a.host:2,S"]);
    // Now a mail program uses the same word for another message.
    place.add("3.c.host:2,Sa", "From: Cy <cy@example.org>\nMessage-ID: <3@example.org>\nSubject: Barley\n\nx\n");
    place.table(b"0 todo\n");
    place.says(0, &["index", "--quiet"]);
    assert_eq!(place.says(0, &["count", "tag:todo"]), "3\n");
    // Asked for again, it goes to the file, which is then the only truth.
    place.says(0, &["tag", "+todo", "--", "from:ann"]);
    assert_eq!(place.names("cur"), ["1.a.host:2,Sa", "3.c.host:2,Sa"]);
    place.says(0, &["tag", "+seen-it", "--", "from:ann"]);
    fs::rename(place.path().join("mail/cur/1.a.host:2,Sa"), place.path().join("mail/cur/1.a.host:2,S")).unwrap();
    place.says(0, &["index", "--quiet"]);
    assert_eq!(place.says(0, &["find", "-f", "x", "from:ann"]), "(seen-it)\n");
}

#[test]
fn a_table_that_is_none_or_full_is_told() {
    let place = Place::new();
    place.settings(BOTH);
    place.table("0 a\n".repeat(20_000).as_bytes());
    let told = place.run(&["index", "mail"]);
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    assert!(
        String::from_utf8_lossy(&told.stderr).contains("dovecot-keywords: this is not a table of keywords"),
        "{told:?}"
    );
    let full: String = (0..26).map(|index| format!("{index} k{index}\n")).collect();
    place.table(full.as_bytes());
    place.says(0, &["index", "--quiet"]);
    let told = place.run(&["tag", "+work", "--", "from:ann"]);
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    assert!(
        String::from_utf8_lossy(&told.stderr)
            .contains("the folder has all 26 keywords that it can have: take `work` out of `new_keywords`"),
        "{told:?}"
    );
    assert_eq!(fs::read_to_string(place.path().join("mail/dovecot-keywords")).unwrap(), full);
}

/// Runs doveadm. Dovecot serves no mail of root.
fn doveadm(home: &Path, line: &[&str], input: &str) -> Option<Output> {
    let is_root = rustix::process::getuid().is_root();
    let mut command = Command::new(if is_root { "setpriv" } else { "doveadm" });
    if is_root {
        command.args(["--reuid=mail", "--regid=mail", "--clear-groups", "doveadm"]).env("USER", "mail");
    }
    command.arg("-c").arg(home.join("dovecot.conf")).args(line).env("HOME", home);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
    // One that does not read its input has ended.
    let _ = process.stdin.take().unwrap().write_all(input.as_bytes());
    Some(process.wait_with_output().unwrap())
}

#[test]
fn dovecot_and_we_keep_one_table() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    let config = format!(
        "mail_location = maildir:{0}/mail\nbase_dir = {0}/run\nlog_path = /dev/stderr\nfirst_valid_uid = 0\nfirst_valid_gid = 0\nssl = no\n\
         namespace inbox {{\n inbox = yes\n}}\n",
        home.display()
    );
    fs::write(home.join("dovecot.conf"), config).unwrap();
    fs::create_dir(home.join("mail")).unwrap();
    if rustix::process::getuid().is_root() {
        let given = Command::new("chown").arg("-R").arg("mail:mail").arg(home).status();
        assert!(given.is_ok_and(|status| status.success()));
    }
    let message = "From: ann@example.org\nSubject: hello\nMessage-ID: <1@example.org>\n\nHi\n";
    match doveadm(home, &["save", "-m", "INBOX"], message) {
        Some(saved) if saved.status.success() => {}
        // Of Dovecot 2.4 the configuration is another.
        _ => return absent("doveadm 2.3"),
    }
    let dovecot = |line: &[&str]| {
        let output = doveadm(home, line, "").unwrap();
        assert!(output.status.success(), "{line:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let flags = || {
        let said = dovecot(&["fetch", "flags", "mailbox", "INBOX", "all"]);
        let mut flags: Vec<String> = said.split_whitespace().skip(1).map(str::to_owned).collect();
        flags.retain(|flag| flag != "\\Recent");
        flags.sort();
        flags.join(" ")
    };
    fs::create_dir(home.join("index")).unwrap();
    fs::write(home.join("index/config.toml"), "[maildir]\nsynchronize_flags = true\n".to_owned() + &BOTH[10..])
        .unwrap();
    let ours = |line: &[&str]| {
        let output = command(home, line).env("POSTHASTE_INDEX", home.join("index")).output().unwrap();
        assert!(output.status.success(), "{line:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let tags = || ours(&["find", "-f", "x", "*"]);

    dovecot(&["flags", "add", "todo $Forwarded", "mailbox", "INBOX", "all"]);
    ours(&["index", "--quiet", "mail"]);
    assert_eq!(tags(), "($Forwarded todo unread)\n");
    ours(&["tag", "+work", "-todo", "-unread", "--", "*"]);
    assert_eq!(flags(), "$Forwarded \\Seen work");
    // Each of them gives new words letters, one right after the other.
    dovecot(&["flags", "add", "later", "mailbox", "INBOX", "all"]);
    dovecot(&["flags", "remove", "work", "mailbox", "INBOX", "all"]);
    ours(&["index", "--quiet"]);
    assert_eq!(tags(), "($Forwarded later)\n");
    ours(&["tag", "+work", "+todo", "-later", "--", "*"]);
    assert_eq!(flags(), "$Forwarded \\Seen todo work");
    let table = fs::read_to_string(home.join("mail/dovecot-keywords")).unwrap();
    assert_eq!(table, "0 todo\n1 $Forwarded\n2 work\n3 later\n");
}
