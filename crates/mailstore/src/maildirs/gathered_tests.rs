//! MULTIAPPEND: all messages of a command are stored, or none.

use std::fs;

use posthaste_fsops::{Choice, Cut, Faults, FsEvent, Machine, SyncScope};

use super::*;
use crate::flags::MessageFlags;
use crate::maildirs::tests::check_counters;
use crate::row::MessageSet;
use crate::store::{AppendedMessage, MessageWriter, RowOptions};

fn names(mail: &Path, subdir: &str) -> Vec<String> {
    let entries = fs::read_dir(mail.join(INBOX).join(subdir)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

async fn write_all(world: &World, texts: &[&str]) -> Box<dyn MessageWriter> {
    let mut writer = world.begin(request(MessageFlags::SEEN, &["$Junk"], 5)).await;
    for (at, text) in texts.iter().enumerate() {
        if at > 0 {
            let keyword = format!("k{at}");
            writer.next(request(MessageFlags::NONE, &[&keyword], 5 + at as u64)).await.unwrap();
        }
        for piece in text.as_bytes().chunks(100_000) {
            writer.write(Bytes::copy_from_slice(piece)).await.unwrap();
        }
    }
    writer
}

async fn append_all(world: &World, texts: &[&str]) -> AppendedMessage {
    write_all(world, texts).await.finish().await.unwrap()
}

#[tokio::test]
async fn several_messages_are_stored_in_one_batch() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Maildir::open_or_create(dir.path().join(INBOX)).unwrap();
    let world = open(dir.path(), data.path());
    let (long, free) = ("0123456789abcd\r\n".repeat(30_000), world.memory.available_bytes());
    // A large one is in a file before its mailbox has it, and the last but one cannot be kept with LF.
    let texts = ["Subject: one\r\n\r\n1\r\n", &long, "Subject: bare\r\n\r\na\rb\r\n", "Subject: last\r\n\r\n4"];
    let appended = append_all(&world, &texts).await;
    assert_eq!((appended.uid.get(), appended.count), (1, 4));
    assert_eq!(world.memory.available_bytes(), free);
    let view = world.select().await;
    let rows = view.rows(&MessageSet::all(), RowOptions { sizes: true }).next().await.unwrap();
    assert!(rows.iter().all(|row| row.modseq == rows[0].modseq), "one batch");
    for (at, (row, text)) in rows.iter().zip(texts).enumerate() {
        assert_eq!(read(&*view, row.uid.get()).await.unwrap(), text, "{at}");
        assert_eq!(row.size, Some(text.len() as u64), "{at}");
        assert_eq!(row.internal_date, std::time::UNIX_EPOCH + Duration::from_secs(5 + at as u64));
        let keywords = view.keywords();
        let flags = keywords.names(row.flags).collect::<Vec<_>>().join(" ");
        assert_eq!(flags, if at == 0 { "\\Seen $Junk".to_owned() } else { format!("k{at}") });
    }
    assert_eq!((names(dir.path(), "tmp").len(), names(dir.path(), "new").len()), (0, 0));
    let stored = |at: usize| {
        let name = names(dir.path(), "cur").into_iter().find(|name| name.starts_with(&format!("{}.", 5 + at)));
        fs::read_to_string(dir.path().join(INBOX).join("cur").join(name.unwrap())).unwrap()
    };
    assert_eq!(stored(1), long.replace('\r', ""));
    assert_eq!(stored(2), texts[2]);
}

#[test]
fn a_batch_of_many_files_is_synced_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let machine = Machine::new().unwrap();
    let mail = machine.path().join("mail");
    posthaste_fsops::make_dir(&mail).unwrap();
    runtime.block_on(async {
        Maildir::open_or_create(mail.join(INBOX)).unwrap();
        let world = open(&mail, machine.path());
        let id = world.select().await.id();
        let before = machine.position();
        let mut writer = world.begin(request(MessageFlags::NONE, &[], 5)).await;
        for at in 0..60 {
            if at > 0 {
                writer.next(request(MessageFlags::NONE, &[], 5)).await.unwrap();
            }
            writer.write(Bytes::from_static(b"Subject: x\r\n\r\nx\r\n")).await.unwrap();
        }
        assert_eq!(writer.finish().await.unwrap().count, 60);
        super::super::super::change_tests::names_written(&world.store.loaded.find(id.0).unwrap());
        let recording = machine.recording();
        let events = &recording.events[before..];
        let is_message = |scope: &SyncScope| {
            events
                .iter()
                .any(|event| matches!(event, FsEvent::Create { node, is_dir: false, .. } if *scope == SyncScope::Node(*node)))
        };
        let syncs =
            || events.iter().filter_map(|event| if let FsEvent::Sync(scope) = event { Some(scope) } else { None });
        assert_eq!(syncs().filter(|scope| is_message(scope)).count(), 0, "each file was synced");
        assert_eq!(syncs().filter(|scope| matches!(scope, SyncScope::FileSystem(_))).count(), 1);
    });
}

#[tokio::test]
async fn a_command_that_is_given_up_leaves_nothing() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Maildir::open_or_create(dir.path().join(INBOX)).unwrap();
    let world = open(dir.path(), data.path());
    let free = world.memory.available_bytes();
    let are_there = async |count: usize| {
        let waiting = async {
            while names(dir.path(), "tmp").len() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("not {count} files"));
    };
    // A large one is written at once, with those before it.
    let writer = write_all(&world, &["one\r\n", &"0123456789abcd\r\n".repeat(30_000), "three\r\n"]).await;
    are_there(2).await;
    drop(writer);
    are_there(0).await;
    assert_eq!((world.select().await.exists(), world.memory.available_bytes()), (0, free));
}

#[tokio::test]
async fn messages_of_one_command_share_the_quota() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Maildir::open_or_create(dir.path().join(INBOX)).unwrap();
    let world = open(dir.path(), data.path());
    let default = crate::QuotaLimits { bytes: Some(10), messages: Some(3) };
    world.store.limit(crate::QuotaTable { default, ..Default::default() });
    let sized = |octets| crate::store::AppendRequest { octets, ..request(MessageFlags::NONE, &[], 5) };
    append_all(&world, &["12345"]).await;
    let mut writer = world.begin(sized(3)).await;
    writer.write("abc".into()).await.unwrap();
    assert_eq!(writer.next(sized(3)).await, Err(crate::MailstoreError::OverQuota));
    let mut writer = world.begin(sized(1)).await;
    for _ in 0..2 {
        writer.write("a".into()).await.unwrap();
        let next = writer.next(sized(1)).await;
        if let Err(error) = next {
            assert_eq!(error, crate::MailstoreError::OverQuota);
            break;
        }
    }
    append_all(&world, &["1", "2"]).await;
    assert_eq!(world.select().await.exists(), 3);
}

/// Scenario 12.
#[test]
fn several_messages_are_whole_after_a_cut_at_any_call() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let machine = Machine::new().unwrap();
    let texts = ["one\r\n", "two\r\n", "three\r\n"];
    runtime.block_on(async {
        let mail = machine.path().join("mail");
        Maildir::open_or_create(mail.join(INBOX)).unwrap();
        for dir in ["", "mail", "mail/me", "mail/me/Maildir"] {
            posthaste_fsops::fsync(fs::File::open(machine.path().join(dir)).unwrap()).unwrap();
        }
        let world = open(&mail, machine.path());
        world.select().await;
        settle(&mail, 1);
        machine.acknowledge(0);
        append_all(&world, &texts).await;
        machine.acknowledge(1);
        world.store.ledger().commit().unwrap();
    });
    let recording = machine.recording();
    for position in 0..=recording.events.len() {
        let Some(last) = recording.acknowledged_before(position).last() else { continue };
        let choice = Choice::Seed(position as u64 * 7);
        let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
        let mail = machine.path().join("mail");
        settle(&mail, 50);
        runtime.block_on(async {
            let world = open(&mail, machine.path());
            for look in 0..2 {
                let view = world.select().await;
                let there = view.exists();
                assert!(there == 3 || last == 0 && there == 0, "{position}, look {look}: {there}");
                for (uid, text) in (1..=there).zip(texts) {
                    assert_eq!(read(&*view, uid).await.unwrap(), text, "{position}, look {look}");
                }
                settle(&mail, 60 + look);
            }
            check_counters(world.store.ledger(), &mail, machine.path());
        });
    }
}

/// A failed sync leaves the spool's last batch in doubt: the next opening may find it, and then its messages need
/// their files.
#[test]
fn messages_of_a_batch_in_doubt_keep_their_files() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Which sync is that of the batch depends on threads beside it: often the batch survives no failure.
    let survived = (0..40).map(|_| survivors_of_failed_syncs(&runtime)).find(|survived| *survived > 0);
    assert!(survived.is_some(), "no batch survived a failed sync");
}

/// Fails each sync after the other while two messages are stored, and counts those that the next process has.
fn survivors_of_failed_syncs(runtime: &tokio::runtime::Runtime) -> u32 {
    let texts = ["one\r\n", "two\r\n"];
    let (mut failed, mut survived) = (0, 0);
    for nth in 1.. {
        let machine = Machine::new().unwrap();
        let mail = machine.path().join("mail");
        let is_stored = runtime.block_on(async {
            Maildir::open_or_create(mail.join(INBOX)).unwrap();
            let world = open(&mail, machine.path());
            world.select().await;
            let writer = write_all(&world, &texts).await;
            machine.set_faults(Faults { fail_syncs: vec![machine.counts().0 + nth], ..Faults::default() });
            let stored = writer.finish().await;
            machine.set_faults(Faults::default());
            stored.is_ok()
        });
        if is_stored {
            break;
        }
        failed += 1;
        settle(&mail, nth);
        // Killed, not cut off: what the kernel has is what the next process reads.
        runtime.block_on(async {
            let world = open(&mail, machine.path());
            let view = world.select().await;
            assert!([0, 2].contains(&view.exists()), "sync {nth}: {}", view.exists());
            for (uid, text) in (1..=view.exists()).zip(texts) {
                assert_eq!(read(&*view, uid).await.unwrap(), text, "sync {nth}");
            }
            survived += view.exists();
        });
    }
    assert!(failed > 0, "no sync failed");
    survived
}
