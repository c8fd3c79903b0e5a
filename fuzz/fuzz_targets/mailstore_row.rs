//! Any octets are a row or a head of the table or not; the messages of a row ascend by UID.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_mailstore::table::{AccountRow, GoneRow, MailboxHead, NameRow, OpeningRow, fixed_row, state_row};

fuzz_target!(|data: &[u8]| {
    // The first octets: the row's key.
    let Some((first, row)) = data.split_first_chunk() else { return };
    let first = u32::from_be_bytes(*first);
    if let Some(messages) = fixed_row(row, first) {
        assert!(messages.is_sorted_by(|one, next| one.uid < next.uid) && messages[0].uid >= first.max(1));
    }
    if let Some(messages) = state_row(row, first) {
        assert!(messages.is_sorted_by(|one, next| one.uid < next.uid) && messages[0].uid >= first.max(1));
    }
    MailboxHead::decode(row).inspect(|head| assert_eq!(head.encode(), row));
    AccountRow::decode(row).inspect(|account| assert_eq!(account.encode(), row));
    NameRow::decode(row).inspect(|name| assert_eq!(name.encode(), row));
    GoneRow::decode(row).inspect(|gone| assert_eq!(gone.encode(), row));
    OpeningRow::decode(row).inspect(|opening| assert_eq!(opening.encode(), row));
});
