//! `posthaste suppression …`: the list of addresses to which nothing is sent, in a running server.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand, ValueEnum};
use posthaste_control::{Request, Suppressed, SuppressionFilter, SuppressionSource};
use posthaste_message::DateTime;
use serde_json::{Value, json};

use crate::queue::{AnyError, ServerArgs, answer, ask, columns, number, show, text};
use crate::terminal::{print, print_json};

#[derive(Subcommand)]
pub enum SuppressionCommand {
    /// List the addresses to which nothing is sent
    List {
        #[command(flatten)]
        wanted: WantedArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Send nothing to these addresses any more
    Add {
        /// Addresses
        #[arg(value_name = "ADDRESS", required = true)]
        addresses: Vec<String>,
        #[command(flatten)]
        of: OfArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Send to these addresses again
    Remove {
        /// Addresses
        #[arg(value_name = "ADDRESS", required = true)]
        addresses: Vec<String>,
        /// Of this tenant; default: the entries for everybody
        #[arg(long, value_name = "NAME", default_value = "")]
        tenant: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Add the addresses of a file: one on each line, or JSON lines as `export` writes them
    Import {
        /// The file; - for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        of: OfArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Print the whole list as JSON lines
    Export {
        #[command(flatten)]
        wanted: WantedArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Args)]
pub struct WantedArgs {
    /// Of this tenant; "" for the entries for everybody
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// With this address
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// From this source
    #[arg(long, value_name = "SOURCE")]
    source: Option<SourceArg>,
}

/// Sources of suppression entries.
#[derive(Clone, Copy, ValueEnum)]
enum SourceArg {
    Operator,
    Bounce,
    Complaint,
}

impl From<SourceArg> for SuppressionSource {
    fn from(source: SourceArg) -> Self {
        match source {
            SourceArg::Operator => SuppressionSource::Operator,
            SourceArg::Bounce => SuppressionSource::Bounce,
            SourceArg::Complaint => SuppressionSource::Complaint,
        }
    }
}

/// Fields of an entry besides its address.
#[derive(Args)]
pub struct OfArgs {
    /// For the mail of this tenant; default: for everybody's
    #[arg(long, value_name = "NAME", default_value = "")]
    tenant: String,
    /// The reason, for the list
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// What puts them on the list
    #[arg(long, value_name = "SOURCE", default_value = "operator")]
    source: SourceArg,
    /// For how long, such as 90d; default: until they are removed
    #[arg(long = "for", value_name = "TIME", value_parser = posthaste_units::duration)]
    time: Option<Duration>,
}

impl OfArgs {
    fn entry(&self, address: &str) -> Suppressed {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Suppressed {
            address: address.to_owned(),
            tenant: self.tenant.clone(),
            source: self.source.into(),
            reason: self.reason.clone(),
            added: 0,
            expires: self.time.map(|time| now.saturating_add(time.as_secs())),
        }
    }
}

impl WantedArgs {
    fn wanted(self) -> SuppressionFilter {
        SuppressionFilter { tenant: self.tenant, address: self.address, source: self.source.map(Into::into) }
    }
}

/// Exit status 1: the list is empty.
pub fn run(command: SuppressionCommand) -> Result<ExitCode, AnyError> {
    match command {
        SuppressionCommand::List { wanted, server } => {
            show(&server, &Request::Suppressions { of: wanted.wanted() }, table)
        }
        SuppressionCommand::Export { wanted, server } => {
            for line in ask(&server, &Request::Suppressions { of: wanted.wanted() })? {
                print_json(&format!("{line}\n"))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        SuppressionCommand::Add { addresses, of, server } => {
            let entries = addresses.iter().map(|address| Ok(of.entry(address)));
            add(&server, entries)
        }
        SuppressionCommand::Import { file, of, server } => {
            let input: Box<dyn BufRead> = match file.to_str() {
                Some("-") => Box::new(io::stdin().lock()),
                _ => {
                    let opened = File::open(&file).map_err(|error| format!("{}: {error}", file.display()))?;
                    Box::new(BufReader::new(opened))
                }
            };
            let lines = (1..).zip(input.lines());
            add(&server, lines.filter_map(|(number, line)| entry_of(number, line, &of).transpose()))
        }
        SuppressionCommand::Remove { addresses, tenant, server } => {
            let last = answer(&server, &Request::Unsuppress { tenant, addresses })?.pop().unwrap_or_default();
            let removed = number(&last, "done");
            if server.json {
                print_json(&format!("{last}\n"))?
            } else {
                print(&format!("{removed} removed\n"))?
            }
            Ok(ExitCode::from(u8::from(removed == 0)))
        }
    }
}

/// Parses a line of a file; `None` for an empty line or a comment.
fn entry_of(number: usize, line: io::Result<String>, of: &OfArgs) -> Result<Option<Suppressed>, AnyError> {
    let line = line.map_err(|error| format!("line {number}: {error}"))?;
    match line.trim() {
        text if text.is_empty() || text.starts_with('#') => Ok(None),
        text if text.starts_with('{') => {
            serde_json::from_str(text).map(Some).map_err(|error| format!("line {number}: {error}").into())
        }
        text => Ok(Some(of.entry(text))),
    }
}

/// Adds entries in several requests. Entries before a mistake stay added.
fn add(server: &ServerArgs, entries: impl Iterator<Item = Result<Suppressed, AnyError>>) -> Result<ExitCode, AnyError> {
    let mut done = 0;
    let mut new = 0;
    let mut send = |entries: Vec<Suppressed>| {
        let last = answer(server, &Request::Suppress { entries })?.pop().unwrap_or_default();
        done += number(&last, "done");
        new += number(&last, "new");
        Ok::<_, AnyError>(())
    };
    let mut part = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        // A letter may be written with six.
        bytes += 6 * (entry.address.len() + entry.tenant.len() + entry.reason.len()) + 100;
        part.push(entry);
        if bytes > PART_BYTES {
            send(std::mem::take(&mut part))?;
            bytes = 0;
        }
    }
    if !part.is_empty() {
        send(part)?;
    }
    if server.json {
        print_json(&format!("{}\n", json!({ "done": done, "new": new })))?
    } else {
        print(&format!("{done} suppressed, {new} of them new\n"))?
    }
    Ok(ExitCode::from(u8::from(done == 0)))
}

fn table(lines: &[Value]) -> String {
    let time = |secs: Option<i64>| secs.map_or(String::new(), |secs| DateTime::from_unix(secs).to_string());
    let rows = lines.iter().map(|line| {
        let until = time(line["expires"].as_i64());
        let until = if until.is_empty() { "removed".to_owned() } else { until };
        let added = time(line["added"].as_i64());
        [text(line, "address"), text(line, "tenant"), text(line, "source"), added, until, text(line, "reason")]
    });
    if lines.is_empty() {
        "nothing is suppressed\n".to_owned()
    } else {
        columns(["address", "tenant", "source", "added", "until", "reason"], rows, "no address is suppressed")
    }
}

/// Maximum octets of a part: a request must fit into about 64 KiB.
const PART_BYTES: usize = 40 << 10;
