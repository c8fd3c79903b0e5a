//! `posthaste view`: a message laid out for reading.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use posthaste_search::split_addresses;
use posthaste_search::text::{Extracted, extract_whole, html_parts, parts};
use serde_json::{Value, json};

use crate::chosen::{Choice, files};
use crate::columns;
use crate::layout;
use crate::pager::{Pager, PagerOption};
use crate::search_common::{Failure, IndexDir, Reader, local, nothing_found};
use crate::terminal::{harmless, is_colourful, paint, print_json};

#[derive(Args)]
#[command(
    after_help = "An argument that looks like a path is never a query: it contains `/`, begins with `.`, ends in `.eml`, or is an existing file."
)]
pub struct View {
    /// Message files, or a query for the newest match
    #[arg(value_name = "FILE...|QUERY", required = true, trailing_var_arg = true)]
    query: Vec<String>,
    #[command(flatten)]
    index: IndexDir,
    /// What to print
    #[arg(long, short = 'o', value_enum, default_value = "text")]
    format: Format,
    /// Print JSON: header fields, text, and a list of the parts
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Maximum number of matching messages, newest first
    #[arg(long, short = 'n', visible_alias = "maxnum", value_name = "N", default_value_t = 1)]
    limit: usize,
    /// Show the whole thread of each, oldest first
    #[arg(long, short = 't')]
    entire_thread: bool,
    /// Reverse the order: oldest first, or a whole thread newest first
    #[arg(long, short = 'z')]
    reverse: bool,
    #[command(flatten)]
    pager: PagerOption,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Main header fields and the text
    #[value(alias = "plain")]
    Text,
    /// The HTML parts as they are
    Html,
    /// The file as it is
    Raw,
    /// All header fields
    Headers,
    Json,
}

/// Exit status 1: no match.
pub fn run(args: View) -> Result<ExitCode, Failure> {
    let choice = Choice { limit: args.limit, reverse: args.reverse, entire_thread: args.entire_thread };
    let files = files(&args.query, &args.index, choice)?;
    if files.is_empty() {
        return Ok(nothing_found());
    }
    let format = if args.json { Format::Json } else { args.format };
    let mut reader = Reader::default();
    if let Format::Json = format {
        let rows = files.iter().filter_map(|file| Some(json_of(file, &reader.read(file)?).to_string()));
        let rows: Vec<String> = rows.collect();
        print_json(&format!("[{}]\n", rows.join(",\n")))?;
        return Ok(reader.exit_code());
    }
    let line_cells = columns::of_terminal();
    let mut pager = args.pager.start();
    let mut is_first = true;
    for file in &files {
        let Some(bytes) = reader.read(file) else { continue };
        if !std::mem::take(&mut is_first) {
            between(&mut pager, line_cells)?;
        }
        let goes_on = match format {
            Format::Text | Format::Json => pager.write(&text(&bytes, line_cells, is_colourful()))?,
            Format::Raw => pager.write_foreign(&bytes)?,
            Format::Headers => pager.write_foreign(header(&bytes))?,
            Format::Html => pager.write_foreign(html_parts(&bytes).as_bytes())?,
        };
        if !goes_on {
            break;
        }
    }
    Ok(reader.exit_code())
}

/// Prints the separator of two messages: a rule on a terminal, a form feed elsewhere.
fn between(pager: &mut Pager, line_cells: Option<usize>) -> std::io::Result<bool> {
    match line_cells {
        Some(cells) => pager.write(&format!("\n{}\n", "─".repeat(cells))),
        None => pager.write("\n\x0c\n"),
    }
}

/// The header, with its first empty line.
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

/// The whole text; on a terminal laid out for its width.
pub fn text(bytes: &[u8], line_cells: Option<usize>, colours: bool) -> String {
    let message = extract_whole(bytes);
    let paint_name = |name: &str| if colours { paint("36", name) } else { name.to_owned() };
    let date = date(&message);
    let attachments = message.files.join(", ");
    let mut out = String::new();
    for (name, value, is_list) in [
        ("From", &message.from, true),
        ("To", &message.to, true),
        ("Cc", &message.cc, true),
        ("Subject", &message.subject, false),
        ("Date", &date, false),
        ("Attachments", &attachments, false),
    ] {
        match line_cells {
            _ if value.is_empty() => {}
            None => out.push_str(&format!("{}: {}\n", paint_name(name), harmless(value))),
            Some(cells) if is_list => {
                out.push_str(&layout::address_field(name, &address_list(value), cells, paint_name))
            }
            Some(cells) => out.push_str(&layout::field(name, value, cells, paint_name)),
        }
    }
    out.push('\n');
    let body = if line_cells.is_some() { message.body.trim_start_matches(['\n', '\r']) } else { &message.body };
    out.push_str(&layout::body(body, line_cells.unwrap_or(usize::MAX), colours));
    out
}

/// The date by RFC 5322, in local time; empty if there is none.
pub fn date(message: &Extracted) -> String {
    message.date.map(|date| local(date).strftime("%a, %-d %b %Y %H:%M:%S %z").to_string()).unwrap_or_default()
}

/// Splits a list of addresses such as `"Doe, A" <a@x>, b@x`.
pub fn address_list(field: &str) -> Vec<String> {
    let mut is_quoted = false;
    let is_between = |c: char| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    };
    field.split(is_between).map(|address| address.trim().to_owned()).filter(|address| !address.is_empty()).collect()
}

fn json_of(file: &Path, bytes: &[u8]) -> Value {
    let message = extract_whole(bytes);
    let addresses = |field: &str| -> Value {
        split_addresses(field).into_iter().map(|(name, address)| json!({"name": name, "address": address})).collect()
    };
    let row = |(number, part): (usize, &posthaste_search::text::TextPart<'_>)| {
        json!({
            "part": number, "name": part.name, "type": part.media_type, "bytes": part.content.len(), "attachment": part.is_attachment,
        })
    };
    let parts: Vec<Value> = (1..).zip(&parts(bytes)).map(row).collect();
    json!({
        "path": file.to_string_lossy(), "message_id": message.message_id, "references": message.references, "date": message.date,
        "subject": message.subject, "from": addresses(&message.from), "to": addresses(&message.to), "cc": addresses(&message.cc),
        "bcc": addresses(&message.bcc), "list": message.list, "text": message.body, "parts": parts,
    })
}
