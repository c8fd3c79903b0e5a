//! Accounts for acknowledged mail at the next hop: each message once and unaltered.

use std::path::Path;
use std::time::{Duration, Instant};

use posthaste_loadgen::account::{Ledger, account, signatures};

use crate::suite::SideError;

/// The sink hands its lines to the kernel every second.
const FLUSH_MAX: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(200);

/// Compares a round's ledger with the account file of the sink.
///
/// # Errors
/// Lost, duplicated, altered or unacknowledged messages; a file that cannot be read.
pub fn check(ledger: &Ledger, sink: &Path, patience: Duration) -> Result<(), SideError> {
    let begun = Instant::now();
    loop {
        let account = account(ledger, &[sink.to_owned()], &[], None).map_err(SideError::failed("account"))?;
        if account.is_clean() && account.unfinished.is_empty() {
            return Ok(());
        }
        if begun.elapsed() >= patience {
            let text = account.to_text(3).trim_end().replace('\n', "; ");
            return Err(SideError::Failed(format!("of what was acknowledged: {text}")));
        }
        std::thread::sleep(LOOK);
    }
}

/// Like [`check`], with the time that the sink may take to write its account.
pub fn check_when_written(ledger: &Ledger, sink: &Path) -> Result<(), SideError> {
    check(ledger, sink, FLUSH_MAX)
}

/// Checks the number of DKIM signatures of each message of a run that the sink's account has. Call it when the account is complete.
///
/// # Errors
/// A message with another number; a file that cannot be read.
pub fn check_signatures(run: u64, sink: &Path, wanted: u32) -> Result<(), SideError> {
    let found = signatures(run, sink).map_err(SideError::failed("account"))?;
    let others = found.iter().filter(|(number, _)| **number != wanted);
    let wrong: Vec<String> = others.map(|(number, messages)| format!("{messages} messages have {number}")).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(SideError::Failed(format!("of {wanted} DKIM signatures of each message at the sink {}", wrong.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Verdict on a run of three messages, all acknowledged; the sink's account holds `lines`.
    fn verdict(lines: &[(u64, bool)]) -> Result<(), String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sink.jsonl");
        let line = |(number, intact): &(u64, bool)| format!("{{\"id\":\"{:016x}.{number}\",\"intact\":{intact}}}\n", 7);
        std::fs::write(&file, lines.iter().map(line).collect::<String>()).unwrap();
        let mut ledger = Ledger::new(7);
        (0..3).for_each(|number| ledger.set(number, 1, 0));
        check(&ledger, &file, Duration::ZERO).map_err(|error| error.to_string())
    }

    #[test]
    fn each_message_once_and_unaltered_is_right() {
        assert_eq!(verdict(&[(0, true), (2, true), (1, true)]), Ok(()));
    }

    #[test]
    fn a_lost_a_double_and_an_altered_message_are_found() {
        for (lines, said) in [
            (&[(0, true), (2, true)][..], "1 lost"),
            (&[(0, true), (1, true), (1, true), (2, true)], "1 duplicated"),
            (&[(0, true), (1, false), (2, true)], "1 altered"),
            (&[(0, true), (1, true), (2, true), (9, true)], "1 unexpected"),
        ] {
            assert!(verdict(lines).is_err_and(|error| error.contains(said)), "{said}: {:?}", verdict(lines));
        }
    }

    #[test]
    fn a_message_without_its_signatures_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sink.jsonl");
        let line = |run: u64, number: u64, signatures: u64| {
            format!("{{\"id\":\"{run:016x}.{number}\",\"intact\":true,\"signatures\":{signatures}}}\n")
        };
        let unsigned = format!("{{\"id\":\"{:016x}.3\",\"intact\":true}}\n", 8);
        let lines = [line(7, 0, 1), line(7, 1, 1), line(8, 0, 1), line(8, 1, 2), line(8, 2, 1), unsigned];
        std::fs::write(&file, lines.concat()).unwrap();
        let said = |run, wanted| check_signatures(run, &file, wanted).map_err(|error| error.to_string());
        assert_eq!(said(7, 1), Ok(()));
        let error = said(8, 1).unwrap_err();
        assert!(error.contains("1 messages have 0, 1 messages have 2"), "{error}");
        assert!(said(7, 0).is_err_and(|error| error.contains("2 messages have 1")));
    }
}
