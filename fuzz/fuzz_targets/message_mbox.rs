//! mbox files: however they are cut into buffers, the messages are the same, and a copy in our own quoting has the same messages.
#![no_main]

use std::io::BufReader;

use libfuzzer_sys::fuzz_target;
use posthaste_message::mbox::{MboxFields, MboxQuoting, MboxReader, from_line};

fn read(file: &[u8], buffer: usize) -> Option<Vec<Vec<u8>>> {
    let mut reader = MboxReader::new(BufReader::with_capacity(buffer, file), 0);
    let mut all = Vec::new();
    while let Some(message) = reader.next_message().ok()? {
        assert!(file[message.offset as usize..].starts_with(b"From "));
        let mut text = Vec::new();
        while reader.piece(&mut text).unwrap() {}
        let _ = reader.fields().flags();
        all.push(text);
    }
    Some(all)
}

fuzz_target!(|file: &[u8]| {
    let all = read(file, 8192);
    assert_eq!(all, read(file, 1));
    let Some(all) = all else { return };
    let mut copy = Vec::new();
    for text in &all {
        copy.extend_from_slice(from_line("", 5).as_bytes());
        // The fields of the copy are taken, not those that the text may still have.
        copy.extend_from_slice(MboxFields::write(&[]).as_bytes());
        let mut quoting = MboxQuoting::default();
        quoting.push(text, &mut copy);
        quoting.end(&mut copy);
    }
    let expected = all.into_iter().map(|mut text| {
        if text.last().is_some_and(|last| *last != b'\n') {
            text.push(b'\n');
        }
        text
    });
    assert_eq!(read(&copy, 8192), Some(expected.collect()));
});
