//! SEARCH: row by row. A message is read only if its row does not decide.

mod answer;

use posthaste_message::mime::{Header, Message};
use posthaste_text::MailText;

use super::machine::OUTPUT_BYTES_MAX;
use super::mail_keys::MailKeys;
use super::matching::{Mail, Test, Texts};
use super::ordering::Order;
use super::searching::{SearchStep, Searching};
use super::state::State;
use super::{ImapEvent, ImapMachine, MailRefusal, MessageChoice, TextAnswer, ViewRow};
use crate::command::{SearchCommand, SearchKey, SearchReturn, SortCommand, ThreadCommand};
use crate::set::NumberSet;

impl ImapMachine {
    pub(super) fn search(&mut self, tag: String, uid: bool, search: SearchCommand) -> Option<ImapEvent> {
        // IMAP4rev2 has no other answer (RFC 9051 section 6.4.4).
        let all = SearchReturn { all: true, ..SearchReturn::default() };
        self.look_for(tag, uid, &search.key, search.returns.or(self.rev2.then_some(all)), None)
    }

    pub(super) fn sort(&mut self, tag: String, uid: bool, sort: SortCommand) -> Option<ImapEvent> {
        self.look_for(tag, uid, &sort.key, None, Some(Order::sort(sort.order)))
    }

    pub(super) fn thread(&mut self, tag: String, uid: bool, thread: ThreadCommand) -> Option<ImapEvent> {
        self.look_for(tag, uid, &thread.key, None, Some(Order::thread(thread.algorithm)))
    }

    fn look_for(
        &mut self,
        tag: String,
        uid: bool,
        key: &SearchKey,
        returns: Option<SearchReturn>,
        order: Option<Order>,
    ) -> Option<ImapEvent> {
        let mailbox = self.mailbox.as_ref().expect("a mailbox is selected");
        let mut texts = Texts::default();
        let test = Test::new(key, mailbox, &self.saved, &mut texts);
        self.condstore |= test.has_modseq();
        let choice = test.choice().unwrap_or_else(|| MessageChoice::Uids(NumberSet::from_ranges(vec![1..=u32::MAX])));
        self.state = State::Searching(Box::new(Searching {
            tag,
            uid,
            returns,
            test,
            texts,
            read: 0,
            step: SearchStep::NextRow,
            row: ViewRow::default(),
            found: NumberSet::default(),
            saved: NumberSet::default(),
            order,
            modseq: 0,
            failure: None,
            choice: Some(choice),
            makes_keys: false,
            made: None,
        }));
        None
    }

    pub(super) fn step_search(&mut self) -> Option<ImapEvent> {
        let State::Searching(searching) = &mut self.state else { unreachable!("messages are being searched") };
        if let Some(set) = searching.choice.take() {
            let sizes = searching.test.needs_size() || searching.order.as_ref().is_some_and(Order::needs_size);
            return Some(ImapEvent::Rows { set, sizes });
        }
        let uid = searching.row.uid;
        match std::mem::replace(&mut searching.step, SearchStep::Asked) {
            SearchStep::NextRow => Some(ImapEvent::NextRow),
            SearchStep::Find => Some(ImapEvent::FindText(searching.texts.keys.clone())),
            SearchStep::Keys => Some(ImapEvent::Keys { uid }),
            SearchStep::Header => {
                let whole = searching.test.needs_whole_header(&searching.texts);
                Some(ImapEvent::Header { uid, whole })
            }
            SearchStep::Open => Some(ImapEvent::Open { uid }),
            SearchStep::Read(octets) => Some(ImapEvent::Read { octets }),
            SearchStep::Tell { range, from } => {
                self.tell_numbers(range, from);
                None
            }
            SearchStep::TellOrder(told) => {
                self.tell_order(told);
                None
            }
            SearchStep::Asked => panic!("stepped while an answer about a message is awaited"),
        }
    }

    pub(super) fn searched_row(&mut self, row: Result<Option<ViewRow>, MailRefusal>) {
        let State::Searching(searching) = &mut self.state else { return };
        match row {
            Ok(Some(row)) => {
                (searching.row, searching.makes_keys, searching.made) = (row, false, None);
                searching.decide(&Mail::Row, SearchStep::Keys);
                let is_too_much = |order: &Order| order.bytes() > self.config.limits.order_bytes;
                if searching.order.as_ref().is_some_and(is_too_much) {
                    self.give_up_search();
                }
            }
            Ok(None) => self.end_search(),
            Err(why) => {
                searching.failure = searching.failure.max(Some(why));
                self.end_search();
            }
        }
    }

    /// Answers [`ImapEvent::FindText`], in the order of the keys. With `None` or a missing answer, messages are read.
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn text_found(&mut self, answers: Vec<Option<TextAnswer>>) {
        let State::Searching(searching) = &mut self.state else { panic!("texts in {:?}", self.state) };
        searching.texts.answer(answers);
        searching.decide(&Mail::Row, SearchStep::Keys);
    }

    /// Answers [`ImapEvent::Keys`]; `None`: no keys are cached.
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn keys(&mut self, kept: Option<&[u8]>) {
        let State::Searching(searching) = &mut self.state else { panic!("values of a header in {:?}", self.state) };
        match kept.and_then(MailKeys::decode) {
            Some(keys) => searching.decide(&Mail::Keys(&keys), SearchStep::Header),
            None => (searching.makes_keys, searching.step) = (true, SearchStep::Header),
        }
    }

    /// UID and header values of the last row's message, if worth caching, to be returned to [`keys`](Self::keys) later.
    pub fn made_keys(&mut self) -> Option<(u32, Vec<u8>)> {
        let State::Searching(searching) = &mut self.state else { return None };
        Some((searching.row.uid, searching.made.take()?))
    }

    pub(super) fn searched_header(&mut self, answer: Result<&[u8], MailRefusal>) {
        let State::Searching(searching) = &mut self.state else { return };
        match answer {
            Ok(header) => {
                if std::mem::take(&mut searching.makes_keys) {
                    let keys = MailKeys::of_header(header);
                    searching.made = keys.encode();
                    searching.decide(&Mail::Keys(&keys), SearchStep::Header);
                    if searching.step != SearchStep::Header {
                        return;
                    }
                }
                let text = searching.text_of(|| MailText::of_header(header, &|field| searching.texts.names(field)));
                searching.decide(&Mail::Header(Header::new(header), &text), SearchStep::Open);
            }
            // One message that is damaged is no reason for a list without it.
            Err(_) if searching.test.of(&searching.row, &Mail::Row, &searching.texts) == Some(true) => {
                searching.decide(&Mail::Keys(&MailKeys::default()), SearchStep::NextRow);
            }
            Err(why) => searching.pass(why),
        }
    }

    pub(super) fn searched_len(&mut self, answer: Result<u64, MailRefusal>) {
        let most = self.config.limits.structure_bytes;
        let State::Searching(searching) = &mut self.state else { return };
        match answer {
            Ok(len) => searching.step = SearchStep::Read(len.min(most)),
            Err(why) => searching.pass(why),
        }
    }

    pub(super) fn searched_message(&mut self, answer: Result<&[u8], MailRefusal>) {
        let State::Searching(searching) = &mut self.state else { return };
        match answer {
            Ok(octets) => {
                let text = searching.text_of(|| MailText::of_message(octets));
                let message = Message::parse(octets);
                searching.decide(&Mail::Message(message.root().header(), &text), SearchStep::NextRow);
            }
            Err(why) => searching.pass(why),
        }
    }

    /// Ends a search that takes too long (decision 34). Call it when a row is requested; outside of a search it does
    /// nothing.
    pub fn give_up_search(&mut self) {
        if !matches!(self.state, State::Searching(_)) {
            return;
        }
        let State::Searching(searching) = std::mem::replace(&mut self.state, State::Command) else { return };
        if searching.returns.is_some_and(|returns| returns.save) {
            self.saved = NumberSet::default();
        }
        let text = match searching.order {
            None => "NO [LIMIT] The search takes too long",
            Some(_) => "NO [LIMIT] That is too much to sort",
        };
        self.finish_with(searching.tag, text.into(), searching.uid);
    }

    /// True while messages are searched; the driver limits the search time.
    pub fn is_searching(&self) -> bool {
        matches!(self.state, State::Searching(_))
    }

    /// Octets collected by a SORT or THREAD; `None` outside of these commands. The driver bounds their sum over all
    /// sessions.
    pub fn order_bytes(&self) -> Option<usize> {
        match &self.state {
            State::Searching(searching) => searching.order.as_ref().map(Order::bytes),
            _ => None,
        }
    }

    /// Sends a progress response for a SORT or THREAD (RFC 9585).
    pub fn tell_progress(&mut self) {
        if self.order_bytes().is_some() {
            self.line("* OK [INPROGRESS] Looking at messages");
        }
    }

    /// Answers [`ImapEvent::NextRow`]; `None` at the end.
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn row(&mut self, row: Result<Option<ViewRow>, MailRefusal>) {
        match &self.state {
            State::Fetching(_) => self.fetched_row(row),
            State::Searching(_) => self.searched_row(row),
            state => panic!("a row in {state:?}"),
        }
    }

    /// True if [`step`](Self::step) would request a row now: the previous one is finished, and the output is short.
    pub fn wants_row(&self) -> bool {
        let is_next = match &self.state {
            State::Fetching(fetching) => fetching.wants_row(),
            State::Searching(searching) => searching.step == SearchStep::NextRow,
            _ => false,
        };
        is_next && self.out.len() < OUTPUT_BYTES_MAX
    }

    /// Answers [`ImapEvent::Header`].
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn header(&mut self, answer: Result<&[u8], MailRefusal>) {
        match &self.state {
            State::Fetching(_) => self.fetched_header(answer),
            State::Searching(_) => self.searched_header(answer),
            state => panic!("a header in {state:?}"),
        }
    }

    /// Answers [`ImapEvent::Open`] with the message's length.
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn opened(&mut self, answer: Result<u64, MailRefusal>) {
        match &self.state {
            State::Fetching(_) => self.fetched_len(answer),
            State::Searching(_) => self.searched_len(answer),
            state => panic!("a length in {state:?}"),
        }
    }

    /// Answers [`ImapEvent::Read`].
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn message(&mut self, answer: Result<&[u8], MailRefusal>) {
        match &self.state {
            State::Fetching(_) => self.fetched_message(answer),
            State::Searching(_) => self.searched_message(answer),
            state => panic!("a message in {state:?}"),
        }
    }
}
