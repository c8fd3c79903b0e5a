//! Missing or damaged snapshots of the queue: no mail is lost, no message gets another number, and possibly sent mail
//! is not sent again.

use std::path::{Path, PathBuf};

use posthaste_queue::{Origin, Selection, Status};
use posthaste_relay::sender::{Exported, ExportedRecipient, RelayOpenReport};

use super::*;

/// A spool of small segments, and a relay on it that sends nothing.
struct Idle {
    relay: Relay,
    spool: Arc<FileSpool>,
    report: RelayOpenReport,
    dir: PathBuf,
}

fn small() -> posthaste_spool::Config {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 12, ..Default::default() };
    posthaste_spool::Config { ring, keeper: false, free_bytes_min: 0, ..Default::default() }
}

impl Idle {
    fn open(dir: &Path, dns: &Server) -> Self {
        let (it, report) = Self::open_with(dir, dns, small());
        assert_eq!(report.damage, []);
        it
    }

    fn open_with(dir: &Path, dns: &Server, of: posthaste_spool::Config) -> (Self, posthaste_spool::OpenReport) {
        let (spool, of_spool) = FileSpool::open(dir, of).unwrap();
        let spool = Arc::new(spool);
        let back = Arc::new(Back { spool: spool.clone(), written: Mutex::default() });
        let (relay, report) = Relay::open_idle(spool.clone(), config(dns, 1, &back, &Arc::default())).unwrap();
        (Idle { relay, spool, report, dir: dir.to_owned() }, of_spool)
    }

    /// Waiting recipients, with the reasons, once all that are not held are due: the queue's clock has whole seconds.
    fn waiting(&self) -> Vec<(String, String)> {
        let started = Instant::now();
        loop {
            let all = self.waiting_now();
            if all.iter().all(|(_, why)| !why.contains("Until(")) {
                return all;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "{all:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn waiting_now(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        self.relay.waiting(&Filter::default(), &mut |waiting| {
            let queue = self.relay.queue_name(waiting.state.queue).expect("its queue");
            all.push((waiting.recipient.to_string(), format!("{queue:?} {:?} {:?}", waiting.state.waits, waiting.why)));
            true
        });
        all
    }

    fn append(&self, message: Queued) {
        self.append_entry(self.relay.entry(message), b"x\r\n");
    }

    fn append_entry(&self, entry: Entry, body: &[u8]) {
        let batch = Batch { entries: vec![entry], body: Body::inline(vec![Bytes::copy_from_slice(body)]) };
        let (tell, told) = std::sync::mpsc::channel();
        self.spool.append(batch, Box::new(move |outcome| tell.send(outcome).unwrap()));
        told.recv().unwrap().unwrap();
    }

    fn act(&self, domain: &str, action: QueueAction) {
        let selection = Selection { domain: Some(domain.into()), ..Selection::default() };
        let filter = Filter { selection, ..Filter::default() };
        self.relay.act(&filter, action, &Reply::new(554, "5.0.0", ""), &Originator::default()).unwrap();
    }

    /// Ends like a process: with a last snapshot and a checkpoint.
    fn end(self) {
        self.relay.end_by(Instant::now() + Duration::from_secs(30));
    }
}

fn snapshots(dir: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(dir.join("snapshots")).unwrap();
    names.map(|entry| entry.unwrap().path()).collect()
}

fn copy(from: &Path, to: &Path) {
    try_copy(from, to).unwrap();
}

fn try_copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            try_copy(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Copies an open spool as a kill leaves it: again, until nothing has changed meanwhile. A thread makes segments ahead.
fn copy_open(from: &Path, to: &Path) {
    wait("the spool is at rest", || {
        let before = files_of(from);
        let is_copied =
            try_copy(from, to).is_ok() && before.is_ok_and(|before| files_of(from).is_ok_and(|it| it == before));
        if !is_copied {
            std::fs::remove_dir_all(to).unwrap();
        }
        is_copied
    });
}

/// Paths, lengths and times of all files.
fn files_of(dir: &Path) -> std::io::Result<Vec<(PathBuf, u64, std::time::SystemTime)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let data = entry.metadata()?;
        if data.is_dir() {
            all.extend(files_of(&entry.path())?)
        } else {
            all.push((entry.path(), data.len(), data.modified()?))
        }
    }
    all.sort();
    Ok(all)
}

/// A queue with two snapshots that differ; `last`: the newer one.
fn queue_of_two(dir: &Path, dns: &Server) -> (PathBuf, Vec<(String, String)>) {
    let it = Idle::open(dir, dns);
    for tenant in ["", "news"] {
        let to = ["bob@a.example", "eve@b.example", "joe@c.example"];
        it.append(Queued { tenant: tenant.into(), pool: tenant.into(), ..outgoing("ann@here.example", &to, 0) });
    }
    it.end();
    let before = snapshots(dir);
    let it = Idle::open(dir, dns);
    it.act("b.example", QueueAction::Hold(None));
    it.act("c.example", QueueAction::Delete);
    it.append(outgoing("ann@here.example", &["sue@d.example"], 0));
    let waiting = it.waiting();
    it.end();
    let last = snapshots(dir).into_iter().find(|path| !before.contains(path)).expect("a newer one");
    assert_eq!(snapshots(dir).len(), 2);
    (last, waiting)
}

#[test]
fn a_byte_flipped_anywhere_in_a_snapshot_costs_nothing() {
    let dns = Server::start(zone());
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("spool");
    let (last, waiting) = queue_of_two(&spool, &dns);
    assert_eq!(waiting.len(), 5);
    let whole = std::fs::read(&last).unwrap();
    let name = last.file_name().unwrap();
    for at in 0..whole.len() {
        let tried = dir.path().join("tried");
        copy(&spool, &tried);
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(tried.join("snapshots").join(name), bytes).unwrap();
        let it = Idle::open(&tried, &dns);
        assert_eq!((it.report.unreadable.len(), it.report.uncertain), (1, None), "byte {at}");
        assert_eq!(it.waiting(), waiting, "byte {at}");
        drop(it);
        std::fs::remove_dir_all(&tried).unwrap();
    }
}

#[test]
fn the_older_snapshot_knows_later_imports() {
    let dns = Server::start(zone());
    let dir = tempfile::tempdir().unwrap();
    let it = Idle::open(dir.path(), &dns);
    it.append(outgoing("ann@here.example", &["bob@a.example"], 0));
    it.end();
    let before = snapshots(dir.path());
    let import = |it: &Idle| {
        let entry = it.relay.entry(outgoing("ann@there.example", &["eve@b.example"], 0));
        let mut queued = QueueEntry::decode(&entry.payload).unwrap().into_message().unwrap();
        let to = queued.recipients.remove(0);
        let moved = Exported {
            message: Lsn::new(7),
            queued,
            received: 1,
            not_before: 0,
            expires: 0,
            recipients: vec![ExportedRecipient {
                to,
                is_forwarded: false,
                attempts: 1,
                next: 0,
                status: Status::default(),
                held: None,
                delay_told: false,
                reply: "".into(),
            }],
        };
        let origin = Origin::of(Lsn::new(7), b"entry", b"x");
        let body = Body::inline(vec!["x\r\n".into()]);
        let imported = it.relay.import(&Originator::default(), origin, moved, "", body).unwrap();
        (imported.recipients, imported.duplicates)
    };
    let it = Idle::open(dir.path(), &dns);
    assert_eq!(import(&it), (1, 0));
    // It is settled, and its body released.
    it.act("b.example", QueueAction::Delete);
    it.end();
    let last = snapshots(dir.path()).into_iter().find(|path| !before.contains(path)).expect("a newer one");
    std::fs::write(last, "").unwrap();
    let it = Idle::open(dir.path(), &dns);
    assert_eq!((it.report.unreadable.len(), it.report.uncertain), (1, None));
    assert_eq!(import(&it), (0, 1));
    assert_eq!(it.waiting().len(), 1);
}

/// Settled mail of others, until the ring has lost its former content.
fn fill_ring(it: &Idle) {
    let other = it.spool.stream("other").unwrap();
    for _ in 0..100 {
        let entry = Entry { stream: other, needs_body: true, payload: "x".into() };
        it.append_entry(entry, &[7; 8 << 10]);
        let last = it.spool.stats().published;
        let released = posthaste_spool::Released { below: Lsn::new(last.get() + 1), also: Vec::new() };
        it.spool.advance(other, last, None, released);
        it.spool.checkpoint().unwrap();
        it.spool.pack_oldest(if it.spool.file_stats().ring.segments_in_service > 2 { 1 } else { 0 }).unwrap();
    }
    it.spool.checkpoint().unwrap();
}

#[test]
fn without_a_snapshot_what_may_have_been_sent_is_held() {
    let dns = Server::start(zone());
    for how in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let (_, waiting) = queue_of_two(dir.path(), &dns);
        let it = Idle::open(dir.path(), &dns);
        fill_ring(&it);
        it.end();
        let it = Idle::open(dir.path(), &dns);
        assert_eq!(it.waiting(), waiting);
        // After the last snapshot: all of this is known.
        it.append(outgoing("ann@here.example", &["new@e.example"], 0));
        // The state after a kill.
        let killed = tempfile::tempdir().unwrap();
        let dir = killed.path().join("spool");
        copy_open(&it.dir, &dir);
        drop(it);
        assert_eq!(snapshots(&dir).len(), 2);
        for path in snapshots(&dir) {
            match how {
                0 => std::fs::remove_file(path).unwrap(),
                _ => std::fs::write(path, "").unwrap(),
            }
        }
        let it = Idle::open(&dir, &dns);
        let report = &it.report;
        assert_eq!((report.unreadable.len(), report.uncertain_recipients, report.damaged.len()), (2, 7, 0));
        assert!(report.uncertain.is_some());
        let check = |it: &Idle| {
            let waiting = it.waiting();
            // Deleted ones are among them: the deletion is lost.
            assert_eq!(waiting.len(), 8, "{waiting:?}");
            for (to, why) in waiting {
                assert_eq!(why.contains("Held(Uncertain)"), to != "new@e.example", "{to} {why}");
            }
        };
        check(&it);
        it.end();
        let it = Idle::open(&dir, &dns);
        assert_eq!((it.report.unreadable.len(), it.report.uncertain), (0, None), "a new one says so");
        check(&it);
        it.act("a.example", QueueAction::Release);
        it.act("c.example", QueueAction::Delete);
        let waits = |it: &Idle, domain: &str| {
            let all = it.waiting();
            all.iter()
                .filter(|(to, _)| to.ends_with(domain))
                .map(|(_, why)| why.contains("Uncertain"))
                .collect::<Vec<_>>()
        };
        assert_eq!(waits(&it, "a.example"), [false, false]);
        it.end();
        let it = Idle::open(&dir, &dns);
        assert_eq!((waits(&it, "a.example"), waits(&it, "c.example")), (vec![false, false], vec![]));
        assert_eq!(waits(&it, "b.example"), [true, true]);
    }
}

#[test]
fn lost_suspensions_are_told_where_no_mail_waits() {
    let dns = Server::start(zone());
    let dir = tempfile::tempdir().unwrap();
    let it = Idle::open(dir.path(), &dns);
    let scope = posthaste_shaping::MailScope::Domain("a.example".into());
    it.relay.suspend(scope, None, &Originator::default()).unwrap();
    it.end();
    let it = Idle::open(dir.path(), &dns);
    assert_eq!(it.relay.suspensions().len(), 1);
    fill_ring(&it);
    let last = it.spool.position(it.spool.stream("queue").unwrap()).0;
    it.end();
    snapshots(dir.path()).iter().for_each(|path| std::fs::remove_file(path).unwrap());
    let it = Idle::open(dir.path(), &dns);
    assert_eq!((it.report.uncertain, it.report.uncertain_recipients), (Some(last), 0));
    assert_eq!(it.relay.suspensions(), []);
}

#[test]
fn with_an_older_snapshot_what_is_done_with_stays_so() {
    let dns = Server::start(zone());
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("spool");
    let killed = dir.path().join("killed");
    let it = Idle::open(&spool, &dns);
    it.append(outgoing("ann@here.example", &["bob@a.example"], 0));
    it.append(outgoing("ann@here.example", &["eve@b.example"], 0));
    it.end();
    let before = snapshots(&spool);
    let it = Idle::open(&spool, &dns);
    it.act("a.example", QueueAction::Delete);
    it.end();
    let last = snapshots(&spool).into_iter().find(|path| !before.contains(path)).expect("a newer one");
    let it = Idle::open(&spool, &dns);
    // The ring has lost the entry of the deletion.
    fill_ring(&it);
    copy_open(&it.dir, &killed);
    drop(it);
    std::fs::write(killed.join("snapshots").join(last.file_name().unwrap()), "").unwrap();
    let it = Idle::open(&killed, &dns);
    assert_eq!((it.report.unreadable.len(), it.report.uncertain_recipients), (1, 1));
    let waiting = it.waiting();
    assert!(waiting.len() == 1 && waiting[0].0 == "eve@b.example", "its body was released: {waiting:?}");
    assert!(waiting[0].1.contains("Held(Uncertain)"), "{waiting:?}");
}

#[test]
fn a_rebuilt_queue_is_uncertain_until_its_next_snapshot() {
    let dns = Server::start(zone());
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    let new = dir.path().join("new");
    let it = Idle::open(&old, &dns);
    it.append(outgoing("ann@here.example", &["bob@a.example"], 0));
    // The last batch does not belong to the queue.
    let other = it.spool.stream("other").unwrap();
    it.append_entry(Entry { stream: other, needs_body: true, payload: "x".into() }, b"x");
    drop(it);
    for name in ["checkpoint.0", "checkpoint.1"] {
        std::fs::remove_file(old.join(name)).unwrap();
    }
    posthaste_spool::ClosedFileSpool::rebuild(&old, &new).unwrap();
    check_uncertain_once(&new, &dns);
}

#[test]
fn a_loss_in_the_ring_makes_it_uncertain_until_a_snapshot() {
    let dns = Server::start(zone());
    let dir = tempfile::tempdir().unwrap();
    let killed = dir.path().join("killed");
    let it = Idle::open(&dir.path().join("spool"), &dns);
    it.append(outgoing("ann@here.example", &["bob@a.example"], 0));
    it.end();
    let it = Idle::open(&dir.path().join("spool"), &dns);
    // Its content is in a pack now.
    fill_ring(&it);
    // After the last checkpoint: the queue has no entry in these, which is unknown once they are lost.
    let other = it.spool.stream("other").unwrap();
    for _ in 0..20 {
        it.append_entry(Entry { stream: other, needs_body: true, payload: "x".into() }, &[7; 8 << 10]);
    }
    copy_open(&it.dir, &killed);
    drop(it);
    for entry in std::fs::read_dir(killed.join("ring")).unwrap().map(Result::unwrap) {
        if entry.path().extension().is_some_and(|it| it == "seg") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    check_uncertain_once(&killed, &dns);
}

/// Opens a queue with one message twice: only the first time its fate is uncertain.
fn check_uncertain_once(dir: &Path, dns: &Server) {
    // Like an opening by a repair.
    let ring = posthaste_ring::Config { gives_up_missing: true, ..small().ring };
    for recipients in [1, 0] {
        let (it, _) = Idle::open_with(dir, dns, posthaste_spool::Config { ring: ring.clone(), ..small() });
        assert_eq!((it.report.uncertain.is_some(), it.report.uncertain_recipients), (recipients > 0, recipients));
        let waiting = it.waiting();
        assert!(waiting.len() == 1 && waiting[0].1.contains("Held(Uncertain)"), "{waiting:?}");
        // The loss lies after others' mail now, and the queue has no entry since.
        let other = it.spool.stream("other").unwrap();
        it.append_entry(Entry { stream: other, needs_body: true, payload: "x".into() }, b"x");
        it.end();
    }
}

/// A standby of another process sends nothing, changes nothing, and releases what the entries settle.
#[test]
fn a_standby_applies_entries_and_keeps_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let dns = Server::start(zone());
    let (spool, _) = FileSpool::open(dir.path(), small()).unwrap();
    let spool = Arc::new(spool);
    let back = Arc::new(Back { spool: spool.clone(), written: Mutex::default() });
    let config = config(&dns, 1, &back, &Arc::default());
    let (relay, report) = Relay::open_standby(spool.clone(), config.clone()).unwrap();
    assert_eq!(report.recipients, 0);
    let append = |entry: Entry| {
        let batch = Batch { entries: vec![entry], body: Body::inline(vec![Bytes::from_static(b"x\r\n")]) };
        let (tell, told) = std::sync::mpsc::channel();
        spool.append(batch, Box::new(move |outcome| tell.send(outcome).unwrap()));
        told.recv().unwrap().unwrap()
    };
    let first = append(relay.entry(outgoing("x@here.example", &["a@there.example"], 0)));
    append(relay.entry(outgoing("x@here.example", &["b@there.example"], 0)));
    while relay.stats().recipients < 2 {
        std::thread::yield_now();
    }
    let before = spool.stats().published;
    drop(relay);
    assert_eq!(spool.stats().published, before, "it has appended nothing");
    let stream = spool.stream("queue").unwrap();
    assert!(spool.position(stream).1.is_some() && spool.needs_body(stream, first));
    let (relay, report) = Relay::open_idle(spool.clone(), config).unwrap();
    assert_eq!(report.recipients, 2);
    drop(relay);
}
