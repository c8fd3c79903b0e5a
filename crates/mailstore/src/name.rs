//! Names of mailboxes.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use unicode_normalization::UnicodeNormalization;

use crate::by_account::ByAccount;

/// Separator between the levels of a name.
pub const SEPARATOR: char = '/';
/// Maximum levels of a name.
pub const LEVELS_MAX: usize = 10;
/// Maximum characters of a level.
pub const LEVEL_CHARS_MAX: usize = 200;

const INBOX: &str = "INBOX";

/// The name of a mailbox, decoded and checked: UTF-8 in normal form C, levels with `/` between them.
///
/// `INBOX` in any case, also as the first of several levels, is `INBOX` (RFC 9051 section 5.1). All other names differ by case.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MailboxName(Box<str>);

/// Why a text is not a mailbox name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// An empty name, or two separators in a row.
    #[error("a level of the mailbox name is empty")]
    Empty,
    /// More than [`LEVELS_MAX`] levels or [`LEVEL_CHARS_MAX`] characters in one.
    #[error("the mailbox name is too long")]
    TooLong,
    /// A control character, or a `~` or `#` at the beginning.
    #[error("a character is not allowed in a mailbox name")]
    Character,
}

impl MailboxName {
    /// Validates and normalises a name.
    ///
    /// # Errors
    /// [`NameError`]: the broken rule.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        if name.len() > 4 * LEVELS_MAX * (LEVEL_CHARS_MAX + 1) {
            return Err(NameError::TooLong);
        }
        let name: String = name.nfc().collect();
        if name.starts_with(['~', '#']) || name.chars().any(char::is_control) {
            return Err(NameError::Character);
        }
        let mut levels = 0;
        for level in name.split(SEPARATOR) {
            levels += 1;
            match level.chars().count() {
                0 => return Err(NameError::Empty),
                chars if chars > LEVEL_CHARS_MAX || levels > LEVELS_MAX => return Err(NameError::TooLong),
                _ => {}
            }
        }
        Ok(Self(with_inbox(name).into_boxed_str()))
    }

    /// The name `INBOX`.
    pub fn inbox() -> Self {
        Self(INBOX.into())
    }

    /// True for INBOX itself.
    pub fn is_inbox(&self) -> bool {
        &*self.0 == INBOX
    }

    /// The name as text, in normal form C.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Levels of the name, the top one first.
    pub fn levels(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split(SEPARATOR)
    }

    /// Name of the parent level; `None` for a top-level name.
    pub fn parent(&self) -> Option<Self> {
        self.0.rsplit_once(SEPARATOR).map(|(parent, _)| Self(parent.into()))
    }

    /// The order of lists: INBOX first, then by bytes.
    pub fn list_order(&self, other: &Self) -> Ordering {
        (!self.is_inbox(), self).cmp(&(!other.is_inbox(), other))
    }
}

/// Normalises a first level that is INBOX.
pub(crate) fn with_inbox(mut name: String) -> String {
    let end = name.find(SEPARATOR).unwrap_or(name.len());
    if name[..end].eq_ignore_ascii_case(INBOX) {
        name.replace_range(..end, INBOX);
    }
    name
}

impl fmt::Display for MailboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for MailboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The purpose of a mailbox (RFC 6154).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SpecialUse {
    /// `\Drafts`.
    Drafts,
    /// `\Sent`.
    Sent,
    /// `\Junk`.
    Junk,
    /// `\Trash`.
    Trash,
    /// `\Archive`.
    Archive,
}

impl SpecialUse {
    /// Attribute in LIST responses, such as `\Drafts`.
    pub fn attribute(self) -> &'static str {
        match self {
            Self::Drafts => "\\Drafts",
            Self::Sent => "\\Sent",
            Self::Junk => "\\Junk",
            Self::Trash => "\\Trash",
            Self::Archive => "\\Archive",
        }
    }

    /// All special uses.
    pub const ALL: [Self; 5] = [Self::Drafts, Self::Sent, Self::Junk, Self::Trash, Self::Archive];

    /// Marks a head whose special use is unknown: it then has the use implied by its name, if that is free.
    pub(crate) const BY_NAME: u8 = u8::MAX;

    /// Number of a special use in the head of a mailbox.
    pub(crate) fn number(special_use: Option<Self>) -> u8 {
        special_use.map_or(0, |special_use| special_use as u8 + 1)
    }

    /// The use with this number.
    pub(crate) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|special_use| *special_use as u8 + 1 == number)
    }

    /// The usual name of a mailbox with this use.
    pub fn usual_name(self) -> MailboxName {
        MailboxName(self.attribute()[1..].into())
    }

    /// The use of an attribute, case-insensitive.
    pub fn of_attribute(attribute: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|special_use| special_use.attribute().eq_ignore_ascii_case(attribute))
    }

    /// The use implied by a usual name: `Drafts`, `Sent`, `Junk`, `Trash`, `Archive`.
    pub fn of_name(name: &MailboxName) -> Option<Self> {
        Some(match name.as_str() {
            "Drafts" => Self::Drafts,
            "Sent" => Self::Sent,
            "Junk" => Self::Junk,
            "Trash" => Self::Trash,
            "Archive" => Self::Archive,
            _ => return None,
        })
    }
}

/// Names of the folders that the first logins of all accounts make.
pub type FolderTable = ByAccount<Arc<UsualFolders>>;

/// Names of the folders that the first login makes, one for each special use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsualFolders([MailboxName; SpecialUse::ALL.len()]);

impl Default for UsualFolders {
    fn default() -> Self {
        Self(SpecialUse::ALL.map(SpecialUse::usual_name))
    }
}

impl UsualFolders {
    /// Folders with these names.
    ///
    /// # Errors
    /// The use with an invalid name, and the reason.
    pub fn new<'a>(name: impl Fn(SpecialUse) -> &'a str) -> Result<Self, (SpecialUse, String)> {
        let mut names = Self::default();
        for special_use in SpecialUse::ALL {
            let parsed = MailboxName::parse(name(special_use)).map_err(|error| (special_use, error.to_string()))?;
            if parsed.is_inbox() || parsed.parent().is_some() {
                return Err((special_use, "the name of a folder at the top is needed".to_owned()));
            }
            // CREATE refuses them, too.
            if parsed.as_str().contains(['*', '%']) {
                return Err((special_use, NameError::Character.to_string()));
            }
            names.0[special_use as usize] = parsed;
        }
        for special_use in SpecialUse::ALL {
            if names.special_use(names.name(special_use)) != Some(special_use) {
                return Err((special_use, "another special use has it".to_owned()));
            }
        }
        Ok(names)
    }

    /// Name of the folder for a use.
    pub fn name(&self, special_use: SpecialUse) -> &MailboxName {
        &self.0[special_use as usize]
    }

    /// The use implied by a name, if any.
    pub fn special_use(&self, name: &MailboxName) -> Option<SpecialUse> {
        SpecialUse::ALL.into_iter().find(|special_use| self.name(*special_use) == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_form() {
        let check = |name: &str, expected: &str| assert_eq!(MailboxName::parse(name).unwrap().as_str(), expected);
        check("inbox", "INBOX");
        check("iNbOx/x", "INBOX/x");
        check("INBOXES", "INBOXES");
        check("a/inbox", "a/inbox");
        check("Entwu\u{308}rfe", "Entw\u{fc}rfe");
        check(".. *%", ".. *%");
        assert!(MailboxName::parse("Inbox").unwrap().is_inbox());
        let name = MailboxName::parse("a/b/c").unwrap();
        assert_eq!(name.parent(), MailboxName::parse("a/b").ok());
        assert_eq!(MailboxName::inbox().parent(), None);
    }

    #[test]
    fn names_beyond_the_limits_are_refused() {
        let check = |name: &str, expected: NameError| assert_eq!(MailboxName::parse(name), Err(expected), "{name:?}");
        for empty in ["", "/", "/a", "a/", "a//b"] {
            check(empty, NameError::Empty);
        }
        for name in ["a\nb", "a\0", "~a", "#news", "\u{85}"] {
            check(name, NameError::Character);
        }
        check(&"x".repeat(201), NameError::TooLong);
        check(&["x"; 11].join("/"), NameError::TooLong);
        check(&"x".repeat(1 << 20), NameError::TooLong);
        assert!(MailboxName::parse(&["\u{fc}".repeat(200).as_str(); 10].join("/")).is_ok());
    }

    #[test]
    fn attributes_are_known_in_any_case() {
        assert_eq!(SpecialUse::of_attribute("\\sent"), Some(SpecialUse::Sent));
        assert_eq!(SpecialUse::of_attribute("\\Flagged"), None);
    }

    #[test]
    fn inbox_comes_first_in_lists() {
        let mut names = ["a", "INBOX/x", "Z", "INBOX", "0"].map(|name| MailboxName::parse(name).unwrap());
        names.sort_by(MailboxName::list_order);
        assert_eq!(names.map(|name| name.to_string()), ["INBOX", "0", "INBOX/x", "Z", "a"]);
    }
}
