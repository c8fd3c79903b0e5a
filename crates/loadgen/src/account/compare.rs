//! Compares a ledger with what stores hold.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ledger::{Expected, Ledger};
use crate::mailfiles::{ReadError, each_message};
use crate::sink::DIR_INDEX;
use crate::stamp::{self, Id};

/// How many copies of a message with several recipients a store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Copies {
    /// One for each recipient for whom it was acknowledged: mailboxes. In Maildirs each in one of its own: a second copy
    /// in the same one is a duplicate and stands for no other recipient's.
    PerRecipient,
    /// One, however many recipients: a sink, an archive, a hard link counted once.
    PerMessage,
}

/// Why there is no account.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccountError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{path}, line {line}: not a line of an account file: {text}")]
    BadLine { path: PathBuf, line: usize, text: String },
}

/// One message that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub id: String,
    /// Copies that must be there.
    pub expected: u32,
    /// Copies that are there.
    pub found: u32,
    /// Where copies lie that should not, or not so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<String>,
}

/// The result: what was promised against what is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub run: String,
    pub copies: Copies,
    /// Messages that were acknowledged.
    pub acked: u64,
    /// Copies of them that must be there.
    pub expected: u64,
    /// Copies of this run's messages that are there.
    pub found: u64,
    /// Fewer copies than were acknowledged.
    pub lost: Vec<Finding>,
    /// More copies than were acknowledged or may be there.
    pub duplicated: Vec<Finding>,
    /// Copies whose octets are not those that were sent.
    pub altered: Vec<Finding>,
    /// Never acknowledged, and there.
    pub unexpected: Vec<Finding>,
    /// Messages whose connection was lost before the verdict, and that are there; either is right.
    pub uncertain_found: u64,
    /// The same, and not there.
    pub uncertain_absent: u64,
    /// Messages of other runs; not looked at.
    pub other_runs: u64,
    /// Messages without a stamp; not looked at.
    pub unstamped: u64,
}

/// Looks through `stores` for the messages of `ledger`.
///
/// A store is a Maildir tree, a directory, an mbox (see [`each_message`]), or an account file: JSON lines
/// `{"id":"<run>.<number>","intact":true}`, one for each message received. `copies` is guessed when it is not given:
/// [`Copies::PerMessage`] if all stores are account files.
///
/// # Errors
/// When a store cannot be read.
pub fn account(ledger: &Ledger, stores: &[PathBuf], copies: Option<Copies>) -> Result<Account, AccountError> {
    let (copies_seen, maildirs) = (BTreeMap::new(), HashMap::new());
    let mut seen = Seen { ledger, run: ledger.run, copies: copies_seen, maildirs, other_runs: 0, unstamped: 0 };
    let mut all_are_lines = !stores.is_empty();
    for store in stores {
        let is_lines = is_account_file(store);
        all_are_lines &= is_lines;
        if is_lines {
            seen.read_lines(store)?;
        } else {
            each_message(store, &mut |message| {
                match stamp::find(message.octets) {
                    Some(found) => {
                        let place = || message.path.display().to_string();
                        seen.add(found.id, found.is_intact, message.maildir, place);
                    }
                    None if message.path.file_name().is_some_and(|name| name == DIR_INDEX) => {}
                    None => seen.unstamped += 1,
                }
                true
            })?;
        }
    }
    let guess = if all_are_lines { Copies::PerMessage } else { Copies::PerRecipient };
    Ok(seen.compare(copies.unwrap_or(guess)))
}

/// An account file starts with a brace, which no message and no mbox does.
fn is_account_file(path: &Path) -> bool {
    use std::io::Read;
    let mut first = [0];
    path.is_file() && File::open(path).and_then(|mut file| file.read(&mut first)).is_ok_and(|_| first[0] == b'{')
        || path.extension().is_some_and(|extension| extension == "jsonl")
}

#[derive(Deserialize)]
struct Line {
    id: String,
    intact: bool,
}

struct Seen<'a> {
    ledger: &'a Ledger,
    run: u64,
    copies: BTreeMap<u64, Kept>,
    /// A number for each.
    maildirs: HashMap<PathBuf, u32>,
    other_runs: u64,
    unstamped: u64,
}

#[derive(Default)]
struct Kept {
    found: u32,
    altered: u32,
    /// Copies in a Maildir that has one already.
    surplus: u32,
    /// Those that have one.
    maildirs: Vec<u32>,
    /// Of copies that are altered or too many.
    places: Vec<String>,
}

/// Places listed for one message.
const PLACES_MAX: usize = 4;

impl Seen<'_> {
    fn read_lines(&mut self, path: &Path) -> Result<(), AccountError> {
        let failed = |source| ReadError { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        for (index, line) in BufReader::new(file).lines().enumerate() {
            let line = line.map_err(failed)?;
            if line.is_empty() {
                continue;
            }
            let bad = |text| AccountError::BadLine { path: path.to_owned(), line: index + 1, text };
            let Line { id, intact } = serde_json::from_str(&line).map_err(|error| bad(error.to_string()))?;
            let id = parse_id(&id).ok_or_else(|| bad(format!("`{id}` is no id")))?;
            self.add(id, intact, None, || format!("{}:{}", path.display(), index + 1));
        }
        Ok(())
    }

    fn add(&mut self, id: Id, is_intact: bool, maildir: Option<&Path>, place: impl FnOnce() -> String) {
        if id.run != self.run {
            self.other_runs += 1;
            return;
        }
        let Expected { acked, uncertain } = self.ledger.get(id.number);
        let maildir = maildir.map(|path| self.number_of(path));
        let copy = self.copies.entry(id.number).or_default();
        copy.found += 1;
        copy.altered += u32::from(!is_intact);
        let is_surplus = maildir.is_some_and(|maildir| copy.maildirs.contains(&maildir));
        match maildir {
            Some(_) if is_surplus => copy.surplus += 1,
            Some(maildir) => copy.maildirs.push(maildir),
            None => {}
        }
        let is_remarkable = !is_intact || is_surplus || copy.found > u32::from(acked) + u32::from(uncertain);
        if is_remarkable && copy.places.len() < PLACES_MAX {
            copy.places.push(place());
        }
    }

    fn number_of(&mut self, maildir: &Path) -> u32 {
        if let Some(number) = self.maildirs.get(maildir) {
            return *number;
        }
        let number = u32::try_from(self.maildirs.len()).expect("there are fewer Maildirs than messages");
        self.maildirs.insert(maildir.to_owned(), number);
        number
    }

    fn compare(mut self, copies: Copies) -> Account {
        let mut account = Account {
            run: format!("{:016x}", self.run),
            copies,
            acked: 0,
            expected: 0,
            found: self.copies.values().map(|copy| u64::from(copy.found)).sum(),
            lost: Vec::new(),
            duplicated: Vec::new(),
            altered: Vec::new(),
            unexpected: Vec::new(),
            uncertain_found: 0,
            uncertain_absent: 0,
            other_runs: self.other_runs,
            unstamped: self.unstamped,
        };
        for (number, expected) in self.ledger.iter() {
            let copy = self.copies.remove(&number).unwrap_or_default();
            account.judge(number, self.run, expected, copy);
        }
        for (number, copy) in std::mem::take(&mut self.copies) {
            account.judge(number, self.run, Expected::default(), copy);
        }
        account
    }
}

fn parse_id(text: &str) -> Option<Id> {
    let (run, number) = text.split_once('.')?;
    Some(Id { run: u64::from_str_radix(run, 16).ok()?, number: number.parse().ok()? })
}

impl Account {
    fn judge(&mut self, number: u64, run: u64, expected: Expected, copy: Kept) {
        let (acked, uncertain) = (u32::from(expected.acked), u32::from(expected.uncertain));
        // A surplus copy is one too many, and no other recipient has it.
        let (least, most, surplus) = match self.copies {
            Copies::PerRecipient => (acked, acked + uncertain, copy.surplus),
            Copies::PerMessage => (acked.min(1), (acked + uncertain).min(1), 0),
        };
        self.acked += u64::from(acked > 0);
        self.expected += u64::from(least);
        if uncertain > 0 && acked == 0 {
            *(if copy.found > 0 { &mut self.uncertain_found } else { &mut self.uncertain_absent }) += 1;
        }
        let is_altered = copy.altered > 0;
        let finding =
            Finding { id: Id { run, number }.to_string(), expected: least, found: copy.found, places: copy.places };
        let distinct = copy.found - surplus;
        if distinct < least {
            self.lost.push(Finding { found: distinct, ..finding.clone() });
        }
        if copy.found > most || surplus > 0 {
            let list = if most == 0 { &mut self.unexpected } else { &mut self.duplicated };
            list.push(finding.clone());
        }
        if is_altered {
            self.altered.push(finding);
        }
    }

    /// Whether everything is there, once and unaltered, and nothing else.
    pub fn is_clean(&self) -> bool {
        self.lists().iter().all(|(_, list)| list.is_empty())
    }

    fn lists(&self) -> [(&'static str, &Vec<Finding>); 4] {
        [
            ("lost", &self.lost),
            ("duplicated", &self.duplicated),
            ("altered", &self.altered),
            ("unexpected", &self.unexpected),
        ]
    }

    /// What may explain the findings: several recipients, and no message there more than once.
    pub fn hint(&self) -> Option<&'static str> {
        let is_short = self.copies == Copies::PerRecipient && self.expected > self.acked && !self.lost.is_empty();
        // Where a mailbox of its own has one recipient's copy, some message is there twice.
        let has_one_each = self.lost.iter().any(|finding| finding.found == 1) && self.found <= self.acked;
        let has_one_at_most = self.lost.iter().all(|finding| finding.found <= 1) && self.duplicated.is_empty();
        (is_short && has_one_each && has_one_at_most).then_some(
            "no message was found more than once: if the store keeps one copy for all recipients, as a sink does, say --copies message",
        )
    }

    /// For people: the sums, and at most `list_max` findings of each kind.
    pub fn to_text(&self, list_max: usize) -> String {
        let mut text = format!(
            "account of run {}: {} messages acknowledged, {} copies expected, {} found\n",
            self.run, self.acked, self.expected, self.found
        );
        let sums: Vec<_> = self.lists().iter().map(|(name, list)| format!("{} {name}", list.len())).collect();
        writeln!(text, "  {}", sums.join(", ")).expect("a String takes everything");
        if self.uncertain_found + self.uncertain_absent > 0 {
            let (found, absent) = (self.uncertain_found, self.uncertain_absent);
            writeln!(
                text,
                "  connection lost before the verdict: {found} of these are there, {absent} are not (either is right)"
            )
            .expect("a String takes everything");
        }
        if self.other_runs + self.unstamped > 0 {
            writeln!(text, "  passed over: {} of other runs, {} without a stamp", self.other_runs, self.unstamped)
                .expect("a String takes everything");
        }
        for (name, list) in self.lists() {
            for finding in list.iter().take(list_max) {
                writeln!(
                    text,
                    "  {name} {}: {} expected, {} found {}",
                    finding.id,
                    finding.expected,
                    finding.found,
                    finding.places.join(" ")
                )
                .expect("a String takes everything");
            }
            if list.len() > list_max {
                writeln!(text, "  … and {} more {name}", list.len() - list_max).expect("a String takes everything");
            }
        }
        if let Some(hint) = self.hint() {
            writeln!(text, "  {hint}").expect("a String takes everything");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: u64 = 0xfeed;

    fn message(number: u64) -> Vec<u8> {
        let rest = format!("Subject: {number}\r\n\r\ntext\r\n");
        (stamp::field(Id { run: RUN, number }, rest.as_bytes()) + &rest).into_bytes()
    }

    fn write(dir: &Path, name: &str, octets: &[u8]) {
        std::fs::write(dir.join(name), octets).unwrap();
    }

    fn ledger(messages: &[(u16, u16)]) -> Ledger {
        let mut ledger = Ledger::new(RUN);
        (0..).zip(messages).for_each(|(number, (acked, uncertain))| ledger.set(number, *acked, *uncertain));
        ledger
    }

    fn ids(list: &[Finding]) -> Vec<u64> {
        list.iter().map(|finding| parse_id(&finding.id).unwrap().number).collect()
    }

    #[test]
    fn each_kind_of_fault_is_found_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let (at, put) = (dir.path(), |name: &str, number| write(dir.path(), name, &message(number)));
        put("0", 0);
        put("2", 2);
        put("2again", 2);
        write(at, "3", &[&message(3)[..], b"more\r\n"].concat());
        put("4", 4);
        put("9", 9);
        put("6", 6);
        write(at, "foreign", b"Subject: x\n\nhello\n");
        write(at, DIR_INDEX, b"{}\n");
        // 1 is lost, 2 there twice, 3 altered, 4 refused but there, 5 and 6 uncertain, 9 never sent.
        let ledger = ledger(&[(1, 0), (1, 0), (1, 0), (1, 0), (0, 0), (0, 1), (0, 1)]);
        let account = account(&ledger, &[at.to_owned()], None).unwrap();
        assert_eq!(ids(&account.lost), [1]);
        assert_eq!(ids(&account.duplicated), [2]);
        assert_eq!(ids(&account.altered), [3]);
        assert_eq!(ids(&account.unexpected), [4, 9]);
        assert_eq!((account.acked, account.expected, account.found), (4, 4, 7));
        assert_eq!((account.uncertain_found, account.uncertain_absent, account.unstamped), (1, 1, 1));
        assert!(account.duplicated[0].places[0].ends_with("2again"));
        let text = account.to_text(1);
        assert!(text.contains("1 lost, 1 duplicated, 1 altered, 2 unexpected"), "{text}");
        assert!(text.contains("… and 1 more unexpected"), "{text}");
    }

    #[test]
    fn several_recipients_have_a_copy_each_unless_the_store_keeps_one() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            write(dir.path(), name, &message(0));
        }
        let stores = [dir.path().to_owned()];
        let check = |acked, uncertain, copies| {
            let account = account(&ledger(&[(acked, uncertain)]), &stores, Some(copies)).unwrap();
            (account.lost.len(), account.duplicated.len())
        };
        assert_eq!(check(3, 0, Copies::PerRecipient), (0, 0));
        assert_eq!(check(4, 0, Copies::PerRecipient), (1, 0));
        assert_eq!(check(2, 0, Copies::PerRecipient), (0, 1));
        assert_eq!(check(2, 1, Copies::PerRecipient), (0, 0));
        assert_eq!(check(3, 0, Copies::PerMessage), (0, 1));
    }

    #[test]
    fn a_store_with_one_copy_for_several_recipients_is_told_from_a_loss() {
        let dir = tempfile::tempdir().unwrap();
        (0..3).for_each(|number| write(dir.path(), &number.to_string(), &message(number)));
        let stores = [dir.path().to_owned()];
        let check = |messages: &[(u16, u16)], copies| {
            let account = account(&ledger(messages), &stores, copies).unwrap();
            assert_eq!(account.to_text(1).contains("--copies message"), account.hint().is_some());
            account.hint().is_some()
        };
        assert!(check(&[(2, 0), (2, 0), (2, 0)], None));
        assert!(check(&[(2, 0), (1, 0), (2, 0), (2, 0)], None), "also where one is lost");
        assert!(!check(&[(2, 0), (2, 0), (2, 0)], Some(Copies::PerMessage)));
        assert!(!check(&[(1, 0), (1, 0), (1, 0), (1, 0)], None), "one recipient each: it is lost");
        write(dir.path(), "again", &message(0));
        assert!(!check(&[(2, 0), (2, 0), (2, 0)], None), "some have a copy for each");
    }

    #[test]
    fn a_duplicate_in_one_maildir_does_not_stand_for_another_recipients_copy() {
        let dir = tempfile::tempdir().unwrap();
        let put = |maildir: &str, name: &str, number| {
            let maildir = dir.path().join(maildir);
            ["new", "cur"].iter().for_each(|sub| std::fs::create_dir_all(maildir.join(sub)).unwrap());
            write(&maildir.join("new"), name, &message(number));
        };
        // 0 is twice with a, once in a folder, and not with b; 1 is with both.
        put("a", "x", 0);
        put("a/.Junk", "x", 0);
        put("a", "y", 1);
        put("b", "y", 1);
        let stores = [dir.path().to_owned()];
        let found = account(&ledger(&[(2, 0), (2, 0)]), &stores, None).unwrap();
        assert_eq!((ids(&found.lost), ids(&found.duplicated)), (vec![0], vec![0]), "{found:?}");
        assert_eq!((found.lost[0].found, found.duplicated[0].found, found.found), (1, 2, 4));
        assert!(found.duplicated[0].places[0].contains("/a/"), "{found:?}");
        // Three recipients of whom one is uncertain: the second copy is still no one's.
        let found = account(&ledger(&[(2, 1), (2, 0)]), &stores, None).unwrap();
        assert_eq!((ids(&found.lost), ids(&found.duplicated)), (vec![0], vec![0]), "{found:?}");
        let found = account(&ledger(&[(2, 0), (2, 0)]), &stores, Some(Copies::PerMessage)).unwrap();
        assert_eq!((found.lost.len(), found.duplicated.len()), (0, 2), "one store, one copy: {found:?}");
    }

    #[test]
    fn a_sinks_account_file_counts_each_line() {
        let dir = tempfile::tempdir().unwrap();
        let line = |number: u64, intact: bool| format!("{{\"id\":\"{RUN:016x}.{number}\",\"intact\":{intact}}}\n");
        let path = dir.path().join("seen.jsonl");
        std::fs::write(&path, line(0, true) + &line(1, false)).unwrap();
        let account = account(&ledger(&[(5, 0), (1, 0), (1, 0)]), std::slice::from_ref(&path), None).unwrap();
        assert_eq!((account.copies, account.expected), (Copies::PerMessage, 3));
        assert_eq!((ids(&account.lost), ids(&account.altered)), (vec![2], vec![1]));
        std::fs::write(&path, "{\"id\":\"x\",\"intact\":true}\n").unwrap();
        assert!(super::account(&ledger(&[]), &[path], None).is_err());
    }
}
