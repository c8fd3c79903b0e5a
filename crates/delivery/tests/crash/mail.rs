//! Mail that follows from a seed, and its check in the mailboxes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use posthaste_delivery::local::{GatheredBody, LineEnds, MailboxMessage, MailboxTarget};
use posthaste_turns::Random;

/// Mailboxes of a scenario.
pub const MAILBOXES: u64 = 4;

/// A message and its mailboxes.
pub struct Letter {
    pub number: u64,
    /// Numbers of mailboxes, each once.
    pub mailboxes: Vec<u64>,
    body: Vec<u8>,
    line_ends: LineEnds,
}

impl Letter {
    /// A message of some bytes to 12 KiB; one in three goes to several mailboxes, one in eight has line ends that must
    /// stay.
    pub fn new(seed: u64, number: u64) -> Self {
        let mut random = Random::new(seed.wrapping_mul(1 << 20) + number);
        let first = random.below(MAILBOXES);
        let mut mailboxes = BTreeSet::from([first]);
        if random.below(3) == 0 {
            mailboxes.extend([random.below(MAILBOXES), random.below(MAILBOXES)]);
        }
        let bytes = if random.below(5) == 0 { 4096 + random.below(8192) } else { random.below(3000) };
        let mut body = format!("Number: {number}\r\nSubject: of {seed}\r\n\r\n").into_bytes();
        while (body.len() as u64) < bytes {
            let word = random.below(u64::MAX).to_le_bytes().map(|byte| b' ' + byte % 95);
            body.extend_from_slice(&word);
            body.extend_from_slice(b"\r\n");
        }
        let line_ends = if random.below(8) == 0 { LineEnds::AsGiven } else { LineEnds::ToLf };
        Letter { number, mailboxes: mailboxes.into_iter().collect(), body, line_ends }
    }

    /// The message for the executor.
    pub fn message(&self) -> MailboxMessage {
        let target =
            |mailbox: &u64| MailboxTarget { mailbox: name_of(*mailbox).into(), prefix: self.prefix(*mailbox).into() };
        let (front, back) = self.body.split_at(self.body.len() / 3);
        MailboxMessage {
            targets: self.mailboxes.iter().map(target).collect(),
            body: GatheredBody::Memory(vec![Bytes::copy_from_slice(front), Bytes::copy_from_slice(back)]),
            line_ends: self.line_ends,
            also: Vec::new(),
        }
    }

    /// True if its client is slow: it then goes to the spool in pieces.
    pub fn comes_in_pieces(&self) -> bool {
        self.number.is_multiple_of(11)
    }

    /// True if its client has little patience.
    pub fn may_be_given_up(&self) -> bool {
        self.number % 5 == 2
    }

    /// The bytes for the executor, without a prefix.
    pub fn body(&self) -> Bytes {
        Bytes::copy_from_slice(&self.body)
    }

    fn prefix(&self, mailbox: u64) -> Vec<u8> {
        format!("Delivered-To: {mailbox}\r\nNumber: {}\r\n", self.number).into_bytes()
    }

    fn in_mailbox(&self, mailbox: u64, kind: Kind) -> Vec<u8> {
        match kind {
            Kind::Standalone => self.body.clone(),
            Kind::Local => {
                let mut whole = [self.prefix(mailbox), self.body.clone()].concat();
                if self.line_ends == LineEnds::ToLf {
                    whole.retain(|byte| *byte != b'\r');
                }
                whole
            }
        }
    }
}

/// The kind of executor: the standalone one writes different bytes, and only the others deliver to all mailboxes or
/// none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// On the spool.
    Local,
    Standalone,
}

/// The path of a mailbox below the mail root.
pub fn name_of(mailbox: u64) -> String {
    format!("rig/m{mailbox}")
}

/// The state that must survive a cut.
pub struct Expected {
    pub kind: Kind,
    /// Letters handed over, by number.
    pub letters: Arc<[Arc<Letter>]>,
    pub acknowledged: BTreeSet<u64>,
    /// Entries, by number and mailbox, that other programs had removed or were about to; true if they must then be
    /// elsewhere.
    pub taken: BTreeMap<(u64, u64), bool>,
    /// True if the disk has failed: unacknowledged messages may then be in some of their mailboxes only.
    pub has_failed: bool,
}

impl Expected {
    /// Checks every visible file; returns them with their bytes.
    pub fn check(&self, mail: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>, String> {
        let mut files = BTreeMap::new();
        let mut elsewhere = BTreeSet::new();
        let mut found: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let places: BTreeMap<PathBuf, u64> = (0..MAILBOXES)
            .flat_map(|mailbox| ["new", "cur"].map(|subdir| (mail.join(name_of(mailbox)).join(subdir), mailbox)))
            .collect();
        for path in files_below(mail).map_err(|error| error.to_string())? {
            let bytes = std::fs::read(&path).map_err(|error| error.to_string())?;
            let Some(&mailbox) = path.parent().and_then(|dir| places.get(dir)) else {
                elsewhere
                    .extend((0..MAILBOXES).filter_map(|mailbox| Some((self.number_of(mailbox, &bytes)?, mailbox))));
                continue;
            };
            let number = self
                .number_of(mailbox, &bytes)
                .ok_or_else(|| format!("half: {} bytes in mailbox {mailbox}", bytes.len()))?;
            if !found.entry(number).or_default().insert(mailbox) {
                return Err(format!("message {number} is twice in mailbox {mailbox}"));
            }
            files.insert(path, bytes);
        }
        for letter in &*self.letters {
            let number = letter.number;
            let there = found.remove(&number).unwrap_or_default();
            let is_promised = self.acknowledged.contains(&number);
            let must_be_whole = is_promised || (self.kind != Kind::Standalone && !self.has_failed && !there.is_empty());
            let is_gone = |entry| match self.taken.get(&entry) {
                // Files lost by a sync are rewritten in their place, and nowhere else.
                Some(true) => self.has_failed || elsewhere.contains(&entry),
                taken => taken.is_some(),
            };
            let missing = |mailbox: &u64| !there.contains(mailbox) && !is_gone((number, *mailbox));
            if must_be_whole && let Some(mailbox) = letter.mailboxes.iter().find(|mailbox| missing(mailbox)) {
                let what = if is_promised { "lost" } else { "only in some mailboxes" };
                return Err(format!("message {number} is {what}: not in mailbox {mailbox}"));
            }
        }
        Ok(files)
    }

    fn number_of(&self, mailbox: u64, bytes: &[u8]) -> Option<u64> {
        number_of(&self.letters, self.kind, mailbox, bytes)
    }
}

/// The number of a message, if it is whole and belongs there.
pub fn number_of(letters: &[Arc<Letter>], kind: Kind, mailbox: u64, bytes: &[u8]) -> Option<u64> {
    let number: u64 =
        String::from_utf8_lossy(bytes).lines().find_map(|line| line.strip_prefix("Number: "))?.parse().ok()?;
    let letter = letters.get(usize::try_from(number).ok()?)?;
    (letter.mailboxes.contains(&mailbox) && letter.in_mailbox(mailbox, kind) == bytes).then_some(number)
}

/// Every file below a directory, if there is one.
pub fn files_below(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(files) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() { files.extend(files_below(&path)?) } else { files.push(path) }
    }
    Ok(files)
}
