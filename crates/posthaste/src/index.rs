//! `posthaste index`: brings the search index up to date.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use posthaste_units::count;
use serde_json::json;

use crate::index_update::{Update, update};
use crate::index_watch;
use crate::search_common::{Failure, IndexDir, waiting};
use crate::terminal::print;

#[derive(Args)]
pub struct Index {
    /// What to do instead of an update
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    update: Update,
    /// Keep running and update the index as mail changes, until Ctrl-C; other commands can use the index meanwhile
    #[arg(long, conflicts_with_all = ["list_all", "check_files"])]
    watch: bool,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Rebuild the index from the mail (tags are kept); the old index answers until that is done
    Rebuild {
        #[command(flatten)]
        update: Update,
        /// Leave out this tree, which was indexed until now; may be given several times
        #[arg(long, value_name = "MAILDIR")]
        forget: Vec<PathBuf>,
    },
    /// Check every part of the index against its checksum; exit status 1 for damage
    Verify {
        #[command(flatten)]
        index: IndexDir,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(args: Index) -> Result<ExitCode, Failure> {
    if args.action.is_some() && (args.watch || args.update.says_something()) {
        return Err("write options of `index rebuild` and `index verify` after that word".into());
    }
    match args.action {
        None if args.watch => index_watch::run(&args.update),
        None => update(&args.update, None),
        Some(Action::Rebuild { update: options, forget }) => update(&options, Some(&forget)),
        Some(Action::Verify { index, json }) => verify(&index.path()?, json),
    }
}

fn verify(dir: &Path, json: bool) -> Result<ExitCode, Failure> {
    let verdict = posthaste_search::verify(dir, &|| waiting(dir))?;
    let is_sound = verdict.damage.is_empty();
    if json {
        let rows: Vec<_> = verdict.damage.iter().map(|(part, what)| json!({"part": part, "what": what})).collect();
        let told = json!({"messages": verdict.messages, "damage": rows, "unfinished": verdict.unfinished});
        print(&(told.to_string() + "\n"))?;
        return Ok(ExitCode::from(u8::from(!is_sound)));
    }
    let mut text: String = verdict.damage.iter().map(|(part, what)| format!("{part}: {what}\n")).collect();
    for what in &verdict.unfinished {
        text.push_str(&format!("{what}; the next `posthaste index` finishes it\n"));
    }
    let needs_rebuild = verdict.damage.iter().any(|(part, _)| part != "tags.redb");
    if is_sound {
        text.push_str(&format!("{}: {}, sound\n", dir.display(), count(verdict.messages, "message")));
    } else if needs_rebuild {
        let before = if verdict.are_tags_damaged { "damaged: restore the tags first, then " } else { "damaged: " };
        text.push_str(&format!("{before}`posthaste index rebuild` repairs it; tags are kept\n"));
    }
    print(&text)?;
    Ok(ExitCode::from(u8::from(!is_sound)))
}
