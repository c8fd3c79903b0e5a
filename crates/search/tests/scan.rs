//! A search without an index finds what a search with one finds.

use std::fs;

use posthaste_search::{Searcher, Sort, UpdateOptions, query, scan};

use crate::common::{corpus, hits, maildir, update};

/// The queries that are also asked of mu and notmuch.
const COMPARED: &str = include_str!("../../posthaste/tests/system/compare.txt");

#[test]
fn every_query_finds_the_same_with_and_without_an_index() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    maildir(mail.path(), ".Sent");
    for (number, file) in corpus().into_iter().enumerate() {
        let name = match number % 3 {
            0 => format!("cur/{number}.a.host:2,S"),
            1 => format!("new/{number}.a.host"),
            _ => format!(".Sent/cur/{number}.a.host:2,FR"),
        };
        fs::copy(file, mail.path().join(name)).unwrap();
    }
    update(index.path(), mail.path());
    let indexed = Searcher::open(index.path()).unwrap();
    let (scanned, report) = scan(&[mail.path().to_owned()], &[], &UpdateOptions::default(), &|_| {}).unwrap();
    assert_eq!((report.added, report.troubles.len()), (indexed.directory().present, 0));
    let compared = COMPARED.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(" | ").next().unwrap());
    let own = ["body:/e[ab]+/", "thread:{flag:new}", "maildir:/.Sent", "\"rye bre\"*", "*", "changed:1h.."];
    let mut found = 0;
    for text in compared.chain(own) {
        let with = hits(&indexed, text);
        assert_eq!(hits(&scanned, text), with, "{text}");
        found += with.len();
    }
    assert!(found > 200, "{found}");
    // What is shown and by relevance, too: nothing is read from files that are gone by now.
    let query = query::parse("the", &jiff::Zoned::now()).unwrap();
    let page = |searcher: &Searcher| {
        let found = searcher.find(&query).unwrap();
        let mut page = searcher.page(&found, Sort::Subject, false, 0, 20).unwrap();
        page.extend(searcher.page_by_relevance(&query, &found, true, 0, 20).unwrap());
        let messages = searcher.messages(&page).unwrap();
        let mut shown: Vec<_> = messages.into_iter().map(|message| (message.path, message.head)).collect();
        shown.sort_by(|a, b| a.0.cmp(&b.0));
        shown.dedup();
        shown
    };
    assert_eq!(page(&scanned).len(), page(&indexed).len());
}
