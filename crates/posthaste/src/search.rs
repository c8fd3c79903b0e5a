//! `posthaste search`: conversations as `notmuch search` prints them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use posthaste_search::{Bitmap, Exclusion, FoundMessage, Searcher, Sort};
use serde_json::{Value, json};

use crate::exclude::Exclude;
use crate::notmuch_form::{author, clean_subject, id_term, relative_date, sexp, tags, thread_id};
use crate::pager::PagerOption;
use crate::search_common::{Failure, IndexDir, nothing_found, parse};
use crate::terminal::{harmless, print, print_json};

#[derive(Args)]
pub struct Search {
    /// The query
    #[arg(value_name = "QUERY", trailing_var_arg = true)]
    query: Vec<String>,
    #[command(flatten)]
    index: IndexDir,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Ignored: there is one version of each form
    #[arg(long, hide = true)]
    format_version: Option<u32>,
    /// What to print
    #[arg(long, value_enum, default_value = "summary")]
    output: Output,
    /// Sort order of threads
    #[arg(long, value_enum, default_value = "newest-first")]
    sort: Order,
    /// Skip the first N results
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    offset: usize,
    /// Maximum number of results
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    exclude: Exclude,
    #[command(flatten)]
    pager: PagerOption,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    /// NUL instead of newlines; not for summaries
    #[value(name = "text0")]
    Nul,
    Json,
    Sexp,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A line for each thread
    Summary,
    Threads,
    Messages,
    Files,
    Tags,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    NewestFirst,
    OldestFirst,
}

/// The search that the options ask for, decided before the index is opened.
struct Plan {
    exclusion: Exclusion,
    /// A summary for each thread, or values.
    rows: Rows,
    is_oldest_first: bool,
    offset: usize,
    limit: usize,
}

#[derive(Clone, Copy)]
enum Rows {
    Summaries(SummaryForm),
    Values(Output, Format),
}

#[derive(Clone, Copy)]
enum SummaryForm {
    Text,
    Json,
    Sexp,
}

impl Plan {
    fn of(args: &Search) -> Result<Self, Failure> {
        let rows = match (args.output, args.format) {
            (Output::Summary, Format::Nul) => {
                return Err("--format text0 cannot be used with --output summary".into());
            }
            (Output::Summary, Format::Text) => Rows::Summaries(SummaryForm::Text),
            (Output::Summary, Format::Json) => Rows::Summaries(SummaryForm::Json),
            (Output::Summary, Format::Sexp) => Rows::Summaries(SummaryForm::Sexp),
            (output, format) => Rows::Values(output, format),
        };
        Ok(Self {
            exclusion: args.exclude.rule(),
            rows,
            is_oldest_first: args.sort == Order::OldestFirst,
            offset: args.offset,
            limit: args.limit.unwrap_or(usize::MAX),
        })
    }
}

/// Exit status 1: no match. (notmuch's is 0.)
pub fn run(args: Search) -> Result<ExitCode, Failure> {
    let plan = Plan::of(&args)?;
    let searcher = args.index.open()?;
    let query = parse(&args.query, &searcher)?;
    let matched = plan.exclusion.find(&searcher, &query)?;
    let is_empty = match plan.rows {
        Rows::Summaries(form) => {
            let all = plan.exclusion.whole_threads(&searcher, &query, &matched)?;
            write_summaries(&args.pager, form, summaries(&searcher, &plan, &matched, &all)?)?
        }
        Rows::Values(output, format) => {
            write_values(&args.pager, output, format, values(&searcher, &plan, output, &matched)?)?
        }
    };
    Ok(if is_empty { nothing_found() } else { ExitCode::SUCCESS })
}

/// The threads' messages, newest first. Threads are in the requested order of their matching messages.
fn summaries(searcher: &Searcher, plan: &Plan, matched: &Bitmap, all: &Bitmap) -> Result<Vec<Summary>, Failure> {
    let hits = searcher.page(matched, Sort::Date, plan.is_oldest_first, 0, usize::MAX)?;
    let mut known = HashSet::new();
    let order: Vec<u32> = searcher.threads_of(&hits)?.into_iter().filter(|thread| known.insert(*thread)).collect();
    let order: Vec<u32> = order.into_iter().skip(plan.offset).take(plan.limit).collect();
    let places: HashMap<u32, usize> = order.iter().enumerate().map(|(place, thread)| (*thread, place)).collect();
    let numbers = searcher.page(all, Sort::Date, false, 0, usize::MAX)?;
    let threads = searcher.threads_of(&numbers)?;
    let wanted: Vec<u32> = numbers
        .into_iter()
        .zip(threads)
        .filter(|(_, thread)| places.contains_key(thread))
        .map(|(number, _)| number)
        .collect();
    let mut members: Vec<Vec<FoundMessage>> = order.iter().map(|_| Vec::new()).collect();
    for message in searcher.messages(&wanted)? {
        members[places[&message.thread]].push(message);
    }
    Ok(members.iter().map(|messages| Summary::of(messages, matched, plan.is_oldest_first)).collect())
}

struct Summary {
    thread: u32,
    timestamp: i64,
    matched: usize,
    total: usize,
    files: usize,
    authors: String,
    subject: String,
    tags: BTreeSet<String>,
    /// Ids of matching messages, and of the others.
    ids: (Vec<String>, Vec<String>),
}

impl Summary {
    /// `messages` are newest first.
    fn of(messages: &[FoundMessage], matched: &Bitmap, is_oldest_first: bool) -> Self {
        let is_hit = |message: &&FoundMessage| matched.get(message.number);
        // Several files with one id are one message here. Which of them matched does not matter.
        let mut known: HashMap<&str, bool> = HashMap::new();
        for message in messages {
            *known.entry(&message.id).or_default() |= is_hit(&message);
        }
        let hits = known.values().filter(|is_hit| **is_hit).count();
        let first = if is_oldest_first { messages.iter().rev().find(is_hit) } else { messages.iter().find(is_hit) };
        let mut seen = HashSet::new();
        let mut names = |hit: bool| -> String {
            let wanted = messages
                .iter()
                .rev()
                .filter(|message| is_hit(message) == hit)
                .map(|message| author(&message.head.from));
            wanted.filter(|name| seen.insert(name.clone())).collect::<Vec<String>>().join(", ")
        };
        let hit = names(true);
        let other = names(false);
        let ids = |hit: bool| {
            let mut seen = HashSet::new();
            let wanted = messages.iter().rev().map(|message| message.id.as_str());
            wanted.filter(|id| known.get(id) == Some(&hit) && seen.insert(*id)).map(id_term).collect()
        };
        Self {
            thread: first.map_or(0, |message| message.thread),
            timestamp: first.map_or(0, |message| message.date),
            matched: hits,
            total: known.len(),
            files: messages.len(),
            authors: if other.is_empty() { hit } else { format!("{hit}| {other}") },
            subject: first.map(|message| clean_subject(&message.head.subject).to_owned()).unwrap_or_default(),
            tags: messages.iter().flat_map(tags).collect(),
            ids: (ids(true), ids(false)),
        }
    }

    fn text(&self) -> String {
        let files = if self.files == self.total { String::new() } else { format!("({})", self.files) };
        let tags: Vec<&str> = self.tags.iter().map(String::as_str).collect();
        format!(
            "thread:{} {:>12} [{}/{}{files}] {}; {} ({})\n",
            thread_id(self.thread),
            relative_date(self.timestamp),
            self.matched,
            self.total,
            harmless(&self.authors),
            harmless(&self.subject),
            harmless(&tags.join(" "))
        )
    }

    fn json(&self) -> Value {
        let query = |ids: &[String]| if ids.is_empty() { Value::Null } else { ids.join(" ").into() };
        json!({
            "thread": thread_id(self.thread), "timestamp": self.timestamp, "date_relative": relative_date(self.timestamp),
            "matched": self.matched, "total": self.total, "authors": self.authors, "subject": self.subject,
            "query": [query(&self.ids.0), query(&self.ids.1)], "tags": self.tags,
        })
    }
}

/// Writes the summaries. True if there are none.
fn write_summaries(pager: &PagerOption, form: SummaryForm, all: Vec<Summary>) -> Result<bool, Failure> {
    match form {
        SummaryForm::Text => {
            pager.start().write(&all.iter().map(Summary::text).collect::<String>())?;
        }
        SummaryForm::Json => write_json(all.iter().map(Summary::json))?,
        SummaryForm::Sexp => print(&(sexp(&all.iter().map(Summary::json).collect()) + "\n"))?,
    }
    Ok(all.is_empty())
}

fn write_json(rows: impl Iterator<Item = Value>) -> std::io::Result<()> {
    let rows: Vec<String> = rows.map(|row| row.to_string()).collect();
    print_json(&format!("[{}]\n", rows.join(",\n")))
}

/// The values, each once, in order.
fn values(searcher: &Searcher, plan: &Plan, output: Output, matched: &Bitmap) -> Result<Vec<String>, Failure> {
    let numbers = searcher.page(matched, Sort::Date, plan.is_oldest_first, 0, usize::MAX)?;
    let mut known = HashSet::new();
    let mut values: Vec<String> = match output {
        Output::Threads => searcher.threads_of(&numbers)?.into_iter().map(thread_id).collect(),
        Output::Tags => {
            let messages = searcher.messages(&numbers)?;
            return Ok(messages.iter().flat_map(tags).collect::<BTreeSet<String>>().into_iter().collect());
        }
        output => {
            let messages = searcher.messages(&numbers)?.into_iter();
            messages
                .map(|message| match output {
                    Output::Files => message.path.to_string_lossy().into_owned(),
                    _ => message.id,
                })
                .collect()
        }
    };
    values.retain(|value| !value.is_empty() && known.insert(value.clone()));
    Ok(values.into_iter().skip(plan.offset).take(plan.limit).collect())
}

/// Writes the values. True if there are none.
fn write_values(pager: &PagerOption, output: Output, format: Format, values: Vec<String>) -> Result<bool, Failure> {
    let shown = |value: &String| match output {
        Output::Threads => format!("thread:{value}"),
        Output::Messages => id_term(value),
        _ => value.clone(),
    };
    match format {
        Format::Text => {
            let lines: String = values.iter().map(|value| harmless(&shown(value)) + "\n").collect();
            pager.start().write(&lines)?;
        }
        Format::Nul => print(&values.iter().map(|value| shown(value) + "\0").collect::<String>())?,
        Format::Json => write_json(values.iter().map(|value| value.as_str().into()))?,
        Format::Sexp => print(&(sexp(&Value::from(values.clone())) + "\n"))?,
    }
    Ok(values.is_empty())
}
