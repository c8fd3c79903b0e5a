//! Any text is a file of rules for classes or not; with what is read, any line has a class that the rules name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_relay::classify::Classifier;

fuzz_target!(|text: &str| {
    let (rules, line) = text.split_once('\0').unwrap_or((text, "550 5.1.1 no such user"));
    if let Ok(classifier) = Classifier::new(rules) {
        let class = classifier.classify(line);
        assert!(classifier.classes().contains(&class));
    }
});
