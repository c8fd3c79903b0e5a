//! Files that the load generator and its reports read: mbox files, ledgers of acknowledged mail, reports. Any octets are read or refused, what
//! was read is written and read as the same, and no small file asks for much memory.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use posthaste_loadgen::account::Ledger;
use posthaste_loadgen::mailfiles::split_mbox;
use posthaste_loadgen::report::Report;

/// In a directory that `fuzz/run` has made for this run; each process has its own.
static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("load-file-{}", std::process::id())));

fuzz_target!(|octets: &[u8]| {
    messages(octets);
    fs::write(&*FILE, octets).expect("the input can be kept");
    if let Ok(ledger) = Ledger::load(&FILE) {
        ledger.save(&FILE).expect("it can be written");
        let again = Ledger::load(&FILE).expect("what was written reads");
        assert!(again == ledger, "run {:x}", ledger.run);
    }
    // Behind the ledger, whose file may by now be another one; a file of both schemas there is not.
    if let Ok(report) = Report::read(&FILE) {
        let json = report.to_json();
        let _ = (report.to_markdown(), report.to_html(), report.is_good());
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
