//! The window between the commit of a message and the removal of its file.

use std::path::Path;

use posthaste_delivery::local::{LocalConfig, LocalDelivery};
use posthaste_fsops::Machine;
use posthaste_pickup::{PickupDirectory, PickupEntry, PickupHead};
use posthaste_smtp::{ForwardPath, MailFrom, RcptTo, ReversePath};

use super::*;
use crate::receive::destinations::Destinations;
use crate::receive::settings::Settings;

/// Patience of these tests: only a hang takes longer.
const LONG: Duration = Duration::from_secs(60);

struct Rig {
    /// Has the pickup directory.
    machine: Machine,
    /// Has the spool and the mail.
    place: tempfile::TempDir,
    config: Config,
    store: LocalDelivery,
    receiver: Receiver,
}

impl Rig {
    fn new() -> Self {
        let machine = Machine::new().unwrap();
        let place = tempfile::tempdir().unwrap();
        let mut storage = LocalConfig::new(place.path().join("spool"), place.path().join("mail"));
        (storage.spool.ring.segment_bytes, storage.spool.ring.max_segments) = (4 << 20, 4);
        let (store, _) = LocalDelivery::open(storage).unwrap();
        let text = format!(
            "host_name = \"mx.example.org\"\n[pickup]\ndirectory = {:?}\n[[domain]]\nname = \"example.org\"\nusers = [\"b\"]\n",
            machine.path().join("pickup")
        );
        let config = Config::parse(Path::new("x"), &text).unwrap();
        let settings = Settings::new(&config, config.directory().into(), Arc::default());
        let receiver = Receiver::with_patience(settings, Destinations::new(store.clone(), None, None), LONG);
        Self { machine, place, config, store, receiver }
    }

    fn directory(&self) -> PickupDirectory {
        PickupDirectory::make(&self.config.pickup.directory).unwrap()
    }

    fn put(&self, number: u32) {
        let mail = MailFrom::new(ReversePath::parse("<a@example.org>").unwrap());
        let head = PickupHead::new(mail, vec![RcptTo::new(ForwardPath::parse("<b@example.org>").unwrap())]);
        let directory = self.directory();
        let mut entry = PickupEntry::begin(&directory, head, None).unwrap();
        entry.write(format!("Subject: {number}\r\n\r\n{}", "line\r\n".repeat(100_000)).as_bytes()).unwrap();
        entry.finish().unwrap();
    }

    fn waiting(&self) -> usize {
        self.directory().names().unwrap().len()
    }

    /// Copies of each message in the mailbox, by its number.
    fn delivered(&self) -> Vec<usize> {
        let Ok(entries) = std::fs::read_dir(self.place.path().join("mail/example.org/b/Maildir/new")) else {
            return Vec::new();
        };
        let texts: Vec<String> = entries.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
        let count = |number: usize| {
            let (subject, whole) = (format!("\nSubject: {number}\n"), "line\n".repeat(100_000));
            texts.iter().filter(|text| text.contains(&subject) && text.ends_with(&whole)).count()
        };
        let mut counts: Vec<usize> = (0..20).map(count).collect();
        assert_eq!(counts.iter().sum::<usize>(), texts.len(), "each message is whole");
        counts.truncate(counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1));
        counts
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + LONG;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{what}: {:?}, {} wait", self.delivered(), self.waiting());
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Runs the service until `is_so`.
    async fn run_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let mut service = Pickup::begin(&self.config, self.receiver.clone()).await;
        self.until(what, is_so).await;
        service.drain(Instant::now() + LONG).await.unwrap();
        Box::new(service).stop(Instant::now()).await.unwrap();
    }
}

#[tokio::test]
async fn a_kill_between_commit_and_unlink_costs_one_second_copy() {
    let rig = Rig::new();
    (0..5).for_each(|number| rig.put(number));
    rig.run_until("taken", |rig| rig.waiting() == 0).await;
    rig.until("delivered", |rig| rig.delivered() == [1; 5]).await;
    (5..10).for_each(|number| rig.put(number));
    // From here on nothing in the directory changes, as if the server was killed after each commit.
    rig.machine.kill();
    rig.run_until("delivered", |rig| rig.delivered() == [1; 10]).await;
    assert_eq!(rig.waiting(), 5, "their files are still there");
    rig.machine.go_on();
    rig.run_until("taken again", |rig| rig.waiting() == 0).await;
    rig.until("delivered again", |rig| rig.delivered() == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]).await;
    rig.put(10);
    rig.run_until("nothing comes a third time", |rig| rig.waiting() == 0).await;
    rig.store.shutdown().await;
    assert_eq!(rig.delivered(), [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 1]);
}

#[tokio::test]
async fn a_file_with_a_wrong_checksum_is_never_delivered() {
    let rig = Rig::new();
    rig.put(0);
    let directory = rig.directory();
    let name = directory.names().unwrap().remove(0);
    let path = directory.path().join(&name);
    let mut octets = std::fs::read(&path).unwrap();
    let last = octets.len() - 3;
    octets[last] ^= 1;
    std::fs::write(&path, octets).unwrap();
    rig.run_until("set aside", |rig| rig.waiting() == 0).await;
    rig.store.shutdown().await;
    assert_eq!(rig.delivered(), [0; 0]);
    assert!(directory.path().join(REFUSED).join(name).exists());
}

#[tokio::test]
async fn a_file_that_reuses_a_name_does_not_wait_for_the_next_scan() {
    let rig = Rig::new();
    rig.put(0);
    let directory = rig.directory();
    let path = directory.path().join(directory.names().unwrap().remove(0));
    // Unfinished by their names.
    let copies: Vec<_> = (0..100).map(|number| directory.path().join(format!(".{number}"))).collect();
    for copy in &copies {
        std::fs::copy(&path, copy).unwrap();
    }
    let mut service = Pickup::begin(&rig.config, rig.receiver.clone()).await;
    let put = spawn_blocking(move || {
        for copy in copies {
            let begun = Instant::now();
            while path.exists() {
                assert!(begun.elapsed() < LOOK_EVERY / 2, "it waits for the next look");
                std::thread::yield_now();
            }
            std::fs::rename(copy, &path).unwrap();
        }
    });
    put.await.unwrap();
    rig.until("the last is taken", |rig| rig.waiting() == 0).await;
    service.drain(Instant::now() + LONG).await.unwrap();
    Box::new(service).stop(Instant::now()).await.unwrap();
    rig.store.shutdown().await;
}

#[tokio::test]
async fn a_new_file_is_taken_without_a_directory_scan() {
    let mut rig = Rig::new();
    let place = |name: &str| rig.machine.path().join(name);
    let (above, elsewhere) = (place("above"), place("elsewhere"));
    rig.config.pickup.directory = above.join("pickup");
    rig.put(0);
    let mut service = Pickup::begin(&rig.config, rig.receiver.clone()).await;
    rig.until("the first is taken", |rig| rig.waiting() == 0).await;
    // A look reads the directory by its path, which leads nowhere now.
    std::fs::rename(&above, &elsewhere).unwrap();
    rig.config.pickup.directory = elsewhere.join("pickup");
    rig.put(1);
    rig.until("the second is taken", |rig| rig.waiting() == 0).await;
    rig.until("both are delivered", |rig| rig.delivered() == [1, 1]).await;
    service.drain(Instant::now() + LONG).await.unwrap();
    Box::new(service).stop(Instant::now()).await.unwrap();
    rig.store.shutdown().await;
}

#[tokio::test]
async fn a_file_is_set_aside_only_once_its_sender_is_told() {
    let rig = Rig::new();
    let (directory, place) = (rig.directory(), Place::open(&rig.config.pickup.directory).unwrap());
    let put = || {
        let mail = MailFrom::new(ReversePath::parse("<b@example.org>").unwrap());
        let head = PickupHead::new(mail, vec![RcptTo::new(ForwardPath::parse("<nobody@example.org>").unwrap())]);
        let mut entry = PickupEntry::begin(&directory, head, None).unwrap();
        entry.write(b"Subject: x\r\n\r\n").unwrap();
        OsString::from(entry.finish().unwrap())
    };
    let received =
        async |name: OsString| receive(&rig.receiver, rig.config.local_session(), &place, &name, 1, Vec::new()).await.0;
    assert!(matches!(received(put()).await, Settlement::Refuse));
    let new = rig.place.path().join("mail/example.org/b/Maildir/new");
    rig.until("told", |_| std::fs::read_dir(&new).is_ok_and(|told| told.count() == 1)).await;
    // From now on nothing can be made durable.
    rig.store.shutdown().await;
    assert!(matches!(received(put()).await, Settlement::Keep));
}

#[tokio::test]
async fn a_file_of_several_transactions_brings_one_notice() {
    let rig = Rig::new();
    let mail = MailFrom::new(ReversePath::parse("<b@example.org>").unwrap());
    let names = ["no1", "no2", "no3", "no4", "b", "no5", "no6"];
    let recipients = names.map(|name| RcptTo::new(ForwardPath::parse(&format!("<{name}@example.org>")).unwrap()));
    let directory = rig.directory();
    let mut service = Pickup::begin(&rig.config, rig.receiver.clone()).await;
    service.config.write().unwrap().limits.recipients = 3;
    let mut entry = PickupEntry::begin(&directory, PickupHead::new(mail, recipients.into()), None).unwrap();
    entry.write(b"Subject: to many\r\n\r\n").unwrap();
    let name = entry.finish().unwrap();
    rig.until("set aside", |rig| rig.waiting() == 0).await;
    service.drain(Instant::now() + LONG).await.unwrap();
    Box::new(service).stop(Instant::now()).await.unwrap();
    rig.store.shutdown().await;
    let new = std::fs::read_dir(rig.place.path().join("mail/example.org/b/Maildir/new")).unwrap();
    let texts: Vec<String> = new.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
    let (notices, messages): (Vec<_>, Vec<_>) = texts.iter().partition(|text| text.contains("\nFinal-Recipient: "));
    assert_eq!((notices.len(), messages.len()), (1, 1), "{texts:?}");
    let mut told: Vec<&str> =
        notices[0].lines().filter_map(|line| line.strip_prefix("Final-Recipient: rfc822; ")).collect();
    told.sort_unstable();
    let refused = ["no1", "no2", "no3", "no4", "no5", "no6"].map(|name| format!("{name}@example.org"));
    assert_eq!(told, refused);
    let place = Place::open(&rig.config.pickup.directory).unwrap();
    assert_eq!(place.refused.names().unwrap(), [OsString::from(&name)]);
    let message = PickupMessage::open(&place.refused, name.as_ref()).unwrap();
    let mut set_aside: Vec<String> = message.head().recipients.iter().map(|rcpt| rcpt.forward_path.bare()).collect();
    set_aside.sort_unstable();
    assert_eq!(set_aside, refused);
}

#[tokio::test]
async fn a_damaged_file_whose_recipients_are_refused_is_set_aside() {
    let rig = Rig::new();
    let (directory, place) = (rig.directory(), Place::open(&rig.config.pickup.directory).unwrap());
    for is_short in [false, true] {
        let mail = MailFrom::new(ReversePath::parse("<b@example.org>").unwrap());
        let head = PickupHead::new(mail, vec![RcptTo::new(ForwardPath::parse("<nobody@example.org>").unwrap())]);
        let mut entry = PickupEntry::begin(&directory, head, None).unwrap();
        entry.write(b"Subject: x\r\n\r\n").unwrap();
        let name = OsString::from(entry.finish().unwrap());
        let path = directory.path().join(&name);
        let mut octets = std::fs::read(&path).unwrap();
        let last = octets.len() - 3;
        if is_short {
            octets.truncate(last)
        } else {
            octets[last] ^= 1
        }
        std::fs::write(&path, octets).unwrap();
        let settlement = receive(&rig.receiver, rig.config.local_session(), &place, &name, 1, Vec::new()).await.0;
        assert!(matches!(settlement, Settlement::Refuse), "{is_short}: {settlement:?}");
    }
    rig.store.shutdown().await;
}

#[test]
fn a_scan_that_waits_for_the_queue_has_no_timeout() {
    let now = Instant::now();
    let (past, later) = (now - Duration::from_secs(1), now + Duration::from_secs(1));
    assert_eq!(wake_at(None, past, true), None);
    assert_eq!(wake_at(Some(later), past, true), Some(later));
    assert_eq!(wake_at(None, later, false), Some(later));
    assert_eq!(wake_at(Some(now), later, false), Some(now));
    assert_eq!(wake_at(Some(later), now, false), Some(now));
}
