//! `posthaste find`: prints the matches of a query in several formats.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, ValueEnum};
use posthaste_maildir::Flags;
use posthaste_search::query::{Leaf, Query};
use posthaste_search::{Bitmap, FoundMessage, MatchOrder, SearchPlan, Searcher, Sort};
use posthaste_units::count;

use crate::change::{Change, Task, change, parse_flags};
use crate::columns;
use crate::exclude::Exclude;
use crate::find_lines::{Style, plain, trees};
use crate::find_output::{self, Field, ordered};
use crate::notmuch_form::id_term;
use crate::pager::PagerOption;
use crate::search_common::{Failure, IndexDir, Reader, Source, nothing_found, parse};
use crate::terminal::{complain, harmless, is_colourful, print, print_json};

/// Default of `--fields`.
const FIELDS: &str = "date,from,subject,tags";

#[derive(Args)]
#[command(
    after_help = "Query: words, \"phrases\", word*, /regex/, and or not xor ( ); from: to: cc: recip: contact: subject: body: list: file: \
                        date:2024..2025 date:3d.. size:>1M flag:unread tag: maildir: mime: msgid: thread:{...} prio: header:NAME: query:. Without a query: everything."
)]
pub struct Find {
    /// The query
    #[arg(value_name = "QUERY", trailing_var_arg = true)]
    query: Vec<String>,
    #[command(flatten)]
    source: Source,
    /// Fields to show, in this order: date from to cc subject size flags tags maildir path msgid list thread prio, or mu's letters
    #[arg(long, short, value_name = "FIELDS", default_value = FIELDS)]
    fields: String,
    /// Output format
    #[arg(long, short = 'o', value_enum, default_value = "plain")]
    format: Format,
    /// Print JSON
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// What to print, as in notmuch; with --format plain, text0 or json
    #[arg(long, value_enum, conflicts_with = "fields")]
    output: Option<Output>,
    /// Only messages that this saved query also matches, as `query:NAME`
    #[arg(long, short = 'b', value_name = "NAME")]
    bookmark: Option<String>,
    /// Only messages whose files changed after this time (seconds since 1970)
    #[arg(long, value_name = "SECONDS")]
    after: Option<i64>,
    /// With --format links: the Maildir for the links
    #[arg(long, value_name = "DIR")]
    linksdir: Option<PathBuf>,
    /// With --format links: first remove the existing links
    #[arg(long)]
    clearlinks: bool,
    /// Sort order: date newest first, size largest first, names A to Z, relevance best first
    #[arg(long, short, visible_alias = "sortfield", value_enum, default_value = "date")]
    sort: By,
    /// Reverse the order
    #[arg(long, short = 'z')]
    reverse: bool,
    /// Maximum number of messages
    #[arg(long, short = 'n', visible_alias = "maxnum", value_name = "N")]
    limit: Option<usize>,
    /// Skip the first N results
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    offset: usize,
    /// Show threads as trees
    #[arg(long, short)]
    threads: bool,
    /// Also show the other messages of matching threads
    #[arg(long, short = 'r')]
    include_related: bool,
    /// Show only one of several messages with the same Message-ID
    #[arg(long, short = 'u')]
    skip_dups: bool,
    #[command(flatten)]
    exclude: Exclude,
    /// Print only the number of matches
    #[arg(long)]
    count: bool,
    /// Print this many lines of each message's text below it
    #[arg(long, value_name = "LINES", default_value_t = 0, hide_default_value = true)]
    summary_len: usize,
    /// Instead of printing, run this command for each message, with its file as the argument
    // Without a letter: in a query `-term` would run `rm`.
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["format", "json", "count"])]
    exec: Option<String>,
    /// Set and clear flags of each message's file, such as `+S-F`: D draft, F flagged, P passed, R replied, S seen, T trashed
    #[arg(long, value_name = "+FLAGS-FLAGS", allow_hyphen_values = true, value_parser = parse_flags, conflicts_with_all = ["format", "json", "count", "exec"])]
    flag: Option<(Flags, Flags)>,
    /// Move each message's file to this folder of its tree, such as `/Archive`
    #[arg(long = "move", value_name = "FOLDER", conflicts_with_all = ["format", "json", "count", "exec"])]
    folder: Option<String>,
    /// With --flag, --move and --exec: only show what would be done
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    pager: PagerOption,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    #[value(alias = "text")]
    Plain,
    /// NUL instead of newlines, for `xargs -0`
    #[value(name = "text0")]
    Nul,
    Json,
    Sexp,
    Mbox,
    Links,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Summary,
    /// Paths
    Files,
    /// Message-IDs
    Messages,
    /// Thread numbers, for `thread:`
    Threads,
    /// All tags of the matching messages
    Tags,
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    #[value(alias = "d", alias = "newest-first")]
    Date,
    /// Like date with --reverse
    OldestFirst,
    #[value(alias = "z")]
    Size,
    #[value(alias = "s")]
    Subject,
    #[value(alias = "f")]
    From,
    /// Rare words and words in the subject count most
    Relevance,
}

/// The action that the options select, with its arguments.
enum Action<'a> {
    Count,
    Exec(&'a str),
    /// Sets flags and moves files, in this index.
    Change(&'a IndexDir),
    Write(Form<'a>),
    WriteValues(Output, ValueForm),
}

/// Form of the messages.
enum Form<'a> {
    Plain(Vec<Field>),
    Nul(Vec<Field>),
    Json,
    Sexp,
    Mbox,
    /// Links in this directory.
    Links(&'a Path),
}

/// Form of values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueForm {
    Plain,
    Nul,
    Json,
}

impl Find {
    /// Fails for options that cannot be used together, before any mail is read.
    fn action(&self) -> Result<Action<'_>, Failure> {
        let fields = find_output::fields(&self.fields)?;
        let changes = self.flag.is_some() || self.folder.is_some();
        if changes && self.query.is_empty() && self.bookmark.is_none() {
            return Err("give a query for the messages to change; `*` matches all".into());
        }
        let index = changes.then(|| self.source.index()).transpose()?;
        if self.count {
            return Ok(Action::Count);
        }
        if let Some(command) = &self.exec {
            return Ok(Action::Exec(command));
        }
        if let Some(index) = index {
            return Ok(Action::Change(index));
        }
        if self.dry_run {
            return Err("--dry-run needs --flag, --move or --exec".into());
        }
        let format = if self.json { Format::Json } else { self.format };
        match self.output {
            None | Some(Output::Summary) => Ok(Action::Write(self.form(format, fields)?)),
            Some(output) => Ok(Action::WriteValues(output, value_form(format)?)),
        }
    }

    fn form(&self, format: Format, fields: Vec<Field>) -> Result<Form<'_>, Failure> {
        Ok(match format {
            Format::Plain => Form::Plain(fields),
            Format::Nul => Form::Nul(fields),
            Format::Json => Form::Json,
            Format::Sexp => Form::Sexp,
            Format::Mbox => Form::Mbox,
            Format::Links => Form::Links(self.linksdir.as_deref().ok_or("--format links needs --linksdir DIR")?),
        })
    }

    /// The messages that the options ask for.
    fn plan(&self) -> SearchPlan {
        let order = match self.sort {
            By::Date | By::OldestFirst => MatchOrder::By(Sort::Date),
            By::Size => MatchOrder::By(Sort::Size),
            By::Subject => MatchOrder::By(Sort::Subject),
            By::From => MatchOrder::By(Sort::From),
            By::Relevance => MatchOrder::Relevance,
        };
        SearchPlan {
            exclusion: self.exclude.rule(),
            whole_threads: self.include_related,
            skips_duplicates: self.skip_dups,
            order,
            reverse: self.reverse != matches!(self.sort, By::OldestFirst),
            offset: self.offset,
            limit: self.limit,
        }
    }

    /// The query with the conditions of other options.
    fn whole_query(&self, searcher: &Searcher) -> Result<Query, Failure> {
        let mut query = parse(&self.query, searcher)?;
        if let Some(name) = &self.bookmark {
            query = Query::And(vec![parse(&[format!("query:\"{name}\"")], searcher)?, query]);
        }
        if let Some(after) = self.after {
            query = Query::And(vec![query, Query::Leaf(Leaf::Changed(after.saturating_add(1)..i64::MAX))]);
        }
        Ok(query)
    }
}

fn value_form(format: Format) -> Result<ValueForm, Failure> {
    match format {
        Format::Plain => Ok(ValueForm::Plain),
        Format::Nul => Ok(ValueForm::Nul),
        Format::Json => Ok(ValueForm::Json),
        Format::Sexp | Format::Mbox | Format::Links => {
            Err("with --output, --format can be plain, text0 or json".into())
        }
    }
}

/// Exit status 1: no match.
pub fn run(args: Find) -> Result<ExitCode, Failure> {
    let action = args.action()?;
    let plan = args.plan();
    let searcher = args.source.open(&args.query)?;
    let query = args.whole_query(&searcher)?;
    let messages = || -> Result<_, Failure> { Ok(searcher.messages(&plan.page(&searcher, &query)?)?) };
    match action {
        Action::Count => print_count(&args, &searcher, &plan.found(&searcher, &query)?),
        Action::Exec(command) => exec(command, &messages()?, args.dry_run),
        Action::Change(index) => change_all(&args, index, &searcher, &messages()?),
        Action::Write(form) => write(&args, &form, &messages()?),
        Action::WriteValues(output, form) => write_values(&args, output, form, &messages()?),
    }
}

/// Prints the number of messages or threads. Exit status 1: no match.
fn print_count(args: &Find, searcher: &Searcher, found: &Bitmap) -> Result<ExitCode, Failure> {
    let count = match args.output {
        Some(Output::Threads) => {
            let threads = searcher.threads_of(&found.iter().collect::<Vec<u32>>())?;
            threads.into_iter().collect::<HashSet<u32>>().len() as u64
        }
        _ => found.count(),
    };
    print(&format!("{count}\n"))?;
    Ok(ExitCode::from(u8::from(count == 0)))
}

/// The values of a notmuch `--output`, each once.
fn values(output: Output, messages: &[FoundMessage], as_trees: bool, is_json: bool) -> Vec<String> {
    if let Output::Tags = output {
        return messages
            .iter()
            .flat_map(|message| &message.tags)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .cloned()
            .collect();
    }
    let value = |(message, _): (&FoundMessage, _)| match output {
        Output::Files => message.path.to_string_lossy().into_owned(),
        Output::Threads => format!("thread:{:08x}", message.thread),
        // As in notmuch: terms of a query, but in JSON the ids alone.
        Output::Messages if !is_json && !message.id.is_empty() => id_term(&message.id),
        Output::Messages | Output::Tags | Output::Summary => message.id.clone(),
    };
    let mut known = HashSet::new();
    let values = ordered(messages, as_trees).into_iter().map(value);
    values.filter(|value| !value.is_empty() && known.insert(value.clone())).collect()
}

/// Exit status 1: no match, or none with a tag.
fn write_values(args: &Find, output: Output, form: ValueForm, messages: &[FoundMessage]) -> Result<ExitCode, Failure> {
    let values = values(output, messages, args.threads, form == ValueForm::Json);
    let has_none = values.is_empty();
    match form {
        ValueForm::Plain => {
            let lines: String = values.iter().map(|value| harmless(value) + "\n").collect();
            args.pager.start().write(&lines)?;
        }
        ValueForm::Nul => print(&values.iter().map(|value| format!("{value}\0")).collect::<String>())?,
        ValueForm::Json => print_json(&(serde_json::Value::from(values).to_string() + "\n"))?,
    }
    if messages.is_empty() {
        return Ok(nothing_found());
    }
    if has_none {
        complain(&format!("{} found, none with a tag", count(messages.len(), "message")));
    }
    Ok(ExitCode::from(u8::from(has_none)))
}

/// Exit status 1: no match, or a message could not be changed.
fn change_all(
    args: &Find,
    index: &IndexDir,
    searcher: &Searcher,
    messages: &[FoundMessage],
) -> Result<ExitCode, Failure> {
    if messages.is_empty() {
        return Ok(nothing_found());
    }
    let (add, remove) = args.flag.unwrap_or_default();
    let tasks: Vec<Task> =
        messages.iter().map(|message| Task { message, add, remove, add_keywords: &[], remove_keywords: &[] }).collect();
    let how = Change { folder: args.folder.as_deref(), dry_run: args.dry_run };
    let outcome = change(index, searcher, &tasks, &how)?;
    let done = if args.dry_run { "would be changed" } else { "changed" };
    print(&format!("{} {done}\n", count(outcome.changed, "message")))?;
    Ok(ExitCode::from(u8::from(outcome.failed > 0)))
}

/// Exit status 1: no match, or the command failed for a message.
fn exec(command: &str, messages: &[FoundMessage], dry_run: bool) -> Result<ExitCode, Failure> {
    if messages.is_empty() {
        return Ok(nothing_found());
    }
    let mut failed = false;
    if dry_run {
        let lines = messages.iter().map(|message| format!("{command} {}\n", harmless(&message.path.to_string_lossy())));
        print(&lines.collect::<String>())?;
        return Ok(ExitCode::SUCCESS);
    }
    for message in messages {
        let status = Command::new("sh").args(["-c", &format!("{command} \"$1\""), "sh"]).arg(&message.path).status();
        failed |= !status.map_err(|error| format!("sh: {error}"))?.success();
    }
    Ok(ExitCode::from(u8::from(failed)))
}

/// Exit status 1: no match, or a message could not be read.
fn write(args: &Find, form: &Form<'_>, messages: &[FoundMessage]) -> Result<ExitCode, Failure> {
    let mut reader = Reader::default();
    match form {
        Form::Plain(fields) => {
            let line_cells = columns::of_terminal();
            let style = Style { colours: is_colourful(), summary_lines: args.summary_len, line_cells };
            args.pager.start().write(&text(args, fields, messages, &style))?;
        }
        // No field has a line end.
        Form::Nul(fields) => print(&text(args, fields, messages, &Style::default()).replace('\n', "\0"))?,
        Form::Json => print_json(&find_output::json(messages, args.threads))?,
        Form::Sexp => print(&find_output::sexp(messages, args.threads))?,
        Form::Mbox => find_output::mbox(messages.iter().map(|message| (message, vec![&*message.path])), &mut reader)?,
        Form::Links(dir) => find_output::links(messages, dir, args.clearlinks)?,
    }
    Ok(if messages.is_empty() { nothing_found() } else { reader.exit_code() })
}

fn text(args: &Find, fields: &[Field], messages: &[FoundMessage], style: &Style) -> String {
    if args.threads { trees(messages, fields, style) } else { plain(messages, fields, style) }
}
