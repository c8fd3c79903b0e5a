//! `[mailstore]`: folders of accounts.

use posthaste_mailstore::{SpecialUse, UsualFolders};
use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

use crate::reload::{NeedsRestart, Reload, all_of};

/// Settings of mailboxes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MailstoreSection {
    /// Names of the folders that the first login of an account without folders makes, by their special use: `{ sent = "Gesendet", trash = "Papierkorb" }`.
    /// Folders that exist keep their names and uses.
    pub folders: FolderNames,
}

/// Names of the usual folders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FolderNames {
    /// Folder of `\Archive`.
    pub archive: String,
    /// Folder of `\Drafts`.
    pub drafts: String,
    /// Folder of `\Junk`.
    pub junk: String,
    /// Folder of `\Sent`.
    pub sent: String,
    /// Folder of `\Trash`.
    pub trash: String,
}

impl Default for FolderNames {
    fn default() -> Self {
        let name = |special_use: SpecialUse| special_use.usual_name().to_string();
        Self {
            archive: name(SpecialUse::Archive),
            drafts: name(SpecialUse::Drafts),
            junk: name(SpecialUse::Junk),
            sent: name(SpecialUse::Sent),
            trash: name(SpecialUse::Trash),
        }
    }
}

impl Table for MailstoreSection {
    const NAME: &str = "mailstore";
}

impl Reload for MailstoreSection {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

impl MailstoreSection {
    /// The usual folders.
    ///
    /// # Errors
    /// The first wrong name: not a folder's, or one of another use.
    pub fn usual_folders(&self) -> Result<UsualFolders, Problem> {
        let FolderNames { archive, drafts, junk, sent, trash } = &self.folders;
        let of = |special_use: SpecialUse| match special_use {
            SpecialUse::Archive => ("archive", archive),
            SpecialUse::Drafts => ("drafts", drafts),
            SpecialUse::Junk => ("junk", junk),
            SpecialUse::Sent => ("sent", sent),
            SpecialUse::Trash => ("trash", trash),
        };
        UsualFolders::new(|special_use| of(special_use).1).map_err(|(special_use, why)| {
            let (key, name) = of(special_use);
            Problem::new([Self::NAME.into(), "folders".into(), key.into()], format!("`{name}`: {why}"))
        })
    }

    /// Validates the section.
    pub(super) fn check(&self) -> Result<(), Problem> {
        self.usual_folders().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use posthaste_mailstore::SpecialUse;

    use crate::Config;

    #[test]
    fn folders_have_given_names_or_the_usual_ones() {
        let text = "[mailstore]\nfolders = { sent = 'Gesendet', drafts = 'Entwu\u{308}rfe' }\n";
        let folders = Config::parse(Path::new("x"), text).unwrap().mailstore.usual_folders().unwrap();
        let names = SpecialUse::ALL.map(|special_use| folders.name(special_use).to_string());
        assert_eq!(names, ["Entw\u{fc}rfe", "Gesendet", "Junk", "Trash", "Archive"]);
    }

    #[test]
    fn names_that_no_folder_can_have_are_refused() {
        for (folders, message) in [
            ("{ sent = 'Junk' }", "another special use has it"),
            ("{ sent = 'e\u{301}', junk = '\u{e9}' }", "another special use has it"),
            ("{ sent = 'inbox' }", "the name of a folder at the top is needed"),
            ("{ sent = 'Mail/Sent' }", "the name of a folder at the top is needed"),
            ("{ sent = '' }", "a level of the mailbox name is empty"),
            ("{ sent = '%' }", "a character is not allowed"),
            ("{ spam = 'Spam' }", "spam"),
        ] {
            let error = Config::parse(Path::new("x"), &format!("[mailstore]\nfolders = {folders}\n")).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
