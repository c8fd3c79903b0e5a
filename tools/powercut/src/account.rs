//! Accounting: compares the mail in the mailboxes with the acknowledged mail.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use posthaste_loadgen::stamp;

use crate::load::{DOMAIN, Entry, Load, user};

/// Findings of one accounting. All lists are empty if nothing was lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Acknowledged, but missing in the mailbox.
    pub lost: Vec<Entry>,
    /// More than once in one mailbox, acknowledged or not: no message was sent twice.
    pub duplicated: Vec<Entry>,
    /// Files visible to a reader, or messages at the next hop, that are not a whole message as sent.
    pub half: Vec<String>,
    /// In some of its mailboxes and not in others, or in one that it was not sent to.
    pub misplaced: Vec<Entry>,
    /// Files whose fields in front of the message, such as `Received`, are damaged, replaced by `X-Lost`, or fewer than
    /// in other files.
    pub fronts: Vec<PathBuf>,
    /// Second copies at the next hop, where the server's record of the first may be lost: for each, the flushes between
    /// the first copy and the cut.
    pub sent_again: Vec<u64>,
    /// Every visible file with the digest of its octets.
    pub files: BTreeMap<PathBuf, u64>,
}

impl Account {
    /// True if nothing is lost, duplicated, half or misplaced, and all front fields are whole.
    pub fn is_clean(&self) -> bool {
        let lists = [self.lost.len(), self.duplicated.len(), self.half.len(), self.misplaced.len(), self.fronts.len()];
        lists.iter().all(|len| *len == 0)
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Account { lost, duplicated, half, misplaced, fronts, .. } = self;
        write!(f, "lost {lost:?}, duplicated {duplicated:?}, half {half:?}, misplaced {misplaced:?}")?;
        if fronts.is_empty() { Ok(()) } else { write!(f, ", fields in front {fronts:?}") }
    }
}

/// Compares the mailboxes below `mail` with what `load` was `acknowledged`: marks, see [`mark`](crate::load::mark).
///
/// # Errors
/// Errors of reading the mailboxes; a missing mailbox counts as empty.
pub fn account(mail: &Path, load: &Load, acknowledged: impl IntoIterator<Item = u64>) -> io::Result<Account> {
    let mut account = Account::default();
    let mut found: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut fronts = Vec::new();
    for mailbox in 0..load.mailboxes {
        let maildir = mail.join(DOMAIN).join(user(mailbox)).join("Maildir");
        for subdir in ["new", "cur"] {
            for file in files(&maildir.join(subdir))? {
                let octets = std::fs::read(&file)?;
                account.files.insert(file.clone(), stamp::digest(&octets));
                match stamp::find(&octets) {
                    Some(stamp)
                        if stamp.is_intact && stamp.id.run == load.seed && has_its_size(&file, octets.len()) =>
                    {
                        found.entry(stamp.id.number).or_default().push(mailbox);
                        fronts.push((front(&octets), file));
                    }
                    _ => account.half.push(file.display().to_string()),
                }
            }
        }
    }
    // Other servers write other fields, each the same number into all of its files.
    let whole = fronts.iter().map(|(fields, _)| *fields).max().unwrap_or_default();
    account.fronts = fronts.into_iter().filter(|(fields, _)| *fields != whole).map(|(_, file)| file).collect();
    let promised: HashSet<Entry> = acknowledged.into_iter().flat_map(|mark| load.promised(mark)).collect();
    for (&message, mailboxes) in &found {
        let expected = load.recipients(message);
        let distinct: HashSet<u64> = mailboxes.iter().copied().collect();
        let entry = |&mailbox: &u64| Entry { message, mailbox };
        let count = |mailbox: &u64| mailboxes.iter().filter(|other| *other == mailbox).count();
        account.duplicated.extend(distinct.iter().filter(|mailbox| count(mailbox) > 1).map(entry));
        account.misplaced.extend(distinct.iter().filter(|mailbox| !expected.contains(mailbox)).map(entry));
        // One record is all of its recipients or none; those that were promised count as lost below.
        let missing = expected.iter().filter(|mailbox| !distinct.contains(mailbox)).map(entry);
        account.misplaced.extend(missing.filter(|entry| !promised.contains(entry)));
    }
    let is_there = |entry: &Entry| found.get(&entry.message).is_some_and(|there| there.contains(&entry.mailbox));
    account.lost.extend(promised.into_iter().filter(|entry| !is_there(entry)));
    account.lost.sort_unstable();
    account.duplicated.sort_unstable();
    account.misplaced.sort_unstable();
    Ok(account)
}

/// The number of header fields in front of the sent message; 0 if they are damaged.
pub(crate) fn front(octets: &[u8]) -> usize {
    let lines =
        octets.split_inclusive(|octet| *octet == b'\n').take_while(|line| !line.starts_with(stamp::FIELD.as_bytes()));
    let mut fields = 0;
    for line in lines {
        let name = line.split(|octet| *octet == b':').next().unwrap_or_default();
        let is_field = name.len() < line.len() && name.iter().all(u8::is_ascii_graphic);
        let is_text = line.ends_with(b"\n") && !line.contains(&0) && name != b"X-Lost";
        match line.first() {
            Some(b' ' | b'\t') if is_text && fields > 0 => {}
            _ if is_text && is_field => fields += 1,
            _ => return 0,
        }
    }
    fields
}

/// True if the file has the size that its name gives (`,S=`), if any.
fn has_its_size(file: &Path, bytes: usize) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let told = name.split(',').find_map(|part| part.split(':').next()?.strip_prefix("S="));
    told.is_none_or(|digits| digits.parse() == Ok(bytes))
}

fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_doubled_cut_short_or_misplaced_is_found() {
        let load = Load { mailboxes: 3, several_one_in: 1, large_one_in: 1 << 40, ..Load::mixed(3) };
        let mail = tempfile::tempdir().unwrap();
        let put = |mailbox: u64, name: &str, octets: &[u8]| {
            let dir = mail.path().join(DOMAIN).join(user(mailbox)).join("Maildir/new");
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join(format!("{name},S={}", octets.len())), octets).unwrap();
        };
        let several = (0..).find(|number| load.recipients(*number) == [0, 1]).unwrap();
        let octets = load.letter(several).octets;
        let check = || account(mail.path(), &load, [several]).unwrap();
        let entry = |mailbox| Entry { message: several, mailbox };
        assert_eq!(check().lost, [entry(0), entry(1)]);
        let second = account(mail.path(), &load, [crate::load::mark(several, Some(1))]).unwrap();
        assert_eq!(second.lost, [entry(1)], "the other recipient was promised nothing");
        put(0, "a", &octets);
        put(1, "b", &octets);
        assert!(check().is_clean(), "{:?}", check());
        put(1, "c", &octets);
        assert_eq!(check().duplicated, [entry(1)]);
        put(2, "d", &octets);
        assert_eq!(check().misplaced, [entry(2)]);
        put(2, "e", &octets[..octets.len() - 1]);
        assert_eq!(check().half.len(), 1);
        for (name, front) in [("f", "Received: x\n"), ("g", "Received: x\n\ty\n"), ("h", "X-Lost: z\n"), ("i", "\0:\n")]
        {
            put(0, name, &[front.as_bytes(), &octets].concat());
        }
        let without: Vec<_> =
            check().fronts.iter().map(|file| file.file_name().unwrap().as_encoded_bytes()[0]).collect();
        assert_eq!(String::from_utf8(without).unwrap().chars().filter(|name| "fg".contains(*name)).count(), 0);
        assert_eq!(check().fronts.len(), 6, "those without, and those that are damaged");
        let unacknowledged = account(mail.path(), &load, []).unwrap();
        assert!(unacknowledged.lost.is_empty());
    }
}
