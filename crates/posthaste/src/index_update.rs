//! Updates of the search index: options and output.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use posthaste_search::settings::{SearchSettings, add_headers};
use posthaste_search::{Indexer, IoMethod, MEMORY_BYTES, Report, UpdateOptions, nothing_to_do, run_hook};
use posthaste_units::count;
use rustix::thread::disable_transparent_huge_pages;
use serde_json::json;

use crate::progress::{progress_bar, show};
use crate::search_common::{Failure, IndexDir, waiting};
use crate::terminal::{complain, print};

#[derive(Args)]
pub struct Update {
    /// Maildirs, or directories with Maildirs below them; later runs remember them
    #[arg(value_name = "MAILDIR")]
    pub roots: Vec<PathBuf>,
    #[command(flatten)]
    pub index: IndexDir,
    /// Also index this header field, for `header:NAME:value`; repeatable. Stored in `config.toml` in the index's directory; all mail is read again
    #[arg(long = "header", value_name = "NAME")]
    headers: Vec<String>,
    /// List every folder, even if its modification time is unchanged
    #[arg(long)]
    list_all: bool,
    /// Check size and time of every file, and read changed files again
    #[arg(long)]
    check_files: bool,
    /// Also index directories that contain `.noupdate`
    #[arg(long)]
    noupdate: bool,
    /// Remove the messages of trees that are missing or have no folders; by default they stay in the index, as the disk may be unmounted
    #[arg(long)]
    believe_missing: bool,
    /// Threads; default: one per core
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Memory for indexing new messages, in MiB
    #[arg(long, value_name = "MIB", default_value_t = MEMORY_MIB)]
    memory: usize,
    /// How to read files: the faster way by measurement (best), one by one (calls), or many at once with io_uring (uring)
    #[arg(long, value_enum, default_value = "best", hide_default_value = true)]
    io: Io,
    /// Do not run the hook of `config.toml` in the index's directory
    #[arg(long)]
    pub no_hooks: bool,
    /// Print nothing but errors
    #[arg(long, short)]
    pub quiet: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Update {
    /// Options to update an existing index.
    pub fn for_later(index: IndexDir, list_all: bool, quiet: bool) -> Self {
        Self {
            roots: Vec::new(),
            index,
            headers: Vec::new(),
            list_all,
            check_files: false,
            noupdate: false,
            believe_missing: false,
            threads: 0,
            memory: MEMORY_MIB,
            io: Io::Best,
            no_hooks: false,
            quiet,
            json: false,
        }
    }

    /// True if there is any option besides the choice of the index.
    pub fn says_something(&self) -> bool {
        !self.roots.is_empty()
            || !self.headers.is_empty()
            || [
                self.list_all,
                self.check_files,
                self.noupdate,
                self.believe_missing,
                self.no_hooks,
                self.quiet,
                self.json,
            ]
            .contains(&true)
            || self.threads != 0
            || self.memory != MEMORY_MIB
            || !matches!(self.io, Io::Best)
    }

    /// Validates the settings before anything is done, and saves the headers given as options.
    pub fn prepare(&self, dir: &Path) -> Result<(), Failure> {
        SearchSettings::check(dir)?;
        Ok(add_headers(dir, &self.headers)?)
    }

    pub fn options(&self) -> UpdateOptions {
        UpdateOptions {
            list_all: self.list_all,
            check_files: self.check_files,
            into_noupdate: self.noupdate,
            believe_missing: self.believe_missing,
            threads: self.threads,
            memory_bytes: self.memory.clamp(MEMORY_MIB_MIN, 1 << 20) << 20,
            io_method: match self.io {
                Io::Best => IoMethod::Best,
                Io::Calls => IoMethod::OneByOne,
                Io::Uring => IoMethod::Batched,
            },
            stop: None,
        }
    }
}

/// With less memory, a first index has so many segments that they must be merged.
const MEMORY_MIB_MIN: usize = 32;
/// Default of `--memory`.
const MEMORY_MIB: usize = MEMORY_BYTES >> 20;

#[derive(Clone, Copy, clap::ValueEnum)]
enum Io {
    Best,
    Calls,
    Uring,
}

/// Runs an update with a custom summary.
pub fn update_with(args: &Update, say: impl Fn(&Report) -> std::io::Result<()>) -> Result<ExitCode, Failure> {
    let report = run_update(args, None)?;
    tell_troubles(&report);
    tell_without_maildirs(args, &report);
    if !args.quiet {
        say(&report)?;
    }
    after(args, &report)
}

/// Runs an update; `rebuild` makes it a rebuild without these trees.
pub fn update(args: &Update, rebuild: Option<&[PathBuf]>) -> Result<ExitCode, Failure> {
    let report = run_update(args, rebuild)?;
    tell_troubles(&report);
    tell_without_maildirs(args, &report);
    if args.json {
        print(&(json_report(&report).to_string() + "\n"))?;
    } else if !args.quiet {
        print(&text_report(&report))?;
    }
    after(args, &report)
}

/// Reports the directories and files that could not be read.
pub fn tell_troubles(report: &Report) {
    for (path, trouble) in &report.troubles {
        complain(&format!("{}: {trouble}", path.display()));
    }
}

/// Reports the named directories that have no mail.
pub fn tell_without_maildirs(args: &Update, report: &Report) {
    for root in args.roots.iter().filter(|root| is_among(root, &report.without_maildirs)) {
        complain(&format!(
            "{0}: there is no Maildir in it, that is, no directory with cur/ or new/; each update looks again, until \
             `posthaste index rebuild --forget {0}`",
            root.display()
        ));
    }
}

fn is_among(root: &Path, roots: &[PathBuf]) -> bool {
    std::path::absolute(root).is_ok_and(|root| roots.contains(&root))
}

/// Runs the hook. A failure is reported, but does not affect the index.
fn after(args: &Update, report: &Report) -> Result<ExitCode, Failure> {
    if !args.no_hooks {
        run_hook(&args.index.path()?, report).unwrap_or_else(|why| complain(&why));
    }
    let has_no_mail = args.roots.iter().any(|root| is_among(root, &report.without_maildirs));
    Ok(ExitCode::from(u8::from(!report.troubles.is_empty() || has_no_mail)))
}

fn run_update(args: &Update, rebuild: Option<&[PathBuf]>) -> Result<Report, Failure> {
    let dir = args.index.path()?;
    args.prepare(&dir)?;
    let bar = progress_bar();
    let options = args.options();
    if let Some(report) = rebuild.is_none().then(|| nothing_to_do(&dir, &args.roots, &options)).flatten() {
        return Ok(report);
    }
    let wait = || waiting(&dir);
    let mut indexer = match rebuild {
        Some(_) => Indexer::rebuild(&dir, Some(&wait))?,
        None => Indexer::open_to_update(&dir, Some(&wait))?,
    };
    if let Some(root) = rebuild.unwrap_or_default().iter().find(|root| !indexer.forget(root)) {
        return Err(format!("{}: not in the index; `posthaste info` lists its directories", root.display()).into());
    }
    if rebuild.is_none()
        && !args.quiet
        && let Some(why) = indexer.rebuilds_because()
    {
        complain(&format!("rebuilding the index: {why}"));
    }
    // A page of 2 MiB counts whole however little of it is used: they were a sixth of the memory of a first index.
    let _ = disable_transparent_huge_pages(true);
    let report = indexer.update(&args.roots, &options, &|progress| show(&bar, progress));
    // What the hook runs is not to have less of them.
    let _ = disable_transparent_huge_pages(false);
    let report = report?;
    bar.finish_and_clear();
    Ok(report)
}

/// Summary of a run's changes, as `5 new, 1 gone`; with `with_bytes` also the size of new mail.
pub fn changes(report: &Report, with_bytes: bool) -> String {
    let size = if with_bytes && report.added > 0 {
        format!(" ({})", posthaste_units::about_bytes(report.bytes))
    } else {
        String::new()
    };
    let kinds = [
        (report.added, format!("new{size}")),
        (report.moved, "moved".to_owned()),
        (report.renamed, "changed flags".to_owned()),
        (report.removed, "gone".to_owned()),
    ];
    let some: Vec<String> =
        kinds.iter().filter(|(number, _)| *number > 0).map(|(number, what)| format!("{number} {what}")).collect();
    if some.is_empty() { "nothing new".to_owned() } else { some.join(", ") }
}

pub fn text_report(report: &Report) -> String {
    let mut text = format!(
        "{} in {}: {}; {:.2} s\n",
        count(report.messages, "message"),
        count(report.folders, "folder"),
        changes(report, true),
        report.took.as_secs_f64()
    );
    for (path, problem) in &report.problems {
        text.push_str(&format!("not fully indexed: {}: {problem}\n", path.display()));
    }
    text
}

pub fn json_report(report: &Report) -> serde_json::Value {
    let list = |rows: &[(PathBuf, String)]| -> serde_json::Value {
        rows.iter().map(|(path, why)| json!({"path": path.to_string_lossy(), "why": why})).collect()
    };
    json!({
        "messages": report.messages, "folders": report.folders, "directories_listed": report.listed,
        "added": report.added, "tagged": report.tagged, "bytes_read": report.bytes, "moved": report.moved, "flags_changed": report.renamed, "removed": report.removed,
        "seconds": report.took.as_secs_f64(), "problems": list(&report.problems), "troubles": list(&report.troubles),
    })
}
