//! Any text is an address or not; an address is written and read as the same, and cannot break out of a trace field.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_message::address::{ForwardPath, PATH_BYTES_MAX, ReversePath};
use posthaste_message::{write_delivered_to, write_return_path};

fuzz_target!(|text: &str| {
    // Quotes that are added where dots stand in odd places may make a path of the greatest length two octets too long.
    if let Ok(path) = ReversePath::parse(text) {
        let written = path.to_string();
        assert!(written.len() > PATH_BYTES_MAX || ReversePath::parse(&written).as_ref() == Ok(&path), "{text:?}");
        let mut field = Vec::new();
        write_return_path(&mut field, &written[1..written.len() - 1]);
        one_line(&field);
    }
    if let Ok(path) = ForwardPath::parse(text) {
        let written = path.to_string();
        assert!(written.len() > PATH_BYTES_MAX || ForwardPath::parse(&written).as_ref() == Ok(&path), "{text:?}");
        let mut field = Vec::new();
        write_delivered_to(&mut field, &path.to_string());
        one_line(&field);
    }
});

fn one_line(field: &[u8]) {
    assert_eq!(field.iter().filter(|&&b| b == b'\n').count(), 1);
    assert!(field.ends_with(b"\r\n") && field[..field.len() - 2].iter().all(|&b| b != b'\r'));
}
