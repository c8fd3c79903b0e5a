//! Transports as a destination of mail.

use std::task::{Context, Poll};
use std::time::Instant;

use posthaste_intake::{
    BodyFacts, Destination, DestinationFigures, Left, Mail, MailPlace, NotTaken, NotTakenCause, Reserved, Reserving,
};
use posthaste_watch::StuckWorker;

use crate::entry::Target;
use crate::transports::{TransportMessage, Transports};

impl Destination for Transports {
    fn left(&self) -> Left {
        let stats = self.stats();
        Left { messages: stats.messages, places: stats.transports }
    }

    fn figures(&self) -> DestinationFigures {
        let stats = self.stats();
        DestinationFigures {
            delivered: stats.delivered,
            failed_attempts: stats.failed_attempts,
            waiting: stats.messages as u64,
            stands_still: false,
        }
    }

    /// Includes refused messages, but not held ones.
    fn retry(&self) {
        self.queues().retry_all();
        self.0.shared.wake.notify_one();
    }

    /// A program still running at the deadline is killed.
    fn end_by(&self, deadline: Instant) {
        self.0.end_by(deadline);
    }

    fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.runtime.poll_ended(cx)
    }

    fn look_for_stuck(&self, now: Instant) -> Vec<StuckWorker> {
        self.0.runtime.look(now)
    }

    /// Refuses if too much waits for a transport, or for all of them.
    fn check(&self, place: &MailPlace, _: u64) -> Result<(), NotTaken> {
        let MailPlace::Transport(transport) = place else { return Ok(()) };
        self.check_transport(transport).map_err(|full| NotTaken {
            cause: NotTakenCause::PlaceFull,
            code: 452,
            status: "4.2.2",
            text: "Too much mail waits for this mailbox, try again later".into(),
            why: full.to_string(),
            about: Some(full.transport),
        })
    }

    fn reserve<'a>(&'a self, mail: &'a Mail<'a>, _: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a> {
        let target = |recipient: &posthaste_intake::MailRecipient| match &recipient.place {
            MailPlace::Transport(transport) => Some(Target {
                transport: transport.clone(),
                recipient: recipient.address.clone(),
                original: recipient.original.clone(),
                detail: recipient.detail.clone(),
            }),
            MailPlace::Maildir(_) | MailPlace::Remote => None,
        };
        let targets: Vec<Target> = mail.recipients.iter().filter_map(target).collect();
        if !targets.is_empty() {
            let is_8bit = mail.is_8bit;
            let smtputf8 = mail.smtputf8;
            reserved.entries.push(self.entry(TransportMessage {
                sender: (&*mail.sender).into(),
                is_8bit,
                smtputf8,
                targets,
            }));
        }
        Reserving::Done(Ok(()))
    }
}
