//! FETCH: one message after the other, each answered as soon as the needed parts of it are read.

use std::collections::VecDeque;

use posthaste_message::mime::Message;

use super::fetching::{FetchStep, Fetching, Vanishing};
use super::piece::Piece;
use super::source::{Known, Source};
use super::state::{Reply, State};
use super::{DecodedLength, ImapEvent, ImapMachine, MailRefusal, MessageChoice, ViewRow};
use crate::command::{FetchItem, Resync, SEEN, merge_items};
use crate::kept_structure::KeptStructure;
use crate::section::{Depth, KnownParts};
use crate::set::{NumberSet, SequenceSet};
use crate::write;

impl ImapMachine {
    pub(super) fn fetch(
        &mut self,
        tag: String,
        uid: bool,
        set: &SequenceSet,
        items: Vec<FetchItem>,
        changed_since: Option<u64>,
        vanished: bool,
    ) -> Option<ImapEvent> {
        let choice = self.choice(&tag, uid, set)?;
        let mut items = merge_items(items);
        // UID is part of each answer to UID FETCH (RFC 3501 section 6.4.8).
        if uid && !items.contains(&FetchItem::Uid) {
            items.insert(0, FetchItem::Uid);
        }
        // With CHANGEDSINCE it is asked for (RFC 7162 section 3.1.4.1).
        if changed_since.is_some() && !items.contains(&FetchItem::ModSeq) {
            items.push(FetchItem::ModSeq);
        }
        self.condstore |= items.contains(&FetchItem::ModSeq);
        let is_writable = self.mailbox.as_ref().is_some_and(|mailbox| !mailbox.read_only);
        let mut fetching = Fetching::new(tag, uid, choice, items);
        fetching.changed_since = changed_since;
        fetching.seen = (is_writable && fetching.items.iter().any(FetchItem::reads)).then(NumberSet::default);
        self.state = match changed_since.filter(|_| vanished) {
            // The largest UID that was ever given is not known to the client.
            Some(since) => State::Vanishing(Box::new(Vanishing {
                since,
                among: if set.is_saved() { self.saved.clone() } else { set.resolve(u32::MAX) },
                then: Box::new(fetching),
                asked: false,
            })),
            None => State::Fetching(Box::new(fetching)),
        };
        None
    }

    /// Reports changes since the client's last visit, then replies (RFC 7162 section 3.2.5).
    pub(super) fn resync(&mut self, tag: String, reply: String, resync: Resync) {
        let Resync { modseq: since, known, .. } = resync;
        let among = known.map_or(NumberSet::from_ranges(vec![1..=u32::MAX]), |known| known.resolve(u32::MAX));
        let items = vec![FetchItem::Uid, FetchItem::Flags, FetchItem::ModSeq];
        let fetching = Fetching::new(tag, true, MessageChoice::Uids(among.clone()), items);
        let then = Box::new(Fetching { reply: Some(reply), changed_since: Some(since), ..fetching });
        self.state = State::Vanishing(Box::new(Vanishing { since, among, then, asked: false }));
    }

    /// Reports data about messages, then sends the reply.
    pub(super) fn tell_items(
        &mut self,
        tag: String,
        reply: String,
        uid: bool,
        choice: MessageChoice,
        items: Vec<FetchItem>,
    ) {
        let reply = Some(reply);
        self.state = State::Fetching(Box::new(Fetching { reply, ..Fetching::new(tag, uid, choice, items) }));
    }

    /// The messages of a set; replies BAD to a message number beyond the last (decision 56).
    pub(super) fn choice(&mut self, tag: &str, uid: bool, set: &SequenceSet) -> Option<MessageChoice> {
        let mailbox = self.mailbox.as_ref().expect("a mailbox is selected");
        // Messages that are gone meanwhile are none of the view.
        if set.is_saved() {
            return Some(MessageChoice::Uids(self.saved.clone()));
        }
        if uid {
            return Some(MessageChoice::Uids(set.resolve(mailbox.last_uid)));
        }
        if set.is_beyond(mailbox.exists) {
            self.bad(tag, "There is no message of that number");
            return None;
        }
        Some(MessageChoice::Numbers(set.resolve(mailbox.exists)))
    }

    pub(super) fn step_fetch(&mut self) -> Option<ImapEvent> {
        let State::Fetching(fetching) = &mut self.state else { unreachable!("messages are being fetched") };
        if let Some((set, sizes)) = fetching.choice.take() {
            return Some(ImapEvent::Rows { set, sizes });
        }
        let uid = fetching.row.uid;
        let step = std::mem::replace(&mut fetching.step, FetchStep::Asked);
        match step {
            FetchStep::NextRow => Some(ImapEvent::NextRow),
            FetchStep::Structure => Some(ImapEvent::Structure { uid }),
            FetchStep::Open => Some(ImapEvent::Open { uid }),
            // All that is asked for without octets of the message is among the listed fields.
            FetchStep::Header => Some(ImapEvent::Header { uid, whole: fetching.sends }),
            FetchStep::Read => {
                let octets = self.config.limits.structure_bytes.min(fetching.len.unwrap_or(0));
                Some(ImapEvent::Read { octets })
            }
            FetchStep::Answer => {
                let piece = fetching.pieces.pop_front();
                fetching.step = if piece.is_some() { FetchStep::Answer } else { FetchStep::NextRow };
                match piece? {
                    Piece::Text(text) => {
                        self.out.extend_from_slice(&text);
                        None
                    }
                    Piece::Octets(range) => Some(ImapEvent::Send(range)),
                    Piece::Decode(item) => {
                        fetching.step = FetchStep::Asked;
                        Some(fetching.decoding.insert(item).ask())
                    }
                    Piece::Decoded { range, encoding, octets } => {
                        Some(ImapEvent::SendDecoded { range, encoding, octets })
                    }
                    Piece::Failed => {
                        fetching.fail(MailRefusal::UnknownEncoding);
                        None
                    }
                }
            }
            FetchStep::Asked => panic!("stepped while an answer about a message is awaited"),
        }
    }

    /// Answers [`ImapEvent::Decode`]. `None`: the part cannot be decoded.
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn decoded(&mut self, answer: Result<Option<DecodedLength>, MailRefusal>) {
        let State::Fetching(fetching) = &mut self.state else { panic!("decoded in {:?}", self.state) };
        let item = fetching.decoding.take().expect("a length was asked for");
        let length = answer.unwrap_or_else(|why| {
            fetching.fail(why);
            None
        });
        if length.is_none() {
            fetching.fail(MailRefusal::UnknownEncoding);
        }
        if let Some(octets) = item.answer(length, &mut self.out) {
            fetching.pieces.push_front(octets);
        }
        fetching.step = FetchStep::Answer;
    }

    pub(super) fn fetched_row(&mut self, row: Result<Option<ViewRow>, MailRefusal>) {
        let State::Fetching(mut fetching) = std::mem::replace(&mut self.state, State::Command) else { return };
        match row {
            Ok(Some(row)) if fetching.changed_since.is_some_and(|since| row.modseq <= since) => {
                fetching.step = FetchStep::NextRow;
                self.state = State::Fetching(fetching);
            }
            Ok(Some(row)) => {
                fetching.row = row;
                (fetching.len, fetching.structure, fetching.made) = (None, None, None);
                if fetching.asks_structure() {
                    fetching.step = FetchStep::Structure;
                    self.state = State::Fetching(fetching);
                    return;
                }
                self.begin_row(fetching);
            }
            Ok(None) => self.end_fetch(*fetching),
            Err(why) => {
                fetching.failure = fetching.failure.max(Some(why));
                self.end_fetch(*fetching);
            }
        }
    }

    /// Answers [`ImapEvent::Structure`]; `None`: no structure is cached.
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn structure(&mut self, kept: Option<&[u8]>) {
        let State::Fetching(mut fetching) = std::mem::replace(&mut self.state, State::Command) else {
            panic!("a structure without a FETCH")
        };
        fetching.structure = kept.and_then(KeptStructure::decode).map(Box::new);
        self.begin_row(fetching);
    }

    /// UID and structure of the last read message, if worth caching, to be returned to [`structure`](Self::structure)
    /// later.
    pub fn made_structure(&mut self) -> Option<(u32, Vec<u8>)> {
        let State::Fetching(fetching) = &mut self.state else { return None };
        Some((fetching.row.uid, fetching.made.take()?))
    }

    fn begin_row(&mut self, mut fetching: Box<Fetching>) {
        fetching.step = match fetching.depth() {
            None => return self.answer(fetching, &Known::Nothing),
            Some(Depth::Header) if !fetching.sends => FetchStep::Header,
            Some(_) => FetchStep::Open,
        };
        self.state = State::Fetching(fetching);
    }

    fn end_fetch(&mut self, fetching: Fetching) {
        let Fetching { tag, uid, failure, seen, reply, .. } = fetching;
        let name = if uid { "UID FETCH" } else { "FETCH" };
        let text = match failure.and_then(unread) {
            Some(text) => text.into(),
            None => reply.unwrap_or_else(|| format!("OK {name} completed")),
        };
        // A client that uses numbers could mistake them after an EXPUNGE (decision 9).
        self.finish_seen(Reply { tag, text }, uid, seen.unwrap_or_default());
    }

    pub(super) fn fetched_len(&mut self, answer: Result<u64, MailRefusal>) {
        let State::Fetching(mut fetching) = std::mem::replace(&mut self.state, State::Command) else { return };
        match answer {
            Ok(len) => {
                fetching.len = Some(len);
                // Of other octets than these.
                fetching.structure.take_if(|kept| u64::from(kept.len) != len);
                fetching.step = match fetching.depth() {
                    Some(Depth::Header) => FetchStep::Header,
                    Some(Depth::Parts) => FetchStep::Read,
                    _ => return self.answer(fetching, &Known::Nothing),
                };
                self.state = State::Fetching(fetching);
            }
            Err(why) => self.unreadable(fetching, why),
        }
    }

    pub(super) fn fetched_header(&mut self, answer: Result<&[u8], MailRefusal>) {
        let State::Fetching(fetching) = std::mem::replace(&mut self.state, State::Command) else { return };
        match answer {
            Ok(header) => self.answer(fetching, &Known::Header(header)),
            Err(why) => self.unreadable(fetching, why),
        }
    }

    pub(super) fn fetched_message(&mut self, answer: Result<&[u8], MailRefusal>) {
        let State::Fetching(fetching) = std::mem::replace(&mut self.state, State::Command) else { return };
        match answer {
            Ok(octets) => self.answer(fetching, &Known::Parts(octets)),
            Err(why) => self.unreadable(fetching, why),
        }
    }

    fn unreadable(&mut self, mut fetching: Box<Fetching>, why: MailRefusal) {
        fetching.failure = fetching.failure.max(Some(why));
        fetching.len = None;
        self.answer(fetching, &Known::Nothing);
    }

    /// Writes the answer about a row, or splits it into pieces if it includes octets of the message.
    fn answer(&mut self, mut fetching: Box<Fetching>, known: &Known<'_>) {
        let mut text = std::mem::take(&mut self.out);
        let mut pieces = VecDeque::new();
        text.extend_from_slice(b"* ");
        write::number(&mut text, fetching.row.number.into());
        text.extend_from_slice(b" FETCH (");
        let start = text.len();
        let message = match known {
            Known::Parts(octets) => Some(Message::parse(octets)),
            Known::Header(_) | Known::Nothing => None,
        };
        let header = match (known, &message) {
            (Known::Header(header), _) => Some(*header),
            (_, Some(message)) => Some(message.root().header().as_bytes()),
            _ => None,
        };
        let read = if let Known::Parts(octets) = known { Some(*octets) } else { None };
        let (structure, tree) = fetching.structure_of(message.as_ref().zip(read));
        let kept = structure.as_ref().or(fetching.structure.as_deref());
        let tree = kept.map(|kept| &kept.parts).or(tree.as_ref());
        let parts = tree.zip(fetching.len).map(|(tree, len)| KnownParts { tree, read, len });
        let text_known = kept.map(|kept| &kept.text[..]);
        let message = message.as_ref();
        let source = Source { row: &fetching.row, header, structure: text_known, message, parts, len: fetching.len };
        for item in &fetching.items {
            if *item == FetchItem::Rfc822Size && fetching.row.size.is_none() {
                continue;
            }
            if text.len() > start || !pieces.is_empty() {
                text.push(b' ');
            }
            let piece = match item {
                FetchItem::Flags => {
                    self.out = std::mem::take(&mut text);
                    self.text("FLAGS ");
                    let mailbox = self.mailbox.take().expect("a mailbox is selected");
                    self.write_flags(&mailbox, &fetching.row);
                    self.mailbox = Some(mailbox);
                    text = std::mem::take(&mut self.out);
                    None
                }
                item => source.item(item, &mut text),
            };
            if let Some(piece) = piece {
                pieces.push_back(Piece::Text(std::mem::take(&mut text)));
                pieces.push_back(piece);
            }
        }
        text.extend_from_slice(b")\r\n");
        let is_read_first = fetching.len.is_some() && fetching.row.flags & SEEN == 0;
        if let (Some(seen), true) = (&mut fetching.seen, is_read_first) {
            seen.push(fetching.row.uid);
        }
        fetching.made = structure.filter(|_| fetching.asks_structure()).map(|structure| structure.encode());
        fetching.step = FetchStep::NextRow;
        if pieces.is_empty() {
            self.out = text;
        } else {
            pieces.push_back(Piece::Text(text));
            fetching.step = FetchStep::Answer;
            fetching.pieces = pieces;
        }
        self.state = State::Fetching(fetching);
    }
}

/// Text of the reply to a command that could not read all messages. A vanished message is no failure (decision 11).
pub(super) fn unread(why: MailRefusal) -> Option<&'static str> {
    match why {
        MailRefusal::Gone => None,
        MailRefusal::UnknownEncoding => Some("NO [UNKNOWN-CTE] Some parts cannot be decoded"),
        MailRefusal::NoPermission => Some("NO [NOPERM] Some messages may not be read"),
        MailRefusal::Damaged => Some("NO [CORRUPTION] Some messages are damaged"),
        _ => Some("NO [UNAVAILABLE] Some messages cannot be read now"),
    }
}
