//! The authentication service that wrote an Authentication-Results field (RFC 8601 section 2.2).

use std::borrow::Cow;

use crate::author::{comment_len, quoted_len};

/// Returns the name of the service in the value of an Authentication-Results field, without quotes and comments.
/// `None`: there is no readable name.
///
/// ```
/// use posthaste_message::authserv_id;
///
/// assert_eq!(authserv_id(b" (a) mx.example.org 1; none\r\n").as_deref(), Some("mx.example.org"));
/// ```
pub fn authserv_id(value: &[u8]) -> Option<Cow<'_, str>> {
    let mut rest = value;
    let word = loop {
        match rest.first()? {
            b' ' | b'\t' | b'\r' | b'\n' => rest = &rest[1..],
            b'(' => rest = &rest[comment_len(rest)?..],
            b'"' => {
                let quoted = &rest[..quoted_len(rest)?];
                break Cow::Owned(unescaped(&quoted[1..quoted.len() - 1]));
            }
            _ => {
                let ends = |octet: &u8| *octet <= 32 || *octet == 127 || b"(;/\"".contains(octet);
                let len = rest.iter().position(ends).unwrap_or(rest.len());
                break Cow::Borrowed(&rest[..len]);
            }
        }
    };
    let word = match word {
        Cow::Borrowed(word) => Cow::Borrowed(std::str::from_utf8(word).ok()?),
        Cow::Owned(word) => Cow::Owned(String::from_utf8(word).ok()?),
    };
    (!word.is_empty()).then_some(word)
}

/// The text before the results, without white space, comments, quotes and backslashes: the name as a careless reader
/// may see it.
///
/// ```
/// use posthaste_message::squeezed_authserv_id;
///
/// assert_eq!(squeezed_authserv_id(b" mx . \"example\"(x).org; none"), "mx.example.org");
/// ```
pub fn squeezed_authserv_id(value: &[u8]) -> String {
    let mut rest = value;
    let mut kept = Vec::new();
    while let Some((&octet, behind)) = rest.split_first() {
        rest = match octet {
            b';' => break,
            b'(' => match comment_len(rest) {
                Some(len) => &rest[len..],
                None => break,
            },
            octet => {
                kept.push(octet);
                behind
            }
        };
    }
    let text = String::from_utf8_lossy(&kept);
    text.chars().filter(|sign| !sign.is_whitespace() && !sign.is_control() && !matches!(sign, '"' | '\\')).collect()
}

/// Content of a quoted string: unescaped and unfolded.
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
        for value in
            ["", " \r\n", " ; dkim=pass", " (mx.example.org; dkim=pass", " \"mx.example.org; dkim=pass", " \"\"; x"]
        {
            check(value, None);
        }
        assert_eq!(authserv_id(b" \xff; none"), None);
        assert_eq!(authserv_id(&b"(".repeat(100_000)), None);
    }

    #[test]
    fn careless_readers_see_the_name_however_it_is_spelt() {
        for value in [
            "mx(c).example(d).org; none",
            "mx . example . org; none",
            "\"mx\".example.org; none",
            "mx.\"example\".org; none",
            "mx.example.org\\; none",
            "\\mx.example.org; none",
            "\"mx.example.org \"; none",
            "\u{a0}mx.example.org\u{a0}; none",
            "\"mx.example\r\n .org\"; none",
            "mx.example.org",
        ] {
            assert_eq!(squeezed_authserv_id(value.as_bytes()), "mx.example.org", "{value:?}");
        }
        assert_eq!(squeezed_authserv_id(b"dkim=none (not signed) header.d=none;dmarc=none"), "dkim=noneheader.d=none");
        assert_eq!(squeezed_authserv_id(&b"(".repeat(100_000)), "");
    }
}
