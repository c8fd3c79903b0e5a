//! notmuch's output format, for front ends and scripts that expect it.

use posthaste_search::state::bits;
use posthaste_search::{FoundMessage, split_addresses};
use serde_json::Value;

use crate::search_common::local;

/// A thread's number in notmuch's form.
pub fn thread_id(thread: u32) -> String {
    format!("{thread:016x}")
}

/// All tags, sorted, with the flags and properties that notmuch has as tags.
pub fn tags(message: &FoundMessage) -> Vec<String> {
    let letter = |letter| message.flags & bits::letters(letter) != 0;
    let property = |bit| message.flags & bit != 0;
    let derived = [
        ("draft", letter("D")),
        ("flagged", letter("F")),
        ("passed", letter("P")),
        ("replied", letter("R")),
        ("unread", bits::is_unread(message.flags)),
        ("attachment", property(bits::ATTACHMENT)),
        ("signed", property(bits::SIGNED)),
        ("encrypted", property(bits::ENCRYPTED)),
    ];
    let mut all = message.tags.clone();
    all.extend(derived.into_iter().filter(|(_, is_set)| *is_set).map(|(tag, _)| tag.to_owned()));
    all.sort_unstable();
    all.dedup();
    all
}

/// A time in notmuch's form: `Today 10:40`, `2025-03-04`.
pub fn relative_date(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    let now = jiff::Zoned::now();
    let then = local(seconds);
    let age = now.timestamp().as_second() - seconds;
    if age < 0 {
        return "the future".to_owned();
    }
    if age > 180 * DAY {
        return then.strftime("%Y-%m-%d").to_string();
    }
    if age < HOUR {
        return format!("{} mins. ago", age / MINUTE);
    }
    let days = then.weekday().until(now.weekday());
    let form = match days {
        _ if age > 7 * DAY => "%B %d",
        0 if age < DAY => "Today %H:%M",
        1 => "Yest. %H:%M",
        _ => "%a. %H:%M",
    };
    then.strftime(form).to_string()
}

/// The author's name, or the address if there is none.
pub fn author(from: &str) -> String {
    match split_addresses(from).into_iter().next() {
        Some((name, address)) => {
            if name.is_empty() {
                address
            } else {
                name
            }
        }
        None => from.to_owned(),
    }
}

/// A subject without reply prefixes.
pub fn clean_subject(subject: &str) -> &str {
    let mut rest = subject;
    loop {
        let mark = ["re:", "aw:", "vs:", "sv:"]
            .into_iter()
            .find(|mark| rest.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(mark)));
        match mark {
            Some(mark) => rest = rest[mark.len()..].trim_start(),
            None => return rest,
        }
    }
}

/// `id:...` as a term of a query.
pub fn id_term(id: &str) -> String {
    let is_plain = |c: char| c.is_ascii_graphic() && !"\"()".contains(c);
    if id.chars().all(is_plain) { format!("id:{id}") } else { format!("id:\"{}\"", id.replace('"', "\"\"")) }
}

/// Converts JSON into an s-expression: objects become property lists.
pub fn sexp(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(false) => "nil".to_owned(),
        Value::Bool(true) => "t".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("\"{}\"", text.chars().map(sexp_char).collect::<String>()),
        Value::Array(all) => format!("({})", all.iter().map(sexp).collect::<Vec<_>>().join(" ")),
        Value::Object(all) => {
            let pairs: Vec<String> = all.iter().map(|(key, value)| format!(":{key} {}", sexp(value))).collect();
            format!("({})", pairs.join(" "))
        }
    }
}

/// Escapes a character, so that an s-expression stays on one line.
fn sexp_char(c: char) -> String {
    match c {
        '\\' | '"' => format!("\\{c}"),
        '\n' => "\\n".to_owned(),
        c if c.is_ascii_control() => format!("\\{:03o}", u32::from(c)),
        c => c.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_notmuch_writes_them() {
        assert_eq!(
            sexp(&json!({"id": "a\"b", "match": true, "body": [1, null, false]})),
            "(:body (1 nil nil) :id \"a\\\"b\" :match t)"
        );
        assert_eq!(sexp(&json!("a\\\n\x1b[31m\té")), r#""a\\\n\033[31m\011é""#);
        assert_eq!(clean_subject("Re: AW: re:bread"), "bread");
        assert_eq!(clean_subject("Résumé"), "Résumé");
        assert_eq!((id_term("a@b"), id_term("a b\"c")), ("id:a@b".to_owned(), "id:\"a b\"\"c\"".to_owned()));
        let now = jiff::Timestamp::now().as_second();
        assert_eq!(relative_date(now + 100), "the future");
        assert_eq!(relative_date(now - 610), "10 mins. ago");
        assert_eq!(relative_date(0).len(), 10);
    }
}
