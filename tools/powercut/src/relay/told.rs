//! Deliveries recorded in a server's event log, read while it grows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde_json::Value;

use super::lines_of;
use crate::load::{Load, number_of};

/// See [`DeliveriesTold::look`].
#[derive(Debug)]
pub(super) struct DeliveriesTold {
    dir: PathBuf,
    /// Octets read of each file.
    read: BTreeMap<PathBuf, u64>,
    /// The number of each message, by its id in the server.
    numbers: BTreeMap<u64, u64>,
    /// Number of `delivered` lines of each recipient: id of the message, number of the recipient.
    times: BTreeMap<(u64, u64), u64>,
    /// Recipients of each message with a recorded delivery, by its number.
    told: BTreeMap<u64, BTreeSet<u64>>,
}

impl DeliveriesTold {
    /// Reads the event log in this directory, which may not exist yet.
    pub fn of(dir: PathBuf) -> Self {
        Self { dir, read: BTreeMap::new(), numbers: BTreeMap::new(), times: BTreeMap::new(), told: BTreeMap::new() }
    }

    /// Reads the new lines of the files.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn look(&mut self) -> io::Result<()> {
        let entries = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        // Their names tell their order.
        let paths: BTreeSet<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        for path in paths {
            let mut file = File::open(&path)?;
            let read = self.read.entry(path).or_default();
            file.seek(SeekFrom::Start(*read))?;
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            let whole = text.iter().rposition(|octet| *octet == b'\n').map_or(0, |at| at + 1);
            *read += whole as u64;
            lines_of(&text[..whole]).for_each(|line| self.add(&line));
        }
        Ok(())
    }

    fn add(&mut self, line: &Value) {
        let Some(message) = line["message"].as_str().and_then(|message| message.parse().ok()) else { return };
        if line["event"] == "received" {
            self.numbers.extend(line["message_id"].as_str().and_then(number_of).map(|number| (message, number)));
        }
        if let ("delivered", Some(target)) = (line["event"].as_str().unwrap_or_default(), line["relay_target"].as_u64())
        {
            *self.times.entry((message, target)).or_default() += 1;
            if let Some(number) = self.numbers.get(&message) {
                self.told.entry(*number).or_default().insert(target);
            }
        }
    }

    /// Recipients with more than one recorded delivery: id of the message, number of the recipient.
    pub fn twice(&self) -> Vec<(u64, u64)> {
        self.times.iter().filter(|(_, times)| **times > 1).map(|(key, _)| *key).collect()
    }

    /// Messages with a recorded delivery to each of their recipients: none of them may be sent again.
    pub fn settled<'a>(&'a self, load: &'a Load) -> impl Iterator<Item = u64> + 'a {
        let is_settled = |number: u64, told: &BTreeSet<u64>| told.len() == load.recipients(number).len();
        self.told.iter().filter(move |(number, told)| is_settled(**number, told)).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_message_is_settled_once_each_of_its_recipients_is_told() {
        let load = Load { several_one_in: 1, ..Load::mixed(3) };
        let number = (0..).find(|number| load.recipients(*number).len() == 2).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut told = DeliveriesTold::of(dir.path().join("events"));
        told.look().unwrap();
        std::fs::create_dir(&told.dir).unwrap();
        let mut file = File::create(told.dir.join("events-00000001.jsonl")).unwrap();
        let mut check = |text: &str, settled: &[u64], twice: &[(u64, u64)]| {
            file.write_all(text.as_bytes()).unwrap();
            told.look().unwrap();
            assert_eq!(
                (told.settled(&load).collect::<Vec<_>>(), told.twice()),
                (settled.to_vec(), twice.to_vec()),
                "{text}"
            );
        };
        let received = format!(r#"{{"event":"received","message":"70","message_id":"<{number}@rig.example>"}}"#);
        let delivered = |target| format!(r#"{{"event":"delivered","message":"70","relay_target":{target}}}"#);
        check(&format!("{received}\n{}\n", delivered(0)), &[], &[]);
        // A line of which only a part was written counts with the rest of it.
        let second = delivered(1);
        let (part, rest) = second.split_at(20);
        check(part, &[], &[]);
        check(&format!("{rest}\n"), &[number], &[]);
        check(&format!("{}\n", delivered(1)), &[number], &[(70, 1)]);
    }
}
