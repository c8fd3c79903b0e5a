//! The event log as a destination of mail: it records the origin of a message in the message's own batch.

use std::sync::Arc;

use posthaste_intake::{Arrival, BodyFacts, Destination, Mail, MailPlace, MailRecipient, Reserved, Reserving, Trouble};
use posthaste_spool::Lsn;

use crate::event::{Event, EventKind, LIST_MAX, ReceivedEvent};
use crate::log::{EventRecorder, STREAM};

impl Destination for EventRecorder {
    fn troubles(&self) -> Vec<Trouble> {
        let stats = self.stats();
        let trouble = Trouble {
            about: "events".to_owned(),
            stream: stats.is_failing.then(|| STREAM.to_owned()),
            is_urgent: false,
            what: "the event log cannot be written as fast as it fills: events are left out".to_owned(),
            help: "look at its disk: events.dir".to_owned(),
        };
        Vec::from_iter((stats.is_failing || stats.is_over).then_some(trouble))
    }

    /// Events without room are left out and counted; the message is accepted nevertheless.
    fn reserve<'a>(&'a self, mail: &'a Mail<'a>, _: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a> {
        reserved.entries.extend(mail.arrival.and_then(|arrival| self.entry(&received(arrival, mail, None))));
        Reserving::Done(Ok(()))
    }

    fn discarded(&self, mail: &Mail<'_>) {
        self.note_received(mail, None);
    }
}

impl EventRecorder {
    /// Records the reception of a discarded message, or of one in another spool.
    pub fn note_received(&self, mail: &Mail<'_>, message: Option<Lsn>) {
        if let Some(arrival) = mail.arrival {
            self.note(&received(arrival, mail, message));
        }
    }
}

fn received(arrival: &dyn Arrival, mail: &Mail<'_>, message: Option<Lsn>) -> Event {
    let mut mailboxes = Vec::with_capacity(mail.recipients.len().min(LIST_MAX));
    for wanted in [is_maildir, is_transport, is_remote] {
        let some = mail.recipients.iter().filter(|recipient| wanted(recipient)).map(name);
        mailboxes.extend(some.take(LIST_MAX - mailboxes.len()).cloned());
    }
    Event::now(EventKind::Received(ReceivedEvent {
        facts: arrival.facts(LIST_MAX),
        mailboxes,
        mailbox_count: u32::try_from(mail.recipients.len()).unwrap_or(u32::MAX),
        tenant: Arc::clone(&mail.tenant),
        message,
    }))
}

fn is_maildir(recipient: &MailRecipient) -> bool {
    matches!(recipient.place, MailPlace::Maildir(_))
}

fn is_transport(recipient: &MailRecipient) -> bool {
    matches!(recipient.place, MailPlace::Transport(_))
}

fn is_remote(recipient: &MailRecipient) -> bool {
    recipient.place == MailPlace::Remote
}

/// The path of a Maildir, a transport as configured, or an address at another host.
fn name(recipient: &MailRecipient) -> &Arc<str> {
    match &recipient.place {
        MailPlace::Maildir(path) => path,
        MailPlace::Transport(transport) => transport,
        MailPlace::Remote => &recipient.address,
    }
}

#[cfg(test)]
mod tests {
    use posthaste_intake::ArrivalFacts;

    use super::*;

    struct Came;

    impl Arrival for Came {
        fn facts(&self, recipients_max: usize) -> ArrivalFacts {
            assert_eq!(recipients_max, LIST_MAX);
            ArrivalFacts { id: "x1".into(), recipient_count: 7, bytes: 5, ..ArrivalFacts::default() }
        }
    }

    fn recorded(recipients: Vec<MailRecipient>) -> ReceivedEvent {
        let mail = Mail { recipients, ..Mail::default() };
        match received(&Came, &mail, Some(Lsn::new(9))).kind {
            EventKind::Received(received) => received,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_message_is_recorded_with_the_places_that_it_goes_to() {
        let remote = MailRecipient { address: "c@example.net".into(), ..MailRecipient::to(MailPlace::Remote) };
        let transport = MailRecipient::to(MailPlace::Transport("|prog".into()));
        let maildir = |name: &str| MailRecipient::to(MailPlace::Maildir(name.into()));
        let event = recorded(vec![remote, transport, maildir("ann"), maildir("bob")]);
        assert_eq!(event.message, Some(Lsn::new(9)));
        assert_eq!((&*event.facts.id, event.facts.recipient_count, event.facts.bytes), ("x1", 7, 5));
        let names: Vec<&str> = event.mailboxes.iter().map(|name| &**name).collect();
        assert_eq!(names, ["ann", "bob", "|prog", "c@example.net"]);
        let many = recorded((0..LIST_MAX + 3).map(|number| maildir(&number.to_string())).collect());
        assert_eq!((many.mailboxes.len(), many.mailbox_count as usize), (LIST_MAX, LIST_MAX + 3));
    }
}
