//! Arguments of SEARCH (RFC 3501 section 6.4.4, RFC 4731).

use super::error::{ImapCommandError, Result};
use super::flag::MailFlag;
use crate::date::{Day, date};
use crate::lex::Cursor;
use crate::set::{SequenceSet, sequence_set};

/// SEARCH with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchCommand {
    /// `RETURN (…)`; `None` selects the RFC 3501 response. An empty list means ALL.
    pub returns: Option<SearchReturn>,
    /// The condition for messages.
    pub key: SearchKey,
}

/// Results of an extended search (RFC 4731 section 3.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the standard")]
pub struct SearchReturn {
    pub min: bool,
    pub max: bool,
    pub all: bool,
    pub count: bool,
    /// SAVE (RFC 5182 section 2.1).
    pub save: bool,
}

impl SearchReturn {
    /// True if no result is reported.
    pub(crate) fn is_silent(&self) -> bool {
        *self == Self { save: true, ..Self::default() }
    }
}

/// A condition for messages. Abbreviated keys are expanded: NEW becomes RECENT and not seen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant says what its fields are")]
pub enum SearchKey {
    /// Any message.
    All,
    /// All of these; at least one.
    And(Vec<SearchKey>),
    /// Matches if either key does.
    Or(Box<(SearchKey, SearchKey)>),
    /// Matches if the key does not.
    Not(Box<SearchKey>),
    /// Message numbers.
    Numbers(SequenceSet),
    /// UIDs.
    Uids(SequenceSet),
    /// The flag is set.
    Flag(MailFlag),
    /// `\Recent` is set.
    Recent,
    /// INTERNALDATE is before the day.
    Before(Day),
    /// INTERNALDATE is on the day.
    On(Day),
    /// INTERNALDATE is on the day or later.
    Since(Day),
    /// The date as written is before the day.
    SentBefore(Day),
    /// The date as written is on the day.
    SentOn(Day),
    /// The date as written is on the day or later.
    SentSince(Day),
    /// RFC822.SIZE is larger.
    Larger(u64),
    /// RFC822.SIZE is smaller.
    Smaller(u64),
    /// MODSEQ is not lower (RFC 7162 section 3.1.5).
    ModSeq(u64),
    /// A field of this name contains the text; with an empty text, the field exists.
    Header { name: Vec<u8>, text: Vec<u8> },
    /// The body contains the text.
    Body(Vec<u8>),
    /// Header or body contain the text.
    Text(Vec<u8>),
}

/// Maximum keys of one search, and of their nesting (decision 34).
const KEYS_MAX: usize = 1000;
const DEPTH_MAX: usize = 32;

pub(super) fn search(cursor: &mut Cursor<'_>) -> Result<SearchCommand> {
    let mut returns = None;
    if cursor.take_word("RETURN") {
        cursor.space()?;
        returns = Some(search_return(cursor)?);
        cursor.space()?;
    }
    if cursor.take_word("CHARSET") {
        cursor.space()?;
        charset(cursor)?;
        cursor.space()?;
    }
    Ok(SearchCommand { returns, key: search_keys(cursor)? })
}

/// Reads the name of a supported charset.
pub(super) fn charset(cursor: &mut Cursor<'_>) -> Result<()> {
    let charset = cursor.astring()?;
    let is_known = [&b"UTF-8"[..], b"US-ASCII"].iter().any(|known| charset.eq_ignore_ascii_case(known));
    if is_known { Ok(()) } else { Err(ImapCommandError::Charset) }
}

pub(super) fn search_keys(cursor: &mut Cursor<'_>) -> Result<SearchKey> {
    Keys { count: 0 }.all_of(cursor, 0)
}

fn search_return(cursor: &mut Cursor<'_>) -> Result<SearchReturn> {
    let mut returns = SearchReturn::default();
    let options = cursor.list(0, |cursor| {
        match cursor.keyword()?.as_str() {
            "MIN" => returns.min = true,
            "MAX" => returns.max = true,
            "ALL" => returns.all = true,
            "COUNT" => returns.count = true,
            "SAVE" => returns.save = true,
            _ => return Err(ImapCommandError::Bad("That option of SEARCH is not known")),
        }
        Ok(())
    })?;
    returns.all |= options.is_empty();
    Ok(returns)
}

struct Keys {
    count: usize,
}

impl Keys {
    /// Keys with spaces between them.
    fn all_of(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Result<SearchKey> {
        let mut keys = vec![self.key(cursor, depth)?];
        while cursor.take(b' ') {
            keys.push(self.key(cursor, depth)?);
        }
        Ok(if keys.len() == 1 { keys.swap_remove(0) } else { SearchKey::And(keys) })
    }

    fn key(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Result<SearchKey> {
        self.count += 1;
        if self.count > KEYS_MAX {
            return Err(ImapCommandError::Limit("Too many keys"));
        }
        if depth > DEPTH_MAX {
            return Err(ImapCommandError::Limit("Keys are nested too deep"));
        }
        match cursor.peek() {
            Some(b'(') => {
                cursor.take(b'(');
                let key = self.all_of(cursor, depth + 1)?;
                cursor.expect(b')', "A list of keys is not closed")?;
                return Ok(key);
            }
            Some(b'0'..=b'9' | b'*' | b'$') => return sequence_set(cursor).map(SearchKey::Numbers),
            _ => {}
        }
        let word = cursor.keyword()?;
        if let Some(key) = plain(&word) {
            return Ok(key);
        }
        match word.as_str() {
            "NOT" => {
                cursor.space()?;
                Ok(not(self.key(cursor, depth + 1)?))
            }
            "OR" => {
                cursor.space()?;
                let one = self.key(cursor, depth + 1)?;
                cursor.space()?;
                Ok(SearchKey::Or(Box::new((one, self.key(cursor, depth + 1)?))))
            }
            _ => with_argument(cursor, &word),
        }
    }
}

fn not(key: SearchKey) -> SearchKey {
    SearchKey::Not(Box::new(key))
}

fn plain(word: &str) -> Option<SearchKey> {
    let flag = |word: &str| match word {
        "ANSWERED" => Some(MailFlag::Answered),
        "DELETED" => Some(MailFlag::Deleted),
        "DRAFT" => Some(MailFlag::Draft),
        "FLAGGED" => Some(MailFlag::Flagged),
        "SEEN" => Some(MailFlag::Seen),
        _ => None,
    };
    if let Some(set) = flag(word) {
        return Some(SearchKey::Flag(set));
    }
    if let Some(unset) = word.strip_prefix("UN").and_then(flag) {
        return Some(not(SearchKey::Flag(unset)));
    }
    match word {
        "ALL" => Some(SearchKey::All),
        "RECENT" => Some(SearchKey::Recent),
        "OLD" => Some(not(SearchKey::Recent)),
        "NEW" => Some(SearchKey::And(vec![SearchKey::Recent, not(SearchKey::Flag(MailFlag::Seen))])),
        _ => None,
    }
}

fn with_argument(cursor: &mut Cursor<'_>, word: &str) -> Result<SearchKey> {
    let read: fn(&mut Cursor<'_>) -> Result<SearchKey> = match word {
        "BCC" => |c| header(c, b"Bcc"),
        "CC" => |c| header(c, b"Cc"),
        "FROM" => |c| header(c, b"From"),
        "SUBJECT" => |c| header(c, b"Subject"),
        "TO" => |c| header(c, b"To"),
        "HEADER" => |c| {
            let name = c.astring()?;
            c.space()?;
            Ok(SearchKey::Header { name, text: text(c)? })
        },
        "BODY" => |c| text(c).map(SearchKey::Body),
        "TEXT" => |c| text(c).map(SearchKey::Text),
        "KEYWORD" => |c| Ok(SearchKey::Flag(MailFlag::Keyword(c.atom()?.to_owned()))),
        "UNKEYWORD" => |c| Ok(not(SearchKey::Flag(MailFlag::Keyword(c.atom()?.to_owned())))),
        "BEFORE" => |c| date(c).map(SearchKey::Before),
        "ON" => |c| date(c).map(SearchKey::On),
        "SINCE" => |c| date(c).map(SearchKey::Since),
        "SENTBEFORE" => |c| date(c).map(SearchKey::SentBefore),
        "SENTON" => |c| date(c).map(SearchKey::SentOn),
        "SENTSINCE" => |c| date(c).map(SearchKey::SentSince),
        "LARGER" => |c| c.number64().map(SearchKey::Larger),
        "SMALLER" => |c| c.number64().map(SearchKey::Smaller),
        "UID" => |c| sequence_set(c).map(SearchKey::Uids),
        "MODSEQ" => modseq,
        _ => return Err(ImapCommandError::Bad("That key of SEARCH is not known")),
    };
    cursor.space()?;
    read(cursor)
}

/// Skips the entry name: MODSEQ is not kept by flag, which RFC 7162 section 3.1.5 allows.
fn modseq(cursor: &mut Cursor<'_>) -> Result<SearchKey> {
    if cursor.peek() == Some(b'"') {
        cursor.string()?;
        cursor.space()?;
        if !["ALL", "PRIV", "SHARED"].contains(&cursor.keyword()?.as_str()) {
            return Err(ImapCommandError::Bad("That type of entry is not known"));
        }
        cursor.space()?;
    }
    cursor.number64().map(SearchKey::ModSeq)
}

fn header(cursor: &mut Cursor<'_>, name: &[u8]) -> Result<SearchKey> {
    Ok(SearchKey::Header { name: name.to_vec(), text: text(cursor)? })
}

/// Without CHARSET text is parsed as UTF-8: most clients that send it omit the charset.
fn text(cursor: &mut Cursor<'_>) -> Result<Vec<u8>> {
    let text = cursor.astring()?;
    match std::str::from_utf8(&text) {
        Ok(_) => Ok(text),
        Err(_) => Err(ImapCommandError::Bad("A text is not UTF-8")),
    }
}
