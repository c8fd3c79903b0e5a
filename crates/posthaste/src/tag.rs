//! `posthaste tag`: what a person says about messages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use posthaste_search::query::Query;
use posthaste_search::tags::check_tag;
use posthaste_search::{Indexer, Searcher};
use serde_json::json;

use crate::search_common::{Failure, IndexDir, nothing_found, parse, waiting};
use crate::terminal::{harmless, harmless_json, print};

#[derive(Args)]
#[command(
    override_usage = "posthaste tag [OPTIONS] +TAG|-TAG... [--] QUERY\n       posthaste tag --remove-all [+TAG...] [--] QUERY\n       posthaste tag [OPTIONS] --list|--dump|--restore FILE"
)]
pub struct Tag {
    /// Tags to add (+) and to take away (-), then a query
    #[arg(value_name = "+TAG|-TAG... QUERY", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
    #[command(flatten)]
    index: IndexDir,
    /// Take away all tags that are not added
    #[arg(long, conflicts_with_all = ["list", "dump", "restore"])]
    remove_all: bool,
    /// Print all tags and how many messages have them
    #[arg(long, conflicts_with_all = ["dump", "restore"])]
    list: bool,
    /// Print all tags of all messages, and saved queries, in notmuch's text format
    #[arg(long, conflicts_with = "restore")]
    dump: bool,
    /// Give messages the tags of a dump, `-` for standard input, and save its queries; messages and queries that it does not name stay as they are
    #[arg(long, value_name = "FILE")]
    restore: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Exit status 1: the query found nothing.
pub fn run(args: Tag) -> Result<ExitCode, Failure> {
    let dir = args.index.path()?;
    let writer = || Indexer::open(&dir, Some(&|| waiting(&dir)));
    if args.list {
        return list(&args.index.open()?, args.json);
    }
    if args.dump {
        args.index.open()?;
        print(&writer()?.dump_tags()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(file) = &args.restore {
        let text = read(file)?;
        args.index.open()?;
        let mut indexer = writer()?;
        // As below: a rebuild while we waited gives all messages other numbers.
        let (changed, queries) = indexer.restore_tags(&text, &ids(&args.index.open()?, &Query::All)?)?;
        print(&if args.json {
            json!({"changed": changed, "queries": queries}).to_string() + "\n"
        } else {
            let saved = if queries == 0 { String::new() } else { format!(", {queries} saved queries changed") };
            format!("{changed} messages changed{saved}\n")
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let (changes, query) = split(&args.words, args.remove_all)?;
    // What is wrong is said before waiting for a writer.
    parse(query, &args.index.open()?)?;
    let mut indexer = writer()?;
    // Searched while nobody else can write: numbers and messages belong together.
    let searcher = args.index.open()?;
    let messages = ids(&searcher, &parse(query, &searcher)?)?;
    if messages.is_empty() {
        return Ok(nothing_found());
    }
    let wanted =
        |sign| changes.iter().filter_map(|change| change.strip_prefix(sign)).map(str::to_owned).collect::<Vec<_>>();
    let (add, mut remove) = (wanted('+'), wanted('-'));
    if args.remove_all {
        let all = searcher.directory().tag_sets.iter().flatten().filter(|tag| !add.contains(tag));
        remove.extend(all.cloned().collect::<BTreeSet<String>>());
    }
    report(indexer.tag(&messages, &add, &remove)?, args.json)
}

fn split(words: &[String], remove_all: bool) -> Result<(&[String], &[String]), Failure> {
    let is_change = |word: &String| word.len() > 1 && word.starts_with(['+', '-']) && word != "--";
    let (changes, rest) = words.split_at(words.iter().take_while(|word| is_change(word)).count());
    let query = rest.strip_prefix(&["--".to_owned()]).unwrap_or(rest);
    if changes.is_empty() && !remove_all || query.is_empty() {
        return Err("name tags as +TAG or -TAG, then a query; `*` is all messages".into());
    }
    changes.iter().try_for_each(|change| check_tag(&change[1..]))?;
    Ok((changes, query))
}

fn ids(searcher: &Searcher, query: &Query) -> Result<Vec<(u32, String)>, Failure> {
    let numbers: Vec<u32> = searcher.find(query)?.iter().collect();
    let heads = searcher.heads(&numbers)?;
    Ok(numbers.into_iter().zip(heads).map(|(number, head)| (number, head.message_id)).collect())
}

fn read(file: &PathBuf) -> Result<String, Failure> {
    let fail = |error| format!("{}: {error}", file.display());
    if file.as_os_str() != "-" {
        return Ok(fs::read_to_string(file).map_err(fail)?);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(fail)?;
    Ok(text)
}

fn list(searcher: &Searcher, as_json: bool) -> Result<ExitCode, Failure> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let sets = &searcher.directory().tag_sets;
    for (set, count) in sets.iter().zip(searcher.messages_by_tag_set()?) {
        set.iter().for_each(|tag| *counts.entry(tag).or_default() += count);
    }
    counts.retain(|_, count| *count > 0);
    let text = if as_json {
        harmless_json(&(json!(counts).to_string() + "\n")).into_owned()
    } else {
        counts.iter().map(|(tag, count)| format!("{count:>7}  {}\n", harmless(tag))).collect()
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn report(changed: u64, as_json: bool) -> Result<ExitCode, Failure> {
    print(&if as_json {
        json!({"changed": changed}).to_string() + "\n"
    } else {
        format!("{changed} messages changed\n")
    })?;
    Ok(ExitCode::SUCCESS)
}
