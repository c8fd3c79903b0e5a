//! Traffic of a session: transactions of a site's ready queue, and their outcomes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use posthaste_consumer::BudgetWait;
use posthaste_intake::notify;
use posthaste_smtp::command::Notify;
use posthaste_smtp::{BodyType, ForwardPath, MailFrom, RcptTo, Reply, Ret, ReversePath};
use posthaste_watch::Pulse;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::backlog::Backlog;
use super::careful;
use super::ended::{self, CLOSING};
use super::gate::MessageGate;
use super::leaving::{self, Leaving};
use super::messages::{Envelope, LoadError, Loaded, Unloaded};
use super::observer::SiteState;
use super::reroute::reroute_all;
use super::reuse::{Known, ReusedSession};
use super::serving::connect;
use super::shared::Shared;
use super::site::{GivesWay, Site, State, Tokens, Wanted};
use super::status::keys_of;
use super::suppress::end_suppressed;
use crate::session::{OutgoingMessage, OutgoingSession, RecipientFate, Traffic, steps};
use posthaste_queue::entry::{self, QueuedRecipient};
use posthaste_queue::{AttemptOutcome, Prefer, Queued, RecipientKey, Status, Take, Transaction};

/// Mail of one session.
pub(super) struct Mail {
    shared: Arc<Shared>,
    site: Arc<Site>,
    host: Arc<str>,
    /// The kind of its last message, as [`ServedKinds`](posthaste_queue::ServedKinds) counts it.
    serves: Option<Prefer>,
    /// True if the host sends success notices itself (DSN).
    has_dsn: bool,
    /// Recipients per transaction, by LIMITS (RFC 9422).
    recipients_max: usize,
    across_domains: bool,
    loading: Option<(UnderWay, JoinHandle<Result<Loaded, Unloaded>>)>,
    has_taken: bool,
    has_progress: bool,
    /// True if the host has given a final reply, or deferred a recipient.
    has_answered: bool,
    /// True if a message was lost with the connection, or returned with a 421.
    has_lost: bool,
    /// A 421 was reported for a message.
    has_told: bool,
    /// Registration of the session, for sites that would connect.
    known: Known,
    /// Messages carried for other sites, and for all.
    carried: u64,
    given: u64,
    in_flight: usize,
    begun: Instant,
    /// A rate applied to the last message.
    is_limited: bool,
    /// Woken by the site when mail waits.
    idle: Option<Waker>,
    /// Its place in the line for the budget of unrecorded outcomes.
    budget_wait: BudgetWait,
    waits_for_records: bool,
    /// True if the connection ends for another site.
    gives_way: Option<GivesWay>,
    /// Work since its site was last locked.
    backlog: Backlog,
    pulse: Pulse,
}

/// A transaction in flight. If dropped without an end, its recipients are retried: at once if no session had it.
pub(super) struct UnderWay {
    shared: Arc<Shared>,
    transaction: Transaction,
    envelope: Option<Arc<Envelope>>,
    /// Spent when a session gets it.
    tokens: Tokens,
    is_ended: bool,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.is_ended {
            let outcome =
                if self.envelope.is_some() { AttemptOutcome::Deferred(UNKNOWN) } else { AttemptOutcome::Untried };
            let outcomes: Vec<_> = self.keys().map(|key| (key, outcome)).collect();
            self.shared.finish(outcomes);
        }
    }
}

impl UnderWay {
    fn keys(&self) -> impl Iterator<Item = RecipientKey> + '_ {
        keys_of(&self.transaction)
    }
}

impl Drop for Mail {
    fn drop(&mut self) {
        let mut state = self.site.state();
        state.backlog.add_all(self.backlog);
        state.served.serves(&mut self.serves, None);
        // Else a connection that is gone would be woken in place of one that can send.
        self.idle.iter().for_each(|waker| state.idle.remove(waker));
    }
}

impl Mail {
    pub fn new(
        shared: Arc<Shared>,
        site: Arc<Site>,
        host: Arc<str>,
        session: &OutgoingSession,
        known: Known,
        pulse: Pulse,
    ) -> Self {
        let offered = session.extensions();
        let carried = session.finished();
        let most = offered.recipients_max.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
        // A signed sender serves one recipient.
        let most = if shared.config.bounces.return_path.is_some() { 1 } else { most };
        Mail {
            shared,
            site,
            host,
            serves: None,
            has_dsn: offered.dsn,
            recipients_max: most.max(1),
            across_domains: offered.recipient_domains_max.is_none(),
            loading: None,
            has_taken: false,
            has_progress: false,
            has_answered: false,
            has_lost: false,
            has_told: false,
            known,
            carried,
            given: carried,
            in_flight: 0,
            begun: Instant::now(),
            is_limited: false,
            idle: None,
            budget_wait: BudgetWait::default(),
            waits_for_records: false,
            gives_way: None,
            backlog: Backlog::default(),
            pulse,
        }
    }

    /// True if a session that has ended has not [failed](super::standing). A recipient got a final reply or backs off,
    /// there was nothing to send, or sending had stopped because outcomes could not be recorded.
    pub fn is_excused(&self) -> bool {
        let had_nothing = self.idle.is_some() || self.waits_for_records;
        self.shared.outcomes.recorder.budget.is_closed() || self.has_answered || had_nothing && !self.has_lost
    }

    /// True if the reply that ended the session was reported for a message.
    pub fn has_told(&self) -> bool {
        self.has_told
    }

    /// Where a site waits for the session after its last message.
    pub fn asked(&self) -> Option<oneshot::Sender<ReusedSession>> {
        self.known.asked()
    }

    /// The next transaction; `None` if no mail waits, and the task is woken for the next.
    fn take(&mut self, cx: &Context<'_>) -> Poll<Option<UnderWay>> {
        if self.shared.is_ending() {
            return Poll::Ready(None);
        }
        let may_begin = self.shared.outcomes.recorder.budget.poll_begin(&mut self.budget_wait, cx);
        self.waits_for_records = may_begin.is_pending();
        if !ready!(may_begin) {
            return Poll::Ready(None);
        }
        let now = Instant::now();
        let used = now.duration_since(self.begun);
        let mut state = self.site.state();
        state.backlog.add_all(std::mem::take(&mut self.backlog));
        if state.is_retired || !self.site.source.is_usable() {
            return Poll::Ready(None);
        }
        if self.has_taken {
            self.gives_way = self.shared.sites.sharing.gives_turn(used);
        }
        if self.gives_way.is_some() {
            return Poll::Ready(None);
        }
        self.is_limited = self.shared.shaper.limits_lanes() || !state.limits.messages.is_empty();
        let (transaction, tokens, has_more) = self.next(&mut state);
        state.served.serves(&mut self.serves, transaction.as_ref().map(|transaction| transaction.kind));
        let Some(transaction) = transaction else {
            self.gives_way = self.shared.sites.sharing.gives_way(self.idle.is_some());
            if state.limits.is_waited_for() || self.gives_way.is_some() {
                return Poll::Ready(None);
            }
            let is_wanted = match self.in_flight {
                0 => self.known.set_idle(cx.waker(), self.given),
                _ => self.known.is_waited_for(),
            };
            if is_wanted {
                return Poll::Ready(None);
            }
            state.idle.wait(cx.waker());
            self.idle = Some(cx.waker().clone());
            return Poll::Pending;
        };
        state.idle.note_taken();
        if let Some(waker) = self.idle.take() {
            state.idle.remove(&waker);
            self.known.set_busy();
        }
        if has_more {
            let share = |state: &mut State| state.share(&self.site, &self.shared.sites.sharing);
            let wanted = if state.limits.messages.is_empty() {
                state.grow(&self.site, &self.shared.alarm, share)
            } else {
                // Tokens may have accrued while all were idle.
                state.wanted(&self.site, &self.shared.alarm, share)
            };
            if let Wanted::Connect(admitted) = wanted {
                drop(state);
                connect(&self.shared, &self.site, admitted);
            }
        }
        let shared = self.shared.clone();
        Poll::Ready(Some(UnderWay { shared, transaction, envelope: None, tokens, is_ended: false }))
    }

    /// The next transaction within the limits, its tokens, and whether more waits.
    fn next(&self, state: &mut State) -> (Option<Transaction>, Tokens, bool) {
        let shaper = &self.shared.shaper;
        let alarm = &self.shared.alarm;
        let most = state.limits.recipients_per_message;
        let recipients_max = state.recipients_max.unwrap_or(most).min(most).min(self.recipients_max);
        let limits_lanes = shaper.limits_lanes();
        let across_domains = self.across_domains && !limits_lanes;
        let take = Take { prefer: state.served.prefer(self.serves), recipients_max, across_domains };
        let mut queue = self.shared.queue();
        if !limits_lanes && state.limits.messages.is_empty() {
            return (queue.next(state.ready, take), Tokens::default(), queue.has_waiting(state.ready));
        }
        // Nobody else reserves tokens while the queue is locked.
        if !queue.has_waiting(state.ready) || !state.may_send(&self.site, alarm) {
            return (None, Tokens::default(), false);
        }
        let mut gate = MessageGate::new(shaper, alarm, &state.limits);
        let transaction = queue.next_within(state.ready, take, &mut gate);
        let has_parked = gate.has_parked();
        let tokens = gate.into_tokens();
        if has_parked {
            state.set_limited();
        }
        (transaction, tokens, queue.has_waiting(state.ready))
    }

    fn message(&mut self, mut under_way: UnderWay, loaded: Loaded) -> Option<OutgoingMessage<UnderWay>> {
        if loaded.is_leaving {
            return self.leaving(under_way, loaded);
        }
        // Before a signature for nobody.
        if let Err(error) = end_suppressed(&self.shared, &mut under_way.transaction, &loaded.envelope) {
            under_way.envelope = Some(loaded.envelope);
            self.unreadable(under_way, &LoadError::Now(error.to_string()));
            return None;
        }
        if under_way.transaction.recipients.is_empty() {
            under_way.is_ended = true;
            return None;
        }
        keep_one_sender(&self.shared, &mut under_way.transaction, &loaded.envelope.queued);
        match leaving::rewritten(&self.shared, &under_way.transaction, loaded) {
            Leaving::Now(loaded) => self.leaving(under_way, loaded),
            Leaving::Signing(signing) => {
                self.pulse.step(steps::SIGNING);
                self.loading = Some((under_way, signing));
                None
            }
        }
    }

    /// A message with the header as it is sent.
    fn leaving(&mut self, mut under_way: UnderWay, loaded: Loaded) -> Option<OutgoingMessage<UnderWay>> {
        let Loaded { envelope, body, .. } = loaded;
        let of = |taken: &posthaste_queue::Taken| envelope.recipient(taken.number).and_then(rcpt_to);
        let recipients: Option<Vec<RcptTo>> = under_way.transaction.recipients.iter().map(of).collect();
        let (Some(mut mail), Some(mut recipients)) = (mail_from(&envelope.queued, &under_way.transaction), recipients)
        else {
            let reply = Reply::new(554, "5.6.0", "the envelope in the spool cannot be decoded");
            under_way.envelope = Some(envelope);
            let fate = RecipientFate::Refused(reply.into(), crate::session::FateScope::Message);
            self.end(&Arc::default(), under_way, |_| fate.clone());
            return None;
        };
        if let Some(generic) = self.shared.generic() {
            leaving::rewrite(&generic, &mut mail, &mut recipients);
        }
        if let Some(signed) = self.shared.config.bounces.signed_sender(&under_way.transaction, &envelope) {
            mail.reverse_path = signed;
        }
        // The last step before MAIL.
        if !self.counts(&mut under_way) {
            return None;
        }
        self.has_taken = true;
        (self.given, self.in_flight) = (self.given + 1, self.in_flight + 1);
        under_way.envelope = Some(envelope);
        Some(OutgoingMessage { key: under_way, mail, recipients, body })
    }

    /// Counts a message about to be sent, for its source's warm-up and the limits. If it may not be sent, it is
    /// returned.
    fn counts(&self, under_way: &mut UnderWay) -> bool {
        // A lent token may have died while the body was read: the message has its turn again.
        let has_tokens = under_way.tokens.are_there();
        let may_leave = !has_tokens || self.site.source.take(self.shared.time.now());
        let tokens = &mut under_way.tokens;
        // What the source refuses costs no tokens.
        if has_tokens && may_leave && std::mem::take(tokens).spend(|| self.shared.alarm.now()) {
            return true;
        }
        under_way.is_ended = true;
        self.shared.untried(&under_way.transaction);
        if !may_leave {
            reroute_all(&self.shared);
        }
        false
    }

    /// Handles a message that cannot be read or signed.
    fn unreadable(&mut self, under_way: UnderWay, error: &LoadError) {
        if !matches!(error, LoadError::Now(_)) {
            self.shared.warn(under_way.transaction.message, &error.to_string());
        }
        let fate = error.fate();
        self.end(&Arc::default(), under_way, |_| fate.clone());
    }

    /// Notes the host's replies about a message for the health of its site. A recipient beyond its limit, or whose
    /// message may have been accepted, does not count.
    fn note(&mut self, fates: &[RecipientFate]) {
        let is_final = |fate: &RecipientFate| matches!(fate, RecipientFate::Delivered(_) | RecipientFate::Refused(..));
        self.has_answered |= fates.iter().any(|fate| is_final(fate) || matches!(fate, RecipientFate::Deferred(..)));
        self.has_lost |= fates.iter().any(|fate| matches!(fate, RecipientFate::NotSent(_) | RecipientFate::Unknown(_)));
        if fates.iter().any(is_final) && self.site.state().standing.succeeded() {
            self.shared.observe_site(&SiteState::Reached { source: self.site.source.name(), site: &self.site.name });
        }
    }

    /// `host`: source of the fates; empty for ourselves.
    fn end(&self, host: &Arc<str>, mut under_way: UnderWay, mut fate: impl FnMut(usize) -> RecipientFate) {
        under_way.is_ended = true;
        let message = under_way.transaction.message;
        let count = under_way.transaction.recipients.len();
        let fates: Vec<RecipientFate> = (0..count).map(&mut fate).collect();
        let is_all = under_way.envelope.as_ref().is_some_and(|envelope| envelope.queued.recipients.len() == count);
        if is_all && fates.iter().all(|fate| matches!(fate, RecipientFate::Delivered(_))) {
            // Here rather than on the ring's thread, which must commit.
            self.shared.messages.forget(&[message]);
        }
        let transaction = &under_way.transaction;
        let envelope = under_way.envelope.as_ref();
        ended::ended(&self.shared, &self.site, host, self.has_dsn, transaction, envelope, fates);
    }
}

impl Traffic for Mail {
    type Key = UnderWay;

    fn is_idle(&self) -> bool {
        self.loading.is_none()
    }

    fn is_timed(&self) -> bool {
        self.is_limited
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<OutgoingMessage<UnderWay>>> {
        loop {
            if let Some((_, handle)) = &mut self.loading {
                let loaded = ready!(Pin::new(handle).poll(cx));
                let Some((mut under_way, _)) = self.loading.take() else { continue };
                match loaded {
                    Ok(Ok(loaded)) => {
                        if let Some(message) = self.message(under_way, loaded) {
                            return Poll::Ready(Some(message));
                        }
                    }
                    Ok(Err(Unloaded { error, envelope })) => {
                        under_way.envelope = envelope;
                        self.unreadable(under_way, &error);
                    }
                    Err(error) => self.unreadable(under_way, &LoadError::Now(error.to_string())),
                }
                continue;
            }
            let Some(under_way) = ready!(self.take(cx)) else { return Poll::Ready(None) };
            let lsn = under_way.transaction.message;
            if lsn <= self.shared.careful_through {
                let shared = self.shared.clone();
                let transaction = under_way.transaction.clone();
                let handle = tokio::task::spawn_blocking(move || careful::begin(&shared, &transaction));
                self.pulse.step(steps::READING);
                self.loading = Some((under_way, handle));
                continue;
            }
            let (loaded, behind) = self.shared.messages.take(lsn);
            if under_way.transaction.kind == Prefer::First {
                behind.into_iter().for_each(|behind| self.backlog.add(behind));
            }
            if let Some(loaded) = loaded {
                if let Some(message) = self.message(under_way, loaded) {
                    return Poll::Ready(Some(message));
                }
                continue;
            }
            let shared = self.shared.clone();
            let handle = tokio::task::spawn_blocking(move || shared.messages.load(lsn));
            self.pulse.step(steps::READING);
            self.loading = Some((under_way, handle));
        }
    }

    fn finished(&mut self, mut under_way: UnderWay, fates: Vec<RecipientFate>) {
        self.pulse.step(steps::RECORDING);
        self.in_flight -= 1;
        self.has_progress |= fates.iter().any(|fate| !matches!(fate, RecipientFate::NotSent(_)));
        self.note(&fates);
        if !self.has_progress && self.carried > 0 {
            // A reused session may have been closed for its age, which says nothing of the host or the message.
            under_way.is_ended = true;
            return self.shared.untried(&under_way.transaction);
        }
        if !self.has_progress {
            // Before the message is given back: another connection takes it at once.
            let pause = std::time::Duration::from_secs(self.shared.config.site_pause_secs.into());
            self.site.state().cut_by(&self.host, Instant::now() + pause);
        }
        self.has_told |= fates.iter().any(|fate| fate.reply().code() == CLOSING);
        let mut fates = fates.into_iter();
        let missing = || RecipientFate::Unknown(Reply::new(451, "4.5.0", "no outcome").into());
        self.end(&self.host, under_way, |_| fates.next().unwrap_or_else(missing));
    }
}

/// Keeps the recipients with the sender of the first. The others form the next transaction.
fn keep_one_sender(shared: &Arc<Shared>, transaction: &mut Transaction, queued: &Queued) {
    let Some(forwarded) = &queued.forwarded else { return };
    let Some(is_forwarded) = transaction.recipients.first().map(|first| forwarded.has(first.number)) else {
        return;
    };
    let message = transaction.message;
    let others = transaction.recipients.extract_if(.., |taken| forwarded.has(taken.number) != is_forwarded);
    let others: Vec<_> =
        others.map(|taken| (RecipientKey { message, number: taken.number }, AttemptOutcome::Untried)).collect();
    if !others.is_empty() {
        shared.finish(others);
    }
}

fn mail_from(queued: &Queued, transaction: &Transaction) -> Option<MailFrom> {
    let sender = transaction.recipients.first().map_or(&queued.sender, |first| queued.leaves_from(first.number));
    let path = match &**sender {
        "" => ReversePath::Null,
        sender => ReversePath::parse(&format!("<{sender}>")).ok()?,
    };
    let mut mail = MailFrom::new(path);
    mail.body = if queued.is_8bit { BodyType::EightBitMime } else { BodyType::SevenBit };
    mail.smtputf8 = queued.smtputf8;
    mail.ret = queued.ret.map(|ret| match ret {
        entry::QueuedRet::Full => Ret::Full,
        entry::QueuedRet::Headers => Ret::Headers,
    });
    mail.envid = (!queued.envid.is_empty()).then(|| queued.envid.to_string());
    Some(mail)
}

fn rcpt_to(recipient: &QueuedRecipient) -> Option<RcptTo> {
    let mut rcpt = RcptTo::new(ForwardPath::parse(&format!("<{}>", recipient.address)).ok()?);
    let is = |bit| recipient.notify & bit != 0;
    rcpt.notify = (recipient.notify != 0).then(|| Notify {
        success: is(notify::SUCCESS),
        failure: is(notify::FAILURE),
        delay: is(notify::DELAY),
    });
    rcpt.orcpt = (!recipient.orcpt.is_empty()).then(|| recipient.orcpt.to_string());
    Some(rcpt)
}

/// The recorded result of an attempt whose outcome is unknown.
const UNKNOWN: Status = Status { code: 451, enhanced: 3000 };
