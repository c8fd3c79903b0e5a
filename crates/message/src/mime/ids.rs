//! Message ids: `Message-ID`, `References`, `In-Reply-To` (RFC 5322 section 3.6.4).

use std::borrow::Cow;

use super::words::unfold;

/// The id of a `Message-ID`: the text in brackets, or without brackets the first word. Returned without brackets and
/// blanks.
pub fn message_id(value: &[u8]) -> Option<String> {
    let value = unfold(value);
    bracketed(&value).next().map(|(_, id)| id).or_else(|| {
        let word = value.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())?;
        Some(clean(word)).filter(|id| !id.is_empty())
    })
}

/// The ids of a `References`, oldest first.
///
/// Without any bracket, words that look like ids (`one@other`) count if all do: other text would join unrelated
/// threads.
pub fn references(value: &[u8]) -> Vec<String> {
    let value = unfold(value);
    let ids: Vec<String> = bracketed(&value).map(|(_, id)| id).collect();
    if !ids.is_empty() {
        return ids;
    }
    let is_between = |byte: &u8| byte.is_ascii_whitespace() || *byte == b',';
    let words: Vec<&[u8]> = value.split(is_between).filter(|word| !word.is_empty()).collect();
    let all_ids = words.iter().all(|word| looks_like_id(word));
    if all_ids { words.into_iter().map(clean).collect() } else { Vec::new() }
}

/// The id of the answered message, from an `In-Reply-To`.
///
/// Older programs wrote a sentence, such as `Message from Ann <ann@x.example> of Tuesday <id@x.example>`: if it does
/// not begin with an id, the last bracket counts. Without brackets only a single word counts.
pub fn in_reply_to(value: &[u8]) -> Vec<String> {
    let value = unfold(value);
    let mut ids: Vec<(usize, String)> = bracketed(&value).collect();
    let Some(&(first, _)) = ids.first() else {
        let text = value.trim_ascii();
        return if looks_like_id(text) { vec![clean(text)] } else { Vec::new() };
    };
    let between = without_brackets(&value);
    if between.trim_ascii().is_empty() {
        return ids.into_iter().map(|(_, id)| id).collect();
    }
    let is_sentence = !value[..first].trim_ascii().is_empty();
    let wanted = if is_sentence { ids.pop() } else { Some(ids.swap_remove(0)) };
    wanted.into_iter().map(|(_, id)| id).collect()
}

/// Texts in angle brackets, with the position of each opening. An unclosed bracket ends at the next blank, and must
/// hold an `@`.
fn bracketed(value: &[u8]) -> impl Iterator<Item = (usize, String)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let open = at + memchr::memchr(b'<', &value[at..])?;
            let rest = &value[open + 1..];
            let len = rest.iter().position(|&byte| matches!(byte, b'<' | b'>')).unwrap_or(rest.len());
            let is_closed = rest.get(len) == Some(&b'>');
            at = open + 1 + len;
            let id = if is_closed {
                clean(&rest[..len])
            } else {
                rest[..len]
                    .split(u8::is_ascii_whitespace)
                    .next()
                    .filter(|id| looks_like_id(id))
                    .map(clean)
                    .unwrap_or_default()
            };
            if !id.is_empty() {
                return Some((open, id));
            }
        }
    })
}

fn without_brackets(value: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let mut is_within = false;
    for &byte in value {
        match byte {
            b'<' => is_within = true,
            b'>' => is_within = false,
            b',' => {}
            _ if !is_within => out.push(byte),
            _ => {}
        }
    }
    Cow::Owned(out)
}

fn looks_like_id(word: &[u8]) -> bool {
    let is_plain = !word.iter().any(|byte| byte.is_ascii_whitespace() || b"\"(),;<>".contains(byte));
    is_plain && word.iter().position(|&byte| byte == b'@').is_some_and(|at| at > 0 && at + 1 < word.len())
}

/// An id for comparison and display: without blanks, which folding may have added.
fn clean(id: &[u8]) -> String {
    let id: Vec<u8> =
        id.iter().copied().filter(|byte| !byte.is_ascii_whitespace() && !matches!(byte, b'<' | b'>')).collect();
    String::from_utf8_lossy(&id).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_brackets_or_is_a_word() {
        let check = |value: &str, expected: Option<&str>| {
            assert_eq!(message_id(value.as_bytes()).as_deref(), expected, "{value}")
        };
        check(" <1@example.org>", Some("1@example.org"));
        check("1@example.org", Some("1@example.org"));
        check("<long\r\n er@x>", Some("longer@x"));
        check("<no-at-sign>", Some("no-at-sign"));
        check("<a@x> (added by us)", Some("a@x"));
        check("<a@x", Some("a@x"));
        check("<>", None);
        check("", None);
    }

    #[test]
    fn references_are_ids_and_nothing_else() {
        let check = |value: &str, expected: &[&str]| assert_eq!(references(value.as_bytes()), expected, "{value}");
        check("<a@x>\r\n <b@x><c@x>", &["a@x", "b@x", "c@x"]);
        check("<a@x> garbage <b@x", &["a@x", "b@x"]);
        check("a@x b@x,\r\n c@x", &["a@x", "b@x", "c@x"]);
        check("Your message of Tuesday, ann@x.example", &[]);
        check("Tuesday", &[]);
        check("<a@x <b@x>", &["a@x", "b@x"]);
        check("", &[]);
    }

    #[test]
    fn an_answer_names_one_message() {
        let check = |value: &str, expected: &[&str]| assert_eq!(in_reply_to(value.as_bytes()), expected, "{value}");
        check("<a@x>", &["a@x"]);
        check("<a@x>, <b@x>", &["a@x", "b@x"]);
        check("a@x", &["a@x"]);
        check("Your message of \"Tue, 4 Mar 2025\" <a@x>", &["a@x"]);
        check("Message from Ann <ann@x.example> of Tuesday <id@x>", &["id@x"]);
        check("<id@x> from Ann <ann@x.example> at Aug 1", &["id@x"]);
        check("Ann's mail of Tuesday", &[]);
        check("ann@x.example's message of Tuesday", &[]);
    }
}
