use posthaste_intake::notify;
use posthaste_random::Random;
use posthaste_spool::Lsn;

use super::super::change::OwedNotice;
use super::super::imported::{ImportNoted, ImportedState, Origin};
use super::*;
use posthaste_shaping::{DomainOrSite, Label};

fn key(message: u64, number: u16) -> RecipientKey {
    RecipientKey { message: Lsn::new(message), number }
}

fn changes(what: What) -> QueueEntry {
    QueueEntry::Changes { at: 12, changes: vec![Change { key: key(5, 6), what }] }
}

fn queued() -> QueueEntry {
    let recipient = |number, address: &str| QueuedRecipient {
        number,
        address: address.into(),
        orcpt: "rfc822;o@x".into(),
        notify: notify::FAILURE | notify::DELAY,
    };
    QueueEntry::Queued(Queued {
        received: 1,
        not_before: 2,
        expires: 3,
        sender: "s".into(),
        forwarded: None,
        is_8bit: true,
        smtputf8: false,
        may_sign: true,
        ret: Some(QueuedRet::Headers),
        envid: "e".into(),
        tenant: "t".into(),
        campaign: "c".into(),
        pool: "p".into(),
        recipients: vec![recipient(4, "a@x"), recipient(9, "b@y")],
    })
}

/// A message whose second recipient leaves with another sender.
fn with_forwarded() -> Queued {
    let QueueEntry::Queued(queued) = queued() else { unreachable!("it is queued") };
    Queued { forwarded: Some(Box::new(Forwarded { sender: "f".into(), numbers: vec![9] })), ..queued }
}

fn imported() -> QueueEntry {
    let QueueEntry::Queued(queued) = queued() else { unreachable!() };
    let status = Status { code: 450, enhanced: 2001 };
    let held = Some(HoldReason::Policy);
    let first = ImportedState { attempts: 3, next: 7, status, held: None, delay_told: true, reply: "busy".into() };
    let second = ImportedState { held, ..ImportedState::default() };
    let origin = Origin::of(Lsn::new(5), b"entry", b"content");
    QueueEntry::Imported(Box::new(Imported { origin, at: 6, queued, states: vec![first, second] }))
}

fn noted() -> QueueEntry {
    let QueueEntry::Imported(imported) = imported() else { unreachable!() };
    QueueEntry::ImportNoted(ImportNoted::of(&imported))
}

fn samples() -> Vec<QueueEntry> {
    let status = Status { code: 450, enhanced: 2001 };
    let whats = [
        What::Delivered(status),
        What::Failed(status),
        What::Suppressed,
        What::Deleted,
        What::Deferred { attempts: 3, next: 7, status },
        What::Rescheduled { attempts: 0, next: 8 },
        What::Held(HoldReason::Policy),
        What::Held(HoldReason::Until(70_000)),
        What::Released { next: 9, expires: 10 },
        What::Begun { crashes: 2 },
        What::GivenBack,
        What::DelayTold,
        What::Owed(OwedNotice::Failed, status),
        What::Owed(OwedNotice::Relayed, Status::default()),
        What::Owed(OwedNotice::Delivered, status),
        What::Told,
    ];
    let labels = [Label::Tenant("t".into()), Label::Campaign("".into())];
    let places = [DomainOrSite::Domain("d".into()), DomainOrSite::Site("s".into())];
    let both = labels.iter().flat_map(|label| places.clone().map(|place| MailScope::At(label.clone(), place)));
    let alone = [
        MailScope::Tenant("t".into()),
        MailScope::Campaign("c".into()),
        MailScope::Domain("d".into()),
        MailScope::Site("s".into()),
    ];
    let scopes: Vec<MailScope> = alone.into_iter().chain(both).collect();
    let mut all =
        vec![queued(), imported(), noted(), QueueEntry::Replies { text: "try later".into(), keys: vec![key(5, 6)] }];
    all.push(QueueEntry::WhyHeld { reason: "a closer look".into(), keys: vec![key(5, 6)] });
    all.extend(whats.map(changes));
    let QueueEntry::Queued(with_pool) = queued() else { unreachable!("it is queued") };
    all.push(QueueEntry::Queued(Queued { pool: "".into(), ..with_pool }));
    all.push(QueueEntry::Queued(with_forwarded()));
    all.push(QueueEntry::Queued(Queued { pool: "".into(), ..with_forwarded() }));
    let QueueEntry::Imported(sample) = imported() else { unreachable!("it is imported") };
    all.push(QueueEntry::Imported(Box::new(Imported { queued: with_forwarded(), ..*sample })));
    all.extend(scopes.iter().cloned().map(|scope| QueueEntry::Suspended { scope, until: 4, reason: "why".into() }));
    let to: Arc<str> = "[192.0.2.1]:26".into();
    let reason: EntryText = "why".into();
    let diverted = |scope| QueueEntry::Diverted { scope, until: 4, to: to.clone(), reason: reason.clone() };
    all.extend(scopes.iter().cloned().map(diverted));
    all.extend(scopes.iter().cloned().map(QueueEntry::NotDiverted));
    let message_rate: Arc<str> = "10/minute".into();
    let connections = 2;
    let slowed = |scope| QueueEntry::Slowed {
        scope,
        until: 4,
        message_rate: message_rate.clone(),
        connections,
        reason: reason.clone(),
    };
    all.extend(scopes.iter().cloned().map(slowed));
    all.extend(scopes.into_iter().map(QueueEntry::Resumed));
    all
}

#[test]
fn every_entry_reads_back_and_no_cut_or_longer_one_does() {
    for entry in samples() {
        let whole = entry.encode();
        assert_eq!(QueueEntry::decode(&whole), Ok(entry.clone()));
        for len in 0..whole.len() {
            match QueueEntry::decode(&whole[..len]) {
                Err(QueueDecodeError::Short) => {}
                // Whole items less are a shorter list.
                Ok(QueueEntry::Changes { changes, .. }) => assert!(changes.is_empty() && len == 6, "{entry:?}"),
                Ok(QueueEntry::Replies { keys, .. }) => assert!(keys.is_empty() && len == 13, "{entry:?}"),
                Ok(QueueEntry::WhyHeld { keys, .. }) => assert!(keys.is_empty() && len == 17, "{entry:?}"),
                other => panic!("{entry:?}: length {len}: {other:?}"),
            }
        }
        assert!(QueueEntry::decode(&[&whole[..], b"x"].concat()).is_err(), "{entry:?}");
    }
}

#[test]
fn a_deferral_takes_20_bytes_and_a_delivery_15() {
    let len = |what| changes(what).encode().len() - 6;
    assert_eq!(len(What::Deferred { attempts: 1, next: 1, status: Status::default() }), 20);
    assert_eq!(len(What::Delivered(Status::default())), 15);
}

/// The bytes on disk; every later version must read them alike.
#[test]
fn the_bytes_are_those_of_the_table() {
    let expected = [
        &[1, 1, 1 | 8 | 32][..],
        &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0],
        &[1, 0, b's', 1, 0, b'e', 1, 0, b't', 1, 0, b'c', 1, 0, b'p'],
        &[2, 0],
        &[4, 0, 12, 3, 0, b'a', b'@', b'x', 10, 0],
        b"rfc822;o@x",
        &[9, 0, 12, 3, 0, b'b', b'@', b'y', 10, 0],
        b"rfc822;o@x",
    ];
    assert_eq!(queued().encode(), expected.concat());
    let status = Status { code: 450, enhanced: 2001 };
    let deferred = changes(What::Deferred { attempts: 3, next: 7, status });
    let expected =
        [&[1, 2, 12, 0, 0, 0, 5][..], &[5, 0, 0, 0, 0, 0, 0, 0, 6, 0], &[3, 7, 0, 0, 0], &[0xc2, 1, 0xd1, 7]];
    assert_eq!(deferred.encode(), expected.concat());
}

#[test]
fn the_other_sender_follows_the_pool_and_a_bit_marks_it() {
    let mut expected = queued().encode();
    expected[2] |= 16;
    // The NOTIFY of the second recipient, and the text after the pool.
    let second = expected.len() - 18;
    expected[second] |= 16;
    expected.splice(30..30, [1, 0, b'f']);
    let queued = with_forwarded();
    assert_eq!(QueueEntry::Queued(queued.clone()).encode(), expected);
    assert_eq!((&**queued.leaves_from(4), &**queued.leaves_from(9)), ("s", "f"));
    // Without the flag the bit is unused.
    expected[2] &= !16;
    expected.drain(30..33);
    assert_eq!(QueueEntry::decode(&expected), Err(QueueDecodeError::Unknown("NOTIFY")));
}

#[test]
fn a_recipient_here_has_asked_for_success_alone() {
    let QueueEntry::Queued(mut message) = queued() else { unreachable!("it is queued") };
    let success = notify::SUCCESS;
    let here = [notify::IN_MAILBOX, notify::HANDED_ON];
    for bits in 0..=u8::MAX {
        message.recipients[1].notify = bits;
        let entry = QueueEntry::Queued(message.clone());
        let is_valid = bits <= 1
            || bits < 16 && bits & notify::NEVER == 0
            || here.contains(&(bits & !success)) && bits & success != 0;
        let expected = if is_valid { Ok(entry.clone()) } else { Err(QueueDecodeError::Unknown("NOTIFY")) };
        assert_eq!(QueueEntry::decode(&entry.encode()), expected, "{bits:b}");
    }
}

#[test]
fn what_becomes_of_an_imported_message_follows_its_envelope() {
    let QueueEntry::Imported(sample) = imported() else { unreachable!() };
    let origin = u128::from_str_radix(&sample.origin.to_string(), 16).unwrap().to_le_bytes();
    let expected = [
        &[1, 9][..],
        &origin,
        &[6, 0, 0, 0],
        &queued().encode()[2..],
        &[3, 4, 7, 0, 0, 0, 0xc2, 1, 0xd1, 7, 4, 0],
        b"busy",
        &[0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(imported().encode(), expected.concat());
    let expected = [&[1, 10][..], &origin, &[6, 0, 0, 0], &[2, 0], &[4, 0, 9, 0]];
    assert_eq!(noted().encode(), expected.concat());
    assert_eq!(sample.origin.to_string().parse(), Ok(sample.origin));
    for wrong in ["", "+f", &"f".repeat(33), &"F".repeat(32), &"+".repeat(32)] {
        assert!(wrong.parse::<Origin>().is_err(), "{wrong}");
    }
}

#[test]
fn what_a_later_version_writes_is_not_guessed_at() {
    let whole = queued().encode();
    for (at, value, what) in [(0, 2, "version"), (1, 60, "kind"), (2, 64, "flag"), (2, 12, "RET")] {
        let mut changed = whole.clone();
        changed[at] = value;
        assert_eq!(QueueEntry::decode(&changed), Err(QueueDecodeError::Unknown(what)), "byte {at}");
    }
    let change = |kind: u8, fields: &[u8]| [&[1, 2, 0, 0, 0, 0, kind][..], &[0; 10], fields].concat();
    assert_eq!(QueueEntry::decode(&change(60, &[])), Err(QueueDecodeError::Unknown("change")));
    assert_eq!(QueueEntry::decode(&change(12, &[7, 0, 0, 0, 0])), Err(QueueDecodeError::Unknown("notice")));
    // A reason is not a time, and a time no reason.
    for (kind, fields) in [(7, &[4][..]), (11, &[3, 0, 0, 0])] {
        assert_eq!(QueueEntry::decode(&change(kind, fields)), Err(QueueDecodeError::Unknown("reason")));
    }
    let held = changes(What::Held(HoldReason::Until(0x01_02_03_04)));
    assert_eq!(held.encode()[6..], [&[11][..], &key(5, 6).message.get().to_le_bytes(), &[6, 0, 4, 3, 2, 1]].concat());
}

#[test]
fn no_bytes_make_it_panic() {
    for seed in 0..20_000 {
        let mut random = Random::new(seed);
        let all = samples();
        let mut bytes = all[random.below(all.len() as u64) as usize].encode();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        if let Ok(entry) = QueueEntry::decode(&bytes) {
            assert_eq!(entry.encode(), bytes, "seed {seed}: one form for each entry");
        }
    }
}
