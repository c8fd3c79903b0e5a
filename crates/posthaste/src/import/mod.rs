//! `posthaste import`: adds mail of other programs to an account.

mod journal;
mod mbox_digest;
mod moved_files;
mod run;
mod source;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use posthaste_units::count;
use serde_json::json;

use self::journal::Journal;
use self::moved_files::MovedFiles;
use self::run::{Counts, Importer};
use self::source::Source;
use crate::config_arg::ConfigArg;
use crate::mail_session::MailSession;
use crate::queue::AnyError;
use crate::terminal::{complain, harmless, print, print_json};

pub use self::source::LeftOut;

#[derive(Args)]
pub struct ImportArgs {
    /// A Maildir with its folders, a directory of .eml files, one such file, or an mbox file
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// A login and perhaps a mailbox, such as ann@example.org/Archive; default: INBOX, with folders beside it
    #[arg(long, value_name = "ACCOUNT[/MAILBOX]")]
    to: String,
    /// Remove each file once its message is on stable storage; not for mbox files
    #[arg(long = "move")]
    moves: bool,
    #[command(flatten)]
    config: ConfigArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Splits the text into an account and, if given, one of its mailboxes.
pub fn account_and_mailbox(text: &str) -> (&str, Option<&str>) {
    let (account, mailbox) = text.split_once('/').map_or((text, None), |(account, mailbox)| (account, Some(mailbox)));
    (account, mailbox.map(|mailbox| mailbox.trim_end_matches('/')).filter(|mailbox| !mailbox.is_empty()))
}

/// Exit status 1: a message was left out.
pub fn run(args: &ImportArgs) -> Result<ExitCode, AnyError> {
    let (account, mailbox) = account_and_mailbox(&args.to);
    let config = args.config.load()?.config;
    let at = |error: std::io::Error| format!("{}: {error}", args.path.display());
    let mut left_out = LeftOut::default();
    let source = Source::find(&args.path, &mut left_out).map_err(at)?;
    if args.moves && matches!(source, Source::Mbox(_)) {
        return Err("--move is for files with one message each; remove the mbox file yourself".into());
    }
    let data = config.storage.data.clone();
    let moves = args.moves.then(|| MovedFiles::new(config.storage.mail.clone()));
    // However the account and its INBOX are written, an import into them has one record.
    let directory = config.directory();
    let login = directory.login_name(account);
    let home = directory.maildir_of(login.as_deref().unwrap_or(account));
    let home = home.map_or(account.to_owned(), |path| path.to_string());
    let recorded = mailbox.filter(|mailbox| !mailbox.eq_ignore_ascii_case("INBOX")).unwrap_or("INBOX");
    let session = MailSession::begin(config, account)?;
    let journal = Journal::open(&data, &args.path, &home, recorded).map_err(|error| error.to_string());
    let mut importer = match journal {
        Ok(journal) => Importer::new(session, journal, mailbox, moves, left_out),
        Err(error) => {
            session.end()?;
            return Err(error.into());
        }
    };
    let imported = importer.run(&source);
    let counts = importer.end()?;
    if let Err(error) = imported {
        if counts.added + counts.there > 0 {
            complain(&format!("{}; repeat the command to continue", counts.text(account)));
        }
        return Err(error);
    }
    if args.json {
        let Counts { added, there, left_out, removed } = counts;
        let all = json!({ "added": added, "there": there, "left_out": left_out, "removed": removed });
        print_json(&format!("{all}\n"))?;
    } else {
        print(&(counts.text(account) + "\n"))?
    }
    Ok(ExitCode::from(u8::from(counts.left_out > 0)))
}

impl Counts {
    fn text(&self, account: &str) -> String {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let mut text = format!("{} imported for {}", count(number(self.added), "message"), harmless(account));
        if self.there > 0 {
            text += &format!(", {} imported before", count(number(self.there), "message"));
        }
        if self.removed > 0 {
            text += &format!(", {} removed", count(number(self.removed), "file"));
        }
        if self.left_out > 0 {
            text += &format!(", {} left out", self.left_out);
        }
        text
    }
}
