//! Folders that the detail of an address names.

use std::path::Path;
use std::sync::Arc;

use posthaste_maildir::{MailRoot, MailboxPath};
use posthaste_mailstore::mailbox_of_folder;

/// Finds the folder of a detail below `root`: with the same name, else ignoring case. A dot in the detail separates
/// levels. No path is made from text of strangers.
pub(crate) fn find_folder(root: &Path, inbox: &str, detail: &str) -> Option<Arc<str>> {
    let root = MailRoot::open(root).ok()?;
    let inbox = MailboxPath::parse(inbox).ok()?;
    let wanted = detail.replace('.', "/");
    let folders = root.folders(&inbox).ok()?;
    let named = folders.iter().filter_map(|folder| Some((folder, mailbox_of_folder(folder)?.to_string())));
    let mut similar = None;
    for (folder, name) in named {
        if name == wanted {
            similar = Some(folder);
            break;
        }
        if similar.is_none() && name.to_lowercase() == wanted.to_lowercase() {
            similar = Some(folder);
        }
    }
    Some(similar?.path_in(&inbox).ok()?.as_str().into())
}
