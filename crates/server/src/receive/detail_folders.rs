//! Folders that the detail of an address names.

use std::path::Path;
use std::sync::Arc;

use posthaste_maildir::{MailRoot, MailboxPath};
use posthaste_mailstore::mailbox_of_folder;

/// Finds the folder of a detail below `root`: with the same name, else ignoring case. A dot in the detail separates
/// levels. No path is made from text of strangers. `is_leaving`: true for directories that are to be renamed or removed,
/// which are left out.
pub(crate) fn find_folder(
    root: &Path,
    inbox: &str,
    detail: &str,
    is_leaving: &dyn Fn(&str) -> bool,
) -> Option<Arc<str>> {
    let root = MailRoot::open(root).ok()?;
    let inbox = MailboxPath::parse(inbox).ok()?;
    let wanted = detail.replace('.', "/");
    let folders = root.folders(&inbox).ok()?;
    let named = folders.iter().filter_map(|folder| Some((folder, mailbox_of_folder(folder)?.to_string())));
    let mut similar = None;
    for (folder, name) in named.filter(|(_, name)| name.to_lowercase() == wanted.to_lowercase()) {
        let Some(path) = folder.path_in(&inbox).ok().filter(|path| !is_leaving(path.as_str())) else { continue };
        if name == wanted {
            similar = Some(path);
            break;
        }
        similar.get_or_insert(path);
    }
    Some(similar?.as_str().into())
}

#[cfg(test)]
mod tests {
    use posthaste_maildir::Maildir;

    use super::*;

    #[test]
    fn a_folder_that_is_to_be_removed_gets_no_mail() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["", ".Lists", ".lists"] {
            Maildir::open_or_create(dir.path().join("ann").join(folder)).unwrap();
        }
        let found = |leaving: &[&str]| find_folder(dir.path(), "ann", "Lists", &|path| leaving.contains(&path));
        assert_eq!(found(&[]).as_deref(), Some("ann/.Lists"));
        assert_eq!(found(&["ann/.Lists"]).as_deref(), Some("ann/.lists"));
        assert_eq!(found(&["ann/.Lists", "ann/.lists"]), None);
    }
}
