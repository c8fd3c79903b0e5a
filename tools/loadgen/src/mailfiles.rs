//! Messages in files of programs: a file each, Maildir trees, mbox files.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A file or directory could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}: {source}")]
pub struct ReadError {
    pub path: PathBuf,
    pub source: io::Error,
}

/// Checks that a file to be replaced or appended to was not written by somebody else. A missing or empty file, or a
/// pipe and the like, passes.
///
/// # Errors
/// `AlreadyExists` if it does not begin with `begin`, as `what` does. Otherwise the system's error.
pub(crate) fn must_begin_with(path: &Path, begin: &str, what: &str) -> io::Result<()> {
    if !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let mut found = Vec::new();
    fs::File::open(path)?.take(begin.len() as u64).read_to_end(&mut found)?;
    if found.is_empty() || found == begin.as_bytes() {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("this is not {what}, and is left as it is")))
    }
}

/// A message found in a file.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// The file.
    pub path: &'a Path,
    /// The Maildir that it is in, or in a folder of: the outermost, so the mailbox of one user.
    pub maildir: Option<&'a Path>,
    /// Position in its mbox, from 1; `None` where the file is one message.
    pub number: Option<usize>,
    pub octets: &'a [u8],
}

/// Calls `each` with every message under `path`, until `each` returns `false`.
///
/// A file that starts with `From ` is an mbox (mboxrd, RFC 4155 apart from the quoting), any other file one message. A
/// directory is read recursively. With `cur` and `new` it is a Maildir: only these two and its folders are read, not
/// `tmp` or other files. Files that begin with a dot are not mail, such as the server's `.posthaste-mount`. Directories
/// are read in order of names.
///
/// # Errors
/// When something cannot be read. A file that disappears meanwhile, as in a live Maildir, is skipped.
pub fn each_message(path: &Path, each: &mut dyn FnMut(Found<'_>) -> bool) -> Result<(), ReadError> {
    walk(path, None, each).map(drop)
}

/// Returns true to continue.
fn walk(path: &Path, maildir: Option<&Path>, each: &mut dyn FnMut(Found<'_>) -> bool) -> Result<bool, ReadError> {
    let failed = |source| ReadError { path: path.to_owned(), source };
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        return read_file(path, maildir, each);
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        names.push((entry.file_name(), entry.file_type().map_err(failed)?));
    }
    names.sort_by(|a, b| a.0.cmp(&b.0));
    let has = |name: &str| names.iter().any(|(entry, kind)| entry == name && kind.is_dir());
    let is_maildir = has("cur") && has("new");
    let maildir = maildir.or(is_maildir.then_some(path));
    for (name, kind) in &names {
        let is_hidden = kind.is_file() && name.as_encoded_bytes().starts_with(b".");
        let is_mail = !is_hidden && (!is_maildir || kind.is_dir() && name != "tmp");
        let below = path.join(name);
        let goes_on = match kind {
            _ if !is_mail => true,
            kind if kind.is_file() => read_file(&below, maildir, each)?,
            kind if kind.is_dir() => walk(&below, maildir, each)?,
            // A link may lead anywhere, also back.
            _ => true,
        };
        if !goes_on {
            return Ok(false);
        }
    }
    Ok(true)
}

fn read_file(path: &Path, maildir: Option<&Path>, each: &mut dyn FnMut(Found<'_>) -> bool) -> Result<bool, ReadError> {
    let octets = match fs::read(path) {
        Ok(octets) => octets,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(source) => return Err(ReadError { path: path.to_owned(), source }),
    };
    if !octets.starts_with(b"From ") {
        return Ok(each(Found { path, maildir, number: None, octets: &octets }));
    }
    for (number, message) in (1..).zip(split_mbox(&octets)) {
        if !each(Found { path, maildir, number: Some(number), octets: &message }) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The messages of an mbox: each begins with a line `From …` at the start or after an empty line.
#[doc(hidden)] // Public for the fuzz target alone.
pub fn split_mbox(octets: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let is_empty = |line: &[u8]| line == b"\n" || line == b"\r\n";
    let mut lines = octets.split_inclusive(|octet| *octet == b'\n').peekable();
    std::iter::from_fn(move || {
        lines.next_if(|line| line.starts_with(b"From "))?;
        let mut message = Vec::new();
        let mut behind_empty = false;
        while let Some(line) = lines.next_if(|line| !(behind_empty && line.starts_with(b"From "))) {
            behind_empty = is_empty(line);
            let quotes = line.iter().take_while(|octet| **octet == b'>').count();
            let is_quoted = quotes > 0 && line[quotes..].starts_with(b"From ");
            message.extend_from_slice(if is_quoted { &line[1..] } else { line });
        }
        // The empty line in front of the next message belongs to the mbox.
        if behind_empty {
            let end = message.strip_suffix(b"\r\n").or(message.strip_suffix(b"\n")).map_or(0, <[u8]>::len);
            message.truncate(end);
        }
        Some(message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut each = |message: Found<'_>| {
            let maildir = message.maildir.map_or("", |maildir| maildir.file_name().unwrap().to_str().unwrap());
            found.push(format!("{}@{maildir}", std::str::from_utf8(message.octets).unwrap()));
            true
        };
        each_message(path, &mut each).unwrap();
        found
    }

    #[test]
    fn an_mbox_gives_its_messages_unquoted() {
        let mbox = b"From a@b Mon\nSubject: 1\n\n>From here\n>>From there\nFrom in a paragraph\n\nFrom c@d Tue\nSubject: 2\n\n\n";
        let messages: Vec<_> = split_mbox(mbox).collect();
        assert_eq!(messages[0], b"Subject: 1\n\nFrom here\n>From there\nFrom in a paragraph\n");
        assert_eq!(messages[1], b"Subject: 2\n\n");
        assert_eq!(messages.len(), 2);
    }

    #[test]
    fn a_maildir_tree_is_read_without_tmp_and_other_files() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("example.org/a/new/1", "one"),
            ("example.org/a/cur/2:2,S", "two"),
            ("example.org/a/tmp/3", "half"),
            ("example.org/a/uidlist", "no mail"),
            ("example.org/a/.Sent/cur/4", "four"),
            ("example.org/a/.Sent/new/x/y", "five"),
            ("loose", "six"),
            (".posthaste-mount", "no mail"),
        ] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(found(dir.path()), ["four@a", "five@a", "two@a", "one@a", "six@"]);
        assert_eq!(found(&dir.path().join("loose")), ["six@"]);
        assert!(each_message(&dir.path().join("absent"), &mut |_| true).is_err());
    }
}
