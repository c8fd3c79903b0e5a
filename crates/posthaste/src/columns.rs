//! Columns of a table on a terminal: what stands in them is cut or filled up to one width.

use unicode_width::UnicodeWidthChar;

/// Cells of a column; longer text is cut.
const CELLS_MAX: usize = 24;

/// The width for these texts.
pub fn width<'t>(texts: impl Iterator<Item = &'t str>) -> usize {
    texts.map(cells).max().unwrap_or(0).min(CELLS_MAX)
}

/// `text` in exactly so many cells.
pub fn fit(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut used = 0;
    let is_cut = cells(text) > width;
    for c in text.chars() {
        // Room for the mark.
        if is_cut && used + cells_of(c) + 1 > width {
            break;
        }
        used += cells_of(c);
        out.push(c);
    }
    if is_cut && used < width {
        out.push('…');
        used += 1;
    }
    out.push_str(&" ".repeat(width - used.min(width)));
    out
}

fn cells(text: &str) -> usize {
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
        assert_eq!(width(["Ann", "梁礼学"].into_iter()), 6);
        assert_eq!(width(["x".repeat(100).as_str()].into_iter()), CELLS_MAX);
    }
}
