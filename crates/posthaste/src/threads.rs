//! `posthaste threads`: conversations instead of messages, one line each.

use std::collections::HashMap;
use std::process::ExitCode;

use clap::Args;
use posthaste_search::state::bits;
use posthaste_search::{FoundMessage, Sort};
use serde_json::json;

use crate::columns;
use crate::exclude::Exclude;
use crate::find_lines::SUBJECT_CELLS_MIN;
use crate::find_output::{Field, sender, value};
use crate::pager::PagerOption;
use crate::search_common::{Failure, Source, local, nothing_found, parse};
use crate::terminal::{harmless, is_colourful, paint, print_json};

/// Maximum authors shown of a thread.
const WRITERS_MAX: usize = 4;
/// A narrower terminal shows no time of day.
const NARROW: usize = 80;

#[derive(Args)]
pub struct Threads {
    /// Query: threads with a matching message
    #[arg(value_name = "QUERY", trailing_var_arg = true)]
    query: Vec<String>,
    #[command(flatten)]
    source: Source,
    /// Maximum number of threads, newest first
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

/// Exit status 1: no match.
pub fn run(args: Threads) -> Result<ExitCode, Failure> {
    let searcher = args.source.open(&args.query)?;
    let query = parse(&args.query, &searcher)?;
    let exclusion = args.exclude.rule();
    let matched = exclusion.find(&searcher, &query)?;
    let all = exclusion.whole_threads(&searcher, &query, &matched)?;
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
        let messages: Vec<FoundMessage> = messages.by_ref().take(numbers.len()).collect();
        rows.push(row(*thread, &messages, hits, args.json, line_cells));
    }
    if args.json {
        print_json(&format!("[{}]\n", rows.join(",\n")))?;
    } else {
        args.pager.start().write(&rows.concat())?;
    }
    Ok(if order.is_empty() { nothing_found() } else { ExitCode::SUCCESS })
}

/// `messages` are newest first. On a terminal the subject is cut to fit `line_cells`, if enough of it remains.
fn row(thread: u32, messages: &[FoundMessage], hits: usize, as_json: bool, line_cells: Option<usize>) -> String {
    // Those without a date stand last and have only their files' times.
    let has_date = |message: &&FoundMessage| message.flags & bits::UNDATED == 0;
    let oldest = messages.iter().rev().find(has_date).or(messages.last());
    let (Some(newest), Some(oldest)) = (messages.first(), oldest) else { return String::new() };
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
    let names_of = |shown: usize| {
        let more = writers.len().saturating_sub(shown);
        let mut names = harmless(&writers[..writers.len().min(shown)].join(", "));
        if more > 0 {
            names.push_str(&format!(" and {more} more"));
        }
        names
    };
    let is_narrow = line_cells.is_some_and(|cells| cells < NARROW);
    let date = local(newest.date).strftime(if is_narrow { "%Y-%m-%d" } else { "%Y-%m-%d %H:%M" }).to_string();
    let tags = if tags.is_empty() { String::new() } else { format!(" ({})", tags.join(" ")) };
    let tags = harmless(&tags);
    let mut subject = harmless(&value(Field::Subject, oldest));
    let total = messages.len();
    let is_unread = messages.iter().any(|message| bits::is_unread(message.flags));
    // As `find` paints them.
    let line = |names: &str, subject: &str, tags: &str, colours: bool| {
        let painted =
            |code: &str, text: &str| if colours && !code.is_empty() { paint(code, text) } else { text.to_owned() };
        let date = painted("36", &date);
        let names = painted("32", names);
        let tags = painted("33", tags);
        let subject = painted(if is_unread { "1" } else { "" }, subject);
        format!("thread:{thread:08x}  {date} [{hits}/{total}] {names}; {subject}{tags}\n")
    };
    let Some(cells) = line_cells else { return line(&names_of(WRITERS_MAX), &subject, &tags, is_colourful()) };
    let left = cells.saturating_sub(columns::cells(line("", "", "", false).trim_end_matches('\n')));
    // Of many tags and names as much is shown as leaves the subject half of what is left; what one does not need is the other's.
    let tags = columns::cut(&tags, left / 4);
    let beside_tags = left.saturating_sub(columns::cells(&tags));
    let unused = beside_tags.saturating_sub(columns::cells(&subject));
    let names_cells = (left / 3).min(beside_tags.saturating_sub(SUBJECT_CELLS_MIN)).max(unused);
    let fits = (1..=WRITERS_MAX).rev().map(names_of).find(|names| columns::cells(names) <= names_cells);
    let names = fits.unwrap_or_else(|| columns::cut(&harmless(&writers[0]), names_cells));
    subject = columns::cut(&subject, left.saturating_sub(columns::cells(&tags) + columns::cells(&names)));
    line(&names, &subject, &tags, is_colourful())
}
