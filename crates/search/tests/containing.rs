//! Substrings by the index are those of the mail itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use posthaste_random::Random;
use posthaste_search::Searcher;
use posthaste_search::settings::add_headers;
use posthaste_text::{MailText, Needle, SearchedField, Tokens};

use crate::common::{corpus, maildir, update};

const FIELDS: [&str; 9] =
    ["From", "To", "Cc", "Subject", "X-Tuid", "Message-ID", "Content-Type", "Received", "List-Id"];

/// With a header of its own each, so that no two have the same.
fn mails() -> Vec<Vec<u8>> {
    let made = (0..120).map(|n| {
        let line =
            |k: usize| ["rye bread", "rye-bread", "bread, rye", "prye breadth", "Stra\u{df}e 東京都"][(n + k) % 5];
        format!(
            "From: Ann {n} <ann{n}@example.org>\nSubject: {} {n}\nX-Tuid: t{n}x\nReceived: from relay{n}\n\n{}\n{}\n",
            line(0),
            line(n / 5),
            line(n / 7)
        )
        .into_bytes()
    });
    corpus().iter().map(|path| fs::read(path).unwrap()).chain(made).collect()
}

/// A piece of the text of some message, cut anywhere, or words that follow each other nowhere.
fn needle(random: &mut Random, mails: &[Vec<u8>]) -> String {
    let mail = String::from_utf8_lossy(&mails[random.below(mails.len() as u64) as usize]).into_owned();
    let chars: Vec<char> = mail.chars().filter(|c| *c != '\r').collect();
    let from = random.below(chars.len().max(1) as u64) as usize;
    let most = if random.below(4) == 0 { 40 } else { 12 };
    let count = 1 + random.below(most) as usize;
    let piece: String = chars.iter().skip(from).take(count).collect();
    let mut words = Tokens::new(&piece);
    let mut word = String::new();
    match random.below(5) {
        0 if words.next_into(&mut word).is_some() => word,
        1 => piece.split_whitespace().rev().collect::<Vec<_>>().join(" "),
        2 => piece.to_uppercase(),
        _ => piece,
    }
}

fn check(others: bool) {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    maildir(mail.path(), ".Other");
    let mails = mails();
    for (n, octets) in mails.iter().enumerate() {
        let folder = if n % 3 == 0 { ".Other" } else { "" };
        fs::write(mail.path().join(folder).join(format!("cur/{n}.a.h:2,")), octets).unwrap();
    }
    if others {
        add_headers(index.path(), &["*".to_owned(), "List-Id".to_owned()]).unwrap();
    }
    update(index.path(), mail.path());
    let searcher = Searcher::open(index.path()).unwrap();
    let files = searcher.files_in(mail.path(), "").unwrap();
    assert_eq!(files.len(), mails.len() - mails.len().div_ceil(3));
    assert!(searcher.files_in(Path::new("/nowhere"), "").unwrap().is_empty());
    let all = searcher.files_in(mail.path(), ".Other").unwrap();
    // Flags do not count.
    let number = |n: usize| all.number(&format!("{n}.a.h")).or(files.number(&format!("{n}.a.h:2,FS"))).unwrap();
    let texts: BTreeMap<u32, MailText> =
        mails.iter().enumerate().map(|(n, octets)| (number(n), MailText::of_message(octets))).collect();
    assert_eq!(texts.len(), mails.len());
    let mut random = Random::new(33);
    let (mut known, mut found, mut open) = (0u64, 0u64, 0u64);
    for _ in 0..400 {
        let field = match random.below(4) {
            0 => SearchedField::Body,
            1 => SearchedField::Anywhere,
            _ => SearchedField::Header(FIELDS[random.below(FIELDS.len() as u64) as usize].to_owned()),
        };
        let text = needle(&mut random, &mails);
        let needle = Needle::new(&text);
        let Some(answer) = searcher.containing(&field, &needle).unwrap() else { continue };
        for (number, mail) in &texts {
            if answer.open.get(*number) {
                assert!(!answer.found.get(*number));
                open += 1;
                continue;
            }
            let expected = mail.has(&field, &needle).unwrap();
            assert_eq!(answer.found.get(*number), expected, "{field:?} {text:?} in message {number}");
            known += 1;
            found += u64::from(expected);
        }
    }
    assert!(known > 25_000 && found > 250, "{known} known, {found} found, {open} open");
    if others {
        assert!(open * 20 < known, "{open} of {known} have to be read");
    }
}

#[test]
fn the_index_says_what_the_mail_says() {
    check(true);
}

#[test]
fn fields_that_are_not_indexed_are_left_open() {
    check(false);
}

#[test]
fn words_that_only_look_like_a_phrase_are_left_open() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    for (n, text) in ["rye bread", "prye breadth", "bread rye", "rye"].into_iter().enumerate() {
        fs::write(mail.path().join(format!("cur/{n}.a.h:2,")), format!("Subject: x\n\n{text}\n")).unwrap();
    }
    update(index.path(), mail.path());
    let searcher = Searcher::open(index.path()).unwrap();
    let files = searcher.files_in(mail.path(), "").unwrap();
    let said = |needle: &str| {
        let answer = searcher.containing(&SearchedField::Body, &Needle::new(needle)).unwrap().unwrap();
        let each = (0..4).map(|n| files.number(&format!("{n}.a.h")).unwrap());
        let letter = |number| match (answer.found.get(number), answer.open.get(number)) {
            (true, _) => 'f',
            (_, true) => 'o',
            _ => '-',
        };
        each.map(letter).collect::<String>()
    };
    assert_eq!(said("rye bread"), "foo-");
    assert_eq!(said(" rye bread"), "f---");
    assert_eq!(said("rye bread."), "f-o-");
    assert_eq!(said("ye"), "ffff");
    assert_eq!(said("read"), "fff-");
    assert_eq!(said("bread "), "f-f-");
    assert_eq!(said("nowhere"), "----");
}
