//! Compares a ledger with what stores hold.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::ledger::{Expected, Ledger};
use super::stores::{AccountError, FoundCopies, Seen, places};
use crate::stamp::{self, Id};

/// Copies that a store keeps of a message with several recipients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Copies {
    /// One for each recipient for whom it was acknowledged: mailboxes. In Maildirs each is in one of its own: a second
    /// copy in the same one is a duplicate and counts for no other recipient.
    PerRecipient,
    /// One, however many recipients: a sink, an archive, a hard link counted once.
    PerMessage,
}

/// A copy in a server's spool that is not yet in its mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The stamp of the message.
    pub stamp: stamp::Found,
    /// The Maildir that it will go to: a path below the server's mail directory.
    pub mailbox: String,
    /// Reason of the wait, if the server knows it.
    pub why: Option<String>,
}

/// A message with a wrong number of copies, or an altered one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub id: String,
    /// Copies that must be there.
    pub expected: u32,
    /// Copies found.
    pub found: u32,
    /// Places of its copies, all of them unless there are many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<String>,
}

/// Copies in the server's spool that wait for a mailbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingCopies {
    pub mailbox: String,
    pub copies: u64,
    /// Reason of the wait, if the server knows it.
    pub why: Option<String>,
}

/// The result: promised copies against stored ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub run: String,
    pub copies: Copies,
    /// Messages that were acknowledged.
    pub acked: u64,
    /// Copies that must be stored.
    pub expected: u64,
    /// Copies of this run's messages that are stored.
    pub found: u64,
    /// Copies that must be stored and are still in the server's spool: promised, not lost.
    #[serde(default)]
    pub waiting: Vec<WaitingCopies>,
    /// Fewer copies than were acknowledged.
    pub lost: Vec<Finding>,
    /// More copies than were acknowledged or may be there.
    pub duplicated: Vec<Finding>,
    /// Copies with other octets than were sent.
    pub altered: Vec<Finding>,
    /// Stored without an acknowledgement.
    pub unexpected: Vec<Finding>,
    /// Messages whose connection was lost before the verdict, and that are stored; either is right.
    pub uncertain_found: u64,
    /// Messages whose connection was lost before the verdict, and that are absent; either is right.
    pub uncertain_absent: u64,
    /// Messages of other runs, which are ignored.
    pub other_runs: u64,
    /// Messages without a stamp, which are ignored.
    pub unstamped: u64,
    /// Account files that end in the middle of a line, which is not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfinished: Vec<String>,
}

/// Looks through `stores` for the messages of `ledger`.
///
/// A store is a Maildir tree, a directory, an mbox (see [`crate::mailfiles::each_message`]), or an account file: JSON lines
/// `{"id":"<run>.<number>","intact":true}`, one for each message received. `copies` is guessed when it is not given:
/// [`Copies::PerMessage`] if all stores are account files.
///
/// `waiting` is the content of the server's spool **before** this call: mail that leaves the spool meanwhile is in its
/// mailbox. A copy that is in its mailbox already does not wait. Each waiting copy must be named once.
///
/// # Errors
/// When a store cannot be read.
pub fn account(
    ledger: &Ledger,
    stores: &[PathBuf],
    waiting: &[Waiting],
    copies: Option<Copies>,
) -> Result<Account, AccountError> {
    let mut seen = Seen::new(ledger);
    for store in stores {
        seen.read(store)?;
    }
    let only_lines = seen.all_are_lines && !stores.is_empty() && waiting.is_empty();
    let guess = if only_lines { Copies::PerMessage } else { Copies::PerRecipient };
    let mut account = compare(ledger, seen, waiting, copies.unwrap_or(guess));
    let places = places(stores, ledger.run, &account.remarkable())?;
    account.name(&places);
    Ok(account)
}

/// Waiting copies of one message.
type InSpool<'a> = Vec<&'a Waiting>;

/// Copies that wait for a mailbox, and why.
type Waits<'a> = BTreeMap<&'a str, (u64, Option<&'a str>)>;

fn compare(ledger: &Ledger, mut seen: Seen<'_>, waiting: &[Waiting], copies: Copies) -> Account {
    let mut account = Account {
        run: format!("{:016x}", ledger.run),
        copies,
        acked: 0,
        expected: 0,
        found: seen.copies.values().map(|copy| u64::from(copy.found)).sum(),
        waiting: Vec::new(),
        lost: Vec::new(),
        duplicated: Vec::new(),
        altered: Vec::new(),
        unexpected: Vec::new(),
        uncertain_found: 0,
        uncertain_absent: 0,
        other_runs: seen.other_runs,
        unstamped: seen.unstamped,
        unfinished: std::mem::take(&mut seen.unfinished),
    };
    let mut spool: HashMap<u64, InSpool<'_>> = HashMap::new();
    for copy in waiting.iter().filter(|copy| copy.stamp.id.run == ledger.run) {
        // It may have been delivered since, or the server has not noted yet that it was.
        let kept = seen.copies.get(&copy.stamp.id.number);
        let mut has = kept.iter().flat_map(|kept| &kept.maildirs).map(|number| &seen.maildirs[*number as usize]);
        if !has.any(|maildir| maildir.ends_with(&copy.mailbox)) {
            spool.entry(copy.stamp.id.number).or_default().push(copy);
        }
    }
    let mut waits = Waits::new();
    let known = ledger.iter().count() as u64;
    let others: BTreeSet<u64> =
        seen.copies.keys().chain(spool.keys()).copied().filter(|number| *number >= known).collect();
    for number in (0..known).chain(others) {
        let copy = seen.copies.remove(&number).unwrap_or_default();
        let in_spool = spool.remove(&number).unwrap_or_default();
        account.judge(Id { run: ledger.run, number }, ledger.get(number), &copy, &in_spool, &mut waits);
    }
    let waiting = |(mailbox, (copies, why)): (&str, (u64, Option<&str>))| WaitingCopies {
        mailbox: mailbox.to_owned(),
        copies,
        why: why.map(str::to_owned),
    };
    account.waiting = waits.into_iter().map(waiting).collect();
    account
}

impl Account {
    fn judge<'a>(
        &mut self,
        id: Id,
        expected: Expected,
        copy: &FoundCopies,
        in_spool: &InSpool<'a>,
        waits: &mut Waits<'a>,
    ) {
        let (acked, uncertain) = (u32::from(expected.acked), u32::from(expected.uncertain));
        // A surplus copy is one too many, and no other recipient has it.
        let (least, most, surplus) = match self.copies {
            Copies::PerRecipient => (acked, acked + uncertain, copy.surplus),
            Copies::PerMessage => (acked.min(1), (acked + uncertain).min(1), 0),
        };
        self.acked += u64::from(acked > 0);
        self.expected += u64::from(least);
        if uncertain > 0 && acked == 0 {
            let is_there = copy.found > 0 || !in_spool.is_empty();
            *(if is_there { &mut self.uncertain_found } else { &mut self.uncertain_absent }) += 1;
        }
        let finding = Finding { id: id.to_string(), expected: least, found: copy.found, places: Vec::new() };
        let distinct = copy.found - surplus;
        // What waits stands for copies that are missing, and for no others.
        let missing = least.saturating_sub(distinct) as usize;
        for copy in in_spool.iter().take(missing) {
            waits.entry(&copy.mailbox).or_insert((0, copy.why.as_deref())).0 += 1;
        }
        if in_spool.len() < missing {
            self.lost.push(Finding { found: distinct, ..finding.clone() });
        }
        if copy.found > most || surplus > 0 {
            let list = if most == 0 { &mut self.unexpected } else { &mut self.duplicated };
            list.push(finding.clone());
        } else if most == 0 && !in_spool.is_empty() {
            self.unexpected.push(finding.clone());
        }
        if copy.altered > 0 || in_spool.iter().any(|copy| !copy.stamp.is_intact) {
            self.altered.push(finding);
        }
    }

    /// Numbers of messages whose copies are worth a look.
    fn remarkable(&self) -> HashSet<u64> {
        let lists = [&self.duplicated, &self.altered, &self.unexpected];
        lists.into_iter().flatten().filter_map(Finding::number).collect()
    }

    fn name(&mut self, places: &HashMap<u64, Vec<String>>) {
        for finding in [&mut self.duplicated, &mut self.altered, &mut self.unexpected].into_iter().flatten() {
            let known = finding.number().and_then(|number| places.get(&number));
            finding.places = known.cloned().unwrap_or_default();
        }
    }

    /// True if every acknowledged message is stored or still queued, once and unaltered, and nothing else is.
    pub fn is_clean(&self) -> bool {
        self.lists().iter().all(|(_, list)| list.is_empty())
    }

    /// True if a later look may find mail that this one missed: mail on its way, or a file that is being written.
    pub fn may_still_change(&self) -> bool {
        let is_whole = self.lost.is_empty() && self.altered.is_empty();
        !is_whole || !self.waiting.is_empty() || !self.unfinished.is_empty()
    }

    /// Copies that wait in the server's spool.
    pub fn waiting_copies(&self) -> u64 {
        self.waiting.iter().map(|mailbox| mailbox.copies).sum()
    }

    pub(crate) fn lists(&self) -> [(&'static str, &Vec<Finding>); 4] {
        [
            ("lost", &self.lost),
            ("duplicated", &self.duplicated),
            ("altered", &self.altered),
            ("unexpected", &self.unexpected),
        ]
    }

    /// A likely cause of the findings: several recipients, and no message stored more than once.
    pub fn hint(&self) -> Option<&'static str> {
        let is_short = self.copies == Copies::PerRecipient && self.expected > self.acked && !self.lost.is_empty();
        // Where a mailbox of its own has one recipient's copy, some message is there twice.
        let has_one_each = self.lost.iter().any(|finding| finding.found == 1) && self.found <= self.acked;
        let has_one_at_most = self.lost.iter().all(|finding| finding.found <= 1) && self.duplicated.is_empty();
        (is_short && has_one_each && has_one_at_most).then_some(
            "no message was found more than once: if the store keeps one copy for all recipients, as a sink does, use --copies message",
        )
    }
}

impl Finding {
    fn number(&self) -> Option<u64> {
        super::stores::parse_id(&self.id).map(|id| id.number)
    }
}
