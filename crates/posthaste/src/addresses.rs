//! `posthaste addresses`: the addresses of senders and recipients.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use posthaste_search::AddressFields;
use serde_json::json;

use crate::exclude::Exclude;

use crate::search_common::{Failure, Source, nothing_found, parse};
use crate::terminal::{harmless, harmless_json, print};

#[derive(Args)]
pub struct Addresses {
    /// Query: whose addresses to list; default: all messages
    #[arg(value_name = "QUERY", trailing_var_arg = true)]
    query: Vec<String>,
    #[command(flatten)]
    source: Source,
    /// Only addresses and names that contain this text; case is ignored
    #[arg(long, short = 'm', value_name = "TEXT")]
    matching: Option<String>,
    /// Maximum number, most frequent first
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
    /// Only senders, or only recipients
    #[arg(long, value_enum)]
    output: Vec<Output>,
    #[command(flatten)]
    exclude: Exclude,
    /// Output format
    #[arg(long, short = 'o', value_enum, default_value = "plain")]
    format: Format,
    /// Print JSON
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    #[value(alias = "from")]
    Sender,
    Recipients,
    /// notmuch's: how often each occurs is always said
    #[value(hide = true)]
    Count,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Plain,
    Json,
    Csv,
    /// For mutt's `query_command`
    MuttAb,
}

/// First line of the output for mutt, which mutt shows above the addresses.
pub fn addresses_found(count: usize) -> String {
    if count == 1 { "1 address".to_owned() } else { format!("{count} addresses") }
}

/// Exit status 1: no address was found.
pub fn run(args: Addresses) -> Result<ExitCode, Failure> {
    let searcher = args.source.open(&args.query)?;
    let query = parse(&args.query, &searcher)?;
    let fields = match (args.output.contains(&Output::Sender), args.output.contains(&Output::Recipients)) {
        (true, false) => AddressFields::Sender,
        (false, true) => AddressFields::Recipients,
        _ => AddressFields::All,
    };
    let mut rows = searcher.addresses(&args.exclude.rule().find(&searcher, &query)?, fields)?;
    if let Some(text) = &args.matching {
        let text = posthaste_search::text::fold(text);
        rows.retain(|(name, address, _)| posthaste_search::text::fold(&format!("{name} <{address}>")).contains(&text));
    }
    rows.truncate(args.limit.unwrap_or(usize::MAX));
    let text = match if args.json { Format::Json } else { args.format } {
        Format::Json => {
            let rows =
                rows.iter().map(|(name, address, count)| json!({"name": name, "address": address, "messages": count}));
            harmless_json(&(serde_json::Value::from_iter(rows).to_string() + "\n")).into_owned()
        }
        Format::Plain => {
            rows.iter().map(|(name, address, count)| format!("{count:>7}  {}\n", full(name, address))).collect()
        }
        Format::Csv => {
            rows.iter().map(|(name, address, count)| format!("{},{},{count}\n", csv(name), csv(address))).collect()
        }
        Format::MuttAb => {
            let row = |(name, address, count): &Row| format!("{}\t{}\t{count}\n", harmless(address), harmless(name));
            // mutt shows the first line as a heading.
            addresses_found(rows.len()) + "\n" + &rows.iter().map(row).collect::<String>()
        }
    };
    print(&text)?;
    Ok(if rows.is_empty() { nothing_found() } else { ExitCode::SUCCESS })
}

type Row = (String, String, u64);

fn full(name: &str, address: &str) -> String {
    match name {
        "" => harmless(address),
        name => format!("{} <{}>", harmless(name), harmless(address)),
    }
}

/// Formats a field by RFC 4180 section 2.
fn csv(text: &str) -> String {
    let text = harmless(text);
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}
