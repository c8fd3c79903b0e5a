//! Texts of others on lines of ours.

/// At most [`BYTES_MAX`] of a text on one line: what would end it or rule a terminal is a blank, and so is each run of blanks. What is not ASCII is `?`, if it may not stand.
pub(super) fn one_line(text: &str, is_utf8: bool) -> String {
    let mut out = String::with_capacity(text.len().min(BYTES_MAX));
    for letter in text.chars() {
        let letter = match letter {
            '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => ' ',
            letter if letter.is_control() => ' ',
            letter if !letter.is_ascii() && !is_utf8 => '?',
            letter => letter,
        };
        if letter == ' ' && (out.is_empty() || out.ends_with(' ')) {
            continue;
        }
        if out.len() + letter.len_utf8() > BYTES_MAX {
            break;
        }
        out.push(letter);
    }
    out.truncate(out.trim_end().len());
    out
}

/// A line that is broken at blanks behind 76 bytes, and wherever it must be behind 900; what follows begins with `indent`. Ends with CRLF.
pub(super) fn folded(line: &str, indent: &str) -> String {
    let mut out = String::with_capacity(line.len() + 16);
    let mut begun = 0;
    let lead = line.len() - line.trim_start().len();
    for (at, letter) in line.char_indices() {
        let word = line[at + letter.len_utf8()..].split(' ').next().map_or(0, str::len);
        let used = out.len() - begun;
        let is_break = letter == ' ' && at > lead && used + 1 + word > LINE_BYTES && used > lead;
        if is_break || used + letter.len_utf8() > LINE_BYTES_MAX {
            out.push_str("\r\n");
            begun = out.len();
            out.push_str(indent);
        }
        if !is_break {
            out.push(letter);
        }
    }
    out.push_str("\r\n");
    out
}

/// The lines of an administrator's text, with CRLF line ends.
pub(super) fn worded(text: &str) -> String {
    text.lines().map(|line| folded(&one_line(line, true), "")).collect()
}

/// What is told of a reply or an address.
const BYTES_MAX: usize = 1000;
const LINE_BYTES: usize = 76;
/// Below the 998 of RFC 5322 section 2.1.1.
const LINE_BYTES_MAX: usize = 900;
