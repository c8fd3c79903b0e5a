//! A data directory of the first format: its mail gets where the program that wrote it would have put it. `README.md` says how it was made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use posthaste_delivery::local::{Deliver, LocalConfig, LocalDelivery, LocalEntry, TakenOver, take_over};
use posthaste_old_journal::start_of_earlier_version;
use posthaste_spool::{FileSpool, Replayed, Spool};

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

    fn journal(&self) -> PathBuf {
        self.0.path().join("before/journal")
    }

    fn spool(&self) -> PathBuf {
        self.0.path().join("before/queue")
    }

    fn config(&self) -> LocalConfig {
        let mut config = LocalConfig { host: "another.example".into(), ..LocalConfig::new(self.spool(), self.mail()) };
        config.spool.ring.segment_bytes = 4 << 20;
        config
    }

    /// Takes it over, if that was not done yet, and delivers what is in the spool.
    fn open_once(&self) -> Option<TakenOver> {
        let config = LocalConfig { journal_dir: Some(self.journal()), ..self.config() };
        let (local, report) = LocalDelivery::open(config).expect("opens");
        assert!(report.spool.as_ref().is_some_and(|found| found.damage.is_empty()), "{report:?}");
        runtime().block_on(local.shutdown());
        report.taken_over
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Every message below `root`, by its path.
fn messages(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for path in std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.ends_with(".posthaste-mount") {
                // Not of that time.
                continue;
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

/// Starts again and again, first while a mailbox cannot be written to: what is missing or cut is put right, what its owner has moved stays where it is, what
/// waits goes on waiting, and all of it comes once.
#[test]
fn mail_that_was_taken_over_gets_where_the_program_of_its_time_would_have_put_it() {
    let data = OldData::unpack();
    let expected = messages(&data.0.path().join("after"));
    assert_eq!(expected.len(), 25);
    let mut for_others = expected.clone();
    for_others.retain(|name, _| !name.starts_with("example.org/bad/"));
    for_others.insert("example.org/bad/Maildir".to_owned(), b"not a mailbox\n".to_vec());
    let before = messages(&data.mail());
    assert!(before.iter().any(|(name, bytes)| for_others[name] != *bytes), "one is cut");
    assert!(before.len() + 4 <= for_others.len(), "some are missing");
    let taken = data.open_once().expect("a journal");
    assert_eq!((taken.messages, taken.unreadable.len(), taken.damage.len()), (12, 0, 0));
    assert_same(&messages(&data.mail()), &for_others);
    assert!(data.open_once().is_none(), "once");
    assert_same(&messages(&data.mail()), &for_others);
    std::fs::remove_file(data.obstacle()).expect("removed");
    for _ in 0..2 {
        data.open_once();
        assert_same(&messages(&data.mail()), &expected);
    }
}

/// The key of a name: what stays the same wherever its reader moves the file.
fn key(deliver: &Deliver, number: u16) -> String {
    let id = deliver.name_id.expect("the names stay as they were");
    format!("{}.J{id:x}R{:08x}T{number}.{}", deliver.secs, deliver.nonce, deliver.host)
}

#[test]
fn the_first_format_is_taken_over_into_a_spool_and_older_programs_refuse_it_then() {
    let data = OldData::unpack();
    let expected = messages(&data.0.path().join("after"));
    let (journal, spool) = (data.journal(), data.spool());
    let before = messages(&data.mail());
    let report = take_over(&journal, &data.config()).expect("taken over").expect("a journal");
    assert_eq!((report.messages, report.unreadable.len(), report.damage.len()), (12, 0, 0));
    assert_same(&messages(&data.mail()), &before);

    // Every message is there, under the names and with the bytes that the older program gave it.
    let (opened, found) = FileSpool::open(&spool, data.config().spool).expect("opens");
    assert_eq!(found.damage, []);
    let (mut keys, mut notes) = (BTreeSet::new(), 0);
    let streams = opened.streams();
    assert_eq!(streams.len(), 1);
    let show = &mut |replayed: Replayed<'_>| {
        let Replayed::Entry { lsn, payload, body_len, .. } = replayed else { panic!("damaged") };
        let Some(LocalEntry::Deliver(deliver)) = LocalEntry::decode(payload.clone()) else { return notes += 1 };
        for (number, target) in &deliver.targets {
            let (mailbox, key) = (&target.mailbox, key(&deliver, *number));
            assert!(keys.insert(key.clone()), "{key} is there twice");
            let is_it = |name: &&String| name.starts_with(&**mailbox) && name.contains(&key);
            let name = expected.keys().find(is_it).unwrap_or_else(|| panic!("{key} for {mailbox}"));
            let mut bytes = target.prefix.to_vec();
            bytes.extend_from_slice(&opened.read(lsn, 0..body_len).expect("its body"));
            bytes.retain(|byte| *byte != b'\r');
            assert!(bytes == expected[name], "{name}");
        }
    };
    opened.replay(streams[0].id, show).expect("replayed");
    // All but what the journal had forgotten, and what its record no longer named because it was durable.
    assert_eq!(keys.len(), expected.len() - 3 - 2);
    assert!(notes >= 3, "what was visible, a sync without an end, why mail waits");
    drop(opened);

    // The older program, and the way back.
    let older = || start_of_earlier_version(&journal);
    let error = older().expect_err("it refuses").to_string();
    assert!(error.contains("Is a directory"), "{error}");
    assert_same(&messages(&data.mail()), &before);
    let left: Vec<_> =
        std::fs::read_dir(&journal).expect("it is there").map(|entry| entry.expect("an entry").path()).collect();
    let sign = left.iter().find(|path| path.extension().is_some_and(|ending| ending == "seg")).expect("a sign");
    let text = std::fs::read_to_string(sign.join("README")).expect("readable");
    assert!(text.contains(&format!("Move {} away and remove {}.", spool.display(), sign.display())), "{text}");
    std::fs::rename(&spool, data.0.path().join("moved")).expect("moved");
    std::fs::remove_dir_all(sign).expect("removed");
    assert_eq!(older().expect("it starts"), 0, "an empty journal");
    assert_same(&messages(&data.mail()), &before);
}
