//! `posthaste addresses`: who writes and is written to.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::find_output::harmless;
use crate::search_common::{Failure, IndexDir, parse, print};

#[derive(Args)]
pub struct Addresses {
    /// Which messages to look at; without a query all
    #[arg(value_name = "QUERY", trailing_var_arg = true, allow_hyphen_values = true)]
    query: Vec<String>,
    #[command(flatten)]
    index: IndexDir,
    /// Only addresses and names with this in it, in any case
    #[arg(long, short = 'm', value_name = "TEXT")]
    matching: Option<String>,
    /// At most this many, those in most messages first
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Exit status 1: nothing was found.
pub fn run(args: Addresses) -> Result<ExitCode, Failure> {
    let query = parse(&args.query)?;
    let searcher = args.index.open()?;
    let mut rows = searcher.addresses(&searcher.find(&query)?)?;
    if let Some(text) = &args.matching {
        let text = posthaste_search::text::fold(text);
        rows.retain(|(name, address, _)| posthaste_search::text::fold(&format!("{name} <{address}>")).contains(&text));
    }
    rows.truncate(args.limit.unwrap_or(usize::MAX));
    let text = if args.json {
        let rows =
            rows.iter().map(|(name, address, count)| json!({"name": name, "address": address, "messages": count}));
        serde_json::Value::from_iter(rows).to_string() + "\n"
    } else {
        let row = |(name, address, count): &(String, String, u64)| match name.as_str() {
            "" => format!("{count:>7}  {}\n", harmless(address)),
            name => format!("{count:>7}  {} <{}>\n", harmless(name), harmless(address)),
        };
        rows.iter().map(row).collect()
    };
    print(&text)?;
    Ok(ExitCode::from(u8::from(rows.is_empty())))
}
