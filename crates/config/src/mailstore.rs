//! `[mailstore]`: folders of accounts.

use std::collections::HashMap;
use std::sync::Arc;

use posthaste_directory::{Domain, DomainFolders};
use posthaste_mailstore::{FolderTable, SpecialUse, UsualFolders};
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
    /// The usual folders of all accounts, and of those of a domain.
    ///
    /// # Errors
    /// The first wrong name: not a folder's, or one of another use.
    pub fn usual_folders(&self, domains: &[Domain]) -> Result<FolderTable, Problem> {
        let default = self.folders.checked().map_err(|problem| problem.within([Self::NAME.into()]))?;
        let mut by_directory = HashMap::new();
        for (index, domain) in domains.iter().enumerate().filter(|(_, domain)| !domain.folders.is_unset()) {
            let names = self.folders.replaced_by(&domain.folders);
            let folders = names.checked().map_err(|problem| problem.within([Domain::NAME.into(), index.into()]))?;
            by_directory.extend(domain.directory_name().map(|directory| (directory, Arc::new(folders))));
        }
        Ok(FolderTable { default: Arc::new(default), by_directory, by_inbox: HashMap::new() })
    }
}

impl FolderNames {
    /// These names, and those of `own` in place of some.
    fn replaced_by(&self, own: &DomainFolders) -> Self {
        let name = |own: &Option<String>, usual: &String| own.as_ref().unwrap_or(usual).clone();
        Self {
            archive: name(&own.archive, &self.archive),
            drafts: name(&own.drafts, &self.drafts),
            junk: name(&own.junk, &self.junk),
            sent: name(&own.sent, &self.sent),
            trash: name(&own.trash, &self.trash),
        }
    }

    fn checked(&self) -> Result<UsualFolders, Problem> {
        let Self { archive, drafts, junk, sent, trash } = self;
        let of = |special_use: SpecialUse| match special_use {
            SpecialUse::Archive => ("archive", archive),
            SpecialUse::Drafts => ("drafts", drafts),
            SpecialUse::Junk => ("junk", junk),
            SpecialUse::Sent => ("sent", sent),
            SpecialUse::Trash => ("trash", trash),
        };
        UsualFolders::new(|special_use| of(special_use).1).map_err(|(special_use, why)| {
            let (key, name) = of(special_use);
            Problem::new(["folders".into(), key.into()], format!("`{name}`: {why}"))
        })
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
        let domain = "[[domain]]\nname = 'Fr.example'\nusers = 'any'\nfolders = { trash = 'Corbeille', sent = 'Envoy\u{e9}s' }\n";
        let config = Config::parse(Path::new("x"), &format!("{text}{domain}")).unwrap();
        let table = config.mailstore.usual_folders(&config.domains).unwrap();
        let names = |inbox: &str| SpecialUse::ALL.map(|special_use| table.of(inbox).name(special_use).to_string());
        assert_eq!(names("example.org/ann/Maildir"), ["Entw\u{fc}rfe", "Gesendet", "Junk", "Trash", "Archive"]);
        let own = ["Entw\u{fc}rfe", "Envoy\u{e9}s", "Junk", "Corbeille", "Archive"];
        assert_eq!(names("fr.example/ann/Maildir"), own);
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

    #[test]
    fn a_wrong_folder_of_a_domain_is_shown_in_its_line() {
        for (folders, message) in [
            ("{ sent = 'inbox' }", "x:3:20: `inbox`: the name of a folder at the top is needed"),
            // The name that another use has for all accounts.
            ("{ drafts = 'Sent' }", "x:3:11: `Sent`: another special use has it"),
            ("{ spam = 'Spam' }", "x:3:13: "),
        ] {
            let text = format!("[[domain]]\nname = 'example.org'\nfolders = {folders}\n");
            let error = Config::parse(Path::new("x"), &text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
