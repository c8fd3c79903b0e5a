//! Names of fields, flags and priorities, those of mu and notmuch included.

use super::ast::{Flag, TextField};
use crate::state::bits;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field<'a> {
    Text(TextField),
    Date,
    Changed,
    References,
    Size,
    /// A header field by its name, which follows the first colon in the query.
    Header(&'a str),
    Flag,
    /// A tag, as in notmuch, or a flag of that name.
    Is,
    Tag,
    Folder,
    /// notmuch's `path:`: a folder, or one of its two directories.
    Path,
    Mime,
    MessageId,
    Thread,
    Priority,
    /// mu's `related:`: the message with an id, and all messages that refer to it.
    Related,
    /// A saved query.
    Saved,
}

/// Long names; the first of each is the one that error messages use. Single letters are mu's.
const FIELDS: &[(&str, Field<'static>)] = &[
    ("from", Field::Text(TextField::From)),
    ("to", Field::Text(TextField::To)),
    ("cc", Field::Text(TextField::Cc)),
    ("bcc", Field::Text(TextField::Bcc)),
    ("recip", Field::Text(TextField::Recipient)),
    ("contact", Field::Text(TextField::Contact)),
    ("subject", Field::Text(TextField::Subject)),
    ("body", Field::Text(TextField::Body)),
    // The text of enclosed messages is part of the body.
    ("embed", Field::Text(TextField::Body)),
    ("list", Field::Text(TextField::List)),
    ("file", Field::Text(TextField::File)),
    ("attachment", Field::Text(TextField::File)),
    ("date", Field::Date),
    ("changed", Field::Changed),
    ("references", Field::References),
    ("ref", Field::References),
    ("related", Field::Related),
    ("size", Field::Size),
    ("header", Field::Header("")),
    ("flag", Field::Flag),
    ("is", Field::Is),
    ("tag", Field::Tag),
    ("label", Field::Tag),
    ("labels", Field::Tag),
    ("maildir", Field::Folder),
    ("folder", Field::Folder),
    ("path", Field::Path),
    ("mime", Field::Mime),
    ("mimetype", Field::Mime),
    ("msgid", Field::MessageId),
    ("message-id", Field::MessageId),
    ("id", Field::MessageId),
    ("mid", Field::MessageId),
    ("thread", Field::Thread),
    ("prio", Field::Priority),
    ("priority", Field::Priority),
    ("query", Field::Saved),
    ("f", Field::Text(TextField::From)),
    ("t", Field::Text(TextField::To)),
    ("c", Field::Text(TextField::Cc)),
    ("h", Field::Text(TextField::Bcc)),
    ("s", Field::Text(TextField::Subject)),
    ("b", Field::Text(TextField::Body)),
    ("e", Field::Text(TextField::Body)),
    ("v", Field::Text(TextField::List)),
    ("j", Field::Text(TextField::File)),
    ("d", Field::Date),
    ("k", Field::Changed),
    ("r", Field::References),
    ("z", Field::Size),
    ("g", Field::Flag),
    ("x", Field::Tag),
    ("m", Field::Folder),
    ("y", Field::Mime),
    ("i", Field::MessageId),
    ("w", Field::Thread),
    ("p", Field::Priority),
];

/// Looks up a field; ignores case.
pub(super) fn field(name: &str) -> Option<Field<'static>> {
    FIELDS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, field)| *field)
}

/// True if `name:value` in a query means a field; ignores case.
pub fn is_field(name: &str) -> bool {
    field(name).is_some()
}

/// Explains why a field of mu or notmuch does not exist here. Searching for its name as text would silently find
/// nothing.
pub(super) fn absent(name: &str) -> Option<&'static str> {
    Some(match name.to_ascii_lowercase().as_str() {
        "lang" | "language" => "the language of a message is not indexed",
        "lastmod" => "there is no counter of changes; `changed:` goes by the times of files",
        "property" => "notmuch's properties are not supported",
        "sexp" => "s-expressions are not supported; the query language has `and`, `or`, `not` and parentheses",
        _ => return None,
    })
}

/// A field whose name is one typing error away from `name`.
pub(super) fn field_like(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let is_like = |known: &str| known.len() > 2 && name.len() > 2 && is_one_slip(known.as_bytes(), name.as_bytes());
    FIELDS.iter().map(|(known, _)| *known).find(|known| is_like(known))
}

/// True if the names differ by one letter more, less or other, or by two neighbours exchanged.
fn is_one_slip(a: &[u8], b: &[u8]) -> bool {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let a = &a[same..];
    let b = &b[same..];
    match (a, b) {
        ([_, a @ ..], [_, b @ ..]) if a == b => true,
        ([a0, a1, a @ ..], [b0, b1, b @ ..]) if a == b && (a0, a1) == (b1, b0) => true,
        ([_, a @ ..], b) if a == b => true,
        (a, [_, b @ ..]) if a == b => true,
        _ => false,
    }
}

/// Looks up a flag: mu's names and letters (letters are case-sensitive), and notmuch's tags that stand for flags.
pub(super) fn flag(name: &str) -> Option<Flag> {
    let letter = |letter| bits::letter(letter).map(Flag::Letter);
    Some(match name {
        "D" => letter('D')?,
        "F" => letter('F')?,
        "P" => letter('P')?,
        "R" => letter('R')?,
        "S" => letter('S')?,
        "T" => letter('T')?,
        "N" => Flag::Property(bits::NEW),
        "a" => Flag::Property(bits::ATTACHMENT),
        "z" => Flag::Property(bits::SIGNED),
        "x" => Flag::Property(bits::ENCRYPTED),
        "u" => Flag::Unread,
        "l" => Flag::Property(bits::LIST),
        "c" => Flag::Property(bits::CALENDAR),
        _ => match name.to_ascii_lowercase().as_str() {
            "draft" => letter('D')?,
            "flagged" | "starred" => letter('F')?,
            "passed" | "forwarded" => letter('P')?,
            "replied" | "answered" => letter('R')?,
            "seen" => letter('S')?,
            "trashed" | "deleted" => letter('T')?,
            "new" => Flag::Property(bits::NEW),
            "unread" => Flag::Unread,
            "read" => Flag::Read,
            "attach" | "attachment" => Flag::Property(bits::ATTACHMENT),
            "signed" => Flag::Property(bits::SIGNED),
            "encrypted" => Flag::Property(bits::ENCRYPTED),
            "list" => Flag::Property(bits::LIST),
            "calendar" => Flag::Property(bits::CALENDAR),
            _ => return None,
        },
    })
}

/// The flags that notmuch keeps as tags.
pub(super) fn flag_of_tag(tag: &str) -> Option<Flag> {
    const TAGS: [&str; 8] = ["draft", "flagged", "passed", "replied", "unread", "attachment", "signed", "encrypted"];
    TAGS.contains(&tag).then(|| flag(tag)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_recognised() {
        for (typed, meant) in
            [("form", "from"), ("subjct", "subject"), ("subjectt", "subject"), ("datr", "date"), ("Flga", "flag")]
        {
            assert_eq!(field_like(typed), Some(meant), "{typed}");
        }
        for typed in ["http", "https", "x86", "a", "std"] {
            assert_eq!(field_like(typed), None, "{typed}");
        }
    }

    #[test]
    fn no_name_stands_for_two_fields() {
        for (at, (name, _)) in FIELDS.iter().enumerate() {
            assert!(FIELDS[..at].iter().all(|(other, _)| other != name), "{name}");
        }
    }
}
