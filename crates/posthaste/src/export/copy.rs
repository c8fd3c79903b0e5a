//! Messages of a session, copied to a target.

use std::path::Path;

use indicatif::ProgressBar;
use posthaste_control::{MailAnswer, MailCommand, MailDone, MailPiece, MailRow};
use posthaste_maildir::line_ends::LineEndScan;

use crate::import::LeftOut;
use crate::mail_session::MailSession;
use crate::progress::progress_bar;
use crate::queue::AnyError;
use crate::terminal::harmless;

/// Number of messages written now, and number that already existed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub written: u64,
    pub there: u64,
}

/// Selects a mailbox, and lists its messages.
pub(super) fn rows(session: &mut MailSession, mailbox: &str) -> Result<(MailDone, Vec<MailRow>), AnyError> {
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
pub(super) struct Written {
    /// Octets of the message in IMAP.
    pub wire_size: u64,
}

/// Writes the text of a message with LF line ends, or unchanged if LF would not read back the same. `write` gets the
/// text; `restart` is called before it is written again from the start. `None` after a read error, which is reported.
pub(super) fn copy_text<W>(
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

pub(super) fn bar_for(messages: u64) -> ProgressBar {
    let bar = progress_bar();
    bar.set_message("exporting");
    bar.set_length(messages);
    bar
}
