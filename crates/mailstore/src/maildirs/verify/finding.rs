//! Findings of a verification.

/// The kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FindingKind {
    /// A value of the table with a wrong checksum, or a malformed one.
    Checksum,
    /// UIDs are not ascending, repeated, or not below the next UID.
    Uids,
    /// Counters differ from the counted rows.
    Counters,
    /// The file of a message is missing.
    Missing,
    /// A file's size differs from its row or its name.
    Size,
    /// A directory or file cannot be read.
    Unreadable,
    /// A file without a UID. It gets one at a session's next look.
    New,
    /// A name's flags differ from the table. A session's next look applies them.
    Flags,
}

impl FindingKind {
    /// False for changes by other programs, which a session's next look applies.
    pub fn is_damage(self) -> bool {
        !matches!(self, Self::New | Self::Flags)
    }

    /// Name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Checksum => "checksum",
            Self::Uids => "uids",
            Self::Counters => "counters",
            Self::Missing => "missing",
            Self::Size => "size",
            Self::Unreadable => "unreadable",
            Self::New => "new",
            Self::Flags => "flags",
        }
    }
}

/// A difference between rows and files, or damage of rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Finding {
    /// Kind of the finding.
    pub kind: FindingKind,
    /// Path of the account's INBOX; empty if the whole table is concerned.
    pub account: String,
    /// Name of the mailbox; empty if the whole account is concerned.
    pub mailbox: String,
    /// The message, if the finding is about one.
    pub uid: Option<u32>,
    /// The file, if the finding is about one.
    pub file: Option<String>,
    /// Explanation for people.
    pub detail: String,
}
