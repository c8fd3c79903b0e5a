//! No text in a key's file or in its record makes a reader panic; a record that is read is written and read again the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_dkim::{Draft, KeyFile, KeyRecord};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    if let Ok(record) = KeyRecord::parse(&text) {
        assert_eq!(KeyRecord::parse(&record.to_string()), Ok(record));
    }
    for text in [&*text, &format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")] {
        if let Ok(file) = KeyFile::parse(text) {
            let again = KeyFile::parse(&file.to_string()).expect("what was written is read");
            assert_eq!((again.state, again.since, again.key.public()), (file.state, file.since, file.key.public()));
        }
    }
    // A header of any octets is kept within its bounds.
    let mut draft = Draft::default();
    for line in data.split(|octet| *octet == 0) {
        draft.field(line);
        draft.body(line);
    }
});
