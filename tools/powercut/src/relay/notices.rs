//! Notices to senders, read from the files of their mailbox.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::load::{Asks, HERE, Load, SENDER};

/// Number of notices for each recipient of a message, by its number and address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notices {
    relayed: BTreeMap<(u64, String), u64>,
    failed: BTreeMap<(u64, String), u64>,
}

impl Notices {
    /// Reads the notices in the sender's mailbox.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn read(mail: &Path) -> io::Result<Self> {
        Self::read_maildir(&mail.join(HERE).join(SENDER).join("Maildir"))
    }

    /// Reads the notices among all mail of a Maildir.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn read_maildir(maildir: &Path) -> io::Result<Self> {
        let mut notices = Self::default();
        for sub in ["new", "cur"] {
            let dir = maildir.join(sub);
            let entries = match std::fs::read_dir(dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                notices.add(&String::from_utf8_lossy(&std::fs::read(entry?.path())?));
            }
        }
        Ok(notices)
    }

    /// Adds one notification (RFC 3464).
    fn add(&mut self, text: &str) {
        let value = |line: &str, name: &str| Some(line.strip_prefix(name)?.trim().to_owned());
        let (mut message, mut recipient) = (None, None);
        for line in text.lines() {
            message = value(line, "Original-Envelope-Id:").and_then(|id| id.parse().ok()).or(message);
            recipient = value(line, "Final-Recipient: rfc822;").or(recipient);
            let Some(action) = value(line, "Action:") else { continue };
            let (Some(message), Some(recipient)) = (message, recipient.take()) else { continue };
            let told = if action == "failed" { &mut self.failed } else { &mut self.relayed };
            *told.entry((message, recipient)).or_default() += 1;
        }
    }

    /// Recipients of these messages without a notice to the sender, and the number of notices beyond the first.
    pub fn account(&self, load: &Load, messages: impl Iterator<Item = u64>) -> (Vec<(u64, String)>, u64) {
        let mut missing = Vec::new();
        for message in messages {
            let told = match load.asks(message) {
                Asks::Nothing => continue,
                Asks::Success => &self.relayed,
                Asks::Refusal => &self.failed,
            };
            let owed = load.addresses(message).into_iter().map(|address| (message, address));
            missing.extend(owed.filter(|key| !told.contains_key(key)));
        }
        let twice = self.relayed.values().chain(self.failed.values()).map(|count| count - 1).sum();
        (missing, twice)
    }

    /// Number of recipients with a notice.
    pub fn len(&self) -> u64 {
        (self.relayed.len() + self.failed.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_notices_are_missed_and_double_ones_counted() {
        let load = Load { told_in_16: 3, ..Load::mixed(5) };
        let with = |asks| (0..1000).find(|number| load.asks(*number) == asks).unwrap();
        let (success, refusal) = (with(Asks::Success), with(Asks::Refusal));
        let mut notices = Notices::default();
        let owed = [success, refusal, with(Asks::Nothing)];
        let all: usize = owed[..2].iter().map(|number| load.addresses(*number).len()).sum();
        assert_eq!(notices.account(&load, owed.into_iter()).0.len(), all);
        for (number, action) in [(success, "relayed"), (refusal, "failed")] {
            let of =
                |address: &String| format!("Final-Recipient: rfc822;{address}\nAction: {action}\nStatus: 2.0.0\n\n");
            let recipients: String = load.addresses(number).iter().map(of).collect();
            notices.add(&format!("Subject: x\n\nOriginal-Envelope-Id: {number}\n\n{recipients}"));
            notices.add(&format!("Original-Envelope-Id: {number}\n{}", of(&load.addresses(number)[0])));
        }
        assert_eq!(notices.account(&load, owed.into_iter()), (Vec::new(), 2));
        assert_eq!(notices.len(), all as u64);
        assert!(load.addresses(refusal).iter().all(|address| address.starts_with("permfail-")));
    }
}
