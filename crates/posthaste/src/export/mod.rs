//! `posthaste export`: writes an account's mail into a Maildir or an mbox file.

mod dir;
mod maildir;
mod mbox;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use indicatif::ProgressBar;
use posthaste_control::{MailAnswer, MailCommand, MailDone, MailPiece, MailRow};
use posthaste_maildir::line_ends::LineEndScan;
use posthaste_units::count;
use serde_json::json;

use self::maildir::MaildirTarget;
use self::mbox::MboxTarget;
use crate::config_arg::ConfigArg;
use crate::import::{LeftOut, account_and_mailbox};
use crate::mail_session::MailSession;
use crate::progress::progress_bar;
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

/// Messages written now, and messages that were already there.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    written: u64,
    there: u64,
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

/// Selects a mailbox, and lists its messages.
fn rows(session: &mut MailSession, mailbox: &str) -> Result<(MailDone, Vec<MailRow>), AnyError> {
    let opened = session.done(&MailCommand::Open { mailbox: mailbox.to_owned(), make: false });
    let opened = opened.map_err(|error| format!("{}: {error}", harmless(mailbox)))?;
    session.say(&MailCommand::Rows { from: 1, digests: false })?;
    let mut rows = Vec::new();
    loop {
        match session.next::<MailRow>()? {
            Ok(row) => rows.push(row),
            Err(MailAnswer::Done(_)) => return Ok((opened, rows)),
            Err(MailAnswer::Refused(why) | MailAnswer::Error(why)) => return Err(why.into()),
        }
    }
}

/// Facts about a written message.
struct Written {
    /// Octets of the message in IMAP.
    wire_size: u64,
}

/// Writes the text of a message with LF, or unchanged if it would differ when read back. `write` gets the text;
/// `restart` is called before all of it is written again. `None` after a read error, which is reported.
fn copy_text<W>(
    session: &mut MailSession,
    row: &MailRow,
    target: &mut W,
    write: impl Fn(&mut W, &[u8]) -> std::io::Result<()>,
    restart: impl Fn(&mut W) -> std::io::Result<()>,
    place: (&Path, &mut LeftOut),
) -> Result<Option<Written>, AnyError> {
    for has_lf in [true, false] {
        let mut ends = LineEndScan::default();
        let mut wire_size = 0;
        let mut is_lossless = true;
        session.say(&MailCommand::Read { uid: row.uid })?;
        let end = loop {
            match session.next::<MailPiece>()? {
                Ok(MailPiece::Data(octets)) => {
                    let octets = session.octets(octets)?;
                    wire_size += octets.len() as u64;
                    if !has_lf {
                        write(target, &octets)?;
                    } else if is_lossless {
                        let mut text = Vec::new();
                        is_lossless = ends.push(&octets, |run| text.extend_from_slice(run));
                        write(target, &text)?;
                    }
                }
                Ok(_) => return Err("the server ended the session".into()),
                Err(end) => break end,
            }
        };
        match end {
            MailAnswer::Done(_) if !has_lf || is_lossless && ends.are_lossless() => {
                return Ok(Some(Written { wire_size }));
            }
            MailAnswer::Done(_) => restart(target)?,
            MailAnswer::Refused(why) => {
                restart(target)?;
                place.1.tell(&place.0.join(format!("UID {}", row.uid)), &why);
                return Ok(None);
            }
            MailAnswer::Error(why) => return Err(why.into()),
        }
    }
    Err("a message cannot be written".into())
}

fn bar_for(messages: u64) -> ProgressBar {
    let bar = progress_bar();
    bar.set_message("exporting");
    bar.set_length(messages);
    bar
}
