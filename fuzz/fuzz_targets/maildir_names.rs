//! Any text is a file name, folder or mailbox path or not; what is read is written as the same, and no path leaves its directory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_maildir::{Flags, FolderName, Host, MailboxPath, UniqueName};

fuzz_target!(|text: &str| {
    let flags = Flags::of_name(text);
    assert_eq!(Flags::of_name(&format!("1.a.h:2,{flags}")), flags);
    if let Some(name) = UniqueName::parse(text) {
        assert_eq!(name.as_str(), text);
        assert!(text.starts_with(name.key()) && text.starts_with(name.without_flags()));
        let _ = (name.secs(), name.unique(), name.host(), name.disk_size(), name.wire_size(), name.is_verbatim());
    }
    let made = UniqueName::new(7, "J1R2T3", &Host::new(text), 5, 6);
    assert_eq!(
        (made.secs(), made.unique(), made.disk_size(), made.wire_size()),
        (Some(7), Some("J1R2T3"), Some(5), Some(6))
    );
    assert!(!made.as_str().contains('/'));
    if let Ok(path) = MailboxPath::parse(text) {
        assert_eq!(path.as_str(), text);
        assert!(path.components().all(|part| !part.is_empty() && part != "." && part != ".."));
        if let Ok(folder) = FolderName::parse(text) {
            let below = folder.path_in(&path);
            assert!(below.is_err() || below.is_ok_and(|below| below.as_str().starts_with(text)));
        }
    }
    if let Ok(folder) = FolderName::parse(text) {
        assert_eq!(FolderName::from_levels(folder.levels()).as_ref(), Ok(&folder));
    }
});
