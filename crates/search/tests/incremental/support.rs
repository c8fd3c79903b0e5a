//! Maildirs with a message or two, and an update that is cut off between its commits.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{maildir, update};

/// Updates, then puts back the side store as it was before.
pub fn crash_between_commits(index: &Path, mail: &Path) {
    crash_between(index, || drop(update(index, mail)));
}

pub fn crash_between(index: &Path, update: impl FnOnce()) {
    let state = |dir: &Path| -> Vec<(PathBuf, Vec<u8>)> {
        let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
        let files = entries.map(|entry| entry.unwrap().path()).filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name == "current" || name.starts_with("state.")
        });
        files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    };
    let before = state(index);
    update();
    state(index).into_iter().for_each(|(path, _)| fs::remove_file(path).unwrap());
    before.into_iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
}

pub fn message(mail: &Path, name: &str, word: &str) {
    fs::write(mail.join("cur").join(name), format!("Subject: {word}\nMessage-ID: <{word}@example.org>\n\n{word}\n"))
        .unwrap();
}

/// As if nothing had happened in the Maildir for a while.
pub fn at_rest(mail: &Path) {
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(100);
    for sub in ["new", "cur"] {
        fs::File::open(mail.join(sub)).unwrap().set_modified(long_ago).unwrap();
    }
}

/// A Maildir with one message, and its index.
pub fn one_message_indexed() -> (tempfile::TempDir, tempfile::TempDir) {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    message(mail.path(), "1.a.h:2,", "one");
    update(index.path(), mail.path());
    (mail, index)
}
