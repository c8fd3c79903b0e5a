//! The syntax tree of a query.

use std::collections::BTreeSet;
use std::ops::{Bound, Range};

use posthaste_text::{Priority, fold};

/// Byte offsets in the query's text.
pub type Span = Range<usize>;

/// A query.
#[derive(Debug, Clone, PartialEq)]
pub enum Query {
    /// Every message.
    All,
    /// One condition.
    Leaf(Leaf),
    /// Messages that do not match.
    Not(Box<Query>),
    /// Messages that match all; at least two.
    And(Vec<Query>),
    /// Messages that match any; at least two.
    Or(Vec<Query>),
    /// Messages that match an odd number; at least two.
    Xor(Vec<Query>),
}

impl Query {
    /// True if a condition on tags anywhere in the query names this tag.
    pub fn names_tag(&self, tag: &str) -> bool {
        match self {
            Self::Leaf(Leaf::Tag(pattern)) => pattern.accepts(tag),
            Self::Leaf(Leaf::Thread(ThreadOf::Query(query))) | Self::Not(query) => query.names_tag(tag),
            Self::And(parts) | Self::Or(parts) | Self::Xor(parts) => parts.iter().any(|part| part.names_tag(tag)),
            Self::All | Self::Leaf(_) => false,
        }
    }

    /// Names of header fields that the query searches and that must be indexed, as typed.
    pub fn headers(&self) -> BTreeSet<&str> {
        match self {
            Self::Leaf(Leaf::Header { name, .. }) => BTreeSet::from([name.as_str()]),
            Self::Leaf(Leaf::Thread(ThreadOf::Query(query))) | Self::Not(query) => query.headers(),
            Self::And(parts) | Self::Or(parts) | Self::Xor(parts) => parts.iter().flat_map(Self::headers).collect(),
            Self::All | Self::Leaf(_) => BTreeSet::new(),
        }
    }
}

/// One condition.
#[derive(Debug, Clone, PartialEq)]
pub enum Leaf {
    /// Words next to each other.
    Text {
        /// Fields to search.
        field: TextField,
        /// As typed; at least one token in it.
        text: String,
        /// True if the last word is a prefix.
        prefix: bool,
    },
    /// Regular expression on header text, or on single words of the body.
    Regex {
        /// Fields to search.
        field: TextField,
        /// Pattern for folded text.
        pattern: Pattern,
    },
    /// A header field that is indexed because the settings name it.
    Header {
        /// As typed.
        name: String,
        /// Condition that one of its values must meet.
        value: HeaderValue,
    },
    /// From the first second to before the second, since 1970.
    Date(Range<i64>),
    /// Time of the file's last change, as for `Date`.
    Changed(Range<i64>),
    /// Messages that refer to the one with this Message-ID, without angle brackets.
    References(String),
    /// Bytes: from the first to before the second.
    Size(Range<u64>),
    /// A flag or property.
    Flag(Flag),
    /// A tag.
    Tag(Pattern),
    /// A folder's path without slashes at its ends; a prefix includes subfolders.
    Folder(Pattern),
    /// A media type of a part.
    Mime(Pattern),
    /// A word in a media type of a part, in lower case: `pdf`, `svg+xml`.
    MimeWord(String),
    /// The Message-ID, without angle brackets.
    MessageId(Pattern),
    /// Whole threads.
    Thread(ThreadOf),
    /// Urgency stated by the sender.
    Priority(Priority),
}

/// Condition on the value of a header field.
#[derive(Debug, Clone, PartialEq)]
pub enum HeaderValue {
    /// Any value, even an empty one: the message has the field.
    Any,
    /// Contains these words next to each other.
    Words {
        /// As typed; at least one token in it.
        text: String,
        /// True if the last word is a prefix.
        prefix: bool,
    },
    /// Matches the pattern as folded text.
    Text(Pattern),
    /// The first number in the value is within these bounds.
    Number(Bound<f64>, Bound<f64>),
}

/// Fields that are indexed by words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextField {
    /// Subject, body, and all addresses.
    Any,
    /// Decoded text of all parts.
    Body,
    /// The subject.
    Subject,
    /// The sender.
    From,
    /// `To`.
    To,
    /// `Cc`.
    Cc,
    /// `Bcc`.
    Bcc,
    /// `To`, `Cc` and `Bcc`.
    Recipient,
    /// The sender and all recipients.
    Contact,
    /// The list's id.
    List,
    /// Names of attachments.
    File,
}

/// Condition on a string.
#[derive(Debug, Clone)]
pub enum Pattern {
    /// The exact string.
    Is(String),
    /// A prefix.
    StartsWith(String),
    /// A regular expression that matches anywhere.
    Matches(regex::Regex),
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Is(a), Self::Is(b)) | (Self::StartsWith(a), Self::StartsWith(b)) => a == b,
            (Self::Matches(a), Self::Matches(b)) => a.as_str() == b.as_str(),
            _ => false,
        }
    }
}

impl Pattern {
    /// True if `value` meets the condition.
    pub fn accepts(&self, value: &str) -> bool {
        match self {
            Self::Is(wanted) => value == wanted,
            Self::StartsWith(wanted) => value.starts_with(wanted.as_str()),
            // Compiled for folded text.
            Self::Matches(regex) => regex.is_match(&fold(value)),
        }
    }
}

/// Properties that a query names with `flag:`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// A flag letter, as a bit of [`bits`](crate::state::bits).
    Letter(u64),
    /// Unseen, or in `new/`.
    Unread,
    /// Seen, and not in `new/`.
    Read,
    /// One of the other bits.
    Property(u64),
}

/// Threads that a query names with `thread:`.
#[derive(Debug, Clone, PartialEq)]
pub enum ThreadOf {
    /// The thread with this number.
    Number(u32),
    /// Threads with a message that matches.
    Query(Box<Query>),
}
