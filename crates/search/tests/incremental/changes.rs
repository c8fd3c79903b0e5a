//! One change of the mail, its folders, or the index at a time.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use posthaste_search::{Indexer, Searcher, UpdateOptions, nothing_to_do, query};

use crate::common::{hits, maildir, update};
use crate::support::{at_rest, message, one_message_indexed};

#[test]
fn what_arrives_during_a_scan_is_found_by_the_next() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    message(mail.path(), "1.a.h:2,", "one");
    // In the same tick of the clock as the scan, as far as the directory's time tells, and however slow this machine is.
    let cur = fs::File::open(mail.path().join("cur")).unwrap();
    let during_the_scan = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
    cur.set_modified(during_the_scan).unwrap();
    update(index.path(), mail.path());
    message(mail.path(), "2.a.h:2,", "two");
    cur.set_modified(during_the_scan).unwrap();
    let report = update(index.path(), mail.path());
    assert_eq!((report.added, report.messages), (1, 2));
}

#[test]
fn a_folder_at_rest_is_not_listed_again() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    message(mail.path(), "1.a.h:2,", "one");
    at_rest(mail.path());
    assert_eq!(update(index.path(), mail.path()).listed, 2);
    assert_eq!(update(index.path(), mail.path()).listed, 0);
    let quiet = || nothing_to_do(index.path(), &[mail.path().to_owned()], &UpdateOptions::default());
    assert_eq!(quiet().map(|report| (report.messages, report.folders)), Some((1, 1)));
    maildir(mail.path(), ".New");
    assert_eq!(quiet(), None);
    fs::remove_dir_all(mail.path().join(".New")).unwrap();
    assert!(quiet().is_some());
    fs::rename(mail.path().join("cur/1.a.h:2,"), mail.path().join("cur/1.a.h:2,S")).unwrap();
    let report = update(index.path(), mail.path());
    assert_eq!((report.listed, report.renamed, report.bytes), (2, 1, 0), "a flag is a name, no file is read for it");
}

#[test]
fn a_moved_message_keeps_its_number_and_its_tags() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    maildir(mail.path(), ".Archive");
    message(mail.path(), "1.a.h:2,", "one");
    update(index.path(), mail.path());
    Indexer::open(index.path(), None)
        .unwrap()
        .tag(&[(0, "one@example.org".to_owned())], &["todo".to_owned()], &[])
        .unwrap();
    fs::rename(mail.path().join("cur/1.a.h:2,"), mail.path().join(".Archive/cur/99.other.name:2,F")).unwrap();
    let report = update(index.path(), mail.path());
    assert_eq!((report.moved, report.added, report.removed), (1, 0, 0));
    let searcher = Searcher::open(index.path()).unwrap();
    assert_eq!(hits(&searcher, "tag:todo maildir:/.Archive flag:flagged one").len(), 1);
    assert_eq!(searcher.directory().messages, 1);

    let mut rebuilt = Indexer::rebuild(index.path(), None).unwrap();
    rebuilt.update(&[], &Default::default(), &|_| {}).unwrap();
    drop(rebuilt);
    assert_eq!(hits(&Searcher::open(index.path()).unwrap(), "tag:todo").len(), 1, "tags survive a rebuild");
}

#[test]
fn a_tree_that_is_not_there_loses_no_messages() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = mail.path().join("mail");
    maildir(&root, "");
    message(&root, "1.a.h:2,", "one");
    update(index.path(), &root);
    fs::rename(&root, mail.path().join("elsewhere")).unwrap();
    let report = Indexer::open(index.path(), None).unwrap().update(&[], &Default::default(), &|_| {}).unwrap();
    assert_eq!((report.troubles.len(), report.removed, report.messages), (1, 0, 1));
    assert_eq!(hits(&Searcher::open(index.path()).unwrap(), "one").len(), 1);
    let mut indexer = Indexer::open(index.path(), None).unwrap();
    assert!(indexer.update(&[root], &Default::default(), &|_| {}).is_err(), "named, so it must be there");
}

#[test]
fn trees_inside_each_other_are_indexed_once() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "sub");
    message(&mail.path().join("sub"), "1.a.h:2,", "one");
    update(index.path(), &mail.path().join("sub"));
    let mut indexer = Indexer::open(index.path(), None).unwrap();
    assert!(indexer.update(&[mail.path().to_owned()], &Default::default(), &|_| {}).is_err());
    drop(indexer);
    let other = tempfile::tempdir().unwrap();
    update(other.path(), mail.path());
    assert_eq!(update(other.path(), &mail.path().join("sub")).messages, 1);
}

#[test]
fn a_copy_that_is_untagged_stays_so() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    message(mail.path(), "1.a.h:2,", "one");
    // The same message as a list sends it out.
    let copy = "Subject: [list] one\nMessage-ID: <one@example.org>\n\none\n-- \nlist\n";
    fs::write(mail.path().join("cur/2.a.h:2,"), copy).unwrap();
    update(index.path(), mail.path());
    let tag = |query: &str, add: &[&str], remove: &[&str]| {
        let searcher = Searcher::open(index.path()).unwrap();
        let numbers = searcher.find(&query::parse(query, &jiff::Zoned::now()).unwrap()).unwrap();
        let messages: Vec<(u32, String)> = numbers.iter().map(|n| (n, "one@example.org".to_owned())).collect();
        let owned = |tags: &[&str]| tags.iter().map(|&tag| tag.to_owned()).collect::<Vec<_>>();
        Indexer::open(index.path(), None).unwrap().tag(&messages, &owned(add), &owned(remove)).unwrap().changed
    };
    let tagged = || hits(&Searcher::open(index.path()).unwrap(), "tag:todo");
    assert_eq!(tag("one", &["todo"], &[]), 2);
    assert_eq!(tag("subject:list", &[], &["todo"]), 1);
    assert_eq!(tagged(), ["1.a.h".to_owned()].into());
    let mut rebuilt = Indexer::rebuild(index.path(), None).unwrap();
    rebuilt.update(&[], &Default::default(), &|_| {}).unwrap();
    drop(rebuilt);
    assert_eq!(tagged(), ["1.a.h".to_owned()].into(), "also after a rebuild");
}

#[test]
fn an_empty_mount_point_loses_no_messages() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (root, aside) = (mail.path().join("mail"), mail.path().join("aside"));
    maildir(&root, ".Lists");
    message(&root.join(".Lists"), "1.a.h:2,", "one");
    update(index.path(), &root);
    fs::rename(&root, &aside).unwrap();
    fs::create_dir(&root).unwrap();
    let again = |options: &UpdateOptions| Indexer::open(index.path(), None).unwrap().update(&[], options, &|_| {});
    let report = again(&UpdateOptions::default()).unwrap();
    assert_eq!((report.troubles.len(), report.removed, report.messages), (1, 0, 1));
    let refused = Indexer::rebuild(index.path(), None).unwrap().update(&[], &UpdateOptions::default(), &|_| {});
    assert!(matches!(refused, Err(posthaste_search::IndexError::Away { .. })), "{refused:?}");
    assert_eq!(hits(&Searcher::open(index.path()).unwrap(), "one").len(), 1);
    // It is there again.
    fs::remove_dir(&root).unwrap();
    fs::rename(&aside, &root).unwrap();
    assert!(again(&UpdateOptions::default()).unwrap().troubles.is_empty());
    // It is gone, and somebody says so: also the tree itself.
    fs::remove_dir_all(&root).unwrap();
    let believe = UpdateOptions { believe_missing: true, ..UpdateOptions::default() };
    assert_eq!(again(&believe).unwrap().removed, 1);
    assert!(again(&UpdateOptions::default()).unwrap().troubles.is_empty(), "nothing is missed any more");
}

#[test]
fn an_index_of_an_older_version_is_built_again() {
    let (_mail, index) = one_message_indexed();
    Indexer::open(index.path(), None)
        .unwrap()
        .tag(&[(0, "one@example.org".to_owned())], &["todo".to_owned()], &[])
        .unwrap();
    let current = fs::read_to_string(index.path().join("current")).unwrap();
    // Format 2 has the same files, but texts that another reader of mail has made.
    fs::write(index.path().join("current"), current.replace("\"format\":3", "\"format\":2")).unwrap();
    assert!(nothing_to_do(index.path(), &[], &UpdateOptions::default()).is_none());
    let told = Searcher::open(index.path()).err().expect("another format").to_string();
    assert!(told.contains("format 2") && told.contains("rebuild it"), "{told}");
    let mut indexer = Indexer::open(index.path(), None).unwrap();
    assert!(indexer.is_rebuilding());
    assert_eq!(indexer.update(&[], &UpdateOptions::default(), &|_| {}).unwrap().added, 1, "its trees are known");
    assert_eq!(hits(&Searcher::open(index.path()).unwrap(), "tag:todo").len(), 1);
}

#[test]
fn an_update_that_finds_nothing_writes_nothing() {
    let (mail, index) = one_message_indexed();
    update(index.path(), mail.path());
    let files = || -> BTreeMap<PathBuf, std::time::SystemTime> {
        let dirs = [index.path().to_owned(), index.path().join("text")];
        let entries = dirs.iter().flat_map(|dir| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()));
        entries.map(|entry| (entry.path(), entry.metadata().unwrap().modified().unwrap())).collect()
    };
    let before = files();
    let options = UpdateOptions { list_all: true, ..UpdateOptions::default() };
    let report = Indexer::open(index.path(), None).unwrap().update(&[], &options, &|_| {}).unwrap();
    assert_eq!((report.listed, report.has_changes()), (2, false));
    assert_eq!(files(), before);
}

#[test]
fn names_tell_that_nothing_changed_whatever_the_times_say() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in ["", ".Lists"] {
        maildir(mail.path(), folder);
        (0..50).for_each(|n| message(&mail.path().join(folder), &format!("{n}.a{folder}.h:2,"), &format!("word{n}")));
    }
    update(index.path(), mail.path());
    let options = UpdateOptions { list_all: true, ..UpdateOptions::default() };
    let quiet = || nothing_to_do(index.path(), &[], &options).map(|report| (report.listed, report.messages));
    assert_eq!(quiet(), Some((4, 100)));
    let cur = mail.path().join("cur");
    for (from, to) in [
        (cur.join("1.a.h:2,"), cur.join("1.a.h:2,S")),
        (cur.join("1.a.h:2,"), mail.path().join("new/1.a.h:2,")),
        (cur.join("1.a.h:2,"), mail.path().join(".Lists/cur/1.a.h:2,")),
        (cur.join("1.a.h:2,"), cur.join(".hidden")),
    ] {
        fs::rename(&from, &to).unwrap();
        assert_eq!(quiet(), None, "{from:?} {to:?}");
        fs::rename(&to, &from).unwrap();
        assert_eq!(quiet(), Some((4, 100)));
    }
    message(mail.path(), "51.a.h:2,", "one");
    assert_eq!(quiet(), None);
}

#[test]
fn readers_search_while_a_writer_writes() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    message(mail.path(), "0.a.h:2,", "word0");
    update(index.path(), mail.path());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..40 {
                message(mail.path(), &format!("{n}.a.h:2,"), &format!("word{n}"));
                update(index.path(), mail.path());
            }
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        let mut last = 0;
        while !done.load(std::sync::atomic::Ordering::Acquire) {
            let searcher = Searcher::open(index.path()).unwrap();
            let found = hits(&searcher, "word*").len();
            assert!(found >= last.max(1), "{found} after {last}");
            assert_eq!(hits(&searcher, "*").len(), found, "both halves are of one state");
            last = found;
        }
    });
    assert_eq!(hits(&Searcher::open(index.path()).unwrap(), "word*").len(), 40);
}
