//! Mailboxes as a destination of mail, with an entry per mount.

use std::time::Instant;

use posthaste_intake::{
    BodyFacts, Destination, DestinationFigures, Left, Mail, MailPlace, NotTaken, NotTakenCause, Reserved, Reserving,
    Trouble,
};
use posthaste_maildir::MailboxPath;
use posthaste_spool::Entry;

use super::core::Core;
use super::delivery::LocalDelivery;
use super::entry::{LocalEntry, MailboxDelivery};
use super::message::{LineEnds, MailboxTarget};
use super::mount::memory_units;
use super::mounts::stream_of;
use super::one_message::{TARGETS_MAX, now_secs};
use super::report::MountStats;

impl Destination for LocalDelivery {
    fn left(&self) -> Left {
        let remaining = self.remaining();
        Left { messages: remaining.messages, places: remaining.mailboxes }
    }

    fn figures(&self) -> DestinationFigures {
        let stats = self.stats();
        DestinationFigures {
            delivered: stats.delivered,
            failed_attempts: stats.failed_attempts,
            waiting: stats.waiting as u64,
            stands_still: !stats.mounts.is_empty() && stats.mounts.iter().all(|mount| mount.trouble().is_some()),
        }
    }

    /// Problems of mounts, and unwritable mailboxes.
    fn troubles(&self) -> Vec<Trouble> {
        let stats = self.stats();
        let mut troubles: Vec<Trouble> = stats.mounts.iter().filter_map(trouble_of).collect();
        if stats.waiting > 0 {
            troubles.push(Trouble {
                about: "mailboxes".to_owned(),
                stream: None,
                is_urgent: false,
                what: format!("{} messages wait for mailboxes that cannot be written", stats.waiting),
                help: format!("posthaste spool inspect {}", self.core().config.spool_dir.display()),
            });
        }
        troubles
    }

    fn end_by(&self, deadline: Instant) {
        self.end(deadline);
    }

    /// Refuses if too much mail waits for an unwritable mailbox, or if its mount is stuck.
    fn check(&self, place: &MailPlace, _: u64) -> Result<(), NotTaken> {
        let MailPlace::Maildir(mailbox) = place else { return Ok(()) };
        self.check_open(mailbox)?;
        self.check_mailbox(mailbox).map_err(|full| NotTaken {
            cause: NotTakenCause::PlaceFull,
            code: 452,
            status: "4.2.2",
            text: "Too much mail waits for this mailbox, try again later".into(),
            why: full.to_string(),
            about: Some(full.mailbox),
        })
    }

    fn reserve<'a>(&'a self, mail: &'a Mail<'a>, body: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a> {
        let mailboxes = mail.recipients.iter().filter_map(|recipient| match &recipient.place {
            MailPlace::Maildir(mailbox) => Some((mailbox, &recipient.prefix)),
            MailPlace::Transport(_) | MailPlace::Remote => None,
        });
        for (mailbox, _) in mailboxes.clone() {
            if let Err(stuck) = self.check_open(mailbox) {
                return Reserving::Done(Err(stuck));
            }
            if let Err(error) = MailboxPath::parse(mailbox) {
                let why = format!("not a mailbox: {mailbox}: {error}");
                return Reserving::Done(Err(unusable(why)));
            }
        }
        if mailboxes.clone().nth(TARGETS_MAX).is_some() {
            return Reserving::Done(Err(unusable(format!("more than {TARGETS_MAX} mailboxes"))));
        }
        let targets =
            mailboxes.map(|(mailbox, prefix)| MailboxTarget { mailbox: mailbox.clone(), prefix: prefix.clone() });
        self.core().reserve(targets, LineEnds::ToLf, now_secs(), mail.internal_date, body, reserved);
        Reserving::Done(Ok(()))
    }
}

fn trouble_of(mount: &MountStats) -> Option<Trouble> {
    let why = mount.trouble()?;
    let what = format!("{} is in trouble: {why}; {} messages wait for it", mount.place(), mount.messages);
    Some(Trouble {
        about: format!("mount {}", mount.point),
        stream: Some(stream_of(&mount.point)),
        is_urgent: true,
        what,
        help: "repair it: its mail stays in the spool and is retried automatically".to_owned(),
    })
}

impl LocalDelivery {
    /// Refuses mail for a stuck mount, and mail after the end: it would wait without a bound.
    fn check_open(&self, mailbox: &str) -> Result<(), NotTaken> {
        let why = if self.has_ended() {
            "delivery to mailboxes has ended"
        } else if self.is_stuck(mailbox) {
            "the stream of its mount cannot be read"
        } else {
            return Ok(());
        };
        Err(NotTaken {
            cause: NotTakenCause::NotOpen,
            code: 451,
            status: "4.3.5",
            text: "This address cannot be served now, try again later".into(),
            about: Some(mailbox.into()),
            why: why.to_owned(),
        })
    }
}

fn unusable(why: String) -> NotTaken {
    let text = "Not a mailbox name that can be used here".into();
    NotTaken { cause: NotTakenCause::Unusable, code: 550, status: "5.1.3", text, about: None, why }
}

impl Core {
    /// Adds one entry of the message per mount, with the memory that each needs.
    pub fn reserve(
        &self,
        targets: impl Iterator<Item = MailboxTarget>,
        line_ends: LineEnds,
        secs: u64,
        internal_date: Option<u32>,
        body: BodyFacts,
        reserved: &mut Reserved,
    ) {
        let internal_date = internal_date.unwrap_or_else(|| u32::try_from(secs).unwrap_or(u32::MAX));
        let mut of_mounts: Vec<(usize, MailboxDelivery)> = Vec::new();
        for (number, target) in (0..).zip(targets) {
            let mount = self.points.of(&target.mailbox);
            let at = of_mounts.iter().position(|(other, _)| *other == mount).unwrap_or_else(|| {
                let nonce = self.nonce;
                let host = self.host.clone();
                let large = body.large;
                let body = None;
                let targets = Vec::new();
                let deliver = MailboxDelivery { secs, internal_date, nonce, host, line_ends, body, large, targets };
                of_mounts.push((mount, deliver));
                of_mounts.len() - 1
            });
            of_mounts[at].1.targets.push((number, target));
        }
        for (mount, deliver) in of_mounts {
            reserved.units += u64::from(memory_units(&deliver, body.len));
            let payload = LocalEntry::Deliver(deliver).encode();
            reserved.entries.push(Entry { stream: self.mounts[mount].stream, needs_body: true, payload });
        }
    }
}
