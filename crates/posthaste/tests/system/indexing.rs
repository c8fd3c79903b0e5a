//! An index that follows the mail: `index --watch`, and `serve` with `[search] index = true`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::lost_files::files;
use crate::search::Place;
use crate::support::{ANYBODY, PATIENCE, Server, command};

fn count(dir: &Path, index: &str, query: &str) -> String {
    let output = command(dir, &["find", "--index", index, "--count", query]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn until(dir: &Path, index: &str, query: &str, wanted: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = count(dir, index, query);
        if found == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{query}: `{found}`, not `{wanted}`");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn deliveries_index_themselves_if_the_configuration_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("{ANYBODY}\n[search]\nindex = true\n"));
    assert!(server.banner.contains("posthaste find --index posthaste-data/search"), "{}", server.banner);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["ann@example.org", "bob@example.org"], b"Subject: rye bread\r\n\r\nTwo days of work.\r\n");
    until(dir.path(), "posthaste-data/search", "\"rye bread\"", "2");
    // A mailbox that is made only now, and a command that writes while the server holds the index.
    client.deliver(&["cy@example.org"], b"Subject: wheat\r\n\r\nx\r\n");
    until(dir.path(), "posthaste-data/search", "wheat maildir:/example.org/cy/Maildir", "1");
    let tagged =
        command(dir.path(), &["tag", "--index", "posthaste-data/search", "+todo", "--", "wheat"]).output().unwrap();
    assert!(tagged.status.success(), "{tagged:?}");
    client.deliver(&["cy@example.org"], b"Subject: spelt\r\n\r\nx\r\n");
    until(dir.path(), "posthaste-data/search", "spelt or tag:todo", "2");
    // What came a moment ago is in the index when the server has stopped.
    client.deliver(&["cy@example.org"], b"Subject: barley\r\n\r\nx\r\n");
    server.stop();
    assert_eq!(count(dir.path(), "posthaste-data/search", "barley"), "1");
}

#[test]
fn without_that_nothing_is_indexed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["ann@example.org"], b"Subject: rye\r\n\r\nx\r\n");
    server.stop();
    assert!(!dir.path().join("posthaste-data/search").exists());
}

#[test]
fn a_watch_says_what_it_does_and_ends_when_told() {
    let dir = tempfile::tempdir().unwrap();
    for sub in ["new", "cur", "tmp"] {
        std::fs::create_dir_all(dir.path().join("mail").join(sub)).unwrap();
    }
    // New mail gets its tag; the hook writes to the index that the watch holds.
    let program = env!("CARGO_BIN_EXE_posthaste");
    let settings = format!("[new]\ntags = [\"inbox\"]\n[hook]\nafter_index = \"{program} tag +hooked -- tag:inbox\"\n");
    std::fs::create_dir(dir.path().join("idx")).unwrap();
    std::fs::write(dir.path().join("idx/config.toml"), settings).unwrap();
    let mut child = command(dir.path(), &["index", "--watch", "--index", "idx", "mail"]);
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("0 messages in 1 folder:"));
    assert!(lines.next().unwrap().ends_with("watching; Ctrl-C ends it"));
    std::fs::write(dir.path().join("mail/tmp/1.a.h"), "Subject: rye\n\nx\n").unwrap();
    std::fs::rename(dir.path().join("mail/tmp/1.a.h"), dir.path().join("mail/new/1.a.h")).unwrap();
    let line = lines.next().unwrap();
    assert!(line.contains("1 new; 1 message;") && line.ends_with("s behind"), "{line}");
    assert_eq!(count(dir.path(), "idx", "rye"), "1");
    let info = command(dir.path(), &["info", "--index", "idx", "--json"]).output().unwrap();
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!(info["watched"]["process"], child.id());
    let second = command(dir.path(), &["index", "--watch", "--index", "idx"]).output().unwrap();
    assert_eq!(second.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another process watches"));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // It ended when the hook had.
    assert_eq!(count(dir.path(), "idx", "tag:inbox tag:hooked"), "1");
}

/// Killed at any moment, the index is reported as it is, and the next run repairs it.
#[test]
fn an_index_survives_kills() {
    let dir = tempfile::tempdir().unwrap();
    for sub in ["new", "cur", "tmp"] {
        std::fs::create_dir_all(dir.path().join("mail").join(sub)).unwrap();
    }
    let file = |n: u32| dir.path().join(format!("mail/cur/{n}.a.host:2,"));
    let index = |args: &[&str]| command(dir.path(), args).env("POSTHASTE_INDEX", "idx").output().unwrap();
    let mut kills_that_hit = 0;
    for round in 0..12u32 {
        for n in round * 3..round * 3 + 6 {
            std::fs::write(file(n), format!("Message-ID: <{n}@x>\nSubject: rye {n}\n\nbread\n")).unwrap();
        }
        if round > 0 {
            std::fs::remove_file(file(round * 3 - 3)).unwrap();
        }
        let mut child = command(dir.path(), &["index", "--quiet", "--index", "idx", "mail"]).spawn().unwrap();
        // Ever later, so that the kills fall into all parts of a run, however fast it is here.
        std::thread::sleep(Duration::from_millis(u64::from(round) * 3));
        kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
        kills_that_hit += u32::from(child.wait().unwrap().code().is_none());
        if dir.path().join("idx/current").exists() {
            let verified = index(&["index", "verify"]);
            assert_eq!(verified.status.code(), Some(0), "round {round}: {verified:?}");
        }
        let updated = index(&["index", "mail"]);
        assert_eq!(updated.status.code(), Some(0), "round {round}: {updated:?}");
        let verified = index(&["index", "verify"]);
        let said = String::from_utf8_lossy(&verified.stdout).into_owned();
        let expected = format!("{} messages, sound\n", round * 2 + 6);
        assert!(said.ends_with(&expected) && said.lines().count() == 1, "round {round}: {said}");
        assert_eq!(count(dir.path(), "idx", "rye"), (round * 2 + 6).to_string(), "round {round}");
    }
    // A child that is killed before it has begun counts too: it cannot have ended.
    assert!(kills_that_hit > 0);
}

#[test]
fn a_damaged_index_is_an_error_with_its_remedy() {
    let place = Place::new();
    place.says(0, &["index", "--quiet", "mail"]);
    let mut errors = 0;
    for path in files(place.path(), Path::new("data/posthaste/search")) {
        let path = place.path().join(path);
        let bytes = fs::read(&path).unwrap();
        let step = bytes.len() / 6 + 1;
        for (nth, at) in (0..bytes.len()).step_by(step).enumerate() {
            let mut altered = bytes.clone();
            altered[at] ^= 1 << (nth % 8);
            fs::write(&path, altered).unwrap();
            let output = place.run(&["find", "\"rye bread\" or body:/fl.ur/"]);
            let (code, said) = (output.status.code(), String::from_utf8(output.stderr).unwrap());
            let what = format!("{} at {at}: {code:?} {said}", path.display());
            assert!(!said.contains("panicked") && matches!(code, Some(0..=2)), "{what}");
            let is_error = code == Some(2);
            assert!(!is_error || said.contains("`posthaste index"), "{what}");
            errors += u32::from(is_error);
        }
        fs::write(&path, &bytes).unwrap();
    }
    assert!(errors > 0, "damage is told");
    place.says(0, &["find", "rye"]);
}

#[test]
fn a_directory_without_mail_is_told_and_can_be_forgotten() {
    let place = Place::new();
    fs::create_dir(place.path().join("empty")).unwrap();
    let run = |line: &[&str]| {
        let output = place.run(line);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    place.says(0, &["index", "--quiet", "mail"]);
    for _ in 0..2 {
        let (code, said) = run(&["index", "empty"]);
        assert!(code == Some(1) && said.contains("empty: there is no Maildir in it"), "{said}");
    }
    assert_eq!(run(&["index"]), (Some(0), String::new()), "it was said when it was named");
    assert_eq!(place.says(0, &["info"]).matches("\nmail ").count(), 2);
    let (code, said) = run(&["index", "rebuild", "--forget", "nowhere"]);
    assert!(code == Some(2) && said.contains("nowhere: not in the index"), "{said}");
    assert_eq!(run(&["index", "rebuild", "--forget", "empty"]), (Some(0), String::new()));
    assert_eq!(place.says(0, &["info"]).matches("\nmail ").count(), 1);
    assert_eq!(place.says(0, &["find", "--count", "rye"]), "2\n");

    // A tree that is away, or has another name.
    place.says(0, &["tag", "+todo", "--", "flour"]);
    fs::rename(place.path().join("mail"), place.path().join("post")).unwrap();
    let (code, said) = run(&["index"]);
    assert!(code == Some(1) && said.contains("mail: is not there; its messages stay in the index"), "{said}");
    assert_eq!(run(&["index", "rebuild"]).0, Some(2), "its messages would be lost");
    assert_eq!(run(&["index", "--believe-missing", "post"]).0, Some(0));
    assert!(place.says(0, &["find", "--output", "files", "tag:todo"]).ends_with("/post/cur/1.a.host:2,S\n"));
    assert_eq!(run(&["index"]), (Some(0), String::new()));
}
