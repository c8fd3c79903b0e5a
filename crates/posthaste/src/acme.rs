//! `posthaste acme`: certificates of a running server from its authority.

use clap::{Args, Subcommand};
use posthaste_control::Request;

use crate::config_arg::ConfigArg;
use crate::queue::{AnyError, answer_in, number, text};
use crate::terminal::{harmless, print};

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
        let lines = answer_in(&data, &Request::Acme { all })?;
        let mut failed = 0;
        for line in lines.iter().filter(|line| line.get("name").is_some()) {
            let name = text(line, "name");
            let days = number(line, "ends").saturating_sub(now()) / 86_400;
            print(&match line["error"].as_str() {
                Some(why) => {
                    failed += 1;
                    format!("{name}  no: {}\n", harmless(why))
                }
                None if line["new"] == true => {
                    let about_key = line["about_key"].as_str();
                    let about_key = about_key.map(|why| format!("; {}", harmless(why)));
                    format!("{name}  new, for {days} days{}\n", about_key.unwrap_or_default())
                }
                None => format!("{name}  not due, {days} days left\n"),
            })?;
        }
        if failed > 0 { Err(format!("{failed} names have no new certificate").into()) } else { Ok(()) }
    }
}

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}
