//! Log lines about mail that is replayed or lost.

use posthaste_spool::Lsn;

use super::*;
use crate::test_log::logged;

#[test]
fn a_sound_spool_is_one_line() {
    let report = ReplayReport { messages: 1_000_000, restored: 3, given_up: 2, deferred: 1, ..ReplayReport::default() };
    assert_eq!(logged(|| tell(&report)), ["INFO spool replayed messages=1000000 restored=3 given_up=2 deferred=1"]);
}

#[test]
fn entries_that_cannot_be_read_are_named() {
    let report = ReplayReport {
        damaged: vec![Lsn::new(5), Lsn::new(6)],
        unknown: vec![Lsn::new(20), Lsn::new(21)],
        ..ReplayReport::default()
    };
    assert_eq!(
        logged(|| tell(&report)),
        [
            "ERROR entries that a later version wrote stay in the spool batches=2 first=20",
            "ERROR a batch of the spool cannot be read: its entry for local delivery is lost batch=5",
            "ERROR a batch of the spool cannot be read: its entry for local delivery is lost batch=6",
            "INFO spool replayed messages=0 restored=0 given_up=0 deferred=0",
        ]
    );
}

#[test]
fn lost_mail_is_named_with_its_mailbox_and_what_is_left_of_it() {
    let mut lost = LostMailboxMail::default();
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
