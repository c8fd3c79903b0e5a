//! The queue as a destination of mail: recipients at other hosts.

use std::task::{Context, Poll};
use std::time::Instant;

use posthaste_intake::notify;
use posthaste_intake::{
    BodyFacts, Destination, DestinationFigures, Mail, MailPlace, NotTaken, NotTakenCause, Reserved, Reserving,
    ReturnedPart,
};
use posthaste_watch::StuckWorker;

use super::relay::Relay;
use posthaste_queue::entry::Forwarded;
use posthaste_queue::{Queued, QueuedRecipient, QueuedRet, Secs};

impl Destination for Relay {
    fn figures(&self) -> DestinationFigures {
        let stats = self.stats();
        DestinationFigures {
            delivered: stats.delivered,
            failed_attempts: stats.deferred,
            waiting: stats.recipients,
            stands_still: false,
        }
    }

    /// Finishes and records transactions in flight.
    fn end_by(&self, deadline: Instant) {
        self.0.end_by(deadline);
    }

    fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.runtime.poll_ended(cx)
    }

    /// Checks connections, the dispatcher, records and threads.
    fn look_for_stuck(&self, now: Instant) -> Vec<StuckWorker> {
        self.0.runtime.look(now)
    }

    /// Refuses if the queue is full.
    fn check(&self, place: &MailPlace, recipients: u64) -> Result<(), NotTaken> {
        if *place != MailPlace::Remote || self.has_room(recipients) {
            return Ok(());
        }
        Err(NotTaken {
            cause: NotTakenCause::QueueFull,
            code: 452,
            status: "4.3.1",
            text: "Too much mail waits for other hosts, try again later".into(),
            about: Some("relay.queue_recipients".into()),
            why: "the queue is full".to_owned(),
        })
    }

    /// Refuses if a tenant's part of the queue is full.
    fn reserve<'a>(&'a self, mail: &'a Mail<'a>, _: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a> {
        let Some(outgoing) = outgoing(mail, self.now()) else { return Reserving::Done(Ok(())) };
        let remote = mail.recipients.iter().filter(|recipient| recipient.place == MailPlace::Remote).count() as u64;
        if remote > 0 && !self.has_room_for(&outgoing.tenant, remote) {
            return Reserving::Done(Err(NotTaken {
                cause: NotTakenCause::QueueFull,
                code: 452,
                status: "4.3.1",
                text: "Too much of your mail waits for other hosts, try again later".into(),
                about: None,
                why: format!("too much mail of tenant {} waits", outgoing.tenant),
            }));
        }
        reserved.entries.push(self.entry(outgoing));
        Reserving::Done(Ok(()))
    }
}

/// The message for other hosts, and for notices of success here; `None` without recipients of either kind.
fn outgoing(mail: &Mail<'_>, now: Secs) -> Option<Queued> {
    let mut recipients = Vec::new();
    let mut forwarded = Vec::new();
    for recipient in mail.recipients.iter().filter(|recipient| recipient.place == MailPlace::Remote) {
        let number = recipients.len() as u16;
        if recipient.is_forwarded && mail.forwards_from.is_some() {
            forwarded.push(number);
        }
        recipients.push(QueuedRecipient {
            number,
            address: recipient.address.clone(),
            orcpt: recipient.orcpt.clone(),
            notify: notify::bits(recipient.notify),
        });
    }
    // The number of recipients was checked at acceptance.
    for success in mail.successes.iter().take(usize::from(u16::MAX).saturating_sub(recipients.len())) {
        recipients.push(QueuedRecipient {
            number: recipients.len() as u16,
            address: success.address.clone(),
            orcpt: success.orcpt.clone(),
            notify: notify::SUCCESS | if success.is_mailbox { notify::IN_MAILBOX } else { notify::HANDED_ON },
        });
    }
    if recipients.is_empty() {
        return None;
    }
    let from = mail.forwards_from.as_deref().filter(|_| !forwarded.is_empty());
    let at = |secs: Secs| if secs == 0 { 0 } else { now.saturating_add(secs) };
    Some(Queued {
        received: now,
        not_before: at(mail.hold_secs),
        expires: at(mail.expires_secs),
        sender: (&*mail.sender).into(),
        forwarded: from.map(|sender| Box::new(Forwarded { sender: sender.into(), numbers: forwarded })),
        is_8bit: mail.is_8bit,
        smtputf8: mail.smtputf8,
        may_sign: mail.may_sign,
        ret: mail.ret.map(|ret| match ret {
            ReturnedPart::Full => QueuedRet::Full,
            ReturnedPart::Headers => QueuedRet::Headers,
        }),
        envid: mail.envid.clone(),
        tenant: mail.tenant.clone(),
        campaign: mail.campaign.clone(),
        pool: mail.pool.clone(),
        recipients,
    })
}

#[cfg(test)]
mod tests {
    use posthaste_intake::{MailRecipient, NotifyWhen, SuccessHere};

    use super::*;

    fn recipient(place: MailPlace, address: &str, is_forwarded: bool) -> MailRecipient {
        MailRecipient { place, address: address.into(), is_forwarded, ..MailRecipient::to(MailPlace::Remote) }
    }

    #[test]
    fn what_was_said_of_notifications_goes_with_the_message() {
        let none = NotifyWhen { success: false, failure: false, delay: false };
        let mut mail = Mail { sender: "s@example.net".into(), envid: "QQ314159".into(), ..Mail::default() };
        mail.ret = Some(ReturnedPart::Headers);
        for (address, said) in
            [("a", Some(NotifyWhen { success: true, delay: true, ..none })), ("b", Some(none)), ("c", None)]
        {
            let of = recipient(MailPlace::Remote, address, false);
            mail.recipients.push(MailRecipient { notify: said, orcpt: "rfc822;x".into(), ..of });
        }
        let outgoing = outgoing(&mail, 7).expect("for other hosts");
        assert_eq!(
            (&*outgoing.sender, &*outgoing.envid, outgoing.ret),
            ("s@example.net", "QQ314159", Some(QueuedRet::Headers))
        );
        let recipients = outgoing.recipients.iter().map(|to| (to.number, &*to.address, &*to.orcpt, to.notify));
        let expected = [("a", notify::SUCCESS | notify::DELAY), ("b", notify::NEVER), ("c", 0)];
        let expected = (0..).zip(expected).map(|(number, (address, bits))| (number, address, "rfc822;x", bits));
        assert_eq!(recipients.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn times_of_a_message_count_from_its_reception() {
        let recipients = || vec![recipient(MailPlace::Remote, "x@example.net", false)];
        let times = |hold_secs, expires_secs| {
            let mail = Mail { recipients: recipients(), hold_secs, expires_secs, ..Mail::default() };
            outgoing(&mail, 1000).map(|message| (message.received, message.not_before, message.expires))
        };
        assert_eq!(times(0, 0), Some((1000, 0, 0)), "at once, and as long as its schedule says");
        assert_eq!(times(60, 120), Some((1000, 1060, 1120)));
        assert_eq!(times(Secs::MAX, 1), Some((1000, Secs::MAX, 1001)));
    }

    #[test]
    fn successes_here_stand_behind_recipients_elsewhere() {
        let success = |address: &str, is_mailbox| SuccessHere { address: address.into(), orcpt: "".into(), is_mailbox };
        let mut mail = Mail { successes: vec![success("a", true), success("b", false)], ..Mail::default() };
        let found = |mail: &Mail<'_>| {
            let recipients = outgoing(mail, 7).expect("somebody is to hear of it").recipients;
            recipients.into_iter().map(|to| (to.number, to.address.to_string(), to.notify)).collect::<Vec<_>>()
        };
        let here = [("a", notify::SUCCESS | notify::IN_MAILBOX), ("b", notify::SUCCESS | notify::HANDED_ON)];
        let expected = |first: u16| (first..).zip(here).map(|(number, (to, bits))| (number, to.to_owned(), bits));
        assert_eq!(found(&mail), expected(0).collect::<Vec<_>>());
        mail.recipients = vec![recipient(MailPlace::Remote, "c", false)];
        let remote = std::iter::once((0, "c".to_owned(), 0));
        assert_eq!(found(&mail), remote.chain(expected(1)).collect::<Vec<_>>());
    }

    #[test]
    fn those_to_whom_it_is_forwarded_get_it_from_another_sender() {
        let check = |recipients: &[(MailPlace, bool)], from: Option<&str>, expected: Option<&[u16]>| {
            let of =
                |(place, is_forwarded): &(MailPlace, bool)| recipient(place.clone(), "x@example.net", *is_forwarded);
            let recipients = recipients.iter().map(of).collect();
            let mail = Mail { recipients, forwards_from: from.map(str::to_owned), ..Mail::default() };
            let forwarded = outgoing(&mail, 7).expect("for other hosts").forwarded;
            let forwarded = forwarded.map(|of| (of.sender.to_string(), of.numbers));
            assert_eq!(forwarded, expected.map(|numbers| ("f@example.org".to_owned(), numbers.to_vec())));
        };
        let here = MailPlace::Maildir("ann".into());
        let remote = MailPlace::Remote;
        let named = || (remote.clone(), false);
        let forwarded = || (remote.clone(), true);
        let from = Some("f@example.org");
        check(&[(here.clone(), false), named(), forwarded(), forwarded()], from, Some(&[1, 2]));
        check(&[named()], from, None);
        check(&[named(), forwarded()], None, None);
        assert_eq!(outgoing(&Mail { recipients: vec![recipient(here, "x", false)], ..Mail::default() }, 7), None);
    }
}
