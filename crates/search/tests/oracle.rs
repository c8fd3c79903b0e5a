//! The hits of many queries over the corpus, against a plain scan of the decoded text.
//!
//! The scan folds a message's fields, splits them at everything but letters and digits, and compares word by word. It
//! is slow and shares nothing with postings, segments and bitmaps. Queries are taken from the corpus, so each has
//! something to find.

use std::collections::BTreeSet;
use std::fs;

use posthaste_search::settings::{SearchSettings, add_headers};
use posthaste_search::text::{Extracted, Priority, TokenKind, extract_with, fold, tokens};
use posthaste_search::{SearchPlan, Searcher, Sort};

use crate::common::{corpus, hits, maildir, parsed, update};

/// The words of a text, by the plainest rule.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in fold(text).chars() {
        if is_spaceless(c) {
            words.extend([c.to_string(), String::new()]);
        } else if !c.is_alphanumeric() && !is_mark(c) {
            words.push(String::new());
        } else if let Some(word) = words.last_mut() {
            word.push(c);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Scripts without spaces end a word of any other script; what is written in them is tested with needles.
fn is_spaceless(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{11ff}' | '\u{1780}'..='\u{17ff}' | '\u{2e80}'..='\u{9fff}'
        | '\u{a960}'..='\u{a97f}' | '\u{ac00}'..='\u{d7ff}' | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ffdc}'
        | '\u{20000}'..='\u{3ffff}')
}

/// Vowel signs, which folding leaves in words.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{900}'..='\u{dff}') && !c.is_alphanumeric()
}

/// Words that the simple rule cuts as the index does: letters and digits of scripts with spaces, not too long.
fn is_plain(word: &str) -> bool {
    word.len() <= 60 && tokens(word).len() == 1 && tokens(word).iter().all(|(_, kind)| *kind == TokenKind::Word)
}

const LISTED: &str = "From: a@example.org\nSubject: to all\nList-Id: <users.example.org>\nPriority: normal\n\nx\n";
const URGENT: &str = "From: b@example.org\nSubject: now\nList-Id: <users.example.org>\nX-Priority: 1\n\ny\n";

struct Scanned {
    name: String,
    message: Extracted,
    body: Vec<String>,
    subject: Vec<String>,
    from: Vec<String>,
    to: Vec<String>,
    cc: Vec<String>,
    bcc: Vec<String>,
}

impl Scanned {
    fn any(&self) -> [&Vec<String>; 6] {
        [&self.body, &self.subject, &self.from, &self.to, &self.cc, &self.bcc]
    }
}

fn has_phrase(words: &[String], phrase: &[String]) -> bool {
    words.windows(phrase.len()).any(|window| window == phrase)
}

struct Oracle {
    all: Vec<Scanned>,
    searcher: Searcher,
    checked: usize,
}

impl Oracle {
    /// Pages of the newest, which are found without a look at all, are those of all that is found.
    fn check_newest(&self, query: &str) {
        let searcher = &self.searcher;
        let parsed = parsed(query);
        let found = searcher.find(&parsed).unwrap();
        for (offset, limit) in [(0, 1), (1, 3), (0, 100)] {
            for reverse in [false, true] {
                let expected = searcher.page(&found, Sort::Date, reverse, offset, limit).unwrap();
                let plan = SearchPlan { reverse, offset, limit: Some(limit), ..SearchPlan::default() };
                let page = plan.page(searcher, &parsed).unwrap();
                assert_eq!(page, expected, "{query} {offset} {limit} {reverse}");
            }
        }
    }

    fn check(&mut self, query: &str, expected: impl Fn(&Scanned) -> bool) {
        let expected: BTreeSet<String> =
            self.all.iter().filter(|message| expected(message)).map(|message| message.name.clone()).collect();
        assert_eq!(hits(&self.searcher, query), expected, "{query}");
        self.check_newest(query);
        self.checked += 1;
    }
}

#[test]
fn hits_are_those_of_a_plain_scan() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    maildir(mail.path(), "");
    let names = ["Content-Type", "Message-ID", "List-Id", "X-Priority"].map(str::to_owned);
    add_headers(index.path(), &names).unwrap();
    let headers = SearchSettings::load(index.path()).unwrap().headers;
    let mut all = Vec::new();
    // Not every corpus has mail of a list, or what is urgent.
    let own = [LISTED, URGENT].map(|text| text.as_bytes().to_vec());
    let messages = corpus().into_iter().map(|file| fs::read(file).unwrap()).chain(own);
    for (number, bytes) in messages.enumerate() {
        let name = format!("{number}.corpus.host");
        fs::write(mail.path().join(format!("cur/{name}:2,S")), &bytes).unwrap();
        let message = extract_with(&bytes, &headers);
        all.push(Scanned {
            name,
            body: words(&message.body),
            subject: words(&message.subject),
            from: words(&message.from),
            to: words(&message.to),
            cc: words(&message.cc),
            bcc: words(&message.bcc),
            message,
        });
    }
    assert!(all.iter().filter(|scanned: &&Scanned| scanned.message.traits.list).count() >= 2);
    let report = update(index.path(), mail.path());
    assert_eq!(report.added, all.len() as u64, "nothing is too broken to be indexed");
    let mut oracle = Oracle { all, searcher: Searcher::open(index.path()).unwrap(), checked: 0 };

    // Every n-th word, and what stands around it, of every k-th message.
    let mut samples: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    let step = if oracle.all.len() < 100 { 1 } else { 3 };
    for message in oracle.all.iter().step_by(step) {
        let subject: Vec<String> = message.subject.iter().skip(1).take(2).cloned().collect();
        for third in 0..3 {
            let body: Vec<String> = message.body.iter().skip(message.body.len() * third / 3).take(3).cloned().collect();
            if body.len() == 3 && body.iter().all(|word| is_plain(word)) {
                samples.push((body, subject.clone()));
                break;
            }
        }
    }
    assert!(samples.len() >= 8, "{}", samples.len());
    let other = |sample: usize| samples[(sample * 7 + 3) % samples.len()].0[0].clone();
    for (number, (body, subject)) in samples.iter().enumerate() {
        let (one, two) = (&body[0], &other(number));
        let has = |message: &Scanned, word: &String| message.any().iter().any(|field| field.contains(word));
        oracle.check(&format!("\"{one}\""), |message| has(message, one));
        oracle.check(&format!("body:\"{}\"", body.join(" ")), |message| has_phrase(&message.body, body));
        oracle.check(&format!("\"{}\"", body[..2].join("-")), |message| {
            message.any().iter().any(|field| has_phrase(field, &body[..2]))
        });
        // Phrases as parts of queries of each kind.
        let other_body = &samples[(number * 7 + 3) % samples.len()].0[..2];
        let [pair, pair_too] = [&body[..2], other_body].map(|words| format!("body:\"{}\"", words.join(" ")));
        let has_pair = |message: &Scanned| has_phrase(&message.body, &body[..2]);
        let has_other = |message: &Scanned| has_phrase(&message.body, other_body);
        oracle.check(&format!("{pair} or {pair_too}"), |message| has_pair(message) || has_other(message));
        oracle.check(&format!("{pair} xor {pair_too}"), |message| has_pair(message) != has_other(message));
        oracle.check(&format!("{pair} and not {pair_too}"), |message| has_pair(message) && !has_other(message));
        oracle.check(&format!("not {pair}"), |message| !has_pair(message));
        oracle.check(&format!("\"{one}\" and not \"{two}\""), |message| has(message, one) && !has(message, two));
        oracle.check(&format!("\"{one}\" or \"{two}\""), |message| has(message, one) || has(message, two));
        oracle.check(&format!("\"{one}\" xor \"{two}\""), |message| has(message, one) != has(message, two));
        if let Some(start) = one.get(..3).filter(|start| is_plain(start)) {
            oracle.check(&format!("body:{start}*"), |message| message.body.iter().any(|word| word.starts_with(start)));
            // A phrase whose last word goes on.
            let next: String = body[1].chars().take(2).collect();
            oracle.check(&format!("body:{one}.{next}*"), |message| {
                message.body.windows(2).any(|pair| pair[0] == *one && pair[1].starts_with(&next))
            });
        }
        if subject.len() == 2 && subject.iter().all(|word| is_plain(word)) {
            oracle
                .check(&format!("subject:\"{}\"", subject.join(" ")), |message| has_phrase(&message.subject, subject));
        }
    }
    let addresses: BTreeSet<Vec<String>> =
        oracle.all.iter().map(|message| message.from.clone()).filter(|from| from.len() > 1).collect();
    for from in addresses.iter().step_by(5).filter(|from| from.iter().all(|word| is_plain(word))) {
        let (last, domain) = (&from[from.len() - 2..], &from[from.len() - 1]);
        oracle.check(&format!("from:\"{}\"", from.join(".")), |message| has_phrase(&message.from, from));
        oracle.check(&format!("from:{}", last.join(".")), |message| has_phrase(&message.from, last));
        oracle.check(&format!("contact:{domain}"), |message| {
            [&message.from, &message.to, &message.cc, &message.bcc].iter().any(|field| field.contains(domain))
        });
    }
    for name in &names {
        let values = |message: &Scanned| -> Vec<String> {
            let values = message.message.headers.iter().filter(|(known, _)| known == name);
            values.map(|(_, value)| value.clone()).collect()
        };
        let samples: BTreeSet<String> = oracle.all.iter().flat_map(values).collect();
        assert!(!samples.is_empty(), "{name}");
        oracle.check(&format!("header:{name}:*"), |message| !values(message).is_empty());
        for value in samples.iter().step_by(samples.len().div_ceil(20)) {
            let found: Vec<String> = words(value).into_iter().take(3).filter(|word| is_plain(word)).collect();
            let (Some(first), [_, ..]) = (found.first(), found.as_slice()) else { continue };
            let has = |message: &Scanned, phrase: &[String]| {
                values(message).iter().any(|value| has_phrase(&words(value), phrase))
            };
            oracle.check(&format!("header:{name}:\"{}\"", found.join(" ")), |message| has(message, &found));
            oracle.check(&format!("header:{name}:{first}*"), |message| {
                values(message).iter().any(|value| words(value).iter().any(|word| word.starts_with(first)))
            });
            oracle.check(&format!("header:{name}:/^{first}/"), |message| {
                values(message).iter().any(|value| fold(value).starts_with(first))
            });
        }
    }
    for expression in ["^re:", "patch|fix", "\\[[a-z]+\\]", "v[0-9]+"] {
        let regex = regex::RegexBuilder::new(expression).case_insensitive(true).build().unwrap();
        oracle.check(&format!("subject:/{expression}/"), |message| regex.is_match(&fold(&message.message.subject)));
    }
    for expression in ["^th[aeiou]s?$", "^patch", "ing$", "^ab*o"] {
        let regex = regex::Regex::new(expression).unwrap();
        oracle.check(&format!("body:/{expression}/"), |message| message.body.iter().any(|word| regex.is_match(word)));
    }
    oracle.check("mime:text/html", |message| message.message.mimes.iter().any(|mime| mime == "text/html"));
    oracle.check("mime:image/*", |message| message.message.mimes.iter().any(|mime| mime.starts_with("image/")));
    oracle.check("flag:attach", |message| message.message.traits.attachment);
    oracle.check("flag:list", |message| message.message.traits.list);
    oracle.check("flag:list not prio:low", |message| {
        message.message.traits.list && message.message.priority != Priority::Low
    });
    for (name, priority) in [("low", Priority::Low), ("normal", Priority::Normal), ("high", Priority::High)] {
        oracle.check(&format!("prio:{name}"), |message| message.message.priority == priority);
    }
    oracle.check("date:2020..2024", |message| {
        message.message.date.is_some_and(|date| (1_577_836_800..1_735_689_600).contains(&date))
    });
    assert!(oracle.checked >= 60, "{} queries", oracle.checked);
    eprintln!("{} queries over {} messages", oracle.checked, oracle.all.len());
}
