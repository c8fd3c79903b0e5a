//! Journaled mode against real directories: what a crash leaves is mended, and every message is there exactly once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use posthaste_journal::Journal;
use tokio::runtime::Runtime;

use crate::record::{Delivered, KIND_DELIVERED, KIND_DISTRUST, KIND_MESSAGE, Stored};
use crate::session::SessionTag;
use crate::{
    Body, DeliveryError, Journaled, JournaledConfig, LineEnds, Message, Owners, Ownership, ReplayReport, Target,
};

pub(super) struct Place {
    dir: tempfile::TempDir,
    pub(super) runtime: Runtime,
}

impl Place {
    pub(super) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Place { dir: tempfile::tempdir().expect("a directory"), runtime }
    }

    pub(super) fn config(&self) -> JournaledConfig {
        let journal = posthaste_journal::Config { segment_bytes: 1 << 20, ..posthaste_journal::Config::default() };
        JournaledConfig {
            journal,
            host: "mx.example".into(),
            ..JournaledConfig::new(self.dir.path().join("journal"), self.mail())
        }
    }

    pub(super) fn mail(&self) -> PathBuf {
        self.dir.path().join("mail")
    }

    pub(super) fn open(&self) -> (Journaled, ReplayReport) {
        Journaled::open(self.config()).expect("opens")
    }

    pub(super) fn deliver(
        &self,
        journaled: &Journaled,
        message: Message,
    ) -> Result<Vec<crate::MessageId>, DeliveryError> {
        self.runtime.block_on(journaled.deliver_message(message)).map(|kept| kept.names().collect())
    }

    /// A journal as a crash leaves it: the messages durable, some of them noted as visible.
    pub(super) fn crashed_with(
        &self,
        messages: &[Message],
        visible: impl FnOnce(&[u64]) -> Option<Delivered>,
    ) -> Vec<u64> {
        let (journal, _) = Journal::open(&self.config().journal_dir, self.config().journal).expect("opens");
        let append = |message: &Message| {
            let numbers = (0..message.targets.len() as u16).collect();
            let stored =
                Stored { secs: 1_700_000_000, nonce: 7, host: "mx.example".into(), message: message.clone(), numbers };
            journal.append(KIND_MESSAGE, stored.encode()).wait().expect("durable")
        };
        let ids: Vec<u64> = messages.iter().map(append).collect();
        if let Some(note) = visible(&ids) {
            journal.append_note(KIND_DELIVERED, vec![note.encode()]);
        }
        ids
    }

    /// The mailboxes that each record of the journal names, were the power to go now: nothing of the mail is synced then, and
    /// what no record names is lost.
    pub(super) fn promised(&self) -> Vec<Vec<String>> {
        let copy = Place::new();
        std::fs::create_dir_all(copy.config().journal_dir).expect("a directory");
        for entry in std::fs::read_dir(self.config().journal_dir).expect("a journal") {
            let from = entry.expect("an entry").path();
            if from.extension().is_some_and(|extension| extension == "seg") {
                let to = copy.config().journal_dir.join(from.file_name().expect("a name"));
                std::fs::copy(&from, to).expect("copied");
            }
        }
        let (journal, recovery) = Journal::open(&copy.config().journal_dir, copy.config().journal).expect("opens");
        let records = recovery.records.iter().filter(|record| record.kind == KIND_MESSAGE);
        let stored = records.map(|record| Stored::decode(journal.read(record.id).expect("read").1).expect("a message"));
        stored.map(|stored| stored.message.targets.iter().map(|target| target.mailbox.to_string()).collect()).collect()
    }

    pub(super) fn session(&self) -> SessionTag {
        std::fs::create_dir_all(self.mail()).expect("a mail root");
        SessionTag::of(&self.mail()).expect("a tag")
    }
}

pub(super) fn message(mailboxes: &[&str], body: &'static str) -> Message {
    let target = |name: &&str| Target {
        mailbox: format!("{name}/Maildir").into(),
        prefix: Bytes::from(format!("Delivered-To: {name}\r\n")),
    };
    let targets = mailboxes.iter().map(target).collect();
    Message { targets, body: Body::Memory(vec![Bytes::from_static(body.as_bytes())]), line_ends: LineEnds::ToLf }
}

/// Names and contents of a mailbox, `new/` and `cur/` together, sorted.
pub(super) fn mailbox(root: &Path, name: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for sub in ["new", "cur"] {
        let Ok(entries) = std::fs::read_dir(root.join(name).join("Maildir").join(sub)) else { continue };
        for entry in entries {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
            all.push((name, std::fs::read_to_string(&path).expect("readable")));
        }
    }
    all.sort();
    all
}

#[test]
fn a_message_reaches_each_of_its_mailboxes_once() {
    let place = Place::new();
    let (journaled, report) = place.open();
    assert_eq!((report.messages, report.restored), (0, 0));
    let ids = place.deliver(&journaled, message(&["ann", "bob"], "Subject: x\r\n\r\nhello\r\n")).expect("accepted");
    journaled.checkpoint().expect("checkpoint");
    for (name, id) in ["ann", "bob"].iter().zip(&ids) {
        let found = mailbox(&place.mail(), name);
        assert_eq!(found.len(), 1);
        assert!(found[0].0.starts_with(id.as_str()), "{found:?} is not {id}");
        assert_eq!(found[0].1, format!("Delivered-To: {name}\nSubject: x\n\nhello\n"));
    }
    drop(journaled);
    let (_, report) = place.open();
    assert_eq!((report.messages, report.restored), (0, 0), "a clean end leaves nothing to replay");
}

#[test]
fn replay_delivers_what_was_committed_and_nothing_twice() {
    let place = Place::new();
    let messages = [message(&["ann", "bob"], "a\r\n"), message(&["ann"], "bare \n stays\r\n")];
    place.crashed_with(&messages, |_| None);
    let (journaled, report) = place.open();
    assert_eq!((report.messages, report.restored, report.deferred), (2, 3, 0));
    let ann: Vec<String> = mailbox(&place.mail(), "ann").into_iter().map(|(_, text)| text).collect();
    assert_eq!(ann, ["Delivered-To: ann\na\n", "Delivered-To: ann\r\nbare \n stays\r\n"]);
    assert_eq!(mailbox(&place.mail(), "bob").len(), 1);
    drop(journaled);
    let (_, report) = place.open();
    assert_eq!((report.messages, report.restored), (0, 0));
}

#[test]
fn what_was_visible_in_this_life_of_the_page_cache_and_taken_away_does_not_come_back() {
    let place = Place::new();
    let session = place.session();
    place.crashed_with(&[message(&["ann"], "a\r\n"), message(&["ann"], "b\r\n")], |ids| {
        Some(Delivered { session, done: vec![(ids[0], 0)] })
    });
    let (_journaled, report) = place.open();
    assert_eq!(report.restored, 1);
    assert_eq!(mailbox(&place.mail(), "ann")[0].1, "Delivered-To: ann\nb\n");
}

#[test]
fn after_a_power_cut_a_note_is_not_believed_and_a_damaged_file_is_mended_with_its_flags() {
    let place = Place::new();
    let ids = place.crashed_with(&[message(&["ann"], "whole\r\n"), message(&["ann"], "gone\r\n")], |ids| {
        Some(Delivered { session: SessionTag([9; 24]), done: ids.iter().map(|&id| (id, 0)).collect() })
    });
    let cur = place.mail().join("ann/Maildir/cur");
    std::fs::create_dir_all(&cur).expect("a mailbox");
    let name = format!("1700000000.J{:x}R00000007T0.mx.example,S=24,W=26:2,FS", ids[0]);
    std::fs::write(cur.join(&name), "").expect("an empty file, as a cut leaves it");
    let (_journaled, report) = place.open();
    assert_eq!(report.restored, 2);
    let found = mailbox(&place.mail(), "ann");
    assert_eq!(found.len(), 2);
    assert_eq!(found[0], (name, "Delivered-To: ann\nwhole\n".to_owned()));
}

#[test]
fn a_mailbox_that_cannot_be_written_to_waits_alone_and_loses_nothing() {
    let place = Place::new();
    let (journaled, _) = place.open();
    std::fs::create_dir_all(place.mail().join("bad")).expect("a directory");
    std::fs::write(place.mail().join("bad/Maildir"), "in the way").expect("a file");
    place.deliver(&journaled, message(&["ann", "bad"], "a\r\n")).expect("accepted: the journal has it");
    journaled.checkpoint().expect("checkpoint");
    let waiting = journaled.waiting();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].mailboxes, [Arc::from("bad/Maildir")]);
    assert_eq!(mailbox(&place.mail(), "ann").len(), 1);
    // It is kept over a restart as well, and delivered once the way is free.
    drop(journaled);
    let (journaled, report) = place.open();
    assert_eq!((report.messages, report.restored, report.deferred), (1, 0, 1));
    drop(journaled);
    std::fs::remove_file(place.mail().join("bad/Maildir")).expect("cleared");
    let (_journaled, report) = place.open();
    assert_eq!((report.messages, report.restored, report.deferred), (1, 1, 0));
    assert_eq!(mailbox(&place.mail(), "bad")[0].1, "Delivered-To: bad\na\n");
    assert_eq!(mailbox(&place.mail(), "ann").len(), 1);
}

#[test]
fn after_a_failed_sync_what_reads_well_is_written_to_a_new_file_and_what_was_taken_away_stays_away() {
    let place = Place::new();
    let session = place.session();
    let messages = [message(&["ann"], "a\r\n"), message(&["ann"], "b\r\n")];
    let ids =
        place.crashed_with(&messages, |ids| Some(Delivered { session, done: ids.iter().map(|&id| (id, 0)).collect() }));
    let new = place.mail().join("ann/Maildir/new");
    std::fs::create_dir_all(&new).expect("a mailbox");
    let file = new.join(format!("1700000000.J{:x}R00000007T0.mx.example,S=20,W=22", ids[0]));
    std::fs::write(&file, "Delivered-To: ann\na\n").expect("visible");
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).expect("there"));
    // Held open, so that its inode number is not given to the file that replaces it.
    let held = std::fs::File::open(&file).expect("readable");
    let before = inode(&file);
    {
        let (journal, _) = Journal::open(&place.config().journal_dir, place.config().journal).expect("opens");
        journal.append_note(KIND_DISTRUST, vec![Bytes::copy_from_slice(&session.0)]);
    }
    let (_journaled, report) = place.open();
    assert_eq!((report.messages, report.restored), (2, 0));
    assert_eq!(mailbox(&place.mail(), "ann").len(), 1);
    assert_ne!(inode(&file), before, "the old file may exist in the page cache alone");
    drop(held);
}

#[test]
fn a_large_body_goes_through_the_spool_and_leaves_nothing_there() {
    let place = Place::new();
    let (journaled, _) = place.open();
    let line = "0123456789 a line of a large message\r\n";
    let body = place.runtime.block_on(async {
        let mut writer = journaled.spool(8 << 20).expect("space");
        // Cut so that the pieces end within lines and between CR and LF.
        let whole = line.repeat(100_000);
        for piece in whole.as_bytes().chunks(37) {
            writer.write(piece).await.expect("written");
        }
        Body::Spooled(writer.finish().await.expect("synced"))
    });
    let large = Message { body, ..message(&["ann", "bob"], "") };
    place.deliver(&journaled, large).expect("accepted");
    let in_memory = Bytes::from(line.repeat(60_000));
    place
        .deliver(&journaled, Message { body: Body::Memory(vec![in_memory]), ..message(&["eve"], "") })
        .expect("accepted");
    journaled.checkpoint().expect("checkpoint");
    let expected = format!("Delivered-To: ann\n{}", line.replace("\r\n", "\n").repeat(100_000));
    let found = mailbox(&place.mail(), "ann");
    assert!(found[0].1 == expected, "the large message came out otherwise");
    assert!(found[0].0.ends_with(&format!(",S={},W={}", expected.len(), 19 + line.len() * 100_000)), "{}", found[0].0);
    assert_eq!(mailbox(&place.mail(), "eve")[0].1.len(), 18 + 60_000 * (line.len() - 1));
    journaled.checkpoint().expect("checkpoint");
    let left = std::fs::read_dir(place.config().journal_dir.join("spool")).expect("a spool").count();
    assert_eq!(left, 0, "spooled bodies whose messages are durable");
}

#[test]
fn a_large_body_waits_for_the_disk_on_a_thread_that_may_block() {
    let place = Place::new();
    let (journaled, _) = place.open();
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().expect("a runtime");
    let (release, held) = std::sync::mpsc::channel::<()>();
    drop(runtime.spawn_blocking(move || held.recv()));
    let large = Message { body: Body::Memory(vec![Bytes::from("x".repeat(2 << 20))]), ..message(&["ann"], "") };
    runtime.block_on(async {
        let executor = journaled.clone();
        let delivery = tokio::spawn(async move { executor.deliver_message(large).await });
        tokio::task::yield_now().await;
        let files = std::fs::read_dir(place.config().journal_dir.join("spool")).expect("a spool").count();
        drop(release);
        delivery.await.expect("no panic").expect("accepted");
        assert_eq!(files, 0, "the runtime's own thread has made the file");
    });
}

#[test]
fn an_abandoned_upload_is_removed() {
    let place = Place::new();
    let (journaled, _) = place.open();
    place.runtime.block_on(async {
        let mut writer = journaled.spool(1 << 20).expect("space");
        writer.write(b"half of some").await.expect("written");
    });
    let spool = place.config().journal_dir.join("spool");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while std::fs::read_dir(&spool).expect("a spool").count() > 0 {
        assert!(std::time::Instant::now() < deadline, "never removed");
        std::thread::yield_now();
    }
}

#[test]
fn paths_out_of_the_mail_root_are_refused() {
    let place = Place::new();
    let (journaled, _) = place.open();
    for path in ["../x", "/etc", "a//b", "", "a/\0b"] {
        let mut message = message(&["ann"], "a\r\n");
        message.targets[0].mailbox = path.into();
        let refused = place.deliver(&journaled, message);
        assert!(matches!(refused, Err(DeliveryError::BadMailbox(_))), "{path:?}: {refused:?}");
    }
}

#[test]
fn a_second_executor_on_the_same_journal_is_refused() {
    let place = Place::new();
    let _first = place.open();
    let second = Journaled::open(place.config());
    let locked = matches!(second, Err(crate::OpenError::Journal(posthaste_journal::OpenError::Locked)));
    assert!(locked, "two executors on one journal");
}

#[test]
fn replay_and_delivery_write_with_the_owner_of_the_moment() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    place.crashed_with(&[message(&["ann", "bob"], "replayed\r\n")], |_| None);
    let mode = Arc::new(std::sync::atomic::AtomicU32::new(0o640));
    let now = mode.clone();
    let of = move |path: &str| match path.starts_with("ann") {
        true => Ownership::with_mode(now.load(std::sync::atomic::Ordering::Relaxed)),
        false => Ownership::default(),
    };
    let config = JournaledConfig { owners: Owners::new(of), ..place.config() };
    let (journaled, report) = Journaled::open(config).expect("opens");
    assert_eq!(report.restored, 2);
    let modes = |name: &str| {
        let bits = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        let dir = place.mail().join(name).join("Maildir/new");
        let files = std::fs::read_dir(&dir).expect("a Maildir").map(|entry| bits(&entry.expect("an entry").path()));
        let mut files: Vec<u32> = files.collect();
        files.sort_unstable();
        (bits(&dir), files)
    };
    assert_eq!((modes("ann"), modes("bob")), ((0o750, vec![0o640]), (0o700, vec![0o600])));
    // For what is written from now on, though the mailbox is open already.
    mode.store(0o644, std::sync::atomic::Ordering::Relaxed);
    place.deliver(&journaled, message(&["ann", "bob"], "delivered\r\n")).expect("kept");
    place.runtime.block_on(journaled.shutdown());
    assert_eq!((modes("ann"), modes("bob")), ((0o750, vec![0o640, 0o644]), (0o700, vec![0o600, 0o600])));
}
