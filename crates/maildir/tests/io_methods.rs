//! Whichever way files are looked at and read, the answer is the same.

use std::fs;
use std::io::ErrorKind;

use posthaste_maildir::tree::{FileReader, IoMethod, stat_files_with};

#[test]
fn files_are_the_same_looked_at_in_either_way() {
    let dir = tempfile::tempdir().unwrap();
    let mut names: Vec<(String, u64)> = Vec::new();
    for n in 0..3000u64 {
        let name = format!("{n}.a.host:2,S");
        fs::write(dir.path().join(&name), vec![b'x'; n as usize % 700]).unwrap();
        names.push((name, n * 7919 % 3001));
    }
    names.push(("gone".to_owned(), 5));
    let mut again = names.clone();
    let one = stat_files_with(IoMethod::OneByOne, dir.path(), &mut names).unwrap();
    let many = stat_files_with(IoMethod::Batched, dir.path(), &mut again).unwrap();
    assert_eq!(names, again);
    assert_eq!(one, many);
    assert_eq!(one.iter().filter(|facts| facts.is_none()).count(), 1);
    assert_eq!(stat_files_with(IoMethod::Batched, dir.path(), &mut []).unwrap(), []);
    assert!(stat_files_with(IoMethod::Batched, &dir.path().join("nowhere"), &mut []).is_err());
}

/// Sizes around those of a buffer, and files that are not there.
fn files(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let sizes = [0, 1, 1000, 32_767, 32_768, 32_769, 65_536, 300_000];
    let mut paths = Vec::new();
    for n in 0..300usize {
        let path = dir.join(n.to_string());
        if n % 11 != 3 {
            let bytes: Vec<u8> = (0..sizes[n % sizes.len()]).map(|at| (at * 31 + n) as u8).collect();
            fs::write(&path, bytes).unwrap();
        }
        paths.push(path);
    }
    paths
}

fn check(method: IoMethod) {
    let dir = tempfile::tempdir().unwrap();
    let paths = files(dir.path());
    let mut reader = FileReader::new(method);
    let mut before: &[std::path::PathBuf] = &[];
    let mut seen = 0;
    for next in paths.chunks(FileReader::BATCH).chain([&[][..]]) {
        reader.turn(next.to_vec(), |place, read| {
            seen += 1;
            match (fs::read(&before[place]), read) {
                (Ok(bytes), Ok(file)) => {
                    assert!(bytes == file.bytes, "{}", before[place].display());
                    assert_eq!(file.facts.size, bytes.len() as u64);
                    assert!(file.facts.mtime_ns > 1_600_000_000_000_000_000 && file.facts.inode > 0);
                }
                (Err(_), Err(error)) => assert_eq!(error.kind(), ErrorKind::NotFound),
                (plain, read) => panic!("{plain:?} {read:?}"),
            }
        });
        before = next;
    }
    assert_eq!(seen, paths.len());
}

#[test]
fn files_are_read_one_by_one() {
    check(IoMethod::OneByOne);
    check(IoMethod::Best);
}

#[test]
fn files_are_read_many_at_once() {
    check(IoMethod::Batched);
    if !FileReader::new(IoMethod::Batched).is_batched() {
        eprintln!("io_uring is not to be had here: read by ordinary calls");
    }
}
