//! The base subject (RFC 5256 section 2.1): a subject without `Re:`, `Fwd:`, `[list]` and `(fwd)`.

/// A subject without the additions of mail programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseSubject {
    /// The text with collapsed white space, case unchanged. Empty if nothing else was there.
    pub text: String,
    /// True if a mark of a reply or a forward was removed.
    pub is_reply: bool,
}

/// Extracts the base subject from a decoded subject.
pub fn base_subject(subject: &str) -> BaseSubject {
    // Step 1: tabs and continuations to spaces, runs of them to one.
    let mut text = subject.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut is_reply = false;
    loop {
        // Step 2: trailers.
        while let Some(shorter) = strip_suffix_ignore_case(&text, "(fwd)") {
            text.truncate(shorter.trim_end().len());
            is_reply = true;
        }
        // Steps 3 to 5: leaders, and blobs with text after them.
        let mut rest = text.trim_start();
        loop {
            if let Some(after) = leader(rest) {
                is_reply = true;
                rest = after.trim_start();
            } else if let Some(after) = blob(rest).map(str::trim_start).filter(|after| !after.is_empty()) {
                rest = after;
            } else {
                break;
            }
        }
        // Step 6: a forward that encloses the rest.
        match rest.get(..5).filter(|start| start.eq_ignore_ascii_case("[fwd:")) {
            Some(_) if rest.ends_with(']') => {
                is_reply = true;
                text = rest[5..rest.len() - 1].trim().to_owned();
            }
            _ => return BaseSubject { text: rest.trim_end().to_owned(), is_reply },
        }
    }
}

fn strip_suffix_ignore_case<'a>(text: &'a str, suffix: &str) -> Option<&'a str> {
    let split = text.len().checked_sub(suffix.len())?;
    text.get(split..).filter(|end| end.eq_ignore_ascii_case(suffix)).map(|_| &text[..split])
}

/// `re:`, `fw:` or `fwd:`, blobs before it and one before the colon allowed (`[list] Re [2]:`).
fn leader(text: &str) -> Option<&str> {
    let mut rest = text;
    while let Some(after) = blob(rest) {
        rest = after.trim_start();
    }
    let word =
        ["fwd", "re", "fw"].iter().find(|word| rest.get(..word.len()).is_some_and(|s| s.eq_ignore_ascii_case(word)))?;
    rest = rest[word.len()..].trim_start();
    if let Some(after) = blob(rest) {
        rest = after.trim_start();
    }
    rest.strip_prefix(':')
}

/// `[text]` without brackets inside.
fn blob(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('[')?;
    let end = inner.find(['[', ']'])?;
    inner[end..].strip_prefix(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mail_programs_add_is_taken_off() {
        let check = |subject: &str, base: &str, is_reply: bool| {
            assert_eq!(base_subject(subject), BaseSubject { text: base.to_owned(), is_reply }, "{subject:?}");
        };
        check("Hello", "Hello", false);
        check("Re: Hello", "Hello", true);
        check("RE:FW: Fwd [2]:  Hello\tworld (fwd) (FWD)", "Hello world", true);
        check("[list] Hello", "Hello", false);
        check("[list] Re: [list] Hello", "Hello", true);
        check("[PATCH]", "[PATCH]", false);
        check("Re: [PATCH]", "[PATCH]", true);
        check("[Fwd: Re: Hello]", "Hello", true);
        check("Re:", "", true);
        check("Regarding: x", "Regarding: x", false);
        check("Ré: é", "Ré: é", false);
        check("[a[b] x", "[a[b] x", false);
        check("", "", false);
    }
}
