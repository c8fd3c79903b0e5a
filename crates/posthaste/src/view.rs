//! `posthaste view`: a message as a person reads it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use posthaste_search::Sort;
use posthaste_search::text::{extract_whole, parts};

use crate::find_output::harmless;
use crate::pager::PagerOption;
use crate::search_common::{Failure, IndexDir, is_colourful, local, parse};

#[derive(Args)]
pub struct View {
    /// Message files, or a query: then the newest that matches
    #[arg(value_name = "FILE...|QUERY", required = true, trailing_var_arg = true)]
    query: Vec<String>,
    #[command(flatten)]
    index: IndexDir,
    /// What to print
    #[arg(long, short = 'o', value_enum, default_value = "text")]
    format: Format,
    /// How many of the messages that match, newest first
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1)]
    limit: usize,
    #[command(flatten)]
    pager: PagerOption,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Header fields of interest and the text
    Text,
    /// The HTML parts as they are
    Html,
    /// The file as it is
    Raw,
    /// All header fields
    Headers,
}

/// The files that are named, which they are if there is one of the first name, or what a query finds, newest first.
pub fn files(words: &[String], index: &IndexDir, limit: usize) -> Result<Vec<PathBuf>, Failure> {
    if words.first().is_some_and(|word| Path::new(word).is_file()) {
        return Ok(words.iter().map(PathBuf::from).collect());
    }
    let searcher = index.open()?;
    let found = searcher.find(&parse(words, &searcher)?)?;
    let page = searcher.page(&found, Sort::Date, false, 0, limit)?;
    Ok(searcher.messages(&page)?.into_iter().map(|message| message.path).collect())
}

/// Exit status 1: nothing was found.
pub fn run(args: View) -> Result<ExitCode, Failure> {
    let files = files(&args.query, &args.index, args.limit)?;
    let mut pager = args.pager.start();
    for (count, file) in files.iter().enumerate() {
        let bytes = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let shown = match args.format {
            Format::Text => text(&bytes).into_bytes(),
            Format::Raw => bytes,
            Format::Headers => header(&bytes).to_vec(),
            Format::Html => {
                let html = parts(&bytes).into_iter().filter(|part| part.media_type == "text/html");
                html.flat_map(|part| part.content.into_owned()).collect()
            }
        };
        let between = if count > 0 { &b"\n\x0c\n"[..] } else { b"" };
        if !pager.write(&[between, &shown].concat())? {
            break;
        }
    }
    Ok(ExitCode::from(u8::from(files.is_empty())))
}

/// Up to and with the first empty line.
fn header(bytes: &[u8]) -> &[u8] {
    let mut end = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        end += line.len();
        if line == b"\n" || line == b"\r\n" {
            break;
        }
    }
    &bytes[..end]
}

fn text(bytes: &[u8]) -> String {
    let message = extract_whole(bytes);
    let colours = is_colourful();
    let date =
        message.date.map(|date| local(date).strftime("%a, %-d %b %Y %H:%M:%S %z").to_string()).unwrap_or_default();
    let attachments = message.files.join(", ");
    let mut out = String::new();
    for (name, value) in [
        ("From", &message.from),
        ("To", &message.to),
        ("Cc", &message.cc),
        ("Subject", &message.subject),
        ("Date", &date),
        ("Attachments", &attachments),
    ] {
        if !value.is_empty() {
            let name = if colours { format!("\x1b[36m{name}\x1b[0m") } else { name.to_owned() };
            out.push_str(&format!("{name}: {}\n", harmless(value)));
        }
    }
    out.push('\n');
    for line in message.body.lines() {
        out.extend(line.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }));
        out.push('\n');
    }
    out
}
