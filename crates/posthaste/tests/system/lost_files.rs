//! Files of the data directory are removed, truncated or damaged while the server is down. It starts, at once or after
//! the command that it names, and says what is wrong. Nothing is lost or doubled silently.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::relaying::{self, ANYWHERE, EVENTS, list, next_hop, queue};
use crate::support::{PATIENCE, Server, command};

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy(&entry.path(), &to);
        } else if kind.is_file() {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The files below a directory, by their paths from `root`.
pub fn files(root: &Path, dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(dir)).unwrap().map(Result::unwrap) {
        let (path, kind) = (dir.join(entry.file_name()), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(files(root, &path));
        } else if kind.is_file() {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A server delivers mail here and to the next hop, and some mail waits; then it is stopped.
fn used(dir: &Path, next: &Server) {
    let hook = "[[webhook]]\nname = \"crm\"\nurl = \"http://127.0.0.1:9/\"\n[search]\nindex = true\n";
    let config = relaying::config(next.addresses[0].port(), &format!("{EVENTS}{hook}"));
    let server = Server::start(dir, &config);
    let mut client = server.hello();
    for _ in 0..3 {
        client.deliver(&["eve@here.example", "ann@there.example", "slow@there.example"], b"Subject: x\r\n\r\nx\r\n");
    }
    next.wait_for_mail("there.example", "ann", 3);
    relaying::wait_for_queue(dir, "three are deferred", |waiting| {
        waiting.len() == 3 && waiting.iter().all(|line| line["attempts"].as_u64() >= Some(1))
    });
    let listed = command(dir, &["suppression", "add", "gone@there.example"]).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    server.wait_for_mail("here.example", "eve", 3);
    drop(client);
    server.stop();
    // A queue that is idle has its state twice.
    Server::start_as_it_is(dir).stop();
}

/// Kinds of damage to a file.
#[derive(Debug, Clone, Copy)]
pub enum How {
    Removed,
    Cut,
    Emptied,
    /// One bit in the middle is flipped.
    Flipped,
    /// Reading it ends with EIO.
    Unreadable,
}

pub fn spoil(path: &Path, how: How) {
    match how {
        How::Removed => fs::remove_file(path).unwrap(),
        How::Cut => {
            let len = fs::metadata(path).unwrap().len();
            fs::File::options().write(true).open(path).unwrap().set_len(len / 2).unwrap();
        }
        How::Emptied => fs::write(path, "").unwrap(),
        How::Flipped => {
            let mut bytes = fs::read(path).unwrap();
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
            if let Some(byte) = bytes.get_mut(used / 2) {
                *byte ^= 8;
            }
            fs::write(path, bytes).unwrap();
        }
        How::Unreadable => {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/proc/self/mem", path).unwrap();
        }
    }
}

fn is_held_or_waits(line: &Value) -> bool {
    line["recipient"] == "slow@there.example"
}

/// Starts the server and sends mail. Returns the number of ann's messages at the next hop.
fn serves(dir: &Path, next: &Server, ann_before: usize, what: &str) -> usize {
    let server = Server::start_as_it_is(dir);
    let mut client = server.hello();
    client.deliver(&["eve@here.example"], b"Subject: y\r\n\r\ny\r\n");
    server.wait_for_mail("here.example", "eve", 4);
    client.expect("MAIL FROM:<sender@example.net>", 250);
    let reply = client.command("RCPT TO:<ann@there.example>");
    client.expect("RSET", 250);
    let ann = match reply.code {
        250 => {
            client.deliver(&["ann@there.example"], b"Subject: y\r\n\r\ny\r\n");
            next.wait_for_mail("there.example", "ann", ann_before + 1);
            let waiting = list(dir, &[]);
            let slow = waiting.iter().filter(|line| is_held_or_waits(line)).count();
            assert_eq!(slow, 3, "{what}: {waiting:?}\n{}", server.log_text());
            ann_before + 1
        }
        code => {
            assert_eq!(code, 451, "{what}: {reply:?}");
            let line = server.wait_for_log("this stream of the spool is stuck");
            assert!(line.contains("error=") && line.contains("help="), "{what}: {line}");
            for shown in ["list", "summary"] {
                assert!(queue(dir, &[shown]).1.contains("the queue is stuck: "), "{what}");
            }
            ann_before
        }
    };
    drop(client);
    server.stop();
    assert_eq!(next.mailbox("there.example", "ann").len(), ann, "{what}: none twice");
    ann
}

#[test]
fn with_any_file_removed_cut_off_or_damaged_the_server_serves() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    used(here.path(), &next);
    let mut ann = 3;
    let all = files(here.path(), Path::new("posthaste-data"));
    let is_spoiled = |path: &&PathBuf| {
        let not = ["posthaste-data/mail", "posthaste-data/spool/ring", "posthaste-data/search"];
        !not.iter().any(|dir| path.starts_with(dir))
    };
    let spoiled: Vec<&PathBuf> = all.iter().filter(is_spoiled).collect();
    assert!(
        spoiled.iter().filter(|path| path.starts_with("posthaste-data/spool/snapshots")).count() == 2,
        "{spoiled:?}"
    );
    for path in spoiled {
        for how in [How::Removed, How::Cut, How::Emptied, How::Flipped] {
            let tried = tempfile::tempdir().unwrap();
            copy(here.path(), tried.path());
            spoil(&tried.path().join(path), how);
            ann = serves(tried.path(), &next, ann, &format!("{} {how:?}", path.display()));
        }
    }
    next.stop();
}

#[test]
fn one_of_two_copies_that_the_disk_cannot_read_costs_nothing() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    used(here.path(), &next);
    let mut ann = 3;
    let snapshots = files(here.path(), Path::new("posthaste-data/spool/snapshots"));
    let copies = ["checkpoint.0", "checkpoint.1", "mounts", "mounts.copy"];
    let copies = copies.map(|name| Path::new("posthaste-data/spool").join(name));
    for path in copies.iter().chain(&snapshots) {
        let (tried, what) = (tempfile::tempdir().unwrap(), path.display().to_string());
        copy(here.path(), tried.path());
        let at = tried.path().join(path);
        spoil(&at, How::Unreadable);
        let is_snapshot = snapshots.contains(path);
        if is_snapshot {
            // Its length is looked at first.
            fs::remove_file(&at).unwrap();
            fs::create_dir(&at).unwrap();
        }
        assert_eq!(serves(tried.path(), &next, ann, &what), ann + 1, "{what}: the queue works");
        ann += 1;
        if !is_snapshot {
            assert!(at.is_file() && !at.is_symlink(), "{what} is written anew");
        }
    }
    let at = here.path().join("posthaste-data/spool");
    ["mounts", "mounts.copy"].iter().for_each(|name| spoil(&at.join(name), How::Unreadable));
    assert_eq!(serves(here.path(), &next, ann, "both lists of mounts"), ann + 1);
    let written = fs::read_to_string(at.join("mounts")).unwrap();
    assert!(written.contains(" \ncrc32c "), "{written}");
    next.stop();
}

#[test]
fn without_both_snapshots_the_queue_holds_what_it_does_not_know() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    used(here.path(), &next);
    for path in files(here.path(), Path::new("posthaste-data/spool/snapshots")) {
        spoil(&here.path().join(path), How::Cut);
    }
    let verified = command(here.path(), &["spool", "verify", "posthaste-data"]).output().unwrap();
    let text = String::from_utf8(verified.stdout).unwrap();
    assert_eq!((verified.status.code(), text.matches("snapshots/queue-").count()), (Some(1), 2), "{text}");
    let server = Server::start_as_it_is(here.path());
    for _ in 0..2 {
        server.wait_for_log("a snapshot of the queue cannot be read");
    }
    let waiting = list(here.path(), &[]);
    assert_eq!(waiting.iter().filter(|line| is_held_or_waits(line)).count(), 3, "{waiting:?}");
    server.stop();
    assert_eq!(next.mailbox("there.example", "ann").len(), 3, "none twice");
    let verified = command(here.path(), &["spool", "verify", "posthaste-data"]).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    next.stop();
}

#[test]
fn a_spool_that_was_rebuilt_sends_nothing_again() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    used(here.path(), &next);
    let spool = here.path().join("posthaste-data/spool");
    for name in ["checkpoint.0", "checkpoint.1"] {
        spoil(&spool.join(name), How::Emptied);
    }
    let refused = command(here.path(), &["serve"]).output().unwrap();
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{text}");
    let line = text.lines().find(|line| line.contains("checkpoint")).expect("a line");
    assert!(line.contains("posthaste-data/spool") && line.contains("posthaste spool repair --rebuild"), "{text}");
    let rebuilt = command(here.path(), &["spool", "repair", "posthaste-data", "--rebuild", "new"]).output().unwrap();
    assert!(rebuilt.status.success(), "{rebuilt:?}");
    fs::rename(&spool, here.path().join("old")).unwrap();
    fs::rename(here.path().join("new"), &spool).unwrap();
    let server = Server::start_as_it_is(here.path());
    server.wait_for_log("it is unknown if they have their mail");
    let waiting = list(here.path(), &[]);
    assert!(waiting.iter().all(|line| line["held_by"] == "uncertain"), "{waiting:?}");
    assert_eq!(waiting.iter().filter(|line| is_held_or_waits(line)).count(), 3, "{waiting:?}");
    let mut client = server.hello();
    client.deliver(&["bob@there.example"], b"Subject: y\r\n\r\ny\r\n");
    next.wait_for_mail("there.example", "bob", 1);
    drop(client);
    server.stop();
    assert_eq!(next.mailbox("there.example", "ann").len(), 3, "none twice");
    next.stop();
}

#[test]
fn a_queue_whose_disk_fails_is_stuck_until_a_repair() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    used(here.path(), &next);
    for path in files(here.path(), Path::new("posthaste-data/spool/snapshots")) {
        // Read, it fails as a bad sector does.
        spoil(&here.path().join(&path), How::Removed);
        fs::create_dir(here.path().join(path)).unwrap();
    }
    assert_eq!(serves(here.path(), &next, 3, "a disk that fails"), 3, "it is stuck");
    let repaired = command(here.path(), &["spool", "repair", "posthaste-data"]).output().unwrap();
    let text = String::from_utf8(repaired.stdout).unwrap();
    assert!(repaired.status.success() && text.matches("its stream starts without it").count() == 2, "{text}");
    let server = Server::start_as_it_is(here.path());
    let waiting = list(here.path(), &[]);
    assert_eq!(waiting.iter().filter(|line| is_held_or_waits(line)).count(), 3, "{waiting:?}");
    server.stop();
    assert_eq!(next.mailbox("there.example", "ann").len(), 3, "none twice");
    next.stop();
}

/// Messages in the spool of the killed server, each with three recipients: one delivered to another host, one waiting,
/// and one here.
const KILLED: usize = 24;

/// A server delivers mail here and to the next hop, in several segments of the log, and some mail waits; then it is
/// killed.
fn killed(dir: &Path, next: &Server) {
    let config = relaying::config(next.addresses[0].port(), EVENTS);
    let server = Server::start(dir, &config);
    let mut client = server.hello();
    let body = "y".repeat(70) + "\r\n";
    for nth in 0..KILLED {
        let message = format!("Subject: n{nth}.\r\n\r\n{}", body.repeat(5500));
        client.deliver(&["eve@here.example", "ann@there.example", "slow@there.example"], message.as_bytes());
    }
    server.wait_for_mail("here.example", "eve", KILLED);
    next.wait_for_mail("there.example", "ann", KILLED);
    relaying::wait_for_queue(dir, "all of them are deferred", |waiting| {
        waiting.len() == KILLED && waiting.iter().all(|line| line["attempts"].as_u64() >= Some(1))
    });
    // The event log writes what is durable: with this, it is on record that ann has had hers.
    let is_recorded = || {
        let log = fs::read_to_string(dir.join("posthaste-data/events/events-00000001.jsonl")).unwrap_or_default();
        log.lines()
            .filter(|line| line.contains("ann@there.example") && line.contains("\"event\":\"delivered\""))
            .count()
    };
    let deadline = Instant::now() + PATIENCE;
    while is_recorded() < KILLED {
        assert!(Instant::now() < deadline, "{} are recorded", is_recorded());
        std::thread::sleep(Duration::from_millis(10));
    }
    server.signal(Signal::KILL);
    drop(client);
    let mut server = server;
    server.wait();
}

/// The numbers of the messages that a text reports as lost: `batches A to B`, `batch N` and `batch=N`.
fn told_lost(text: &str) -> Vec<std::ops::RangeInclusive<u64>> {
    let number = |text: &str| text.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok();
    let ranges =
        text.split("batches ").skip(1).filter_map(|rest| Some(number(rest)?..=number(rest.split_once(" to ")?.1)?));
    let open = text.split("batches from ").skip(1).filter_map(|rest| Some(number(rest)?..=u64::MAX));
    let single = |before| text.split(before).skip(1).filter_map(move |rest| number(rest).map(|one| one..=one));
    ranges.chain(open).chain(single("batch ")).chain(single("batch=")).collect()
}

/// Runs the repair command from the message of a server that refused to start: one line with the spool and a command.
fn repaired(dir: &Path, what: &str) -> String {
    let refused = command(dir, &["serve"]).output().unwrap();
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{what}: {text}");
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains(" INFO ")).collect();
    let told =
        lines.iter().filter(|line| line.contains("posthaste-data/spool") && line.contains("posthaste spool repair"));
    assert_eq!(told.count(), 1, "{what}: {text}");
    let run = |args: &[&str]| command(dir, args).output().unwrap();
    if text.contains("--rebuild") {
        let rebuilt = run(&["spool", "repair", "posthaste-data", "--rebuild", "new"]);
        fs::rename(dir.join("posthaste-data/spool"), dir.join("old")).unwrap();
        fs::rename(dir.join("new"), dir.join("posthaste-data/spool")).unwrap();
        return String::from_utf8([rebuilt.stdout, rebuilt.stderr].concat()).unwrap();
    }
    let verified = run(&["spool", "verify", "posthaste-data"]);
    assert_eq!(verified.status.code(), Some(1), "{what}: {verified:?}");
    let given_up = run(&["spool", "repair", "posthaste-data", "--give-up-damaged"]);
    let text = String::from_utf8([given_up.stdout, given_up.stderr].concat()).unwrap();
    assert!(text.contains("GIVEN UP: segments of the log: "), "{what}: {text}");
    text
}

fn message_of(line: &Value) -> u64 {
    line["id"].as_str().unwrap().split_once('.').unwrap().0.parse().unwrap()
}

/// Starts the server, after the command that it asks for if any, and accounts for every recipient.
fn accounts(dir: &Path, next: &Server, ids: &[u64], what: &str) -> bool {
    let (mut told, mut is_refused) = (String::new(), false);
    let server = Server::try_start(dir).unwrap_or_else(|_| {
        (told, is_refused) = (repaired(dir, what), true);
        Server::start_as_it_is(dir)
    });
    let before = next.mailbox("there.example", "bob").len();
    let mut client = server.hello();
    client.deliver(&["bob@there.example", "eve@here.example"], b"Subject: y\r\n\r\ny\r\n");
    next.wait_for_mail("there.example", "bob", before + 1);
    drop(client);
    let waiting = list(dir, &[]);
    told += &server.log_text();
    server.stop();
    let lost = told_lost(&told);
    for id in ids {
        let of_it = |line: &&Value| message_of(line) == *id;
        let is_listed = waiting.iter().filter(of_it).any(|line| line["recipient"] == "slow@there.example");
        assert!(is_listed || lost.iter().any(|range| range.contains(id)), "{what}: {id} is lost: {told}\n{waiting:?}");
    }
    let (ann, slow) = (next.mailbox("there.example", "ann"), next.mailbox("there.example", "slow"));
    assert_eq!((ann.len(), slow.len()), (KILLED, 0), "{what}: none twice\n{told}");
    // Nobody here has lost or doubled anything either, as all of it was in the mailbox.
    let eve = server_mailbox(dir);
    for nth in 0..KILLED {
        let copies = eve.iter().filter(|mail| mail.text().contains(&format!("Subject: n{nth}."))).count();
        assert_eq!(copies, 1, "{what}: message {nth} here");
    }
    is_refused
}

fn server_mailbox(dir: &Path) -> Vec<crate::support::Stored> {
    crate::support::mailbox(dir, "here.example", "eve")
}

#[test]
fn a_killed_spool_accounts_for_any_file_that_is_lost() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path(), ANYWHERE);
    killed(here.path(), &next);
    let spool = Path::new("posthaste-data/spool");
    let all = files(here.path(), spool);
    let baseline = tempfile::tempdir().unwrap();
    copy(here.path(), baseline.path());
    let server = Server::start_as_it_is(baseline.path());
    let waiting = list(baseline.path(), &[]);
    let ids: Vec<u64> = waiting.iter().map(message_of).collect();
    server.stop();
    assert_eq!(ids.len(), KILLED, "{waiting:?}");
    let segments: Vec<&PathBuf> = all.iter().filter(|path| path.extension().is_some_and(|it| it == "seg")).collect();
    assert!(segments.len() >= 4 && all.contains(&spool.join("segments")), "{all:?}");
    let mut refused = Vec::new();
    let one = all.iter().map(std::slice::from_ref).map(<[PathBuf]>::to_vec);
    let many = [
        segments.iter().map(|path| (*path).clone()).collect(),
        vec![spool.join("checkpoint.0"), spool.join("checkpoint.1")],
    ];
    for paths in one.chain(many) {
        for how in [How::Removed, How::Emptied, How::Cut, How::Flipped] {
            let tried = tempfile::tempdir().unwrap();
            copy(here.path(), tried.path());
            paths.iter().for_each(|path| spoil(&tried.path().join(path), how));
            if accounts(tried.path(), &next, &ids, &format!("{paths:?} {how:?}")) {
                refused.push((paths.clone(), how));
            }
        }
    }
    assert!(refused.len() > 6, "{refused:?}");
    next.stop();
}
