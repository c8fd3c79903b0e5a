//! What the load generator, the sink and the account read: stamps in messages, rule files, sizes, durations, targets.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_loadgen::sink::RuleFile;
use posthaste_loadgen::stamp::{self, Id};
use posthaste_loadgen::values::{self, Sizes, Target};

fuzz_target!(|octets: &[u8]| {
    let _ = stamp::find(octets);
    let id = Id { run: 7, number: 9 };
    let stamped = [stamp::field(id, octets).as_bytes(), octets].concat();
    let found = stamp::find(&stamped).expect("a stamp was put in front");
    assert!(found.is_intact && found.id == id);
    let Ok(text) = std::str::from_utf8(octets) else { return };
    let _ = (RuleFile::parse(text), values::duration(text), values::octets(text));
    let _ = (text.parse::<Sizes>(), text.parse::<Target>(), values::address(text), values::header_field(text));
});
