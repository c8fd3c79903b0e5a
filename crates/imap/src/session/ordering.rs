//! SORT and THREAD (RFC 5256, RFC 5957): what is kept of each message, and the order at the end.

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};

use posthaste_message::mime::{DecodedAddress, Header, base_subject, in_reply_to, message_id, references};
use unicode_normalization::UnicodeNormalization;

use super::MailRow;
use super::threads::{ThreadMail, Threads};
use crate::command::{SortBy, SortCriterion, ThreadAlgorithm};

/// What becomes of the messages that a search finds.
#[derive(Debug)]
pub(super) enum Order {
    Sort {
        criteria: Vec<SortCriterion>,
        mail: Vec<(u32, Box<[Value]>)>,
        bytes: usize,
    },
    Thread {
        algorithm: ThreadAlgorithm,
        mail: Vec<ThreadMail>,
        bytes: usize,
        hasher: RandomState,
    },
    /// The answer to SORT.
    Sorted(Vec<u32>),
    /// The answer to THREAD.
    Threaded(Threads),
}

/// The value that one criterion compares.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Value {
    Number(i64),
    Text(Box<str>),
}

/// Octets of a value that are compared. A longer one is as good as others that begin like it.
const TEXT_BYTES_MAX: usize = 200;
/// Octets of a field that are looked at.
const FIELD_BYTES_MAX: usize = 4000;
/// Ids of one message that are looked at, the last ones: those of the nearest messages.
const REFERENCES_MAX: usize = 100;
/// Octets of a `References` that are looked at, the last ones.
const REFERENCES_BYTES_MAX: usize = 32 << 10;
/// Memory of a message beside its texts.
const MAIL_BYTES: usize = 96;

impl Order {
    pub fn sort(criteria: Vec<SortCriterion>) -> Self {
        Self::Sort { criteria, mail: Vec::new(), bytes: 0 }
    }

    pub fn thread(algorithm: ThreadAlgorithm) -> Self {
        Self::Thread { algorithm, mail: Vec::new(), bytes: 0, hasher: RandomState::new() }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Sort { .. } | Self::Sorted(_) => "SORT",
            Self::Thread { .. } | Self::Threaded(_) => "THREAD",
        }
    }

    pub fn needs_header(&self) -> bool {
        match self {
            Self::Sort { criteria, .. } => {
                criteria.iter().any(|criterion| !matches!(criterion.by, SortBy::Arrival | SortBy::Size))
            }
            _ => true,
        }
    }

    pub fn needs_size(&self) -> bool {
        matches!(self, Self::Sort { criteria, .. } if criteria.iter().any(|criterion| criterion.by == SortBy::Size))
    }

    /// Memory of what was found.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Sort { bytes, .. } | Self::Thread { bytes, .. } => *bytes,
            Self::Sorted(_) | Self::Threaded(_) => 0,
        }
    }

    /// A message of this number or UID was found.
    pub fn add(&mut self, number: u32, row: &MailRow, header: &Header<'_>) {
        match self {
            Self::Sort { criteria, mail, bytes } => {
                let values: Box<[Value]> = criteria.iter().map(|criterion| value(criterion.by, row, header)).collect();
                let text = |value: &Value| if let Value::Text(text) = value { text.len() + 24 } else { 24 };
                *bytes += MAIL_BYTES + values.iter().map(text).sum::<usize>();
                mail.push((number, values));
            }
            Self::Thread { mail, bytes, hasher, .. } => {
                let found = threaded(number, row, header, hasher);
                // With the containers and nodes that are made of it.
                *bytes += 3 * MAIL_BYTES + found.references.len() * (8 + MAIL_BYTES);
                mail.push(found);
            }
            Self::Sorted(_) | Self::Threaded(_) => {}
        }
    }

    /// All are found: puts them in order.
    pub fn finish(&mut self) {
        *self = match self {
            Self::Sort { criteria, mail, .. } => {
                mail.sort_by(|one, other| compare(criteria, one, other));
                Self::Sorted(mail.iter().map(|(number, _)| *number).collect())
            }
            Self::Thread { algorithm, mail, .. } => Self::Threaded(match algorithm {
                ThreadAlgorithm::OrderedSubject => Threads::by_subject(mail),
                ThreadAlgorithm::References => Threads::by_references(mail),
            }),
            Self::Sorted(_) | Self::Threaded(_) => return,
        };
    }
}

/// Those that are the same in all criteria stay in the order of their numbers.
fn compare(criteria: &[SortCriterion], one: &(u32, Box<[Value]>), other: &(u32, Box<[Value]>)) -> Ordering {
    let each = criteria.iter().zip(one.1.iter().zip(&other.1));
    let order = each.map(|(criterion, (one, other))| if criterion.reverse { other.cmp(one) } else { one.cmp(other) });
    order.fold(Ordering::Equal, Ordering::then).then(one.0.cmp(&other.0))
}

fn value(by: SortBy, row: &MailRow, header: &Header<'_>) -> Value {
    let address = |name: &str| Value::Text(collated(&first_mailbox(header, name)));
    match by {
        SortBy::Arrival => Value::Number(row.internal_date),
        SortBy::Size => Value::Number(row.size.map_or(0, |size| i64::try_from(size).unwrap_or(i64::MAX))),
        SortBy::Date => Value::Number(sent(row, header)),
        SortBy::Subject => Value::Text(collated(&base_subject(&subject(header)).text)),
        SortBy::Cc => address("Cc"),
        SortBy::From => address("From"),
        SortBy::To => address("To"),
        SortBy::DisplayFrom => Value::Text(collated(&display(header, "From"))),
        SortBy::DisplayTo => Value::Text(collated(&display(header, "To"))),
    }
}

/// The sent date, or the time of reception (RFC 5256 section 2.2).
fn sent(row: &MailRow, header: &Header<'_>) -> i64 {
    header.first("Date").and_then(|field| field.date()).map_or(row.internal_date, |date| date.unix_secs())
}

fn subject(header: &Header<'_>) -> String {
    let text = header.first("Subject").map(|field| cut_field(field.value));
    let text = text.map(|value| posthaste_message::mime::decode_text(value, None)).unwrap_or_default();
    text.chars().take(FIELD_BYTES_MAX / 4).collect()
}

fn cut_field(value: &[u8]) -> &[u8] {
    &value[..value.len().min(FIELD_BYTES_MAX)]
}

fn first_address(header: &Header<'_>, name: &str) -> Option<DecodedAddress> {
    let value = cut_field(header.first(name)?.value);
    posthaste_message::mime::Addresses::new(value, None).next()
}

/// The local part of the first address, or the name of the first group.
fn first_mailbox(header: &Header<'_>, name: &str) -> String {
    match first_address(header, name) {
        Some(DecodedAddress::Mailbox { address: Some(address), .. }) => {
            address.rsplit_once('@').map_or(address.as_str(), |(local, _)| local).to_owned()
        }
        Some(DecodedAddress::Group(name)) => name,
        _ => String::new(),
    }
}

/// The display name of the first address; without one, the address (RFC 5957 section 3).
fn display(header: &Header<'_>, name: &str) -> String {
    match first_address(header, name) {
        Some(DecodedAddress::Mailbox { name: Some(name), .. } | DecodedAddress::Group(name)) => name,
        Some(DecodedAddress::Mailbox { address, .. }) => address.unwrap_or_default(),
        _ => String::new(),
    }
}

/// A text as i;unicode-casemap compares it (RFC 5051).
fn collated(text: &str) -> Box<str> {
    let mut out = String::new();
    for character in text.chars().flat_map(char::to_uppercase).nfkd() {
        if out.len() + character.len_utf8() > TEXT_BYTES_MAX {
            break;
        }
        out.push(character);
    }
    out.into_boxed_str()
}

fn threaded(number: u32, row: &MailRow, header: &Header<'_>, hasher: &RandomState) -> ThreadMail {
    let hash = |id: &String| hasher.hash_one(id).max(1);
    let base = base_subject(&subject(header));
    let subject = collated(&base.text);
    let value = header.first("References").map(|field| field.value).unwrap_or_default();
    let cut = &value[value.len().saturating_sub(REFERENCES_BYTES_MAX)..];
    let mut ids = references(cut);
    if ids.is_empty() {
        let value = header.first("In-Reply-To").map(|field| cut_field(field.value));
        ids = value.map(in_reply_to).unwrap_or_default();
        ids.truncate(1);
    }
    let ids = &ids[ids.len().saturating_sub(REFERENCES_MAX)..];
    let id = header.first("Message-ID").and_then(|field| message_id(cut_field(field.value)));
    ThreadMail {
        number,
        date: sent(row, header),
        id: id.as_ref().map_or(0, hash),
        references: ids.iter().map(hash).collect(),
        subject: if subject.is_empty() { 0 } else { hasher.hash_one(&*subject).max(1) },
        is_reply: base.is_reply,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(criteria: &[(SortBy, bool)], headers: &[&str]) -> Vec<u32> {
        let mut order = Order::sort(criteria.iter().map(|&(by, reverse)| SortCriterion { by, reverse }).collect());
        for (header, number) in headers.iter().zip(1..) {
            let row = MailRow { number, internal_date: 100 - i64::from(number), size: Some(7), ..MailRow::default() };
            order.add(number, &row, &Header::new(header.as_bytes()));
        }
        order.finish();
        let Order::Sorted(numbers) = order else { panic!("{order:?}") };
        numbers
    }

    #[test]
    fn messages_are_in_the_order_of_their_keys() {
        use SortBy::{Arrival, Cc, Date, DisplayFrom, DisplayTo, From, Size, Subject, To};
        let subjects = ["Subject: Re: b\r\n\r\n", "subject: A\r\n\r\n", "Subject: =?utf-8?q?=C3=A4?=\r\n\r\n", "\r\n"];
        assert_eq!(sorted(&[(Subject, false)], &subjects), [4, 2, 3, 1]);
        assert_eq!(sorted(&[(Subject, true)], &subjects), [1, 3, 2, 4]);
        assert_eq!(sorted(&[(Arrival, false)], &subjects), [4, 3, 2, 1]);
        assert_eq!(sorted(&[(Size, true), (To, false)], &subjects), [1, 2, 3, 4], "ties are in the order of numbers");
        let dates = [
            "Date: Thu, 1 Jan 1970 01:00:30 +0100\r\n\r\n",
            "Date: Thu, 1 Jan 1970 00:00:20 +0000\r\n\r\n",
            "Date: none\r\n\r\n",
        ];
        assert_eq!(sorted(&[(Date, false)], &dates), [2, 1, 3]);
        let people = [
            "From: Zoe <bob@x.example>\r\nCc: g: b@c;\r\n\r\n",
            "From: ann@y.example\r\nCc: A@z\r\n\r\n",
            "From: \"carl\" <Bob@a.example>\r\nCc:\r\n\r\n",
        ];
        assert_eq!(sorted(&[(From, false)], &people), [2, 1, 3]);
        assert_eq!(sorted(&[(From, false), (DisplayFrom, false)], &people), [2, 3, 1]);
        assert_eq!(sorted(&[(DisplayFrom, false)], &people), [2, 3, 1]);
        assert_eq!(sorted(&[(Cc, false)], &people), [3, 2, 1]);
        assert_eq!(sorted(&[(DisplayTo, true)], &people), [1, 2, 3]);
    }

    #[test]
    fn long_fields_cost_no_more_than_short_ones() {
        let subject = format!("Subject: {}{}\r\n\r\n", "[fwd: ".repeat(200_000), "]".repeat(200_000));
        let to = format!("To: {}\r\n\r\n", "a@b, ".repeat(200_000));
        let ids = format!("References: {}\r\n\r\n", "<a@b> ".repeat(200_000));
        for header in [&subject, &to, &ids] {
            let mut order = Order::sort(vec![
                SortCriterion { by: SortBy::Subject, reverse: false },
                SortCriterion { by: SortBy::To, reverse: false },
            ]);
            order.add(1, &MailRow::default(), &Header::new(header.as_bytes()));
            assert!(order.bytes() < 1000);
            let mut order = Order::thread(ThreadAlgorithm::References);
            order.add(1, &MailRow::default(), &Header::new(header.as_bytes()));
            assert!(order.bytes() < 20_000);
            order.finish();
        }
    }
}
