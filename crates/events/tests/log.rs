//! The promises of an event log, one at a time, on a real file system.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use posthaste_events::{
    ArrivalFacts, Config, Delivered, Event, EventKind, EventLog, EventRecorder, MailboxRef, Notice, ReceivedEvent,
    RefusalStage, RefusedEvent, STREAM, file_name,
};
use posthaste_spool::{Batch, Body, Consumer, Entry, FileSpool, Lsn, Published, Released, Spool, StreamId};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

fn open_spool(dir: &Path) -> Arc<FileSpool> {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 8, ..Default::default() };
    let config = posthaste_spool::Config { ring, ..posthaste_spool::Config::default() };
    Arc::new(FileSpool::open(&dir.join("spool"), config).unwrap().0)
}

fn config(dir: &Path) -> Config {
    Config { file_bytes: 1 << 20, ..Config::new(dir.join("events")) }
}

fn received(id: u64) -> Event {
    let facts = ArrivalFacts { id: id.to_string().into(), ..ArrivalFacts::default() };
    Event::now(EventKind::Received(ReceivedEvent { facts, ..ReceivedEvent::default() }))
}

fn refused(id: u64) -> Event {
    Event::now(EventKind::Refused(RefusedEvent {
        stage: RefusalStage::Recipient,
        id: id.to_string().into(),
        peer: "192.0.2.1:25".into(),
        helo: "".into(),
        user: "".into(),
        sender: "<>".into(),
        recipients: Vec::new(),
        recipient_count: 0,
        reply: "550".into(),
        why: "".into(),
    }))
}

fn entry_of(recorder: &EventRecorder, id: u64) -> Vec<Entry> {
    recorder.entry(&received(id)).into_iter().collect()
}

/// Appends entries and a body, and waits.
fn append(spool: &FileSpool, mut entries: Vec<Entry>, other: Option<StreamId>, body: &[u8]) -> Lsn {
    let entry = |stream| Entry { stream, needs_body: true, payload: Bytes::from_static(b"mail") };
    entries.extend(other.map(entry));
    loop {
        let (tell, told) = channel();
        let batch = Batch { entries: entries.clone(), body: Body::inline(vec![Bytes::copy_from_slice(body)]) };
        spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
        match told.recv().unwrap() {
            Ok(lsn) => return lsn,
            // The keeper makes room.
            Err(posthaste_spool::AppendError::Full(_)) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    }
}

fn lines(dir: &Path) -> Vec<Value> {
    let mut lines = Vec::new();
    for number in 1.. {
        let Ok(text) = std::fs::read_to_string(dir.join("events").join(file_name(number))) else { break };
        assert!(text.is_empty() || text.ends_with('\n'), "half a line");
        lines.extend(text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()));
    }
    lines
}

fn ids(lines: &[Value]) -> Vec<u64> {
    let id = |line: &Value| line["received_id"].as_str().or(line["id"].as_str())?.parse().ok();
    lines.iter().filter_map(id).collect()
}

fn listening(config: &mut Config) -> Receiver<Notice> {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    config.notice = Arc::new(move |notice| drop(tell.lock().unwrap().send(notice)));
    told
}

/// Takes what comes and lets it go at once.
struct Quick {
    spool: std::sync::Weak<FileSpool>,
    stream: StreamId,
}

impl Consumer for Quick {
    fn published(&self, entry: Published) {
        let Some(spool) = self.spool.upgrade() else { return };
        let released = Released { below: Lsn::new(entry.lsn.get() + 1), also: Vec::new() };
        spool.advance(self.stream, entry.lsn, None, released);
        // The test holds another.
        drop(spool);
    }

    fn advance_wanted(&self, _: Lsn) {}
}

fn quick(spool: &Arc<FileSpool>) -> StreamId {
    let stream = spool.stream("mail").unwrap();
    let shown = spool.replay(stream, &mut |_| ()).unwrap();
    spool.attach(stream, shown, Arc::new(Quick { spool: Arc::downgrade(spool), stream })).unwrap();
    stream
}

#[test]
fn each_event_is_a_line_once_and_in_the_order_of_the_spool() {
    let dir = tempfile::tempdir().unwrap();
    for life in 0..3 {
        let spool = open_spool(dir.path());
        let log = EventLog::open(spool.clone(), config(dir.path())).unwrap();
        let recorder = log.recorder();
        for id in 0..10 {
            append(&spool, entry_of(&recorder, life * 100 + id), None, b"");
            if id == 5 {
                recorder.note(&refused(life * 100 + 50));
            }
        }
        assert!(log.end(PATIENCE));
        let lines = lines(dir.path());
        assert_eq!(lines.len() as u64, 11 * (life + 1), "{lines:?}");
        assert!(lines.is_sorted_by_key(|line| line["lsn"].as_str().unwrap().parse::<Lsn>().unwrap()));
        let mut ids = ids(&lines);
        ids.retain(|id| id % 100 != 50);
        assert!(ids.is_sorted());
        assert_eq!(spool.streams()[0].entries, 0, "the spool has let go of all of it");
        assert_eq!((log.stats().lines, log.stats().left_out, log.stats().is_failing), (11, 0, false));
    }
}

#[test]
fn a_kill_neither_loses_nor_doubles_nor_changes_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let config = || Config { file_bytes: 500, files: 1000, ..config(dir.path()) };
    let mut before: Vec<Vec<u8>> = Vec::new();
    for life in 0..4 {
        let spool = open_spool(dir.path());
        let log = EventLog::open(spool.clone(), config()).unwrap();
        let recorder = log.recorder();
        for id in 0..20 {
            append(&spool, entry_of(&recorder, life * 20 + id), None, b"");
        }
        assert!(log.end(PATIENCE));
        drop(log);
        // What the log has told the spool since the last checkpoint is forgotten, all that it has written is there.
        Arc::into_inner(spool).expect("the log has let go of it").abandon();
        let read = |number| std::fs::read(dir.path().join("events").join(file_name(number))).ok();
        let files: Vec<Vec<u8>> = (1..).map_while(read).collect();
        assert_eq!(ids(&lines(dir.path())), (0..(life + 1) * 20).collect::<Vec<_>>());
        for (was, is) in before.iter().zip(&files) {
            assert!(is.starts_with(was));
        }
        before = files;
    }
    assert!(before.len() > 10, "{}", before.len());
}

#[test]
fn unwritable_files_hold_up_nobody_and_are_written_later() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open_spool(dir.path());
    let mail = quick(&spool);
    // A directory cannot be made here.
    std::fs::write(dir.path().join("events"), "").unwrap();
    let mut config = config(dir.path());
    let notices = listening(&mut config);
    let log = EventLog::open(spool.clone(), config).unwrap();
    assert!(matches!(notices.recv_timeout(PATIENCE), Ok(Notice::Failing { .. })));
    let recorder = log.recorder();
    // Several times the ring's size.
    for id in 0..400 {
        append(&spool, entry_of(&recorder, id), Some(mail), &[b'x'; 8000]);
    }
    let stats = spool.streams();
    let of = |name: &str| stats.iter().find(|stream| stream.name == name).unwrap();
    assert_eq!((of("mail").entries, of("mail").bodies), (0, 0));
    assert_eq!((of(STREAM).entries, of(STREAM).bodies), (400, 0));
    assert!(spool.file_stats().pack_bytes < 1 << 20, "bodies are not kept for the log: {:?}", spool.file_stats());
    std::fs::remove_file(dir.path().join("events")).unwrap();
    assert_eq!(notices.recv_timeout(PATIENCE), Ok(Notice::Working), "it was told once");
    assert!(log.end(PATIENCE));
    assert_eq!(ids(&lines(dir.path())), (0..400).collect::<Vec<_>>());
}

#[test]
fn another_stream_that_is_stuck_does_not_hold_up_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open_spool(dir.path());
    let stuck = spool.stream("mail").unwrap();
    let log = EventLog::open(spool.clone(), config(dir.path())).unwrap();
    for id in 0..200 {
        append(&spool, entry_of(&log.recorder(), id), Some(stuck), &[b'x'; 8000]);
    }
    assert!(log.end(PATIENCE));
    assert_eq!(ids(&lines(dir.path())), (0..200).collect::<Vec<_>>());
    let stats = spool.streams();
    assert_eq!(stats.iter().map(|stream| stream.entries).collect::<Vec<_>>(), [200, 0]);
}

#[test]
fn events_over_the_bound_are_dropped_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open_spool(dir.path());
    std::fs::write(dir.path().join("events"), "").unwrap();
    let mut config = Config { pending_max: 20, ..config(dir.path()) };
    let notices = listening(&mut config);
    let log = EventLog::open(spool.clone(), config).unwrap();
    assert!(matches!(notices.recv_timeout(PATIENCE), Ok(Notice::Failing { .. })));
    let recorder = log.recorder();
    let mut recorded = 0;
    // It is looked at once a second.
    while let Some(entry) = recorder.entry(&received(recorded)) {
        append(&spool, vec![entry], None, b"");
        recorded += 1;
    }
    for id in 0..5 {
        assert!(recorder.entry(&received(id)).is_none());
        recorder.note(&refused(id));
    }
    // One event of three lines.
    let target = MailboxRef { message: Lsn::new(1), number: 0, mailbox: "example.org/a".into() };
    let delivered = Event::now(EventKind::Delivered(Delivered { targets: vec![target; 3] }));
    assert!(recorder.entry(&delivered).is_none());
    recorder.note(&delivered);
    assert!(recorded > 20);
    assert_eq!(notices.recv_timeout(PATIENCE), Ok(Notice::LeavingOut));
    std::fs::remove_file(dir.path().join("events")).unwrap();
    assert_eq!(notices.recv_timeout(PATIENCE), Ok(Notice::Working));
    assert_eq!(notices.recv_timeout(PATIENCE), Ok(Notice::Recording));
    assert!(log.end(PATIENCE));
    let lines = lines(dir.path());
    assert_eq!(ids(&lines), (0..recorded).collect::<Vec<_>>());
    let last = lines.last().unwrap();
    assert_eq!((&last["event"], &last["refused"], &last["others"]), (&"left_out".into(), &5.into(), &12.into()));
    assert_eq!(log.stats().left_out, 17);
}

#[test]
fn a_flood_of_refusals_is_bounded_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open_spool(dir.path());
    let log = EventLog::open(spool.clone(), config(dir.path())).unwrap();
    let recorder = log.recorder();
    const FLOOD: u64 = 100_000;
    (0..FLOOD).for_each(|id| recorder.note(&refused(id)));
    assert!(log.end(PATIENCE));
    let lines = lines(dir.path());
    let left_out: u64 = lines.iter().filter_map(|line| line["refused"].as_u64()).sum();
    let told = ids(&lines).len() as u64;
    assert_eq!((told + left_out, log.stats().left_out), (FLOOD, left_out), "each is told or counted");
    assert!((1..FLOOD / 2).contains(&told), "{told}");
}

#[test]
fn what_finds_no_room_in_memory_is_read_from_the_spool() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open_spool(dir.path());
    let log = EventLog::open(spool.clone(), Config { queue_bytes_max: 1000, ..config(dir.path()) }).unwrap();
    let recorder = log.recorder();
    for id in 0..2000 {
        append(&spool, entry_of(&recorder, id), None, b"");
    }
    assert!(log.end(PATIENCE));
    assert_eq!(ids(&lines(dir.path())), (0..2000).collect::<Vec<_>>());
}

#[test]
fn a_file_that_is_taken_away_is_followed_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open_spool(dir.path());
    let mut config = Config { sync_interval: Duration::from_millis(1), ..config(dir.path()) };
    let notices = listening(&mut config);
    let log = EventLog::open(spool.clone(), config).unwrap();
    append(&spool, entry_of(&log.recorder(), 1), None, b"");
    while spool.streams()[0].entries > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let first = dir.path().join("events").join(file_name(1));
    std::fs::rename(&first, dir.path().join("taken")).unwrap();
    std::fs::remove_file(dir.path().join("taken")).unwrap();
    append(&spool, entry_of(&log.recorder(), 2), None, b"");
    assert!(matches!(notices.recv_timeout(PATIENCE), Ok(Notice::Failing { .. })));
    assert_eq!(notices.recv_timeout(PATIENCE), Ok(Notice::Changed { file: file_name(1) }));
    assert_eq!(notices.recv_timeout(PATIENCE), Ok(Notice::Working));
    assert!(log.end(PATIENCE));
    // Under a number of its own: who follows the log by number and offset sees that the first is gone.
    std::fs::write(&first, "").unwrap();
    assert_eq!(ids(&lines(dir.path())), [2]);
}
