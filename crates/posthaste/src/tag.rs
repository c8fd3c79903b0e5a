//! `posthaste tag`: the user's tags on messages.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use posthaste_search::flag_tags::FLAG_TAGS;
use posthaste_search::flag_tags::RestoredTags;
use posthaste_search::query::Query;
use posthaste_search::tags::{Restore, check_tag};
use posthaste_search::{Indexer, Searcher};
use posthaste_units::count;
use serde_json::json;

use crate::change::change_flags;
use crate::search_common::{Failure, IndexDir, nothing_found, parse, waiting};
use crate::terminal::{complain, harmless, harmless_json, print};

#[derive(Args)]
#[command(
    override_usage = "posthaste tag [OPTIONS] +TAG|-TAG... [--] QUERY\n       posthaste tag --remove-all [+TAG...] [--] QUERY\n       posthaste tag [OPTIONS] --list|--dump|--restore FILE"
)]
pub struct Tag {
    /// Tags to add (+) or remove (-), then a query
    #[arg(value_name = "+TAG|-TAG... QUERY", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    #[command(flatten)]
    index: IndexDir,
    /// Remove all other tags
    #[arg(long, conflicts_with_all = ["list", "dump", "restore"])]
    remove_all: bool,
    /// Print all tags with their message counts
    #[arg(long, conflicts_with_all = ["dump", "restore"])]
    list: bool,
    /// Print all tags of all messages, and saved queries, in notmuch's text format
    #[arg(long, conflicts_with = "restore")]
    dump: bool,
    /// Set tags and saved queries from a dump (`-`: standard input); messages and queries that it does not name stay unchanged
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    restore: Option<Option<PathBuf>>,
    /// With --restore: only add the dump's tags, remove none
    #[arg(long, requires = "restore")]
    accumulate: bool,
    /// With --restore: only show what would change
    #[arg(long, requires = "restore")]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Exit status 1: no match.
pub fn run(mut args: Tag) -> Result<ExitCode, Failure> {
    if let (Some(None), [_]) = (&args.restore, args.words.as_slice()) {
        // The file may follow the other options.
        args.restore = Some(args.words.pop().map(PathBuf::from));
    }
    if (args.list || args.dump || args.restore.is_some()) && !args.words.is_empty() {
        let word = &args.words[0];
        return Err(if args.dump {
            format!(
                "--dump prints all tags and takes no argument: `posthaste tag --dump > {word}` writes them to a file"
            )
            .into()
        } else {
            format!("unexpected `{word}`: --list and --restore apply to all messages").into()
        });
    }
    match &args.restore {
        _ if args.list => list(&*args.index.open()?, args.json),
        _ if args.dump => dump(&args.index),
        Some(file) => restore(&args, file.as_ref().ok_or("--restore needs a file, or `-` for standard input")?),
        None => change(&args),
    }
}

/// Waits until the index can be opened for writing.
fn writer(index: &IndexDir) -> Result<Indexer, Failure> {
    let dir = index.path()?;
    Ok(Indexer::open(&dir, Some(&|| waiting(&dir)))?)
}

fn dump(index: &IndexDir) -> Result<ExitCode, Failure> {
    index.open()?;
    let mut indexer = writer(index)?;
    let ids = if indexer.has_tags_of_files() { ids(&*index.open()?, &Query::All)? } else { Vec::new() };
    print(&indexer.dump_tags(&ids)?)?;
    Ok(ExitCode::SUCCESS)
}

fn restore(args: &Tag, file: &Path) -> Result<ExitCode, Failure> {
    let text = read(file)?;
    args.index.open()?;
    let mut indexer = writer(&args.index)?;
    // As in `change`: a rebuild while we waited gives all messages other numbers.
    let how = Restore { accumulate: args.accumulate, dry_run: args.dry_run };
    let searcher = args.index.open()?;
    let restored = indexer.restore_tags(&text, &ids(&searcher, &Query::All)?, how)?;
    drop(indexer);
    let RestoredTags { changed, replaced, tags_lost, queries, not_here, .. } = restored;
    let failed = if args.dry_run { 0 } else { change_flags(&args.index, &searcher, &restored.flags)?.failed };
    if replaced > 0 {
        let verb = if args.dry_run { "would lose" } else { "lost" };
        complain(&format!(
            "{} {verb} {} that the dump does not give; `--accumulate` keeps such tags",
            count(replaced, "message"),
            count(tags_lost, "tag")
        ));
    }
    print(&if args.json {
        json!({
            "changed": changed, "queries": queries, "messages_that_lost_tags": replaced, "tags_lost": tags_lost, "not_here": not_here,
        })
        .to_string()
            + "\n"
    } else {
        let done = if args.dry_run { "would be changed" } else { "changed" };
        let saved = match queries {
            0 => String::new(),
            1 => format!(", 1 saved query {done}"),
            queries => format!(", {queries} saved queries {done}"),
        };
        let later = match not_here {
            0 => String::new(),
            number => format!("; {} of the dump not in the index yet: tags apply on arrival", count(number, "message")),
        };
        format!("{} {done}{saved}{later}\n", count(changed, "message"))
    })?;
    Ok(ExitCode::from(u8::from(failed > 0)))
}

fn change(args: &Tag) -> Result<ExitCode, Failure> {
    if let Some(option @ ("--batch" | "--input")) = args.words.first().map(|word| word.split('=').next().unwrap_or(""))
    {
        return Err(format!(
            "there is no {option} here: `posthaste tag --restore FILE --accumulate` reads lines such as `+TAG -- id:MESSAGE-ID`, also from `-`"
        )
        .into());
    }
    let (changes, query) = split(&args.words, args.remove_all)?;
    // What is wrong is said before waiting for a writer.
    parse(query, &*args.index.open()?)?;
    let mut indexer = writer(&args.index)?;
    // Searched while nobody else can write: numbers and messages belong together.
    let searcher = args.index.open()?;
    let messages = ids(&searcher, &parse(query, &searcher)?)?;
    if messages.is_empty() {
        return Ok(nothing_found());
    }
    let wanted =
        |sign| changes.iter().filter_map(|change| change.strip_prefix(sign)).map(str::to_owned).collect::<Vec<_>>();
    let add = wanted('+');
    let mut remove = wanted('-');
    if args.remove_all {
        let all = searcher.directory().tag_sets.iter().flatten().cloned();
        let of_files = searcher.directory().tags_of_files().into_iter().map(str::to_owned);
        remove.extend(all.chain(of_files).filter(|tag| !add.contains(tag)).collect::<BTreeSet<String>>());
    }
    if !indexer.are_flags_tags() {
        hint_at_flags(&add, &remove);
    }
    let tagged = indexer.tag(&messages, &add, &remove)?;
    // The change of files brings the index up to date itself.
    drop(indexer);
    let outcome = change_flags(&args.index, &searcher, &tagged.flags)?;
    report(tagged.changed, args.json)?;
    Ok(ExitCode::from(u8::from(outcome.failed > 0)))
}

/// `tag:unread` also matches the file's flag, which the removal of a tag does not change.
fn hint_at_flags(add: &[String], remove: &[String]) {
    let named = FLAG_TAGS.iter().find(|(tag, _)| add.iter().chain(remove).any(|named| named == tag));
    if let Some((tag, letter)) = named {
        let sign = if remove.iter().any(|named| named == tag) == (*tag == "unread") { '+' } else { '-' };
        complain(&format!(
            "`{tag}` is also a flag of the file, which stays as it is: `posthaste find --flag {sign}{letter} QUERY` changes that, \
             or synchronize_flags in config.toml"
        ));
    }
}

fn split(words: &[String], remove_all: bool) -> Result<(&[String], &[String]), Failure> {
    let is_change = |word: &String| word.len() > 1 && word.starts_with(['+', '-']) && word != "--";
    let (changes, rest) = words.split_at(words.iter().take_while(|word| is_change(word)).count());
    let query = rest.strip_prefix(&["--".to_owned()]).unwrap_or(rest);
    if changes.is_empty() && !remove_all || query.is_empty() {
        return Err("give tags as +TAG or -TAG, then a query; `*` matches all messages".into());
    }
    changes.iter().try_for_each(|change| check_tag(&change[1..]))?;
    Ok((changes, query))
}

fn ids(searcher: &Searcher, query: &Query) -> Result<Vec<(u32, String)>, Failure> {
    let numbers: Vec<u32> = searcher.find(query)?.iter().collect();
    let heads = searcher.heads(&numbers)?;
    Ok(numbers.into_iter().zip(heads).map(|(number, head)| (number, head.message_id)).collect())
}

fn read(file: &Path) -> Result<String, Failure> {
    let fail = |error| format!("{}: {error}", file.display());
    if file.as_os_str() != "-" {
        return Ok(fs::read_to_string(file).map_err(fail)?);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => "standard input: this is not text in UTF-8".to_owned(),
        _ => format!("standard input: {error}"),
    })?;
    Ok(text)
}

fn list(searcher: &Searcher, as_json: bool) -> Result<ExitCode, Failure> {
    let counts = searcher.tag_counts()?;
    let text = if as_json {
        harmless_json(&(json!(counts).to_string() + "\n")).into_owned()
    } else {
        counts.iter().map(|(tag, count)| format!("{count:>7}  {}\n", harmless(tag))).collect()
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn report(changed: u64, as_json: bool) -> Result<(), Failure> {
    print(&if as_json {
        json!({"changed": changed}).to_string() + "\n"
    } else {
        count(changed, "message") + " changed\n"
    })?;
    Ok(())
}
