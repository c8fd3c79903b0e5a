//! The grammar of commands.

use super::error::{ImapCommandError, Result};
use super::fetch::fetch_items;
use super::flag::MailFlag;
use super::list::{list, status_items};
use super::order::{sort, thread};
use super::search::search;
use super::tagged::{FlagChange, ImapCommand, Resync, TaggedCommand};
use crate::date::date_time;
use crate::lex::Cursor;
use crate::set::{SequenceSet, sequence_set};

/// Parses a complete command: lines and literals, without the last line end. `None` without a tag for the answer.
///
/// Time and memory are linear in the command's length; nesting is bounded.
pub fn parse(command: &[u8]) -> Option<TaggedCommand> {
    let mut cursor = Cursor::new(command);
    let tag = cursor.tag().ok()?.to_owned();
    // A line that goes on without a space has no tag, but for one that is nothing else.
    let command = if cursor.take(b' ') {
        tagged(&mut cursor)
    } else if cursor.is_at_end() {
        Err(ImapCommandError::Bad("A command is missing"))
    } else {
        return None;
    };
    Some(TaggedCommand { tag, command })
}

fn tagged(cursor: &mut Cursor<'_>) -> Result<ImapCommand> {
    let name = cursor.keyword()?;
    let command = match name.as_str() {
        "UID" => {
            cursor.space()?;
            let name = cursor.keyword()?;
            cursor.space()?;
            match name.as_str() {
                "EXPUNGE" => ImapCommand::Expunge(Some(sequence_set(cursor)?)),
                _ => of_messages(cursor, &name, true)?,
            }
        }
        "FETCH" | "STORE" | "SEARCH" | "SORT" | "THREAD" | "COPY" | "MOVE" => {
            cursor.space()?;
            of_messages(cursor, &name, false)?
        }
        _ => match without_arguments(&name) {
            Some(command) => {
                // Some clients end a command with a space.
                cursor.take(b' ');
                command
            }
            None => with_arguments(cursor, &name)?,
        },
    };
    cursor.end()?;
    Ok(command)
}

fn without_arguments(name: &str) -> Option<ImapCommand> {
    Some(match name {
        "CAPABILITY" => ImapCommand::Capability,
        "NOOP" => ImapCommand::Noop,
        "LOGOUT" => ImapCommand::Logout,
        "STARTTLS" => ImapCommand::StartTls,
        "NAMESPACE" => ImapCommand::Namespace,
        "IDLE" => ImapCommand::Idle,
        "CHECK" => ImapCommand::Check,
        "CLOSE" => ImapCommand::Close,
        "UNSELECT" => ImapCommand::Unselect,
        "EXPUNGE" => ImapCommand::Expunge(None),
        _ => return None,
    })
}

fn with_arguments(cursor: &mut Cursor<'_>, name: &str) -> Result<ImapCommand> {
    const UNKNOWN: ImapCommandError = ImapCommandError::Bad("That command is not known");
    let read: fn(&mut Cursor<'_>) -> Result<ImapCommand> = match name {
        "ID" => id,
        "AUTHENTICATE" => authenticate,
        "LOGIN" => |c| {
            let user = c.astring()?;
            c.space()?;
            Ok(ImapCommand::Login { user, password: c.astring()? })
        },
        "ENABLE" => |c| {
            let mut names = vec![c.keyword()?];
            while c.take(b' ') {
                names.push(c.keyword()?);
            }
            Ok(ImapCommand::Enable(names))
        },
        "SELECT" => |c| select(c, false),
        "EXAMINE" => |c| select(c, true),
        "CREATE" => create,
        "DELETE" => |c| c.astring().map(ImapCommand::Delete),
        "RENAME" => |c| {
            let from = c.astring()?;
            c.space()?;
            Ok(ImapCommand::Rename { from, to: c.astring()? })
        },
        "SUBSCRIBE" => |c| c.astring().map(ImapCommand::Subscribe),
        "UNSUBSCRIBE" => |c| c.astring().map(ImapCommand::Unsubscribe),
        "LIST" => |c| list(c).map(ImapCommand::List),
        "LSUB" => |c| {
            let reference = c.astring()?;
            c.space()?;
            Ok(ImapCommand::Lsub { reference, pattern: c.list_mailbox()? })
        },
        "STATUS" => |c| {
            let mailbox = c.astring()?;
            c.space()?;
            Ok(ImapCommand::Status { mailbox, items: status_items(c)? })
        },
        "GETQUOTA" => |c| c.astring().map(ImapCommand::GetQuota),
        "GETQUOTAROOT" => |c| c.astring().map(ImapCommand::GetQuotaRoot),
        "SETQUOTA" => set_quota,
        "COMPRESS" => |c| c.keyword().map(ImapCommand::Compress),
        _ => return Err(UNKNOWN),
    };
    cursor.space()?;
    read(cursor)
}

fn of_messages(cursor: &mut Cursor<'_>, name: &str, uid: bool) -> Result<ImapCommand> {
    match name {
        "SEARCH" => return Ok(ImapCommand::Search { uid, search: search(cursor)? }),
        "SORT" => return Ok(ImapCommand::Sort { uid, sort: sort(cursor)? }),
        "THREAD" => return Ok(ImapCommand::Thread { uid, thread: thread(cursor)? }),
        _ => {}
    }
    let read: fn(&mut Cursor<'_>, bool, SequenceSet) -> Result<ImapCommand> = match name {
        "FETCH" => |c, uid, set| {
            let items = fetch_items(c)?;
            let (changed_since, vanished) = if c.take(b' ') { fetch_modifiers(c)? } else { (None, false) };
            if vanished && (!uid || changed_since.is_none()) {
                return Err(ImapCommandError::Bad("VANISHED needs UID FETCH with CHANGEDSINCE"));
            }
            Ok(ImapCommand::Fetch { uid, set, items, changed_since, vanished })
        },
        "STORE" => store,
        "COPY" => |c, uid, set| Ok(ImapCommand::Copy { uid, set, mailbox: c.astring()? }),
        "MOVE" => |c, uid, set| Ok(ImapCommand::Move { uid, set, mailbox: c.astring()? }),
        _ => return Err(ImapCommandError::Bad("That command is not known")),
    };
    let set = sequence_set(cursor)?;
    cursor.space()?;
    read(cursor, uid, set)
}

/// SELECT or EXAMINE with its parameters (RFC 4466 section 2.1).
fn select(cursor: &mut Cursor<'_>, read_only: bool) -> Result<ImapCommand> {
    let mailbox = cursor.astring()?;
    let mut condstore = false;
    let mut resync = None;
    if cursor.take(b' ') {
        cursor.list(1, |cursor| match cursor.keyword()?.as_str() {
            "CONDSTORE" => {
                condstore = true;
                Ok(())
            }
            "QRESYNC" => {
                cursor.space()?;
                resync = Some(resync_of(cursor)?);
                Ok(())
            }
            _ => Err(ImapCommandError::Bad("That parameter of SELECT is not known")),
        })?;
    }
    Ok(ImapCommand::Select { mailbox, read_only, condstore, resync })
}

/// The QRESYNC parameter. The client's sequence numbers are ignored: they are for servers that forget vanished
/// messages.
fn resync_of(cursor: &mut Cursor<'_>) -> Result<Resync> {
    cursor.expect(b'(', "What is known is missing")?;
    let uid_validity = cursor.nonzero()?;
    cursor.space()?;
    let modseq = cursor.number64()?;
    let mut known = None;
    let mut has_more = cursor.take(b' ');
    if has_more && cursor.peek() != Some(b'(') {
        known = Some(sequence_set(cursor)?);
        has_more = cursor.take(b' ');
    }
    if has_more {
        cursor.expect(b'(', "A list of numbers is missing")?;
        sequence_set(cursor)?;
        cursor.space()?;
        sequence_set(cursor)?;
        cursor.expect(b')', "A list of numbers is not closed")?;
    }
    cursor.expect(b')', "What is known is not closed")?;
    Ok(Resync { uid_validity, modseq, known })
}

/// `(CHANGEDSINCE number VANISHED)`, in any order.
fn fetch_modifiers(cursor: &mut Cursor<'_>) -> Result<(Option<u64>, bool)> {
    let mut changed_since = None;
    let mut vanished = false;
    cursor.list(1, |cursor| match cursor.keyword()?.as_str() {
        "CHANGEDSINCE" => {
            cursor.space()?;
            changed_since = Some(cursor.number64()?);
            Ok(())
        }
        "VANISHED" => {
            vanished = true;
            Ok(())
        }
        _ => Err(ImapCommandError::Bad("That modifier is not known")),
    })?;
    Ok((changed_since, vanished))
}

/// `(NAME number)`, the only supported modifier of STORE.
fn modifier(cursor: &mut Cursor<'_>, name: &str) -> Result<u64> {
    cursor.expect(b'(', "A modifier is missing")?;
    if !cursor.take_word(name) {
        return Err(ImapCommandError::Bad("That modifier is not known"));
    }
    cursor.space()?;
    let modseq = cursor.number64()?;
    cursor.expect(b')', "A modifier is not closed")?;
    Ok(modseq)
}

fn id(cursor: &mut Cursor<'_>) -> Result<ImapCommand> {
    if cursor.take_word("NIL") {
        return Ok(ImapCommand::Id(Vec::new()));
    }
    let pairs = cursor.list(0, |cursor| {
        let key = cursor.string()?;
        cursor.space()?;
        Ok((key, cursor.nstring()?))
    })?;
    Ok(ImapCommand::Id(pairs))
}

fn authenticate(cursor: &mut Cursor<'_>) -> Result<ImapCommand> {
    let mechanism = cursor.keyword()?;
    let initial = if cursor.take(b' ') {
        let text = cursor.run(|octet| octet.is_ascii_alphanumeric() || matches!(octet, b'+' | b'/' | b'='));
        Some(String::from_utf8_lossy(text).into_owned())
    } else {
        None
    };
    Ok(ImapCommand::Authenticate { mechanism, initial })
}

fn create(cursor: &mut Cursor<'_>) -> Result<ImapCommand> {
    let mailbox = cursor.astring()?;
    let mut uses = Vec::new();
    if cursor.take(b' ') {
        cursor.expect(b'(', "A list is missing")?;
        if !cursor.take_word("USE") {
            return Err(ImapCommandError::Bad("That option of CREATE is not known"));
        }
        cursor.space()?;
        uses = cursor.list(1, |cursor| {
            cursor.expect(b'\\', "A special use is missing")?;
            Ok(format!("\\{}", cursor.atom()?))
        })?;
        cursor.expect(b')', "A list is not closed")?;
    }
    Ok(ImapCommand::Create { mailbox, uses })
}

fn set_quota(cursor: &mut Cursor<'_>) -> Result<ImapCommand> {
    let root = cursor.astring()?;
    cursor.space()?;
    let limits = cursor.list(0, |cursor| {
        let resource = cursor.keyword()?;
        cursor.space()?;
        Ok((resource, cursor.number64()?))
    })?;
    Ok(ImapCommand::SetQuota { root, limits })
}

fn store(cursor: &mut Cursor<'_>, uid: bool, set: SequenceSet) -> Result<ImapCommand> {
    let mut unchanged_since = None;
    if cursor.peek() == Some(b'(') {
        unchanged_since = Some(modifier(cursor, "UNCHANGEDSINCE")?);
        cursor.space()?;
    }
    let kind = match cursor.peek() {
        Some(b'+') => FlagChange::Add,
        Some(b'-') => FlagChange::Remove,
        _ => FlagChange::Replace,
    };
    if kind != FlagChange::Replace {
        cursor.run(|octet| matches!(octet, b'+' | b'-'));
    }
    let silent = match cursor.keyword()?.as_str() {
        "FLAGS" => false,
        "FLAGS.SILENT" => true,
        _ => return Err(ImapCommandError::Bad("STORE changes flags only")),
    };
    cursor.space()?;
    let flags = match cursor.peek() {
        Some(b'(') => cursor.list(0, flag)?,
        _ => {
            let mut flags = vec![flag(cursor)?];
            while cursor.take(b' ') {
                flags.push(flag(cursor)?);
            }
            flags
        }
    };
    Ok(ImapCommand::Store { uid, set, unchanged_since, kind, silent, flags })
}

/// Octets of a keyword (decision 54).
const KEYWORD_BYTES_MAX: usize = 200;

/// `\Recent` cannot be set, and no other system flags exist (decision 54).
fn flag(cursor: &mut Cursor<'_>) -> Result<MailFlag> {
    if !cursor.take(b'\\') {
        let name = cursor.atom()?;
        if name.len() > KEYWORD_BYTES_MAX {
            return Err(ImapCommandError::Limit("A keyword is too long"));
        }
        return Ok(MailFlag::Keyword(name.to_owned()));
    }
    match cursor.keyword()?.as_str() {
        "SEEN" => Ok(MailFlag::Seen),
        "ANSWERED" => Ok(MailFlag::Answered),
        "FLAGGED" => Ok(MailFlag::Flagged),
        "DELETED" => Ok(MailFlag::Deleted),
        "DRAFT" => Ok(MailFlag::Draft),
        _ => Err(ImapCommandError::Bad("That flag cannot be set")),
    }
}

/// An APPEND up to its first message (RFC 3501 section 6.3.11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appending {
    /// The target mailbox.
    pub mailbox: Vec<u8>,
    /// The first message.
    pub message: MessageOptions,
}

/// Flags and date in front of an APPEND's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageOptions {
    /// Flags to set.
    pub flags: Vec<MailFlag>,
    /// INTERNALDATE in seconds since 1970.
    pub date: Option<i64>,
}

/// Parses the line of an APPEND up to the literal of its message, which is not part of `line`.
pub fn parse_append(line: &[u8]) -> Option<(String, Result<Appending>)> {
    let mut cursor = Cursor::new(line);
    let tag = cursor.tag().ok()?.to_owned();
    let is_append = cursor.take(b' ') && cursor.take_word("APPEND") && cursor.take(b' ');
    is_append.then(|| (tag, appending(&mut cursor)))
}

fn appending(cursor: &mut Cursor<'_>) -> Result<Appending> {
    let mailbox = cursor.astring()?;
    Ok(Appending { mailbox, message: message_options(cursor)? })
}

/// Parses the text between two messages of an APPEND (RFC 3502).
///
/// # Errors
/// There is no further message.
pub fn parse_append_next(line: &[u8]) -> Result<MessageOptions> {
    message_options(&mut Cursor::new(line))
}

fn message_options(cursor: &mut Cursor<'_>) -> Result<MessageOptions> {
    cursor.space()?;
    let mut flags = Vec::new();
    if cursor.peek() == Some(b'(') {
        flags = cursor.list(0, flag)?;
        cursor.space()?;
    }
    let mut date = None;
    if cursor.peek() == Some(b'"') {
        date = Some(date_time(cursor)?);
        cursor.space()?;
    }
    // `~` of a literal8 (RFC 3516 section 4.4).
    cursor.take(b'~');
    cursor.end()?;
    Ok(MessageOptions { flags, date })
}
