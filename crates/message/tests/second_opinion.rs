//! Two other readers over all corpora: mail-parser, and Python's `email` where there is one (`CI_REQUIRE_PEERS=1`: there must be).
//!
//! Every difference falls into a kind that was judged once; the kinds with their reasons are [`KINDS`]. A difference of no kind fails the test, and so
//! does a kind that nothing shows any more: what the project's own corpus lacks is in [`OWN`]. The fuzz target `message_opinion` looks for differences
//! of no kind in well-formed mail.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use posthaste_message::mime::Encoding;

#[path = "second_opinion/kinds.rs"]
mod kinds;
#[path = "second_opinion/malformed.rs"]
mod malformed;
#[path = "second_opinion/python.rs"]
mod python;
#[path = "second_opinion/readers.rs"]
mod readers;
use kinds::KINDS;
use python::{OWN, PYTHON_KINDS};
use readers::{Case, KindOf, Read, differences, mail_parsers, ours, shown, squeezed};

/// Judges all differences; returns how many there are of each kind.
fn judge(kinds: &[KindOf], mail: &[(PathBuf, Vec<u8>)], theirs: &[Option<Read>]) -> BTreeMap<&'static str, usize> {
    let mut counts: BTreeMap<&'static str, usize> = kinds.iter().map(|(name, ..)| (*name, 0)).collect();
    let mut unknown = Vec::new();
    for ((path, bytes), theirs) in mail.iter().zip(theirs) {
        let Some(theirs) = theirs else { continue };
        let ours = ours(bytes);
        for what in differences(&ours, theirs) {
            let case = Case { bytes, ours: &ours, theirs, what };
            match kinds.iter().find(|(_, _, is)| is(&case)) {
                Some((name, ..)) => *counts.get_mut(name).unwrap() += 1,
                None => unknown.push(format!(
                    "{}: {what}\n  ours:   {}\n  theirs: {}",
                    path.display(),
                    shown(&ours, what),
                    shown(theirs, what)
                )),
            }
        }
    }
    assert!(unknown.is_empty(), "{} differences of no kind that was judged:\n{}", unknown.len(), unknown.join("\n"));
    counts
}

fn corpora() -> Vec<(PathBuf, Vec<u8>)> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut dirs = vec![project.join("tests/corpus")];
    let beside = project.join("../shared/corpus");
    dirs.extend(std::env::var_os("POSTHASTE_CORPUS").map(PathBuf::from).or(beside.is_dir().then_some(beside)));
    let mut files = BTreeSet::new();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "eml") {
                files.insert(path);
            }
        }
    }
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// All messages, those of [`OWN`] in files of a directory of their own.
fn all_mail(own: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut mail = corpora();
    for (number, bytes) in OWN.iter().enumerate() {
        let path = own.join(format!("own-{number}.eml"));
        fs::write(&path, bytes).unwrap();
        mail.push((path, bytes.to_vec()));
    }
    mail
}

#[test]
fn mail_parser_differs_in_ways_that_were_judged() {
    let own = tempfile::tempdir().unwrap();
    let mail = all_mail(own.path());
    let theirs: Vec<Option<Read>> =
        mail.iter().map(|(_, bytes)| std::panic::catch_unwind(|| mail_parsers(bytes)).ok().flatten()).collect();
    report(&judge(&KINDS, &mail, &theirs));
}

#[test]
fn pythons_email_differs_in_ways_that_were_judged() {
    let Ok(mut python) = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/second_opinion/read.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
    else {
        assert!(std::env::var_os("CI_REQUIRE_PEERS").is_none(), "python3 is missing");
        eprintln!("python3 is missing: nothing compared");
        return;
    };
    let own = tempfile::tempdir().unwrap();
    let mail = all_mail(own.path());
    let mut input = python.stdin.take().unwrap();
    let names: Vec<String> = mail.iter().map(|(path, _)| path.display().to_string()).collect();
    let writer = std::thread::spawn(move || input.write_all((names.join("\n") + "\n").as_bytes()).unwrap());
    let output = python.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    let theirs: Vec<Option<Read>> = String::from_utf8(output.stdout).unwrap().lines().map(python_read).collect();
    assert_eq!(theirs.len(), mail.len());
    report(&judge(&PYTHON_KINDS, &mail, &theirs));
}

fn report(counts: &BTreeMap<&'static str, usize>) {
    counts.iter().for_each(|(name, count)| eprintln!("{count:>5} {name}"));
    let gone: Vec<&str> = counts.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
    assert!(gone.is_empty(), "kinds that nothing shows any more: {gone:?}");
}

/// A line of `read.py`: `null` where Python raised an exception.
fn python_read(line: &str) -> Option<Read> {
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    let text = |name: &str| value[name].as_str().unwrap_or("").to_owned();
    let list = |name: &str| value[name].as_array().cloned().unwrap_or_default();
    if value.is_null() {
        return None;
    }
    Some(Read {
        subject: squeezed(&text("subject")),
        addresses: list("addresses").iter().filter_map(|one| one.as_str()).map(str::to_lowercase).collect(),
        date: value["date"].as_i64(),
        message_id: text("message_id"),
        leaves: list("leaves")
            .iter()
            .map(|leaf| {
                let kind = leaf[0].as_str().unwrap_or("").to_owned();
                let content = leaf[1].as_str().unwrap_or("");
                let is_text = leaf[2].as_bool() == Some(true);
                let octets = if is_text {
                    squeezed(content).into_bytes()
                } else {
                    Encoding::Base64.decode(content.as_bytes()).into_owned()
                };
                (kind, octets)
            })
            .collect(),
    })
}

#[test]
fn damage_is_told_from_what_is_well_formed() {
    let malformed = |what: &'static str, bytes: &[u8]| {
        let (ours, theirs) = (ours(bytes), Read::default());
        malformed::is_malformed(&Case { bytes, ours: &ours, theirs: &theirs, what })
    };
    let good: [(&str, &[u8]); 6] = [
        ("subject", b"Subject: a\n b: c\nDate: Tue, 4 Mar 2025 10:13:00 +0100\n\nx\n"),
        ("date", b"Date: 28 Feb 2025 00:00:59 -0000\r\n\r\nx\r\n"),
        ("message_id", b"Message-ID: <a.b@c.example>\n\n"),
        ("addresses", b"From: a@b.example, \"B c\" <d@e.example>\n\n\x00"),
        ("addresses", b"To: Ann Example <ann+x@b.example>,\n <d@e.example>\n\n"),
        ("leaves", b"Content-Type: text/plain; charset=\"utf-8\"\nContent-Transfer-Encoding: base64\n\neA==\n"),
    ];
    for (what, bytes) in good {
        assert!(!malformed(what, bytes), "{what}: {}", bytes.escape_ascii());
    }
    let bad: [(&str, &[u8]); 14] = [
        ("subject", b"Subject: a\nb\n\nx\n"),
        ("subject", b"Subject: a\rb\n\nx\n"),
        ("subject", b"Subject: a\n"),
        ("subject", b"Subject: a\nDate: soon\n\n"),
        ("date", b"Date: Tue, 31 Feb 2025 10:13:00 +0100\n\n"),
        ("date", b"Date: 4 Mar 2025 10:13:00 JST\n\n"),
        ("message_id", b"Message-ID: <a@b c>\n\n"),
        ("message_id", b"Message-ID: <a@b> <c@d>\n\n"),
        ("addresses", b"From: a@b (c)\n\n"),
        ("addresses", b"From: a@b,\n\n"),
        ("addresses", b"From: A <a@b\n\n"),
        ("leaves", b"Content-Type: plain\n\nx\n"),
        ("leaves", b"Content-Type: text/plain\nContent-Type: text/html\n\nx\n"),
        ("leaves", b"Subject: x\n\nx\x00\n"),
    ];
    for (what, bytes) in bad {
        assert!(malformed(what, bytes), "{what}: {}", bytes.escape_ascii());
    }
}
