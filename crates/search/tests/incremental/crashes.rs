//! Updates that were cut off between their commits.

use std::fs;

use posthaste_search::{Indexer, Searcher, UpdateOptions, nothing_to_do};

use crate::common::{hits, maildir, update};
use crate::support::{at_rest, crash_between, crash_between_commits, message, one_message_indexed};

#[test]
fn tags_missed_by_a_crash_come_with_the_next_update() {
    let (_mail, index) = one_message_indexed();
    fs::write(index.path().join("tags.pending"), "").unwrap();
    let store = posthaste_search::tags::TagStore::open(index.path()).unwrap();
    let tags = ["todo".to_owned()].into();
    store.set([("one@example.org", 0, &tags)], &[("mine", Some("from:ann"))]).unwrap();
    drop(store);
    // Before the side store knows of them, more is said: that adds to the truth, not to the old copy of it.
    let mut indexer = Indexer::open(index.path(), None).unwrap();
    indexer.tag(&[(0, "one@example.org".to_owned())], &["late".to_owned()], &[]).unwrap();
    assert!(indexer.dump_tags(&[]).unwrap().contains("+late +todo -- id:one@example.org"));
    drop(indexer);
    let searcher = Searcher::open(index.path()).unwrap();
    assert_eq!(hits(&searcher, "tag:todo tag:late").len(), 1);
    assert_eq!(searcher.directory().queries.get("mine").map(String::as_str), Some("from:ann"));
    assert!(!index.path().join("tags.pending").exists());
}

#[test]
fn two_messages_never_share_a_number_however_often_it_crashes() {
    let (mail, index) = one_message_indexed();
    message(mail.path(), "2.a.h:2,", "two");
    crash_between_commits(index.path(), mail.path());
    // What came in the crash goes, and what was there: the next commits delete texts and add none.
    fs::remove_file(mail.path().join("cur/2.a.h:2,")).unwrap();
    fs::remove_file(mail.path().join("cur/1.a.h:2,")).unwrap();
    crash_between_commits(index.path(), mail.path());
    message(mail.path(), "3.a.h:2,", "three");
    update(index.path(), mail.path());
    let searcher = Searcher::open(index.path()).unwrap();
    assert_eq!(
        (hits(&searcher, "three").len(), hits(&searcher, "one or two").len(), hits(&searcher, "*").len()),
        (1, 0, 1)
    );
    assert_eq!(posthaste_search::verify(index.path(), &|| {}).unwrap().damage, []);
}

#[test]
fn a_half_rewritten_file_after_a_crash_is_work_to_do() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    message(mail.path(), "1.a.h:2,", "one");
    at_rest(mail.path());
    update(index.path(), mail.path());
    let nothing = || nothing_to_do(index.path(), &[], &UpdateOptions::default());
    assert!(nothing().is_some());
    // No directory's time moves.
    message(mail.path(), "1.a.h:2,", "two");
    crash_between(index.path(), || {
        let options = UpdateOptions { check_files: true, ..UpdateOptions::default() };
        Indexer::open(index.path(), None).unwrap().update(&[], &options, &|_| {}).unwrap();
    });
    assert_eq!(nothing(), None);
    update(index.path(), mail.path());
    assert_eq!(hits(&Searcher::open(index.path()).unwrap(), "two").len(), 1);
    assert!(nothing().is_some());
}

#[test]
fn a_removal_that_a_crash_cut_in_half_is_mended() {
    let (mail, index) = one_message_indexed();
    message(mail.path(), "2.a.h:2,", "two");
    update(index.path(), mail.path());
    let file = mail.path().join("cur/1.a.h:2,");
    let bytes = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    crash_between_commits(index.path(), mail.path());
    // It comes back before anybody looks: its record is there, its text is not.
    fs::write(&file, bytes).unwrap();
    update(index.path(), mail.path());
    assert_eq!(hits(&Searcher::open(index.path()).unwrap(), "one").len(), 1);
    assert_eq!(posthaste_search::verify(index.path(), &|| {}).unwrap().damage, []);
}
