/// Flags a client may set (RFC 3501 section 2.3.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MailFlag {
    /// `\Seen`
    Seen,
    /// `\Answered`
    Answered,
    /// `\Flagged`
    Flagged,
    /// `\Deleted`
    Deleted,
    /// `\Draft`
    Draft,
    /// Any atom.
    Keyword(String),
}

/// Bits of the system flags in a row of the view.
pub(crate) const SEEN: u64 = 1;
const ANSWERED: u64 = 1 << 1;
const FLAGGED: u64 = 1 << 2;
const DELETED: u64 = 1 << 3;
const DRAFT: u64 = 1 << 4;
/// In the order of FLAGS responses.
pub(crate) const SYSTEM_FLAGS: [(u64, &str); 5] =
    [(ANSWERED, "\\Answered"), (FLAGGED, "\\Flagged"), (DELETED, "\\Deleted"), (SEEN, "\\Seen"), (DRAFT, "\\Draft")];

impl MailFlag {
    /// The bit of a system flag. `None` for a keyword, whose bit depends on the mailbox.
    pub(crate) fn system_bit(&self) -> Option<u64> {
        match self {
            Self::Seen => Some(SEEN),
            Self::Answered => Some(ANSWERED),
            Self::Flagged => Some(FLAGGED),
            Self::Deleted => Some(DELETED),
            Self::Draft => Some(DRAFT),
            Self::Keyword(_) => None,
        }
    }
}
