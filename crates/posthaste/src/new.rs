//! `posthaste new`: brings the index up to date, with the output of `notmuch new`.

use std::process::ExitCode;

use clap::Args;
use posthaste_search::Report;

use crate::index_update;
use crate::search_common::{Failure, IndexDir};
use crate::terminal::print;

#[derive(Args)]
pub struct New {
    #[command(flatten)]
    index: IndexDir,
    /// Do not run the hook
    #[arg(long)]
    no_hooks: bool,
    /// List every folder, even if its modification time is unchanged
    #[arg(long)]
    full_scan: bool,
    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

pub fn run(args: New) -> Result<ExitCode, Failure> {
    let mut update = index_update::Update::for_later(args.index, args.full_scan, args.quiet);
    update.no_hooks = args.no_hooks;
    index_update::update_with(&update, |report| print(&text(report)))
}

fn text(report: &Report) -> String {
    let mut text = match report.added {
        0 => "No new mail.".to_owned(),
        1 => "Added 1 new message to the database.".to_owned(),
        count => format!("Added {count} new messages to the database."),
    };
    if report.removed > 0 {
        text.push_str(&format!(" Removed {} message{}.", report.removed, if report.removed == 1 { "" } else { "s" }));
    }
    if report.moved + report.renamed > 0 {
        let renames = report.moved + report.renamed;
        text.push_str(&format!(" Detected {renames} file rename{}.", if renames == 1 { "" } else { "s" }));
    }
    text + "\n"
}
