//! Rows read back as written, are as small as they say, and hostile ones are refused.

use proptest::prelude::*;

use super::*;

fn fixed() -> impl Strategy<Value = Vec<FixedMessage>> {
    let numbers = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u16>(), any::<u32>(), 0u8..3);
    prop::collection::btree_map(1u32.., numbers, 1..60).prop_map(|all| {
        let message = |(uid, (wire_size, internal_date, save_date, lsn, target, line_feeds, kind))| FixedMessage {
            uid,
            wire_size: WireSize::of_stored(wire_size),
            internal_date,
            save_date,
            lsn,
            target,
            line_feeds,
            kind: BodyKind::of(kind).unwrap(),
        };
        all.into_iter().map(message).collect()
    })
}

fn state() -> impl Strategy<Value = Vec<StateMessage>> {
    prop::collection::btree_map(1u32..5000, any::<(u64, u64, u32)>(), 1..120).prop_map(|all| {
        let message = |(uid, (flags, modseq, letters))| StateMessage { uid, flags, modseq, letters };
        all.into_iter().map(message).collect()
    })
}

fn reads_back<M: RowMessage + PartialEq + std::fmt::Debug>(messages: &[M]) {
    let first = messages[0].uid();
    let size = RowSize::of(messages, first);
    let bytes = encode(messages, first);
    assert_eq!(bytes.len() + CRC_BYTES, size.bytes());
    if !size.fits() {
        return;
    }
    for len in 0..bytes.len() {
        assert!(decode::<M>(&bytes[..len], first).is_none());
    }
    assert!(decode::<M>(&[&bytes[..], &[0]].concat(), first).is_none());
    assert_eq!(decode::<M>(&bytes, first).as_deref(), Some(messages));
}

proptest! {
    #[test]
    fn columns_count_like_whole_messages(messages in state(), mask in any::<u64>(), uid in any::<u32>()) {
        let first = messages[0].uid;
        prop_assume!(RowSize::of(&messages, first).fits());
        let bytes = encode(&messages, first);
        let row = StateColumns::of(&bytes, first).unwrap();
        let is = |flags: u64| flags & mask == mask;
        prop_assert_eq!((row.len(), row.last_uid()), (messages.len(), messages.last().unwrap().uid));
        prop_assert_eq!(row.position(is), messages.iter().position(|message| is(message.flags)));
        for uid in [uid, uid % 5000] {
            prop_assert_eq!(row.below(uid), messages.partition_point(|message| message.uid < uid));
        }
        prop_assert!((0..row.len()).all(|at| row.uid(at) == messages[at].uid));
    }

    #[test]
    fn rows_read_back_and_no_part_of_one_is_one(fixed in fixed(), state in state()) {
        reads_back(&fixed);
        reads_back(&state);
    }

    #[test]
    fn any_bytes_are_refused_or_a_row(mut bytes in prop::collection::vec(any::<u8>(), 0..120), first in any::<u32>()) {
        if bytes.len() > 12 {
            // A count and a width that can be.
            (bytes[0], bytes[1], bytes[10]) = (bytes[0] % 4, 0, bytes[10] % 9);
        }
        if let Some(messages) = decode::<StateMessage>(&bytes, first) {
            prop_assert_eq!(decode(&encode(&messages, first), first), Some(messages));
        }
        if let Some(messages) = decode::<FixedMessage>(&bytes, first) {
            prop_assert_eq!(decode(&encode(&messages, first), first), Some(messages));
        }
    }
}

#[test]
fn values_that_are_all_the_same_take_no_room() {
    let same = |uid| StateMessage { uid, flags: 1, modseq: u64::MAX, letters: 0 };
    let one = encode(&[same(1)], 1);
    let bytes = encode(&(1..=200).map(same).collect::<Vec<_>>(), 1);
    assert_eq!(bytes.len(), one.len() + 200, "an octet for each UID");
    assert_eq!(&bytes[..11], [200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn impossible_rows_are_refused() {
    let two = [4, 5].map(|uid| StateMessage { uid, flags: 0, modseq: 1, letters: 0 });
    let bytes = encode(&two, 4);
    assert!(decode::<StateMessage>(&bytes, 4).is_some());
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        decode::<StateMessage>(&bytes, 4)
    };
    // The same UID twice, then a descending one, a count of 0, a width of 9.
    assert_eq!([with(12, 0), with(11, 7), with(0, 0), with(10, 9)], [None, None, None, None]);
    assert!(decode::<StateMessage>(&bytes, u32::MAX).is_none(), "beyond the last UID");
}
