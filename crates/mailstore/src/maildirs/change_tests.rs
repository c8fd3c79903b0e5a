//! Flags and expunges by clients, in Maildirs that other programs change as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime};

use posthaste_fsops::{Choice, Cut, Faults, Machine};
use posthaste_maildir::tree::key_of_name;
use posthaste_maildir::{Maildir, Subdir};

use super::locks::lock;
use super::mailbox::MaildirMailbox;
use super::names_out::{has_work, write_names};
use super::state::Messages;
use super::tests::{Place, check_counters, open_mailbox, uids};
use crate::error::MailstoreError;
use crate::flags::{FlagUpdate, FlagUpdateMode, MessageFlags};
use crate::row::{ModSeq, Uid};
use crate::snapshot::ChangeTarget;
use crate::store::StoredFlags;

const SEEN: u64 = MessageFlags::SEEN.0;
const FLAGGED: u64 = MessageFlags::FLAGGED.0;

fn update(mode: FlagUpdateMode, flags: MessageFlags, keywords: &[&str]) -> FlagUpdate {
    FlagUpdate { mode, flags, keywords: keywords.iter().map(ToString::to_string).collect() }
}

fn add(flags: MessageFlags) -> FlagUpdate {
    update(FlagUpdateMode::Add, flags, &[])
}

fn flags(messages: &Arc<Messages>) -> Vec<u64> {
    messages.messages.iter().map(|message| message.flags.0).collect()
}

async fn store(mailbox: &MaildirMailbox, uid: u32, update: FlagUpdate) -> StoredFlags {
    mailbox.store(vec![Uid::new(uid).unwrap()], update, None).await.unwrap()
}

async fn expunge(mailbox: &MaildirMailbox, uid: u32) {
    store(mailbox, uid, add(MessageFlags::DELETED)).await;
    mailbox.expunge(None).await.unwrap();
}

/// Stops writing flags into file names.
fn hold_names(mailbox: &MaildirMailbox) {
    while mailbox.core().is_writing_names.swap(true, Ordering::AcqRel) {
        std::thread::yield_now();
    }
}

/// All names show the flags.
pub(super) fn names_written(mailbox: &MaildirMailbox) {
    let core = mailbox.core();
    loop {
        let _one = lock(&core.changing);
        write_names(core, &core.reader().unwrap());
        if !core.is_writing_names.load(Ordering::Acquire) && !has_work(core) {
            return;
        }
    }
}

/// Names of files in `new/` and `cur/`.
fn names(place: &Place) -> BTreeSet<String> {
    let each = ["new", "cur"].into_iter().flat_map(|subdir| {
        fs::read_dir(place.path(subdir))
            .unwrap()
            .map(move |entry| format!("{subdir}/{}", entry.unwrap().file_name().to_str().unwrap()))
    });
    each.collect()
}

#[tokio::test]
async fn flags_reach_the_names_of_files_and_stay() {
    let mut place = Place::new();
    for name in ["new/1.a", "cur/2.b;2,XS", "new/3.c"] {
        fs::write(place.path(name), name).unwrap();
    }
    place.settled_look().await;
    let mailbox = place.mailbox().clone();
    store(&mailbox, 1, add(MessageFlags::SEEN)).await;
    store(&mailbox, 2, update(FlagUpdateMode::Replace, MessageFlags::FLAGGED.with(MessageFlags::DRAFT), &[])).await;
    names_written(&mailbox);
    let expected = ["cur/1.a:2,S", "cur/2.b;2,DFX", "new/3.c"];
    assert_eq!(names(&place), expected.map(String::from).into());
    store(&mailbox, 2, update(FlagUpdateMode::Remove, MessageFlags::DRAFT, &["none"])).await;
    assert_eq!(flags(&place.look().await), [SEEN, FLAGGED, 0]);
    names_written(&mailbox);
    drop(mailbox);
    for _ in 0..2 {
        place.reopen();
        let messages = place.settled_look().await;
        assert_eq!((uids(&messages), flags(&messages)), (vec![1, 2, 3], vec![SEEN, FLAGGED, 0]));
        let expected = ["cur/1.a:2,S", "cur/2.b;2,FX", "new/3.c"];
        assert_eq!(names(&place), expected.map(String::from).into());
    }
}

/// Where names may reach the disk in any order, a rename is a link, a sync and an unlink.
#[tokio::test]
async fn a_file_has_one_name_after_a_kill_between_two() {
    for expunges in [false, true] {
        let mut place = Place::new();
        fs::write(place.path("new/1.a"), "x").unwrap();
        place.settled_look().await;
        let mailbox = place.mailbox().clone();
        hold_names(&mailbox);
        store(&mailbox, 1, add(MessageFlags::SEEN)).await;
        if expunges {
            expunge(&mailbox, 1).await;
        }
        drop(mailbox);
        fs::hard_link(place.path("new/1.a"), place.path("cur/1.a:2,S")).unwrap();
        place.reopen();
        let expected = if expunges { vec![] } else { vec![1] };
        // Without a quiet listing it may be a rename by another program.
        assert_eq!(uids(&place.look().await), expected);
        for _ in 0..2 {
            assert_eq!(uids(&place.settled_look().await), expected);
            names_written(place.mailbox());
        }
        assert_eq!(names(&place), expected.iter().map(|_| "cur/1.a:2,S".to_owned()).collect());
    }
}

#[tokio::test]
async fn keywords_have_letters_and_then_only_bits() {
    let mut place = Place::new();
    fs::write(place.path("cur/1.a:2,"), "x").unwrap();
    place.settled_look().await;
    let mailbox = place.mailbox().clone();
    store(&mailbox, 1, update(FlagUpdateMode::Add, MessageFlags::NONE, &["$Junk", "$Forwarded", "other"])).await;
    names_written(&mailbox);
    assert_eq!(names(&place), ["cur/1.a:2,Pab".to_owned()].into());
    assert_eq!(fs::read_to_string(place.path("dovecot-keywords")).unwrap(), "0 $Junk\n1 other\n");
    let many: Vec<String> = (0..53).map(|number| format!("k{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    store(&mailbox, 1, update(FlagUpdateMode::Add, MessageFlags::NONE, &many)).await;
    let one_more = update(FlagUpdateMode::Add, MessageFlags::SEEN, &["k53"]);
    let refused = mailbox.store(vec![Uid::new(1).unwrap()], one_more, None).await;
    assert_eq!(refused, Err(MailstoreError::Limit));
    let before = place.look().await;
    assert_eq!(before.keywords.names(before.messages[0].flags).count(), 56);
    names_written(&mailbox);
    drop(mailbox);
    place.reopen();
    assert_eq!(flags(&place.settled_look().await), flags(&before));
}

#[tokio::test]
async fn a_refused_change_uses_up_no_keywords() {
    let mut place = Place::new();
    fs::write(place.path("cur/1.a:2,"), "x").unwrap();
    place.settled_look().await;
    let mailbox = place.mailbox().clone();
    let names = |count: usize| -> Vec<String> { (0..count).map(|number| format!("k{number}")).collect() };
    let change = async |names: &[String]| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let update = update(FlagUpdateMode::Add, MessageFlags::NONE, &names);
        mailbox.store(vec![Uid::new(1).unwrap()], update, None).await
    };
    assert_eq!(change(&names(56)).await, Err(MailstoreError::Limit));
    assert!(!place.path("dovecot-keywords").exists(), "no letter is taken either");
    assert!(change(&["other".to_owned(), "OTHER".to_owned()]).await.is_ok());
    assert!(change(&names(54)).await.is_ok());
    assert_eq!(change(&names(55)).await, Err(MailstoreError::Limit), "all bits are taken");
}

/// Decision 46. A listing of a directory that hangs holds the same lock.
#[tokio::test]
async fn a_change_is_withdrawn_if_the_directory_hangs() {
    let mut place = Place::new();
    for name in ["cur/1.a:2,", "cur/2.b:2,"] {
        fs::write(place.path(name), name).unwrap();
    }
    place.settled_look().await;
    store(place.mailbox(), 1, add(MessageFlags::DELETED)).await;
    names_written(place.mailbox());
    let core = Arc::clone(place.mailbox().core());
    let ((begun, has_begun), (hangs, ended)) = (channel(), channel::<()>());
    let hung = std::thread::spawn(move || {
        let _one = lock(&core.changing);
        begun.send(()).unwrap();
        let _ = ended.recv();
    });
    has_begun.recv().unwrap();
    tokio::time::pause();
    let mailbox = place.mailbox().clone();
    let expunging = tokio::spawn(async move { mailbox.expunge(None).await });
    // It looks before it waits, so that its time may begin later than this.
    while !expunging.is_finished() {
        tokio::time::advance(Duration::from_secs(300)).await;
    }
    assert!(matches!(expunging.await.unwrap(), Err(MailstoreError::Unavailable(_))));
    tokio::time::resume();
    drop(hangs);
    hung.join().unwrap();
    assert_eq!(uids(&place.settled_look().await), [1, 2]);
    place.mailbox().expunge(None).await.unwrap();
    assert_eq!(uids(&place.settled_look().await), [2]);
}

/// Scenario 33: two changes by another program while the name is behind, with a restart between them.
#[tokio::test]
async fn flags_of_two_programs_are_merged() {
    let mut place = Place::new();
    fs::write(place.path("cur/1.a:2,"), "x").unwrap();
    place.settled_look().await;
    hold_names(place.mailbox());
    store(place.mailbox(), 1, add(MessageFlags::FLAGGED)).await;
    fs::rename(place.path("cur/1.a:2,"), place.path("cur/1.a:2,RS")).unwrap();
    assert_eq!(flags(&place.settled_look().await), [SEEN | FLAGGED | MessageFlags::ANSWERED.0]);
    place.mailbox = None;
    fs::rename(place.path("cur/1.a:2,RS"), place.path("cur/1.a:2,R")).unwrap();
    place.reopen();
    // The base is what the other program had left then: it has taken \Seen away since.
    assert_eq!(flags(&place.settled_look().await), [FLAGGED | MessageFlags::ANSWERED.0]);
    assert_eq!(names(&place), ["cur/1.a:2,FR".to_owned()].into());
}

#[tokio::test]
async fn a_change_after_the_clients_modseq_is_told() {
    let mut place = Place::new();
    for name in ["cur/1.a:2,", "cur/2.b:2,"] {
        fs::write(place.path(name), name).unwrap();
    }
    let messages = place.settled_look().await;
    let since = Some(ModSeq(messages.highest_modseq));
    let all: Vec<Uid> = [1, 2, 3].into_iter().filter_map(Uid::new).collect();
    store(place.mailbox(), 2, add(MessageFlags::FLAGGED)).await;
    let stored = place.mailbox().store(all.clone(), add(MessageFlags::SEEN), since).await.unwrap();
    assert_eq!(stored, StoredFlags { modified: vec![all[1]], gone: true });
    let now = place.look().await;
    assert_eq!(flags(&now), [SEEN, FLAGGED]);
    assert!(now.messages.iter().all(|message| message.modseq > messages.highest_modseq));
}

/// Decision 13: one STORE is one batch. Messages that were changed meanwhile are told, and the others are changed.
#[tokio::test]
async fn all_that_one_store_changes_has_one_modseq() {
    let mut place = Place::new();
    for number in 0..300 {
        fs::write(place.path(&format!("cur/{number:03}.a:2,")), "x").unwrap();
    }
    let since = Some(ModSeq(place.settled_look().await.highest_modseq));
    store(place.mailbox(), 7, add(MessageFlags::FLAGGED)).await;
    let all: Vec<Uid> = (1..=300).filter_map(Uid::new).collect();
    let stored = place.mailbox().store(all.clone(), add(MessageFlags::SEEN), since).await.unwrap();
    assert_eq!(stored, StoredFlags { modified: vec![all[6]], gone: false });
    let now = place.look().await;
    let modseqs = |is_other: bool| -> BTreeSet<u64> {
        let messages = now.messages.iter().filter(|message| (message.uid == 7) == is_other);
        messages.map(|message| message.modseq).collect()
    };
    let (changed, other) = (modseqs(false), modseqs(true));
    assert_eq!((changed.len(), changed.first() > other.first()), (1, true));
    assert_eq!(flags(&now).iter().filter(|flags| **flags == SEEN).count(), 299);
}

#[tokio::test]
async fn an_expunged_message_is_read_by_who_was_not_told() {
    let mut place = Place::new();
    for name in ["new/1.a", "cur/2.b:2,T"] {
        fs::write(place.path(name), name).unwrap();
    }
    let before = place.settled_look().await;
    let mailbox = place.mailbox().clone();
    mailbox.expunge(Some(vec![crate::row::NumberRange { first: 1, last: 1 }])).await.unwrap();
    assert_eq!(uids(&place.look().await), [1, 2], "it is not \\Deleted");
    mailbox.expunge(None).await.unwrap();
    mailbox.remove(vec![Uid::new(1).unwrap()]).await.unwrap();
    names_written(&mailbox);
    assert_eq!(names(&place), BTreeSet::new());
    for (uid, text) in [(1, "new/1.a"), (2, "cur/2.b:2,T")] {
        assert_eq!(place.read(&before, uid).await.unwrap(), text.as_bytes());
    }
    assert_eq!(uids(&place.settled_look().await), Vec::<u32>::new());
    // The name comes back by another program's hand: that is a message of its own.
    fs::write(place.path("new/1.a"), "new/1.a").unwrap();
    assert_eq!(uids(&place.settled_look().await), [3]);
}

/// Scenario 9: the entry is durable, and the file stays for the next opening.
#[tokio::test]
async fn an_expunge_is_carried_out_after_a_restart() {
    let mut place = Place::new();
    for name in ["cur/1.a:2,", "cur/2.b:2,", "cur/3.c:2,"] {
        fs::write(place.path(name), name).unwrap();
    }
    place.settled_look().await;
    hold_names(place.mailbox());
    for uid in [1, 2] {
        expunge(place.mailbox(), uid).await;
    }
    assert_eq!(uids(&place.settled_look().await), [3]);
    place.mailbox = None;
    // Another program puts another message under one of the names.
    fs::write(place.path("cur/2.b:2,"), "another length").unwrap();
    place.reopen();
    assert_eq!(uids(&place.settled_look().await), [3, 4]);
    assert_eq!(names(&place), ["cur/2.b:2,", "cur/3.c:2,"].map(String::from).into());
    place.reopen();
    assert_eq!(uids(&place.settled_look().await), [3, 4]);
}

/// The flags last reported to a session. The table keeps changes that may not be on the disk, and other programs see
/// them.
#[tokio::test]
async fn names_follow_after_a_failed_fsync() {
    let (machine, data) = (Machine::new().unwrap(), tempfile::tempdir().unwrap());
    let mail = machine.path().join("mail");
    Maildir::open_or_create(mail.join("Maildir")).unwrap();
    let cur = mail.join("Maildir/cur");
    for key in ["1.a", "2.b"] {
        fs::write(cur.join(format!("{key}:2,")), "x").unwrap();
    }
    let mailbox = open_mailbox(&mail, data.path());
    mailbox.look_patiently().await.unwrap();
    hold_names(&mailbox);
    store(&mailbox, 1, add(MessageFlags::SEEN)).await;
    mailbox.core().is_writing_names.store(false, Ordering::Release);
    let device = posthaste_fsops::declared(fs::File::open(&cur).unwrap()).unwrap().device;
    machine.set_faults(Faults { fail_syncs_on: Some(device), ..Faults::default() });
    names_written(&mailbox);
    assert!(cur.join("1.a:2,S").exists());
    machine.set_faults(Faults::default());
    store(&mailbox, 1, add(MessageFlags::FLAGGED)).await;
    expunge(&mailbox, 2).await;
    names_written(&mailbox);
    let names = || fs::read_dir(&cur).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names(), ["1.a:2,FS"]);
    settle(&mail, 1);
    assert_eq!(flags(&mailbox.look_patiently().await.unwrap()), [SEEN | FLAGGED]);
    mailbox.core().shared.ledger.commit().unwrap();
    let stored = mailbox.core().shared.ledger.mailbox(mailbox.core().id).unwrap().unwrap();
    assert!(stored.messages[&1].state.flags & crate::table::flag_bits::BEHIND != 0 && stored.leaving.contains_key(&2));
    drop(mailbox);
    // The disk has none of it.
    fs::rename(cur.join("1.a:2,FS"), cur.join("1.a:2,")).unwrap();
    fs::write(cur.join("2.b:2,"), "x").unwrap();
    settle(&mail, 2);
    let mailbox = open_mailbox(&mail, data.path());
    assert_eq!(flags(&mailbox.look_patiently().await.unwrap()), [SEEN | FLAGGED]);
    names_written(&mailbox);
    assert_eq!(names(), ["1.a:2,FS"]);
}

type Told = BTreeMap<String, u64>;

fn told(messages: &Messages) -> Told {
    let each = messages.messages.iter();
    each.map(|message| (key_of_name(&message.file.name).to_owned(), message.flags.0)).collect()
}

fn settle(mail: &Path, clock: u64) {
    for subdir in ["new", "cur"] {
        let dir = fs::File::open(mail.join("Maildir").join(subdir)).unwrap();
        dir.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + clock)).unwrap();
    }
}

/// Scenarios 5 and 10: the power is cut at each call, and each OK holds; a change on its way may hold.
#[tokio::test]
async fn flags_and_expunges_stay_after_a_cut_at_any_call() {
    let machine = Machine::new().unwrap();
    let mail = machine.path().join("mail");
    let maildir = Maildir::open_or_create(mail.join("Maildir")).unwrap();
    for key in ["1.a", "2.b", "3.c"] {
        maildir.write_tmp(key, &[std::io::IoSlice::new(b"x\n")]).unwrap();
        maildir.publish(key).unwrap();
        maildir.sync_message(Subdir::New, key).unwrap();
    }
    for dir in [machine.path().to_owned(), mail.clone(), mail.join("Maildir")] {
        posthaste_fsops::fsync(fs::File::open(dir).unwrap()).unwrap();
    }
    let mailbox = open_mailbox(&mail, machine.path());
    let mut steps: Vec<Told> = Vec::new();
    for step in 0..=5u64 {
        match step {
            1 => drop(store(&mailbox, 1, add(MessageFlags::SEEN)).await),
            2 => drop(store(&mailbox, 1, add(MessageFlags::FLAGGED)).await),
            // Names follow, and another program has its way with them.
            3 => {
                names_written(&mailbox);
                let cur = mail.join("Maildir/cur");
                posthaste_fsops::rename(cur.join("1.a:2,FS"), cur.join("1.a:2,FRS")).unwrap();
                posthaste_fsops::fsync(fs::File::open(&cur).unwrap()).unwrap();
            }
            4 => drop(store(&mailbox, 1, update(FlagUpdateMode::Remove, MessageFlags::SEEN, &[])).await),
            5 => {
                expunge(&mailbox, 2).await;
                names_written(&mailbox);
            }
            _ => {}
        }
        settle(&mail, step);
        steps.push(told(&mailbox.look_patiently().await.unwrap()));
        machine.acknowledge(step);
    }
    assert_eq!(steps[5], [("1.a".to_owned(), FLAGGED | MessageFlags::ANSWERED.0), ("3.c".to_owned(), 0)].into());
    names_written(&mailbox);
    mailbox.core().shared.ledger.commit().unwrap();
    drop(mailbox);
    let recording = machine.recording();
    for position in 0..=recording.events.len() {
        let Some(last) = recording.acknowledged_before(position).last() else { continue };
        let choice = Choice::Seed(position as u64 * 7);
        let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
        let mail = machine.path().join("mail");
        settle(&mail, 50);
        let mailbox = open_mailbox(&mail, machine.path());
        for look in 0..2 {
            let now = told(&mailbox.look_patiently().await.unwrap());
            let may_be: Vec<&Told> = steps[last as usize..].iter().take(2).collect();
            // \Deleted is a change of its own.
            let mut deleted = steps[last as usize].clone();
            deleted.entry("2.b".to_owned()).and_modify(|flags| *flags |= MessageFlags::DELETED.0);
            assert!(may_be.contains(&&now) || now == deleted, "{position}, look {look}: {now:?} after {may_be:?}");
            names_written(&mailbox);
            settle(&mail, 60 + look);
        }
        check_counters(&mailbox.core().shared.ledger, &mail, machine.path());
    }
}
