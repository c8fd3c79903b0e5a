//! What an operator reads of a spool that is damaged, large or in trouble.

use posthaste_spool::{Damage, OpenReport};

use super::*;
use crate::test_log::logged;

fn damage(lsn: Option<u64>, place: &str, what: &str) -> Damage {
    Damage { lsn: lsn.map(Lsn::new), place: place.into(), what: what.into() }
}

#[test]
fn a_sound_spool_is_one_line() {
    let report = ReplayReport { messages: 1_000_000, restored: 3, given_up: 2, deferred: 1, ..ReplayReport::default() };
    assert_eq!(logged(|| tell(&report)), ["INFO spool replayed messages=1000000 restored=3 given_up=2 deferred=1"]);
}

#[test]
fn each_thing_that_opening_finds_has_its_line_and_level() {
    let mut spool = OpenReport::default();
    spool.cut_off = vec![damage(Some(9), "00000003.seg", "torn")];
    let report = ReplayReport {
        damaged: vec![Lsn::new(5), Lsn::new(6)],
        unknown: vec![Lsn::new(20), Lsn::new(21)],
        spool: Some(spool),
        ..ReplayReport::default()
    };
    assert_eq!(
        logged(|| tell(&report)),
        [
            "INFO an unfinished write of the last run was cut off; nothing of it was acknowledged batch=9 place=\"00000003.seg\" what=\"torn\"",
            "ERROR entries that a later version wrote stay in the spool batches=2 first=20",
            "ERROR a batch of the spool cannot be read: what it said to local delivery is lost batch=5",
            "ERROR a batch of the spool cannot be read: what it said to local delivery is lost batch=6",
            "INFO spool replayed messages=0 restored=0 given_up=0 deferred=0",
        ]
    );
}

#[test]
fn lost_mail_is_named_with_its_mailbox_and_what_is_left_of_it() {
    let mut lost = LostMail::default();
    (lost.id, lost.received_secs, lost.bytes) = (4, 1_700_000_000, 2_000_000);
    (lost.mailbox, lost.error) = ("example.org/ann/Maildir".into(), "a checksum does not fit".into());
    (lost.kept, lost.is_there) = (Some("/data/spool/orphans/4".into()), true);
    let lines = logged(|| log_lost(&lost));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("ERROR MAIL LOST: its body in the spool cannot be read any more; "), "{lines:?}");
    for field in [
        " id=4 ",
        "mailbox=\"example.org/ann/Maildir\"",
        "bytes=2000000",
        "received_secs=1700000000",
        "error=\"a checksum does not fit\"",
        "kept=\"/data/spool/orphans/4\"",
        "file_in_mailbox=true",
    ] {
        assert!(lines[0].contains(field), "{field} in {lines:?}");
    }
}

#[test]
fn what_happens_to_a_spool_at_work_has_its_line_and_level() {
    let error = || "no such device".to_owned();
    let space = |is_short| Event::ShortOfSpace { is_short, free_bytes: 5, free_inodes: 6 };
    for (event, line) in [
        (
            Event::CheckpointFailed { error: error() },
            "ERROR a checkpoint of the spool failed: nothing is freed until one succeeds error=\"no such device\"",
        ),
        (
            Event::CheckpointSlow { took: Duration::from_secs(31) },
            "WARN a checkpoint of the spool took long: its disk is slow seconds=31",
        ),
        (
            Event::PackingFailed { error: error() },
            "ERROR waiting mail could not be moved into a pack: the log of the spool fills error=\"no such device\"",
        ),
        (
            Event::SegmentFailed { error: error() },
            "ERROR a log file of the spool cannot be made: mail that needs it is refused error=\"no such device\"",
        ),
        (
            Event::Poisoned { why: "EIO".into() },
            "ERROR stable storage failed: no mail is accepted until a restart, once its cause is gone why=\"EIO\"",
        ),
        (
            Event::Damage(damage(Some(9), "pack 3", "a checksum does not fit")),
            "ERROR the spool is damaged batch=9 place=\"pack 3\" what=\"a checksum does not fit\"",
        ),
        (Event::Damage(damage(None, "x", "y")), "ERROR the spool is damaged place=\"x\" what=\"y\""),
        (space(true), "WARN the file system of the spool is nearly full: mail is refused free_bytes=5 free_inodes=6"),
        (space(false), "INFO the file system of the spool has room again free_bytes=5 free_inodes=6"),
    ] {
        assert_eq!(logged(|| log(event, &Repeats::default())), [line]);
    }
}

#[test]
fn a_failure_that_lasts_is_not_repeated_each_time_and_others_are_not_left_out_for_it() {
    let repeats = Repeats::default();
    let failing = || Event::CheckpointFailed { error: "no such device".into() };
    let lines = logged(|| (0..100).for_each(|_| log(failing(), &repeats)));
    assert!((1..10).contains(&lines.len()), "{lines:?}");
    assert_eq!(logged(|| log(Event::PackingFailed { error: "x".into() }, &repeats)).len(), 1);
    assert_eq!(logged(|| log(Event::Damage(damage(None, "x", "y")), &repeats)).len(), 1, "damage is always told");
}
