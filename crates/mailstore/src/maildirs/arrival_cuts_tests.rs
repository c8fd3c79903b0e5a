//! Mail that was accepted, after a power cut at any call.

use posthaste_fsops::{Choice, Cut, Faults, Machine};

use super::*;
use crate::maildirs::tests::check_counters;

/// Scenario 3: a UID that was shown is never given again, wherever the power is cut.
#[test]
fn shown_uids_are_never_given_again_after_a_cut_at_any_call() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::new().unwrap();
    const MESSAGES: usize = 5;
    runtime.block_on(async {
        let world = open(dir.path(), machine.path());
        for number in 0..MESSAGES {
            world.accept(&number.to_string()).await;
            machine.acknowledge(number as u64 + 1);
            if number == 2 {
                world.store.ledger().commit().unwrap();
                world.spool.checkpoint().unwrap();
            }
        }
    });
    let recording = machine.recording();
    for position in 0..=recording.events.len() {
        let acknowledged = recording.acknowledged_before(position).last().unwrap_or(0) as usize;
        let choice = Choice::Seed(position as u64 * 3);
        let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
        runtime.block_on(async {
            let world = open(dir.path(), machine.path());
            let mut view = world.select().await;
            let there = view.exists() as usize;
            // Each that was acknowledged has its UID; the one under way may be there.
            assert!((acknowledged..=acknowledged + 1).contains(&there), "{position}: {there} of {acknowledged}");
            for number in 0..there {
                let text = read(&*view, number as u32 + 1).await.unwrap();
                assert_eq!(text, wire(&number.to_string()), "{position}");
            }
            world.accept("next").await;
            view.advance(true).await.unwrap();
            assert_eq!(view.last_uid().unwrap().get() as usize, there + 1, "{position}");
            check_counters(world.store.ledger(), dir.path(), machine.path());
        });
    }
}

/// Scenario 25: the power is cut around the entry that cancels a batch. That entry is in the next write: mail that was given up may come back before it, and not once a
/// later message was seen.
#[test]
fn mail_that_was_given_up_takes_no_uid_that_was_seen() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::new().unwrap();
    let seen = runtime.block_on(async {
        let world = open(dir.path(), machine.path());
        world.accept("first").await;
        machine.acknowledge(1);
        machine.set_faults(Faults { hang_syncs: Some(b"given up".to_vec()), ..Faults::default() });
        let before = machine.position();
        let is_written = async {
            while machine.position() == before {
                tokio::task::yield_now().await;
            }
        };
        let given_up = world.intake.accept_unless(&world.list, &mail(INBOX), body("given up"), is_written).await;
        assert!(matches!(given_up, Err(IntakeError::Cancelled)), "{given_up:?}");
        let goes_on = async { machine.set_faults(Faults::default()) };
        tokio::join!(world.accept("second"), goes_on);
        machine.acknowledge(2);
        // It has what the entry would say.
        world.spool.checkpoint().unwrap();
        machine.acknowledge(3);
        world.accept("third").await;
        machine.acknowledge(4);
        all(&*world.select().await).await
    });
    let texts: Vec<&str> = seen.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, ["first", "second", "third"].map(wire));
    let recording = machine.recording();
    let mut came_back = 0;
    for position in 0..=recording.events.len() {
        let acknowledged = recording.acknowledged_before(position).last().unwrap_or(0);
        let messages = [0, 1, 2, 2, 3][acknowledged as usize];
        let choice = Choice::Seed(position as u64 * 5);
        let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
        runtime.block_on(async {
            let world = open(dir.path(), machine.path());
            let mut view = world.select().await;
            let there = all(&*view).await;
            let (given_up, kept): (Vec<_>, Vec<_>) =
                there.iter().cloned().partition(|(_, text)| *text == wire("given up"));
            assert!(kept.starts_with(&seen[..messages]), "{position}: {there:?}");
            // One that was on its way may be there, with the UID that it was given.
            assert!(seen.starts_with(&kept), "{position}: {there:?}");
            let is_free = given_up.iter().all(|(uid, _)| seen.iter().all(|(seen, _)| seen != uid));
            assert!(given_up.len() <= 1 && is_free, "{position}: {there:?}");
            assert!(acknowledged < 2 || given_up.is_empty(), "{position}: {there:?}");
            came_back += given_up.len();
            world.accept("next").await;
            view.advance(true).await.unwrap();
            let next = view.last_uid().unwrap().get();
            assert!(there.iter().all(|(uid, _)| *uid < next), "{position}: {next} after {there:?}");
            check_counters(world.store.ledger(), dir.path(), machine.path());
        });
    }
    assert!(came_back > 0, "no cut has shown the exception that is documented");
}

/// Scenario 8 in the form `maildir`: bodies in the spool belong to delivery alone. A copy of awaited mail has its own file, and outlives their release.
#[test]
fn a_copy_of_awaited_mail_outlives_the_body_after_any_cut() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let machine = Machine::new().unwrap();
    let mail = machine.path().join("mail");
    Maildir::open_or_create(mail.join(INBOX)).unwrap();
    Maildir::open_or_create(mail.join(INBOX).join(".Sent")).unwrap();
    for dir in ["", "mail", "mail/me", "mail/me/Maildir", "mail/me/Maildir/.Sent"] {
        posthaste_fsops::fsync(std::fs::File::open(machine.path().join(dir)).unwrap()).unwrap();
    }
    let lsn = runtime.block_on(async {
        let world = open(&mail, machine.path());
        machine.acknowledge(0);
        let receipt = world.accept("one").await;
        machine.acknowledge(1);
        let sent = world.select_named("Sent").await.id();
        world.select().await.copy(&crate::MessageSet::all(), sent).await.unwrap().expect("it is there");
        machine.acknowledge(2);
        world.deliver(&mail, &receipt, "one");
        machine.acknowledge(3);
        world.release(&[&receipt]);
        assert!(!world.spool.needs_body(world.local, receipt.lsn));
        machine.acknowledge(4);
        receipt.lsn
    });
    let recording = machine.recording();
    for position in 0..=recording.events.len() {
        let Some(last) = recording.acknowledged_before(position).last() else { continue };
        let choice = Choice::Seed(position as u64 * 3);
        let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
        let mail = machine.path().join("mail");
        runtime.block_on(async {
            // Delivery does its part once more, as it does after each start; a release that is there already is not made again.
            for is_again in [false, true] {
                let world = open(&mail, machine.path());
                let inbox = all(&*world.select().await).await;
                let copies = all(&*world.select_named("Sent").await).await;
                assert!(inbox.len() <= 1 && copies.len() <= inbox.len(), "{position}: {inbox:?}, {copies:?}");
                assert!(inbox.iter().chain(&copies).all(|(uid, text)| (*uid, text) == (1, &wire("one"))), "{position}");
                assert!(inbox.len() as u64 >= last.min(1) && (last < 2 || copies.len() == 1), "{position}: {last}");
                assert!(
                    !is_again || !world.spool.needs_body(world.local, lsn),
                    "{position}: the body is kept for ever"
                );
                if !inbox.is_empty() && world.spool.needs_body(world.local, lsn) {
                    let receipt = Receipt { lsn, entries: Vec::new() };
                    let is_there = std::fs::read_dir(mail.join(INBOX).join("new")).unwrap().next().is_some();
                    if !is_there {
                        world.deliver(&mail, &receipt, "one");
                    }
                    world.release(&[&receipt]);
                }
            }
        });
    }
}
