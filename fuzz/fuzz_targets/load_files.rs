//! Files that the load generator and its reports read: mbox files, ledgers of acknowledged mail, accounts of sinks, reports. Any octets are read or
//! refused, what was read is written and read as the same, and no small file asks for much memory.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use posthaste_loadgen::account::{Copies, Ledger, account};
use posthaste_loadgen::mailfiles::split_mbox;
use posthaste_loadgen::report::{Comparison, Report};

/// In a directory that `fuzz/run` has made for this run; each process has its own.
static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("load-file-{}", std::process::id())));

/// Three messages were acknowledged for one recipient, and one for two.
static LEDGER: LazyLock<Ledger> = LazyLock::new(|| {
    let text = r#"{"schema":"posthaste-acked/1","run":"00000000000000ab","messages":[[0,2,1,0],[3,3,2,0]]}"#;
    fs::write(&*FILE, text).expect("a ledger can be kept");
    Ledger::load(&FILE).expect("a ledger")
});

fuzz_target!(|octets: &[u8]| {
    messages(octets);
    let acked = &*LEDGER;
    fs::write(&*FILE, octets).expect("the input can be kept");
    // As a store: an mbox, a message, or the lines that a sink keeps.
    if let Ok(account) = account(acked, std::slice::from_ref(&*FILE), &[], Some(Copies::PerMessage)) {
        assert_eq!((account.acked, account.expected), (4, 4));
        assert!(account.lost.len() as u64 <= account.expected && account.lost.len() as u64 + account.found >= 4);
    }
    // A ledger may name 2^28 messages, which take 4 octets of memory each: here no more than a million.
    let numbers_are_small = octets.split(|octet| !octet.is_ascii_digit()).all(|digits| digits.len() <= 6);
    if numbers_are_small && let Ok(ledger) = Ledger::load(&FILE) {
        ledger.save(&FILE).expect("it can be written");
        let again = Ledger::load(&FILE).expect("what was written reads");
        assert!(again == ledger, "run {:x}", ledger.run);
    }
    // Behind the ledger, whose file may by now be another one; a file of both schemas there is not.
    if let Ok(report) = Report::read(&FILE) {
        let json = report.to_json();
        let _ = (report.to_markdown(), report.to_html(), report.is_good());
        let comparison = Comparison::new(&[("a".to_owned(), report.clone()), ("b".to_owned(), report.clone())]);
        let _ = (comparison.to_text(), comparison.to_json());
        fs::write(&*FILE, &json).expect("the report can be kept");
        assert_eq!(Report::read(&FILE).expect("what was written reads").to_json(), json);
    }
    let _ = fs::remove_file(&*FILE);
});

fn messages(octets: &[u8]) {
    let found: Vec<Vec<u8>> = split_mbox(octets).collect();
    assert_eq!(found.is_empty(), !octets.starts_with(b"From "));
    let lines = octets.split_inclusive(|&octet| octet == b'\n').filter(|line| line.starts_with(b"From ")).count();
    assert!(found.len() <= lines);
    assert!(found.iter().map(Vec::len).sum::<usize>() <= octets.len());
}
