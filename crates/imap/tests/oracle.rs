//! Every command that imap-codec can encode is read to the same meaning.

use arbitrary::{Arbitrary, Unstructured};
use imap_codec::CommandCodec;
use imap_codec::encode::Encoder;
use imap_types::command::{Command, CommandBody};
use imap_types::core::{AString, IString};
use imap_types::fetch::{Macro, MacroOrMessageDataItemNames, MessageDataItemName, Part, Section};
use imap_types::flag::{Flag, StoreResponse, StoreType};
use imap_types::mailbox::{ListMailbox, Mailbox};
use imap_types::search::SearchKey as TheirKey;
use imap_types::sequence::{SeqOrUid, Sequence, SequenceSet as TheirSet};
use imap_types::status::StatusDataItemName;
use posthaste_imap::{
    BodySection, BodySectionText, FetchItem, FieldNames, FlagChange, ImapCommand, ImapCommandError, ListCommand,
    ListReturn, ListSelection, MailFlag, Partial, SearchCommand, SearchKey, SeqNo, SequenceSet, StatusItem, parse,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

fn text(text: &AString<'_>) -> Vec<u8> {
    match text {
        AString::Atom(atom) => atom.as_ref().as_bytes().to_vec(),
        AString::String(IString::Literal(literal)) => literal.as_ref().to_vec(),
        AString::String(IString::Quoted(quoted)) => quoted.as_ref().as_bytes().to_vec(),
    }
}

fn mailbox(mailbox: &Mailbox<'_>) -> Vec<u8> {
    match mailbox {
        Mailbox::Inbox => b"INBOX".to_vec(),
        Mailbox::Other(other) => other.as_ref().to_vec(),
    }
}

fn pattern(pattern: &ListMailbox<'_>) -> Vec<u8> {
    match pattern {
        ListMailbox::Token(token) => token.as_ref().to_vec(),
        ListMailbox::String(IString::Literal(literal)) => literal.as_ref().to_vec(),
        ListMailbox::String(IString::Quoted(quoted)) => quoted.as_ref().as_bytes().to_vec(),
    }
}

fn set(set: &TheirSet) -> SequenceSet {
    let end = |end: &SeqOrUid| match end {
        SeqOrUid::Value(number) => SeqNo::Number(number.get()),
        SeqOrUid::Asterisk => SeqNo::Largest,
    };
    let range = |sequence: &Sequence| match sequence {
        Sequence::Single(number) => (end(number), end(number)),
        Sequence::Range(first, last) => (end(first), end(last)),
    };
    SequenceSet(set.0.as_ref().iter().map(range).collect())
}

/// `None`: a flag that cannot be set.
fn flag(flag: &Flag<'_>) -> Option<MailFlag> {
    Some(match flag {
        Flag::Seen => MailFlag::Seen,
        Flag::Answered => MailFlag::Answered,
        Flag::Flagged => MailFlag::Flagged,
        Flag::Deleted => MailFlag::Deleted,
        Flag::Draft => MailFlag::Draft,
        Flag::Keyword(name) => MailFlag::Keyword(name.as_ref().into()),
        Flag::Extension(_) => return None,
    })
}

fn status(item: &StatusDataItemName) -> Option<StatusItem> {
    Some(match item {
        StatusDataItemName::Messages => StatusItem::Messages,
        StatusDataItemName::Recent => StatusItem::Recent,
        StatusDataItemName::UidNext => StatusItem::UidNext,
        StatusDataItemName::UidValidity => StatusItem::UidValidity,
        StatusDataItemName::Unseen => StatusItem::Unseen,
        StatusDataItemName::Deleted => StatusItem::Deleted,
        _ => return None,
    })
}

fn part(part: Option<&Part>) -> Vec<u32> {
    part.map_or(Vec::new(), |part| part.0.as_ref().iter().map(|number| number.get()).collect())
}

fn section(section: Option<&Section<'_>>) -> BodySection {
    let names = |names: &[AString<'_>]| FieldNames::new(&names.iter().map(text).collect::<Vec<_>>());
    let (numbers, text) = match section {
        None => (Vec::new(), BodySectionText::All),
        Some(Section::Part(numbers)) => (part(Some(numbers)), BodySectionText::All),
        Some(Section::Header(numbers)) => (part(numbers.as_ref()), BodySectionText::Header),
        Some(Section::Text(numbers)) => (part(numbers.as_ref()), BodySectionText::Text),
        Some(Section::Mime(numbers)) => (part(Some(numbers)), BodySectionText::Mime),
        Some(Section::HeaderFields(numbers, fields)) => {
            (part(numbers.as_ref()), BodySectionText::Fields(names(fields.as_ref())))
        }
        Some(Section::HeaderFieldsNot(numbers, fields)) => {
            (part(numbers.as_ref()), BodySectionText::FieldsNot(names(fields.as_ref())))
        }
    };
    BodySection { part: numbers, text }
}

/// `None`: an item that is not offered.
fn item(item: &MessageDataItemName<'_>) -> Option<FetchItem> {
    Some(match item {
        MessageDataItemName::Body => FetchItem::Body,
        MessageDataItemName::BodyStructure => FetchItem::BodyStructure,
        MessageDataItemName::Envelope => FetchItem::Envelope,
        MessageDataItemName::Flags => FetchItem::Flags,
        MessageDataItemName::InternalDate => FetchItem::InternalDate,
        MessageDataItemName::Rfc822 => FetchItem::Rfc822,
        MessageDataItemName::Rfc822Header => FetchItem::Rfc822Header,
        MessageDataItemName::Rfc822Size => FetchItem::Rfc822Size,
        MessageDataItemName::Rfc822Text => FetchItem::Rfc822Text,
        MessageDataItemName::Uid => FetchItem::Uid,
        MessageDataItemName::BodyExt { section: within, partial, peek } => FetchItem::Section {
            section: section(within.as_ref()),
            peek: *peek,
            partial: partial.map(|(offset, octets)| Partial { offset, octets: octets.get() }),
        },
    })
}

fn items(names: &MacroOrMessageDataItemNames<'_>) -> Option<Vec<FetchItem>> {
    use FetchItem::{Body, Envelope, Flags, InternalDate, Rfc822Size};
    match names {
        MacroOrMessageDataItemNames::Macro(Macro::Fast) => Some(vec![Flags, InternalDate, Rfc822Size]),
        MacroOrMessageDataItemNames::Macro(Macro::All) => Some(vec![Flags, InternalDate, Rfc822Size, Envelope]),
        MacroOrMessageDataItemNames::Macro(Macro::Full) => Some(vec![Flags, InternalDate, Rfc822Size, Envelope, Body]),
        MacroOrMessageDataItemNames::MessageDataItemNames(names) => names.iter().map(item).collect(),
        _ => None,
    }
}

fn not(key: SearchKey) -> SearchKey {
    SearchKey::Not(Box::new(key))
}

/// `None`: a text that is not UTF-8, or a date, which is compared by itself.
fn key(theirs: &TheirKey<'_>) -> Option<SearchKey> {
    let of_flag = |flag: MailFlag| SearchKey::Flag(flag);
    let utf8 = |found: &AString<'_>| Some(text(found)).filter(|text| std::str::from_utf8(text).is_ok());
    let field = |name: &str, found: &AString<'_>| Some(SearchKey::Header { name: name.into(), text: utf8(found)? });
    Some(match theirs {
        TheirKey::And(keys) if keys.as_ref().len() == 1 => key(&keys.as_ref()[0])?,
        TheirKey::And(keys) => SearchKey::And(keys.as_ref().iter().map(key).collect::<Option<_>>()?),
        TheirKey::Or(one, other) => SearchKey::Or(Box::new((key(one)?, key(other)?))),
        TheirKey::Not(other) => not(key(other)?),
        TheirKey::SequenceSet(numbers) => SearchKey::Numbers(set(numbers)),
        TheirKey::Uid(numbers) => SearchKey::Uids(set(numbers)),
        TheirKey::All => SearchKey::All,
        TheirKey::Recent => SearchKey::Recent,
        TheirKey::Old => not(SearchKey::Recent),
        TheirKey::New => SearchKey::And(vec![SearchKey::Recent, not(of_flag(MailFlag::Seen))]),
        TheirKey::Answered => of_flag(MailFlag::Answered),
        TheirKey::Deleted => of_flag(MailFlag::Deleted),
        TheirKey::Draft => of_flag(MailFlag::Draft),
        TheirKey::Flagged => of_flag(MailFlag::Flagged),
        TheirKey::Seen => of_flag(MailFlag::Seen),
        TheirKey::Unanswered => not(of_flag(MailFlag::Answered)),
        TheirKey::Undeleted => not(of_flag(MailFlag::Deleted)),
        TheirKey::Undraft => not(of_flag(MailFlag::Draft)),
        TheirKey::Unflagged => not(of_flag(MailFlag::Flagged)),
        TheirKey::Unseen => not(of_flag(MailFlag::Seen)),
        TheirKey::Keyword(name) => of_flag(MailFlag::Keyword(name.as_ref().into())),
        TheirKey::Unkeyword(name) => not(of_flag(MailFlag::Keyword(name.as_ref().into()))),
        TheirKey::Larger(size) => SearchKey::Larger((*size).into()),
        TheirKey::Smaller(size) => SearchKey::Smaller((*size).into()),
        TheirKey::Bcc(found) => field("Bcc", found)?,
        TheirKey::Cc(found) => field("Cc", found)?,
        TheirKey::From(found) => field("From", found)?,
        TheirKey::Subject(found) => field("Subject", found)?,
        TheirKey::To(found) => field("To", found)?,
        TheirKey::Header(name, found) => SearchKey::Header { name: text(name), text: utf8(found)? },
        TheirKey::Body(found) => SearchKey::Body(utf8(found)?),
        TheirKey::Text(found) => SearchKey::Text(utf8(found)?),
        TheirKey::Before(_) | TheirKey::On(_) | TheirKey::Since(_) => return None,
        TheirKey::SentBefore(_) | TheirKey::SentOn(_) | TheirKey::SentSince(_) => return None,
    })
}

/// What we should have read; `None`: nothing is expected but an answer.
fn expected(body: &CommandBody<'_>) -> Option<ImapCommand> {
    Some(match body {
        CommandBody::Capability => ImapCommand::Capability,
        CommandBody::Noop => ImapCommand::Noop,
        CommandBody::Logout => ImapCommand::Logout,
        CommandBody::StartTLS => ImapCommand::StartTls,
        CommandBody::Check => ImapCommand::Check,
        CommandBody::Close => ImapCommand::Close,
        CommandBody::Unselect => ImapCommand::Unselect,
        CommandBody::Expunge => ImapCommand::Expunge(None),
        CommandBody::Idle => ImapCommand::Idle,
        CommandBody::Login { username, password } => {
            ImapCommand::Login { user: text(username), password: text(password.declassify()) }
        }
        CommandBody::Select { mailbox: name } => {
            ImapCommand::Select { mailbox: mailbox(name), read_only: false, condstore: false, resync: None }
        }
        CommandBody::Examine { mailbox: name } => {
            ImapCommand::Select { mailbox: mailbox(name), read_only: true, condstore: false, resync: None }
        }
        CommandBody::Create { mailbox: name } => ImapCommand::Create { mailbox: mailbox(name), uses: Vec::new() },
        CommandBody::Delete { mailbox: name } => ImapCommand::Delete(mailbox(name)),
        CommandBody::Rename { from, to } => ImapCommand::Rename { from: mailbox(from), to: mailbox(to) },
        CommandBody::Subscribe { mailbox: name } => ImapCommand::Subscribe(mailbox(name)),
        CommandBody::Unsubscribe { mailbox: name } => ImapCommand::Unsubscribe(mailbox(name)),
        CommandBody::List { reference, mailbox_wildcard } => ImapCommand::List(ListCommand {
            selection: ListSelection::default(),
            reference: mailbox(reference),
            patterns: vec![pattern(mailbox_wildcard)],
            is_extended: false,
            returns: ListReturn::default(),
        }),
        CommandBody::Lsub { reference, mailbox_wildcard } => {
            ImapCommand::Lsub { reference: mailbox(reference), pattern: pattern(mailbox_wildcard) }
        }
        CommandBody::Status { mailbox: name, item_names } => {
            let mut items: Vec<StatusItem> = item_names.iter().map(status).collect::<Option<_>>()?;
            let mut once = Vec::new();
            items.retain(|item| {
                !once.contains(item) && {
                    once.push(*item);
                    true
                }
            });
            if items.is_empty() {
                return None;
            }
            ImapCommand::Status { mailbox: mailbox(name), items }
        }
        CommandBody::Fetch { sequence_set, macro_or_item_names, uid } => {
            let items = items(macro_or_item_names).filter(|items| !items.is_empty())?;
            ImapCommand::Fetch { uid: *uid, set: set(sequence_set), items, changed_since: None, vanished: false }
        }
        CommandBody::Store { sequence_set, kind, response, flags, uid } => ImapCommand::Store {
            uid: *uid,
            set: set(sequence_set),
            unchanged_since: None,
            kind: match kind {
                StoreType::Replace => FlagChange::Replace,
                StoreType::Add => FlagChange::Add,
                StoreType::Remove => FlagChange::Remove,
            },
            silent: *response == StoreResponse::Silent,
            flags: flags.iter().map(flag).collect::<Option<_>>()?,
        },
        CommandBody::Copy { sequence_set, mailbox: name, uid } => {
            ImapCommand::Copy { uid: *uid, set: set(sequence_set), mailbox: mailbox(name) }
        }
        CommandBody::Move { sequence_set, mailbox: name, uid } => {
            ImapCommand::Move { uid: *uid, set: set(sequence_set), mailbox: mailbox(name) }
        }
        CommandBody::Search { charset: None, criteria, uid } => {
            ImapCommand::Search { uid: *uid, search: SearchCommand { returns: None, key: key(criteria)? } }
        }
        CommandBody::GetQuota { root } => ImapCommand::GetQuota(text(root)),
        CommandBody::GetQuotaRoot { mailbox: name } => ImapCommand::GetQuotaRoot(mailbox(name)),
        _ => return None,
    })
}

#[test]
fn commands_of_another_codec_mean_the_same() {
    let mut compared = 0;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop::collection::vec(any::<u8>(), 20..400);
    for _ in 0..20_000 {
        let octets = strategy.new_tree(&mut runner).unwrap().current();
        let Ok(command) = Command::arbitrary(&mut Unstructured::new(&octets)) else { continue };
        let encoded = CommandCodec::default().encode(&command).dump();
        let line = encoded.strip_suffix(b"\r\n").unwrap();
        let Some(expected) = expected(&command.body) else { continue };
        let shown = line.escape_ascii();
        let read = parse(line).unwrap_or_else(|| panic!("no tag: {shown}"));
        assert_eq!(read.tag, command.tag.as_ref(), "{shown}");
        match read.command {
            Ok(read) => assert_eq!(read, expected, "{shown}"),
            Err(ImapCommandError::Limit(_)) => {}
            Err(error) => panic!("{error}: {shown}"),
        }
        compared += 1;
    }
    assert!(compared > 3000, "only {compared} commands compared");
}
