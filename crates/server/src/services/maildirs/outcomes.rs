//! The outcomes of mailboxes, for the event log.

use std::sync::Arc;

use posthaste_delivery::local::{Observer, TargetId};
use posthaste_events::{Delivered, Event, Kind, Waiting};
use posthaste_spool::Entry;

use crate::receive::events::Outcomes;

impl Observer for Outcomes {
    fn visible(&self, targets: Vec<TargetId>) -> Option<Entry> {
        let targets = targets.into_iter().map(target).collect();
        self.0.entry(&Event::now(Kind::Delivered(Delivered { targets })))
    }

    fn lost(&self, targets: u64) {
        self.0.lost(targets);
    }

    fn waits(&self, waiting: TargetId, error: Arc<str>) {
        self.0.note(&Event::now(Kind::Waiting(Waiting { target: target(waiting), error })));
    }

    fn given_up(&self, lost: TargetId, error: Arc<str>) {
        self.0.note(&Event::now(Kind::GivenUp(Waiting { target: target(lost), error })));
    }
}

fn target(id: TargetId) -> posthaste_events::Target {
    posthaste_events::Target { message: id.message, number: id.number, mailbox: id.mailbox }
}
