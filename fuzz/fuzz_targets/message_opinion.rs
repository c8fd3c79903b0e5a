//! Our reader beside mail-parser over any octets: where mail is well formed, each difference is of a kind that was judged once. The kinds with their
//! reasons are those of the test `second_opinion`; Python's `email` is asked there about what was found here.
#![no_main]

use std::panic::catch_unwind;
use std::sync::Once;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/message/tests/second_opinion/kinds.rs"]
mod kinds;
#[path = "../../crates/message/tests/second_opinion/malformed.rs"]
mod malformed;
#[path = "../../crates/message/tests/second_opinion/readers.rs"]
mod readers;
use readers::{Case, differences, mail_parsers, ours, shown};

static QUIET: Once = Once::new();

fuzz_target!(|bytes: &[u8]| {
    // Their panics are no findings of ours, and libFuzzer's hook would end the process.
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let Some(theirs) = catch_unwind(|| mail_parsers(bytes)).ok().flatten() else { return };
    let ours = ours(bytes);
    for what in differences(&ours, &theirs) {
        let case = Case { bytes, ours: &ours, theirs: &theirs, what };
        if !malformed::is_malformed(&case) && !kinds::KINDS.iter().any(|(_, _, is)| is(&case)) {
            eprintln!("{what}\n  ours:   {}\n  theirs: {}", shown(&ours, what), shown(&theirs, what));
            std::process::abort();
        }
    }
});
