//! Searchable and displayed content of one message.

/// Maximum attachments, recipients and references read of one message.
pub(super) const ITEMS_MAX: usize = 4096;

/// Searchable and displayed content of one message.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Extracted {
    /// `Name <address>, ...`, decoded.
    pub from: String,
    /// Same form as `from`.
    pub to: String,
    /// Same form as `from`.
    pub cc: String,
    /// Same form as `from`; copies of one's own sent mail have it.
    pub bcc: String,
    /// Decoded and unfolded.
    pub subject: String,
    /// Seconds since 1970; from `Date`, without one from the newest `Received`.
    pub date: Option<i64>,
    /// Without angle brackets; empty if there is none.
    pub message_id: String,
    /// Ids of `References`, oldest first, then those of `In-Reply-To` that are not among them.
    pub references: Vec<String>,
    /// The identifier of `List-Id` (RFC 2919), such as `users.example.org`; without one, the list's name from other
    /// list fields.
    pub list: String,
    /// File names of attachments.
    pub files: Vec<String>,
    /// Media types of all leaf parts, in lower case, each once.
    pub mimes: Vec<String>,
    /// True if `body` also holds parts not worth indexing: armour and encoded data.
    pub is_whole: bool,
    /// All text: plain and HTML parts, text attachments, and enclosed messages with their subjects and senders.
    pub body: String,
    /// The requested header fields, by the requested names: decoded and unfolded, in their order.
    pub headers: Vec<(String, String)>,
    /// Attachment, signature and other properties.
    pub traits: Traits,
    /// Urgency stated by the sender.
    pub priority: Priority,
    /// The reason why the message is not fully indexed; `None` if it is.
    pub problem: Option<&'static str>,
}

/// Immutable properties.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// Has a part that is not text and has a name, or is marked as attachment.
    pub attachment: bool,
    /// Carries a PGP or S/MIME signature, which is not verified.
    pub signed: bool,
    /// Carries a PGP or S/MIME encrypted part.
    pub encrypted: bool,
    /// Came through a mailing list.
    pub list: bool,
    /// Carries a calendar part.
    pub calendar: bool,
}

/// Priority of `Priority`, `X-Priority`, `Importance` and `Precedence`, in three steps as in mu.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Bulk and list mail, and mail marked as not urgent.
    Low,
    /// Unmarked.
    #[default]
    Normal,
    /// Marked as urgent.
    High,
}
