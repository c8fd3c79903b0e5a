//! Kills an update at every call that changes a file. The next run must work, and find what a fresh index finds.
//!
//! Kills at every third call, which suffices in a run of all tests; with `POSTHASTE_CUTS` set, as in `.ci/run`, at
//! every one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Indexer, UpdateOptions};
use crate::disk::StoppedDisk;
use crate::error::IndexError;
use crate::query::{parse, parse_with};
use crate::settings::SETTINGS_FILE;
use crate::verify;
use crate::{Searcher, Sort};

const QUERIES: [&str; 10] = [
    "*",
    "rye",
    "bread",
    "subject:m*",
    "flag:flagged",
    "tag:todo",
    "tag:late",
    "tag:arrived",
    "thread:{subject:m7}",
    "body:/ne[wx]/",
];

pub(crate) struct World {
    root: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        // In memory where that is possible: thousands of small files are made.
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let world = Self { root };
        for sub in ["cur", "new", "tmp"] {
            fs::create_dir_all(world.mail().join(sub)).unwrap();
        }
        (0..10).for_each(|n| world.add(n, "rye"));
        world
    }

    pub fn mail(&self) -> PathBuf {
        self.root.path().join("mail")
    }

    pub fn index(&self) -> PathBuf {
        self.root.path().join("index")
    }

    fn file(&self, n: u32, flags: &str) -> PathBuf {
        self.mail().join(format!("cur/{n}.m.host:2,{flags}"))
    }

    fn add(&self, n: u32, word: &str) {
        let text = format!("Message-ID: <{n}@x>\nReferences: <{}@x>\nSubject: m{n}\n\n{word} bread\n", n / 2);
        fs::write(self.file(n, ""), text).unwrap();
    }

    /// Adds mail, removes mail, and changes flags.
    pub fn change(&self) {
        (20..24).for_each(|n| self.add(n, "new"));
        (0..3).for_each(|n| fs::remove_file(self.file(n, "")).unwrap());
        fs::rename(self.file(5, ""), self.file(5, "F")).unwrap();
    }
}

pub(crate) fn update(index: &Path, mail: &Path) -> Result<(), IndexError> {
    Indexer::open(index, None)?.update(
        &[mail.to_owned()],
        &UpdateOptions { list_all: true, ..Default::default() },
        &|_| {},
    )?;
    Ok(())
}

pub(crate) fn tag(index: &Path, query: &str, tag: &str) -> Result<(), IndexError> {
    let searcher = Searcher::open(index)?;
    let now = jiff::Zoned::now();
    let found: Vec<u32> = searcher.find(&parse(query, &now).unwrap())?.iter().collect();
    let messages = searcher.messages(&found)?.into_iter().map(|message| (message.number, message.head.message_id));
    Indexer::open(index, None)?.tag(&messages.collect::<Vec<_>>(), &[tag.to_owned()], &[])?;
    Ok(())
}

type Hits = BTreeMap<String, Vec<(String, Vec<String>)>>;

/// Results of each query: file names, with tags.
pub(crate) fn hits(index: &Path) -> Hits {
    let searcher = Searcher::open(index).unwrap();
    let mut all = BTreeMap::new();
    for query in QUERIES {
        let parsed = parse_with(query, &jiff::Zoned::now(), &searcher.directory().queries).unwrap();
        let found = searcher.find(&parsed).unwrap();
        let page = searcher.page(&found, Sort::Date, false, 0, 100).unwrap();
        let message = |message: crate::FoundMessage| {
            (message.path.file_name().unwrap().to_string_lossy().into_owned(), message.tags)
        };
        let mut rows: Vec<_> = searcher.messages(&page).unwrap().into_iter().map(message).collect();
        rows.sort();
        all.insert(query.to_owned(), rows);
    }
    all
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to)
        } else {
            assert!(fs::copy(entry.path(), to).is_ok())
        }
    }
}

/// Distance between the calls at which a step is killed.
fn stride() -> usize {
    if std::env::var_os("POSTHASTE_CUTS").is_some() { 1 } else { 3 }
}

/// Runs `step` on the index, killed after more and more calls until it completes. Returns the number of its calls.
fn end_at_every_call(world: &World, step: &dyn Fn(&Path) -> Result<(), IndexError>) -> u64 {
    let before = world.root.path().join("before");
    if world.index().exists() {
        fs::rename(world.index(), &before).unwrap()
    } else {
        fs::create_dir(&before).unwrap()
    }
    // By the tags that there are.
    let mut fresh = BTreeMap::new();
    for allowed in (0..).step_by(stride()) {
        let _ = fs::remove_dir_all(world.index());
        copy(&before, &world.index());
        let disk = StoppedDisk::after(&world.index(), allowed);
        let ended = step(&world.index());
        let calls = disk.calls();
        drop(disk);
        if calls <= allowed {
            ended.unwrap();
            fs::remove_dir_all(&before).unwrap();
            return calls;
        }
        // Another process may verify, search and go on at once.
        let place = format!("ended at call {} ({:?})", allowed + 1, ended.err().map(|error| error.to_string()));
        if world.index().join("current").exists() {
            let verdict = verify(&world.index(), &|| {}).unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_eq!(verdict.damage, [], "{place}");
            hits(&world.index());
        }
        update(&world.index(), &world.mail()).unwrap_or_else(|error| panic!("{place}: {error}"));
        let verdict = verify(&world.index(), &|| {}).unwrap();
        assert_eq!((verdict.damage, verdict.unfinished), (Vec::new(), Vec::new()), "{place}");
        let dump = Indexer::open(&world.index(), None).unwrap().dump_tags(&[]).unwrap();
        let expected = fresh.entry(dump).or_insert_with(|| hits_of_a_fresh_index(world));
        assert_eq!(hits(&world.index()), *expected, "{place}");
        let of = |name: &str| world.index().join(name).exists();
        if of(SETTINGS_FILE) {
            let names = |query: &str| expected[query].iter().map(|(name, _)| name).collect::<Vec<_>>();
            assert_eq!(names("tag:arrived"), names("body:/ne[wx]/"), "{place}");
        }
        assert!(!of("tags.pending") && !of("current.tmp"), "{place}");
    }
    unreachable!()
}

/// Results of a new index, with the current tags.
fn hits_of_a_fresh_index(world: &World) -> Hits {
    let fresh = world.root.path().join("fresh");
    fs::create_dir(&fresh).unwrap();
    fs::copy(world.index().join("tags.redb"), fresh.join("tags.redb")).unwrap();
    update(&fresh, &world.mail()).unwrap();
    let hits = hits(&fresh);
    fs::remove_dir_all(&fresh).unwrap();
    hits
}

#[test]
fn an_update_can_be_ended_at_every_call() {
    let world = World::new();
    update(&world.index(), &world.mail()).unwrap();
    tag(&world.index(), "subject:m4", "todo").unwrap();
    world.change();
    let calls = end_at_every_call(&world, &|index| update(index, &world.mail()));
    assert!(calls > 30, "{calls}");
    assert_eq!(hits(&world.index())["body:/ne[wx]/"].len(), 4);
}

#[test]
fn new_mail_gets_its_tags_wherever_an_update_was_ended() {
    let world = World::new();
    update(&world.index(), &world.mail()).unwrap();
    let rules = "[[new.rule]]\nquery = \"bread\"\nadd = [\"arrived\"]\n";
    fs::write(world.index().join(SETTINGS_FILE), rules).unwrap();
    world.change();
    let calls = end_at_every_call(&world, &|index| update(index, &world.mail()));
    assert!(calls > 40, "{calls}");
    assert_eq!(hits(&world.index())["tag:arrived"].len(), 4);
}

#[test]
fn a_first_index_can_be_ended_at_every_call() {
    let world = World::new();
    let calls = end_at_every_call(&world, &|index| update(index, &world.mail()));
    assert!(calls > 20, "{calls}");
}

#[test]
fn a_rebuild_can_be_ended_at_every_call() {
    let world = World::new();
    update(&world.index(), &world.mail()).unwrap();
    tag(&world.index(), "subject:m4", "todo").unwrap();
    world.change();
    end_at_every_call(&world, &|index| {
        Indexer::rebuild(index, None)?.update(&[], &UpdateOptions::default(), &|_| {})?;
        Ok(())
    });
}

#[test]
fn tagging_can_be_ended_at_every_call() {
    let world = World::new();
    update(&world.index(), &world.mail()).unwrap();
    // The first one makes the store.
    end_at_every_call(&world, &|index| tag(index, "subject:m4", "todo"));
    let calls = end_at_every_call(&world, &|index| {
        tag(index, "rye", "late")?;
        Indexer::open(index, None)?.save_query("mine", Some("tag:late")).map(drop)
    });
    assert!(calls > 10, "{calls}");
    assert_eq!(hits(&world.index())["tag:late"].len(), 10);
}
