//! Storage of accepted messages. It is never synced: the sink is a test tool and promises nothing.

use std::fs::{DirBuilder, File};
use std::io::{self, BufWriter, IoSlice, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_maildir::{Host, Maildir, NameSource, line_ends};
use posthaste_message::DateTime;
use posthaste_smtp::{Envelope, ReversePath};

use crate::mailfiles::must_begin_with;
use crate::stamp;

/// Format and place of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreKind {
    /// A Maildir, created if missing; names and line ends as the server's own.
    Maildir(PathBuf),
    /// One file in mboxrd format, appended to.
    Mbox(PathBuf),
    /// A directory with one file for each message, `00000001.eml` and so on with the octets as received, and
    /// `index.jsonl` with sender and recipients of each.
    Dir(PathBuf),
}

impl std::str::FromStr for StoreKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some((_, "")) | None => Err("maildir:DIR, mbox:FILE or dir:DIR is needed".into()),
            Some(("maildir", path)) => Ok(Self::Maildir(path.into())),
            Some(("mbox", path)) => Ok(Self::Mbox(path.into())),
            Some(("dir", path)) => Ok(Self::Dir(path.into())),
            Some((kind, _)) => Err(format!("no store is called {kind}; there are maildir, mbox and dir")),
        }
    }
}

/// File with sender and recipients of each message in a directory, beside them.
pub(crate) const DIR_INDEX: &str = "index.jsonl";

/// An open store, shared by all threads. A write blocks its thread.
#[derive(Debug)]
pub(super) enum Store {
    Maildir { maildir: Maildir, names: NameSource },
    Mbox(Mutex<File>),
    Dir { dir: PathBuf, next: AtomicU64, index: Lines },
}

impl Store {
    pub fn open(kind: &StoreKind) -> io::Result<Self> {
        match kind {
            StoreKind::Maildir(dir) => Ok(Self::Maildir {
                maildir: Maildir::open_or_create(dir)?,
                names: NameSource::new(Host::of_this_machine())?,
            }),
            StoreKind::Mbox(file) => {
                must_begin_with(file, "From ", "an mbox")?;
                Ok(Self::Mbox(Mutex::new(append_to(file)?)))
            }
            StoreKind::Dir(dir) => {
                DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
                let index = Lines::new(append_to(&dir.join(DIR_INDEX))?);
                Ok(Self::Dir { dir: dir.clone(), next: AtomicU64::new(last_number(dir)? + 1), index })
            }
        }
    }

    /// Keeps one message as received (CRLF line ends).
    pub fn keep(&self, envelope: &Envelope, message: &[u8], now: SystemTime) -> io::Result<()> {
        match self {
            Self::Maildir { maildir, names } => {
                let mut stored = Vec::new();
                let converted = line_ends::crlf_to_lf(&[message], &mut stored);
                let name = names.next(now, converted.disk_size, converted.wire_size);
                maildir.write_tmp(name.as_str(), &[IoSlice::new(&stored)])?;
                maildir.publish(name.as_str())
            }
            Self::Mbox(file) => {
                let entry = mbox_entry(envelope, message, now);
                // One write under the lock: entries are whole and in a row.
                lock(file).write_all(&entry)
            }
            Self::Dir { dir, next, index } => {
                let name = format!("{:08}.eml", next.fetch_add(1, Ordering::Relaxed));
                File::options().write(true).create_new(true).mode(0o600).open(dir.join(&name))?.write_all(message)?;
                let to: Vec<String> = envelope.recipients.iter().map(|r| bare(&r.forward_path.to_string())).collect();
                let from = bare(&envelope.mail.reverse_path.to_string());
                index.enter(&serde_json::json!({ "file": name, "from": from, "to": to }).to_string())
            }
        }
    }

    /// Flushes buffers to the kernel.
    pub fn flush(&self) -> io::Result<()> {
        match self {
            Self::Maildir { .. } | Self::Mbox(_) => Ok(()),
            Self::Dir { index, .. } => index.flush(),
        }
    }
}

/// One line of JSON for each accepted message that has a stamp: `{"id":"<run>.<number>","intact":true}`, and of one with
/// DKIM signatures `"signatures":<number>`.
#[derive(Debug)]
pub(super) struct Ledger(Lines);

impl Ledger {
    /// Creates the account. The account of an earlier run is replaced, any other file is not.
    pub fn create(path: &Path) -> io::Result<Self> {
        must_begin_with(path, r#"{"id":"#, "the account of a sink")?;
        Ok(Self(Lines::new(File::create(path)?)))
    }

    pub fn enter(&self, found: &stamp::Found) -> io::Result<()> {
        let stamp::Found { id, is_intact, signatures } = found;
        let signatures = if *signatures > 0 { format!(r#","signatures":{signatures}"#) } else { String::new() };
        self.0.enter(&format!(r#"{{"id":"{id}","intact":{is_intact}{signatures}}}"#))
    }

    pub fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A file that grows by whole lines, so that a reader finds no partial line between two writes.
#[derive(Debug)]
pub(super) struct Lines(Mutex<BufWriter<File>>);

impl Lines {
    fn new(file: File) -> Self {
        Self(Mutex::new(BufWriter::with_capacity(LINES_OCTETS, file)))
    }

    fn enter(&self, line: &str) -> io::Result<()> {
        let mut file = lock(&self.0);
        // The writer would fill its buffer with the line's beginning.
        if file.buffer().len() + line.len() + 1 > LINES_OCTETS {
            file.flush()?;
        }
        writeln!(file, "{line}")
    }

    fn flush(&self) -> io::Result<()> {
        lock(&self.0).flush()
    }
}

/// Limit on octets of buffered lines.
const LINES_OCTETS: usize = 64 << 10;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn append_to(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// The highest file number in the directory, 0 for none.
fn last_number(dir: &Path) -> io::Result<u64> {
    let mut last = 0;
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".eml")?.parse().ok());
        last = last.max(number.unwrap_or(0));
    }
    Ok(last)
}

/// `<a@b>` without its brackets.
fn bare(path: &str) -> String {
    path.trim_start_matches('<').trim_end_matches('>').to_owned()
}

/// One entry in mboxrd format: LF line ends, each `>*From ` line with one more `>`, an empty line after.
fn mbox_entry(envelope: &Envelope, message: &[u8], now: SystemTime) -> Vec<u8> {
    let sender = match &envelope.mail.reverse_path {
        ReversePath::Null => "MAILER-DAEMON".to_owned(),
        // A blank within a quoted local part would look like the field's end.
        path => bare(&path.to_string()).replace(' ', "_"),
    };
    let mut out = Vec::with_capacity(message.len() + 128);
    out.extend_from_slice(format!("From {sender} {}\n", asctime(now)).as_bytes());
    for line in message.split_inclusive(|octet| *octet == b'\n') {
        let quotes = line.iter().take_while(|octet| **octet == b'>').count();
        if line[quotes..].starts_with(b"From ") {
            out.push(b'>');
        }
        match line.strip_suffix(b"\r\n") {
            Some(text) => out.extend_from_slice(&[text, b"\n"].concat()),
            None => out.extend_from_slice(line),
        }
    }
    if out.last() != Some(&b'\n') {
        out.push(b'\n');
    }
    out.push(b'\n');
    out
}

/// A time as C's `asctime` formats it, in UTC: `Sun Nov  6 08:49:37 1994`.
fn asctime(now: SystemTime) -> String {
    let secs = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let date = DateTime::from_unix(secs as i64).to_string();
    let parts: Vec<&str> = date.split([' ', ',']).filter(|part| !part.is_empty()).collect();
    let [weekday, day, month, year, time, ..] = parts[..] else { unreachable!("a date is {date}") };
    format!("{weekday} {month} {:>2} {time} {year}", day.trim_start_matches('0'))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use posthaste_smtp::MailFrom;

    #[test]
    fn an_mbox_entry_quotes_from_lines() {
        let envelope = Envelope { mail: MailFrom::new(ReversePath::Null), recipients: Vec::new() };
        let message = b"Subject: x\r\n\r\nFrom here\r\n>From there\r\nFromage\r\n From afar\r\nlast";
        let entry = mbox_entry(&envelope, message, UNIX_EPOCH + Duration::from_secs(784_111_777));
        let text = "From MAILER-DAEMON Sun Nov  6 08:49:37 1994\nSubject: x\n\n>From here\n>>From there\nFromage\n From afar\nlast\n\n";
        assert_eq!(String::from_utf8_lossy(&entry), text);
    }

    #[test]
    fn a_store_is_named_by_kind_and_place() {
        assert_eq!("mbox:/a:b".parse(), Ok(StoreKind::Mbox("/a:b".into())));
        for bad in ["maildir", "maildir:", "tar:x", ""] {
            assert!(bad.parse::<StoreKind>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_that_is_no_store_stays_as_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notes.txt");
        std::fs::write(&path, "Fr").expect("written");
        let refused = [Store::open(&StoreKind::Mbox(path.clone())).map(drop), Ledger::create(&path).map(drop)];
        for error in refused.map(|refused| refused.expect_err("it is something else")) {
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
        }
        assert_eq!(std::fs::read(&path).expect("read"), b"Fr");
        std::fs::write(&path, "{\"id\":\"0000000000000000.1\",\"intact\":true}\n").expect("written");
        Ledger::create(&path).expect("an earlier account");
        assert_eq!(std::fs::read(&path).expect("read"), b"");
        Store::open(&StoreKind::Mbox(path)).expect("an empty file");
        Ledger::create(Path::new("/dev/null")).expect("no file at all");
    }

    #[test]
    fn a_directory_goes_on_where_it_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        let envelope = Envelope { mail: MailFrom::new(ReversePath::Null), recipients: Vec::new() };
        for round in 1..=2 {
            let store = Store::open(&StoreKind::Dir(dir.path().join("out"))).expect("opens");
            store.keep(&envelope, b"a\r\n", UNIX_EPOCH).expect("kept");
            store.flush().expect("flushed");
            assert!(dir.path().join(format!("out/0000000{round}.eml")).exists());
        }
        let index = std::fs::read_to_string(dir.path().join("out/index.jsonl")).expect("an index");
        assert_eq!(index.lines().count(), 2);
    }

    #[test]
    fn only_the_owner_reads_what_a_store_keeps() {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().expect("a directory");
        let envelope = Envelope { mail: MailFrom::new(ReversePath::Null), recipients: Vec::new() };
        for kind in [StoreKind::Dir(dir.path().join("out")), StoreKind::Mbox(dir.path().join("mbox"))] {
            Store::open(&kind).expect("opens").keep(&envelope, b"a\r\n", UNIX_EPOCH).expect("kept");
        }
        let modes = [("out", 0o700), ("out/00000001.eml", 0o600), ("out/index.jsonl", 0o600), ("mbox", 0o600)];
        for (name, mode) in modes {
            let found = std::fs::metadata(dir.path().join(name)).expect(name).permissions().mode();
            assert_eq!(found & 0o777, mode, "{name}");
        }
    }
}
