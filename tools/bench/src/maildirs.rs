//! Synthetic Maildirs, made once for all sides that look at them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const FOLDERS: u64 = 50;
/// Words that the queries use, at their ranks: the common ones are in most messages, the last in few.
const KNOWN: [(usize, &str); 9] = [
    (3, "kernel"),
    (5, "patch"),
    (9, "device"),
    (10, "tree"),
    (40, "hwmon"),
    (60, "release"),
    (150, "temperature"),
    (400, "lm90"),
    (6000, "zynqmp"),
];
const WORDS: usize = 20_000;
/// Words of each message in few files.
const LINKED_WORDS: usize = 20;
const SENDERS: [&str; 6] =
    ["Guenter Roeck <linux", "Jean Delvare <jdelvare", "Ann Lee <ann", "Bo Kim <bo", "Cy Day <cy", "Di Fox <di"];

/// Maildirs with generated mail: number of messages, and of words in each.
#[derive(Debug)]
pub(crate) struct Maildirs {
    pub messages: u64,
    words: usize,
    folders: u64,
    /// Files; messages beyond are further names of these.
    files: u64,
    made: OnceLock<PathBuf>,
}

impl Maildirs {
    pub fn new(messages: u64, words: usize) -> Self {
        Self { messages, words, folders: FOLDERS, files: u64::MAX, made: OnceLock::new() }
    }

    /// All in one, which is `folder00`.
    pub fn in_one(messages: u64, words: usize) -> Self {
        Self { folders: 1, ..Self::new(messages, words) }
    }

    /// All in one, which is `folder00`: short messages in `files` files, with as many names as there are messages.
    pub fn linked(messages: u64, files: u64) -> Self {
        Self { folders: 1, files, ..Self::new(messages, LINKED_WORDS) }
    }

    /// Returns their directory; the first call generates them in a directory of its own in `scratch`.
    pub fn make(&self, scratch: &Path) -> io::Result<&Path> {
        if self.made.get().is_none() {
            let root = scratch.join(format!("mail-{}-{}-{}", self.folders, self.messages, self.words));
            self.write(&root)?;
            // Set once: sides are started one after the other.
            let _ = self.made.set(root);
        }
        Ok(self.made.get().expect("it was set above"))
    }

    fn write(&self, root: &Path) -> io::Result<()> {
        let vocabulary = vocabulary();
        let mut random = fastrand::Rng::with_seed(1);
        for folder in 0..self.folders {
            let dir = root.join(format!("folder{folder:02}"));
            ["new", "cur", "tmp"].iter().try_for_each(|sub| fs::create_dir_all(dir.join(sub)))?;
            let mut written = Vec::new();
            for number in (folder..self.messages).step_by(self.folders as usize) {
                let flags = if random.u8(..) < 200 { "S" } else { "" };
                let path = dir.join(format!("cur/{}.M{number}P1.bench:2,{flags}", 1_600_000_000 + number));
                if written.len() as u64 >= self.files {
                    fs::hard_link(&written[random.usize(..written.len())], path)?;
                    continue;
                }
                fs::write(&path, self.message(number, &vocabulary, &mut random))?;
                written.push(path);
            }
        }
        Ok(())
    }

    fn message(&self, number: u64, vocabulary: &[String], random: &mut fastrand::Rng) -> String {
        // Every fourth message begins a thread, the others answer the one before in their folder.
        let is_reply = !(number / self.folders).is_multiple_of(4);
        let sender = SENDERS[random.usize(..SENDERS.len())];
        let reference =
            if is_reply { format!("In-Reply-To: <{}@bench.example>\n", number - self.folders) } else { String::new() };
        let subject: Vec<&str> = (0..4).map(|_| word(vocabulary, random)).collect();
        let at = date_of(number);
        let mut text = format!(
            "From: {sender}@bench.example>\nTo: list@lists.bench.example\nSubject: {}{}\nDate: {at}\nMessage-ID: <{number}@bench.example>\n{reference}\n",
            if is_reply { "Re: " } else { "" },
            subject.join(" ")
        );
        for count in 1..=self.words {
            text.push_str(word(vocabulary, random));
            text.push(if count % 12 == 0 { '\n' } else { ' ' });
        }
        text.push('\n');
        text
    }
}

/// Words made of syllables, the same every time.
fn vocabulary() -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(2);
    let syllable = |random: &mut fastrand::Rng| {
        let (consonants, vowels) = (b"bcdfghklmnprstvz", b"aeiou");
        [consonants[random.usize(..consonants.len())] as char, vowels[random.usize(..vowels.len())] as char]
    };
    let mut words: Vec<String> =
        (0..WORDS).map(|_| (0..random.usize(1..5)).flat_map(|_| syllable(&mut random)).collect()).collect();
    KNOWN.iter().for_each(|(rank, word)| words[*rank] = (*word).to_owned());
    words
}

/// A random word: rank r has a probability in proportion to 1/r, as in natural languages.
fn word<'a>(vocabulary: &'a [String], random: &mut fastrand::Rng) -> &'a str {
    let rank = (vocabulary.len() as f64).powf(random.f64()) as usize;
    &vocabulary[rank.min(vocabulary.len() - 1)]
}

/// The date of message `number`: about one every twenty minutes from 2015 on, no day above 28 so that every month has
/// it.
fn date_of(number: u64) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let slot = number % (28 * 72 * 12 * 10);
    let (day, rest) = (slot / 72, slot % 72);
    format!(
        "{} {} {} {:02}:{:02}:00 +0000",
        day % 28 + 1,
        MONTHS[(day / 28 % 12) as usize],
        2015 + day / (28 * 12),
        rest / 3,
        rest % 3 * 20
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_mail_is_made_every_time_and_once() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let one = Maildirs::new(120, 30);
        let root = one.make(a.path()).unwrap().to_owned();
        assert_eq!(one.make(b.path()).unwrap(), root, "made once");
        let again = Maildirs::new(120, 30).make(b.path()).unwrap().to_owned();
        let list = |root: &Path| {
            let mut names: Vec<_> =
                fs::read_dir(root.join("folder07/cur")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(list(&root), list(&again));
        assert_eq!(list(&root).len(), 3);
        let first = |root: &Path| fs::read(root.join("folder07/cur").join(&list(root)[0])).unwrap();
        assert_eq!(first(&root), first(&again));
    }

    #[test]
    fn messages_of_few_files_have_a_name_each() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let mail = Maildirs::linked(50, 7);
        let entries = fs::read_dir(mail.make(dir.path()).unwrap().join("folder00/cur")).unwrap();
        let inodes: Vec<u64> = entries.map(|entry| entry.unwrap().metadata().unwrap().ino()).collect();
        assert_eq!(inodes.len(), 50);
        assert_eq!(inodes.iter().collect::<std::collections::HashSet<_>>().len(), 7);
    }
}
