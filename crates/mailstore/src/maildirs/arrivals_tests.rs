//! Mail that intake accepts is in its mailbox at once, with a UID that it keeps.

use std::path::Path;

use bytes::Bytes;
use posthaste_intake::{Config as IntakeConfig, GatheredBody, Intake, IntakeError, MemoryBudget, Receipt, Reservation};
use posthaste_maildir::{Host, Maildir, Subdir, UniqueName};
use posthaste_spool::{Config, FileSpool, Lsn, Released, Spool, StreamId};

use super::super::tests::open_spool;
use super::super::{MaildirLogins, MaildirStore};
use super::*;
use crate::ledger::MailLedger;
use crate::name::MailboxName;
use crate::row::Uid;
use crate::store::{MailboxView, Mailstore, SelectMode};

#[path = "arrival_cuts_tests.rs"]
mod cuts;
#[path = "arrival_folders_tests.rs"]
mod folders;
#[path = "gathered_tests.rs"]
mod gathered;
#[path = "hang_tests.rs"]
mod hangs;
#[path = "arrival_renames_tests.rs"]
mod renames;

const INBOX: &str = "me/Maildir";
const NONCE: u32 = 7;

/// Delivery, as far as others see it: an entry that needs the body, and a file when the test says so.
struct Deliveries(StreamId);

impl Destination for Deliveries {
    fn reserve<'a>(&'a self, _: &'a Mail<'a>, _: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a> {
        reserved.entries.push(Entry { stream: self.0, needs_body: true, payload: Bytes::from_static(b"deliver") });
        Reserving::Done(Ok(()))
    }
}

type Act = Box<dyn FnOnce() + Send>;

struct World {
    spool: Arc<FileSpool>,
    intake: Intake,
    memory: MemoryBudget,
    list: Vec<Arc<dyn Destination>>,
    logins: MaildirLogins,
    store: Arc<MaildirStore>,
    local: StreamId,
    /// Done once, the next time that somebody asks for a file that is to come.
    when_asked: Arc<Mutex<Option<Act>>>,
}

fn open(mail: &Path, data: &Path) -> World {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 64, ..Default::default() };
    let config = Config { ring, keeper: false, free_bytes_min: 0, free_inodes_min: 0, ..Config::default() };
    let spool = open_spool(data, &config);
    let local = spool.stream("local:").unwrap();
    let shown = spool.replay(local, &mut |_| {}).unwrap();
    spool.attach(local, shown, Arc::new(Deaf)).unwrap();
    let ledger = Arc::new(MailLedger::open(spool.clone(), &[], &data.join("mailstore"), "mx", NONCE).unwrap().0);
    // As a server does before mail comes.
    let _ = ledger.check_open();
    let pending = Arc::clone(&spool);
    let when_asked = Arc::<Mutex<Option<Act>>>::default();
    let asked = Arc::clone(&when_asked);
    let is_pending = Box::new(move |lsn| {
        let act = lock(&asked).take();
        act.into_iter().for_each(|act| act());
        pending.needs_body(local, Lsn::new(lsn))
    });
    let store = Arc::new(MaildirStore::open(mail, ledger, is_pending).unwrap());
    let find = |_: &str| MailboxPath::parse(INBOX).ok();
    let logins = MaildirLogins::new(Arc::clone(&store), Box::new(find));
    let intake = Intake::new(spool.clone(), IntakeConfig::default());
    let list: Vec<Arc<dyn Destination>> =
        vec![Arc::new(MailArrivals::new(Arc::clone(&store))), Arc::new(Deliveries(local))];
    let memory = MemoryBudget::new(0);
    World { spool, intake, memory, list, logins, store, local, when_asked }
}

struct Deaf;

impl posthaste_spool::Consumer for Deaf {
    fn published(&self, _: posthaste_spool::Published) {}

    fn advance_wanted(&self, _: Lsn) {}
}

fn mail(to: &str) -> Mail<'static> {
    let mut recipient = MailRecipient::to(MailPlace::Maildir(to.into()));
    recipient.prefix = Bytes::from_static(b"Delivered-To: me\r\n");
    Mail { recipients: vec![recipient], ..Mail::default() }
}

fn body(text: &str) -> GatheredBody {
    GatheredBody::Memory(vec![Bytes::from(format!("Subject: {text}\r\n\r\n{text}\r\n"))])
}

fn wire(text: &str) -> String {
    format!("Delivered-To: me\r\nSubject: {text}\r\n\r\n{text}\r\n")
}

impl World {
    async fn accept(&self, text: &str) -> Receipt {
        self.intake.accept(&self.list, &mail(INBOX), body(text)).await.unwrap()
    }

    async fn select(&self) -> Box<dyn MailboxView> {
        self.select_named("INBOX").await
    }

    async fn select_named(&self, name: &str) -> Box<dyn MailboxView> {
        let account = self.logins.account("me").await.unwrap();
        let id = account.find(&MailboxName::parse(name).unwrap()).await.unwrap().unwrap();
        account.select(id, SelectMode::Writable).await.unwrap()
    }

    /// Makes the file of a message in INBOX, as delivery does.
    fn deliver(&self, mail: &Path, receipt: &Receipt, text: &str) {
        self.deliver_to(&mail.join(INBOX), receipt, text);
    }

    fn deliver_to(&self, path: &Path, receipt: &Receipt, text: &str) {
        let maildir = Maildir::open_or_create(path).unwrap();
        let wire = wire(text);
        let stored = wire.replace("\r\n", "\n");
        let unique = format!("J{:x}R{NONCE:08x}T0", receipt.lsn.get());
        let (disk, sent) = (stored.len() as u64, wire.len() as u64);
        let name = UniqueName::new(1_700_000_000, &unique, &Host::new("mx"), disk, sent);
        // A cut may have left it.
        let _ = std::fs::remove_file(path.join("tmp").join(name.as_str()));
        maildir.write_tmp(name.as_str(), &[std::io::IoSlice::new(stored.as_bytes())]).unwrap();
        let tmp = std::fs::File::open(path.join("tmp").join(name.as_str())).unwrap();
        posthaste_fsops::fsync(tmp).unwrap();
        maildir.publish(name.as_str()).unwrap();
        maildir.sync_message(Subdir::New, name.as_str()).unwrap();
    }

    /// Lets the spool forget the bodies.
    fn release(&self, receipts: &[&Receipt]) {
        let last = receipts.iter().map(|receipt| receipt.lsn).max().unwrap();
        self.store.ledger().commit().unwrap();
        let also = receipts.iter().map(|receipt| receipt.lsn).collect();
        self.spool.advance(self.local, last, None, Released { below: Lsn::ZERO, also });
        self.spool.checkpoint().unwrap();
    }
}

async fn read(view: &dyn MailboxView, uid: u32) -> Result<String, crate::MailstoreError> {
    let body = view.body(Uid::new(uid).unwrap()).await?;
    let mut octets = Vec::new();
    while (octets.len() as u64) < body.len() {
        octets.extend(body.read(octets.len() as u64, u64::MAX).await?);
    }
    Ok(String::from_utf8(octets).unwrap())
}

/// Lets both directories look as if their last change were long ago.
fn settle(mail: &Path, clock: u64) {
    for subdir in ["new", "cur"] {
        let at = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + clock);
        std::fs::File::open(mail.join(INBOX).join(subdir)).unwrap().set_modified(at).unwrap();
    }
}

#[tokio::test]
async fn accepted_mail_is_read_before_and_after_its_file_is_made() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = open(dir.path(), data.path());
    let first = world.accept("one").await;
    let mut view = world.select().await;
    assert_eq!((view.exists(), view.last_uid().unwrap().get(), view.recent()), (1, 1, 1));
    assert_eq!(read(&*view, 1).await.unwrap(), wire("one"));
    assert_eq!(view.header(Uid::new(1).unwrap()).await.unwrap(), "Delivered-To: me\r\nSubject: one\r\n\r\n");
    // A session hears of the next without looking at the directory.
    let second = world.accept("two").await;
    tokio::time::timeout(Duration::from_secs(60), view.changed()).await.unwrap();
    assert_eq!(view.advance(true).await.unwrap().exists, Some(2));
    // A message that is being read when its file takes over.
    let reading = view.body(Uid::new(1).unwrap()).await.unwrap();
    world.deliver(dir.path(), &first, "one");
    settle(dir.path(), 1);
    // The other's file is missing, and it is not gone.
    assert_eq!(view.advance(true).await.unwrap().exists, None);
    world.deliver(dir.path(), &second, "two");
    settle(dir.path(), 2);
    world.release(&[&first, &second]);
    assert!(view.advance(true).await.unwrap().is_empty());
    assert_eq!(reading.read(18, 31).await.unwrap(), wire("one")[18..31]);
    assert_eq!([read(&*view, 1).await.unwrap(), read(&*view, 2).await.unwrap()], [wire("one"), wire("two")]);
    // Its owner removes one: now it is gone.
    let file = std::fs::read_dir(dir.path().join(INBOX).join("new")).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(file).unwrap();
    settle(dir.path(), 3);
    assert_eq!(view.advance(true).await.unwrap().expunged.len(), 1);
}

#[tokio::test]
async fn a_known_mailbox_does_not_wait_for_those_that_are_made() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut world = open(dir.path(), data.path());
    world.accept("one").await;
    // After a restart, on whose other mounts nothing is made.
    let arrivals = MailArrivals::new(Arc::clone(&world.store));
    let _held = Arc::clone(&arrivals.0.makers).acquire_many_owned(MAKERS as u32).await.unwrap();
    world.list[0] = Arc::new(arrivals);
    assert_eq!(world.accept("two").await.entries.len(), 2);
    assert_eq!(world.select().await.last_uid().unwrap().get(), 2);
}

#[tokio::test]
async fn a_file_that_is_made_during_a_look_is_not_missing() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Maildir::open_or_create(dir.path().join(INBOX)).unwrap();
    let world = Arc::new(open(dir.path(), data.path()));
    let receipt = world.accept("one").await;
    let mut view = world.select().await;
    assert!(view.advance(true).await.unwrap().is_empty());
    let (delivery, mail) = (Arc::clone(&world), dir.path().to_owned());
    *lock(&world.when_asked) = Some(Box::new(move || {
        delivery.deliver(&mail, &receipt, "one");
        delivery.release(&[&receipt]);
    }));
    settle(dir.path(), 1);
    assert!(view.advance(true).await.unwrap().is_empty());
    assert!(lock(&world.when_asked).is_none(), "the look has asked");
    settle(dir.path(), 2);
    assert!(view.advance(true).await.unwrap().is_empty());
    assert_eq!((view.exists(), read(&*view, 1).await.unwrap()), (1, wire("one")));
}

/// Scenario 26 of the design: after a restart the listing comes before delivery makes its files.
#[tokio::test]
async fn awaited_mail_is_there_after_a_restart() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Maildir::open_or_create(dir.path().join(INBOX)).unwrap();
    let world = open(dir.path(), data.path());
    let receipt = world.accept("one").await;
    let validity = world.select().await.uid_validity();
    drop(world);
    settle(dir.path(), 1);
    let world = open(dir.path(), data.path());
    let mut view = world.select().await;
    assert_eq!((view.exists(), view.uid_validity()), (1, validity));
    assert_eq!(read(&*view, 1).await.unwrap(), wire("one"));
    world.deliver(dir.path(), &receipt, "one");
    settle(dir.path(), 2);
    world.release(&[&receipt]);
    assert!(view.advance(true).await.unwrap().is_empty());
    assert_eq!(read(&*view, 1).await.unwrap(), wire("one"));
    assert_eq!(world.accept("two").await.entries.len(), 2);
    assert_eq!((view.advance(true).await.unwrap().exists, view.last_uid().unwrap().get()), (Some(2), 2));
}

/// Scenarios 1 and 2: many sessions at once, some of which give up.
#[tokio::test]
async fn uids_ascend_with_the_batches_whoever_gives_up() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = Arc::new(open(dir.path(), data.path()));
    world.accept("first").await;
    let sessions = (0..8).map(|session| {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            let mut accepted = Vec::new();
            for number in 0..20 {
                let text = format!("{session} {number}");
                let give_up = async {
                    if number % 3 != 0 {
                        std::future::pending::<()>().await;
                    }
                };
                match world.intake.accept_unless(&world.list, &mail(INBOX), body(&text), give_up).await {
                    Ok(receipt) => accepted.push((receipt.lsn.get(), text)),
                    Err(IntakeError::Cancelled) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            accepted
        })
    });
    let mut accepted = vec![(0, "first".to_owned())];
    for session in sessions.collect::<Vec<_>>() {
        accepted.extend(session.await.unwrap());
    }
    accepted.sort();
    let view = world.select().await;
    assert_eq!(view.exists() as usize, accepted.len());
    let mut rows = view.rows(&crate::MessageSet::all(), crate::RowOptions { sizes: true });
    let mut uids = Vec::new();
    loop {
        let step = rows.next().await.unwrap();
        if step.is_empty() {
            break;
        }
        uids.extend(step.iter().map(|row| row.uid.get()));
    }
    assert!(uids.is_sorted_by(|one, next| one < next), "{uids:?}");
    for (uid, (_, text)) in uids.into_iter().zip(accepted) {
        assert_eq!(read(&*view, uid).await.unwrap(), wire(&text));
    }
}

/// Scenario 30: the first mail of a mailbox whose mount hangs is accepted, and so is that of others.
#[tokio::test]
async fn a_mailbox_that_cannot_be_made_holds_up_nobody() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = open(dir.path(), data.path());
    let account = world.store.account(&MailboxPath::parse(INBOX).unwrap());
    let owner = Arc::clone(account.load().unwrap());
    let (go_on, hold) = std::sync::mpsc::channel::<()>();
    let (held, is_held) = std::sync::mpsc::channel();
    let hung = std::thread::spawn(move || {
        let _making = owner.making.lock().unwrap();
        held.send(()).unwrap();
        hold.recv_timeout(Duration::from_secs(60))
    });
    is_held.recv().unwrap();
    let receipt = world.accept("one").await;
    assert_eq!(receipt.entries.len(), 1, "it has no UID yet");
    for _ in 0..3 {
        world.intake.accept(&world.list, &mail("other/Maildir"), body("x")).await.unwrap();
    }
    drop(go_on);
    let ended = hung.join().unwrap();
    assert_eq!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected), "it hung until all were accepted");
    world.deliver(dir.path(), &receipt, "one");
    settle(dir.path(), 1);
    let mut view = world.select().await;
    while view.exists() == 0 {
        view.advance(true).await.unwrap();
    }
    assert_eq!(read(&*view, 1).await.unwrap(), wire("one"));
    // From then on mail has its UID at once.
    while world.accept("more").await.entries.len() < 2 {}
    assert!(view.advance(true).await.unwrap().exists.is_some());
}

#[tokio::test]
async fn mail_is_deferred_while_too_much_waits_for_the_table() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = open(dir.path(), data.path());
    world.accept("one").await;
    world.store.ledger().let_too_much_wait();
    let refused = world.intake.accept(&world.list, &mail(INBOX), body("two")).await;
    assert!(matches!(&refused, Err(IntakeError::NotTaken(why)) if why.code == 452), "{refused:?}");
    world.store.ledger().let_it_be_written();
    assert_eq!(world.accept("two").await.entries.len(), 2);
}

/// UIDs and texts of all messages.
async fn all(view: &dyn MailboxView) -> Vec<(u32, String)> {
    let mut rows = view.rows(&crate::MessageSet::all(), crate::RowOptions { sizes: false });
    let mut all = Vec::new();
    loop {
        let step = rows.next().await.unwrap();
        if step.is_empty() {
            return all;
        }
        for row in step {
            all.push((row.uid.get(), read(view, row.uid.get()).await.unwrap()));
        }
    }
}

impl World {
    async fn begin(&self, request: crate::store::AppendRequest) -> Box<dyn crate::store::MessageWriter> {
        let files = Arc::new(Deliveries(self.local));
        let writer = crate::FileWriter { files, forget: Box::new(|_| Ok(())), settle: Box::new(|| Ok(())) };
        self.store.open_for_append(self.intake.clone(), writer, self.memory.clone());
        let account = self.logins.account("me").await.unwrap();
        let id = account.find(&MailboxName::inbox()).await.unwrap().unwrap();
        account.append(id, request).await.unwrap()
    }

    async fn append(&self, request: crate::store::AppendRequest, pieces: &[&str]) -> crate::store::AppendedMessage {
        let mut writer = self.begin(request).await;
        for piece in pieces {
            writer.write(Bytes::copy_from_slice(piece.as_bytes())).await.unwrap();
        }
        writer.finish().await.unwrap()
    }
}

fn request(flags: crate::flags::MessageFlags, keywords: &[&str], secs: u64) -> crate::store::AppendRequest {
    let internal_date = Some(std::time::UNIX_EPOCH + Duration::from_secs(secs));
    let keywords = keywords.iter().map(ToString::to_string).collect();
    crate::store::AppendRequest { flags, keywords, internal_date, octets: 0 }
}

/// Messages that sessions send slowly hold no more memory than the server gives to all mail.
#[tokio::test]
async fn an_append_that_finds_no_memory_goes_to_a_file() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = open(mail.path(), data.path());
    let free = world.memory.available_bytes();
    let mut writer = world.begin(request(Default::default(), &[], 5)).await;
    writer.write(Bytes::from(vec![b'x'; 100_000])).await.unwrap();
    assert!(world.memory.available_bytes() <= free - 100_000);
    drop(writer);
    assert_eq!(world.memory.available_bytes(), free);
    let mut others = Reservation::default();
    assert!(world.memory.try_grow(&mut others, free));
    let text = "x".repeat(600) + "\r\n";
    world.append(request(Default::default(), &[], 5), &[&text, &text]).await;
    assert_eq!(world.memory.available_bytes(), 0);
    assert_eq!(read(&*world.select().await, 1).await.unwrap(), text.repeat(2));
}

#[tokio::test]
async fn an_appended_message_has_its_flags_date_and_octets() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Maildir::open_or_create(dir.path().join(INBOX)).unwrap();
    let world = open(dir.path(), data.path());
    let (flags, long) = (crate::flags::MessageFlags::SEEN, "x".repeat(300 << 10));
    let appended = world.append(request(flags, &["$Junk"], 5), &["Subject: one\r\n", "\r\none\r\n"]).await;
    let mut view = world.select().await;
    assert_eq!((appended.uid.get(), appended.uid_validity), (1, view.uid_validity()));
    let second = world.append(request(crate::flags::MessageFlags::NONE, &[], 6), &[&long, "\r\n"]).await;
    assert_eq!(second.uid.get(), 2);
    assert_eq!(view.advance(true).await.unwrap().exists, Some(2));
    let rows =
        view.rows(&crate::row::MessageSet::all(), crate::store::RowOptions { sizes: true }).next().await.unwrap();
    let keywords = view.keywords();
    let names: Vec<&str> = keywords.names(rows[0].flags).collect();
    assert_eq!((names, rows[0].size, rows[1].size), (vec!["\\Seen", "$Junk"], Some(21), Some((300 << 10) + 2)));
    assert_eq!(rows[0].internal_date, std::time::UNIX_EPOCH + Duration::from_secs(5));
    assert_eq!(read(&*view, 1).await.unwrap(), "Subject: one\r\n\r\none\r\n");
    assert_eq!(read(&*view, 2).await.unwrap(), format!("{long}\r\n"));
    // Names follow once delivery has made the file.
    let mailbox = world.store.loaded.find(view.id().0).unwrap();
    let of = |text: &str, messages: &super::super::state::Messages, at: usize| {
        let (lsn, _) = messages.messages[at].file.body().unwrap();
        world.deliver(dir.path(), &Receipt { lsn: Lsn::new(lsn), entries: Vec::new() }, text);
    };
    of("one", &mailbox.look_patiently().await.unwrap(), 0);
    settle(dir.path(), 1);
    let messages = mailbox.look_patiently().await.unwrap();
    super::super::change_tests::names_written(&mailbox);
    let cur = std::fs::read_dir(dir.path().join(INBOX).join("cur")).unwrap();
    let names: Vec<_> = cur.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.len() == 1 && names[0].ends_with(":2,Sa"), "{names:?}");
    // The other one goes before its file is made.
    let mode = crate::flags::FlagUpdateMode::Add;
    let deleted = crate::flags::FlagUpdate { mode, flags: crate::flags::MessageFlags::DELETED, keywords: Vec::new() };
    view.store(&crate::row::MessageSet::all(), &deleted, None).await.unwrap();
    view.expunge(None).await.unwrap();
    assert_eq!(view.advance(true).await.unwrap().expunged.len(), 2);
    of("two", &messages, 1);
    for clock in 2..4 {
        settle(dir.path(), clock);
        let messages = mailbox.look_patiently().await.unwrap();
        super::super::change_tests::names_written(&mailbox);
        assert_eq!((messages.messages.len(), messages.uid_next), (0, 3));
        let left = ["new", "cur"].map(|subdir| std::fs::read_dir(dir.path().join(INBOX).join(subdir)).unwrap().count());
        assert_eq!(left, [0, 0]);
    }
}
