//! Header fields that the settings name are indexed, and searched as `header:NAME:value`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use posthaste_search::query::parse;
use posthaste_search::settings::{SearchSettings, add_headers};
use posthaste_search::text::extract_with;
use posthaste_search::{
    IndexError, Indexer, Report, Searcher, Stop, UpdateOptions, WatchEvent, WatchOptions, nothing_to_do, scan, verify,
    watch,
};

use crate::common::{hits, maildir};

const MAIL: [(&str, &str); 6] = [
    ("ham", "X-Spam-Score: -1.5\nX-Spam-Flag:\n"),
    ("spam", "x-spam-score: 7.25 / 15\nX-Spam-Status: Yes, score=7.25 required=5.0\n"),
    ("edge", "X-Spam-Score: 5\nX-Note: rye bread and more\nX-Note: =?utf-8?Q?J=C3=BCrgen_backt?=\n"),
    ("words", "X-Spam-Score: none\nX-Note: bread\n rye\n"),
    ("none", "Subject: X-Note: rye bread\n"),
    ("raw", "X-Note: J\u{fc}rgen\n"),
];

fn mail(dir: &Path) {
    maildir(dir, "");
    for (name, header) in MAIL {
        // The last one in Latin-1, as it should not be.
        let bytes: Vec<u8> = match name {
            "raw" => header.chars().map(|c| c as u8).collect(),
            _ => header.into(),
        };
        fs::write(dir.join("cur").join(format!("{name}:2,S")), [b"From: a@x.example\n", &*bytes, b"\nbody\n"].concat())
            .unwrap();
    }
    // Times of just now are not believed.
    let then = SystemTime::now() - Duration::from_secs(3600);
    for sub in ["new", "cur"] {
        fs::File::open(dir.join(sub)).unwrap().set_modified(then).unwrap();
    }
}

fn update(index: &Path, mail: &Path) -> (Report, Option<String>) {
    let mut indexer = Indexer::open_to_update(index, None).unwrap();
    let why = indexer.rebuilds_because();
    (indexer.update(&[mail.to_owned()], &UpdateOptions::default(), &|_| {}).unwrap(), why)
}

fn check(searcher: &Searcher, query: &str, expected: &str) {
    let expected: BTreeSet<String> = expected.split_whitespace().map(str::to_owned).collect();
    assert_eq!(hits(searcher, query), expected, "{query}");
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

const ASKED: [(&str, &str); 22] = [
    ("header:X-Note:rye", "edge words"),
    ("header:x-note:RYE", "edge words"),
    ("header:X-Note:\"rye bread\"", "edge"),
    ("header:X-Note:\"more Jürgen\"", ""),
    ("header:X-Note:(jurgen or rye)", "edge words raw"),
    ("header:X-Note:jürgen", "edge raw"),
    ("header:X-Note:bre*", "edge words"),
    ("header:X-Note:/^rye.*more$/", "edge"),
    ("header:X-Note:/^bread rye$/", "words"),
    ("header:X-Note:*", "edge words raw"),
    ("-header:X-Note:*", "ham none spam"),
    ("header:X-Spam-Flag:*", "ham"),
    ("header:X-Spam-Score:*", "edge ham spam words"),
    ("header:X-Spam-Score:>5", "spam"),
    ("header:X-Spam-Score:>=5", "edge spam"),
    ("header:X-Spam-Score:<5", "ham"),
    ("header:X-Spam-Score:<=-1.5", "ham"),
    ("header:X-Spam-Score:-2..5.0", "edge ham"),
    ("header:X-Spam-Score:5..", "edge spam"),
    ("header:X-Spam-Score:..5 -header:X-Note:bread", "ham"),
    ("header:X-Spam-Status:>7.2", "spam"),
    ("thread:{header:X-Spam-Flag:*}", "ham"),
];

const ALL: [&str; 4] = ["X-Note", "X-Spam-Score", "X-Spam-Flag", "X-Spam-Status"];

#[test]
fn headers_that_the_settings_name_are_searched() {
    let (maildir, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    mail(maildir.path());
    add_headers(index.path(), &names(&ALL)).unwrap();
    assert_eq!(update(index.path(), maildir.path()).1, None, "a first index has them at once");
    let searcher = Searcher::open(index.path()).unwrap();
    ASKED.iter().for_each(|(query, expected)| check(&searcher, query, expected));
    // New mail, and what is merged or removed, as all else.
    fs::remove_file(maildir.path().join("cur/spam:2,S")).unwrap();
    for number in 0..12 {
        let path = maildir.path().join(format!("new/{number}"));
        fs::write(path, format!("X-Spam-Score: {number}.5\n\nx\n")).unwrap();
        update(index.path(), maildir.path());
    }
    let searcher = Searcher::open(index.path()).unwrap();
    check(&searcher, "header:X-Spam-Score:>=10", "10 11");
    check(&searcher, "header:X-Spam-Status:*", "");
    assert_eq!(verify(index.path(), &|| {}).unwrap().damage, []);
}

#[test]
fn a_scan_reads_the_headers_that_are_asked_for() {
    let maildir = tempfile::tempdir().unwrap();
    mail(maildir.path());
    for (query, expected) in ASKED {
        let parsed = parse(query, &jiff::Zoned::now()).unwrap();
        let headers: Vec<String> = parsed.headers().into_iter().map(str::to_owned).collect();
        let (searcher, _) = scan(&[maildir.path().to_owned()], &headers, &UpdateOptions::default(), &|_| {}).unwrap();
        check(&searcher, query, expected);
    }
}

#[test]
fn other_headers_in_the_settings_build_the_index_again() {
    let (maildir, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    mail(maildir.path());
    update(index.path(), maildir.path());
    let roots = [maildir.path().to_owned()];
    let ask = |query: &str| {
        let searcher = Searcher::open(index.path()).unwrap();
        searcher.find(&parse(query, &jiff::Zoned::now()).unwrap()).map(|found| found.count())
    };
    let error = ask("rye or thread:{header:X-Note:rye}").unwrap_err();
    assert!(matches!(&error, IndexError::Header { name, .. } if name == "X-Note"), "{error}");
    assert!(error.to_string().contains("index --header X-Note"), "{error}");
    {
        let searcher = Searcher::open(index.path()).unwrap();
        let all: Vec<u32> = searcher.find(&posthaste_search::query::Query::All).unwrap().iter().collect();
        let ids: Vec<(u32, String)> = all.iter().map(|&number| (number, String::new())).collect();
        Indexer::open(index.path(), None).unwrap().tag(&ids[..1], &names(&["todo"]), &[]).unwrap();
    }

    add_headers(index.path(), &names(&["X-Note"])).unwrap();
    let verdict = verify(index.path(), &|| {}).unwrap();
    assert_eq!((verdict.damage.len(), verdict.unfinished.len()), (0, 1), "{verdict:?}");
    assert!(nothing_to_do(index.path(), &roots, &UpdateOptions::default()).is_none());
    // Who only writes tags goes on with the index as it is.
    assert!(!Indexer::open(index.path(), None).unwrap().is_rebuilding());
    let (report, why) = update(index.path(), maildir.path());
    assert!(why.is_some_and(|why| why.contains("X-Note")), "it is said");
    assert_eq!((report.added, ask("header:X-Note:rye").unwrap(), ask("tag:todo").unwrap()), (6, 2, 1));
    assert!(nothing_to_do(index.path(), &roots, &UpdateOptions::default()).is_some());
    assert_eq!(verify(index.path(), &|| {}).unwrap().unfinished, Vec::<String>::new());

    // Another case and order are the same headers.
    fs::write(index.path().join("config.toml"), "headers = [\"x-note\"]\n").unwrap();
    assert_eq!(update(index.path(), maildir.path()).1, None);
    // A watch that begins takes them over too; none are none.
    fs::write(index.path().join("config.toml"), "").unwrap();
    let stop = Stop::new().unwrap();
    let mut whys = Vec::new();
    let mut tell = |event: WatchEvent<'_>| match event {
        WatchEvent::Rebuilding(why) => whys.push(why.to_owned()),
        _ => stop.stop(),
    };
    watch(index.path(), &[], &WatchOptions::default(), &stop, &|| {}, &mut tell).unwrap();
    assert!(whys.len() == 1 && whys[0].contains("no headers any more"), "{whys:?}");
    assert!(ask("header:X-Note:rye").is_err());
}

#[test]
fn rules_for_new_mail_may_ask_for_headers() {
    let (maildir, index) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    mail(maildir.path());
    let rules = "[[new.rule]]\nquery = \"header:X-Spam-Score:>5\"\nadd = [\"spam\"]\n";
    fs::write(index.path().join("config.toml"), rules).unwrap();
    let error = SearchSettings::check(index.path()).unwrap_err().to_string();
    assert!(error.contains("line 2: the header X-Spam-Score is not indexed"), "{error}");
    add_headers(index.path(), &names(&["X-Spam-Score"])).unwrap();
    SearchSettings::check(index.path()).unwrap();
    update(index.path(), maildir.path());
    check(&Searcher::open(index.path()).unwrap(), "tag:spam", "spam");
    // A watch that runs is told of a header before its index has it: the mail comes in, and its tags with the next run that has.
    let both = fs::read_to_string(index.path().join("config.toml")).unwrap();
    let both = both.replace("headers = [", "headers = [\"X-Note\", ").replace("X-Spam-Score:>5", "X-Note:late");
    fs::write(index.path().join("config.toml"), both).unwrap();
    fs::write(maildir.path().join("new/late"), "X-Note: late\n\nx\n").unwrap();
    let roots = [maildir.path().to_owned()];
    let report = Indexer::open(index.path(), None).unwrap().update(&roots, &UpdateOptions::default(), &|_| {}).unwrap();
    assert_eq!((report.added, report.troubles.len()), (1, 1), "{report:?}");
}

#[test]
fn names_are_added_to_the_settings_as_a_person_would() {
    let check = |before: &str, add: &[&str], after: &str| {
        let index = tempfile::tempdir().unwrap();
        let path = index.path().join("config.toml");
        fs::write(&path, before).unwrap();
        add_headers(index.path(), &names(add)).unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), after);
        let headers = SearchSettings::load(index.path()).unwrap().headers;
        assert!(add.iter().all(|name| headers.known_as(name).is_some()), "{headers}");
    };
    check("", &["X-A", "X-B"], "headers = [\"X-A\", \"X-B\"]\n");
    check("[user]\nname = \"Ann\"\n", &["X-A"], "headers = [\"X-A\"]\n[user]\nname = \"Ann\"\n");
    check("headers = []\n", &["X-A"], "headers = [\"X-A\"]\n");
    check("headers = [ # none\n]\n", &["X-A"], "headers = [\"X-A\" # none\n]\n");
    check(
        "# mine\nheaders = [\n  \"X-A\", # first\n]\n[new]\n",
        &["x-a", "X-B"],
        "# mine\nheaders = [\n  \"X-A\", \"X-B\", # first\n]\n[new]\n",
    );
    check("headers = ['X-A']\n", &["X-A"], "headers = ['X-A']\n");
    let index = tempfile::tempdir().unwrap();
    let error = add_headers(index.path(), &names(&["X A"])).unwrap_err().to_string();
    assert!(error.contains("not a header name") && !index.path().join("config.toml").exists(), "{error}");
}

#[test]
fn values_are_those_of_all_fields_of_that_name() {
    let message = "To: a@x.example\nX-A: one\nx-a: =?utf-8?B?endlaQ==?=\nX-B:\nX-A:\n three\n four\n\nX-A: five\n";
    let index = tempfile::tempdir().unwrap();
    add_headers(index.path(), &names(&["X-A", "X-B"])).unwrap();
    let wanted = SearchSettings::load(index.path()).unwrap().headers;
    let found = extract_with(message.as_bytes(), &wanted);
    let expected = [("X-A", "one"), ("X-A", "zwei"), ("X-B", ""), ("X-A", "three four")];
    assert_eq!(found.headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let long = format!("X-A: {}\n\nx\n", "word ".repeat(20_000));
    let found = extract_with(long.as_bytes(), &wanted);
    assert_eq!((found.headers[0].1.len(), found.problem), (65_536, Some("an indexed header of more than 64 KiB")));
}
