//! Any changes by other programs, in any order.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::entry::WireSize;
use crate::flags::MessageFlags;
use crate::row::MailboxStatus;
use crate::snapshot::status;

/// A change by another program.
#[derive(Debug, Clone)]
enum Change {
    Deliver(u8, String),
    Flags(usize, &'static str),
    /// Under another key.
    Rename(usize, u8),
    Remove(usize),
    /// Removed, and another file under the same name.
    Replace(usize, String),
    /// Written to in place.
    Edit(usize, String),
    /// Copied under another name of the same key.
    Copy(usize),
    /// A second name of the same file.
    Link(usize),
    Settle,
    Look,
    Reopen,
}

fn change() -> impl Strategy<Value = Change> {
    let text = "[a-z\r\n]{0,6}";
    prop_oneof![
        3 => (0u8..4, text).prop_map(|(key, text)| Change::Deliver(key, text)),
        3 => (any::<usize>(), prop::sample::select(vec!["", ":2,", ":2,S", ";2,FS", ",S=3:2,"]))
            .prop_map(|(at, flags)| Change::Flags(at, flags)),
        1 => (any::<usize>(), 0u8..4).prop_map(|(at, key)| Change::Rename(at, key)),
        2 => any::<usize>().prop_map(Change::Remove),
        1 => (any::<usize>(), text).prop_map(|(at, text)| Change::Replace(at, text)),
        1 => (any::<usize>(), text).prop_map(|(at, text)| Change::Edit(at, text)),
        1 => any::<usize>().prop_map(Change::Copy),
        1 => any::<usize>().prop_map(Change::Link),
        2 => Just(Change::Settle),
        4 => Just(Change::Look),
        1 => Just(Change::Reopen),
    ]
}

/// A file, the so-manieth.
fn pick(place: &Place, at: usize) -> Option<PathBuf> {
    let mut all: Vec<PathBuf> = ["new", "cur"]
        .iter()
        .flat_map(|subdir| fs::read_dir(place.path(subdir)).unwrap().map(|entry| entry.unwrap().path()))
        .collect();
    all.sort();
    let len = all.len();
    (len > 0).then(|| all.swap_remove(at % len))
}

fn other_name(place: &Place, path: &Path, flags: &str) -> PathBuf {
    let name = path.file_name().unwrap().to_str().unwrap();
    place.path("cur").join(format!("{}{flags}", key_of_name(name)))
}

/// Each content has a time of its own, as with programs that are not quick enough to write twice within a tick of the clock.
fn write(place: &mut Place, path: &Path, text: &str) {
    place.clock += 1;
    fs::write(path, text).unwrap();
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(place.clock);
    fs::File::open(path).unwrap().set_modified(at).unwrap();
}

fn apply(place: &mut Place, change: Change) {
    let picked = |at: usize| pick(place, at);
    match change {
        Change::Deliver(key, text) => {
            let path = place.path("new").join(format!("{key}.m"));
            write(place, &path, &text);
        }
        Change::Flags(at, flags) => drop(picked(at).map(|path| fs::rename(&path, other_name(place, &path, flags)))),
        Change::Rename(at, key) => {
            let (Some(path), other) = (picked(at), place.path("cur").join(format!("{key}.r:2,"))) else { return };
            if !other.exists() {
                fs::rename(path, other).unwrap();
            }
        }
        Change::Remove(at) => drop(picked(at).map(fs::remove_file)),
        Change::Replace(at, text) => {
            let Some(path) = picked(at) else { return };
            fs::remove_file(&path).unwrap();
            write(place, &path, &text);
        }
        Change::Edit(at, text) => {
            let Some(path) = picked(at) else { return };
            write(place, &path, &text);
        }
        Change::Copy(at) => {
            let Some(path) = picked(at) else { return };
            let other = other_name(place, &path, ":2,R");
            if !other.exists() {
                fs::copy(&path, other).unwrap();
            }
        }
        // It may be there already.
        Change::Link(at) => drop(picked(at).map(|path| fs::hard_link(&path, other_name(place, &path, ":2,F")))),
        Change::Settle => place.settle(),
        Change::Look | Change::Reopen => {}
    }
}

/// Reads all messages; each UID has the content that it had when it was read first.
async fn check(place: &Place, messages: &Messages, contents: &mut HashMap<u32, Vec<u8>>) {
    for message in messages.messages.iter() {
        let Ok(octets) = place.read(messages, message.uid).await else { continue };
        let size = place.mailbox().size(message).await.unwrap();
        assert_eq!(octets.len() as u64, size);
        let first = contents.entry(message.uid).or_insert_with(|| octets.clone());
        assert_eq!(*first, octets, "UID {} has another content", message.uid);
    }
}

/// Numbers that are shown before messages are read are those of the messages.
async fn check_numbers(place: &Place) {
    let Some(mut opening) = place.mailbox().opening().await.unwrap() else { return };
    let read = opening.messages.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    let unseen = read.messages.iter().position(|message| !message.flags.contains(MessageFlags::SEEN));
    assert!(opening.numbers.are_of(&read));
    assert_eq!(opening.numbers.first_unseen, unseen.map(|at| at as u32 + 1));
    assert_eq!(opening.numbers.keywords, read.keywords);
    assert_eq!(opening.numbers.status, status(place.mailbox(), &read));
}

/// Both names are written to before the mailbox has stood still.
#[tokio::test]
async fn a_file_of_two_names_that_is_edited_gets_another_uid() {
    let (mut place, mut contents) = (Place::new(), HashMap::new());
    apply(&mut place, Change::Deliver(2, "before".into()));
    apply(&mut place, Change::Link(0));
    let messages = place.look().await;
    check(&place, &messages, &mut contents).await;
    apply(&mut place, Change::Deliver(2, "behind".into()));
    for _ in 0..2 {
        let messages = place.settled_look().await;
        check(&place, &messages, &mut contents).await;
    }
    assert_eq!(uids(&place.settled_look().await), [2]);
}

/// The row alone tells the empty message and its successor apart: nobody has looked at the file since the start.
#[tokio::test]
async fn an_empty_message_keeps_its_content_through_a_restart() {
    let (mut place, mut contents) = (Place::new(), HashMap::new());
    apply(&mut place, Change::Deliver(1, String::new()));
    for _ in 0..2 {
        let messages = place.settled_look().await;
        check(&place, &messages, &mut contents).await;
    }
    assert_eq!(contents, HashMap::from([(1, Vec::new())]));
    let core = place.mailbox().core();
    core.shared.ledger.note(&Vec::from_iter(core.listing_note()));
    place.reopen();
    let messages = place.settled_look().await;
    assert_eq!((uids(&messages), messages.messages[0].wire_size), (vec![1], WireSize::of(0)));
    apply(&mut place, Change::Edit(0, "other".into()));
    for _ in 0..2 {
        let messages = place.settled_look().await;
        check(&place, &messages, &mut contents).await;
    }
    assert_eq!(uids(&place.settled_look().await), [2]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_uid_has_two_contents_whatever_others_do(changes in prop::collection::vec(change(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut place = Place::new();
            let (mut contents, mut uid_next, mut modseq) = (HashMap::new(), 1, 1);
            for change in changes {
                let (looks, reopens) = (matches!(change, Change::Look), matches!(change, Change::Reopen));
                apply(&mut place, change);
                if reopens {
                    // All that changed before is known, and all that changes after it is noticed: else another content of the same length would not be.
                    for _ in 0..2 {
                        let messages = place.settled_look().await;
                        check(&place, &messages, &mut contents).await;
                    }
                    let before = place.settled_look().await;
                    let core = place.mailbox().core();
                    core.shared.ledger.note(&Vec::from_iter(core.listing_note()));
                    place.reopen();
                    let stored = place.mailbox().core().stored_status();
                    check_numbers(&place).await;
                    let messages = place.settled_look().await;
                    let looked = status(place.mailbox(), &messages);
                    // Names that moved to `cur/` without a flag are \\Recent until they are listed.
                    assert!(stored.is_none_or(|stored| MailboxStatus { recent: looked.recent, ..stored } == looked));
                    assert_eq!((uids(&messages), flags(&messages)), (uids(&before), flags(&before)));
                    assert!(messages.highest_modseq >= modseq.max(before.highest_modseq), "a MODSEQ went back");
                    modseq = messages.highest_modseq;
                    check(&place, &messages, &mut contents).await;
                    uid_next = uid_next.max(messages.uid_next);
                }
                if looks {
                    let messages = place.look().await;
                    assert!(messages.uid_next >= uid_next && uids(&messages).is_sorted_by(|a, b| a < b));
                    // A new message has a UID that was never given.
                    let new = messages.messages.iter().filter(|message| message.uid >= uid_next);
                    assert!(new.clone().all(|message| !contents.contains_key(&message.uid)));
                    assert!(messages.highest_modseq >= modseq, "a MODSEQ went back");
                    (uid_next, modseq) = (messages.uid_next, messages.highest_modseq);
                    check(&place, &messages, &mut contents).await;
                }
            }
            // Once all stands still, each file is one message. The first look may find that a content is another one.
            for _ in 0..2 {
                let messages = place.settled_look().await;
                check(&place, &messages, &mut contents).await;
            }
            let messages = place.settled_look().await;
            let files = place.files();
            let mut expected: Vec<Vec<u8>> = files.into_values().map(|octets| crlf(&octets)).collect();
            let mut found = Vec::new();
            for uid in uids(&messages) {
                found.push(place.read(&messages, uid).await.unwrap());
            }
            expected.sort();
            found.sort();
            assert_eq!(found, expected);
        });
    }

    #[test]
    fn any_ranges_are_those_of_the_whole(
        pieces in prop::collection::vec(prop_oneof![
            "[a-z]{0,5}".prop_map(String::into_bytes), Just(b"\n".to_vec()), Just(b"\r\n".to_vec()), Just(b"\r".to_vec()),
            Just(vec![0]), Just(vec![b'x'; 32_767]), Just(vec![b'\n'; 9_000]), Just(b"0123456\n".repeat(2_000)),
        ], 0..12),
        name in prop_oneof![Just("1.J1R00T0.h,S={},W={}"), Just("foreign")],
        cuts in prop::collection::vec((any::<u32>(), 0u64..100_000), 1..20),
    ) {
        let octets = pieces.concat();
        let name = name.replace("{}", &octets.len().to_string());
        let is_verbatim = name != "foreign";
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut place = Place::new();
            fs::write(place.path("new").join(&name), &octets).unwrap();
            let messages = place.settled_look().await;
            let expected = if is_verbatim { octets } else { crlf(&octets) };
            let message = &messages.messages[0];
            let body = place.mailbox().body(message).await.unwrap();
            assert_eq!(body.len(), expected.len() as u64);
            assert_eq!(place.read(&messages, 1).await.unwrap(), expected);
            for (from, len) in cuts {
                let from = u64::from(from) % (expected.len() as u64 + 2);
                let read = body.read(from, from + len).await.unwrap();
                let rest = &expected[(from as usize).min(expected.len())..];
                assert!(rest.starts_with(&read) && read.len() <= crate::BODY_READ_MAX.min(len as usize));
                assert!(!read.is_empty() || len == 0 || rest.is_empty());
            }
            let header = place.mailbox().headers(vec![message.clone()]).await.unwrap().remove(0).unwrap();
            let end = expected.windows(4).position(|four| four == b"\r\n\r\n").map_or(expected.len(), |at| at + 4);
            let end = if expected.starts_with(b"\r\n") { 2 } else { end };
            assert_eq!(header, expected[..end.min(crate::HEADER_BYTES_MAX)]);
        });
    }
}
