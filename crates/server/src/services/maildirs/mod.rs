//! Mailboxes as a destination: opening on the spool, log lines, and end.

mod alerts;
mod opened;
mod outcomes;
mod service;

pub(crate) use alerts::{MailAlerts, NAMED_MAX};
pub(crate) use opened::{OpenedMail, open_mail};
pub(crate) use service::{MaildirService, note_stuck_mounts};
