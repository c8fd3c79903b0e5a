//! Measures one look at a tree of Maildirs at three depths: directory times; names, sizes and times of all files; the
//! files' contents. The last two are done by single system calls and through io_uring.
//!
//! `cargo bench -p posthaste-maildir --bench tree [-- DIR [ROUNDS]]`: DIR is an existing tree. Without it, 20,000 empty
//! messages in 50 folders are made in a temporary directory. Prints milliseconds: median, least, most. The cache is
//! warm after the first round; for cold figures drop it first and ask for one round. Leaves out any processing of the
//! contents. `cargo test` runs it once over a few files so that it cannot rot.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use posthaste_maildir::Subdir;
use posthaste_maildir::tree::{FileReader, IoMethod, TreeOptions, stat_files_with, walk};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let made = tempfile::tempdir().expect("a temporary directory");
    let (dir, rounds) = match arguments.first() {
        Some(dir) => (PathBuf::from(dir), arguments.get(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(5)),
        None if is_bench => (make(made.path(), 400), 5),
        None => (make(made.path(), 2), 1),
    };
    for (name, way) in [
        ("directory times", times as fn(&Path) -> usize),
        ("names", names),
        ("statx, calls", |root: &Path| facts(root, IoMethod::OneByOne)),
        ("statx, io_uring", |root: &Path| facts(root, IoMethod::Batched)),
        ("read, calls", |root: &Path| contents(root, IoMethod::OneByOne)),
        ("read, io_uring", |root: &Path| contents(root, IoMethod::Batched)),
    ] {
        let mut taken: Vec<Duration> = Vec::new();
        let mut seen = 0;
        for _ in 0..rounds {
            let start = Instant::now();
            seen = way(&dir);
            taken.push(start.elapsed());
        }
        taken.sort_unstable();
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        println!(
            "{name:<22} {seen:>8} seen  {:>9.2} ms  ({:.2} - {:.2})",
            ms(taken[rounds / 2]),
            ms(taken[0]),
            ms(taken[rounds - 1])
        );
    }
}

fn make(root: &Path, each: usize) -> PathBuf {
    for folder in 0..50 {
        for sub in ["new", "cur", "tmp"] {
            std::fs::create_dir_all(root.join(format!("{folder}/{sub}"))).expect("a folder");
        }
        for message in 0..each {
            std::fs::write(
                root.join(format!("{folder}/cur/16000{folder:02}{message:05}.M{message}P1.host,S=0:2,S")),
                "",
            )
            .expect("a message");
        }
    }
    root.to_owned()
}

fn times(root: &Path) -> usize {
    walk(root, &TreeOptions::default()).expect("a tree").folders.len()
}

fn names(root: &Path) -> usize {
    let mut count = 0;
    for folder in walk(root, &TreeOptions::default()).expect("a tree").folders {
        for sub in [Subdir::New, Subdir::Cur] {
            folder.for_each_name(sub, |_, _| count += 1).expect("names");
        }
    }
    count
}

fn facts(root: &Path, method: IoMethod) -> usize {
    let mut count = 0;
    for folder in walk(root, &TreeOptions::default()).expect("a tree").folders {
        for sub in [Subdir::New, Subdir::Cur] {
            let mut files = Vec::new();
            folder.for_each_name(sub, |name, inode| files.push((name.to_owned(), inode))).expect("names");
            if !files.is_empty() {
                let facts = stat_files_with(method, &folder.dir.join(sub.as_str()), &mut files).expect("facts");
                count += facts.iter().flatten().count();
            }
        }
    }
    count
}

fn contents(root: &Path, method: IoMethod) -> usize {
    let mut files: Vec<(u64, PathBuf)> = Vec::new();
    for folder in walk(root, &TreeOptions::default()).expect("a tree").folders {
        for sub in [Subdir::New, Subdir::Cur] {
            let dir = folder.dir.join(sub.as_str());
            folder.for_each_name(sub, |name, inode| files.push((inode, dir.join(name)))).expect("names");
        }
    }
    files.sort_unstable();
    let paths: Vec<PathBuf> = files.into_iter().map(|(_, path)| path).collect();
    let mut reader = FileReader::new(method);
    let mut count = 0;
    for batch in paths.chunks(FileReader::BATCH).chain([&[][..]]) {
        reader.turn(batch.to_vec(), |_, read| count += usize::from(read.is_ok()));
    }
    count
}
