//! Any octets are a table of keywords: what makes no sense in it is passed over, what does has a letter, and whoever adds a keyword takes none away.
#![no_main]

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::SystemTime;

use libfuzzer_sys::fuzz_target;
use posthaste_maildir::{Flags, KEYWORDS_MAX, Maildir};

/// A mailbox in a directory that `fuzz/run` has made for this run; each process has its own.
static MAILBOX: LazyLock<(PathBuf, Maildir)> = LazyLock::new(|| {
    let dir = std::env::temp_dir().join(format!("maildir-keywords-{}", std::process::id()));
    ["tmp", "new", "cur"].iter().for_each(|subdir| fs::create_dir_all(dir.join(subdir)).expect("a directory"));
    let maildir = Maildir::open(&dir).expect("a mailbox");
    (dir, maildir)
});

fuzz_target!(|octets: &[u8]| {
    let (dir, maildir) = &*MAILBOX;
    fs::write(dir.join("dovecot-keywords"), octets).expect("the table can be kept");
    let table = maildir.keywords().expect("any octets are a table");
    let all: Flags = Flags::of_name("1.a.h:2,abcdefghijklmnopqrstuvwxyz");
    let before: Vec<String> = table.names(all).map(str::to_owned).collect();
    assert!(before.len() <= KEYWORDS_MAX);
    assert!(before.iter().all(|name| table.flag(name).is_some()), "{before:?}");
    let added = maildir.keyword_flag("Fuzzed", SystemTime::UNIX_EPOCH);
    let table = maildir.keywords().expect("what was written is a table");
    let after: Vec<&str> = table.names(all).collect();
    assert!(before.iter().all(|name| after.contains(&name.as_str())), "{before:?} became {after:?}");
    match added {
        Ok(flag) => assert_eq!(table.flag("fuzzed"), Some(flag)),
        Err(error) => {
            assert_eq!((error.kind(), letters_taken(octets)), (std::io::ErrorKind::QuotaExceeded, KEYWORDS_MAX))
        }
    }
});

/// Letters that have a name in the table, be it a keyword or not.
fn letters_taken(octets: &[u8]) -> usize {
    let index = |line: &str| match line.split_once(' ')? {
        (_, "" | "\r") => None,
        (index, _) => index.parse().ok().filter(|index| *index < KEYWORDS_MAX),
    };
    let lines = octets.split(|octet| *octet == b'\n').map(String::from_utf8_lossy);
    lines.filter_map(|line| index(&line)).collect::<HashSet<usize>>().len()
}
