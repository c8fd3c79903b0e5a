//! The hits of a hundred queries beside those of mu and notmuch over the same mail, where they are installed.
//!
//! Each row of `compare.txt` is a query with reasons for differing hits of either program: `>` if we may find more, `<`
//! if it may, and the largest number. A larger difference, or one without a reason, fails. The letters of the reasons
//! are explained in `docs/search.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::corpus::{corpus_dir, messages_in};
use crate::support::command;

/// Set if a missing comparison is a failure.
const REQUIRED: &str = "CI_REQUIRE_PEERS";
const ROWS: &str = include_str!("compare.txt");

struct Row {
    query: &'static str,
    mu: &'static str,
    notmuch: &'static str,
}

fn rows() -> Vec<Row> {
    let lines = ROWS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let row = |line: &'static str| {
        let mut columns = line.split(" | ").map(str::trim);
        let mut next = || columns.next().unwrap_or_else(|| panic!("three columns: {line}"));
        Row { query: next(), mu: next(), notmuch: next() }
    };
    lines.map(row).collect()
}

/// Number of hits that the reasons with this sign allow: in `>E12 >P <S3` it is 12 for `>`.
fn allowed(reasons: &str, sign: char) -> usize {
    let counts = reasons.split_whitespace().filter_map(|reason| reason.strip_prefix(sign));
    counts.map(|reason| reason.trim_start_matches(char::is_alphabetic).parse().unwrap_or(0)).sum()
}

fn names(output: &Output) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| Some(Path::new(line).file_name()?.to_string_lossy().into_owned())).collect()
}

/// Runs a program; `None` if it is not installed.
pub fn run(dir: &Path, program: &str, args: &[&str]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(args).env("XDG_CACHE_HOME", dir.join("cache")).env("NOTMUCH_CONFIG", dir.join("notmuch.conf"));
    command.env("TZ", "UTC").env("LC_ALL", "C.UTF-8").current_dir(dir).output().ok()
}

fn prepare(dir: &Path) -> usize {
    let files = messages_in(&corpus_dir());
    for sub in ["new", "cur", "tmp"] {
        fs::create_dir_all(dir.join("mail").join(sub)).unwrap();
    }
    for (number, file) in files.iter().enumerate() {
        fs::copy(file, dir.join(format!("mail/cur/{number}.c.h:2,S"))).unwrap();
    }
    let config = format!(
        "[database]\npath={}\n[user]\nname=x\nprimary_email=x@example.org\n[new]\ntags=\nignore=\n[search]\nexclude_tags=\n",
        dir.join("mail").display()
    );
    fs::write(dir.join("notmuch.conf"), config).unwrap();
    files.len()
}

/// Compares with one program and prints the result. Returns the differences without a reason.
fn compare(dir: &Path, program: &str, args: &[&str], reasons: fn(&Row) -> &'static str) -> Vec<String> {
    let mut unexplained = Vec::new();
    let (mut same, mut different) = (0, 0);
    for row in rows() {
        let ours =
            command(dir, &["find", "--index", "index", "-f", "path", row.query]).env("TZ", "UTC").output().unwrap();
        assert!(ours.status.code() != Some(2), "{}: {ours:?}", row.query);
        let theirs = run(dir, program, &[args, &[row.query]].concat()).expect("it was there a moment ago");
        let (ours, theirs) = (names(&ours), names(&theirs));
        let more: Vec<&String> = ours.difference(&theirs).collect();
        let less: Vec<&String> = theirs.difference(&ours).collect();
        if more.is_empty() && less.is_empty() {
            same += 1;
        } else {
            different += 1;
        }
        if more.len() > allowed(reasons(&row), '>') || less.len() > allowed(reasons(&row), '<') {
            let (more_count, less_count) = (more.len(), less.len());
            unexplained.push(format!(
                "{program}: {}: {more_count} only ours {more:?}, {less_count} only theirs {less:?}",
                row.query
            ));
        }
    }
    eprintln!("{program}: {same} queries with the same hits, {different} with explained differences");
    unexplained
}

pub fn absent(program: &str) {
    assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set, and {program} cannot be run");
    eprintln!("{program} is not installed: its hits were not compared");
}

#[test]
fn hits_are_those_of_mu_and_notmuch_but_for_reasons() {
    assert!(rows().len() >= 100, "{} queries", rows().len());
    let dir = tempfile::tempdir().unwrap();
    let messages = prepare(dir.path());
    let indexed = command(dir.path(), &["index", "--quiet", "--index", "index", "mail"]).output().unwrap();
    assert!(indexed.status.success(), "{indexed:?}");
    let mut unexplained = Vec::new();
    let mail = format!("--maildir={}", dir.path().join("mail").display());
    match run(dir.path(), "mu", &["init", &mail]) {
        Some(made) if made.status.success() => {
            run(dir.path(), "mu", &["index", "--quiet"]);
            unexplained.extend(compare(dir.path(), "mu", &["find", "--fields", "l"], |row| row.mu));
        }
        _ => absent("mu"),
    }
    match run(dir.path(), "notmuch", &["new", "--quiet"]) {
        Some(made) if made.status.success() => {
            unexplained.extend(compare(dir.path(), "notmuch", &["search", "--output=files"], |row| row.notmuch));
        }
        _ => absent("notmuch"),
    }
    assert!(unexplained.is_empty(), "{messages} messages:\n{}", unexplained.join("\n"));
}

fn tag_lines(dump: &[u8]) -> BTreeSet<String> {
    String::from_utf8_lossy(dump).lines().filter(|line| line.contains("-- id:")).map(str::to_owned).collect()
}

#[test]
fn tags_come_over_from_notmuch_and_go_back() {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path());
    let notmuch = |args: &[&str]| run(dir.path(), "notmuch", args).filter(|made| made.status.success());
    if notmuch(&["new", "--quiet"]).is_none() {
        return absent("notmuch");
    }
    notmuch(&["tag", "+größe x", "--", "*"]).expect("everything is tagged");
    let theirs = notmuch(&["dump"]).expect("a dump").stdout;
    fs::write(dir.path().join("theirs"), &theirs).unwrap();
    let ours = |args: &[&str]| {
        let output = command(dir.path(), &[args, &["--index", "index"]].concat()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    ours(&["index", "--quiet", "mail"]);
    ours(&["tag", "--restore", "theirs"]);
    let dump = ours(&["tag", "--dump"]);
    assert_eq!(tag_lines(&dump), tag_lines(&theirs));
    fs::write(dir.path().join("ours"), &dump).unwrap();
    let back = notmuch(&["restore", "--input=ours"]).expect("it is read");
    assert!(back.stderr.is_empty(), "{}", String::from_utf8_lossy(&back.stderr));
}
