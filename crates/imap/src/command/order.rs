//! Arguments of SORT and THREAD (RFC 5256, RFC 5957).

use super::error::{ImapCommandError, Result};
use super::search::{SearchKey, charset, search_keys};
use crate::lex::Cursor;

/// SORT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortCommand {
    /// At least one; later ones decide among equal messages.
    pub order: Vec<SortCriterion>,
    /// Condition for the messages to sort.
    pub key: SearchKey,
}

/// One criterion of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SortCriterion {
    /// Sort in descending order.
    pub reverse: bool,
    /// The compared value.
    pub by: SortBy,
}

/// Values that SORT compares (RFC 5256 section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the standard")]
pub enum SortBy {
    Arrival,
    Cc,
    Date,
    From,
    Size,
    Subject,
    To,
    /// RFC 5957.
    DisplayFrom,
    /// RFC 5957.
    DisplayTo,
}

/// THREAD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadCommand {
    /// The threading algorithm.
    pub algorithm: ThreadAlgorithm,
    /// Condition for the messages to thread.
    pub key: SearchKey,
}

/// Algorithms of THREAD (RFC 5256 section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadAlgorithm {
    /// By base subject.
    OrderedSubject,
    /// By message ids, then by base subject.
    References,
}

/// Maximum criteria of one SORT; nine exist.
const CRITERIA_MAX: usize = 20;

pub(super) fn sort(cursor: &mut Cursor<'_>) -> Result<SortCommand> {
    let mut count = 0;
    let order = cursor.list(1, |cursor| {
        count += 1;
        if count > CRITERIA_MAX {
            return Err(ImapCommandError::Limit("Too many criteria"));
        }
        criterion(cursor)
    })?;
    cursor.space()?;
    Ok(SortCommand { order, key: keys_with_charset(cursor)? })
}

fn criterion(cursor: &mut Cursor<'_>) -> Result<SortCriterion> {
    let mut word = cursor.keyword()?;
    let reverse = word == "REVERSE";
    if reverse {
        cursor.space()?;
        word = cursor.keyword()?;
    }
    let by = match word.as_str() {
        "ARRIVAL" => SortBy::Arrival,
        "CC" => SortBy::Cc,
        "DATE" => SortBy::Date,
        "FROM" => SortBy::From,
        "SIZE" => SortBy::Size,
        "SUBJECT" => SortBy::Subject,
        "TO" => SortBy::To,
        "DISPLAYFROM" => SortBy::DisplayFrom,
        "DISPLAYTO" => SortBy::DisplayTo,
        _ => return Err(ImapCommandError::Bad("That criterion of SORT is not known")),
    };
    Ok(SortCriterion { reverse, by })
}

pub(super) fn thread(cursor: &mut Cursor<'_>) -> Result<ThreadCommand> {
    let algorithm = match cursor.keyword()?.as_str() {
        "ORDEREDSUBJECT" => ThreadAlgorithm::OrderedSubject,
        "REFERENCES" => ThreadAlgorithm::References,
        _ => return Err(ImapCommandError::Bad("That algorithm of THREAD is not known")),
    };
    cursor.space()?;
    Ok(ThreadCommand { algorithm, key: keys_with_charset(cursor)? })
}

fn keys_with_charset(cursor: &mut Cursor<'_>) -> Result<SearchKey> {
    charset(cursor)?;
    cursor.space()?;
    search_keys(cursor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{ImapCommand, MailFlag, parse};

    #[test]
    fn the_commands_of_the_standard() {
        let read = |text: &str| parse(text.as_bytes()).unwrap().command;
        let by = |by, reverse| SortCriterion { by, reverse };
        let order = vec![by(SortBy::Subject, false), by(SortBy::Date, true)];
        let key = SearchKey::Flag(MailFlag::Deleted);
        let sort = SortCommand { order, key: key.clone() };
        assert_eq!(read("a SORT (SUBJECT REVERSE DATE) UTF-8 DELETED"), Ok(ImapCommand::Sort { uid: false, sort }));
        let thread = ThreadCommand { algorithm: ThreadAlgorithm::OrderedSubject, key };
        let found = read("a uid thread orderedsubject \"us-ascii\" deleted");
        assert_eq!(found, Ok(ImapCommand::Thread { uid: true, thread }));
        for wrong in [
            "a SORT () UTF-8 ALL",
            "a SORT (REVERSE) UTF-8 ALL",
            "a SORT (REVERSE REVERSE DATE) UTF-8 ALL",
            "a SORT DATE UTF-8 ALL",
            "a SORT (DATE) UTF-8",
            "a SORT (COLOUR) UTF-8 ALL",
            "a THREAD REFS UTF-8 ALL",
            "a THREAD REFERENCES UTF-8",
        ] {
            assert!(matches!(read(wrong), Err(ImapCommandError::Bad(_))), "{wrong}");
        }
        assert_eq!(read("a SORT (DATE) KOI8-R ALL"), Err(ImapCommandError::Charset));
        let many = format!("a SORT ({}DATE) UTF-8 ALL", "DATE ".repeat(20));
        assert!(matches!(read(&many), Err(ImapCommandError::Limit(_))));
    }
}
