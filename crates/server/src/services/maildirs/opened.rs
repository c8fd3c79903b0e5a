//! Delivery and the table of mailboxes, opened in the order of their dependencies.

use std::sync::Arc;

use posthaste_config::Config;
use posthaste_delivery::local::LocalDelivery;
use posthaste_intake::{Intake, MemoryBudget};
use posthaste_spool::Damage;

use super::service::MaildirService;
use crate::config::error::ServeError;
use crate::receive::events::EventRecorder;
use crate::services::mailboxes::{MailTable, Mailboxes, UnreadableMailboxes};
use crate::services::opening::Restored;

/// Delivery, and the mailboxes that it delivers to.
pub(crate) struct OpenedMail {
    pub maildirs: MaildirService,
    pub store: LocalDelivery,
    pub replayed: Restored,
    pub mailboxes: Option<Mailboxes>,
    /// Mail is still received and kept without them.
    pub failed: Option<UnreadableMailboxes>,
}

/// Opens the table of mailboxes, if IMAP or POP3 is on, then delivery, which queries it so as not to write expunged
/// mail again.
pub(crate) async fn open_mail(
    config: &Config,
    (intake, memory): (Intake, MemoryBudget),
    damage: &[Damage],
    recorder: Option<EventRecorder>,
    has_readers: bool,
) -> Result<OpenedMail, ServeError> {
    let spool = Arc::clone(intake.spool());
    let table = if has_readers { Some(MailTable::open(config, damage, spool).await) } else { None };
    let known = table.as_ref().and_then(|table| table.as_ref().ok()).map(MailTable::known);
    let (maildirs, store, replayed) = MaildirService::open(config, intake.clone(), damage, recorder, known).await?;
    let opened = match table {
        Some(Ok(table)) => Some(Mailboxes::open(table, config, (intake, memory), maildirs.files()).await),
        Some(Err(error)) => Some(Err(error)),
        None => None,
    };
    let (mailboxes, failed) = opened.transpose().map_or_else(|error| (None, Some(error)), |opened| (opened, None));
    Ok(OpenedMail { maildirs, store, replayed, mailboxes, failed })
}
