//! `posthaste query`: saved queries, for `query:NAME` in other queries.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use posthaste_search::Indexer;
use posthaste_search::query::{SavedQueries, parse_with};
use serde_json::json;

use crate::columns;

use crate::search_common::{Failure, IndexDir, join, waiting};
use crate::terminal::{complain, harmless, harmless_json, print};

#[derive(Args)]
#[command(after_help = "For example:\n  \
    posthaste query save boss from:ann or from:bob\n  \
    posthaste find query:boss flag:unread\n\
    In notmuch that is `notmuch config set query.boss ...`, in mu a bookmark. `posthaste tag --dump` and `--restore` include them.")]
pub struct QueryArgs {
    #[command(subcommand)]
    command: QueryCommand,
}

#[derive(Subcommand)]
enum QueryCommand {
    /// Save a query under a name, replacing an existing one
    Save {
        name: String,
        #[arg(value_name = "QUERY", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        query: Vec<String>,
        #[command(flatten)]
        index: IndexDir,
    },
    /// List names and queries
    List {
        #[command(flatten)]
        index: IndexDir,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print one query; exit status 1 if the name does not exist
    Show {
        name: String,
        #[command(flatten)]
        index: IndexDir,
    },
    /// Delete a query; exit status 1 if the name does not exist
    Delete {
        name: String,
        #[command(flatten)]
        index: IndexDir,
    },
}

pub fn run(args: QueryArgs) -> Result<ExitCode, Failure> {
    match args.command {
        QueryCommand::Save { name, query, index } => save(&name, &query, &index),
        QueryCommand::List { index, json } => {
            let searcher = index.open()?;
            print(&list(&searcher.directory().queries, json))?;
            Ok(ExitCode::SUCCESS)
        }
        QueryCommand::Show { name, index } => match index.open()?.directory().queries.get(&name) {
            Some(text) => {
                print(&format!("{}\n", harmless(text)))?;
                Ok(ExitCode::SUCCESS)
            }
            None => Ok(no_such_query(&name)),
        },
        QueryCommand::Delete { name, index } => {
            let is_changed = writer(&index)?.save_query(&name, None)?;
            Ok(if is_changed { ExitCode::SUCCESS } else { no_such_query(&name) })
        }
    }
}

fn no_such_query(name: &str) -> ExitCode {
    complain(&format!("no saved query `{name}`"));
    ExitCode::from(1)
}

fn save(name: &str, query: &[String], index: &IndexDir) -> Result<ExitCode, Failure> {
    let text = join(query)?;
    let mut indexer = writer(index)?;
    // As it will be, so that a query which leads back to itself is refused here and not wherever it is used.
    let mut queries = index.open()?.directory().queries.clone();
    queries.insert(name.to_owned(), text.clone());
    parse_with(&text, &crate::search_common::now(), &queries).map_err(|error| error.show(&text))?;
    indexer.save_query(name, Some(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// Opens an existing index only: a query saved in a misspelled one would never be seen again.
fn writer(index: &IndexDir) -> Result<Indexer, Failure> {
    index.open()?;
    let dir = index.path()?;
    Ok(Indexer::open(&dir, Some(&|| waiting(&dir)))?)
}

fn list(queries: &SavedQueries, as_json: bool) -> String {
    if as_json {
        return harmless_json(&(json!(queries).to_string() + "\n")).into_owned();
    }
    let width = columns::width(queries.keys().map(String::as_str));
    queries.iter().map(|(name, text)| format!("{}  {}\n", columns::fit(name, width), harmless(text))).collect()
}
