//! `posthaste mailbox verify`: compares the table's rows with the files of Maildirs.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use posthaste_delivery::local::inspect::undelivered;
use posthaste_mailstore::{Finding, SpoolLook, Verified, VerifiedPlaces, entry, verify_mailboxes};
use posthaste_spool::{ClosedFileSpool, ClosedSpool, OpenError};
use posthaste_units::count;
use serde_json::{Value, json};

use super::place::{inbox_of, table_dir};
use crate::config_arg::ConfigArg;
use crate::queue::AnyError;
use crate::terminal::{harmless, print, print_json};

#[derive(Args)]
pub struct VerifyArgs {
    /// A login, or the path of its Maildir below the mail directory; default: all accounts
    #[arg(value_name = "ACCOUNT")]
    account: Option<String>,
    /// This mailbox alone
    #[arg(value_name = "MAILBOX")]
    mailbox: Option<String>,
    #[command(flatten)]
    config: ConfigArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Maximum findings of one kind and mailbox in text output.
const TOLD_MAX: usize = 20;

impl VerifyArgs {
    /// Exit status 1: there is damage, or no such account or mailbox.
    pub fn run(&self) -> Result<ExitCode, AnyError> {
        let config = self.config.load()?.config;
        let table = table_dir(&config)?;
        let inbox = self.account.as_ref().map(|account| inbox_of(&config, account));
        let look = || look(&config.storage.spool);
        let places = VerifiedPlaces { table: &table, mail: &config.storage.mail, look: &look };
        let Some(verified) = verify_mailboxes(&places, inbox.as_deref(), self.mailbox.as_deref())? else {
            let account = self.account.as_deref().unwrap_or_default();
            let mailbox = self.mailbox.as_deref();
            let of = mailbox.map_or_else(|| "mailboxes".to_owned(), |name| format!("mailbox {}", harmless(name)));
            print(&format!("{} has no {of}\n", harmless(account)))?;
            return Ok(ExitCode::FAILURE);
        };
        let damage = verified.findings.iter().filter(|finding| finding.kind.is_damage()).count();
        if self.json {
            print_json(&format!("{}\n", as_json(&verified, damage)))?
        } else {
            print(&text(&verified, damage))?
        }
        Ok(ExitCode::from(u8::from(damage > 0)))
    }
}

/// Reads a spool that a server may have open.
fn look(spool: &Path) -> io::Result<SpoolLook> {
    let spool = ClosedFileSpool::glance(spool).map_err(|error| match error {
        OpenError::Io(error) => error,
        error => io::Error::other(error.to_string()),
    })?;
    let mut found = SpoolLook::default();
    spool.entries(&mut |stream, lsn, payload, _| {
        if stream == entry::STREAM {
            found.entries.push((lsn.get(), payload.clone()));
        }
    })?;
    found.entries.sort_by_key(|(lsn, _)| *lsn);
    for message in undelivered(&spool)? {
        found.undelivered.extend(message.mailboxes.into_iter().map(|to| (message.id, to.mailbox.to_string())));
    }
    Ok(found)
}

fn as_json(Verified { mailboxes, messages, findings }: &Verified, damage: usize) -> Value {
    let finding = |finding: &Finding| {
        let Finding { kind, account, mailbox, uid, file, detail } = finding;
        json!({
            "kind": kind.as_str(), "is_damage": kind.is_damage(), "account": account, "mailbox": mailbox, "uid": uid,
            "file": file, "detail": detail,
        })
    };
    let findings: Vec<Value> = findings.iter().map(finding).collect();
    json!({ "mailboxes": mailboxes, "messages": messages, "damage": damage, "findings": findings })
}

fn text(verified: &Verified, damage: usize) -> String {
    let mut out = String::new();
    let alike = |one: &Finding, next: &Finding| {
        (one.kind, &one.account, &one.mailbox) == (next.kind, &next.account, &next.mailbox)
    };
    let mut findings: Vec<&Finding> = verified.findings.iter().collect();
    let order = |finding: &Finding| (finding.account.clone(), finding.mailbox.clone(), finding.kind);
    findings.sort_by_cached_key(|finding| order(finding));
    for group in findings.chunk_by(|one, next| alike(one, next)) {
        for finding in group.iter().take(TOLD_MAX) {
            let Finding { kind, account, mailbox, uid, file, detail } = finding;
            let place = [account, mailbox].map(|part| harmless(part)).join(" ");
            let uid = uid.map_or_else(String::new, |uid| format!("UID {uid}: "));
            let file = file.as_ref().map_or_else(String::new, |file| format!(" ({})", harmless(file)));
            let sort = if kind.is_damage() { "damage" } else { "to come" };
            out += &format!("{sort}: {}: {uid}{}{file}\n", place.trim(), harmless(detail));
        }
        if let Some(more) = group.len().checked_sub(TOLD_MAX).filter(|more| *more > 0) {
            out += &format!("and {more} more like this\n");
        }
    }
    let (mailboxes, messages) =
        (count_of(verified.mailboxes, "mailbox", "mailboxes"), count(verified.messages, "message"));
    let found = match damage {
        0 => "no damage".to_owned(),
        damage => format!("{damage} damaged"),
    };
    out + &format!("{mailboxes} with {messages}: {found}\n")
}

fn count_of(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
