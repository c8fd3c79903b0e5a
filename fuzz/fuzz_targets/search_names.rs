//! Names that strangers chose: that of an attachment becomes a name for a file in the directory that was asked for, whatever it was; that of a
//! person neither hides addresses that stand beside it nor adds one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_search::split_addresses;
use posthaste_search::text::{extract, safe_file_name};

fuzz_target!(|text: &str| {
    file(text);
    // Any text at all.
    for (name, address) in split_addresses(text) {
        assert!(!name.is_empty() || !address.is_empty(), "nobody of {text:?}");
    }
    person(text);
});

fn file(name: &str) {
    let safe = safe_file_name(name, "part");
    assert!(!safe.is_empty() && safe.len() <= 200 && !safe.starts_with('.') && safe.trim() == safe, "{safe:?}");
    assert!(!safe.contains(|c: char| c.is_control() || "/\\\u{200b}\u{202e}\u{2066}\u{feff}".contains(c)), "{safe:?}");
    assert_eq!(safe_file_name(&safe, "part"), safe, "from {name:?}");
}

/// As mail programs write it: in quotes, and as an encoded word (RFC 2047).
fn person(name: &str) {
    let name: String = name.chars().filter(|c| !c.is_control()).take(200).collect();
    let quoted = name.replace('\\', "\\\\").replace('"', "\\\"");
    let mut field = "c@example.org".to_owned();
    // Encoded words count in quotes as well, where none may stand, and what they decode to may be quotes.
    if !name.contains("=?") {
        field = format!("\"{quoted}\" <a@example.org>, {field}");
    }
    let encoded: String = name.bytes().map(|octet| format!("={octet:02X}")).collect();
    field.push_str(&format!(", =?utf-8?q?{encoded}?= <b@example.org>, d@example.org"));
    let message = format!("From: {field}\n\nx\n");
    let shown = extract(message.as_bytes()).from;
    let found: Vec<String> = split_addresses(&shown).into_iter().map(|(_, address)| address).collect();
    let expected = ["a@example.org", "c@example.org", "b@example.org", "d@example.org"];
    assert_eq!(found, expected[usize::from(name.contains("=?"))..], "{shown:?} of {message:?}");
}
