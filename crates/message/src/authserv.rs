//! Whose results a field Authentication-Results has (RFC 8601 section 2.2).

use std::borrow::Cow;

use crate::author::{comment_len, quoted_len};

/// Returns the name of the service in the value of an Authentication-Results field, as it is written but for quotes and comments. `None`: the value has none that all
/// programs read alike.
///
/// ```
/// use posthaste_message::authserv_id;
///
/// assert_eq!(authserv_id(b" (a) mx.example.org 1; none\r\n").as_deref(), Some("mx.example.org"));
/// assert_eq!(authserv_id(b" mx . example.org; none\r\n"), None);
/// ```
pub fn authserv_id(value: &[u8]) -> Option<Cow<'_, str>> {
    let mut rest = without_comments(value)?;
    let word = match rest.first()? {
        b'"' => {
            let (quoted, behind) = rest.split_at(quoted_len(rest)?);
            rest = behind;
            Cow::Owned(String::from_utf8(unescaped(&quoted[1..quoted.len() - 1])).ok()?)
        }
        _ => {
            let ends = |octet: &u8| *octet <= 32 || *octet == 127 || b"(;/\"".contains(octet);
            let (word, behind) = rest.split_at(rest.iter().position(ends).unwrap_or(rest.len()));
            rest = behind;
            Cow::Borrowed(std::str::from_utf8(word).ok()?)
        }
    };
    // Other signs are those that some readers leave out, or end a name at.
    let is_of_a_name = |sign: char| sign.is_alphanumeric() || "!#$%&'*+-.^_`{|}~".contains(sign);
    (!word.is_empty() && word.chars().all(is_of_a_name) && ends(rest)).then_some(word)
}

/// What stands behind white space and comments.
fn without_comments(mut text: &[u8]) -> Option<&[u8]> {
    loop {
        match text.first() {
            Some(b' ' | b'\t' | b'\r' | b'\n') => text = &text[1..],
            Some(b'(') => text = &text[comment_len(text)?..],
            _ => return Some(text),
        }
    }
}

/// True if nothing follows but perhaps a version, and the results.
fn ends(rest: &[u8]) -> bool {
    let behind = |rest| without_comments(rest).map(|rest| rest.strip_prefix(b"/").unwrap_or(rest));
    let Some(rest) = behind(rest) else { return false };
    let digits = rest.iter().take_while(|octet| octet.is_ascii_digit()).count();
    without_comments(&rest[digits..]).is_some_and(|rest| rest.first().is_none_or(|octet| *octet == b';'))
}

/// The text in a quoted string: without backslashes before others, and unfolded.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut is_escaped = false;
    for &octet in text {
        match octet {
            b'\\' if !is_escaped => is_escaped = true,
            b'\r' | b'\n' => {}
            _ => {
                out.push(octet);
                is_escaped = false;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_named_in_front_of_its_results() {
        let check = |value: &str, expected: Option<&str>| {
            assert_eq!(authserv_id(value.as_bytes()).as_deref(), expected, "{value:?}");
        };
        for value in [
            " mx.example.org; dkim=pass",
            "mx.example.org;dkim=pass",
            "\r\n\tmx.example.org\r\n\t1; none\r\n",
            " (x (y\\)) ; other.example) mx.example.org(z); none",
            " \"mx.example.org\"; none",
            " \"mx.ex\\ample.org\" 1; none",
            " \"mx.\r\nexample.org\"; none",
            " mx.example.org",
        ] {
            check(value, Some("mx.example.org"));
        }
        check(" MX.B\u{fc}cher.example; none", Some("MX.B\u{fc}cher.example"));
        for value in [
            "mx(c).example(d).org; none",
            "mx . example . org; none",
            "\"mx\".example.org; none",
            "mx.\"example\".org; none",
            "mx.example.org\\; none",
            "\\mx.example.org; none",
            "\"mx.example.org \"; none",
            "\" mx.example.org\"; none",
            "mx.example.org\u{a0}; none",
            "\u{a0}mx.example.org; none",
            "\"mx.example\r\n .org\"; none",
            "mx.example.org 1 2; none",
            "mx.example.org none",
        ] {
            check(value, None);
        }
        for value in
            ["", " \r\n", " ; dkim=pass", " (mx.example.org; dkim=pass", " \"mx.example.org; dkim=pass", " \"\"; x"]
        {
            check(value, None);
        }
        assert_eq!(authserv_id(b" \xff; none"), None);
        assert_eq!(authserv_id(&b"(".repeat(100_000)), None);
    }
}
