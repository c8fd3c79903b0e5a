//! Any command line parses or not without a panic; what parsed as MAIL or RCPT is written and read as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use posthaste_message::address::PATH_BYTES_MAX;
use posthaste_smtp::command::{self, Command};

fuzz_target!(|line: &[u8]| {
    let written = match command::parse(line) {
        Ok(Command::Mail(mail)) => mail.to_string(),
        Ok(Command::Rcpt(rcpt)) => rcpt.to_string(),
        Ok(_) => return,
        Err(error) => {
            let mut out = Vec::new();
            error.reply().write(&mut out);
            assert!(out.ends_with(b"\r\n"));
            return;
        }
    };
    assert!(!written.contains(['\r', '\n', '\0']), "{written:?}");
    // Quotes added around odd dots can bring the longest paths, alone, over their limit.
    if written.len() > PATH_BYTES_MAX {
        return;
    }
    let again = match command::parse(written.as_bytes()) {
        Ok(Command::Mail(mail)) => mail.to_string(),
        Ok(Command::Rcpt(rcpt)) => rcpt.to_string(),
        other => panic!("{written:?} reads as {other:?}"),
    };
    assert_eq!(written, again);
});
