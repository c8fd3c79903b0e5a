//! Layout of text for a terminal: lines wrapped at words, lists of addresses folded, quotes and signatures dimmed.

use crate::columns::cells;
use crate::terminal::{harmless, paint};

/// Maximum lines of addresses shown of one header field.
const ADDRESS_LINES_MAX: usize = 5;
/// Maximum lines of a signature; later lines are text again.
const SIGNATURE_LINES_MAX: usize = 15;
/// Cells between tab stops.
const TAB: usize = 8;
/// Below this width lines are left to the terminal to wrap.
const CELLS_MIN: usize = 16;

/// Lays out a message's text for lines of this many cells.
pub fn body(text: &str, line_cells: usize, colours: bool) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    let mut signature_lines_left = 0;
    for line in text.lines() {
        if line.trim_end_matches('\r') == "-- " {
            signature_lines_left = SIGNATURE_LINES_MAX;
        }
        let line = harmless_line(line);
        let quote = quote_prefix(&line);
        let is_dim = colours && (!quote.is_empty() || signature_lines_left > 0);
        signature_lines_left = signature_lines_left.saturating_sub(1);
        for row in wrapped(&line, quote, line_cells) {
            out.push_str(&if is_dim { paint("2", &row) } else { row });
            out.push('\n');
        }
    }
    out
}

/// Replaces control characters except tabs.
fn harmless_line(line: &str) -> String {
    let line = line.strip_suffix('\r').unwrap_or(line);
    line.split('\t').map(harmless).collect::<Vec<_>>().join("\t")
}

/// The quote marks of a line, such as `> > `, which each line of a quoted paragraph has.
fn quote_prefix(line: &str) -> &str {
    let is_quote = |c: char| matches!(c, '>' | '|' | ' ');
    if !line.trim_start().starts_with(['>', '|']) {
        return "";
    }
    // A line that begins with a bar and has others is a table.
    if line.trim_start().starts_with('|') && line.matches('|').count() > 1 {
        return "";
    }
    &line[..line.find(|c| !is_quote(c)).unwrap_or(line.len())]
}

/// Wraps a line into rows of at most this many cells, each with `prefix` in front. Breaks at blanks and between wide
/// characters. Anything else, such as a long URL, stays whole, so that it can be copied.
fn wrapped(line: &str, prefix: &str, line_cells: usize) -> Vec<String> {
    let room = line_cells.max(CELLS_MIN);
    if cells_with_tabs(line) <= room {
        return vec![line.to_owned()];
    }
    let mut rows = Vec::new();
    let mut row = prefix.to_owned();
    let mut is_begun = false;
    for piece in pieces(&line[prefix.len()..]) {
        let is_full = cells_with_tabs(&row) + cells(piece.trim_end()) > room;
        if is_begun && is_full && !piece.trim().is_empty() {
            rows.push(std::mem::replace(&mut row, prefix.to_owned()).trim_end().to_owned());
        }
        row.push_str(piece);
        is_begun = true;
    }
    rows.push(row.trim_end().to_owned());
    rows
}

/// Words with the blanks after them; in scripts without blanks, single characters.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut before: Option<char> = None;
        let end = rest.char_indices().find_map(|(at, c)| {
            let is_break = before.is_some_and(|before| {
                before == ' ' && c != ' ' || (is_wide(before) || is_wide(c)) && c != ' ' && !holds_on(c)
            });
            before = Some(c);
            is_break.then_some(at)
        });
        let (piece, left) = rest.split_at(end.unwrap_or(rest.len()));
        rest = left;
        (!piece.is_empty()).then_some(piece)
    })
}

fn is_wide(c: char) -> bool {
    cells(c.encode_utf8(&mut [0; 4])) == 2
}

/// True for characters that stay with the one before: combining marks, and marks that close a sentence.
fn holds_on(c: char) -> bool {
    cells(c.encode_utf8(&mut [0; 4])) == 0 || "、。，．！？：；）」』】".contains(c)
}

fn cells_with_tabs(text: &str) -> usize {
    let mut parts = text.split('\t');
    let first = parts.next().map_or(0, cells);
    parts.fold(first, |at, part| (at / TAB + 1) * TAB + cells(part))
}

/// `Name: a, b, c` in lines of this many cells, broken between addresses; of very many only the first.
pub fn address_field(
    name: &str,
    addresses: &[String],
    line_cells: usize,
    paint_name: impl Fn(&str) -> String,
) -> String {
    const INDENT: &str = "    ";
    let mut lines: Vec<String> = Vec::new();
    let mut used = cells(name) + 1;
    let mut line = format!("{}:", paint_name(name));
    let mut shown = 0;
    for (at, address) in addresses.iter().enumerate() {
        let address = harmless(address) + if at + 1 < addresses.len() { "," } else { "" };
        if shown > 0 && used + 1 + cells(&address) > line_cells {
            lines.push(std::mem::take(&mut line));
            if lines.len() == ADDRESS_LINES_MAX {
                break;
            }
            (line, used) = (INDENT[1..].to_owned(), INDENT.len() - 1);
        }
        line.push(' ');
        line.push_str(&address);
        used += 1 + cells(&address);
        shown += 1;
    }
    if line.is_empty() {
        lines.push(format!("{INDENT}and {} more", addresses.len() - shown));
    } else {
        lines.push(line);
    }
    lines.join("\n") + "\n"
}

/// `Name: text`, wrapped at words.
pub fn field(name: &str, text: &str, line_cells: usize, paint_name: impl Fn(&str) -> String) -> String {
    let whole = format!("{name}: {}", harmless(text));
    let rows = wrapped(&whole, "", line_cells);
    let first = rows[0].strip_prefix(name).unwrap_or(&rows[0]);
    let rest: String = rows[1..].iter().map(|row| format!("    {row}\n")).collect();
    format!("{}{first}\n{rest}", paint_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_words_and_quotes_keep_their_mark() {
        let check = |text: &str, expected: &str| assert_eq!(body(text, 20, false), expected, "{text}");
        check("one two three four five six\n\nseven\n", "one two three four\nfive six\n\nseven\n");
        check("> one two three four five six", "> one two three four\n> five six\n");
        check("> > one two three four five six", "> > one two three\n> > four five six\n");
        check("see https://example.org/a/very/long/path now", "see\nhttps://example.org/a/very/long/path\nnow\n");
        check("东京都的面包师傅会做很好的面包。", "东京都的面包师傅会做\n很好的面包。\n");
        check("  kept   as it is   ", "  kept   as it is   \n");
        check("\tone two three four", "\tone two\nthree four\n");
        check("a\x1b[2Jb\u{202e}c\rd", "a\u{fffd}[2Jbc\u{fffd}d\n");
        check("| a long row | of a table |", "| a long row | of a\ntable |\n");
    }

    #[test]
    fn quotes_and_signatures_are_dim() {
        let text = "hello\n> quoted\nbye\n-- \nAnn\n";
        assert_eq!(body(text, 80, true), "hello\n\x1b[2m> quoted\x1b[0m\nbye\n\x1b[2m-- \x1b[0m\n\x1b[2mAnn\x1b[0m\n");
        assert_eq!(body(text, 80, false), text);
    }

    #[test]
    fn long_lists_of_addresses_are_folded_and_cut() {
        let addresses: Vec<String> = (0..40).map(|n| format!("a{n}@example.org")).collect();
        let shown = address_field("Cc", &addresses, 40, str::to_owned);
        assert!(
            shown.starts_with("Cc: a0@example.org, a1@example.org,\n    a2@example.org, a3@example.org,\n"),
            "{shown}"
        );
        assert!(shown.ends_with("\n    and 30 more\n"), "{shown}");
        assert!(shown.lines().all(|line| cells(line) <= 40), "{shown}");
        assert_eq!(address_field("To", &addresses[..1], 4, str::to_owned), "To: a0@example.org\n");
        let all = address_field("Cc", &addresses[..10], 40, str::to_owned);
        assert!(all.ends_with("a9@example.org\n") && all.lines().count() == 5, "{all}");
        assert_eq!(field("Subject", "one two three", 16, str::to_owned), "Subject: one two\n    three\n");
    }
}
