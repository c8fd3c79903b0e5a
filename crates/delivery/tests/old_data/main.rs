//! A data directory of the first format: its mail gets where the program that wrote it would have put it. `README.md` says how it was made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use posthaste_delivery::{Journaled, JournaledConfig, ReplayReport};

struct OldData(tempfile::TempDir);

impl OldData {
    fn unpack() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/old_data/old-data.tar.gz");
        let status = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(dir.path()).status();
        assert!(status.expect("tar runs").success());
        OldData(dir)
    }

    fn mail(&self) -> PathBuf {
        self.0.path().join("before/mail")
    }

    /// The file in the place of a mailbox.
    fn obstacle(&self) -> PathBuf {
        self.mail().join("example.org/bad/Maildir")
    }

    /// Starts on it and ends in order.
    fn open_once(&self) -> ReplayReport {
        let config = JournaledConfig {
            host: "another.example".into(),
            ..JournaledConfig::new(self.0.path().join("before/journal"), self.mail())
        };
        let (journaled, report) = Journaled::open(config).expect("opens");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(journaled.shutdown());
        report
    }
}

/// Every message below `root`, by its path.
fn messages(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for path in std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(root).expect("below it").to_str().expect("UTF-8").to_owned();
                found.insert(name, std::fs::read(&path).expect("readable"));
            }
        }
    }
    found
}

/// As `assert_eq`, and says what differs and not every body.
fn assert_same(found: &BTreeMap<String, Vec<u8>>, expected: &BTreeMap<String, Vec<u8>>) {
    let names = |of: &BTreeMap<String, Vec<u8>>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected));
    let differs = expected.iter().find(|(name, bytes)| found[*name] != **bytes);
    assert_eq!(differs.map(|(name, _)| name), None, "other bytes than expected");
}

#[test]
fn mail_of_the_first_format_gets_where_the_program_of_its_time_would_have_put_it() {
    let data = OldData::unpack();
    let expected = messages(&data.0.path().join("after"));
    assert_eq!(expected.len(), 25);
    // What is missing or cut is put right, and what its owner has moved stays where it is.
    let mut for_others = expected.clone();
    for_others.retain(|name, _| !name.starts_with("example.org/bad/"));
    for_others.insert("example.org/bad/Maildir".to_owned(), b"not a mailbox\n".to_vec());
    let before = messages(&data.mail());
    assert!(before.iter().any(|(name, bytes)| for_others[name] != *bytes), "one is cut");
    assert!(before.len() + 4 <= for_others.len(), "some are missing");
    let report = data.open_once();
    assert_eq!(report.messages, 12);
    assert!(report.damage.is_empty() && report.unreadable.is_empty(), "{report:?}");
    assert_same(&messages(&data.mail()), &for_others);
    // What waits for a mailbox goes on waiting.
    data.open_once();
    assert_same(&messages(&data.mail()), &for_others);
    std::fs::remove_file(data.obstacle()).expect("removed");
    data.open_once();
    assert_same(&messages(&data.mail()), &expected);
    // And comes once.
    data.open_once();
    assert_same(&messages(&data.mail()), &expected);
}
