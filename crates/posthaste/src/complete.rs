//! `posthaste complete`, called by the shells' scripts: tags, saved queries, folders and fields that complete a word.

use clap::Args;
use posthaste_search::Searcher;

use crate::info::folders;
use crate::search_common::{Failure, IndexDir};
use crate::terminal::print;

#[derive(Args)]
pub struct Complete {
    #[command(flatten)]
    index: IndexDir,
    /// The line up to the cursor
    line: String,
}

/// Commands whose words, except options, are a query.
const WITH_QUERY: [&str; 10] =
    ["find", "threads", "view", "extract", "addresses", "tag", "search", "show", "reply", "count"];
const FIELDS: [&str; 28] = [
    "from",
    "to",
    "cc",
    "bcc",
    "recip",
    "contact",
    "subject",
    "body",
    "list",
    "file",
    "mime",
    "date",
    "changed",
    "references",
    "related",
    "size",
    "header",
    "flag",
    "is",
    "tag",
    "maildir",
    "folder",
    "path",
    "msgid",
    "id",
    "thread",
    "prio",
    "query",
];
const FLAGS: [&str; 14] = [
    "draft",
    "flagged",
    "passed",
    "replied",
    "seen",
    "trashed",
    "new",
    "unread",
    "read",
    "attach",
    "signed",
    "encrypted",
    "list",
    "calendar",
];

/// One candidate on each line, and no output on an error: a shell has no place to show it.
pub fn run(args: Complete) -> Result<(), Failure> {
    let Ok(searcher) = args.index.open() else { return Ok(()) };
    let found = candidates(&args.line, &IndexNames::of(&searcher));
    // A name with a line end or another control character could not be typed.
    let lines =
        found.into_iter().filter(|candidate| !candidate.contains(char::is_control)).map(|candidate| candidate + "\n");
    Ok(print(&lines.collect::<String>())?)
}

/// Names in the index, sorted.
struct IndexNames {
    tags: Vec<String>,
    queries: Vec<String>,
    folders: Vec<String>,
    /// Names with the colon before a value.
    headers: Vec<String>,
}

impl IndexNames {
    fn of(searcher: &Searcher) -> Self {
        let directory = searcher.directory();
        let mut tags: Vec<String> = directory.tag_sets.iter().flatten().cloned().collect();
        tags.extend(directory.tags_of_files().into_iter().map(str::to_owned));
        tags.sort_unstable();
        tags.dedup();
        let folders = folders(directory).into_iter().map(|path| format!("/{path}")).collect();
        let headers = searcher.headers().iter().map(|name| format!("{name}:")).collect();
        Self { tags, queries: directory.queries.keys().cloned().collect(), folders, headers }
    }
}

/// Completions of the last word of the line. Names with blanks are left out: each shell quotes them in its own way.
fn candidates(line: &str, known: &IndexNames) -> Vec<String> {
    let (before, word) = line.rsplit_once(char::is_whitespace).unwrap_or(("", line));
    let words: Vec<&str> = before.split_whitespace().collect();
    let [_, command, arguments @ ..] = words.as_slice() else { return Vec::new() };
    let names = |prefix: &str, names: &[String]| {
        let wanted = names.iter().filter(|name| !name.contains(char::is_whitespace));
        starting(wanted.map(|name| format!("{prefix}{name}")), word)
    };
    match (*command, arguments.last().copied()) {
        ("find", Some("--move")) => return names("", &known.folders),
        ("find", Some("--bookmark" | "-b")) | ("query", Some("show" | "delete")) => return names("", &known.queries),
        _ if !WITH_QUERY.contains(command) => return Vec::new(),
        _ => {}
    }
    if *command == "tag" && word.starts_with(['+', '-']) && !word.starts_with("--") {
        return names(&word[..1], &known.tags);
    }
    // `not`, `-` and `(` may stand before a field.
    let field = word.trim_start_matches(['-', '(', '{']);
    let marks = &word[..word.len() - field.len()];
    match field.split_once(':') {
        Some((name @ ("tag" | "label" | "is" | "x"), _)) => names(&format!("{marks}{name}:"), &known.tags),
        Some((name @ ("query" | "bookmark"), _)) => names(&format!("{marks}{name}:"), &known.queries),
        Some((name @ ("maildir" | "folder" | "path" | "m"), _)) => names(&format!("{marks}{name}:"), &known.folders),
        Some((name @ "header", _)) => names(&format!("{marks}{name}:"), &known.headers),
        Some((name @ ("flag" | "g"), _)) => starting(FLAGS.iter().map(|flag| format!("{marks}{name}:{flag}")), word),
        Some(_) => Vec::new(),
        None if field.is_empty() || word.starts_with("--") => Vec::new(),
        None => starting(FIELDS.iter().map(|name| format!("{marks}{name}:")), word),
    }
}

fn starting(all: impl Iterator<Item = String>, word: &str) -> Vec<String> {
    all.filter(|candidate| candidate.starts_with(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_becomes_what_the_index_knows() {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let known = IndexNames {
            tags: list(&["inbox", "important", "to do"]),
            queries: list(&["boss"]),
            folders: list(&["/", "/lists/rust"]),
            headers: list(&["X-Spam-Score:", "List-Post:"]),
        };
        for (line, expected) in [
            ("posthaste find tag:i", "tag:inbox tag:important"),
            ("posthaste find rye -tag:in", "-tag:inbox"),
            ("posthaste find (is:im", "(is:important"),
            ("ph threads query:", "query:boss"),
            ("ph view maildir:/l", "maildir:/lists/rust"),
            ("ph find flag:un", "flag:unread"),
            ("ph find header:X-", "header:X-Spam-Score:"),
            ("ph find header:X-Spam-Score:>", ""),
            ("ph find su", "subject:"),
            ("ph tag +im", "+important"),
            ("ph tag -", "-inbox -important"),
            ("ph tag +x -- tag:im", "tag:important"),
            ("ph find --move /l", "/lists/rust"),
            ("ph find -b ", "boss"),
            ("ph query show b", "boss"),
            ("ph find --ma", ""),
            ("ph find ", ""),
            ("ph serve tag:", ""),
            ("ph fi", ""),
            ("", ""),
        ] {
            assert_eq!(candidates(line, &known).join(" "), expected, "{line}");
        }
        assert!(FIELDS.iter().all(|name| posthaste_search::query::is_field(name)));
    }
}
