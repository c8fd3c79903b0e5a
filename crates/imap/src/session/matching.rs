//! Matches a message with a search.

use posthaste_message::DateTime;
use posthaste_message::mime::{Header, is_listed_field};
use posthaste_text::{MailText, Needle, SearchedField};

use super::mail_keys::MailKeys;
use super::{MessageChoice, SelectedMailbox, TextAnswer, TextKey, ViewRow};
use crate::command::{MailFlag, SearchKey};
use crate::date::Day;
use crate::set::NumberSet;

/// A prepared search key: sets resolved, flags as bits, texts folded.
#[derive(Debug)]
pub(super) enum Test {
    Is(bool),
    And(Vec<Test>),
    Or(Box<(Test, Test)>),
    Not(Box<Test>),
    Numbers(NumberSet),
    Uids(NumberSet),
    Flags(u64),
    Recent,
    /// INTERNALDATE.
    Received(When),
    /// The date as written.
    Sent(When),
    Larger(u64),
    Smaller(u64),
    ModSeq(u64),
    /// A text of the search, by index in [`Texts`].
    Text(usize),
}

/// Texts of a search, with the answers known before messages are read.
#[derive(Debug, Default)]
pub(super) struct Texts {
    pub keys: Vec<TextKey>,
    /// The index's answers by key; empty until the index is asked.
    answers: Vec<Option<TextAnswer>>,
}

impl Texts {
    fn add(&mut self, field: SearchedField, text: &[u8]) -> Test {
        self.keys.push(TextKey { field, needle: Needle::new(&String::from_utf8_lossy(text)) });
        Test::Text(self.keys.len() - 1)
    }

    /// True if an index can be asked and has not been.
    pub fn are_open(&self) -> bool {
        self.answers.len() < self.keys.len()
    }

    /// True if the search uses a field of this name.
    pub fn names(&self, field: &[u8]) -> bool {
        self.keys.iter().any(|key| match &key.field {
            SearchedField::Header(name) => name.as_bytes().eq_ignore_ascii_case(field),
            SearchedField::Body | SearchedField::Anywhere => false,
        })
    }

    /// Sets the index's answers, in the order of the keys.
    pub fn answer(&mut self, mut answers: Vec<Option<TextAnswer>>) {
        answers.resize_with(self.keys.len(), || None);
        self.answers = answers;
    }

    fn of(&self, at: usize, row: &ViewRow, mail: &Mail<'_>) -> Option<bool> {
        let known = self.answers.get(at).and_then(Option::as_ref);
        if let Some(known) = known.filter(|answer| answer.known.contains(row.uid)) {
            return Some(known.found.contains(row.uid));
        }
        let TextKey { field, needle } = &self.keys[at];
        match mail {
            Mail::Row => None,
            Mail::Keys(keys) => match field {
                SearchedField::Header(name) => keys.searched(name).map(|text| needle.is_in_field(text)),
                SearchedField::Body | SearchedField::Anywhere => None,
            },
            Mail::Header(_, text) | Mail::Message(_, text) => text.has(field, needle),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum When {
    Before(Day),
    On(Day),
    Since(Day),
}

impl When {
    fn is(self, found: Day) -> bool {
        match self {
            Self::Before(day) => found < day,
            Self::On(day) => found == day,
            Self::Since(day) => found >= day,
        }
    }
}

/// The known part of a message.
pub(super) enum Mail<'m> {
    Row,
    /// Cached header values.
    Keys(&'m MailKeys<'m>),
    Header(Header<'m>, &'m MailText),
    Message(Header<'m>, &'m MailText),
}

impl Test {
    /// `saved`: UIDs saved by an earlier search.
    pub fn new(key: &SearchKey, mailbox: &SelectedMailbox, saved: &NumberSet, texts: &mut Texts) -> Self {
        match key {
            SearchKey::All => Self::Is(true),
            SearchKey::And(keys) => Self::And(keys.iter().map(|key| Self::new(key, mailbox, saved, texts)).collect()),
            SearchKey::Or(keys) => {
                let one = Self::new(&keys.0, mailbox, saved, texts);
                Self::Or(Box::new((one, Self::new(&keys.1, mailbox, saved, texts))))
            }
            SearchKey::Not(key) => Self::Not(Box::new(Self::new(key, mailbox, saved, texts))),
            SearchKey::Numbers(set) | SearchKey::Uids(set) if set.is_saved() => Self::Uids(saved.clone()),
            SearchKey::Numbers(set) => Self::Numbers(set.resolve(mailbox.exists)),
            SearchKey::Uids(set) => Self::Uids(set.resolve(mailbox.last_uid)),
            SearchKey::Flag(flag) => bit_of(flag, mailbox).map_or(Self::Is(false), Self::Flags),
            SearchKey::Recent => Self::Recent,
            SearchKey::Before(day) => Self::Received(When::Before(*day)),
            SearchKey::On(day) => Self::Received(When::On(*day)),
            SearchKey::Since(day) => Self::Received(When::Since(*day)),
            SearchKey::SentBefore(day) => Self::Sent(When::Before(*day)),
            SearchKey::SentOn(day) => Self::Sent(When::On(*day)),
            SearchKey::SentSince(day) => Self::Sent(When::Since(*day)),
            SearchKey::Larger(size) => Self::Larger(*size),
            SearchKey::Smaller(size) => Self::Smaller(*size),
            SearchKey::ModSeq(modseq) => Self::ModSeq(*modseq),
            SearchKey::Header { name, text } => {
                texts.add(SearchedField::Header(String::from_utf8_lossy(name).into_owned()), text)
            }
            SearchKey::Body(text) => texts.add(SearchedField::Body, text),
            SearchKey::Text(text) => texts.add(SearchedField::Anywhere, text),
        }
    }

    /// Numbers or UIDs that all matches must have, if a key implies such a bound.
    pub fn choice(&self) -> Option<MessageChoice> {
        match self {
            Self::Numbers(set) => Some(MessageChoice::Numbers(set.clone())),
            Self::Uids(set) => Some(MessageChoice::Uids(set.clone())),
            Self::And(tests) => tests.iter().find_map(Self::choice),
            _ => None,
        }
    }

    fn any(&self, is: &impl Fn(&Self) -> bool) -> bool {
        match self {
            Self::And(tests) => tests.iter().any(|test| test.any(is)),
            Self::Or(tests) => tests.0.any(is) || tests.1.any(is),
            Self::Not(test) => test.any(is),
            test => is(test),
        }
    }

    pub fn needs_size(&self) -> bool {
        self.any(&|test| matches!(test, Self::Larger(_) | Self::Smaller(_)))
    }

    /// True if the response includes MODSEQ (RFC 7162 section 3.1.5).
    pub fn has_modseq(&self) -> bool {
        self.any(&|test| matches!(test, Self::ModSeq(_)))
    }

    pub fn needs_header(&self, texts: &Texts) -> bool {
        self.any(&|test| match test {
            Self::Sent(_) => true,
            Self::Text(at) => matches!(texts.keys[*at].field, SearchedField::Header(_)),
            _ => false,
        })
    }

    /// True if [cached](MailKeys) values may suffice in place of the header.
    pub fn may_need_keys(&self, texts: &Texts) -> bool {
        self.any(&|test| match test {
            Self::Text(at) => matches!(&texts.keys[*at].field, SearchedField::Header(name) if MailKeys::may_have(name)),
            _ => false,
        })
    }

    /// True if the search needs a field that clients do not list.
    pub fn needs_whole_header(&self, texts: &Texts) -> bool {
        self.any(&|test| match test {
            Self::Text(at) => match &texts.keys[*at].field {
                SearchedField::Header(name) => !is_listed_field(name.as_bytes()),
                SearchedField::Body | SearchedField::Anywhere => false,
            },
            _ => false,
        })
    }

    /// `None`: more of the message must be read.
    pub fn of(&self, row: &ViewRow, mail: &Mail<'_>, texts: &Texts) -> Option<bool> {
        Some(match self {
            Self::Is(found) => *found,
            Self::And(tests) => return all(tests.iter().map(|test| test.of(row, mail, texts))),
            Self::Or(tests) => {
                let none =
                    all([&tests.0, &tests.1].into_iter().map(|test| test.of(row, mail, texts).map(|found| !found)));
                return none.map(|none| !none);
            }
            Self::Not(test) => return test.of(row, mail, texts).map(|found| !found),
            Self::Numbers(set) => set.contains(row.number),
            Self::Uids(set) => set.contains(row.uid),
            Self::Flags(bits) => row.flags & bits != 0,
            Self::Recent => row.recent,
            Self::Received(when) => when.is(Day::of_unix(row.internal_date)),
            Self::Sent(when) => {
                let header = match mail {
                    Mail::Row | Mail::Keys(_) => return None,
                    Mail::Header(header, _) | Mail::Message(header, _) => header,
                };
                header.first("Date").and_then(|field| written_day(field.value)).is_some_and(|day| when.is(day))
            }
            Self::Larger(size) => row.size.is_some_and(|found| found > *size),
            Self::Smaller(size) => row.size.is_some_and(|found| found < *size),
            Self::ModSeq(modseq) => row.modseq >= *modseq,
            Self::Text(at) => return texts.of(*at, row, mail),
        })
    }
}

/// True if all are true. One false test decides, even if others are unknown.
fn all(mut found: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut all = Some(true);
    let is_false = found.any(|found| {
        if found.is_none() {
            all = None;
        }
        found == Some(false)
    });
    if is_false { Some(false) } else { all }
}

fn bit_of(flag: &MailFlag, mailbox: &SelectedMailbox) -> Option<u64> {
    match flag {
        MailFlag::Keyword(name) => {
            let found = mailbox.keywords.iter().find(|(_, known)| known.eq_ignore_ascii_case(name));
            found.map(|(bit, _)| *bit)
        }
        system => system.system_bit(),
    }
}

/// The day that a `Date` has, in its own zone (decision 55).
fn written_day(value: &[u8]) -> Option<Day> {
    const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let text = String::from_utf8_lossy(&value[..value.len().min(100)]).to_ascii_lowercase();
    let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let written = || {
        let (at, month) = words.iter().enumerate().find_map(|(at, word)| {
            Some((at, MONTHS.iter().position(|month| word.get(..3).is_some_and(|start| start == *month))?))
        })?;
        let day = words.get(at.checked_sub(1)?)?.parse().ok()?;
        let year: i64 = words.get(at + 1)?.parse().ok().filter(|year| *year >= 1900)?;
        Day::from_civil(year, month as u32 + 1, day)
    };
    written().or_else(|| DateTime::parse(value).map(|date| Day::of_unix(date.unix_secs())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_taken_as_they_are_written() {
        let day = |value: &str| written_day(value.as_bytes());
        assert_eq!(day(" Tue, 4 Mar 2025 23:59:59 -1200"), Day::from_civil(2025, 3, 4));
        assert_eq!(day("4 March 2025 00:00:01 +1400"), Day::from_civil(2025, 3, 4));
        assert_eq!(day("2025-03-04T12:00:00Z"), Day::from_civil(2025, 3, 4));
        assert_eq!(day("nonsense"), None);
    }

    #[test]
    fn what_is_not_known_is_read_only_if_it_decides() {
        let mailbox = SelectedMailbox { exists: 3, last_uid: 9, ..SelectedMailbox::default() };
        let seen = || SearchKey::Flag(MailFlag::Seen);
        let body = || SearchKey::Body(b"x".to_vec());
        let of = |key: SearchKey| {
            let mut texts = Texts::default();
            Test::new(&key, &mailbox, &NumberSet::default(), &mut texts).of(&ViewRow::default(), &Mail::Row, &texts)
        };
        assert_eq!(of(SearchKey::And(vec![body(), seen()])), Some(false));
        assert_eq!(of(SearchKey::Or(Box::new((body(), SearchKey::Not(Box::new(seen())))))), Some(true));
        assert_eq!(of(SearchKey::And(vec![body(), SearchKey::All])), None);
        assert_eq!(of(SearchKey::Or(Box::new((body(), seen())))), None);
        assert_eq!(of(SearchKey::Flag(MailFlag::Keyword("unknown".into()))), Some(false));
    }

    #[test]
    fn an_index_decides_for_the_messages_that_it_knows() {
        let mailbox = SelectedMailbox { exists: 3, last_uid: 9, ..SelectedMailbox::default() };
        let mut texts = Texts::default();
        let body = SearchKey::Not(Box::new(SearchKey::Body(b"x".to_vec())));
        let test = Test::new(&body, &mailbox, &NumberSet::default(), &mut texts);
        assert!(texts.are_open());
        let (known, found) = (NumberSet::from_ranges(vec![1..=5]), NumberSet::from_ranges(vec![2..=2]));
        texts.answer(vec![Some(TextAnswer { known, found })]);
        assert!(!texts.are_open());
        let of = |uid| test.of(&ViewRow { uid, ..ViewRow::default() }, &Mail::Row, &texts);
        assert_eq!([1, 2, 6].map(of), [Some(true), Some(false), None]);
    }
}
