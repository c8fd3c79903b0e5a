//! Accounts for acknowledged mail at the next hop: each message once and unaltered.

use std::path::Path;
use std::time::{Duration, Instant};

use posthaste_loadgen::account::{Ledger, account};

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
}
