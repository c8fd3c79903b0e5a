//! Messages as lines: one for each, or threads as trees. On a terminal in columns, fitted to its width.

use std::fs;
use std::path::Path;

use posthaste_search::state::bits;
use posthaste_search::text::{base_subject, extract};
use posthaste_search::{FoundMessage, tree};

use crate::columns;
use crate::find_output::{Field, value};
use crate::terminal::harmless;

/// Style of plain lines.
#[derive(Default)]
pub struct Style {
    pub colours: bool,
    pub summary_lines: usize,
    /// Width of the terminal in cells, which limits a line.
    pub line_cells: Option<usize>,
}

/// Maximum cells of names in columns; longer ones are cut.
const NAME_CELLS_MAX: usize = 24;
/// A terminal of 80 cells shows the innermost 13 levels of a thread, in a third of a line.
const CELLS_A_LEVEL: usize = 6;
/// Minimum cells of a subject, however narrow the terminal.
pub const SUBJECT_CELLS_MIN: usize = 16;

/// One line for each message. Missing values take no room, except in the columns on a terminal.
pub fn plain(messages: &[FoundMessage], fields: &[Field], style: &Style) -> String {
    let row = |message| fields.iter().map(|&field| harmless(&value(field, message))).collect();
    let mut rows: Vec<Vec<String>> = messages.iter().map(row).collect();
    if style.line_cells.is_some() {
        line_up(&mut rows, fields, style);
    }
    lines(rows, fields, messages, style)
}

/// Like [`plain`], with threads as trees. Fields before the subject are in columns, so that branches line up. A subject
/// that repeats the line above is left out.
pub fn trees(messages: &[FoundMessage], fields: &[Field], style: &Style) -> String {
    let tree = tree(messages);
    let levels_max = style.line_cells.map_or(usize::MAX, |cells| cells / CELLS_A_LEVEL);
    let mut rows = Vec::new();
    let mut above = None;
    for line in &tree {
        let message = &messages[line.index];
        let subject = base_subject(&message.head.subject).text;
        let is_repeated = !line.more.is_empty() && !subject.is_empty() && above.as_ref() == Some(&subject);
        let values = fields.iter().map(|&field| match field {
            Field::Subject if is_repeated => line.branch(levels_max),
            Field::Subject => format!("{}{}", line.branch(levels_max), value(field, message)),
            _ => value(field, message),
        });
        rows.push(values.map(|value| harmless(&value)).collect::<Vec<String>>());
        above = Some(subject);
    }
    line_up(&mut rows, fields, style);
    lines(rows, fields, tree.iter().map(|line| &messages[line.index]), style)
}

/// Aligns the fields before the subject in columns. Names are cut to leave room for the subject; fields that users copy
/// are never cut.
fn line_up(rows: &mut [Vec<String>], fields: &[Field], style: &Style) {
    let in_columns = fields.iter().position(|&field| field == Field::Subject).unwrap_or(0);
    let name_cells = style.line_cells.map_or(NAME_CELLS_MAX, |cells| (cells / 4).min(NAME_CELLS_MAX));
    for (column, field) in fields[..in_columns].iter().enumerate() {
        let width = columns::width(rows.iter().map(|row| row[column].as_str()));
        let is_name = matches!(field, Field::From | Field::To | Field::Cc);
        let width = if is_name { width.min(name_cells) } else { width };
        rows.iter_mut().for_each(|row| row[column] = columns::fit(&row[column], width));
    }
}

fn lines<'m>(
    rows: Vec<Vec<String>>,
    fields: &[Field],
    messages: impl IntoIterator<Item = &'m FoundMessage>,
    style: &Style,
) -> String {
    let mut out = String::new();
    for (mut row, message) in rows.into_iter().zip(messages) {
        if let (Some(cells), Some(subject)) = (style.line_cells, fields.iter().position(|&f| f == Field::Subject)) {
            let others = row.iter().enumerate().filter(|(column, value)| *column != subject && !value.is_empty());
            let taken: usize = others.map(|(_, value)| columns::cells(value) + GAP.len()).sum();
            row[subject] = columns::cut(&row[subject], cells.saturating_sub(taken).max(SUBJECT_CELLS_MIN));
        }
        let values = fields.iter().zip(&row).filter(|(_, value)| !value.is_empty());
        let parts: Vec<String> = values.map(|(&field, value)| paint(field, value, message, style)).collect();
        out.push_str(parts.join(GAP).trim_end());
        out.push('\n');
        if style.summary_lines > 0 {
            out.push_str(&summary(&message.path, style.summary_lines));
        }
    }
    out
}

fn paint(field: Field, value: &str, message: &FoundMessage, style: &Style) -> String {
    if !style.colours {
        return value.to_owned();
    }
    let code = match field {
        Field::Date => "36",
        Field::From => "32",
        Field::Tags | Field::Flags => "33",
        Field::Subject if bits::is_unread(message.flags) => "1",
        _ => return value.to_owned(),
    };
    format!("\x1b[{code}m{value}\x1b[0m")
}

/// The first lines of the text that are neither empty nor quoted.
fn summary(path: &Path, lines: usize) -> String {
    let Ok(bytes) = fs::read(path) else { return String::new() };
    let text = extract(&bytes).body;
    let wanted = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('>')).take(lines);
    wanted.map(|line| format!("    {}\n", harmless(line))).collect()
}

/// Separator of columns.
const GAP: &str = "  ";

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use posthaste_search::Head;
    use posthaste_search::state::NO_PARENT;

    use super::*;

    fn message(number: u32, from: &str, subject: &str, tags: &[&str]) -> FoundMessage {
        FoundMessage {
            number,
            date: i64::from(number),
            size: 0,
            flags: 0,
            thread: 0,
            parent: number.checked_sub(1).unwrap_or(NO_PARENT),
            tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
            folder: "/a/folder/with/a/long/name".to_owned(),
            path: PathBuf::new(),
            id: String::new(),
            head: Head { from: from.to_owned(), subject: subject.to_owned(), ..Head::default() },
        }
    }

    fn messages() -> [FoundMessage; 3] {
        [
            message(0, "梁礼学 <l@example.org>", "Rye bread and how it is made", &["todo"]),
            message(1, "", "An oven", &[]),
            message(2, "Somebody With A Long Name <s@example.org>", "Re: 东京都的面包师傅", &[]),
        ]
    }

    const FIELDS: [Field; 3] = [Field::From, Field::Subject, Field::Tags];

    #[test]
    fn on_a_terminal_lines_stand_in_columns_and_end_where_it_does() {
        let style = Style { line_cells: Some(36), ..Style::default() };
        let expected = "梁礼学     Rye bread and ho…  (todo)\n           An oven\nSomebody…  Re: 东京都的面包师傅\n";
        assert_eq!(plain(&messages(), &FIELDS, &style), expected);
        let whole =
            "梁礼学  Rye bread and how it is made  (todo)\nAn oven\nSomebody With A Long Name  Re: 东京都的面包师傅\n";
        assert_eq!(plain(&messages(), &FIELDS, &Style::default()), whole);
        // What one copies is whole in any case, and something of the subject is always to be seen.
        let fields = [Field::Maildir, Field::Subject];
        let first = "/a/folder/with/a/long/name  Rye bread and h…\n";
        assert_eq!(plain(&messages()[..1], &fields, &style), first);
        assert_eq!(trees(&messages()[..1], &fields, &style), first);
    }

    #[test]
    fn deep_threads_keep_their_subjects_on_a_narrow_terminal() {
        let style = Style { line_cells: Some(12), ..Style::default() };
        let expected = "Rye bread and h…\n└▸An oven\n  └▸Re: 东京都…\n";
        assert_eq!(trees(&messages(), &[Field::Subject], &style), expected);
        let deep: Vec<FoundMessage> = (0..9).map(|number| message(number, "", &format!("{number}"), &[])).collect();
        assert!(trees(&deep, &[Field::Subject], &style).ends_with("  └▸7\n  └▸8\n"));
    }
}
