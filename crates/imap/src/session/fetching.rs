//! A FETCH in progress.

use std::collections::VecDeque;

use posthaste_message::mime::{Message, is_listed_field};

use super::piece::{DecodedItem, Piece};
use super::{MailRefusal, MessageChoice, ViewRow};
use crate::command::{BodySection, BodySectionText, FetchItem};
use crate::kept_structure::KeptStructure;
use crate::part_tree::PartTree;
use crate::section::Depth;
use crate::set::NumberSet;

/// A FETCH that is being answered.
#[derive(Debug)]
pub(super) struct Fetching {
    pub(super) tag: String,
    pub(super) uid: bool,
    pub(super) items: Vec<FetchItem>,
    /// The part of each message that must be read.
    pub(super) depth: Option<Depth>,
    /// Like `depth`, for a message with a known structure.
    pub(super) depth_with_parts: Option<Depth>,
    /// True if octets of messages are sent.
    pub(super) sends: bool,
    pub(super) step: FetchStep,
    pub(super) row: ViewRow,
    /// Length of the row's message, once it is open.
    pub(super) len: Option<u64>,
    /// Cached structure of the row's message.
    pub(super) structure: Option<Box<KeptStructure>>,
    /// New structure of the row's message, for the cache.
    pub(super) made: Option<Vec<u8>>,
    /// The worst failure of a message; reported at the end (decision 32).
    pub(super) failure: Option<MailRefusal>,
    /// The rest of the row's answer.
    pub(super) pieces: VecDeque<Piece>,
    /// The part of the row's message whose decoded length is pending.
    pub(super) decoding: Option<DecodedItem>,
    /// Rows to request first.
    pub(super) choice: Option<(MessageChoice, bool)>,
    /// Messages with a higher MODSEQ only.
    pub(super) changed_since: Option<u64>,
    /// Messages without \Seen that are read, if reading sets it.
    pub(super) seen: Option<NumberSet>,
    /// The final reply, if the answers belong to another command.
    pub(super) reply: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FetchStep {
    NextRow,
    Structure,
    Open,
    Header,
    Read,
    Answer,
    /// Waits for the driver's answer.
    Asked,
}

impl FetchItem {
    fn depth(&self) -> Option<Depth> {
        match self {
            Self::Envelope | Self::Rfc822Header | Self::Rfc822Text => Some(Depth::Header),
            Self::Body | Self::BodyStructure => Some(Depth::Parts),
            Self::Binary { part, .. } | Self::BinarySize(part) if part.is_empty() => Some(Depth::Length),
            Self::Binary { .. } | Self::BinarySize(_) => Some(Depth::Parts),
            Self::Rfc822 => Some(Depth::Length),
            Self::Section { section, .. } => Some(section.depth()),
            Self::Flags | Self::Uid | Self::ModSeq | Self::InternalDate | Self::Rfc822Size => None,
        }
    }

    /// Like [`depth`](Self::depth), for a message with a known structure.
    fn depth_with_parts(&self) -> Option<Depth> {
        match self {
            Self::BodyStructure => None,
            Self::Binary { .. } | Self::BinarySize(_) => Some(Depth::Length),
            Self::Section { section, .. } => Some(section.depth_with_parts()),
            other => other.depth(),
        }
    }

    /// True if the command sets \Seen (RFC 3501 section 6.4.5).
    pub(super) fn reads(&self) -> bool {
        matches!(
            self,
            Self::Rfc822 | Self::Rfc822Text | Self::Section { peek: false, .. } | Self::Binary { peek: false, .. }
        )
    }

    /// True if the answer includes octets of the message, or fields that the driver may not have cached.
    fn sends(&self) -> bool {
        match self {
            Self::Section {
                section: BodySection { part, text: BodySectionText::Fields(names) }, peek: true, ..
            } => !part.is_empty() || !names.all(is_listed_field),
            _ => matches!(self, Self::Rfc822 | Self::Rfc822Header | Self::Rfc822Text | Self::Section { .. }),
        }
    }
}

impl Fetching {
    /// The part of the row's message that must be read.
    pub(super) fn depth(&self) -> Option<Depth> {
        if self.structure.is_some() { self.depth_with_parts } else { self.depth }
    }

    /// True if the last row's answer is complete, and the next row is due.
    pub(super) fn wants_row(&self) -> bool {
        self.step == FetchStep::NextRow && self.choice.is_none()
    }

    /// True if a cached structure would save reading the message.
    pub(super) fn asks_structure(&self) -> bool {
        self.depth > self.depth_with_parts
    }

    /// Structure of a completely read message, or else the parts within the octets read.
    pub(super) fn structure_of(
        &self,
        message: Option<(&Message<'_>, &[u8])>,
    ) -> (Option<KeptStructure>, Option<PartTree>) {
        let Some((message, read)) = message else { return (None, None) };
        let whole = (self.len == Some(read.len() as u64)).then(|| KeptStructure::of(message, read)).flatten();
        let parts = whole.is_none().then(|| PartTree::of(message.root()));
        (whole, parts)
    }

    /// Records a failed item; the reply reports it.
    pub(super) fn fail(&mut self, why: MailRefusal) {
        self.failure = self.failure.max(Some(why));
    }

    pub(super) fn new(tag: String, uid: bool, choice: MessageChoice, items: Vec<FetchItem>) -> Self {
        let sizes = items.contains(&FetchItem::Rfc822Size);
        Self {
            tag,
            uid,
            depth: items.iter().filter_map(FetchItem::depth).max(),
            depth_with_parts: items.iter().filter_map(FetchItem::depth_with_parts).max(),
            sends: items.iter().any(FetchItem::sends),
            items,
            step: FetchStep::NextRow,
            row: ViewRow::default(),
            len: None,
            structure: None,
            made: None,
            failure: None,
            pieces: VecDeque::new(),
            decoding: None,
            choice: Some((choice, sizes)),
            changed_since: None,
            seen: None,
            reply: None,
        }
    }
}

/// Vanished messages to report first, then the rest of the command.
#[derive(Debug)]
pub(super) struct Vanishing {
    pub since: u64,
    /// UIDs in the client's request.
    pub among: NumberSet,
    pub then: Box<Fetching>,
    pub asked: bool,
}
