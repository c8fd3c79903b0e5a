//! Any history of a Maildir.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use posthaste_search::{Indexer, Searcher, UpdateOptions, nothing_to_do, query};
use proptest::prelude::*;

use crate::common::{hits, maildir, update};
use crate::support::crash_between_commits;

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
    /// Rewrites the file with the same bytes, or with CRLF line ends: a message fetched again.
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
                let base = crate::common::base_name(&file);
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
