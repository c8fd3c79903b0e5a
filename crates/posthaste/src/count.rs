//! `posthaste count`: the number of matching messages, threads or files, as `notmuch count` prints it.

use std::collections::HashSet;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use posthaste_search::Searcher;

use crate::exclude::Exclude;
use crate::search_common::{Failure, IndexDir, parse};
use crate::terminal::print;

#[derive(Args)]
pub struct Count {
    /// The query; default: all messages
    #[arg(value_name = "QUERY", trailing_var_arg = true)]
    query: Vec<String>,
    #[command(flatten)]
    index: IndexDir,
    /// What to count; files with the same Message-ID are one message
    #[arg(long, value_enum, default_value = "messages")]
    output: Output,
    /// Read queries from standard input, one on each line, and print a number for each
    #[arg(long, conflicts_with = "query")]
    batch: bool,
    #[command(flatten)]
    exclude: Exclude,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Messages,
    Threads,
    Files,
}

/// Exit status 0 even without a match: the number shows it.
pub fn run(args: Count) -> Result<ExitCode, Failure> {
    let searcher = args.index.open()?;
    if !args.batch {
        print(&format!("{}\n", count(&args, &searcher, &args.query)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in std::io::stdin().lines() {
        print(&format!("{}\n", count(&args, &searcher, &[line?])?))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn count(args: &Count, searcher: &Searcher, words: &[String]) -> Result<u64, Failure> {
    let found = args.exclude.rule().find(searcher, &parse(words, searcher)?)?;
    Ok(match args.output {
        Output::Files => found.count(),
        Output::Messages => searcher.without_duplicates(&found)?.count(),
        Output::Threads => {
            let threads = searcher.threads_of(&found.iter().collect::<Vec<u32>>())?;
            threads.into_iter().collect::<HashSet<u32>>().len() as u64
        }
    })
}
