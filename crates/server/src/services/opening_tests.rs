//! Log lines about a spool that is damaged, large or in trouble.

use super::*;
use crate::test_log::logged;

fn damage(lsn: Option<u64>, place: &str, what: &str) -> Damage {
    Damage { lsn: lsn.map(Lsn::new), place: place.into(), what: what.into() }
}

#[test]
fn an_unfinished_write_is_no_damage() {
    let mut found = OpenReport::default();
    found.cut_off = vec![damage(Some(9), "00000003.seg", "torn")];
    assert_eq!(
        logged(|| tell(&found)),
        [
            "INFO an unfinished write of the last run was cut off; nothing of it was acknowledged batch=9 place=\"00000003.seg\" what=\"torn\""
        ]
    );
}

#[test]
fn what_happens_to_a_spool_at_work_has_its_line_and_level() {
    let error = || "no such device".to_owned();
    let space = |is_short| SpoolEvent::ShortOfSpace { is_short, free_bytes: 5, free_inodes: 6 };
    for (event, line) in [
        (
            SpoolEvent::CheckpointFailed { error: error() },
            "ERROR a checkpoint of the spool failed: nothing is freed until one succeeds error=\"no such device\"",
        ),
        (
            SpoolEvent::CheckpointSlow { took: Duration::from_secs(31) },
            "WARN a checkpoint of the spool took long: its disk is slow seconds=31",
        ),
        (
            SpoolEvent::PackingFailed { error: error() },
            "ERROR waiting mail could not be moved into a pack: the log of the spool fills error=\"no such device\"",
        ),
        (
            SpoolEvent::SegmentFailed { error: error() },
            "ERROR a log file of the spool cannot be made: mail that needs it is refused error=\"no such device\"",
        ),
        (
            SpoolEvent::Poisoned { why: "EIO".into() },
            "ERROR stable storage failed: no mail is accepted until the cause is fixed and the server restarted why=\"EIO\"",
        ),
        (
            SpoolEvent::Damage(damage(Some(9), "pack 3", "a checksum does not fit")),
            "ERROR the spool is damaged batch=9 place=\"pack 3\" what=\"a checksum does not fit\"",
        ),
        (SpoolEvent::Damage(damage(None, "x", "y")), "ERROR the spool is damaged place=\"x\" what=\"y\""),
        (space(true), "WARN the file system of the spool is nearly full: mail is refused free_bytes=5 free_inodes=6"),
        (space(false), "INFO the file system of the spool has room again free_bytes=5 free_inodes=6"),
    ] {
        assert_eq!(logged(|| log(event, &Repeats::default())), [line]);
    }
}

#[test]
fn a_lasting_failure_is_logged_once_and_hides_no_other() {
    let repeats = Repeats::default();
    let failing = || SpoolEvent::CheckpointFailed { error: "no such device".into() };
    let lines = logged(|| (0..100).for_each(|_| log(failing(), &repeats)));
    assert!((1..10).contains(&lines.len()), "{lines:?}");
    assert_eq!(logged(|| log(SpoolEvent::PackingFailed { error: "x".into() }, &repeats)).len(), 1);
    assert_eq!(logged(|| log(SpoolEvent::Damage(damage(None, "x", "y")), &repeats)).len(), 1, "damage is always told");
}
