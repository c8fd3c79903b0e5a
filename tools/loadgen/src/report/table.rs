//! A table in the three formats of reports.

use std::fmt::Write as _;

use super::plot::escape;

const NO_ERROR: &str = "a String takes everything";

/// Columns with names, and rows. Words are aligned left, figures right.
#[derive(Debug, Clone, Default)]
pub struct Table {
    columns: Vec<(String, Kind)>,
    rows: Vec<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Words,
    Figures,
    /// Text from a program, shown unchanged.
    Verbatim,
}

impl Table {
    /// Adds a column of words.
    pub fn words(self, name: impl Into<String>) -> Self {
        self.column(name, Kind::Words)
    }

    /// Adds a column of figures.
    pub fn figures(self, name: impl Into<String>) -> Self {
        self.column(name, Kind::Figures)
    }

    /// Adds a column of text from a program.
    pub fn verbatim(self, name: impl Into<String>) -> Self {
        self.column(name, Kind::Verbatim)
    }

    fn column(mut self, name: impl Into<String>, kind: Kind) -> Self {
        self.columns.push((name.into(), kind));
        self
    }

    /// Adds a row, which has a cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(cells.len(), self.columns.len(), "{cells:?} under {:?}", self.columns);
        self.rows.push(cells);
    }

    fn has_names(&self) -> bool {
        self.columns.iter().any(|(name, _)| !name.is_empty())
    }

    fn lines(&self) -> impl Iterator<Item = Vec<&str>> {
        let names = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        std::iter::once(names).chain(self.rows.iter().map(|row| row.iter().map(String::as_str).collect()))
    }

    /// Width of each column: its widest cell as formatted by `shown`.
    fn widths(&self, shown: impl Fn(&str) -> usize) -> Vec<usize> {
        let widest = |column: usize| self.lines().map(|line| shown(line[column])).max().unwrap_or(0);
        (0..self.columns.len()).map(widest).collect()
    }

    /// The table for a terminal: two blanks before each column.
    pub fn to_text(&self) -> String {
        let widths = self.widths(|cell| cell.chars().count());
        let mut text = String::new();
        for cells in self.lines().skip(usize::from(!self.has_names())) {
            let mut line = String::new();
            for ((cell, (_, kind)), width) in cells.iter().zip(&self.columns).zip(&widths) {
                match kind {
                    Kind::Figures => write!(line, "  {cell:>width$}"),
                    Kind::Words | Kind::Verbatim => write!(line, "  {cell:<width$}"),
                }
                .expect(NO_ERROR);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// The table in Markdown, aligned so that its source is readable too.
    pub fn to_markdown(&self) -> String {
        let safe = |cell: &str| cell.replace('|', "\\|");
        let widths = self.widths(|cell| safe(cell).chars().count().max(3));
        let mut text = String::new();
        for (index, cells) in self.lines().enumerate() {
            for ((cell, (_, kind)), width) in cells.iter().zip(&self.columns).zip(&widths) {
                let cell = safe(cell);
                match kind {
                    Kind::Figures => write!(text, "| {cell:>width$} "),
                    Kind::Words | Kind::Verbatim => write!(text, "| {cell:<width$} "),
                }
                .expect(NO_ERROR);
            }
            text.push_str("|\n");
            if index == 0 {
                for ((_, kind), width) in self.columns.iter().zip(&widths) {
                    let end = if *kind == Kind::Figures { ":" } else { "-" };
                    write!(text, "| {}{end} ", "-".repeat(width - 1)).expect(NO_ERROR);
                }
                text.push_str("|\n");
            }
        }
        text
    }

    /// The table in HTML. `behind_name` returns the HTML of an extra column after each row's first cell.
    pub fn to_html(&self, behind_name: Option<&dyn Fn(usize) -> String>) -> String {
        let mut text = String::from("<table>");
        if self.has_names() {
            self.html_row(
                &mut text,
                "th",
                self.columns.iter().map(|(name, _)| name),
                behind_name.map(|_| String::new()),
            );
        }
        for (index, row) in self.rows.iter().enumerate() {
            self.html_row(&mut text, "td", row.iter(), behind_name.map(|cell| cell(index)));
        }
        text + "</table>"
    }

    fn html_row<'a>(
        &self,
        text: &mut String,
        tag: &str,
        cells: impl Iterator<Item = &'a String>,
        mut behind_name: Option<String>,
    ) {
        text.push_str("<tr>");
        for (cell, (_, kind)) in cells.zip(&self.columns) {
            let class = match kind {
                Kind::Words => "",
                Kind::Figures => " class=\"n\"",
                Kind::Verbatim => " class=\"text\"",
            };
            write!(text, "<{tag}{class}>{}</{tag}>", escape(cell)).expect(NO_ERROR);
            if let Some(cell) = behind_name.take() {
                write!(text, "<{tag}>{cell}</{tag}>").expect(NO_ERROR);
            }
        }
        text.push_str("</tr>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::default().words("").figures("a").figures("b").verbatim("said");
        table.row(["x", "1", "22", "250 <ok>"]);
        table.row(["yy", "333", "", "a|b"]);
        table
    }

    #[test]
    fn columns_are_aligned() {
        assert_eq!(table().to_text(), "        a   b  said\n  x     1  22  250 <ok>\n  yy  333      a|b\n");
        let mut nameless = Table::default().words("").figures("");
        nameless.row(["lost", "0"]);
        assert_eq!(nameless.to_text(), "  lost  0\n");
        assert_eq!(
            table().to_markdown(),
            "|     |   a |   b | said     |\n| --- | --: | --: | -------- |\n\
             | x   |   1 |  22 | 250 <ok> |\n| yy  | 333 |     | a\\|b     |\n"
        );
    }

    #[test]
    fn what_is_said_cannot_break_the_page() {
        let html = table().to_html(Some(&|row| format!("<b>{row}</b>")));
        assert!(html.contains("<td>x</td><td><b>0</b></td><td class=\"n\">1</td>"), "{html}");
        assert!(html.contains("<td class=\"text\">250 &lt;ok&gt;</td>"), "{html}");
        assert_eq!(html.matches("<tr>").count(), 3);
    }

    #[test]
    #[should_panic(expected = "under")]
    fn a_row_with_a_cell_too_few_is_our_mistake() {
        table().row(["x"]);
    }
}
