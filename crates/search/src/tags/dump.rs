//! The text format of `notmuch dump` and `notmuch restore`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::all::{AllTags, Tags};
use super::error::{TagError, check_query_name, check_tag};
use crate::query::SavedQueries;

pub(super) const HEADER: &str = "#notmuch-dump batch-tag:3 config,tags\n";
/// notmuch keeps saved queries among its settings.
const QUERY_KEY: &str = "query.";
const NOT_HEX: &str = "a `%` without two hexadecimal digits after it";

/// Content of a dump.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Dump {
    /// Message-IDs with their intended tags.
    pub tags: BTreeMap<String, Tags>,
    /// Saved queries by name; an empty text deletes the query.
    pub queries: SavedQueries,
}

/// Options of a restore.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Restore {
    /// Messages keep the tags that they have.
    pub accumulate: bool,
    /// Counts the changes without making them.
    pub dry_run: bool,
}

/// Writes tags and saved queries as `notmuch dump` does: a header line, `#@ query.name text`, then `+tag +tag -- id:message-id`, sorted by id.
pub fn dump(tags: &AllTags, queries: &SavedQueries) -> String {
    let tags: BTreeMap<&str, Tags> = tags.iter().collect();
    dump_of(tags.iter().map(|(id, tags)| (*id, tags)), queries)
}

/// Like [`dump`], for any ids and tags.
pub(crate) fn dump_of<'a>(tags: impl Iterator<Item = (&'a str, &'a Tags)>, queries: &SavedQueries) -> String {
    let mut out = HEADER.to_owned();
    queries.iter().for_each(|(name, text)| query_line(&mut out, name, text));
    tags.for_each(|(id, tags)| tags_line(&mut out, id, tags));
    out
}

pub(super) fn query_line(out: &mut String, name: &str, text: &str) {
    let _ = writeln!(out, "#@ {} {}", hex_encode(&format!("{QUERY_KEY}{name}")), hex_encode(text));
}

pub(super) fn tags_line(out: &mut String, id: &str, tags: &Tags) {
    for tag in tags {
        let _ = write!(out, "+{} ", hex_encode(tag));
    }
    let _ = writeln!(out, "-- id:{}", quoted(id));
}

/// Parses a dump. Skips comments, empty lines, and notmuch's other settings and properties.
///
/// # Errors
/// [`TagError::Line`], [`TagError::Name`], [`TagError::QueryName`].
pub fn restore(text: &str) -> Result<Dump, TagError> {
    let mut all = Dump::default();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_end();
        let error = |why| TagError::Line { line: number + 1, why };
        if let Some(setting) = line.strip_prefix("#@ ") {
            let (key, value) = setting.split_once(' ').unwrap_or((setting, ""));
            let decoded = hex_decode(key).zip(hex_decode(value)).ok_or(error(NOT_HEX))?;
            if let (Some(name), text) = (decoded.0.strip_prefix(QUERY_KEY), decoded.1) {
                check_query_name(name)?;
                all.queries.insert(name.to_owned(), text);
            }
            continue;
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (tags, query) = match line.strip_prefix("-- ") {
            Some(query) => ("", query),
            None => line.split_once(" -- ").ok_or(error("no ` -- id:...`"))?,
        };
        let id = query.trim().strip_prefix("id:").ok_or(error("only id: can be restored"))?;
        let id = unquoted(id).ok_or(error("a `\"` that is never closed, or something after it"))?;
        let mut set = Tags::new();
        for tag in tags.split_ascii_whitespace() {
            let tag = tag.strip_prefix('+').ok_or(error("a tag without `+`"))?;
            let tag = hex_decode(tag).ok_or(error(NOT_HEX))?;
            check_tag(&tag)?;
            set.insert(tag);
        }
        all.tags.insert(id, set);
    }
    Ok(all)
}

/// Percent-encodes all bytes but those that notmuch keeps: letters, digits, `+-_@=.,`.
fn hex_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"+-_@=.,".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02x}");
        }
    }
    out
}

/// Quotes an id as Xapian quotes terms, if it could be misread. Unlike tags, ids are not percent-encoded.
fn quoted(id: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"()".contains(&byte);
    if id.bytes().all(is_plain) { id.to_owned() } else { format!("\"{}\"", id.replace('"', "\"\"")) }
}

fn unquoted(text: &str) -> Option<String> {
    let Some(rest) = text.strip_prefix('"') else { return Some(text.to_owned()) };
    let inner = rest.strip_suffix('"')?;
    // Each quote inside stands twice.
    let has_end = inner.split("\"\"").any(|between| between.contains('"'));
    (!has_end).then(|| inner.replace("\"\"", "\""))
}

fn hex_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tags::TagStore;
    use crate::tags::store::tests::tags;

    #[test]
    fn a_dump_restores_to_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let store = TagStore::open(dir.path()).unwrap();
        let (one, two) = (tags(&["inbox", "übermäßig wichtig"]), tags(&["a+b%"]));
        let queries = SavedQueries::from([("to do".to_owned(), "from:ann \"rye bread\" ü".to_owned())]);
        let rows = [("1@example.org", 1, &one), ("x y/z\"@example.org", 2, &two), ("0$5/a%any!@example.org", 3, &two)];
        store.set(rows, &[("to do", Some(&queries["to do"]))]).unwrap();
        let text = dump(&store.all().unwrap(), &store.queries().unwrap());
        // As notmuch 0.37 writes it.
        assert!(text.contains("\n#@ query.to%20do from%3aann%20%22rye%20bread%22%20%c3%bc\n"), "{text}");
        assert!(text.contains("+a+b%25 -- id:\"x y/z\"\"@example.org\"\n"), "{text}");
        assert!(text.contains("+a+b%25 -- id:0$5/a%any!@example.org\n"), "{text}");
        let restored = restore(&text).unwrap();
        assert_eq!(restored.tags["1@example.org"], one);
        assert_eq!(restored.tags["x y/z\"@example.org"], two);
        assert_eq!(restored.tags["0$5/a%any!@example.org"], two);
        assert_eq!(restored.queries, queries);
    }

    #[test]
    fn what_is_no_dump_is_refused_with_its_line() {
        let check = |text: &str, line: usize| match restore(text) {
            Err(TagError::Line { line: found, .. }) => assert_eq!(found, line, "{text}"),
            other => panic!("{text}: {other:?}"),
        };
        check("#notmuch-dump batch-tag:3 tags\n+a -- id:x\n+b\n", 3);
        check("a -- id:x", 1);
        check("+a -- from:x", 1);
        check("+a% -- id:x", 1);
        check("+a -- id:\"x", 1);
        check("+a -- id:\"x\" y\"", 1);
        assert_eq!(restore("# c\n\n -- id:x\n-- id:y\n").unwrap().tags.len(), 2);
        check("\n#@ query.a %2\n", 2);
        let settings = restore("#@ query.a\n#@ built_with.x true\n#@ query.b%20c x%20y\n#= id k=v\n").unwrap();
        let forgotten_and_saved = [("a", ""), ("b c", "x y")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(settings.queries, SavedQueries::from(forgotten_and_saved));
        assert!(matches!(restore("#@ query. x"), Err(TagError::QueryName(_))));
        assert!(matches!(restore("+-x -- id:x"), Err(TagError::Name(_))));
    }
}
