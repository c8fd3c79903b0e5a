//! Any octets are a list of UIDs or not; UIDs of one that is ascend, and are below the next UID.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_maildir::UidList;

fuzz_target!(|data: &[u8]| {
    if let Ok(list) = UidList::read(data, 1000) {
        assert!(list.messages.is_sorted_by(|one, next| one.uid < next.uid) && list.messages.len() <= 1000);
        assert!(list.messages.iter().all(|message| message.uid < list.next && !message.name.is_empty()));
    }
});
