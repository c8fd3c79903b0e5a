//! Any bytes are read as a message: no panic, bounded output, folding and tokens in step.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_search::text::{TOKEN_BYTES_MAX, base_subject, extract, fold, html_to_text, parts, tokens};

fuzz_target!(|bytes: &[u8]| {
    let found = extract(bytes);
    // Caught, so that it would cost a user one message; here it must not happen.
    assert_ne!(found.problem, Some("the MIME reader failed"));
    // What is stored is separated by NUL and shown on one line.
    for value in [&found.from, &found.to, &found.cc, &found.bcc, &found.subject, &found.message_id, &found.list] {
        assert!(!value.chars().any(char::is_control), "{value:?}");
    }
    for (token, _) in tokens(&found.body) {
        // One character may fold to up to 18.
        assert!(token.len() <= TOKEN_BYTES_MAX + 80 && !token.is_empty(), "{token:?}");
        assert_eq!(fold(&token), token);
    }
    let base = base_subject(&found.subject);
    assert_eq!(base_subject(&base.text).text, base.text);
    parts(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        html_to_text(text);
    }
});
