//! `posthaste threads`: conversations instead of messages, a line each.

use std::collections::HashMap;
use std::process::ExitCode;

use clap::Args;
use posthaste_search::state::bits;
use posthaste_search::{Message, Sort};
use serde_json::json;

use crate::columns;
use crate::exclude::Exclude;
use crate::find_lines::SUBJECT_CELLS_MIN;
use crate::find_output::{Field, harmless, sender, value};
use crate::pager::PagerOption;
use crate::search_common::{Failure, IndexDir, is_colourful, local, parse, print};

/// Names of writers that are shown of a thread.
const WRITERS_MAX: usize = 4;

#[derive(Args)]
pub struct Threads {
    /// The query: threads with a message that matches
    #[arg(value_name = "QUERY", trailing_var_arg = true)]
    query: Vec<String>,
    #[command(flatten)]
    index: IndexDir,
    /// At most this many, newest first
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    exclude: Exclude,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pager: PagerOption,
}

/// Exit status 1: nothing was found.
pub fn run(args: Threads) -> Result<ExitCode, Failure> {
    let searcher = args.index.open()?;
    let query = parse(&args.query, &searcher)?;
    let matched = args.exclude.find(&searcher, &query)?;
    let all = args.exclude.whole_threads(&searcher, &query, &matched)?;
    let numbers = searcher.page(&all, Sort::Date, false, 0, usize::MAX)?;
    let threads = searcher.threads_of(&numbers)?;
    let mut order: Vec<u32> = Vec::new();
    let mut members: HashMap<u32, Vec<u32>> = HashMap::new();
    for (number, thread) in numbers.into_iter().zip(threads) {
        let known = members.entry(thread).or_default();
        if known.is_empty() {
            order.push(thread);
        }
        known.push(number);
    }
    order.truncate(args.limit.unwrap_or(usize::MAX));
    let line_cells = columns::of_terminal();
    // All at once: each call reads the numbers of all messages.
    let numbers: Vec<u32> = order.iter().flat_map(|thread| &members[thread]).copied().collect();
    let mut messages = searcher.messages(&numbers)?.into_iter();
    let mut rows = Vec::new();
    for thread in &order {
        let numbers = &members[thread];
        let hits = numbers.iter().filter(|number| matched.get(**number)).count();
        let messages: Vec<Message> = messages.by_ref().take(numbers.len()).collect();
        rows.push(row(*thread, &messages, hits, args.json, line_cells));
    }
    if args.json {
        print(&format!("[{}]\n", rows.join(",\n")))?;
    } else {
        args.pager.start().write(rows.concat().as_bytes())?;
    }
    Ok(ExitCode::from(u8::from(order.is_empty())))
}

/// `messages` newest first. On a terminal the subject is cut so that the line is no longer than `line_cells`, if that leaves enough of it.
fn row(thread: u32, messages: &[Message], hits: usize, as_json: bool, line_cells: Option<usize>) -> String {
    let (Some(newest), Some(oldest)) = (messages.first(), messages.last()) else { return String::new() };
    let mut writers: Vec<String> = Vec::new();
    let mut tags: Vec<&str> = Vec::new();
    for message in messages.iter().rev() {
        let writer = sender(&message.head.from);
        if !writers.contains(&writer) {
            writers.push(writer);
        }
        message.tags.iter().for_each(|tag| {
            if !tags.contains(&tag.as_str()) {
                tags.push(tag)
            }
        });
    }
    tags.sort_unstable();
    if as_json {
        return json!({
            "thread": format!("{thread:08x}"), "newest": newest.date, "oldest": oldest.date, "matched": hits, "total": messages.len(),
            "authors": writers, "subject": oldest.head.subject, "tags": tags,
        })
        .to_string();
    }
    let more = writers.len().saturating_sub(WRITERS_MAX);
    writers.truncate(WRITERS_MAX);
    let mut names = writers.join(", ");
    if more > 0 {
        names.push_str(&format!(" and {more} more"));
    }
    let date = local(newest.date).strftime("%Y-%m-%d %H:%M").to_string();
    let tags = if tags.is_empty() { String::new() } else { format!(" ({})", tags.join(" ")) };
    let (names, tags) = (harmless(&names), harmless(&tags));
    let mut subject = value(Field::Subject, oldest);
    let total = messages.len();
    let is_unread = messages.iter().any(|message| bits::is_unread(message.flags));
    // As `find` paints them.
    let line = |subject: &str, colours: bool| {
        let paint = |code: &str, text: &str| match colours && !code.is_empty() && !text.is_empty() {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        };
        let (date, names, tags) = (paint("36", &date), paint("32", &names), paint("33", &tags));
        let subject = paint(if is_unread { "1" } else { "" }, subject);
        format!("thread:{thread:08x}  {date} [{hits}/{total}] {names}; {subject}{tags}\n")
    };
    if let Some(cells) = line_cells {
        let taken = columns::cells(line("", false).trim_end_matches('\n'));
        subject = columns::cut(&subject, cells.saturating_sub(taken).max(SUBJECT_CELLS_MIN));
    }
    line(&harmless(&subject), is_colourful())
}
