//! What a person wants of an index: `config.toml` in its directory, beside the tags. There need be none.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::tags::check_tag;

/// The file's name.
pub const SETTINGS_FILE: &str = "config.toml";

/// Tags that are flags of a message's file, with the letters of a Maildir (`S` is seen: what is not seen is unread).
pub const FLAG_TAGS: [(&str, char); 5] =
    [("draft", 'D'), ("flagged", 'F'), ("passed", 'P'), ("replied", 'R'), ("unread", 'S')];

/// All that can be set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Who the reader is.
    pub user: User,
    /// What is done with messages that are new in a run.
    pub new: NewMail,
    /// How tags and Maildirs go together.
    pub maildir: MaildirSettings,
    /// What is run after the index.
    pub hook: Hooks,
}

/// The reader, for answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct User {
    /// The name in `From`.
    pub name: String,
    /// The reader's own addresses; the first is that of `From` where a message was sent to none of them.
    pub addresses: Vec<String>,
}

/// Tags for new messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NewMail {
    /// For each of them.
    pub tags: BTreeSet<String>,
    /// For those that match, in this order.
    pub rule: Vec<Rule>,
}

/// Tags for new messages that match a query.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Which messages.
    pub query: String,
    /// Added first.
    #[serde(default)]
    pub add: BTreeSet<String>,
    /// Taken away then.
    #[serde(default)]
    pub remove: BTreeSet<String>,
}

/// How tags and Maildirs go together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MaildirSettings {
    /// Whether to change the tags of [`FLAG_TAGS`] means to change the flags of the file, as notmuch's `maildir.synchronize_flags`.
    pub synchronize_flags: bool,
}

/// Commands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hooks {
    /// Run by `sh` after a run that changed something.
    pub after_index: Option<String>,
}

/// Why the settings could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct SettingsError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, with its place.
    pub why: String,
}

impl Settings {
    /// Reads those of the index in `dir`; where there is no file, nothing is set.
    ///
    /// # Errors
    /// [`SettingsError`]: it cannot be read, or something in it is wrong.
    pub fn load(dir: &Path) -> Result<Self, SettingsError> {
        let path = dir.join(SETTINGS_FILE);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read.map_err(|error| error.to_string()),
        };
        let settings =
            text.and_then(|text| toml::from_str(&text).map_err(|error| error.to_string().trim_end().to_owned()));
        settings.and_then(Self::checked).map_err(|why| SettingsError { path, why })
    }

    fn checked(self) -> Result<Self, String> {
        let rules = self.new.rule.iter().flat_map(|rule| rule.add.iter().chain(&rule.remove));
        for tag in self.new.tags.iter().chain(rules) {
            check_tag(tag).map_err(|error| error.to_string())?;
            if FLAG_TAGS.iter().any(|(name, _)| name == tag) {
                return Err(format!(
                    "`{tag}` follows the flags of the message's file by itself; leave it out of the rules"
                ));
            }
        }
        Ok(self)
    }

    /// Whether new messages get tags.
    pub fn has_rules(&self) -> bool {
        !self.new.tags.is_empty() || !self.new.rule.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Settings, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(SETTINGS_FILE), text).unwrap();
        Settings::load(dir.path()).map_err(|error| error.why)
    }

    #[test]
    fn settings_are_read_and_mistakes_are_pointed_at() {
        let all = load(
            "[user]\nname = \"Ann\"\naddresses = [\"ann@example.org\"]\n[new]\ntags = [\"inbox\"]\n[[new.rule]]\nquery = \"list:*\"\n\
             add = [\"lists\"]\nremove = [\"inbox\"]\n[maildir]\nsynchronize_flags = true\n[hook]\nafter_index = \"true\"\n",
        )
        .unwrap();
        assert_eq!(all.new.rule[0].add, BTreeSet::from(["lists".to_owned()]));
        assert!(all.has_rules() && all.maildir.synchronize_flags && all.user.name == "Ann");
        assert_eq!(load("").unwrap(), Settings::default());
        assert_eq!(Settings::load(Path::new("/nowhere")).unwrap(), Settings::default());
        assert!(load("[new]\ntag = []\n").unwrap_err().contains("line 2, column 1"));
        assert!(load("[new]\ntags = [\"unread\"]\n").unwrap_err().contains("follows the flags"));
        assert!(load("[new]\ntags = [\"-x\"]\n").unwrap_err().contains("cannot be a tag"));
    }
}
