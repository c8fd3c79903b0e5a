//! The outcomes of mailboxes, for the event log.

use std::sync::Arc;

use posthaste_delivery::local::{DeliveryObserver, MailboxTargetId};
use posthaste_events::{Delivered, Event, EventKind, WaitingEvent};
use posthaste_spool::Entry;

use crate::receive::events::Outcomes;

impl DeliveryObserver for Outcomes {
    fn visible(&self, targets: Vec<MailboxTargetId>) -> Option<Entry> {
        let targets = targets.into_iter().map(target).collect();
        self.0.entry(&Event::now(EventKind::Delivered(Delivered { targets })))
    }

    fn lost(&self, targets: u64) {
        self.0.lost(targets);
    }

    fn waits(&self, waiting: MailboxTargetId, error: Arc<str>) {
        self.0.note(&Event::now(EventKind::Waiting(WaitingEvent { target: target(waiting), error })));
    }

    fn given_up(&self, lost: MailboxTargetId, error: Arc<str>) {
        self.0.note(&Event::now(EventKind::GivenUp(WaitingEvent { target: target(lost), error })));
    }
}

fn target(id: MailboxTargetId) -> posthaste_events::MailboxRef {
    posthaste_events::MailboxRef { message: id.message, number: id.number, mailbox: id.mailbox }
}
