//! Any text is a query or an error that points into it; neither panics, and time and depth are bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_search::query::parse;

fuzz_target!(|text: &str| {
    let now = "2025-03-05T12:30:00+01:00[+01:00]".parse().unwrap();
    if let Err(error) = parse(text, &now) {
        assert!(text.get(error.span.clone()).is_some(), "{error:?} in {text:?}");
        assert!(!error.show(text).is_empty());
    }
});
