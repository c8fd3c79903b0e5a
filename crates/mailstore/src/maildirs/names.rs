//! Converts directories to names of mailboxes.

use std::io;

use posthaste_maildir::{FolderName, MailRoot, MailboxPath};

use crate::name::{MailboxName, SEPARATOR};
use posthaste_message::utf7;

/// The folders of an inbox by name, with their paths; and the number of skipped directories, with the last one.
pub(super) struct Folders {
    pub named: Vec<(MailboxName, MailboxPath)>,
    pub left_out: Option<String>,
    /// True if names of new folders are in modified UTF-7: Dovecot runs here, or some existing names use it.
    pub is_utf7: bool,
}

/// Lists the folders of an inbox. Of two directories with one name the first in the order of bytes counts.
///
/// # Errors
/// Errors of `open` and `getdents`. A missing inbox has no folders.
pub(super) fn folders(root: &MailRoot, inbox: &MailboxPath) -> io::Result<Folders> {
    let mut found = Folders { named: vec![(MailboxName::inbox(), inbox.clone())], left_out: None, is_utf7: false };
    let listed = match root.list_folders(inbox) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        listed => listed?,
    };
    found.is_utf7 = listed.has_dovecot_files;
    let mut taken: std::collections::HashSet<MailboxName> = [MailboxName::inbox()].into();
    for folder in listed.folders {
        found.is_utf7 |= folder.levels().any(|level| decoded(level) != level);
        match (mailbox_of_folder(&folder), folder.path_in(inbox)) {
            (Some(name), Ok(path)) if taken.insert(name.clone()) => found.named.push((name, path)),
            _ => found.left_out = Some(folder.to_string()),
        }
    }
    Ok(found)
}

/// A level of a name, decoded from modified UTF-7, as most servers write it, or unchanged. Each name has one encoding,
/// and plain text is hardly ever valid modified UTF-7.
fn decoded(level: &str) -> String {
    utf7::decode(level.as_bytes()).unwrap_or_else(|_| level.to_owned())
}

/// The folder of a mailbox name; `None` if no directory can have it.
pub(super) fn folder_of(name: &MailboxName, is_utf7: bool) -> Option<FolderName> {
    // `%2E` within a level stands for a dot.
    if name.is_inbox() || name.as_str().contains(['*', '%']) {
        return None;
    }
    let level = |level: &str| {
        let level = level.replace('.', "%2E");
        // A name that would be taken for another one.
        if is_utf7 || decoded(&level) != level { utf7::encode(&level) } else { level }
    };
    let levels: Vec<String> = name.levels().map(level).collect();
    FolderName::from_levels(levels.iter().map(String::as_str)).ok()
}

/// Names in Dovecot's file `subscriptions`: one a line, with directory separators or, in version 2, tabs between
/// levels. Invalid ones are skipped.
pub(super) fn subscribed_names(list: &[u8]) -> Vec<MailboxName> {
    let text = String::from_utf8_lossy(list);
    let has_tabs = text.starts_with("V\t2");
    let name = |line: &str| {
        if line.eq_ignore_ascii_case("INBOX") {
            return Some(MailboxName::inbox());
        }
        let folder = if has_tabs { line.replace('.', "%2E").replace('\t', ".") } else { line.to_owned() };
        mailbox_of_folder(&FolderName::parse(&folder).ok()?)
    };
    let mut names: Vec<MailboxName> = text.lines().skip(has_tabs.into()).filter_map(name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The mailbox of a folder's directory; `None` if the name is invalid. A dot within a level is `%2E`.
pub fn mailbox_of_folder(folder: &FolderName) -> Option<MailboxName> {
    let levels = folder.levels().map(|level| {
        let level = decoded(level).replace("%2E", ".").replace("%2e", ".");
        (!level.contains(SEPARATOR)).then_some(level)
    });
    let levels: Option<Vec<String>> = levels.collect();
    MailboxName::parse(&levels?.join("/")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_maildir::Maildir;

    #[test]
    fn folders_have_the_names_that_their_owner_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let (root, inbox) = (MailRoot::open(dir.path()).unwrap(), MailboxPath::parse("Maildir").unwrap());
        let names = || {
            let found = folders(&root, &inbox).unwrap();
            let names: Vec<String> = found.named.iter().map(|(name, _)| name.to_string()).collect();
            (names, found.left_out)
        };
        assert_eq!(names(), (vec!["INBOX".to_owned()], None));
        let make = |name: &str| drop(Maildir::open_or_create(dir.path().join("Maildir").join(name)).unwrap());
        ["", ".Entw\u{fc}rfe", ".a.b%2Ec", ".inbox.x", ".Tom & Jerry"].into_iter().for_each(make);
        std::fs::create_dir(dir.path().join("Maildir/.none")).unwrap();
        assert_eq!(
            names(),
            (["INBOX", "Entw\u{fc}rfe", "Tom & Jerry", "a/b.c", "INBOX/x"].map(String::from).into(), None)
        );
        let folder = |name: &str, is_utf7| folder_of(&MailboxName::parse(name).unwrap(), is_utf7);
        for (name, is_utf7, expected) in
            [("a/b.c", false, "a.b%2Ec"), ("inbox/x", false, "INBOX.x"), ("Entw\u{fc}rfe", true, "Entw&APw-rfe")]
        {
            assert_eq!(folder(name, is_utf7).unwrap().as_str(), expected);
        }
        assert!(["inbox", "a%", "a*b"].iter().all(|name| folder(name, false).is_none()));
        assert!(!folders(&root, &inbox).unwrap().is_utf7);
        // Without Dovecot's files as well, and beside names in UTF-8.
        ["", ".Entw&APw-rfe", ".INBOX", ".a&AC8-b", ".R&-D", ".&ZeVnLIqe-"].into_iter().for_each(make);
        let (names, left_out) = names();
        let expected =
            ["INBOX", "Entw\u{fc}rfe", "R&D", "Tom & Jerry", "a&AC8-b", "a/b.c", "INBOX/x", "\u{65e5}\u{672c}\u{8a9e}"];
        assert_eq!(std::collections::BTreeSet::from_iter(names), expected.map(String::from).into());
        assert!(left_out.is_some(), "two directories of one name");
        assert!(folders(&root, &inbox).unwrap().is_utf7);
    }

    #[test]
    fn any_folder_that_is_made_has_the_name_that_was_asked_for() {
        for text in ["R&D", "R&-D", "a&APw-b", "&", "&-", "Tom & Jerry", "Entw\u{fc}rfe", "a.b/c&AOQ-", "100&&-1"] {
            let name = MailboxName::parse(text).unwrap();
            for is_utf7 in [false, true] {
                let folder = folder_of(&name, is_utf7).unwrap();
                assert_eq!(mailbox_of_folder(&folder), Some(name.clone()), "{text}: {folder}");
            }
        }
    }
}
