//! The place of a queue for other hosts, which opens and closes while mail is received.

use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Instant;

use posthaste_intake::{
    BodyFacts, Destination, DestinationFigures, Mail, MailPlace, NotTaken, NotTakenCause, Reserved, Reserving,
};
use posthaste_relay::sender::Relay;
use posthaste_watch::StuckWorker;

/// The queue for other hosts, while it is open. While it is closed, its mail is deferred.
#[derive(Default)]
pub(crate) struct RelaySlot {
    relay: RwLock<Option<Relay>>,
    /// Figures of earlier relays, so that counters never decrease.
    past: Mutex<DestinationFigures>,
}

impl RelaySlot {
    /// The relay, if it is open.
    pub fn opened(&self) -> Option<Relay> {
        self.relay.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the open relay; `None` once it is closed.
    pub fn set(&self, relay: Option<Relay>) {
        let before = std::mem::replace(&mut *self.relay.write().unwrap_or_else(PoisonError::into_inner), relay);
        if let Some(before) = before {
            let figures = before.figures();
            let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
            past.delivered += figures.delivered;
            past.failed_attempts += figures.failed_attempts;
        }
    }
}

impl Destination for RelaySlot {
    fn figures(&self) -> DestinationFigures {
        let now = self.opened().map(|relay| relay.figures()).unwrap_or_default();
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        DestinationFigures {
            delivered: past.delivered + now.delivered,
            failed_attempts: past.failed_attempts + now.failed_attempts,
            ..now
        }
    }

    fn look_for_stuck(&self, now: Instant) -> Vec<StuckWorker> {
        self.opened().map(|relay| relay.look_for_stuck(now)).unwrap_or_default()
    }

    fn check(&self, place: &MailPlace, recipients: u64) -> Result<(), NotTaken> {
        match self.opened() {
            Some(relay) => relay.check(place, recipients),
            None if *place == MailPlace::Remote => Err(not_open()),
            None => Ok(()),
        }
    }

    fn reserve<'a>(&'a self, mail: &'a Mail<'a>, body: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a> {
        let Some(relay) = self.opened() else {
            let has_remote = mail.recipients.iter().any(|recipient| recipient.place == MailPlace::Remote);
            return Reserving::Done(if has_remote { Err(not_open()) } else { Ok(()) });
        };
        match relay.reserve(mail, body, reserved) {
            Reserving::Done(taken) => Reserving::Done(taken),
            Reserving::Waiting(_) => unreachable!("a queue has no one to wait for"),
        }
    }
}

/// The refusal of mail for a destination that is not open.
pub(crate) fn not_open() -> NotTaken {
    NotTaken {
        cause: NotTakenCause::NotOpen,
        code: 451,
        status: "4.3.5",
        text: "This address cannot be served now, try again later".into(),
        about: None,
        why: "its destination is not open".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use posthaste_intake::MailRecipient;

    use super::*;

    #[test]
    fn a_queue_that_is_not_open_defers_its_own_mail_alone() {
        let slot = RelaySlot::default();
        let facts = BodyFacts { len: 1, large: None };
        let is_taken = |place: MailPlace| {
            let mail = Mail { recipients: vec![MailRecipient::to(place.clone())], ..Mail::default() };
            let mut reserved = Reserved::default();
            let Reserving::Done(taken) = slot.reserve(&mail, facts, &mut reserved) else { panic!("it waits") };
            assert_eq!(taken.is_ok(), slot.check(&place, 1).is_ok());
            taken.is_ok()
        };
        assert!(!is_taken(MailPlace::Remote) && is_taken(MailPlace::Maildir("ann".into())));
    }
}
