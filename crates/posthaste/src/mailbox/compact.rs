//! `posthaste mailbox compact`: cuts unused pages off the file of the table.

use std::process::ExitCode;

use clap::Args;
use posthaste_mailstore::table::MetaTable;
use posthaste_spool::{ClosedFileSpool, OpenError};
use posthaste_units::about_bytes;
use serde_json::json;

use super::place::table_dir;
use crate::config_arg::ConfigArg;
use crate::queue::AnyError;
use crate::spool_access::become_owner;
use crate::terminal::{print, print_json};

#[derive(Args)]
pub struct CompactArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CompactArgs {
    pub fn run(&self) -> Result<ExitCode, AnyError> {
        let config = self.config.load()?.config;
        let table = table_dir(&config)?;
        let spool = &config.storage.spool;
        become_owner(&table)?;
        // Whoever has the spool writes the table.
        let _spool = ClosedFileSpool::open(spool).map_err(|error| match error {
            OpenError::Locked => format!("{}: the spool is in use; stop the server first", spool.display()),
            error => format!("{}: {error}", spool.display()),
        })?;
        let (before, after) = MetaTable::compact(&table)?;
        if self.json {
            print_json(&format!("{}\n", json!({ "table_file_bytes": after, "table_file_bytes_before": before })))?
        } else {
            print(&format!("the table has {} now, {} before\n", about_bytes(after), about_bytes(before)))?
        }
        Ok(ExitCode::SUCCESS)
    }
}
