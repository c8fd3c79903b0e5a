//! Thousands of generated queries: an index that has a history finds what a scan of the same mail finds.
//!
//! The scan indexes everything in one go, so both share the query engine but not what came before: additions in several runs, moves, changed flags, removals,
//! a merge. Queries are made of words, addresses and fields of the mail itself, joined at random, so most find something.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use posthaste_random::Random;
use posthaste_search::query::Query;
use posthaste_search::text::{Extracted, extract, tokens};
use posthaste_search::{Searcher, UpdateOptions, query, scan};

use crate::common::{base_name, corpus, maildir, update};

const QUERIES: usize = 1500;
const SEED: u64 = 1;

/// Values that queries are made of, by field.
#[derive(Default)]
struct Values {
    terms: Vec<String>,
}

impl Values {
    fn take(&mut self, message: &Extracted) {
        let quoted = |text: &str| text.replace('"', "\"\"");
        let is_operator = |word: &str| ["and", "or", "xor", "not"].contains(&word);
        let is_plain = |word: &&String| word.chars().all(char::is_alphanumeric) && !is_operator(word);
        for (field, text) in [
            ("", &message.body),
            ("subject:", &message.subject),
            ("from:", &message.from),
            ("to:", &message.to),
            ("recip:", &message.cc),
            ("list:", &message.list),
        ] {
            let words: Vec<String> = tokens(text).into_iter().map(|(word, _)| word).collect();
            let words: Vec<&String> = words.iter().filter(is_plain).take(60).collect();
            for pair in words.chunks(7) {
                self.terms.push(format!("{field}{}", pair[0]));
                let start: String = pair[0].chars().take(3).collect();
                self.terms.push(format!("{field}{start}*"));
                if let [first, second, ..] = pair {
                    self.terms.push(format!("{field}\"{first} {second}\""));
                }
            }
        }
        if !message.message_id.is_empty() {
            self.terms.push(format!("id:\"{}\"", quoted(&message.message_id)));
            self.terms.push(format!("related:\"{}\"", quoted(&message.message_id)));
        }
    }

    fn leaf(&self, random: &mut Random) -> String {
        let fixed = [
            "flag:unread",
            "flag:new",
            "flag:seen",
            "flag:attach",
            "flag:list",
            "flag:replied",
            "prio:high",
            "maildir:/.Sent",
            "maildir:/",
            "date:2010..",
            "date:..2015",
            "date:2020",
            "size:>20k",
            "size:..2k",
            "mime:text/html",
            "mime:image/*",
            "file:*",
            "subject:/^re/",
            "from:/[aeiou]{2}/",
            "body:/qu.ck/",
            "*",
            "list:*",
            "subject:*",
            "is:signed",
        ];
        match random.below(4) {
            0 => fixed[random.below(fixed.len() as u64) as usize].to_owned(),
            _ => self.terms[random.below(self.terms.len() as u64) as usize].clone(),
        }
    }

    fn query(&self, random: &mut Random, depth: u32) -> String {
        if depth == 0 || random.one_in(3) {
            return self.leaf(random);
        }
        let (left, right) = (self.query(random, depth - 1), self.query(random, depth - 1));
        match random.below(7) {
            0 => format!("{left} {right}"),
            1 => format!("({left}) and not ({right})"),
            2 => format!("({left}) or ({right})"),
            3 => format!("({left}) xor ({right})"),
            4 => format!("not ({left})"),
            5 => format!("thread:{{{left}}} ({right})"),
            _ => format!("({left}) {right}"),
        }
    }
}

/// With the names of all messages, which are looked up once.
struct Named {
    searcher: Searcher,
    names: HashMap<u32, String>,
}

impl Named {
    fn new(searcher: Searcher) -> Self {
        let numbers: Vec<u32> = searcher.find(&Query::All).unwrap().iter().collect();
        let messages = searcher.messages(&numbers).unwrap();
        let names = messages.iter().map(|message| (message.number, base_name(&message.path))).collect();
        Self { searcher, names }
    }

    fn hits(&self, text: &str) -> BTreeSet<&str> {
        let now = "2025-06-01T12:00:00+00:00[+00:00]".parse().unwrap();
        let query = query::parse(text, &now).unwrap_or_else(|error| panic!("{}", error.show(text)));
        self.searcher.find(&query).unwrap().iter().map(|number| self.names[&number].as_str()).collect()
    }
}

#[test]
fn an_index_with_a_history_finds_what_a_scan_finds() {
    let (mail, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &str| mail.path().join(name);
    maildir(mail.path(), "");
    maildir(mail.path(), ".Sent");
    let files = corpus();
    let mut values = Values::default();
    let copy = |from: &Path, to: &str| fs::copy(from, at(to)).unwrap();
    // Three runs of additions, with copies of some, and between them all that happens to mail.
    for (run, part) in files.chunks(files.len().div_ceil(3)).enumerate() {
        for (number, file) in part.iter().enumerate() {
            values.take(&extract(&fs::read(file).unwrap()));
            let name = match number % 4 {
                0 => format!("new/{run}-{number}.h"),
                1 => format!(".Sent/cur/{run}-{number}.h:2,RS"),
                _ => format!("cur/{run}-{number}.h:2,S"),
            };
            copy(file, &name);
            if number % 11 == 0 {
                copy(file, &format!("cur/copy-{run}-{number}.h:2,"));
            }
            match number % 7 {
                // A moved one, one with other flags, and one that is gone, of the run before.
                0 if run > 0 => drop(fs::rename(
                    at(&format!("new/{}-{number}.h", run - 1)),
                    at(&format!(".Sent/new/{}-{number}.h", run - 1)),
                )),
                1 if run > 0 => drop(fs::rename(
                    at(&format!("cur/{}-{number}.h:2,S", run - 1)),
                    at(&format!("cur/{}-{number}.h:2,F", run - 1)),
                )),
                2 if run > 0 => drop(fs::remove_file(at(&format!("cur/{}-{number}.h:2,S", run - 1)))),
                _ => {}
            }
        }
        // Only new stamps of directories say that something happened.
        let options = UpdateOptions { list_all: true, ..UpdateOptions::default() };
        let mut indexer = posthaste_search::Indexer::open(index.path(), None).unwrap();
        let report = indexer.update(&[mail.path().to_owned()], &options, &|_| {}).unwrap();
        assert!(report.troubles.is_empty(), "{:?}", report.troubles);
    }
    assert_eq!(update(index.path(), mail.path()).added, 0);

    let indexed = Searcher::open(index.path()).unwrap();
    let (scanned, _) = scan(&[mail.path().to_owned()], &[], &UpdateOptions::default(), &|_| {}).unwrap();
    assert_eq!(indexed.directory().present, scanned.directory().present);
    let (indexed, scanned) = (Named::new(indexed), Named::new(scanned));
    let mut random = Random::new(SEED);
    let (mut with_hits, mut seen) = (0, BTreeSet::new());
    for _ in 0..QUERIES {
        let query = values.query(&mut random, 3);
        let found = indexed.hits(&query);
        assert_eq!(found, scanned.hits(&query), "{query}");
        with_hits += usize::from(!found.is_empty());
        seen.insert(query);
    }
    assert!(with_hits > QUERIES / 4 && seen.len() > QUERIES / 2, "{with_hits} of {} found something", seen.len());
}
