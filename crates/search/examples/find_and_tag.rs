//! Indexes a Maildir, finds a thread in it and tags it: `cargo run -p posthaste-search --example find_and_tag`. Runs with the tests.

use std::error::Error;
use std::fs;
use std::path::Path;

use posthaste_search::{Indexer, Searcher, Sort, UpdateOptions, tree};

const MAIL: [(&str, &str); 3] = [
    (
        "cur/1.a.host:2,S",
        "Message-ID: <1@a>\nDate: Mon, 2 Nov 2026 10:00:00 +0000\nFrom: Ann <ann@example.org>\nSubject: Rye bread\n\nIt takes two days.\n",
    ),
    (
        "cur/2.a.host:2,",
        "Message-ID: <2@a>\nIn-Reply-To: <1@a>\nDate: Tue, 3 Nov 2026 10:00:00 +0000\nFrom: bob@example.net\nSubject: Re: Rye bread\n\nThree.\n",
    ),
    ("cur/3.a.host:2,S", "Date: Wed, 4 Nov 2026 10:00:00 +0000\nFrom: bob@example.net\nSubject: Tea\n\nGreen?\n"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let (mail, dir) = (tempfile::tempdir()?, tempfile::tempdir()?);
    write_mail(mail.path())?;

    // There is one indexer at a time. It reads only mail that is new since the last update.
    let report =
        Indexer::open(dir.path(), None)?.update(&[mail.path().to_owned()], &UpdateOptions::default(), &|_| {})?;
    println!("{} messages in {} folders", report.messages, report.folders);

    // Any number of searchers may read at the same time, each one commit.
    let searcher = Searcher::open(dir.path())?;
    let found = searcher.find(&searcher.query("from:ann subject:bread date:2026-11..2026-12")?)?;
    let whole = searcher.whole_threads(&found)?;
    assert_eq!((found.count(), whole.count()), (1, 2));
    let messages = searcher.messages(&searcher.page(&whole, Sort::Date, false, 0, 50)?)?;
    for line in tree(&messages) {
        println!("{}{}", line.branch(8), messages[line.index].head.subject);
    }

    // Tags are the user's: no rebuild of the index removes them.
    let tagged: Vec<_> = messages.iter().map(|message| (message.number, message.id.clone())).collect();
    Indexer::open(dir.path(), None)?.tag(&tagged, &["baking".to_owned()], &[])?;
    let searcher = Searcher::open(dir.path())?;
    assert_eq!(searcher.find(&searcher.query("tag:baking and flag:unread")?)?.count(), 1);
    Ok(())
}

fn write_mail(maildir: &Path) -> std::io::Result<()> {
    ["new", "cur", "tmp"].iter().try_for_each(|sub| fs::create_dir(maildir.join(sub)))?;
    MAIL.iter().try_for_each(|(name, text)| fs::write(maildir.join(name), text))
}
