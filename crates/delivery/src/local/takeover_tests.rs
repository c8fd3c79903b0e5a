//! A takeover that the power cuts short, again and again, neither loses nor doubles a message.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use posthaste_fsops::recording::{Event, Scope};
use posthaste_fsops::{Choice, Cut, Machine, Recording};
use posthaste_old_journal::{OldJournal, start_of_earlier_version};
use posthaste_spool::{Config, FileSpool, Lsn, Replayed, Spool};
use rustix::fs::{Mode, OFlags};

use super::entry::{LocalEntry, Visible};
use super::message::{LineEnds, Target};
use super::old_record::{
    Delivered, KIND_DELIVERED, KIND_DISTRUST, KIND_MESSAGE, KIND_WAITS, OldBody, OldFile, Stored, Waits,
};
use super::takeover::{TakenOver, TakeoverError, take_over_into};
use crate::session::SessionTag;

const SESSION: SessionTag = SessionTag([5; 24]);

fn config() -> Config {
    let mut config = Config { keeper: false, free_bytes_min: 0, free_inodes_min: 0, ..Config::default() };
    (config.ring.segment_bytes, config.ring.max_segments) = (64 << 10, 6);
    config
}

fn journal_of(root: &Path) -> PathBuf {
    root.join("data/journal")
}

fn spool_of(root: &Path) -> PathBuf {
    root.join("data/queue")
}

/// The first letter of a mailbox is its mount.
fn stream_of(mailbox: &str) -> String {
    format!("local:{}", &mailbox[..1])
}

fn taken(root: &Path) -> Result<Option<TakenOver>, TakeoverError> {
    take_over_into(&journal_of(root), &spool_of(root), &config(), &stream_of)
}

fn stored(numbers: &[u16], mailboxes: &[&str], body: OldBody) -> Stored {
    let target = |name: &&str| Target { mailbox: (*name).into(), prefix: Bytes::from(format!("To: {name}\r\n")) };
    let targets = numbers.iter().copied().zip(mailboxes.iter().map(target)).collect();
    let host = "mx.example".into();
    Stored { secs: 1_700_000_000, nonce: 7, host, line_ends: LineEnds::ToLf, targets, body }
}

fn put(path: &Path, bytes: &[u8]) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let file = posthaste_fsops::open(path, flags, Mode::RUSR | Mode::WUSR).unwrap();
    posthaste_fsops::write_all(&file, bytes).unwrap();
    posthaste_fsops::fsync(&file).unwrap();
}

/// What a spool says of a message: by the number in its names, the targets in the order of their numbers, and its body.
type Messages = BTreeMap<u64, (Vec<(u16, String)>, Vec<u8>)>;

/// A journal of the first format. Returns what its messages are.
fn fill(root: &Path) -> Messages {
    let dir = journal_of(root);
    let mut journal = OldJournal::create(&dir, 64 << 10);
    let bodies = dir.join("spool");
    posthaste_fsops::make_dir(&bodies).unwrap();
    let large = vec![b'L'; 300_000];
    put(&bodies.join("0000000000000001.body"), &large);
    put(&bodies.join("0000000000000002.body"), b"of no record");
    posthaste_fsops::fsync(std::fs::File::open(&bodies).unwrap()).unwrap();
    let mut all = Messages::new();
    let sets: [(&[u16], &[&str]); 4] =
        [(&[0], &["a/one"]), (&[0, 1], &["a/one", "b/two"]), (&[2, 5], &["b/two", "b/three"]), (&[0], &["b/three"])];
    for n in 0..24_u8 {
        let (numbers, mailboxes) = sets[usize::from(n) % sets.len()];
        let is_large = n == 10;
        let bytes = if is_large { large.clone() } else { vec![n; 5000] };
        let body = match is_large {
            true => {
                let len = large.len() as u64;
                OldBody::File(OldFile { file: 1, len, line_ends: 0, lossless: true, lone_lfs: 0 })
            }
            false => OldBody::Inline(bytes.clone().into()),
        };
        let id = journal.append(KIND_MESSAGE, &stored(numbers, mailboxes, body).encode());
        let targets = numbers.iter().copied().zip(mailboxes.iter().map(|name| (*name).to_owned())).collect();
        all.insert(id, (targets, bytes));
    }
    // Two are done and forgotten; of some that are left a note tells that they became visible.
    let ids: Vec<u64> = all.keys().copied().collect();
    journal.settle(ids[0]);
    journal.settle(ids[1]);
    journal.checkpoint();
    ids[..2].iter().for_each(|id| drop(all.remove(id)));
    let note = Delivered { session: SESSION, done: vec![(ids[2], 2), (ids[5], 0), (ids[5], 1), (ids[0], 0)] };
    journal.note(KIND_DELIVERED, &note.encode());
    journal.note(KIND_DISTRUST, &SESSION.0);
    let waits = Waits { mailbox: "b/three".into(), attempts: 3, next_try_secs: 9, error: "no space".into() };
    journal.note(KIND_WAITS, &waits.encode());
    all
}

/// What a spool holds of messages, each once, and its other entries in order.
fn contents(dir: &Path) -> (Messages, Vec<(String, LocalEntry)>, BTreeMap<u64, Lsn>) {
    let (spool, report) = FileSpool::open(dir, config()).unwrap();
    assert_eq!(report.damage, []);
    let (mut messages, mut others, mut lsns) = (Messages::new(), Vec::new(), BTreeMap::new());
    for stream in spool.streams() {
        let show = &mut |replayed: Replayed<'_>| {
            let Replayed::Entry { lsn, payload, body_len, .. } = replayed else { panic!("damaged: {replayed:?}") };
            match LocalEntry::decode(payload.clone()).unwrap() {
                LocalEntry::Deliver(deliver) => {
                    let id = deliver.name_id.expect("the names stay as they were");
                    assert_eq!((deliver.secs, deliver.nonce, &*deliver.host), (1_700_000_000, 7, "mx.example"));
                    assert!(*lsns.entry(id).or_insert(lsn) == lsn, "{id} is there twice");
                    assert!(deliver.large.is_some() == (body_len > 100_000) && deliver.body.is_none());
                    let body = spool.read(lsn, 0..body_len).unwrap().to_vec();
                    let entry = messages.entry(id).or_insert_with(|| (Vec::new(), body));
                    for (number, target) in &deliver.targets {
                        assert_eq!(stream_of(&target.mailbox), stream.name);
                        assert_eq!(target.prefix, format!("To: {}\r\n", target.mailbox));
                        entry.0.push((*number, target.mailbox.to_string()));
                    }
                }
                other => others.push((stream.name.clone(), other)),
            }
        };
        spool.replay(stream.id, show).unwrap();
    }
    messages.values_mut().for_each(|(targets, _)| targets.sort());
    spool.abandon();
    (messages, others, lsns)
}

fn assert_taken(root: &Path, expected: &Messages, what: &str) {
    let (found, others, lsns) = contents(&spool_of(root));
    let brief = |all: &Messages| all.iter().map(|(id, (to, body))| (*id, to.clone(), body.len())).collect::<Vec<_>>();
    assert_eq!(brief(&found), brief(expected), "{what}");
    assert!(found == *expected, "{what}: other bodies");
    assert!(
        lsns.values().next() > expected.keys().next_back().map(|id| Lsn::new(*id)).as_ref(),
        "new numbers are higher"
    );
    let ids: Vec<u64> = lsns.keys().copied().collect();
    let visible = |targets: &[(u64, u16)]| {
        let targets = targets.iter().map(|(id, number)| (lsns[id], *number)).collect();
        LocalEntry::Visible(Visible { session: SESSION, targets })
    };
    let of =
        |stream: &str| others.iter().filter(|(name, _)| name == stream).map(|(_, entry)| entry).collect::<Vec<_>>();
    // The third and the sixth of all that there were.
    let begun = LocalEntry::SyncBegun { session: SESSION };
    assert_eq!(of("local:a"), [&visible(&[(ids[3], 0)]), &begun], "{what}");
    let of_b = of("local:b");
    assert_eq!(of_b[..2], [&visible(&[(ids[0], 2), (ids[3], 1)]), &begun], "{what}");
    assert!(of_b.len() == 3 && matches!(of_b[2], LocalEntry::Trouble(trouble) if trouble.attempts == 3), "{what}");
    // Nothing of the journal is left but the sign.
    assert_eq!(posthaste_journal::segments(&journal_of(root)).unwrap(), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(journal_of(root).join("spool")).unwrap().count(), 0, "{what}");
    assert!(start_of_earlier_version(&journal_of(root)).is_err(), "{what}");
}

#[test]
fn a_journal_is_taken_over_once_with_its_names_and_notes() {
    let dir = tempfile::tempdir().unwrap();
    assert!(taken(dir.path()).unwrap().is_none(), "nothing is there");
    let expected = fill(dir.path());
    let report = taken(dir.path()).unwrap().expect("a journal");
    assert_eq!((report.messages, report.unreadable.len(), report.damage), (22, 0, Vec::new()));
    assert_taken(dir.path(), &expected, "taken over");
    assert!(taken(dir.path()).unwrap().is_none(), "it has been taken over");
}

#[test]
fn a_journal_that_is_in_use_or_beside_a_spool_of_its_own_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let expected = fill(dir.path());
    let lock = std::fs::File::open(journal_of(dir.path()).join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(matches!(taken(dir.path()), Err(TakeoverError::Locked(_))));
    drop(lock);
    std::fs::create_dir_all(spool_of(dir.path()).join("ring")).unwrap();
    assert!(matches!(taken(dir.path()), Err(TakeoverError::Both { .. })));
    std::fs::remove_dir(spool_of(dir.path()).join("ring")).unwrap();
    // The older program still has it all.
    assert_eq!(start_of_earlier_version(&journal_of(dir.path())).unwrap(), expected.len());
    // Into the directory that was made for it.
    taken(dir.path()).unwrap().expect("a journal");
    assert_taken(dir.path(), &expected, "taken over");
}

#[test]
fn what_cannot_be_read_is_kept_aside() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = fill(dir.path());
    let large = *expected.iter().find(|(_, (_, body))| body.len() > 100_000).unwrap().0;
    std::fs::write(journal_of(dir.path()).join("spool/0000000000000001.body"), "short").unwrap();
    let report = taken(dir.path()).unwrap().expect("a journal");
    assert_eq!(report.unreadable.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [large]);
    expected.remove(&large);
    assert_taken(dir.path(), &expected, "all others");
    let kept = std::fs::read_dir(journal_of(dir.path()).join("kept")).unwrap();
    let mut kept: Vec<_> = kept.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    kept.sort();
    assert!(
        kept.contains(&"0000000000000001.body".to_owned()) && kept.iter().any(|name| name.ends_with(".seg")),
        "{kept:?}"
    );
}

/// Cuts a takeover, finishes it, and says what is wrong then, if anything is. Also returns the second try, and whether it had to begin again.
fn cut_and_finish(recording: &Recording, cut: Cut, expected: &Messages) -> Result<(Machine, bool), String> {
    let what = format!("{cut:?} of {}", recording.events.len());
    let left = Machine::boot(&recording.cut(cut), true, false).unwrap();
    let is_signed = std::fs::read_dir(journal_of(left.path())).unwrap().any(|entry| {
        let entry = entry.unwrap();
        entry.file_type().unwrap().is_dir() && entry.path().extension().is_some_and(|ending| ending == "seg")
    });
    if spool_of(left.path()).exists() && !is_signed {
        return Err(format!("{what}: an older program would not see the spool"));
    }
    let again = match taken(left.path()).map_err(|error| format!("{what}: {error}"))? {
        Some(report) if report.messages != expected.len() => return Err(format!("{what}: {report:?}")),
        report => report.is_some(),
    };
    let found = std::panic::catch_unwind(|| assert_taken(left.path(), expected, &what));
    found.map(|()| (left, again)).map_err(|_| what)
}

#[test]
fn a_takeover_cut_short_anywhere_loses_and_doubles_nothing() {
    let machine = Machine::new().unwrap();
    let expected = fill(machine.path());
    let begun = machine.recording().events.len();
    taken(machine.path()).unwrap().expect("a journal");
    let recording = machine.recording();
    let (mut repeated, mut finished) = (0, 0);
    let finish = |recording: &_, cut| cut_and_finish(recording, cut, &expected).unwrap_or_else(|what| panic!("{what}"));
    for position in begun..=recording.events.len() {
        // A power cut, or a kill: that leaves everything.
        let choice = if position % 3 == 0 { Choice::Bits(u64::MAX) } else { Choice::Seed(position as u64) };
        let (left, again) = finish(&recording, Cut { position, choice });
        *(if again { &mut repeated } else { &mut finished }) += 1;
        // Now and then the second try is cut, too.
        if position % 7 == 0 {
            let again = left.recording();
            let middle = again.events.len() / 5 * (position / 7 % 6).min(5);
            finish(&again, Cut { position: middle, choice: Choice::Seed(position as u64) });
        }
    }
    assert!(repeated > 50 && finished > 5, "{repeated}, {finished}");
}

#[test]
fn a_takeover_without_any_one_kind_of_sync_would_be_found_out() {
    let machine = Machine::new().unwrap();
    let expected = fill(machine.path());
    let begun = machine.recording().events.len();
    taken(machine.path()).unwrap().expect("a journal");
    let whole = machine.recording();
    let mut names = BTreeMap::new();
    for event in &whole.events {
        if let Event::Create { name, node, .. } = event {
            names.insert(*node, name.as_str());
        }
    }
    let synced = |at: usize| match &whole.events[at] {
        Event::Sync(Scope::Node(node)) if at >= begun => names.get(node).copied(),
        _ => None,
    };
    for kind in ["journal", "data", "spool", "queue.unfinished"] {
        let left_out: Vec<usize> = (begun..whole.events.len()).filter(|at| synced(*at) == Some(kind)).collect();
        assert!(
            !left_out.is_empty(),
            "{kind}: {:?}",
            (begun..whole.events.len()).filter_map(synced).collect::<Vec<_>>()
        );
        let recording = whole.without_syncs(|at| left_out.contains(&at));
        // From the end on, where all that was left out shows at once.
        let positions = (left_out[0]..=recording.events.len()).rev();
        let mut cuts =
            positions.flat_map(|position| (0..8).map(move |seed| Cut { position, choice: Choice::Seed(seed) }));
        let is_found = cuts.any(|cut| cut_and_finish(&recording, cut, &expected).is_err());
        assert!(is_found, "{kind}");
    }
}
