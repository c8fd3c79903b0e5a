//! `posthaste extract`: a message's attachments, listed or saved.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use posthaste_search::text::{TextPart, parts, safe_file_name};
use posthaste_units::count;
use serde_json::json;

use crate::chosen::{Choice, files};
use crate::search_common::{Failure, IndexDir, nothing_found};
use crate::terminal::{complain, harmless, harmless_json, print};

#[derive(Args)]
pub struct Extract {
    /// A message file, or a query for the newest match
    #[arg(value_name = "FILE|QUERY", required = true)]
    query: Vec<String>,
    #[command(flatten)]
    index: IndexDir,
    /// Save all attachments
    #[arg(long, short = 'a')]
    save_attachments: bool,
    /// Save all parts
    #[arg(long)]
    save_all: bool,
    /// Save these parts, by their numbers in the list
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    parts: Vec<usize>,
    /// Where to save
    #[arg(long, value_name = "DIR", default_value = ".")]
    target_dir: PathBuf,
    /// Overwrite existing files
    #[arg(long)]
    overwrite: bool,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

/// Exit status 1: there is no such message or part, or a file exists already.
pub fn run(args: Extract) -> Result<ExitCode, Failure> {
    let files = files(&args.query, &args.index, Choice::ONE)?;
    let file = match files.as_slice() {
        [] => return Ok(nothing_found()),
        [file] => file,
        _ => return Err("one message at a time, as parts of several may have the same name".into()),
    };
    let bytes = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let all = parts(&bytes);
    if !args.save_all && !args.save_attachments && args.parts.is_empty() {
        print(&list(&all, args.json))?;
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = |number: usize, part: &TextPart<'_>| {
        args.save_all || args.save_attachments && part.is_attachment || args.parts.contains(&number)
    };
    if let Some(number) = args.parts.iter().find(|number| !(1..=all.len()).contains(number)) {
        complain(&format!("no part {number}; the message has {}", count(all.len(), "part")));
        return Ok(ExitCode::from(1));
    }
    if !args.target_dir.is_dir() {
        return Err(format!("there is no directory {}; create it first", args.target_dir.display()).into());
    }
    let mut saved = 0;
    let mut refused = 0;
    let mut names = HashSet::new();
    for (number, part) in (1..).zip(&all).filter(|(number, part)| wanted(*number, part)) {
        let name = unused(&safe_file_name(part.name.as_deref().unwrap_or(""), &format!("part-{number}")), &mut names);
        let path = args.target_dir.join(&name);
        let mut options = File::options();
        // Not through a link that somebody put there, unless writing over things is what was asked for.
        let opened = if args.overwrite {
            options.write(true).create(true).truncate(true).open(&path)
        } else {
            options.write(true).create_new(true).open(&path)
        };
        match opened {
            Ok(mut file) => {
                file.write_all(&part.content).map_err(|error| format!("{}: {error}", path.display()))?;
                print(&format!("{}\n", harmless(&path.to_string_lossy())))?;
                saved += 1;
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                complain(&format!("{} exists already; use --overwrite to replace it", path.display()));
                refused += 1;
            }
            Err(error) => return Err(format!("{}: {error}", path.display()).into()),
        }
    }
    if saved == 0 && refused == 0 {
        complain(&format!("no attachment; --save-all saves its {}", count(all.len(), "part")));
    }
    Ok(ExitCode::from(u8::from(refused > 0 || saved == 0)))
}

/// The name, or `name (2).ext` if another part of this message has it already.
fn unused(name: &str, names: &mut HashSet<String>) -> String {
    let (stem, ending) = match name.rfind('.') {
        Some(dot) if dot > 0 => name.split_at(dot),
        _ => (name, ""),
    };
    let numbered = (2u32..).map(|n| format!("{stem} ({n}){ending}"));
    let mut candidates = std::iter::once(name.to_owned()).chain(numbered);
    // Of endless names one is not among those that were used.
    candidates.find(|name| names.insert(name.clone())).unwrap_or_default()
}

fn list(all: &[TextPart<'_>], as_json: bool) -> String {
    if as_json {
        let rows = (1..).zip(all).map(|(number, part): (usize, &TextPart<'_>)| {
            json!({"part": number, "name": part.name, "type": part.media_type, "bytes": part.content.len(), "attachment": part.is_attachment})
        });
        return harmless_json(&(serde_json::Value::from_iter(rows).to_string() + "\n")).into_owned();
    }
    let row = |(number, part): (usize, &TextPart<'_>)| {
        let name = part.name.as_deref().map(harmless).unwrap_or_default();
        format!("{number:>4}  {:<28} {:>10}  {name}\n", harmless(&part.media_type), part.content.len())
    };
    (1..).zip(all).map(row).collect()
}
