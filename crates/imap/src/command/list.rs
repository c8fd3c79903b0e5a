//! LIST with its options (RFC 5258, 5819, 6154), and the items of STATUS.

use super::error::{ImapCommandError, Result};
use crate::lex::Cursor;

/// LIST in any of its forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListCommand {
    /// Selection options, before the reference.
    pub selection: ListSelection,
    /// Prefix of the patterns.
    pub reference: Vec<u8>,
    /// Patterns, at least one.
    pub patterns: Vec<Vec<u8>>,
    /// True with options or several patterns (RFC 5258): then an empty pattern has no special meaning.
    pub is_extended: bool,
    /// Requested data besides the attributes of each name.
    pub returns: ListReturn,
}

/// Conditions for names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListSelection {
    /// Only subscribed names, with or without a mailbox.
    pub subscribed: bool,
    /// Includes unsubscribed names above subscribed ones.
    pub recursive: bool,
    /// Names with a special use only.
    pub special_use: bool,
}

/// Facts returned about each name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListReturn {
    /// \Subscribed.
    pub subscribed: bool,
    /// STATUS of each name, with these items.
    pub status: Vec<StatusItem>,
}

/// An item of STATUS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the standard")]
pub enum StatusItem {
    Messages,
    Recent,
    UidNext,
    UidValidity,
    Unseen,
    /// RFC 9051 section 6.3.11.
    Deleted,
    /// RFC 8438.
    Size,
    /// RFC 7162 section 3.1.7.
    HighestModSeq,
}

impl StatusItem {
    const ALL: [(&'static str, Self); 8] = [
        ("MESSAGES", Self::Messages),
        ("RECENT", Self::Recent),
        ("UIDNEXT", Self::UidNext),
        ("UIDVALIDITY", Self::UidValidity),
        ("UNSEEN", Self::Unseen),
        ("DELETED", Self::Deleted),
        ("SIZE", Self::Size),
        ("HIGHESTMODSEQ", Self::HighestModSeq),
    ];

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, item)| *item == self).map_or("", |(name, _)| name)
    }
}

/// Each item once, in the order of their first mention.
pub(super) fn status_items(cursor: &mut Cursor<'_>) -> Result<Vec<StatusItem>> {
    let items = cursor.list(1, |cursor| {
        let word = cursor.keyword()?;
        let item = StatusItem::ALL.iter().find(|(name, _)| *name == word);
        item.map(|(_, item)| *item).ok_or(ImapCommandError::Bad("That item of STATUS is not known"))
    })?;
    let mut once: Vec<StatusItem> = Vec::with_capacity(items.len().min(StatusItem::ALL.len()));
    for item in items {
        if !once.contains(&item) {
            once.push(item);
        }
    }
    Ok(once)
}

pub(super) fn list(cursor: &mut Cursor<'_>) -> Result<ListCommand> {
    let mut selection = ListSelection::default();
    let mut is_extended = false;
    if cursor.peek() == Some(b'(') {
        is_extended = true;
        cursor.list(0, |cursor| {
            match cursor.keyword()?.as_str() {
                "SUBSCRIBED" => selection.subscribed = true,
                // All mailboxes are here.
                "REMOTE" => {}
                "RECURSIVEMATCH" => selection.recursive = true,
                "SPECIAL-USE" => selection.special_use = true,
                _ => return Err(ImapCommandError::Bad("That option of LIST is not known")),
            }
            Ok(())
        })?;
        if selection.recursive && !selection.subscribed && !selection.special_use {
            return Err(ImapCommandError::Bad("RECURSIVEMATCH needs another option"));
        }
        cursor.space()?;
    }
    let reference = cursor.astring()?;
    cursor.space()?;
    let patterns = match cursor.peek() {
        Some(b'(') => {
            is_extended = true;
            cursor.list(1, Cursor::list_mailbox)?
        }
        _ => vec![cursor.list_mailbox()?],
    };
    let mut returns = ListReturn::default();
    if cursor.take(b' ') {
        is_extended = true;
        if !cursor.take_word("RETURN") {
            return Err(ImapCommandError::Bad("RETURN is missing"));
        }
        cursor.space()?;
        cursor.list(0, |cursor| {
            match cursor.keyword()?.as_str() {
                "SUBSCRIBED" => returns.subscribed = true,
                // Always told.
                "CHILDREN" | "SPECIAL-USE" => {}
                "STATUS" => {
                    cursor.space()?;
                    returns.status = status_items(cursor)?;
                }
                _ => return Err(ImapCommandError::Bad("That option of LIST is not known")),
            }
            Ok(())
        })?;
    }
    Ok(ListCommand { selection, reference, patterns, is_extended, returns })
}
