//! `posthaste info`: what is in the index, and where it is.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use posthaste_search::query::Query;
use posthaste_search::state::Directory;
use posthaste_search::watched;
use serde_json::json;

use crate::search_common::{Failure, IndexDir, local};
use crate::terminal::{harmless, print, print_json};

#[derive(Args)]
pub struct Info {
    #[command(flatten)]
    index: IndexDir,
    /// Also list messages that are not fully indexed
    #[arg(long)]
    problems: bool,
    /// Also list the folders
    #[arg(long)]
    folders: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Info) -> Result<ExitCode, Failure> {
    let dir = args.index.path()?;
    let searcher = args.index.open()?;
    let all = searcher.find(&Query::All)?;
    let mail_bytes = searcher.bytes_of(&all)?;
    let directory = searcher.directory();
    let (text, state) = (bytes_in(&searcher.snapshot().text_dir()), bytes_in(&dir));
    let (updated, roots) = (local(directory.updated), &directory.roots);
    let problems: Vec<(u32, &String)> =
        directory.problems.iter().filter(|(number, _)| all.get(**number)).map(|(number, why)| (*number, why)).collect();
    if args.json {
        let value = json!({
            "index": dir.to_string_lossy(), "roots": roots.iter().map(|root| root.to_string_lossy()).collect::<Vec<_>>(),
            "messages": all.count(), "mail_bytes": mail_bytes, "folders": directory.folders.len(), "folder_names": folders(directory).into_iter().map(|path| format!("/{path}")).collect::<Vec<_>>(), "text_bytes": text, "state_bytes": state,
            "watched": watched(&dir), "updated": directory.updated, "not_fully_indexed": problems.len(),
        });
        print_json(&(value.to_string() + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mega = |bytes: u64| bytes as f64 / 1e6;
    let mut out = format!("index     {}\n", dir.display());
    roots.iter().for_each(|root| out.push_str(&format!("mail      {}\n", root.display())));
    let share = if mail_bytes > 0 { 100.0 * (text + state) as f64 / mail_bytes as f64 } else { 0.0 };
    out.push_str(&format!(
        "messages  {} in {} folders, {:.1} MB\n",
        all.count(),
        directory.folders.len(),
        mega(mail_bytes)
    ));
    out.push_str(&format!(
        "size      text {:.1} MB, side store and tags {:.1} MB: {share:.1} % of the mail\n",
        mega(text),
        mega(state)
    ));
    out.push_str(&format!("updated   {}\n", updated.strftime("%Y-%m-%d %H:%M:%S")));
    if let Some(watch) = watched(&dir) {
        let lag = watch.lag_ms as f64 / 1e3;
        out.push_str(&format!(
            "watched   by process {}; the last change was in the index {lag:.1} s after it came\n",
            watch.process
        ));
    }
    out.push_str(&format!("problems  {} messages are not fully indexed\n", problems.len()));
    if args.folders {
        for path in folders(directory) {
            out.push_str(&format!("folder    /{}\n", harmless(path)));
        }
    }
    if args.problems {
        let numbers: Vec<u32> = problems.iter().map(|(number, _)| *number).collect();
        for (message, (_, why)) in searcher.messages(&numbers)?.iter().zip(&problems) {
            out.push_str(&format!("{}: {why}\n", harmless(&message.path.to_string_lossy())));
        }
    }
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// Those that are there, sorted.
pub fn folders(directory: &Directory) -> BTreeSet<&str> {
    directory.folders.iter().filter(|folder| folder.present).map(|folder| folder.path.as_str()).collect()
}

/// Bytes of the files in a directory, not those below it.
fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok().filter(std::fs::Metadata::is_file)).map(|file| file.len()).sum()
}
