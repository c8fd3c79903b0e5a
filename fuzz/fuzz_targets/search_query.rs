//! Any text is a query or an error that points into it; neither panics, and time and depth are bounded. Further lines are saved queries `0`, `1`, ...
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_search::query::{SavedQueries, parse_with};

fuzz_target!(|text: &str| {
    let now = "2025-03-05T12:30:00+01:00[+01:00]".parse().unwrap();
    let mut lines = text.split('\n');
    let text = lines.next().unwrap_or("");
    let saved: SavedQueries = (0..).zip(lines).map(|(n, line): (u32, &str)| (n.to_string(), line.to_owned())).collect();
    if let Err(error) = parse_with(text, &now, &saved) {
        assert!(text.get(error.span.clone()).is_some(), "{error:?} in {text:?}");
        assert!(!error.show(text).is_empty());
    }
});
