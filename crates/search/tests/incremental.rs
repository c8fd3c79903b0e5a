//! However mail came, moved, changed flags and went: the index is the one that a first run over the same mail makes.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use common::{hits, maildir, update};
use posthaste_search::{Indexer, Searcher, UpdateOptions, nothing_to_do, query};
use proptest::prelude::*;

const FOLDERS: [&str; 3] = ["", ".Lists", "work/deep"];

#[derive(Debug, Clone)]
enum Step {
    Add {
        folder: usize,
        text: u8,
    },
    /// To another folder, under a name of its own or the old one.
    Move {
        which: usize,
        folder: usize,
        keep_name: bool,
    },
    Flags {
        which: usize,
        flags: &'static str,
    },
    Copy {
        which: usize,
        folder: usize,
    },
    Remove {
        which: usize,
    },
    /// The same bytes, fetched again or with other line ends.
    Rewrite {
        which: usize,
        crlf: bool,
    },
    Tag {
        which: usize,
    },
    Update,
    /// The text index was committed, the side store was not.
    CrashBetweenCommits,
    RemoveFolder {
        folder: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = 0..100usize;
    let folder = 0..FOLDERS.len();
    prop::collection::vec(
        prop_oneof![
            5 => (folder.clone(), any::<u8>()).prop_map(|(folder, text)| Step::Add { folder, text }),
            2 => (which.clone(), folder.clone(), any::<bool>()).prop_map(|(which, folder, keep_name)| Step::Move { which, folder, keep_name }),
            2 => (which.clone(), prop::sample::select(vec!["", "S", "FS", "R", "T"])).prop_map(|(which, flags)| Step::Flags { which, flags }),
            1 => (which.clone(), folder.clone()).prop_map(|(which, folder)| Step::Copy { which, folder }),
            1 => which.clone().prop_map(|which| Step::Remove { which }),
            1 => (which.clone(), any::<bool>()).prop_map(|(which, crlf)| Step::Rewrite { which, crlf }),
            1 => which.prop_map(|which| Step::Tag { which }),
            3 => Just(Step::Update),
            1 => Just(Step::CrashBetweenCommits),
            1 => folder.prop_map(|folder| Step::RemoveFolder { folder }),
        ],
        1..30,
    )
}

struct World {
    mail: PathBuf,
    index: PathBuf,
    next: usize,
}

impl World {
    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for folder in FOLDERS {
            for sub in ["new", "cur"] {
                if let Ok(entries) = fs::read_dir(self.mail.join(folder).join(sub)) {
                    files.extend(entries.map(|entry| entry.unwrap().path()));
                }
            }
        }
        files.sort();
        files
    }

    fn pick(&self, which: usize) -> Option<PathBuf> {
        let files = self.files();
        (!files.is_empty()).then(|| files[which % files.len()].clone())
    }

    fn fresh_name(&mut self) -> String {
        self.next += 1;
        format!("{}.unique.host", self.next)
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Add { folder, text } => {
                maildir(&self.mail, FOLDERS[*folder]);
                let (name, n) = (self.fresh_name(), self.next);
                let references =
                    if text % 3 == 0 { String::new() } else { format!("References: <{}@example.org>\n", text % 8) };
                // Some messages share an id, some have none.
                let id = if text % 11 == 0 { String::new() } else { format!("Message-ID: <{}@example.org>\n", n % 9) };
                // Some have no date but that of their file.
                let date = format!("Date: Tue, 04 Mar 2025 10:{:02}:00 +0000\n", n % 60);
                let date = if text % 7 == 0 { String::new() } else { date };
                let message = format!(
                    "From: P{} <p{}@example.org>\nSubject: {}topic {}\n{date}{id}{references}\nword{text} common {n}\n",
                    text % 5,
                    text % 5,
                    if text % 2 == 0 { "Re: " } else { "" },
                    text % 4,
                );
                fs::write(self.mail.join(FOLDERS[*folder]).join("new").join(name), message).unwrap();
            }
            Step::Move { which, folder, keep_name } => {
                let Some(file) = self.pick(*which) else { return };
                maildir(&self.mail, FOLDERS[*folder]);
                let name = if *keep_name {
                    file.file_name().unwrap().to_string_lossy().into_owned()
                } else {
                    self.fresh_name()
                };
                let to = self.mail.join(FOLDERS[*folder]).join("cur").join(name);
                if !to.exists() {
                    fs::rename(file, to).unwrap();
                }
            }
            Step::Flags { which, flags } => {
                let Some(file) = self.pick(*which) else { return };
                let base = common::base_name(&file);
                let to = file.parent().unwrap().parent().unwrap().join("cur").join(format!("{base}:2,{flags}"));
                if !to.exists() {
                    fs::rename(file, to).unwrap();
                }
            }
            Step::Copy { which, folder } => {
                let Some(file) = self.pick(*which) else { return };
                maildir(&self.mail, FOLDERS[*folder]);
                let name = self.fresh_name();
                fs::copy(file, self.mail.join(FOLDERS[*folder]).join("cur").join(name)).unwrap();
            }
            Step::Remove { which } => {
                if let Some(file) = self.pick(*which) {
                    fs::remove_file(file).unwrap();
                }
            }
            Step::Rewrite { which, crlf } => {
                let Some(file) = self.pick(*which) else { return };
                let text = fs::read_to_string(&file).unwrap().replace("\r\n", "\n");
                let text = if *crlf { text.replace('\n', "\r\n") } else { text };
                let name = self.fresh_name();
                fs::write(file.parent().unwrap().join(name), text).unwrap();
                fs::remove_file(file).unwrap();
            }
            Step::Tag { which } => {
                update(&self.index, &self.mail);
                let searcher = Searcher::open(&self.index).unwrap();
                let numbers: Vec<u32> = searcher.find(&query::Query::All).unwrap().iter().collect();
                if !numbers.is_empty() {
                    let number = numbers[which % numbers.len()];
                    let id = searcher.heads(&[number]).unwrap()[0].message_id.clone();
                    Indexer::open(&self.index, None)
                        .unwrap()
                        .tag(&[(number, id)], &[format!("tag{}", which % 3)], &[])
                        .unwrap();
                }
            }
            Step::Update
                if nothing_to_do(&self.index, std::slice::from_ref(&self.mail), &UpdateOptions::default())
                    .is_some() => {}
            Step::Update => drop(update(&self.index, &self.mail)),
            Step::CrashBetweenCommits => crash_between_commits(&self.index, &self.mail),
            Step::RemoveFolder { folder } if !FOLDERS[*folder].is_empty() => {
                drop(fs::remove_dir_all(self.mail.join(FOLDERS[*folder])))
            }
            Step::RemoveFolder { .. } => {}
        }
    }
}

/// Updates, then puts back the side store as it was before.
fn crash_between_commits(index: &Path, mail: &Path) {
    crash_between(index, || drop(update(index, mail)));
}

fn crash_between(index: &Path, update: impl FnOnce()) {
    let state = |dir: &Path| -> Vec<(PathBuf, Vec<u8>)> {
        let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
        let files = entries.map(|entry| entry.unwrap().path()).filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name == "current" || name.starts_with("state.")
        });
        files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    };
    let before = state(index);
    update();
    state(index).into_iter().for_each(|(path, _)| fs::remove_file(path).unwrap());
    before.into_iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
}

/// Everything that can be asked of an index, without the numbers that it gives.
#[derive(Debug, PartialEq)]
struct Content {
    messages: BTreeMap<PathBuf, (u64, i64, u64, i64, String, String)>,
    threads: BTreeSet<BTreeSet<PathBuf>>,
    hits: Vec<BTreeSet<String>>,
}

fn content(index: &Path) -> Content {
    let verdict = posthaste_search::verify(index, &|| {}).unwrap();
    assert_eq!(verdict.damage, []);
    let searcher = Searcher::open(index).unwrap();
    let numbers: Vec<u32> = searcher.find(&query::Query::All).unwrap().iter().collect();
    let messages = searcher.messages(&numbers).unwrap();
    assert_eq!(verdict.messages, messages.len() as u64);
    let records = searcher.snapshot().records().unwrap();
    let mut threads: BTreeMap<u32, BTreeSet<PathBuf>> = BTreeMap::new();
    for message in &messages {
        threads.entry(message.thread).or_default().insert(message.path.clone());
    }
    let queries = [
        "common",
        "from:p1",
        "topic",
        "flag:seen",
        "flag:new",
        "maildir:/.Lists",
        "subject:\"topic 2\" not flag:flagged",
        "word1*",
        "thread:{from:p2}",
    ];
    Content {
        messages: messages
            .into_iter()
            .map(|m| {
                let mtime_ns = records[m.number as usize].mtime_ns;
                (m.path, (m.flags, m.date, m.size, mtime_ns, m.head.subject, m.head.message_id))
            })
            .collect(),
        threads: threads.into_values().collect(),
        hits: queries.iter().map(|query| hits(&searcher, query)).collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_history_ends_in_the_index_of_a_first_run(steps in steps()) {
        let (mail, index, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        maildir(mail.path(), "");
        let mut world = World { mail: mail.path().to_owned(), index: index.path().to_owned(), next: 0 };
        steps.iter().for_each(|step| world.step(step));
        update(index.path(), mail.path());
        update(scratch.path(), mail.path());
        let known: Vec<PathBuf> = content(scratch.path()).messages.into_keys().collect();
        prop_assert_eq!(known, world.files());
        prop_assert_eq!(content(index.path()), content(scratch.path()));
    }
}

fn message(mail: &Path, name: &str, word: &str) {
    fs::write(mail.join("cur").join(name), format!("Subject: {word}\nMessage-ID: <{word}@example.org>\n\n{word}\n"))
        .unwrap();
}

/// As if nothing had happened in the Maildir for a while.
fn at_rest(mail: &Path) {
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(100);
    for sub in ["new", "cur"] {
        fs::File::open(mail.join(sub)).unwrap().set_modified(long_ago).unwrap();
    }
}

/// A Maildir with one message, and its index.
fn one_message_indexed() -> (tempfile::TempDir, tempfile::TempDir) {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    message(mail.path(), "1.a.h:2,", "one");
    update(index.path(), mail.path());
    (mail, index)
}

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
fn tags_that_a_crash_kept_from_the_index_come_with_the_next_update() {
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
fn a_file_rewritten_in_place_that_a_crash_cut_in_half_is_something_to_do() {
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
