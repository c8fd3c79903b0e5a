//! Columns of a table on a terminal: what stands in them is cut or filled up to one width.

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

/// Cells of a character on a terminal: the blocks that matter of Unicode's East Asian Width (UAX 11), and of what stands above or below others.
fn cells_of(c: char) -> usize {
    match u32::from(c) {
        0x0300..=0x036f | 0x200b..=0x200f | 0x20d0..=0x20ff | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f
        | 0x2e80..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1f64f
        | 0x1f900..=0x1f9ff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
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
