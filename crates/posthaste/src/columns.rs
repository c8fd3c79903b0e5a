//! Columns of a table on a terminal, cut or padded to one width.

use std::io::{IsTerminal, stdout};

use unicode_width::UnicodeWidthChar;

/// Width of the terminal in cells; `None` if standard output is not a terminal.
pub fn of_terminal() -> Option<usize> {
    let out = stdout();
    let size = out.is_terminal().then(|| rustix::termios::tcgetwinsize(&out).ok())??;
    // One that does not know says 0.
    Some(usize::from(size.ws_col)).filter(|&cells| cells > 0)
}

/// The width of the column for these texts.
pub fn width<'t>(texts: impl Iterator<Item = &'t str>) -> usize {
    texts.map(cells).max().unwrap_or(0)
}

/// `text` cut or padded to exactly `width` cells.
pub fn fit(text: &str, width: usize) -> String {
    let mut out = cut(text, width);
    out.push_str(&" ".repeat(width.saturating_sub(cells(&out))));
    out
}

/// `text` cut to at most `width` cells.
pub fn cut(text: &str, width: usize) -> String {
    if cells(text) <= width {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut used = 0;
    for c in text.chars() {
        // Room for the mark.
        if used + cells_of(c) + 1 > width {
            break;
        }
        used += cells_of(c);
        out.push(c);
    }
    if used < width {
        out.push('…');
    }
    out
}

/// Width of a text in cells.
pub fn cells(text: &str) -> usize {
    text.chars().map(cells_of).sum()
}

fn cells_of(c: char) -> usize {
    c.width().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_and_filled_up_to_a_width() {
        for (text, width, expected) in [
            ("Ann", 5, "Ann  "),
            ("Annabel", 5, "Anna…"),
            ("Annabel", 7, "Annabel"),
            ("梁礼学", 7, "梁礼学 "),
            ("梁礼学", 5, "梁礼…"),
            ("梁礼学", 4, "梁… "),
            ("e\u{301}a", 3, "e\u{301}a "),
            ("x", 0, ""),
            ("", 2, "  "),
        ] {
            assert_eq!(fit(text, width), expected, "{text} in {width}");
        }
        assert_eq!(cut("梁礼学", 4), "梁…");
        assert_eq!(width(["Ann", "梁礼学"].into_iter()), 6);
    }
}
