//! `posthaste load account`: accounts for acknowledged mail. `load` does the same for its own run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use posthaste_delivery::local::inspect::each_undelivered;
use posthaste_loadgen::account::{Account, Copies, Ledger, Waiting, account};
use posthaste_loadgen::load::Stop;
use posthaste_loadgen::report::to_json;
use posthaste_loadgen::stamp;
use posthaste_loadgen::values::duration;
use posthaste_spool::StoreKind;

use crate::terminal::print;
use crate::terminal::without_error_numbers;

type AnyError = Box<dyn std::error::Error>;

#[derive(Args)]
pub struct Accounting {
    /// How many copies of a message the stores keep: a sink's --store one for each message. Without it one for each message
    /// if all are sinks' account files, otherwise one for each recipient
    #[arg(long, value_enum, value_name = "PER")]
    copies: Option<CopiesOption>,
    /// Maximum wait for acknowledged messages to arrive
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    settle: Duration,
    /// Maximum findings to list of each kind; JSON has them all
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub list: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum CopiesOption {
    Recipient,
    Message,
}

/// Accounts for acknowledged messages of `posthaste load --acked FILE`, for example after a crash and a restart.
#[derive(Args)]
pub struct AccountOfRun {
    /// The file that `load --acked` wrote
    acked: PathBuf,
    /// A Maildir tree, a directory, an mbox, a sink's account file, or a Posthaste server's data directory or spool
    /// (mail waiting in it is not lost)
    #[arg(required = true)]
    stores: Vec<PathBuf>,
    #[command(flatten)]
    accounting: Accounting,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Accounting {
    /// Looks until all mail is accounted for, time is up, or an immediate `stop`.
    pub fn account(&self, ledger: &Ledger, stores: &[PathBuf], stop: &Stop) -> Result<Account, AnyError> {
        let copies = self.copies.map(|copies| match copies {
            CopiesOption::Recipient => Copies::PerRecipient,
            CopiesOption::Message => Copies::PerMessage,
        });
        let Sources { stores, spools } = Sources::of(stores);
        let begun = Instant::now();
        loop {
            let looked = Instant::now();
            let mut found = account(ledger, &stores, &[], copies)?;
            // A spool takes long to read, so only where something is missing; and then before the stores, as what leaves
            // it meanwhile is in its mailbox.
            if !spools.is_empty() && !found.lost.is_empty() {
                let waiting = waiting_in(&spools)?;
                found = account(ledger, &stores, &waiting, copies)?;
            }
            // Looking costs; the server shall have at least as much time for delivery as we take from it.
            let next = Instant::now() + looked.elapsed().max(Duration::from_millis(200));
            while Instant::now() < next {
                if !found.may_still_change() || begun.elapsed() >= self.settle || stop.is_urgent() {
                    return Ok(found);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Places to look in.
struct Sources {
    stores: Vec<PathBuf>,
    /// Spools of our servers.
    spools: Vec<PathBuf>,
}

impl Sources {
    /// Classifies the paths as stores, spools, or data directories, which have both. A store within another is read
    /// once.
    fn of(named: &[PathBuf]) -> Self {
        let mut places = Self { stores: Vec::new(), spools: Vec::new() };
        for place in named {
            let spool = place.join("spool");
            if is_spool(place) {
                places.spools.push(place.clone());
            } else if is_spool(&spool) {
                places.spools.push(spool);
                // The mail may lie elsewhere; then it is named, too.
                places.stores.extend(Some(place.join("mail")).filter(|mail| mail.is_dir()));
            } else {
                places.stores.push(place.clone());
            }
        }
        places.stores = outermost(places.stores);
        places.spools = outermost(places.spools);
        places
    }
}

fn is_spool(dir: &Path) -> bool {
    dir.join("lock").is_file() && StoreKind::of(dir).is_some()
}

/// Removes paths that lie in others or are named twice.
fn outermost(paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let known: Vec<PathBuf> = paths.iter().map(real).collect();
    let is_within = |index: usize| {
        let mut others = known.iter().enumerate().filter(|(other, _)| *other != index);
        others.any(|(other, path)| known[index].starts_with(path) && (known[index] != *path || other < index))
    };
    (0..paths.len()).filter(|index| !is_within(*index)).map(|index| paths[index].clone()).collect()
}

/// Stamped mail waiting in spools, by message and mailbox.
fn waiting_in(spools: &[PathBuf]) -> Result<Vec<Waiting>, AnyError> {
    let mut waiting = Vec::new();
    for spool in spools {
        let named = |error: posthaste_spool::OpenError| format!("{}: {error}", spool.display());
        each_undelivered(spool, &mut |message, body| {
            let Some(stamp) = stamp::find(body) else { return };
            waiting.extend(message.mailboxes.iter().map(|to| Waiting {
                stamp,
                mailbox: to.mailbox.to_string(),
                why: to.trouble.as_ref().map(|trouble| trouble.error.to_string()),
            }));
        })
        .map_err(named)?;
    }
    Ok(waiting)
}

impl AccountOfRun {
    pub fn run(&self) -> Result<ExitCode, AnyError> {
        let ledger = Ledger::load(&self.acked)?;
        let account = self.accounting.account(&ledger, &self.stores, &Stop::default())?;
        print(&if self.json {
            to_json(&account)
        } else {
            without_error_numbers(&account.to_text(self.accounting.list))
        })?;
        Ok(ExitCode::from(u8::from(!account.is_clean())))
    }
}
