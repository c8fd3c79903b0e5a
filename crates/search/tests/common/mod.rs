//! Mail to index, and queries in one line.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use posthaste_search::query::{self, Query};
use posthaste_search::{Indexer, Report, Searcher, UpdateOptions};

/// Makes a Maildir.
pub fn maildir(root: &Path, folder: &str) {
    for sub in ["new", "cur", "tmp"] {
        fs::create_dir_all(root.join(folder).join(sub)).unwrap();
    }
}

/// Brings the index up to date.
pub fn update(index: &Path, mail: &Path) -> Report {
    let report =
        Indexer::open(index, None).unwrap().update(&[mail.to_owned()], &UpdateOptions::default(), &|_| {}).unwrap();
    assert!(report.troubles.is_empty(), "{:?}", report.troubles);
    report
}

/// File names (without directories and flags) of what matches, sorted.
pub fn parsed(text: &str) -> Query {
    let now = "2025-06-01T12:00:00+00:00[+00:00]".parse().unwrap();
    query::parse(text, &now).unwrap_or_else(|error| panic!("{}", error.show(text)))
}

pub fn hits(searcher: &Searcher, text: &str) -> BTreeSet<String> {
    let numbers: Vec<u32> = searcher.find(&parsed(text)).unwrap().iter().collect();
    let messages = searcher.messages(&numbers).unwrap();
    messages.iter().map(|message| base_name(&message.path)).collect()
}

/// The file name without flags.
pub fn base_name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().split(":2,").next().unwrap().to_owned()
}

/// `POSTHASTE_CORPUS`, else the larger corpus beside the repository, else the project's own.
pub fn corpus() -> Vec<PathBuf> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let beside = project.join("../shared/corpus");
    let dir = match std::env::var_os("POSTHASTE_CORPUS") {
        Some(dir) => PathBuf::from(dir),
        None if beside.is_dir() => beside,
        None => project.join("tests/corpus"),
    };
    let mut files = Vec::new();
    let mut dirs = vec![dir];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "eml") {
                files.push(path);
            }
        }
    }
    files.sort();
    assert!(files.len() >= 40, "only {} messages", files.len());
    files
}
