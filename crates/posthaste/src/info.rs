//! `posthaste info`: content and place of the index.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use posthaste_search::query::Query;
use posthaste_search::settings::{SETTINGS_FILE, SearchSettings};
use posthaste_search::state::IndexDirectory;
use posthaste_search::watched;
use posthaste_units::{about_bytes, count};
use serde_json::json;

use crate::search_common::{Failure, IndexDir, local};
use crate::terminal::{harmless, print, print_json};

#[derive(Args)]
pub struct Info {
    #[command(flatten)]
    index: IndexDir,
    /// Also list messages that could not be fully indexed
    #[arg(long)]
    problems: bool,
    /// Also list the folders
    #[arg(long)]
    folders: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// With less mail, the index's size is not compared with it.
const SHARE_BYTES_MIN: u64 = 10_000_000;

pub fn run(args: Info) -> Result<ExitCode, Failure> {
    let dir = args.index.path()?;
    let searcher = args.index.open()?;
    let all = searcher.find(&Query::All)?;
    let mail_bytes = searcher.bytes_of(&all)?;
    let directory = searcher.directory();
    let text = bytes_in(&searcher.snapshot().text_dir());
    let state = bytes_in(&dir);
    let updated = local(directory.updated);
    let roots = &directory.roots;
    let problems: Vec<(u32, &String)> =
        directory.problems.iter().filter(|(number, _)| all.get(**number)).map(|(number, why)| (*number, why)).collect();
    if args.json {
        let value = json!({
            "index": dir.to_string_lossy(), "roots": roots.iter().map(|root| root.to_string_lossy()).collect::<Vec<_>>(),
            "messages": all.count(), "mail_bytes": mail_bytes, "folders": folders(directory).len(), "folder_names": folders(directory).into_iter().map(|path| format!("/{path}")).collect::<Vec<_>>(), "text_bytes": text, "state_bytes": state,
            "headers": searcher.headers().iter().collect::<Vec<_>>(), "settings": settings_json(&dir), "watched": watched(&dir), "updated": directory.updated, "not_fully_indexed": problems.len(),
        });
        print_json(&(value.to_string() + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = format!("index     {}\n", dir.display());
    roots.iter().for_each(|root| out.push_str(&format!("mail      {}\n", root.display())));
    // Of little mail the share says nothing: an empty index has its size, too.
    let share = match mail_bytes {
        0..SHARE_BYTES_MIN => String::new(),
        bytes => format!(": {:.1} % of the mail", 100.0 * (text + state) as f64 / bytes as f64),
    };
    let messages = count(all.count(), "message");
    let folders_there = count(folders(directory).len(), "folder");
    out.push_str(&format!("messages  {messages} in {folders_there}, {}\n", about_bytes(mail_bytes)));
    out.push_str(&format!("size      text {}, side store and tags {}{share}\n", about_bytes(text), about_bytes(state)));
    out.push_str(&format!("updated   {}\n", updated.strftime("%Y-%m-%d %H:%M:%S")));
    if let Some(watch) = watched(&dir) {
        let lag = watch.lag_ms as f64 / 1e3;
        out.push_str(&format!(
            "watched   by process {}; the last change was indexed after {lag:.1} s\n",
            watch.process
        ));
    }
    if !searcher.headers().is_empty() {
        out.push_str(&format!("headers   {}\n", searcher.headers()));
    }
    settings_lines(&dir).iter().for_each(|line| out.push_str(&format!("settings  {}\n", harmless(line))));
    out.push_str(&format!("problems  {} not fully indexed\n", count(problems.len(), "message")));
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

/// Existing folders, sorted.
pub fn folders(directory: &IndexDirectory) -> BTreeSet<&str> {
    directory.folders.iter().filter(|folder| folder.present).map(|folder| folder.path.as_str()).collect()
}

/// Lines about the settings in `config.toml`; none if there is no such file.
fn settings_lines(dir: &Path) -> Vec<String> {
    let path = dir.join(SETTINGS_FILE);
    if !path.exists() {
        return Vec::new();
    }
    let settings = match SearchSettings::check(dir) {
        Ok(settings) => settings,
        Err(error) => return error.to_string().lines().map(str::to_owned).collect(),
    };
    let signed =
        |sign: char, tags: &BTreeSet<String>| tags.iter().map(|tag| format!(" {sign}{tag}")).collect::<String>();
    let mut lines = vec![path.display().to_string()];
    if !settings.new.tags.is_empty() {
        lines.push(format!("new mail:{}", signed('+', &settings.new.tags)));
    }
    for rule in &settings.new.rule {
        lines.push(format!("new mail:{}{} -- {}", signed('+', &rule.add), signed('-', &rule.remove), rule.query));
    }
    if settings.maildir.synchronize_flags {
        lines.push("the tags draft, flagged, passed, replied and unread are the flags of the files".to_owned());
    }
    if settings.maildir.synchronize_keywords {
        let new = settings.maildir.new_keywords.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let new = if new.is_empty() { new } else { format!("; new ones: {new}") };
        lines.push(format!("keywords (dovecot-keywords) are tags{new}"));
    }
    lines.extend(settings.hook.after_index.map(|command| format!("hook after indexing: {command}")));
    lines
}

fn settings_json(dir: &Path) -> serde_json::Value {
    match SearchSettings::check(dir) {
        Err(error) => json!({ "error": error.to_string() }),
        Ok(settings) => {
            let rules = settings.new.rule.iter();
            let rules = rules.map(|rule| json!({"query": rule.query, "add": rule.add, "remove": rule.remove}));
            json!({
                "new_tags": settings.new.tags, "rules": rules.collect::<Vec<_>>(),
                "synchronize_flags": settings.maildir.synchronize_flags,
                "synchronize_keywords": settings.maildir.synchronize_keywords, "new_keywords": settings.maildir.new_keywords, "after_index": settings.hook.after_index,
            })
        }
    }
}

/// Sum of the sizes of a directory's files, without subdirectories.
fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok().filter(std::fs::Metadata::is_file)).map(|file| file.len()).sum()
}
