//! `posthaste cfind`: addresses as `mu cfind` prints them.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use posthaste_search::AddressFields;
use posthaste_search::query::{Leaf, Query};
use serde_json::json;

use crate::addresses::addresses_found;
use crate::search_common::{Failure, IndexDir, nothing_found};
use crate::terminal::{harmless, harmless_json, print};

#[derive(Args)]
pub struct Cfind {
    /// A regular expression for name, address or `name <address>`; case is ignored
    #[arg(value_name = "PATTERN")]
    pattern: Option<String>,
    #[command(flatten)]
    index: IndexDir,
    /// Output format
    #[arg(long, short = 'o', value_enum, default_value = "plain")]
    format: Format,
    /// Maximum number, most frequent first
    #[arg(long, short = 'n', visible_alias = "maxnum", value_name = "N")]
    limit: Option<usize>,
    /// Only addresses from messages after this time (seconds since 1970)
    #[arg(long, value_name = "SECONDS")]
    after: Option<i64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Plain,
    MuttAlias,
    MuttAb,
    Wl,
    OrgContact,
    Csv,
    Json,
}

/// Exit status 1: no address was found.
pub fn run(args: Cfind) -> Result<ExitCode, Failure> {
    let pattern = args.pattern.as_deref().unwrap_or("");
    let regex = regex::RegexBuilder::new(pattern).case_insensitive(true).build();
    // The last line says what is wrong; the others draw the pattern.
    let regex = regex.map_err(|error| {
        let text = error.to_string();
        format!(
            "`{pattern}` is not a regular expression: {}",
            text.lines().last().unwrap_or("").trim_start_matches("error: ")
        )
    })?;
    let searcher = args.index.open()?;
    let query = args.after.map_or(Query::All, |after| Query::Leaf(Leaf::Date(after.saturating_add(1)..i64::MAX)));
    let mut rows = searcher.addresses(&searcher.find(&query)?, AddressFields::All)?;
    // An anchor is at home in the name and in the address.
    let is_wanted = |name: &str, address: &str| {
        regex.is_match(address) || regex.is_match(name) || regex.is_match(&format!("{name} <{address}>"))
    };
    rows.retain(|(name, address, _)| is_wanted(name, address));
    rows.truncate(args.limit.unwrap_or(usize::MAX));
    if rows.is_empty() {
        return Ok(nothing_found());
    }
    let lines: String = match args.format {
        Format::Json => {
            let rows =
                rows.iter().map(|(name, address, count)| json!({"name": name, "email": address, "messages": count}));
            harmless_json(&(serde_json::Value::from_iter(rows).to_string() + "\n")).into_owned()
        }
        format => rows.iter().map(|(name, address, _)| line(format, &harmless(name), &harmless(address))).collect(),
    };
    // mutt shows the first line as a heading.
    print(&if let Format::MuttAb = args.format { format!("{}\n{lines}", addresses_found(rows.len())) } else { lines })?;
    Ok(ExitCode::SUCCESS)
}

/// Formats a contact. In formats that need a name, one without it is left out.
fn line(format: Format, name: &str, address: &str) -> String {
    let alias: String = name.chars().filter(|c| c.is_alphanumeric()).collect();
    let quote = |text: &str| text.replace('"', "\"\"");
    match format {
        Format::Plain if name.is_empty() => format!("{address}\n"),
        Format::Plain => format!("{name} {address}\n"),
        Format::MuttAb => format!("{address}\t{name}\t\n"),
        Format::Csv if name.is_empty() => format!(",\"{}\"\n", quote(address)),
        Format::Csv => format!("\"{}\",\"{}\"\n", quote(name), quote(address)),
        Format::MuttAlias | Format::Wl | Format::OrgContact if name.is_empty() => String::new(),
        Format::MuttAlias => format!("alias {alias} {name} <{address}>\n"),
        Format::Wl => format!("{address} \"{alias}\" \"{}\"\n", name.replace('"', "\\\"")),
        Format::OrgContact => format!("* {name}\n:PROPERTIES:\n:EMAIL: {address}\n:END:\n\n"),
        Format::Json => String::new(),
    }
}
