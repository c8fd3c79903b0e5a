//! A SEARCH, SORT or THREAD in progress.

use posthaste_text::MailText;

use super::mail_keys::MailKeys;
use super::matching::{Mail, Test, Texts};
use super::ordering::Order;
use super::{MailRefusal, MessageChoice, ViewRow};
use crate::command::SearchReturn;
use crate::set::NumberSet;

/// A SEARCH, SORT or THREAD that is being carried out.
#[derive(Debug)]
pub(super) struct Searching {
    pub(super) tag: String,
    pub(super) uid: bool,
    pub(super) returns: Option<SearchReturn>,
    pub(super) test: Test,
    pub(super) texts: Texts,
    /// Number of messages read to search their text.
    pub(super) read: u32,
    pub(super) step: SearchStep,
    pub(super) row: ViewRow,
    /// Matching numbers or UIDs; empty with `order`.
    pub(super) found: NumberSet,
    /// UIDs of the results, for SAVE.
    pub(super) saved: NumberSet,
    /// Results of SORT and THREAD, and the form of the answer.
    pub(super) order: Option<Order>,
    /// The highest MODSEQ of the matches.
    pub(super) modseq: u64,
    pub(super) failure: Option<MailRefusal>,
    pub(super) choice: Option<MessageChoice>,
    /// True if the values of the row's header must still be made and cached.
    pub(super) makes_keys: bool,
    /// New header values of the row, for the cache.
    pub(super) made: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SearchStep {
    NextRow,
    /// Asks an index first: then the row's message need not be read.
    Find,
    /// Asks for cached header values, which may suffice.
    Keys,
    Header,
    Open,
    Read(u64),
    /// Number of ranges sent so far, of an answer sent in pieces.
    Tell {
        range: usize,
        from: u32,
    },
    /// Numbers or threads sent so far, in their order.
    TellOrder(usize),
    /// Waits for the driver's answer.
    Asked,
}

/// Messages that are read before the index is asked: asking costs more than reading a few.
const READ_FIRST: u32 = 8;

impl Searching {
    /// UIDs to save. With MIN or MAX only, just these results (RFC 5182 section 2.4).
    pub(super) fn saved_uids(&self) -> NumberSet {
        let Some(SearchReturn { min, max, all, count, .. }) = self.returns else { return NumberSet::default() };
        if all || count || !(min || max) {
            return self.saved.clone();
        }
        let ends = [self.saved.first().filter(|_| min), self.saved.last().filter(|_| max)];
        NumberSet::from_ranges(ends.into_iter().flatten().map(|uid| uid..=uid).collect())
    }

    /// A message's text, if a key searches it.
    pub(super) fn text_of(&self, read: impl FnOnce() -> MailText) -> MailText {
        if self.texts.keys.is_empty() { MailText::default() } else { read() }
    }

    /// Counts the row if the search is decided; otherwise continues with `next`, or with the query after it.
    pub(super) fn decide(&mut self, mail: &Mail<'_>, next: SearchStep) {
        self.step = match self.test.of(&self.row, mail, &self.texts) {
            Some(true) => self.found(mail),
            Some(false) => SearchStep::NextRow,
            None if next == SearchStep::Keys && self.texts.are_open() && self.read >= READ_FIRST => SearchStep::Find,
            None => {
                self.read += u32::from(next == SearchStep::Keys);
                match next {
                    SearchStep::Keys if self.test.may_need_keys(&self.texts) => SearchStep::Keys,
                    SearchStep::Keys | SearchStep::Header if self.test.needs_header(&self.texts) => SearchStep::Header,
                    SearchStep::Keys | SearchStep::Header => SearchStep::Open,
                    next => next,
                }
            }
        };
    }

    pub(super) fn found(&mut self, mail: &Mail<'_>) -> SearchStep {
        let number = if self.uid { self.row.uid } else { self.row.number };
        match (&mut self.order, mail) {
            (Some(order), Mail::Row) if order.needs_keys() => return SearchStep::Keys,
            (Some(order), Mail::Row) => order.add(number, &self.row, &MailKeys::default()),
            (Some(order), Mail::Keys(keys)) => order.add(number, &self.row, keys),
            (Some(order), Mail::Header(header, _) | Mail::Message(header, _)) => {
                order.add(number, &self.row, &MailKeys::of_fields(header));
            }
            (None, _) => self.found.push(number),
        }
        if self.returns.is_some_and(|returns| returns.save) {
            self.saved.push(self.row.uid);
        }
        self.modseq = self.modseq.max(self.row.modseq);
        SearchStep::NextRow
    }

    /// Skips a message that cannot be read: it does not match.
    pub(super) fn pass(&mut self, why: MailRefusal) {
        self.failure = self.failure.max(Some(why));
        self.step = SearchStep::NextRow;
    }
}
