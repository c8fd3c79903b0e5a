//! Numbers and facts that clients and delivery were told are kept after a kill.

use std::collections::HashSet;
use std::sync::Arc;

use posthaste_fsops::Machine;

use super::tests::{MAILBOX, found, open, open_spool, open_with, steps};
use super::*;
use crate::entry::{BodyKind, BodyOrigin, BodyPlace, GoneReason, MessageFacts, NewMessage, StateGroup};
use crate::row::NumberRange;

/// Sessions take the LSN of each entry of their mailbox as its HIGHESTMODSEQ, whatever the entry's kind.
#[test]
fn a_modseq_that_was_told_is_kept_after_a_kill() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    steps()[..2].iter().for_each(|step| assert!(ledger.append(step).is_ok()));
    drop(ledger);
    let uid = || vec![NumberRange { first: 1, last: 1 }];
    let seen = StateGroup { set: uid(), flags: 1, letters: 0 };
    let alone = [
        MailEntry::Keyword { mailbox: MAILBOX, bit: 9, name: Bytes::from_static(b"alone") },
        MailEntry::Name { mailbox: MAILBOX, uid: 2, name: Bytes::from_static(b"other") },
        MailEntry::State { mailbox: MAILBOX, groups: vec![seen] },
        MailEntry::Gone { mailbox: MAILBOX, set: uid(), reason: GoneReason::Expunged, when: 3 },
        found(8, 1),
    ];
    for (entry, commits) in alone.into_iter().flat_map(|entry| [(entry.clone(), false), (entry, true)]) {
        let spool = open_spool(&machine);
        let (ledger, _) = open_with(&machine, Arc::clone(&spool));
        ledger.follow(MAILBOX).unwrap();
        ledger.append(std::slice::from_ref(&entry)).unwrap();
        let tail = ledger.take_tail(MAILBOX).unwrap();
        let told = tail.last().expect("sessions see it").0;
        if commits {
            ledger.commit().unwrap();
        }
        machine.kill();
        drop(ledger);
        drop(spool);
        machine.go_on();
        let (ledger, _) = open(&machine);
        assert_eq!(ledger.head(MAILBOX).unwrap().unwrap().highest_modseq, told, "{entry:?}, committed: {commits}");
    }
}

/// Delivery makes no file of it again. A copy's row has the body of the message that it is a copy of.
#[test]
fn an_expunged_copy_is_no_expunged_delivery() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    ledger.append(&steps()[0]).unwrap();
    let new = |first_uid, target, place| MailEntry::New {
        mailbox: MAILBOX,
        first_uid,
        messages: vec![NewMessage { facts: MessageFacts::default(), target, kind: BodyKind::Own, place }],
    };
    let delivered = |first_uid, target| new(first_uid, target, BodyPlace::Batch { prefix: Bytes::new() });
    let lsn = ledger.append(&[delivered(1, 0), delivered(2, 1)]).unwrap();
    let origin = BodyOrigin { lsn, email_id: (0, 0), name: Bytes::from_static(b"1.copy.h") };
    ledger.append(&[new(3, 1, BodyPlace::Copied(origin))]).unwrap();
    let set = vec![NumberRange { first: 1, last: 1 }, NumberRange { first: 3, last: 3 }];
    ledger.append(&[MailEntry::Gone { mailbox: MAILBOX, set, reason: GoneReason::Moved, when: 3 }]).unwrap();
    let expected = HashSet::from([(lsn, 0)]);
    assert_eq!(ledger.expunged_mail().unwrap(), expected, "before a commit");
    drop(ledger);
    let (ledger, _) = open(&machine);
    assert_eq!(ledger.expunged_mail().unwrap(), expected);
    ledger.note(&[FileNote::Left { mailbox: MAILBOX, uid: 1 }]);
    assert_eq!(ledger.expunged_mail().unwrap(), HashSet::new(), "it has left");
}
