//! `posthaste mailbox …`: the mailboxes of an account, as IMAP and POP3 show them.

mod compact;
mod place;
mod verify;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use posthaste_control::{MailAnswer, MailCommand, MailDone};
use posthaste_mailstore::summary::{AccountSummary, MailboxSummary};
use posthaste_units::{about_bytes, count};
use serde_json::{Value, json};

use self::compact::CompactArgs;
use self::place::{inbox_of, table_dir};
use self::verify::VerifyArgs;
use crate::config_arg::ConfigArg;
use crate::mail_session::MailSession;
use crate::queue::{AnyError, columns};
use crate::terminal::{complain, confirmed, harmless, print, print_json};

#[derive(Subcommand)]
pub enum MailboxCommand {
    /// List an account's mailboxes
    List(OfAccount),
    /// Print how many messages an account has, or one of its mailboxes
    Count {
        #[command(flatten)]
        of: OfAccount,
        /// Only this mailbox
        #[arg(value_name = "MAILBOX")]
        mailbox: Option<String>,
    },
    /// Show everything that is kept about an account's mailboxes
    Info(OfAccount),
    /// Make a mailbox, and those above it that are missing, by the rules of IMAP
    Create {
        #[command(flatten)]
        of: OfAccount,
        /// Its name, with / between the levels
        #[arg(value_name = "MAILBOX")]
        mailbox: String,
    },
    /// Give a mailbox, and those below it, another name; the mail of INBOX moves and INBOX stays
    Rename {
        #[command(flatten)]
        of: OfAccount,
        /// Its name
        #[arg(value_name = "MAILBOX")]
        mailbox: String,
        /// The new name
        #[arg(value_name = "NAME")]
        to: String,
    },
    /// Delete a mailbox with its mail; mailboxes below it stay
    Delete {
        #[command(flatten)]
        of: OfAccount,
        /// Its name
        #[arg(value_name = "MAILBOX")]
        mailbox: String,
        /// Do not ask, even if there is mail in it
        #[arg(long)]
        yes: bool,
    },
    /// Compare what is kept about mailboxes with their files; changes nothing
    Verify(VerifyArgs),
    /// Cut unused pages off the file of the table, while no server is running
    Compact(CompactArgs),
    /// Rebuild the data about a mailbox from its files; sessions that have it open end
    Rebuild {
        #[command(flatten)]
        of: OfAccount,
        /// Its name
        #[arg(value_name = "MAILBOX")]
        mailbox: String,
        /// Give messages new UIDs in any case: clients load them again
        #[arg(long)]
        new_uids: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args)]
pub struct OfAccount {
    /// A login, such as ann@example.org, or the path of its Maildir below the mail directory
    #[arg(value_name = "ACCOUNT")]
    account: String,
    #[command(flatten)]
    config: ConfigArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Bytes of the table, and its rows for an account.
struct Found {
    account: AccountSummary,
    inbox: String,
    file_bytes: u64,
}

impl OfAccount {
    fn find(&self) -> Result<Option<Found>, AnyError> {
        let config = self.config.load()?.config;
        let inbox = inbox_of(&config, &self.account);
        let dir = table_dir(&config)?;
        let account = AccountSummary::read(&dir, &inbox)?;
        let file_bytes = std::fs::read_dir(&dir)?.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum();
        Ok(account.map(|account| Found { account, inbox, file_bytes }))
    }

    /// Runs `change` in a session. A refusal is reported, with exit status 1.
    fn change(
        &self,
        change: impl FnOnce(&mut MailSession) -> Result<(MailAnswer, Value, String), AnyError>,
    ) -> Result<ExitCode, AnyError> {
        let mut session = MailSession::begin(self.config.load()?.config, &self.account)?;
        let changed = change(&mut session);
        session.end()?;
        let (answer, done, text) = changed?;
        match answer {
            MailAnswer::Done(_) if self.json => print_json(&format!("{done}\n"))?,
            MailAnswer::Done(_) => print(&format!("{text}\n"))?,
            MailAnswer::Refused(why) => {
                complain(&why);
                return Ok(ExitCode::FAILURE);
            }
            MailAnswer::Error(why) => return Err(why.into()),
        }
        Ok(ExitCode::SUCCESS)
    }

    fn create(&self, mailbox: &str) -> Result<ExitCode, AnyError> {
        self.change(|session| {
            let answer = session.ask(&MailCommand::Create { mailbox: mailbox.to_owned() })?;
            Ok((answer, json!({ "created": mailbox }), format!("{} is made", harmless(mailbox))))
        })
    }

    fn rename(&self, mailbox: &str, to: &str) -> Result<ExitCode, AnyError> {
        self.change(|session| {
            let answer = session.ask(&MailCommand::Rename { mailbox: mailbox.to_owned(), to: to.to_owned() })?;
            let text = format!("{} is {} now", harmless(mailbox), harmless(to));
            Ok((answer, json!({ "renamed": mailbox, "to": to }), text))
        })
    }

    fn delete(&self, mailbox: &str, yes: bool) -> Result<ExitCode, AnyError> {
        self.change(|session| {
            let opened = session.ask(&MailCommand::Open { mailbox: mailbox.to_owned(), make: false })?;
            let MailAnswer::Done(MailDone { messages, .. }) = opened else {
                return Ok((opened, Value::Null, String::new()));
            };
            let name = harmless(mailbox);
            let lost = count(messages as usize, "message");
            if messages > 0 && !yes && !confirmed(&format!("Delete {name} with {lost}?"))? {
                return Err(format!("{name} has {lost}; nothing is deleted without --yes").into());
            }
            let answer = session.ask(&MailCommand::Delete { mailbox: mailbox.to_owned(), expect: Some(messages) })?;
            Ok((answer, json!({ "deleted": mailbox, "messages": messages }), format!("{name} is deleted, with {lost}")))
        })
    }

    fn rebuild(&self, mailbox: &str, renew: bool, yes: bool) -> Result<ExitCode, AnyError> {
        self.change(|session| {
            let name = harmless(mailbox);
            if !yes && !confirmed(&format!("Rebuild {name} from its files? Sessions that have it open end"))? {
                return Err("nothing is rebuilt without --yes".into());
            }
            let answer = session.ask(&MailCommand::Rebuild { mailbox: mailbox.to_owned(), renew })?;
            let MailAnswer::Done(MailDone { uid_validity, uid_next, messages, made, .. }) = answer else {
                return Ok((answer, Value::Null, String::new()));
            };
            let uids = if made {
                format!("new UIDs under UIDVALIDITY {uid_validity}: clients load them again")
            } else {
                format!("the UIDs that they had under UIDVALIDITY {uid_validity}")
            };
            let messages_text = count(messages as usize, "message");
            let done = json!({
                "rebuilt": mailbox, "messages": messages, "uid_validity": uid_validity, "uid_next": uid_next,
                "keeps_uids": !made,
            });
            Ok((answer, done, format!("{name} is rebuilt with {messages_text}, which have {uids}")))
        })
    }

    fn none(&self) -> Result<ExitCode, AnyError> {
        print(&format!(
            "{} has no mailboxes yet: they are made when its mail arrives or is read; a running server shows them here within 30 seconds\n",
            harmless(&self.account)
        ))?;
        Ok(ExitCode::FAILURE)
    }
}

/// Exit status 1: there is no such account or mailbox, or damage was found.
pub fn run(command: MailboxCommand) -> Result<ExitCode, AnyError> {
    match command {
        MailboxCommand::List(of) => {
            let Some(found) = of.find()? else { return of.none() };
            if of.json {
                print_json(&(found.account.mailboxes.iter().map(as_json).collect::<Value>().to_string() + "\n"))?
            } else {
                print(&table(&found.account.mailboxes))?
            }
        }
        MailboxCommand::Count { of, mailbox } => {
            let Some(found) = of.find()? else { return of.none() };
            let mut wanted = found.account.mailboxes.iter();
            let messages = match &mailbox {
                None => found.account.row.messages,
                Some(name) => match wanted.find(|mailbox| is_named(mailbox, name)) {
                    Some(mailbox) => mailbox.head.exists.into(),
                    None => {
                        print(&format!("{} has no mailbox {}\n", harmless(&of.account), harmless(name)))?;
                        return Ok(ExitCode::FAILURE);
                    }
                },
            };
            if of.json {
                print_json(&(json!({ "messages": messages }).to_string() + "\n"))?
            } else {
                print(&format!("{messages}\n"))?
            }
        }
        MailboxCommand::Info(of) => {
            let Some(found) = of.find()? else { return of.none() };
            if of.json { print_json(&(found.as_json().to_string() + "\n"))? } else { print(&found.text())? }
        }
        MailboxCommand::Create { of, mailbox } => return of.create(&mailbox),
        MailboxCommand::Rename { of, mailbox, to } => return of.rename(&mailbox, &to),
        MailboxCommand::Delete { of, mailbox, yes } => return of.delete(&mailbox, yes),
        MailboxCommand::Verify(args) => return args.run(),
        MailboxCommand::Compact(args) => return args.run(),
        MailboxCommand::Rebuild { of, mailbox, new_uids, yes } => return of.rebuild(&mailbox, new_uids, yes),
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares names; INBOX ignores case.
fn is_named(mailbox: &MailboxSummary, name: &str) -> bool {
    mailbox.name == name || mailbox.name == "INBOX" && name.eq_ignore_ascii_case("INBOX")
}

fn table(mailboxes: &[MailboxSummary]) -> String {
    let row = |MailboxSummary { name, head, .. }: &MailboxSummary| {
        [name.clone(), head.exists.to_string(), head.unseen.to_string(), about_bytes(head.bytes)]
    };
    columns(["mailbox", "messages", "unseen", "size"], mailboxes.iter().map(row), "no mailboxes")
}

fn as_json(MailboxSummary { id, name, head, keywords }: &MailboxSummary) -> Value {
    json!({
        "id": id, "name": name, "directory": String::from_utf8_lossy(&head.directory), "messages": head.exists,
        "unseen": head.unseen, "deleted": head.deleted, "bytes": head.bytes, "uid_validity": head.uid_validity,
        "uid_next": head.next_uid, "highest_modseq": head.highest_modseq.to_string(), "keywords": keywords,
    })
}

impl Found {
    fn as_json(&self) -> Value {
        let AccountSummary { id, row, mailboxes, live_bytes } = &self.account;
        json!({
            "id": id, "inbox": self.inbox, "messages": row.messages, "bytes": row.bytes,
            "mailboxes": mailboxes.iter().map(as_json).collect::<Vec<_>>(),
            "table_live_bytes": live_bytes, "table_file_bytes": self.file_bytes,
        })
    }

    fn text(&self) -> String {
        let AccountSummary { id, row, mailboxes, live_bytes } = &self.account;
        let messages = count(usize::try_from(row.messages).unwrap_or(usize::MAX), "message");
        let mut out = format!("account   {id}: {}\n", harmless(&self.inbox));
        out += &format!("messages  {messages}, {}\n", about_bytes(row.bytes));
        out += &format!(
            "table     {} in use of {}, for all accounts\n",
            about_bytes(*live_bytes),
            about_bytes(self.file_bytes)
        );
        for MailboxSummary { id, name, head, keywords } in mailboxes {
            out += &format!("\n{}\n", harmless(name));
            out += &format!("  directory      {}\n", harmless(&String::from_utf8_lossy(&head.directory)));
            out += &format!("  messages       {}, {} unseen, {} deleted\n", head.exists, head.unseen, head.deleted);
            out += &format!("  size           {}\n", about_bytes(head.bytes));
            out += &format!("  id             {id}\n");
            out += &format!("  UIDVALIDITY    {}, next UID {}\n", head.uid_validity, head.next_uid);
            out += &format!("  HIGHESTMODSEQ  {}\n", head.highest_modseq);
            if !keywords.is_empty() {
                out += &format!("  keywords       {}\n", harmless(&keywords.join(" ")));
            }
        }
        out
    }
}
