//! Accounts of small stores.

use std::path::Path;

use super::compare::*;
use super::ledger::Ledger;
use super::stores::parse_id;
use crate::sink::DIR_INDEX;
use crate::stamp::{self, Id};

const RUN: u64 = 0xfeed;

fn message(number: u64) -> Vec<u8> {
    let rest = format!("Subject: {number}\r\n\r\ntext\r\n");
    (stamp::field(Id { run: RUN, number }, rest.as_bytes()) + &rest).into_bytes()
}

fn write(dir: &Path, name: &str, octets: &[u8]) {
    std::fs::write(dir.join(name), octets).unwrap();
}

fn ledger(messages: &[(u16, u16)]) -> Ledger {
    let mut ledger = Ledger::new(RUN);
    (0..).zip(messages).for_each(|(number, (acked, uncertain))| ledger.set(number, *acked, *uncertain));
    ledger
}

fn ids(list: &[Finding]) -> Vec<u64> {
    list.iter().map(|finding| parse_id(&finding.id).unwrap().number).collect()
}

#[test]
fn each_kind_of_fault_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let (at, put) = (dir.path(), |name: &str, number| write(dir.path(), name, &message(number)));
    put("0", 0);
    put("2", 2);
    put("2again", 2);
    write(at, "3", &[&message(3)[..], b"more\r\n"].concat());
    put("4", 4);
    put("9", 9);
    put("6", 6);
    write(at, "foreign", b"Subject: x\n\nhello\n");
    write(at, DIR_INDEX, b"{}\n");
    // 1 is lost, 2 there twice, 3 altered, 4 refused but there, 5 and 6 uncertain, 9 never sent.
    let ledger = ledger(&[(1, 0), (1, 0), (1, 0), (1, 0), (0, 0), (0, 1), (0, 1)]);
    let account = account(&ledger, &[at.to_owned()], &[], None).unwrap();
    assert_eq!(ids(&account.lost), [1]);
    assert_eq!(ids(&account.duplicated), [2]);
    assert_eq!(ids(&account.altered), [3]);
    assert_eq!(ids(&account.unexpected), [4, 9]);
    assert_eq!((account.acked, account.expected, account.found), (4, 4, 7));
    assert_eq!((account.uncertain_found, account.uncertain_absent, account.unstamped), (1, 1, 1));
    let names = |finding: &Finding| -> Vec<String> {
        finding.places.iter().map(|place| place.rsplit('/').next().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&account.duplicated[0]), ["2", "2again"], "both of them");
    assert_eq!((names(&account.altered[0]), names(&account.unexpected[0])), (vec!["3".into()], vec!["4".into()]));
    let text = account.to_text(1);
    assert!(text.contains("1 lost, 1 duplicated, 1 altered, 2 unexpected"), "{text}");
    assert!(text.contains("… and 1 more unexpected"), "{text}");
}

#[test]
fn recipients_have_a_copy_each_unless_the_store_keeps_one() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        write(dir.path(), name, &message(0));
    }
    let stores = [dir.path().to_owned()];
    let check = |acked, uncertain, copies| {
        let account = account(&ledger(&[(acked, uncertain)]), &stores, &[], Some(copies)).unwrap();
        (account.lost.len(), account.duplicated.len())
    };
    assert_eq!(check(3, 0, Copies::PerRecipient), (0, 0));
    assert_eq!(check(4, 0, Copies::PerRecipient), (1, 0));
    assert_eq!(check(2, 0, Copies::PerRecipient), (0, 1));
    assert_eq!(check(2, 1, Copies::PerRecipient), (0, 0));
    assert_eq!(check(3, 0, Copies::PerMessage), (0, 1));
}

#[test]
fn one_copy_for_several_recipients_differs_from_a_loss() {
    let dir = tempfile::tempdir().unwrap();
    (0..3).for_each(|number| write(dir.path(), &number.to_string(), &message(number)));
    let stores = [dir.path().to_owned()];
    let check = |messages: &[(u16, u16)], copies| {
        let account = account(&ledger(messages), &stores, &[], copies).unwrap();
        assert_eq!(account.to_text(1).contains("--copies message"), account.hint().is_some());
        account.hint().is_some()
    };
    assert!(check(&[(2, 0), (2, 0), (2, 0)], None));
    assert!(check(&[(2, 0), (1, 0), (2, 0), (2, 0)], None), "also where one is lost");
    assert!(!check(&[(2, 0), (2, 0), (2, 0)], Some(Copies::PerMessage)));
    assert!(!check(&[(1, 0), (1, 0), (1, 0), (1, 0)], None), "one recipient each: it is lost");
    write(dir.path(), "again", &message(0));
    assert!(!check(&[(2, 0), (2, 0), (2, 0)], None), "some have a copy for each");
}

#[test]
fn a_duplicate_in_one_maildir_replaces_no_other_copy() {
    let dir = tempfile::tempdir().unwrap();
    let put = |maildir: &str, name: &str, number| {
        let maildir = dir.path().join(maildir);
        ["new", "cur"].iter().for_each(|sub| std::fs::create_dir_all(maildir.join(sub)).unwrap());
        write(&maildir.join("new"), name, &message(number));
    };
    // 0 is twice with a, once in a folder, and not with b; 1 is with both.
    put("a", "x", 0);
    put("a/.Junk", "x", 0);
    put("a", "y", 1);
    put("b", "y", 1);
    let stores = [dir.path().to_owned()];
    let found = account(&ledger(&[(2, 0), (2, 0)]), &stores, &[], None).unwrap();
    assert_eq!((ids(&found.lost), ids(&found.duplicated)), (vec![0], vec![0]), "{found:?}");
    assert_eq!((found.lost[0].found, found.duplicated[0].found, found.found), (1, 2, 4));
    assert!(found.duplicated[0].places[0].contains("/a/"), "{found:?}");
    // Three recipients of whom one is uncertain: the second copy is still no one's.
    let found = account(&ledger(&[(2, 1), (2, 0)]), &stores, &[], None).unwrap();
    assert_eq!((ids(&found.lost), ids(&found.duplicated)), (vec![0], vec![0]), "{found:?}");
    let found = account(&ledger(&[(2, 0), (2, 0)]), &stores, &[], Some(Copies::PerMessage)).unwrap();
    assert_eq!((found.lost.len(), found.duplicated.len()), (0, 2), "one store, one copy: {found:?}");
}

#[test]
fn a_sinks_account_file_counts_each_line() {
    let dir = tempfile::tempdir().unwrap();
    let line = |number: u64, intact: bool| format!("{{\"id\":\"{RUN:016x}.{number}\",\"intact\":{intact}}}\n");
    let path = dir.path().join("seen.jsonl");
    std::fs::write(&path, line(0, true) + &line(1, false)).unwrap();
    let account = account(&ledger(&[(5, 0), (1, 0), (1, 0)]), std::slice::from_ref(&path), &[], None).unwrap();
    assert_eq!((account.copies, account.expected), (Copies::PerMessage, 3));
    assert_eq!((ids(&account.lost), ids(&account.altered)), (vec![2], vec![1]));
    std::fs::write(&path, "{\"id\":\"x\",\"intact\":true}\n").unwrap();
    assert!(super::account(&ledger(&[]), &[path], &[], None).is_err());
}

#[test]
fn every_copy_of_a_duplicate_is_named_in_whatever_store() {
    let dir = tempfile::tempdir().unwrap();
    let entry = |number| [b"From a@b Mon\n", &message(number)[..], b"\n"].concat();
    write(dir.path(), "mbox", &[entry(0), entry(1), entry(0)].concat());
    let line = |number: u64| format!("{{\"id\":\"{RUN:016x}.{number}\",\"intact\":true}}\n");
    write(dir.path(), "seen.jsonl", (line(0) + &line(2) + &line(0)).as_bytes());
    for (file, places) in
        [("mbox", ["mbox, message 1", "mbox, message 3"]), ("seen.jsonl", ["seen.jsonl:1", "seen.jsonl:3"])]
    {
        let account = account(&ledger(&[(1, 0), (1, 0), (1, 0)]), &[dir.path().join(file)], &[], None).unwrap();
        let found: Vec<_> =
            account.duplicated[0].places.iter().map(|place| place.rsplit('/').next().unwrap()).collect();
        assert_eq!(found, places);
        let text = account.to_text(10);
        assert!(places.iter().all(|place| text.contains(place)), "{text}");
    }
}

#[test]
fn a_line_still_being_written_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("seen.jsonl");
    let line = |number: u64| format!("{{\"id\":\"{RUN:016x}.{number}\",\"intact\":true}}\n");
    let (first, second) = (line(0), line(1));
    let look = || account(&ledger(&[(1, 0), (1, 0)]), std::slice::from_ref(&path), &[], None).unwrap();
    for half in 0..second.len() {
        std::fs::write(&path, first.clone() + &second[..half]).unwrap();
        let account = look();
        assert_eq!((account.found, ids(&account.lost), account.may_still_change()), (1, vec![1], true), "{half}");
        assert_eq!(account.unfinished.len(), usize::from(half > 0));
        assert_eq!(account.to_text(1).contains("in the middle of a line"), half > 0);
    }
    std::fs::write(&path, first + &second).unwrap();
    assert!(look().is_clean() && !look().may_still_change());
}

/// A copy in the spool that waits for `mailbox`.
fn waiting(number: u64, mailbox: &str) -> Waiting {
    let stamp = stamp::Found { id: Id { run: RUN, number }, is_intact: true, signatures: 0 };
    Waiting { stamp, mailbox: format!("example.org/{mailbox}/Maildir"), why: Some("Permission denied".into()) }
}

#[test]
fn mail_in_the_spool_waits_and_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let put = |user: &str, number: u64| {
        let maildir = dir.path().join("example.org").join(user).join("Maildir");
        ["new", "cur"].iter().for_each(|sub| std::fs::create_dir_all(maildir.join(sub)).unwrap());
        write(&maildir.join("new"), &number.to_string(), &message(number));
    };
    // 0 is with a and waits for b; 1 waits for both; 2 is with a and nowhere with b; 3 is delivered but not noted as such.
    put("a", 0);
    put("a", 2);
    put("a", 3);
    put("b", 3);
    let spool = [waiting(0, "b"), waiting(1, "a"), waiting(1, "b"), waiting(2, "a"), waiting(3, "a")];
    let look = |messages: &[(u16, u16)]| account(&ledger(messages), &[dir.path().to_owned()], &spool, None).unwrap();
    let found = look(&[(2, 0), (2, 0), (2, 0), (2, 0)]);
    assert_eq!((ids(&found.lost), found.duplicated.len(), found.unexpected.len()), (vec![2], 0, 0), "{found:?}");
    let counts: Vec<_> = found.waiting.iter().map(|mailbox| (mailbox.mailbox.as_str(), mailbox.copies)).collect();
    assert_eq!(counts, [("example.org/a/Maildir", 1), ("example.org/b/Maildir", 2)]);
    assert!(found.may_still_change());
    let text = found.to_text(10);
    assert!(text.contains("3 copies wait") && text.contains("example.org/b/Maildir: 2 (Permission denied)"), "{text}");
    // Refused, and in the spool: it will be delivered though nobody was told so.
    let found = look(&[(2, 0), (0, 0), (1, 0), (2, 0)]);
    assert_eq!((ids(&found.unexpected), found.waiting_copies()), (vec![1], 1), "{found:?}");
    // Uncertain: it will be there.
    let found = look(&[(2, 0), (0, 2), (1, 0), (2, 0)]);
    assert!(found.is_clean() && found.uncertain_found == 1, "{found:?}");
}
