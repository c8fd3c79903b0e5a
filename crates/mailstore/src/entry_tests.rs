//! Each entry reads back as it was written, and hostile bytes are refused.

use proptest::prelude::*;

use super::*;

fn octets() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..12).prop_map(Bytes::from)
}

fn facts() -> impl Strategy<Value = MessageFacts> {
    any::<(u64, u32, u32, u32, u32)>().prop_map(|(flags, internal_date, save_date, wire_size, line_feeds)| {
        let wire_size = WireSize::of_stored(wire_size);
        MessageFacts { flags, internal_date, save_date, wire_size, line_feeds }
    })
}

fn set() -> impl Strategy<Value = Vec<NumberRange>> {
    prop::collection::btree_set(1u32.., 0..8).prop_map(|ends| {
        let ends: Vec<u32> = ends.into_iter().collect();
        ends.chunks(2).map(|ends| NumberRange { first: ends[0], last: ends[ends.len() - 1] }).collect()
    })
}

fn kind() -> impl Strategy<Value = BodyKind> {
    (0u8..3).prop_map(|kind| BodyKind::of(kind).unwrap())
}

fn new_message() -> impl Strategy<Value = NewMessage> {
    let origin = (any::<u64>(), any::<(u64, u16)>(), octets()).prop_map(|(lsn, email_id, name)| BodyOrigin {
        lsn,
        email_id,
        name,
    });
    let place =
        prop_oneof![octets().prop_map(|prefix| BodyPlace::Batch { prefix }), origin.prop_map(BodyPlace::Copied)];
    (facts(), any::<u16>(), kind(), place).prop_map(|(facts, target, kind, place)| NewMessage {
        facts,
        target,
        kind,
        place,
    })
}

fn entries() -> impl Strategy<Value = MailEntry> {
    let id = any::<u32>;
    let group = (set(), any::<u64>(), id()).prop_map(|(set, flags, letters)| StateGroup { set, flags, letters });
    prop_oneof![
        (id(), id(), prop::collection::vec(new_message(), 0..4))
            .prop_map(|(mailbox, first_uid, messages)| MailEntry::New { mailbox, first_uid, messages }),
        (id(), prop::collection::vec(group, 0..4)).prop_map(|(mailbox, groups)| MailEntry::State { mailbox, groups }),
        (id(), set(), 0u8..5, id()).prop_map(|(mailbox, set, reason, when)| MailEntry::Gone {
            mailbox,
            set,
            reason: GoneReason::of(reason).unwrap(),
            when
        }),
        (any::<(u32, u32, u32, u8, u8)>(), octets(), octets()).prop_map(|(numbers, name, directory)| {
            let (id, account, uid_validity, form, special_use) = numbers;
            MailEntry::Mailbox(MailboxFields { id, account, uid_validity, form, special_use, name, directory })
        }),
        id().prop_map(|id| MailEntry::MailboxGone { id }),
        (id(), 8u8..64, octets()).prop_map(|(mailbox, bit, name)| MailEntry::Keyword { mailbox, bit, name }),
        (id(), id(), prop::collection::vec((facts(), octets()), 0..4))
            .prop_map(|(mailbox, first_uid, messages)| MailEntry::Found { mailbox, first_uid, messages }),
        (id(), id(), octets()).prop_map(|(mailbox, uid, name)| MailEntry::Name { mailbox, uid, name }),
        any::<(u32, u32, u32, u32)>().prop_map(|(mailbox, uid, wire_size, line_feeds)| MailEntry::Size {
            mailbox,
            uid,
            wire_size: WireSize::of_stored(wire_size),
            line_feeds
        }),
        (any::<(u32, u64, u32, bool)>(), octets()).prop_map(|((id, quota_bytes, quota_messages, is_gone), name)| {
            MailEntry::Account(AccountFields { id, name, quota_bytes, quota_messages, is_gone })
        }),
        (id(), octets()).prop_map(|(nonce, host)| MailEntry::Opening { nonce, host }),
        (id(), octets(), any::<bool>()).prop_map(|(account, name, is_on)| MailEntry::Subscription {
            account,
            name,
            is_on
        }),
        (id(), prop::collection::vec((id(), octets()), 0..4))
            .prop_map(|(mailbox, ids)| MailEntry::UniqueIds { mailbox, ids }),
    ]
}

proptest! {
    #[test]
    fn an_entry_reads_back_and_no_part_of_it_is_one(entry in entries()) {
        let bytes = entry.encode();
        for len in 0..bytes.len() {
            prop_assert_eq!(MailEntry::decode(&bytes.slice(..len)), None);
        }
        prop_assert_eq!(MailEntry::decode(&[&bytes[..], &[0]].concat().into()), None);
        // Tails take entries by `kind`, the table by `seen_in`.
        let of_mailbox = MailEntry::kind(&bytes).filter(|kind| matches!(kind, EntryKind::OfMailbox(_)));
        prop_assert_eq!(of_mailbox.and_then(EntryKind::mailbox), entry.seen_in());
        prop_assert_eq!(MailEntry::decode(&bytes), Some(entry));
    }

    #[test]
    fn any_bytes_are_refused_or_those_of_an_entry(kind in 0u8..19, mut bytes in prop::collection::vec(any::<u8>(), 2..90)) {
        (bytes[0], bytes[1]) = (1, kind);
        let bytes = Bytes::from(bytes);
        if let Some(entry) = MailEntry::decode(&bytes) {
            prop_assert_eq!(entry.encode(), bytes);
        }
    }
}

#[test]
fn the_layout_is_that_of_the_table() {
    let opening = MailEntry::Opening { nonce: 0x0102_0304, host: Bytes::from_static(b"mx") };
    assert_eq!(&opening.encode()[..], [1, 12, 4, 3, 2, 1, 2, 0, b'm', b'x']);
    let set = vec![NumberRange { first: 5, last: 7 }];
    let gone = MailEntry::Gone { mailbox: 1, set, reason: GoneReason::Missing, when: 9 };
    let expected = [&[1, 3, 1, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 7, 0, 0, 0][..], &[2, 9, 0, 0, 0]].concat();
    assert_eq!(&gone.encode()[..], expected);
}

#[test]
fn a_count_that_lies_takes_no_memory() {
    for kind in [1u8, 2, 8, 16] {
        let mut bytes = vec![1, kind];
        bytes.resize(40, 0xFF);
        assert_eq!(MailEntry::decode(&bytes.into()), None);
    }
}

#[test]
fn sets_that_do_not_ascend_are_refused() {
    for set in [[(0, 1), (2, 3)], [(5, 4), (6, 7)], [(1, 5), (5, 6)]] {
        let set = set.map(|(first, last)| NumberRange { first, last }).to_vec();
        let entry = MailEntry::Gone { mailbox: 1, set, reason: GoneReason::Expunged, when: 0 };
        assert_eq!(MailEntry::decode(&entry.encode()), None);
    }
}
