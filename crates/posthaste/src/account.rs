//! `posthaste account`: whether everything acknowledged is there. `load` asks the same of its own run.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use posthaste_loadgen::account::{Account, Copies, Ledger, account};
use posthaste_loadgen::load::Stop;
use posthaste_loadgen::values::duration;

use crate::print;

type AnyError = Box<dyn std::error::Error>;

#[derive(Args)]
pub struct Accounting {
    /// How many copies of a message the stores keep: a sink's --store one for each message. Without it one for each message
    /// if all are sinks' account files, otherwise one for each recipient
    #[arg(long, value_enum, value_name = "PER")]
    copies: Option<CopiesOption>,
    /// Wait at most so long for acknowledged messages to arrive
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    settle: Duration,
    /// Findings listed of each kind; JSON has them all
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub list: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum CopiesOption {
    Recipient,
    Message,
}

/// Looks for what `posthaste load --acked FILE` was acknowledged, for example after a crash and a restart.
#[derive(Args)]
pub struct AccountOfRun {
    /// The file that `load --acked` wrote
    acked: PathBuf,
    /// A Maildir tree, a directory, an mbox, a sink's account file
    #[arg(required = true)]
    stores: Vec<PathBuf>,
    #[command(flatten)]
    accounting: Accounting,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Accounting {
    /// Looks until nothing is lost any more, or time is up, or `stop` is urged.
    pub fn account(&self, ledger: &Ledger, stores: &[PathBuf], stop: &Stop) -> Result<Account, AnyError> {
        let copies = self.copies.map(|copies| match copies {
            CopiesOption::Recipient => Copies::PerRecipient,
            CopiesOption::Message => Copies::PerMessage,
        });
        let begun = Instant::now();
        loop {
            let looked = Instant::now();
            let account = account(ledger, stores, copies)?;
            // Looking costs; the server shall have at least as much time for delivery as we take from it.
            let next = Instant::now() + looked.elapsed().max(Duration::from_millis(200));
            while Instant::now() < next {
                if account.lost.is_empty() || begun.elapsed() >= self.settle || stop.is_urgent() {
                    return Ok(account);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

impl AccountOfRun {
    pub fn run(&self) -> Result<ExitCode, AnyError> {
        let ledger = Ledger::load(&self.acked)?;
        let account = self.accounting.account(&ledger, &self.stores, &Stop::default())?;
        let json = || serde_json::to_string_pretty(&account).map(|json| json + "\n");
        print(&if self.json { json()? } else { account.to_text(self.accounting.list) })?;
        Ok(ExitCode::from(u8::from(!account.is_clean())))
    }
}
