//! The list of destinations, and queries to a specific one.

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use posthaste_delivery::local::LocalDelivery;
use posthaste_intake::{
    BodyFacts, Destination, DestinationFigures, Guard, Intake, Left, Mail, MailPlace, NotTaken, Reserved, Reserving,
    Trouble,
};
use posthaste_mailstore::MailArrivals;
use posthaste_spool::{Entry, Lsn};
use posthaste_transport::Transports;
use posthaste_watch::StuckWorker;

use crate::receive::events::EventRecorder;
use crate::receive::relay_slot::not_open;
use crate::receive::remote::RemoteHosts;
use crate::receive::shards::ShardQueue;
use crate::receive::stuck::StuckStreams;

/// The destinations of this server's mail.
pub(crate) struct Destinations {
    /// Accepts their mail.
    intake: Intake,
    maildirs: LocalDelivery,
    mailboxes: Option<MailArrivals>,
    events: Option<EventRecorder>,
    transports: Arc<Late<Transports>>,
    remote: Arc<RemoteHosts>,
    /// All destinations, in the order of their entries in a batch.
    list: Vec<Arc<dyn Destination>>,
    /// Streams that are not open although they should be.
    stuck: Arc<StuckStreams>,
}

impl Destinations {
    /// Transports and the relay are opened later.
    pub fn new(maildirs: LocalDelivery, mailboxes: Option<MailArrivals>, events: Option<EventRecorder>) -> Self {
        let transports = Arc::new(Late::new(|place| matches!(place, MailPlace::Transport(_))));
        let remote = Arc::<RemoteHosts>::default();
        // Mail that has no place in the mailboxes must not be delivered either, so they come first.
        let mut list: Vec<Arc<dyn Destination>> = Vec::new();
        list.extend(mailboxes.clone().map(|mailboxes| Arc::new(mailboxes) as Arc<dyn Destination>));
        list.push(Arc::new(maildirs.clone()));
        list.extend(events.clone().map(|recorder| Arc::new(recorder) as Arc<dyn Destination>));
        list.push(transports.clone());
        list.push(remote.queue().clone());
        let intake = maildirs.intake().clone();
        Self { intake, maildirs, mailboxes, events, transports, remote, list, stuck: Arc::default() }
    }

    /// Passes all mail to another spool, that of a shard: only for other hosts. Events are not part of its batches.
    pub fn accepted_by(self, intake: Intake) -> Self {
        let transports = self.transports.clone();
        let queue = self.remote.queue().clone();
        let events = self.events.map(EventRecorder::apart);
        Self { intake, events, list: vec![transports as Arc<dyn Destination>, queue], ..self }
    }

    /// All destinations.
    #[cfg(feature = "cluster")]
    pub fn list(&self) -> &[Arc<dyn Destination>] {
        &self.list
    }

    /// The intake that accepts their mail.
    pub fn intake(&self) -> &Intake {
        &self.intake
    }

    /// Intake and destinations of mail under a shard of a cluster, or under none.
    pub fn under<'a>(&'a self, shard: Option<&'a ShardQueue>) -> (&'a Intake, &'a [Arc<dyn Destination>]) {
        match shard {
            Some(shard) => (shard.intake(), shard.destinations()),
            None => (&self.intake, &self.list),
        }
    }

    /// All intakes: one, or one for each shard.
    pub fn intakes(&self) -> Vec<&Intake> {
        match self.remote.shards() {
            [] => vec![&self.intake],
            shards => shards.iter().map(|shard| shard.intake()).collect(),
        }
    }

    /// Streams of all spools by name, with the number of their waiting batches.
    pub fn streams(&self) -> Vec<(String, u64)> {
        let mut all: Vec<(String, u64)> = Vec::new();
        for stream in self.intakes().into_iter().flat_map(|intake| intake.spool().streams()) {
            match all.iter_mut().find(|known| known.0 == stream.name) {
                Some(known) => known.1 += stream.entries,
                None => all.push((stream.name, stream.entries)),
            }
        }
        all
    }

    /// Why a spool accepts no more mail.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        self.intakes().into_iter().find_map(|intake| intake.spool().poisoned())
    }

    /// All destinations, including the queues of further shards.
    fn all(&self) -> impl Iterator<Item = &dyn Destination> {
        let own = self.remote.queue();
        let others =
            self.remote.shards().iter().map(|shard| shard.owner()).filter(move |queue| !Arc::ptr_eq(queue, own));
        let others = others.map(|queue| &**queue as &dyn Destination);
        self.list.iter().map(|destination| &**destination).chain(others)
    }

    /// The event log, if there is one.
    pub fn events(&self) -> Option<&EventRecorder> {
        self.events.as_ref()
    }

    /// Mail for other hosts.
    pub fn remote(&self) -> &RemoteHosts {
        &self.remote
    }

    /// Streams of the spool that are not open although they should be.
    pub fn stuck(&self) -> &Arc<StuckStreams> {
        &self.stuck
    }

    /// Checks if a place accepts mail for `recipients` recipients now, under a shard of a cluster or under none.
    ///
    /// # Errors
    /// The reason of a refusal.
    pub fn check(&self, shard: Option<&ShardQueue>, place: &MailPlace, recipients: u64) -> Result<(), NotTaken> {
        self.under(shard).1.iter().try_for_each(|destination| destination.check(place, recipients))
    }

    /// Mailboxes with UIDs, whose mail is counted.
    pub fn mailboxes(&self) -> Option<&MailArrivals> {
        self.mailboxes.as_ref()
    }

    /// True if the quota of a Maildir's account has room for `bytes`.
    pub async fn has_room(&self, maildir: &str, bytes: u64) -> bool {
        match &self.mailboxes {
            Some(mailboxes) => mailboxes.has_room(maildir, bytes).await,
            None => true,
        }
    }

    /// Figures of all destinations together.
    pub fn figures(&self) -> DestinationFigures {
        self.all().map(|destination| destination.figures()).fold(DestinationFigures::default(), |sum, each| {
            DestinationFigures {
                delivered: sum.delivered + each.delivered,
                failed_attempts: sum.failed_attempts + each.failed_attempts,
                waiting: sum.waiting + each.waiting,
                stands_still: sum.stands_still || each.stands_still,
            }
        })
    }

    /// Figures of the mailboxes on this machine.
    pub fn of_mailboxes(&self) -> DestinationFigures {
        self.maildirs.figures()
    }

    /// Problems that hold up mail.
    pub fn troubles(&self) -> Vec<Trouble> {
        self.list.iter().flat_map(|destination| destination.troubles()).collect()
    }

    /// Retries waiting mail at once.
    pub fn retry(&self) {
        self.list.iter().for_each(|destination| destination.retry());
    }

    /// Messages not yet delivered to mailboxes, and to transports.
    pub fn left(&self) -> (Left, Left) {
        (self.maildirs.left(), self.transports.left())
    }

    /// True if this is the name of a message's file in a mailbox.
    pub fn is_file_of(&self, message: Lsn, name: &str) -> bool {
        self.maildirs.is_file_of(message.get(), name)
    }

    /// Cancels the delivery of mail accepted so far for a mailbox: see [`LocalDelivery::remove_mailbox`].
    ///
    /// # Errors
    /// It cannot be recorded, or mail is still being written there at the deadline.
    pub fn forget_mailbox(&self, mailbox: &str, deadline: Instant) -> Result<(), String> {
        self.maildirs.remove_mailbox(mailbox, deadline).map_err(|error| error.to_string())
    }

    /// Transports that are opened later.
    pub fn late_transports(&self) -> &Arc<Late<Transports>> {
        &self.transports
    }

    /// Transports, if they are open.
    pub fn transports(&self) -> Option<&Transports> {
        self.transports.opened()
    }

    /// Workers of the spool and of destinations that became stuck, or continued.
    pub fn look_for_stuck(&self, now: Instant) -> Vec<StuckWorker> {
        let spools = self.intakes().into_iter().flat_map(|intake| intake.spool().look_for_stuck(now));
        let destinations = self.all().flat_map(|destination| destination.look_for_stuck(now));
        let standbys = self.remote.shards().iter().flat_map(|shard| shard.standby().look_for_stuck(now));
        spools.chain(destinations).chain(standbys).collect()
    }
}

/// A destination that is opened once the configuration needs it. Until then mail for its places is deferred.
pub(crate) struct Late<D> {
    opened: OnceLock<D>,
    is_own: fn(&MailPlace) -> bool,
}

impl<D> Late<D> {
    /// `is_own`: true for places of this destination.
    pub fn new(is_own: fn(&MailPlace) -> bool) -> Self {
        Self { opened: OnceLock::new(), is_own }
    }

    /// Sets the open destination, once.
    pub fn open(&self, destination: D) {
        let _ = self.opened.set(destination);
    }

    /// The destination, if it is open.
    pub fn opened(&self) -> Option<&D> {
        self.opened.get()
    }

    fn not_open(&self, place: &MailPlace) -> Result<(), NotTaken> {
        if (self.is_own)(place) { Err(not_open()) } else { Ok(()) }
    }
}

impl<D: Destination> Destination for Late<D> {
    fn left(&self) -> Left {
        self.opened().map(D::left).unwrap_or_default()
    }

    fn figures(&self) -> DestinationFigures {
        self.opened().map(D::figures).unwrap_or_default()
    }

    fn troubles(&self) -> Vec<Trouble> {
        self.opened().map(D::troubles).unwrap_or_default()
    }

    fn retry(&self) {
        self.opened().into_iter().for_each(D::retry);
    }

    fn end_by(&self, deadline: Instant) {
        self.opened().into_iter().for_each(|opened| opened.end_by(deadline));
    }

    fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.opened().map_or(Poll::Pending, |opened| opened.poll_failed(cx))
    }

    fn look_for_stuck(&self, now: Instant) -> Vec<StuckWorker> {
        self.opened().map(|opened| opened.look_for_stuck(now)).unwrap_or_default()
    }

    fn check(&self, place: &MailPlace, recipients: u64) -> Result<(), NotTaken> {
        self.opened().map_or_else(|| self.not_open(place), |opened| opened.check(place, recipients))
    }

    fn reserve<'a>(&'a self, mail: &'a Mail<'a>, body: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a> {
        match self.opened() {
            Some(opened) => opened.reserve(mail, body, reserved),
            None => {
                let mut places = mail.recipients.iter().map(|recipient| &recipient.place);
                Reserving::Done(places.try_for_each(|place| self.not_open(place)))
            }
        }
    }

    fn discarded(&self, mail: &Mail<'_>) {
        self.opened().into_iter().for_each(|opened| opened.discarded(mail));
    }

    fn stamp<'a>(&'a self, entries: &mut [Entry]) -> Option<Box<dyn Guard + 'a>> {
        self.opened().and_then(|opened| opened.stamp(entries))
    }
}

#[cfg(test)]
mod tests {
    use posthaste_intake::MailRecipient;

    use super::*;

    /// Refuses everything.
    struct Shut;

    impl Destination for Shut {
        fn check(&self, _: &MailPlace, _: u64) -> Result<(), NotTaken> {
            Late::<Shut>::new(|_| true).not_open(&MailPlace::Remote)
        }

        fn reserve<'a>(&'a self, _: &'a Mail<'a>, _: BodyFacts, _: &'a mut Reserved) -> Reserving<'a> {
            Reserving::Done(Ok(()))
        }
    }

    #[test]
    fn a_destination_that_is_not_open_defers_its_own_mail_alone() {
        let late = Late::<Shut>::new(|place| *place == MailPlace::Remote);
        let maildir = MailPlace::Maildir("ann".into());
        let facts = BodyFacts { len: 1, large: None };
        let taken = |late: &Late<Shut>, place: &MailPlace| {
            let mail = Mail { recipients: vec![MailRecipient::to(place.clone())], ..Mail::default() };
            match late.reserve(&mail, facts, &mut Reserved::default()) {
                Reserving::Done(taken) => taken,
                Reserving::Waiting(_) => unreachable!("nothing is waited for"),
            }
        };
        for place in [&maildir, &MailPlace::Remote] {
            let is_own = *place == MailPlace::Remote;
            assert_eq!(late.check(place, 1).is_err(), is_own);
            assert_eq!(taken(&late, place).is_err(), is_own);
        }
        late.open(Shut);
        assert!(late.check(&maildir, 1).is_err(), "it is asked itself now");
        assert!(taken(&late, &MailPlace::Remote).is_ok());
    }
}
