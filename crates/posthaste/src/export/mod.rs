//! `posthaste export`: writes an account's mail into a Maildir or an mbox file.

mod copy;
mod dir;
mod maildir;
mod mbox;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use posthaste_units::count;
use serde_json::json;

use self::copy::Counts;
use self::maildir::MaildirTarget;
use self::mbox::MboxTarget;
use crate::config_arg::ConfigArg;
use crate::import::{LeftOut, account_and_mailbox};
use crate::mail_session::MailSession;
use crate::queue::AnyError;
use crate::terminal::{harmless, print, print_json};

#[derive(Args)]
pub struct ExportArgs {
    /// A login, and perhaps one of its mailboxes with those below it, such as ann@example.org/Archive
    #[arg(value_name = "ACCOUNT[/MAILBOX]")]
    from: String,
    /// A directory, which becomes a Maildir with folders, or a new file with a name in .mbox for one mailbox
    #[arg(long, value_name = "DIR|FILE.mbox")]
    to: PathBuf,
    #[command(flatten)]
    config: ConfigArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Exit status 1: a message was left out, or there is no such mailbox.
pub fn run(args: &ExportArgs) -> Result<ExitCode, AnyError> {
    let (account, mailbox) = account_and_mailbox(&args.from);
    let config = args.config.load()?.config;
    let host = config.host_name.clone();
    let mut session = MailSession::begin(config, account)?;
    let mut left_out = LeftOut::default();
    let exported = if args.to.extension().is_some_and(|extension| extension == "mbox") {
        MboxTarget::new(&args.to).and_then(|target| target.export(&mut session, mailbox, &mut left_out))
    } else {
        MaildirTarget::new(&args.to, &host).export(&mut session, mailbox, &mut left_out)
    };
    session.end()?;
    let Counts { written, there } = exported?;
    let left_out = left_out.count;
    if args.json {
        print_json(&format!("{}\n", json!({ "written": written, "there": there, "left_out": left_out })))?
    } else {
        let number = |number: u64| count(usize::try_from(number).unwrap_or(usize::MAX), "message");
        let mut text = format!("{} written to {}", number(written), harmless(&args.to.to_string_lossy()));
        if there > 0 {
            text += &format!(", {} there before", number(there));
        }
        if left_out > 0 {
            text += &format!(", {left_out} left out");
        }
        print(&(text + "\n"))?;
    }
    Ok(ExitCode::from(u8::from(left_out > 0)))
}
