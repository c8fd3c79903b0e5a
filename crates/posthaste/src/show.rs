//! `posthaste show`: messages and whole threads as `notmuch show` prints them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::io::{IsTerminal, stdout};
use std::path::Path;
use std::process::ExitCode;

use clap::{ArgAction, Args, ValueEnum};
use posthaste_message::mime::{Kind, Message as Mail, Part};
use posthaste_search::{Bitmap, FoundMessage, Searcher, Sort};
use serde_json::{Value, json};

use crate::exclude::Exclude;
use crate::find_output::mbox;
use crate::mail_json::{self, Contents, body, headers, part_by_number};
use crate::notmuch_form::{relative_date, sexp, tags};
use crate::pager::PagerOption;
use crate::search_common::{Failure, IndexDir, Reader, nothing_found, parse};
use crate::terminal::{harmless, print, print_foreign, print_json};

#[derive(Args)]
pub struct Show {
    /// The query
    #[arg(value_name = "QUERY", required = true, trailing_var_arg = true)]
    query: Vec<String>,
    #[command(flatten)]
    index: IndexDir,
    /// Output format; raw: one message, or with --part one part, unchanged
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Ignored: there is one version of each form
    #[arg(long, hide = true)]
    format_version: Option<u32>,
    /// Whole threads, or only matching messages; default: whole threads in JSON and sexp
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    entire_thread: Option<bool>,
    /// Only this part, by its number in the other formats; 0 is the whole message
    #[arg(long, value_name = "N")]
    part: Option<usize>,
    /// Whether to print the bodies
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    body: bool,
    /// Include the content of HTML parts
    #[arg(long)]
    include_html: bool,
    /// Sort order of threads
    #[arg(long, value_enum, default_value = "newest-first")]
    sort: Order,
    #[command(flatten)]
    exclude: Exclude,
    #[command(flatten)]
    pager: PagerOption,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    Sexp,
    Mbox,
    Raw,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    NewestFirst,
    OldestFirst,
}

/// Maximum depth; deeper replies are siblings. No front end draws more, and each level takes stack.
const DEPTH_MAX: usize = 100;

/// Exit status 1: no match.
pub fn run(args: Show) -> Result<ExitCode, Failure> {
    let searcher = args.index.open()?;
    let query = parse(&args.query, &searcher)?;
    let exclusion = args.exclude.rule();
    let matched = exclusion.find(&searcher, &query)?;
    if matched.count() == 0 {
        return Ok(nothing_found());
    }
    let default = if args.part.is_some() { Format::Raw } else { Format::Text };
    let format = args.format.unwrap_or(default);
    if args.part.is_some() || format == Format::Raw {
        return one(&args, &searcher, &matched, format);
    }
    let entire = args.entire_thread.unwrap_or(matches!(format, Format::Json | Format::Sexp));
    let shown = if entire { exclusion.whole_threads(&searcher, &query, &matched)? } else { matched.clone() };
    let threads = Threads::read(&searcher, &shown, &matched, args.sort)?;
    let contents = args.body.then_some(Contents { html: args.include_html });
    let mut reader = Reader::default();
    match format {
        Format::Json => print_json(&(threads.json(contents, &mut reader).to_string() + "\n"))?,
        Format::Sexp => print(&(sexp(&threads.json(contents, &mut reader)) + "\n"))?,
        Format::Mbox => mbox(threads.with_files(), &mut reader)?,
        Format::Text | Format::Raw => drop(args.pager.start().write(&threads.text(contents, &mut reader))?),
    }
    Ok(reader.exit_code())
}

/// One message, or one part of it.
fn one(args: &Show, searcher: &Searcher, matched: &Bitmap, format: Format) -> Result<ExitCode, Failure> {
    let numbers = searcher.page(&searcher.without_duplicates(matched)?, Sort::Date, false, 0, 2)?;
    let [number] = numbers[..] else {
        return Err("--part and --format raw need a query that matches one message; this one matches more".into());
    };
    let messages = searcher.messages(&[number])?;
    let mut reader = Reader::default();
    let Some(bytes) = reader.read(&messages[0].path) else { return Ok(reader.exit_code()) };
    let mail = Mail::parse(&bytes);
    let Some(wanted) = args.part.filter(|part| *part > 0) else {
        print_foreign(&bytes)?;
        return Ok(ExitCode::SUCCESS);
    };
    let part = part_by_number(&mail, wanted).ok_or_else(|| format!("the message has no part {wanted}"))?;
    let contents = Contents { html: args.include_html };
    match format {
        Format::Json => print_json(&(mail_json::part(&mail, part, contents).to_string() + "\n"))?,
        Format::Sexp => print(&(sexp(&mail_json::part(&mail, part, contents)) + "\n"))?,
        Format::Text if part.media_type().starts_with("text/") => {
            print_foreign(mail_json::text(part).as_bytes()).map(drop)?;
        }
        // A file may be made of it: its octets.
        _ => drop(print_foreign(&part.decoded())?),
    }
    Ok(ExitCode::SUCCESS)
}

/// Messages as trees; several files with one Message-ID are one message.
struct Threads {
    messages: Vec<FoundMessage>,
    is_hit: Vec<bool>,
    files: Vec<Vec<String>>,
    /// Tags of each message over all its files, since each file has its own flags.
    tags: Vec<BTreeSet<String>>,
    /// Indexes of the first messages of each thread.
    tops: Vec<Vec<usize>>,
    children: Vec<Vec<usize>>,
}

impl Threads {
    fn read(searcher: &Searcher, shown: &Bitmap, matched: &Bitmap, sort: Order) -> Result<Self, Failure> {
        let numbers = searcher.page(shown, Sort::Date, sort == Order::OldestFirst, 0, usize::MAX)?;
        // Threads in the order of their first hit; whatever else of them is shown comes along.
        let hits: Vec<u32> = numbers.iter().copied().filter(|number| matched.get(*number)).collect();
        let mut threads = searcher.threads_of(&hits)?;
        let mut known = HashSet::new();
        threads.retain(|thread| known.insert(*thread));
        let places: HashMap<u32, usize> =
            threads.into_iter().enumerate().map(|(place, thread)| (thread, place)).collect();
        let mut all = Self {
            messages: Vec::new(),
            is_hit: Vec::new(),
            files: Vec::new(),
            tags: Vec::new(),
            tops: vec![Vec::new(); places.len()],
            children: Vec::new(),
        };
        let mut by_id: HashMap<String, usize> = HashMap::new();
        let mut by_number: HashMap<u32, usize> = HashMap::new();
        // What each file answers, by message.
        let mut parents: Vec<Vec<u32>> = Vec::new();
        for message in searcher.messages(&numbers)? {
            let index = *by_id.entry(message.id.clone()).or_insert(all.messages.len());
            by_number.insert(message.number, index);
            if index == all.messages.len() {
                all.files.push(Vec::new());
                all.is_hit.push(false);
                all.tags.push(BTreeSet::new());
                all.children.push(Vec::new());
                parents.push(Vec::new());
                all.messages.push(message.clone());
            }
            all.is_hit[index] |= matched.get(message.number);
            all.files[index].push(message.path.to_string_lossy().into_owned());
            parents[index].push(message.parent);
            all.tags[index].extend(tags(&message));
        }
        let mut oldest_first: Vec<usize> = (0..all.messages.len()).collect();
        oldest_first.sort_unstable_by_key(|&index| all.messages[index].age());
        for index in oldest_first {
            // One file hangs under what it answers, the others under that file.
            let answered = parents[index].iter().filter_map(|parent| by_number.get(parent));
            match (answered.copied().find(|&parent| parent != index), places.get(&all.messages[index].thread)) {
                (Some(parent), _) => all.children[parent].push(index),
                (None, Some(&place)) => all.tops[place].push(index),
                (None, None) => {}
            }
        }
        all.cut_circles(&places);
        Ok(all)
    }

    fn with_files(&self) -> impl Iterator<Item = (&FoundMessage, Vec<&Path>)> {
        let files = self.files.iter().map(|files| files.iter().map(Path::new).collect());
        self.messages.iter().zip(files)
    }

    /// Breaks cycles. Where one message stands for several files, a file may reply to a reply of another. Such a cycle
    /// has no top and would not be shown, so its oldest message becomes a top.
    fn cut_circles(&mut self, places: &HashMap<u32, usize>) {
        loop {
            let shown: HashSet<usize> = self.ordered().into_iter().map(|(index, _)| index).collect();
            let hidden = (0..self.messages.len()).filter(|index| !shown.contains(index));
            let oldest = hidden.min_by_key(|&index| self.messages[index].age());
            let Some((oldest, place)) =
                oldest.and_then(|oldest| Some((oldest, *places.get(&self.messages[oldest].thread)?)))
            else {
                return;
            };
            self.children.iter_mut().for_each(|children| children.retain(|&child| child != oldest));
            self.tops[place].push(oldest);
        }
    }

    /// Messages in the order of the trees, with their depths, including those deeper than [`DEPTH_MAX`].
    fn ordered(&self) -> Vec<(usize, usize)> {
        let mut out = Vec::new();
        for &top in self.tops.iter().flatten() {
            let mut stack = vec![(top, 0)];
            while let Some((index, depth)) = stack.pop() {
                out.push((index, depth));
                stack.extend(self.children[index].iter().rev().map(|&child| (child, depth + 1)));
            }
        }
        out
    }

    fn json(&self, contents: Option<Contents>, reader: &mut Reader) -> Value {
        let rows: Vec<Value> =
            (0..self.messages.len()).map(|index| self.message_json(index, contents, reader)).collect();
        let threads = self.tops.iter().map(|tops| {
            let nodes = tops.iter().map(|&top| self.node(top, &rows, 0));
            Value::Array(nodes.collect())
        });
        Value::Array(threads.collect())
    }

    /// `[message, [replies]]`.
    fn node(&self, index: usize, rows: &[Value], depth: usize) -> Value {
        if depth < DEPTH_MAX {
            let answers: Vec<Value> =
                self.children[index].iter().map(|&child| self.node(child, rows, depth + 1)).collect();
            return json!([rows[index], answers]);
        }
        let mut below = Vec::new();
        let mut stack: Vec<usize> = self.children[index].iter().rev().copied().collect();
        while let Some(index) = stack.pop() {
            below.push(json!([rows[index], []]));
            stack.extend(self.children[index].iter().rev());
        }
        json!([rows[index], below])
    }

    /// Prints null for an unreadable message, as notmuch does for one it does not show; the replies hang below it.
    fn message_json(&self, index: usize, contents: Option<Contents>, reader: &mut Reader) -> Value {
        let message = &self.messages[index];
        let Some(bytes) = reader.read_any(self.files[index].iter().map(Path::new)) else { return Value::Null };
        let mail = Mail::parse(&bytes);
        let mut out = json!({
            "id": message.id, "match": self.is_hit[index], "excluded": false, "filename": self.files[index],
            "timestamp": message.date, "date_relative": relative_date(message.date), "tags": self.tags[index], "duplicate": 1,
            "crypto": {}, "headers": headers(&mail, &mail.root().header()),
        });
        if let Some(contents) = contents {
            out["body"] = body(&mail, contents);
        }
        out
    }

    fn text(&self, contents: Option<Contents>, reader: &mut Reader) -> String {
        // Where each piece begins; a terminal has no use for it.
        let mark = if stdout().is_terminal() { "" } else { "\x0c" };
        let mut out = String::new();
        for (index, depth) in self.ordered() {
            let message = &self.messages[index];
            let Some(bytes) = reader.read_any(self.files[index].iter().map(Path::new)) else { continue };
            let mail = Mail::parse(&bytes);
            let fields = headers(&mail, &mail.root().header());
            let field = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
            let _ = writeln!(
                out,
                "{mark}message{{ id:{} depth:{depth} match:{} excluded:0 filename:{}",
                harmless(&message.id),
                u8::from(self.is_hit[index]),
                harmless(&self.files[index][0])
            );
            let tags: Vec<&str> = self.tags[index].iter().map(String::as_str).collect();
            let line = format!("{} ({}) ({})", field("From"), relative_date(message.date), tags.join(" "));
            let _ = writeln!(out, "{mark}header{{\n{}", harmless(&line));
            header_lines(&mut out, &fields);
            let _ = writeln!(out, "{mark}header}}");
            if contents.is_some() {
                let _ = writeln!(out, "{mark}body{{");
                part_text(&mut out, &mail, mail.root(), mark, 0);
                let _ = writeln!(out, "{mark}body}}");
            }
            let _ = writeln!(out, "{mark}message}}");
        }
        out
    }
}

fn header_lines(out: &mut String, fields: &serde_json::Map<String, Value>) {
    for name in ["Subject", "From", "To", "Cc", "Bcc", "Date"] {
        if let Some(text) = fields.get(name).and_then(Value::as_str) {
            let _ = writeln!(out, "{name}: {}", harmless(text));
        }
    }
}

fn part_text(out: &mut String, mail: &Mail<'_>, part: Part<'_, '_>, mark: &str, depth: usize) {
    let is_attachment = part.disposition().is_some_and(|disposition| disposition == "attachment");
    let kind = if is_attachment { "attachment" } else { "part" };
    let name = part.file_name().map(|name| format!(", Filename: {}", harmless(&name))).unwrap_or_default();
    let media_type = harmless(&part.media_type());
    let _ = writeln!(out, "{mark}{kind}{{ ID: {}{name}, Content-type: {media_type}", mail_json::number(part));
    match part.kind() {
        Kind::Leaf if media_type.starts_with("text/") && media_type != "text/html" => {
            for line in mail_json::text(part).lines() {
                let _ = writeln!(out, "{}", line.split('\t').map(harmless).collect::<Vec<_>>().join("\t"));
            }
        }
        Kind::Leaf => drop(writeln!(out, "Non-text part: {media_type}")),
        Kind::Multipart | Kind::Message if depth > DEPTH_MAX => {}
        Kind::Multipart => part.children().for_each(|child| part_text(out, mail, child, mark, depth + 1)),
        Kind::Message => {
            for root in part.children() {
                let _ = writeln!(out, "{mark}header{{");
                header_lines(out, &headers(mail, &root.header()));
                let _ = writeln!(out, "{mark}header}}\n{mark}body{{");
                part_text(out, mail, root, mark, depth + 1);
                let _ = writeln!(out, "{mark}body}}");
            }
        }
    }
    let _ = writeln!(out, "{mark}{kind}}}");
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use posthaste_search::state::NO_PARENT;

    use super::*;

    #[test]
    fn a_circle_of_answers_is_shown() {
        let message = |number: u32| FoundMessage {
            number,
            date: i64::from(number),
            size: 0,
            flags: 0,
            thread: 7,
            parent: NO_PARENT,
            tags: Vec::new(),
            folder: String::new(),
            path: PathBuf::new(),
            id: number.to_string(),
            head: posthaste_search::Head::default(),
        };
        // 1 answers 2, which answers 1; 3 answers 2. 0 stands alone.
        let mut threads = Threads {
            messages: (0..4).map(message).collect(),
            is_hit: vec![true; 4],
            files: vec![Vec::new(); 4],
            tags: vec![BTreeSet::new(); 4],
            tops: vec![vec![0]],
            children: vec![vec![], vec![2], vec![1, 3], vec![]],
        };
        threads.cut_circles(&HashMap::from([(7, 0)]));
        assert_eq!(threads.ordered(), [(0, 0), (1, 0), (2, 1), (3, 2)]);
    }
}
