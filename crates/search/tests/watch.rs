//! A watch keeps the index up to date, lends it, and there is one.

mod common;

use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::{hits, maildir};
use posthaste_search::{IndexError, Indexer, Searcher, Stop, WatchEvent, WatchOptions, watch, watched};

/// Far more than anything here takes; what is waited for is a state, not a time.
const PATIENCE: Duration = Duration::from_secs(60);

fn options() -> WatchOptions {
    WatchOptions {
        commit_after: Duration::from_millis(20),
        look_every: Duration::from_secs(3600),
        ..WatchOptions::default()
    }
}

/// Runs `body` beside a watch; it gets a channel that tells of every commit.
fn beside_a_watch(index: &Path, mail: &Path, options: &WatchOptions, body: impl FnOnce(&Receiver<u64>)) {
    let stop = Stop::new().unwrap();
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut tell = |event: WatchEvent<'_>| match event {
                WatchEvent::Ready(report) | WatchEvent::Committed { report, .. } => drop(tell.send(report.messages)),
                WatchEvent::Rebuilding(_) | WatchEvent::Trouble { .. } | WatchEvent::Unwatched(_) => {}
            };
            watch(index, &[mail.to_owned()], options, &stop, &|| {}, &mut tell).unwrap();
        });
        told.recv_timeout(PATIENCE).expect("ready");
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&told)));
        stop.stop();
        watching.join().unwrap();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn deliver(folder: &Path, name: &str, word: &str) {
    let text = format!("Subject: {word}\nMessage-ID: <{word}@example.org>\n\n{word}\n");
    fs::write(folder.join("tmp").join(name), text).unwrap();
    fs::rename(folder.join("tmp").join(name), folder.join("new").join(name)).unwrap();
}

fn until(index: &Path, query: &str, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = hits(&Searcher::open(index).unwrap(), query).len();
        if found == count {
            return;
        }
        assert!(Instant::now() < deadline, "{query}: {found}, not {count}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As `until`, where the index cannot be opened before the watch has begun again.
fn until_begun_again(index: &Path, query: &str, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while Searcher::open(index).map_or(0, |searcher| hits(&searcher, query).len()) < count {
        assert!(Instant::now() < deadline, "it did not begin again");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_comes_changes_and_goes_is_seen() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    deliver(mail.path(), "1.a.h", "one");
    beside_a_watch(index.path(), mail.path(), &options(), |_| {
        until(index.path(), "one", 1);
        deliver(mail.path(), "2.a.h", "two");
        until(index.path(), "two flag:new", 1);
        // Read, flagged, moved into a folder that is made only now, removed.
        fs::rename(mail.path().join("new/2.a.h"), mail.path().join("cur/2.a.h:2,S")).unwrap();
        until(index.path(), "two flag:seen not flag:new", 1);
        maildir(mail.path(), ".Deep");
        fs::rename(mail.path().join("cur/2.a.h:2,S"), mail.path().join(".Deep/cur/2.a.h:2,FS")).unwrap();
        until(index.path(), "two maildir:/.Deep flag:flagged", 1);
        deliver(&mail.path().join(".Deep"), "3.a.h", "three");
        until(index.path(), "three", 1);
        fs::remove_file(mail.path().join("new/1.a.h")).unwrap();
        until(index.path(), "one", 0);
        fs::remove_dir_all(mail.path().join(".Deep")).unwrap();
        until(index.path(), "*", 0);
        // Written in place, in two goes.
        fs::write(mail.path().join("cur/4.a.h:2,"), "Subject: four\n\n").unwrap();
        until(index.path(), "four", 1);
        fs::write(mail.path().join("cur/4.a.h:2,"), "Subject: four\n\nfive\n").unwrap();
        until(index.path(), "four five", 1);
        let status = watched(index.path()).expect("somebody watches");
        assert_eq!(status.process, std::process::id());
    });
    assert_eq!(watched(index.path()), None);
    // What was done by names is what an ordinary update would have found.
    let report = common::update(index.path(), mail.path());
    assert!(!report.has_changes(), "{report:?}");
}

#[test]
fn many_changes_are_one_commit() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    // Only the number of names makes it commit.
    let options = WatchOptions { commit_after: Duration::from_secs(3600), commit_names: 50, ..options() };
    beside_a_watch(index.path(), mail.path(), &options, |told| {
        (0..50).for_each(|n| deliver(mail.path(), &format!("{n}.a.h"), &format!("word{n}")));
        assert_eq!(told.recv_timeout(PATIENCE), Ok(50));
        (50..60).for_each(|n| deliver(mail.path(), &format!("{n}.a.h"), &format!("word{n}")));
    });
    assert_eq!(hits(&Searcher::open(index.path()).unwrap(), "word*").len(), 60, "the rest is committed at the end");
}

#[test]
fn a_watch_lends_the_index_and_goes_on() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    deliver(mail.path(), "1.a.h", "one");
    beside_a_watch(index.path(), mail.path(), &options(), |_| {
        let mut indexer = Indexer::open(index.path(), Some(&|| {})).unwrap();
        indexer.tag(&[(0, "one@example.org".to_owned())], &["todo".to_owned()], &[]).unwrap();
        // Comes while the index is lent.
        deliver(mail.path(), "2.a.h", "two");
        drop(indexer);
        until(index.path(), "two", 1);
        assert_eq!(hits(&Searcher::open(index.path()).unwrap(), "tag:todo").len(), 1);
        let mut rebuilt = Indexer::rebuild(index.path(), Some(&|| {})).unwrap();
        rebuilt.update(&[], &Default::default(), &|_| {}).unwrap();
        drop(rebuilt);
        deliver(mail.path(), "3.a.h", "three");
        until(index.path(), "three or tag:todo", 2);
    });
}

#[test]
fn a_watch_that_waits_for_the_index_ends_when_it_is_told() {
    for is_lent in [false, true] {
        let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        maildir(mail.path(), "");
        let before = (!is_lent).then(|| Indexer::open(index.path(), None).unwrap());
        let stop = Stop::new().unwrap();
        let ((tell, told), (say_ended, ended)) = (channel(), channel());
        let (dir, root, stop_it) = (index.path().to_owned(), mail.path().to_owned(), stop.clone());
        std::thread::spawn(move || {
            let waiting = || tell.send("waits").unwrap_or_default();
            let mut ready = |event: WatchEvent<'_>| {
                if matches!(event, WatchEvent::Ready(_)) {
                    tell.send("ready").unwrap_or_default();
                }
            };
            say_ended.send(watch(&dir, &[root], &options(), &stop_it, &waiting, &mut ready).is_ok())
        });
        assert_eq!(told.recv_timeout(PATIENCE), Ok(if is_lent { "ready" } else { "waits" }));
        // The watch lends it and waits after us.
        let held = before.unwrap_or_else(|| Indexer::open(index.path(), Some(&|| {})).unwrap());
        stop.stop();
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(true));
        drop(held);
    }
}

#[test]
fn a_commit_is_told_also_if_a_folder_came_with_it() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    // Both come within this.
    let options = WatchOptions { commit_after: Duration::from_millis(500), ..options() };
    beside_a_watch(index.path(), mail.path(), &options, |told| {
        deliver(mail.path(), "1.a.h", "one");
        maildir(mail.path(), ".New");
        assert_eq!(told.recv_timeout(PATIENCE), Ok(1));
    });
}

#[test]
fn there_is_one_watch() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    beside_a_watch(index.path(), mail.path(), &options(), |_| {
        let second = watch(index.path(), &[], &options(), &Stop::new().unwrap(), &|| {}, &mut |_| {});
        assert!(matches!(second, Err(IndexError::Watched(_))), "{second:?}");
    });
}

#[test]
fn a_watch_that_met_with_trouble_goes_on() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    deliver(mail.path(), "1.a.h", "one");
    beside_a_watch(index.path(), mail.path(), &options(), |_| {
        // The next commit has nowhere to write.
        fs::rename(index.path().join("text"), index.path().join("aside")).unwrap();
        deliver(mail.path(), "2.a.h", "two");
        until_begun_again(index.path(), "one or two", 2);
    });
}

#[test]
fn a_missing_tree_does_not_stop_the_indexing_of_others() {
    let (trees, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [named, other] = ["named", "other"].map(|name| trees.path().join(name));
    maildir(&named, "");
    maildir(&other, "");
    common::update(index.path(), &other);
    beside_a_watch(index.path(), &named, &options(), |_| {
        fs::rename(&named, trees.path().join("away")).unwrap();
        // The next commit has nowhere to write, so the watch begins again.
        fs::rename(index.path().join("text"), index.path().join("aside")).unwrap();
        deliver(&other, "1.a.h", "one");
        until_begun_again(index.path(), "one", 1);
    });
}

#[test]
fn a_watch_begins_while_somebody_asks_whether_there_is_one() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    let lock = fs::File::create(index.path().join("watch.lock")).unwrap();
    lock.lock_shared().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            lock.unlock().unwrap();
        });
        beside_a_watch(index.path(), mail.path(), &options(), |_| assert!(watched(index.path()).is_some()));
    });
}

#[test]
fn a_first_update_ends_when_it_is_told_and_the_next_one_goes_on() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    (0..1000).for_each(|n| deliver(mail.path(), &format!("{n}.a.h"), &format!("word{n}")));
    let stop = Stop::new().unwrap();
    stop.stop();
    let mut ready = false;
    let mut tell = |event: WatchEvent<'_>| ready |= matches!(event, WatchEvent::Ready(_));
    watch(index.path(), &[mail.path().to_owned()], &options(), &stop, &|| {}, &mut tell).unwrap();
    assert!(!ready, "it was not up to date when it ended");
    let report = common::update(index.path(), mail.path());
    assert_eq!((report.messages, report.stopped), (1000, false));
    assert!(report.added > 0, "{report:?}");
}
