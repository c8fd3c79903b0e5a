//! SORT and THREAD (RFC 5256, RFC 5957): data kept for each message, and the order at the end.

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};

use super::ViewRow;
use super::mail_keys::{Compared, MailKeys};
use super::threads::{ThreadMail, Threads};
use crate::command::{SortBy, SortCriterion, ThreadAlgorithm};

/// The use of a search's results: SORT or THREAD.
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

/// The value compared by one criterion.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Value {
    Number(i64),
    Text(Box<str>),
}

/// Memory of a message besides its texts, in bytes.
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

    /// True if messages are ordered by more than their rows.
    pub fn needs_keys(&self) -> bool {
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

    /// Memory of the results, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Sort { bytes, .. } | Self::Thread { bytes, .. } => *bytes,
            Self::Sorted(_) | Self::Threaded(_) => 0,
        }
    }

    /// Adds a message, by number or UID, that the search has found.
    pub fn add(&mut self, number: u32, row: &ViewRow, keys: &MailKeys<'_>) {
        match self {
            Self::Sort { criteria, mail, bytes } => {
                let values: Box<[Value]> = criteria.iter().map(|criterion| value(criterion.by, row, keys)).collect();
                let text = |value: &Value| if let Value::Text(text) = value { text.len() + 24 } else { 24 };
                *bytes += MAIL_BYTES + values.iter().map(text).sum::<usize>();
                mail.push((number, values));
            }
            Self::Thread { mail, bytes, hasher, .. } => {
                let found = threaded(number, row, keys, hasher);
                // With the containers and nodes that are made of it.
                *bytes += 3 * MAIL_BYTES + found.references.len() * (8 + MAIL_BYTES);
                mail.push(found);
            }
            Self::Sorted(_) | Self::Threaded(_) => {}
        }
    }

    /// Sorts the results after the last one was added.
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

/// Compares two messages by all criteria, then by number.
fn compare(criteria: &[SortCriterion], one: &(u32, Box<[Value]>), other: &(u32, Box<[Value]>)) -> Ordering {
    let each = criteria.iter().zip(one.1.iter().zip(&other.1));
    let order = each.map(|(criterion, (one, other))| if criterion.reverse { other.cmp(one) } else { one.cmp(other) });
    order.fold(Ordering::Equal, Ordering::then).then(one.0.cmp(&other.0))
}

fn value(by: SortBy, row: &ViewRow, keys: &MailKeys<'_>) -> Value {
    let text = |which| Value::Text(keys.text(which).into());
    match by {
        SortBy::Arrival => Value::Number(row.internal_date),
        SortBy::Size => Value::Number(row.size.map_or(0, |size| i64::try_from(size).unwrap_or(i64::MAX))),
        SortBy::Date => Value::Number(sent(row, keys)),
        SortBy::Subject => text(Compared::Subject),
        SortBy::Cc => text(Compared::Cc),
        SortBy::From => text(Compared::From),
        SortBy::To => text(Compared::To),
        SortBy::DisplayFrom => text(Compared::DisplayFrom),
        SortBy::DisplayTo => text(Compared::DisplayTo),
    }
}

/// The sent date, or the time of reception (RFC 5256 section 2.2).
fn sent(row: &ViewRow, keys: &MailKeys<'_>) -> i64 {
    keys.sent.unwrap_or(row.internal_date)
}

fn threaded(number: u32, row: &ViewRow, keys: &MailKeys<'_>, hasher: &RandomState) -> ThreadMail {
    let hash = |text: &str| hasher.hash_one(text).max(1);
    let hash_or_none = |text: &str| if text.is_empty() { 0 } else { hash(text) };
    ThreadMail {
        number,
        date: sent(row, keys),
        id: hash_or_none(&keys.id),
        references: keys.references.iter().map(|id| hash(id)).collect(),
        subject: hash_or_none(keys.text(Compared::Subject)),
        is_reply: keys.is_reply,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(criteria: &[(SortBy, bool)], headers: &[&str]) -> Vec<u32> {
        let mut order = Order::sort(criteria.iter().map(|&(by, reverse)| SortCriterion { by, reverse }).collect());
        for (header, number) in headers.iter().zip(1..) {
            let row = ViewRow { number, internal_date: 100 - i64::from(number), size: Some(7), ..ViewRow::default() };
            order.add(number, &row, &MailKeys::of_header(header.as_bytes()));
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
            order.add(1, &ViewRow::default(), &MailKeys::of_header(header.as_bytes()));
            assert!(order.bytes() < 1000);
            let mut order = Order::thread(ThreadAlgorithm::References);
            order.add(1, &ViewRow::default(), &MailKeys::of_header(header.as_bytes()));
            assert!(order.bytes() < 20_000);
            order.finish();
        }
    }
}
