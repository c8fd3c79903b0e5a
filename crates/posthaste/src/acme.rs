//! `posthaste acme`: certificates of a running server from its authority.

use std::path::Path;

use clap::{Args, Subcommand};
use posthaste_control::Request;
use serde_json::Value;

use crate::config_arg::ConfigArg;
use crate::queue::{AnyError, answer_in, answer_or_none, number, text};
use crate::terminal::{complain, harmless, print};

#[derive(Subcommand)]
pub enum AcmeCommand {
    /// Try at once to get the certificates that are missing or due, whatever has failed before
    Renew(RenewArgs),
}

#[derive(Args)]
pub struct RenewArgs {
    /// Renew those that are not due, too: authorities count orders
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    config: ConfigArg,
}

impl AcmeCommand {
    pub fn run(self) -> Result<(), AnyError> {
        let Self::Renew(RenewArgs { all, config }) = self;
        let data = config.load()?.config.storage.data;
        let outcomes = of_names(answer_in(&data, &Request::Acme { all })?);
        outcomes.iter().try_for_each(|outcome| print(&outcome_line(outcome)))?;
        let failed = outcomes.iter().filter(|outcome| outcome["error"].is_string()).count();
        if failed > 0 { Err(format!("{failed} names have no new certificate").into()) } else { Ok(()) }
    }
}

/// Makes a running server order certificates for all names without one, and returns the outcomes. Empty if no server
/// is running or it refuses. Blocks.
pub fn try_at_once(data: &Path) -> Vec<Value> {
    let answer = answer_or_none(data, &Request::Acme { all: false }).unwrap_or_else(|error| {
        complain(&error.to_string());
        None
    });
    of_names(answer.unwrap_or_default())
}

fn of_names(mut lines: Vec<Value>) -> Vec<Value> {
    lines.retain(|line| line.get("name").is_some());
    lines
}

/// The outcome for one name.
pub fn outcome_line(outcome: &Value) -> String {
    let name = text(outcome, "name");
    let days = number(outcome, "ends").saturating_sub(now()) / 86_400;
    match outcome["error"].as_str() {
        Some(why) => format!("{name}  no: {}\n", harmless(why)),
        None if outcome["new"] == true => {
            let about_key = outcome["about_key"].as_str();
            let about_key = about_key.map(|why| format!("; {}", harmless(why)));
            format!("{name}  new, for {days} days{}\n", about_key.unwrap_or_default())
        }
        None => format!("{name}  not due, {days} days left\n"),
    }
}

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}
