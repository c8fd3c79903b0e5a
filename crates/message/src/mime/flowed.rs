//! `format=flowed` (RFC 3676): rejoins lines that were broken for transport.

/// Rejoins a flowed body. `del_sp`: the blank that marks a broken line is not part of the text (section 4.1).
///
/// Each quoted paragraph becomes a line that begins with its `>` signs and a blank. Line ends are LF.
///
/// ```
/// use posthaste_message::mime::unflow;
/// assert_eq!(unflow("> one \n> two\n-- \nAnn", false), "> one two\n-- \nAnn");
/// ```
pub fn unflow(text: &str, del_sp: bool) -> String {
    let mut out = String::with_capacity(text.len());
    // Quote depth of a paragraph that continues in the next line.
    let mut open: Option<usize> = None;
    for line in text.split_inclusive('\n') {
        let bare = line.strip_suffix('\n').map_or(line, |bare| bare.strip_suffix('\r').unwrap_or(bare));
        let content = bare.trim_start_matches('>');
        let depth = bare.len() - content.len();
        // Removes the stuffed blank before `From`, `>` and blanks (section 4.4).
        let content = content.strip_prefix(' ').unwrap_or(content);
        let is_signature = content == "-- ";
        let goes_on = open == Some(depth) && !is_signature;
        if open.is_some() && !goes_on {
            out.push('\n');
        }
        if !goes_on && depth > 0 {
            out.extend(std::iter::repeat_n('>', depth));
            if !content.is_empty() {
                out.push(' ');
            }
        }
        let is_flowed = content.ends_with(' ') && !is_signature;
        out.push_str(if is_flowed && del_sp { &content[..content.len() - 1] } else { content });
        open = is_flowed.then_some(depth);
        if !is_flowed && line.len() > bare.len() {
            out.push('\n');
        }
    }
    if open.is_some() && text.ends_with('\n') {
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, del_sp: bool, expected: &str) {
        assert_eq!(unflow(text, del_sp), expected, "{text:?}");
        assert_eq!(unflow(&text.replace('\n', "\r\n"), del_sp), expected, "{text:?} with CRLF");
    }

    #[test]
    fn paragraphs_are_joined() {
        check("one \ntwo\nthree\n", false, "one two\nthree\n");
        check("日本語の長い文章を \n折り返す。\n", true, "日本語の長い文章を折り返す。\n");
        check("two blanks  \nstay", true, "two blanks stay");
        check("", false, "");
        check("end \n", false, "end \n");
    }

    #[test]
    fn quotes_of_another_depth_and_signatures_end_a_paragraph() {
        check("> a \n> b\n", false, "> a b\n");
        check("> a \nb\n", false, "> a \nb\n");
        check(">> a \n> b\n>\n", false, ">> a \n> b\n>\n");
        check("text \n-- \nAnn \nLee\n", false, "text \n-- \nAnn Lee\n");
        check("> -- \n> x", false, "> -- \n> x");
    }

    #[test]
    fn stuffed_blanks_go() {
        check(" From here\n >no quote\n", false, "From here\n>no quote\n");
        check(">  two\n", false, ">  two\n");
    }
}
