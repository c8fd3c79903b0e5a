//! The account as text.

use std::fmt::Write as _;

use posthaste_units::count;

use super::compare::Account;

const NO_ERROR: &str = "a String takes everything";

impl Account {
    /// Formats the sums, and at most `list_max` findings of each kind.
    pub fn to_text(&self, list_max: usize) -> String {
        let mut text = format!(
            "account of run {}: {} acknowledged, {} expected, {} found\n",
            self.run,
            count(self.acked, "message"),
            if self.expected == 1 { "1 copy".to_owned() } else { format!("{} copies", self.expected) },
            self.found
        );
        let sums: Vec<_> = self.lists().iter().map(|(name, list)| format!("{} {name}", list.len())).collect();
        writeln!(text, "  {}", sums.join(", ")).expect(NO_ERROR);
        self.waiting_text(list_max, &mut text);
        if self.uncertain_found + self.uncertain_absent > 0 {
            let (found, absent) = (self.uncertain_found, self.uncertain_absent);
            writeln!(
                text,
                "  connection lost before the verdict: {found} of these are there, {absent} are not (either is right)"
            )
            .expect(NO_ERROR);
        }
        if self.other_runs + self.unstamped > 0 {
            writeln!(text, "  passed over: {} of other runs, {} without a stamp", self.other_runs, self.unstamped)
                .expect(NO_ERROR);
        }
        for file in &self.unfinished {
            writeln!(
                text,
                "  {file} ends in the middle of a line: it is still being written, or its writer was killed"
            )
            .expect(NO_ERROR);
        }
        for (name, list) in self.lists() {
            for finding in list.iter().take(list_max) {
                let (expected, found) = (finding.expected, finding.found);
                writeln!(text, "  {name} {}: {expected} expected, {found} found", finding.id).expect(NO_ERROR);
                finding.places.iter().for_each(|place| writeln!(text, "    {place}").expect(NO_ERROR));
            }
            if list.len() > list_max {
                writeln!(text, "  … and {} more {name}", list.len() - list_max).expect(NO_ERROR);
            }
        }
        if let Some(hint) = self.hint() {
            writeln!(text, "  {hint}").expect(NO_ERROR);
        }
        text
    }

    fn waiting_text(&self, list_max: usize, text: &mut String) {
        if self.waiting.is_empty() {
            return;
        }
        writeln!(text, "  {} copies wait in the server's spool, for:", self.waiting_copies()).expect(NO_ERROR);
        for mailbox in self.waiting.iter().take(list_max) {
            let why = mailbox.why.as_deref().unwrap_or("on its way");
            writeln!(text, "    {}: {} ({why})", mailbox.mailbox, mailbox.copies).expect(NO_ERROR);
        }
        if self.waiting.len() > list_max {
            writeln!(text, "    … and {} more mailboxes", self.waiting.len() - list_max).expect(NO_ERROR);
        }
    }
}
