//! SEARCH with an index that knows some messages says the same as without one.

use posthaste_imap::session::{ImapConfig, TextAnswer, TextKey};
use posthaste_mailstore::{FakeMessage, MailboxView, MessageFlags, MessageSet, RowOptions};
use posthaste_text::MailText;
use proptest::prelude::*;

use crate::common::Host;

const MESSAGES: usize = 40;

fn mail(n: usize) -> String {
    let word = ["rye", "wheat", "spelt", "barley bread"][n % 4];
    format!(
        "From: Ann{} <ann@example.org>\r\nSubject: {word} {n}\r\nX-Tuid: t{n}\r\n\r\nbread {}\r\n",
        n % 3,
        ["a", "rye", "b c"][n % 3]
    )
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(done) => done,
        std::task::Poll::Pending => panic!("a store in memory waits"),
    }
}

/// Knows the messages whose bit is set; of the header no trace fields.
fn index(view: &dyn MailboxView, key: &TextKey, knows: u64) -> Option<TextAnswer> {
    let mut answer = TextAnswer::default();
    let mut rows = view.rows(&MessageSet::all(), RowOptions::default());
    let mut all = Vec::new();
    loop {
        let some = now(rows.next()).unwrap();
        if some.is_empty() {
            break;
        }
        all.extend(some);
    }
    for row in all.into_iter().filter(|row| knows >> (row.number % 64) & 1 == 1) {
        let body = now(view.body(row.uid)).unwrap();
        let octets = now(body.read(0, body.len())).unwrap();
        answer.known.push(row.uid.get());
        if MailText::of_message(&octets).has(&key.field, &key.needle).unwrap() {
            answer.found.push(row.uid.get());
        }
    }
    Some(answer)
}

/// The answers, and how many messages were read for them.
fn answers(searches: &[String], knows: Option<u64>) -> (String, usize) {
    let mut host = Host::new(ImapConfig::new("mail.example.org"), true);
    host.store.create("Many");
    for n in 0..MESSAGES {
        let flags = if n % 5 == 0 { MessageFlags::SEEN } else { MessageFlags::default() };
        host.store.add("Many", FakeMessage { flags, ..FakeMessage::new(mail(n)) });
    }
    if let Some(knows) = knows {
        host.index = Some(Box::new(move |view, key| index(view, key, knows)));
    }
    host.read(b"a LOGIN ann secret\r\nb SELECT Many\r\n");
    host.output.clear();
    for search in searches {
        host.read(format!("c {search}\r\n").as_bytes());
    }
    (String::from_utf8(host.output).unwrap(), host.reads)
}

fn text() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["rye", "bread", "\"barley br\"", "\"ye b\"", "\"c.\"", "t1", "ann", "none", "\"\"", "7"])
}

fn key() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        text().prop_map(|text| format!("TEXT {text}")),
        text().prop_map(|text| format!("BODY {text}")),
        text().prop_map(|text| format!("SUBJECT {text}")),
        text().prop_map(|text| format!("FROM {text}")),
        text().prop_map(|text| format!("HEADER X-Tuid {text}")),
        Just("UNSEEN".to_owned()),
        Just("7:20".to_owned()),
        Just("SENTSINCE 1-Jan-2020".to_owned()),
    ];
    leaf.prop_recursive(3, 12, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|key| format!("NOT {key}")),
            (inner.clone(), inner.clone()).prop_map(|(one, other)| format!("OR {one} {other}")),
            (inner.clone(), inner).prop_map(|(one, other)| format!("({one} {other})")),
        ]
    })
}

proptest! {
    #[test]
    fn an_answer_never_depends_on_how_far_the_index_is(
        keys in prop::collection::vec(key(), 1..4),
        knows in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
    ) {
        let ways = ["SEARCH", "UID SEARCH RETURN (ALL COUNT)", "SORT (SUBJECT) UTF-8"];
        let searches: Vec<String> = keys.iter().zip(ways).map(|(key, way)| format!("{way} {key}")).collect();
        let (read, _) = answers(&searches, None);
        prop_assert!(!read.contains(" BAD "), "{}", read);
        prop_assert_eq!(answers(&searches, Some(knows)).0, read, "{:?}", searches);
    }
}

/// Decision 34: the rest of the keys is decided by rows, the cheaper side first.
#[test]
fn messages_that_the_index_knows_are_not_read() {
    for search in ["SEARCH TEXT bread", "SEARCH UNSEEN NOT BODY rye", "SEARCH OR SUBJECT rye HEADER X-Tuid t1"] {
        let search = [search.to_owned()];
        let (expected, all) = answers(&search, None);
        let (with_index, read) = answers(&search, Some(u64::MAX));
        assert_eq!(with_index, expected);
        assert!(all >= MESSAGES / 2 && read <= 16, "{search:?}: {read} of {all}");
        // The newest few are not indexed yet.
        let (_, read) = answers(&search, Some(!(0b111 << (MESSAGES - 2))));
        assert!(read <= 16 + 6, "{search:?}: {read}");
    }
    // No text is looked for.
    assert_eq!(answers(&["SEARCH UNSEEN 1:5".to_owned()], Some(u64::MAX)).1, 0);
}

#[test]
fn an_index_that_says_nothing_is_asked_once() {
    use std::cell::Cell;
    use std::rc::Rc;
    let mut host = Host::new(ImapConfig::new("mail.example.org"), true);
    host.store.create("Many");
    for n in 0..MESSAGES {
        host.store.add("Many", FakeMessage::new(mail(n)));
    }
    let asked = Rc::new(Cell::new(0));
    let count = Rc::clone(&asked);
    host.index = Some(Box::new(move |_, _| {
        count.set(count.get() + 1);
        None
    }));
    host.read(b"a LOGIN ann secret\r\nb SELECT Many\r\n");
    host.output.clear();
    host.read(b"c SEARCH BODY bread\r\n");
    assert_eq!(asked.get(), 1);
    let all: Vec<String> = (1..=MESSAGES).map(|n| n.to_string()).collect();
    assert!(String::from_utf8(host.output).unwrap().starts_with(&format!("* SEARCH {}\r\n", all.join(" "))));
}
