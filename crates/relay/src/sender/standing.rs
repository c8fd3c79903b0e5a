//! Health of a site, derived from its sessions: decides when connections are allowed.
//!
//! A session *failed* if no recipient got a final reply, the host deferred none, and we did not end it on purpose. A
//! site whose last session failed is connected to [twice a second](PER_WINDOW) at most, by all sources together. That
//! ends when a recipient gets a final reply or another of its hosts works. A site pauses once all its hosts have failed
//! several times in a row.
//!
//! A session in which the host only deferred recipients (greylisting) is neither failed nor good: the count stays. If
//! the host ends each such session, their number is still bounded: each defers at least one recipient, and the rest of
//! a message after three losses.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_units::BackOff;
use tokio::time::Instant;

use posthaste_queue::EntryText;

#[derive(Debug, Default)]
pub(super) struct Standing {
    /// True if the last session that failed or got a final reply was a failed one.
    is_failing: bool,
    /// Its latest connections.
    permitted: DialWindow,
    /// Consecutive tries of all hosts in which each session failed; and the time of the first.
    failures: u32,
    failing_since: Option<Instant>,
    /// Consecutive pauses, with nothing accepted in between.
    pauses: u32,
    paused_until: Option<Instant>,
    /// The last failure.
    error: EntryText,
}

/// Times of the latest connections, the oldest first.
#[derive(Debug, Default)]
pub(super) struct DialWindow([Option<Instant>; PER_WINDOW]);

impl DialWindow {
    fn free_at(&self) -> Option<Instant> {
        self.0[0].map(|oldest| oldest + WINDOW)
    }

    fn note(&mut self, now: Instant) {
        self.0.rotate_left(1);
        self.0[PER_WINDOW - 1] = Some(now);
    }
}

/// Connections from all sources to one set of hosts, made while their own source's sessions failed.
#[derive(Debug, Clone, Default)]
pub(super) struct FailingDials(Arc<Mutex<DialWindow>>);

impl FailingDials {
    /// Lock it after the state of a site.
    pub fn lock(&self) -> MutexGuard<'_, DialWindow> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pause about to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pause {
    pub secs: u32,
    /// Consecutive pauses, with nothing accepted in between.
    pub pauses: u32,
    pub failures: u32,
}

impl Standing {
    /// Earliest time of the next connection; `None`: now. `failing`: of all sources.
    pub fn next_dial(&self, failing: &DialWindow, now: Instant) -> Option<Instant> {
        let free_at = self.permitted.free_at().max(failing.free_at())?;
        (self.is_failing && free_at > now).then_some(free_at)
    }

    /// Notes a connection made now. Only those of a failing source count towards the limit of all.
    pub fn note_dial(&mut self, failing: &mut DialWindow, now: Instant) {
        self.permitted.note(now);
        if self.is_failing {
            failing.note(now);
        }
    }

    /// Notes a failed session.
    pub fn session_failed(&mut self) {
        self.is_failing = true;
    }

    /// Notes that one host failed and another worked in the same try: the site is not failing.
    pub fn other_host_worked(&mut self) {
        self.is_failing = false;
    }

    /// Notes a final reply for a recipient, 2yz or 5yz: the site works. True if it had paused.
    pub fn succeeded(&mut self) -> bool {
        (self.is_failing, self.failures, self.failing_since, self.paused_until) = (false, 0, None, None);
        std::mem::take(&mut self.pauses) > 0
    }

    /// Notes that the sessions with all hosts failed. Returns the pause that begins now, if any. The first pause begins
    /// after `failures_before_pause` failures in a row, or once they span [`FAILING_FOR`]; from then on each failure
    /// begins one.
    pub fn failed(&mut self, error: &str, failures_before_pause: u32, first_secs: u32, now: Instant) -> Option<Pause> {
        self.failures = self.failures.saturating_add(1);
        let since = *self.failing_since.get_or_insert(now);
        let is_long = self.failures > 1 && now.saturating_duration_since(since) >= FAILING_FOR;
        let is_enough = self.pauses > 0 || is_long || self.failures >= failures_before_pause;
        self.error = error.into();
        is_enough.then(|| self.begin_pause(first_secs, now)).flatten()
    }

    /// Begins a pause at once, because an immediate retry is useless: DNS does not answer or the login was refused.
    pub fn failed_for_now(&mut self, error: &str, first_secs: u32, now: Instant) -> Option<Pause> {
        self.failures = self.failures.saturating_add(1);
        self.failing_since.get_or_insert(now);
        self.error = error.into();
        self.begin_pause(first_secs, now)
    }

    fn begin_pause(&mut self, first_secs: u32, now: Instant) -> Option<Pause> {
        // Sessions that fail together begin one pause.
        if self.pause(now).is_some() {
            return None;
        }
        self.pauses = self.pauses.saturating_add(1);
        let pause = BackOff::new(Duration::from_secs(first_secs.into()), PAUSE_MAX).after(self.pauses);
        self.paused_until = Some(now + pause);
        Some(Pause { secs: pause.as_secs() as u32, pauses: self.pauses, failures: self.failures })
    }

    /// End of its pause. Open connections go on meanwhile; no new one is made.
    pub fn pause(&self, now: Instant) -> Option<Instant> {
        self.paused_until.filter(|until| *until > now)
    }

    pub fn is_paused(&self, now: Instant) -> bool {
        self.pause(now).is_some()
    }

    pub fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Ends the pause. The site may work or not.
    pub fn resume(&mut self) {
        self.paused_until = None;
    }

    /// True if it has paused with nothing accepted since: one connection at a time probes it.
    pub fn is_probed(&self) -> bool {
        self.pauses > 0
    }

    /// The last failure, if the last sessions failed.
    pub fn trouble(&self) -> Option<&str> {
        (self.failures > 0).then_some(&*self.error)
    }

    /// True if its last pause ended long ago.
    pub fn is_forgotten(&self, now: Instant) -> bool {
        let is_long_ago = |until: Instant| now.saturating_duration_since(until) > FORGOTTEN;
        self.pauses > 0 && self.paused_until.is_some_and(is_long_ago)
    }

    /// Retires the site. True if it had paused.
    pub fn retire(&mut self) -> bool {
        std::mem::take(&mut self.pauses) > 0
    }
}

/// Connections in each [`WINDOW`] to a site whose last session failed.
const PER_WINDOW: usize = 2;
const WINDOW: Duration = Duration::from_secs(1);
/// A site whose sessions fail for this long pauses, however few they are.
const FAILING_FOR: Duration = Duration::from_secs(60);
/// The longest pause of a site that does not answer.
const PAUSE_MAX: Duration = Duration::from_secs(1800);
/// Time for which a pause is remembered.
const FORGOTTEN: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[tokio::test(start_paused = true)]
    async fn failing_sites_get_two_connections_in_any_second() {
        let mut standing = Standing::default();
        let mut times = Vec::new();
        let mut failing = DialWindow::default();
        // Connections before the first failure count, too.
        for _ in 0..5 {
            assert_eq!(standing.next_dial(&failing, Instant::now()), None);
            standing.note_dial(&mut failing, Instant::now());
        }
        times.extend([Instant::now(); 2]);
        standing.session_failed();
        for number in 0_u64..1000 {
            while let Some(until) = standing.next_dial(&failing, Instant::now()) {
                tokio::time::sleep_until(until).await;
            }
            times.push(Instant::now());
            standing.note_dial(&mut failing, Instant::now());
            tokio::time::advance(Duration::from_millis(number * 7919 % 700)).await;
        }
        assert!(times.windows(3).all(|three| three[2] - three[0] >= WINDOW));
        standing.succeeded();
        assert_eq!(standing.next_dial(&failing, Instant::now()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn failing_sources_share_the_two_connections() {
        let mut failing = DialWindow::default();
        let now = Instant::now();
        let mut sources = [(); 3].map(|()| Standing::default());
        sources.iter_mut().take(2).for_each(Standing::session_failed);
        let dial = |source: &mut Standing, failing: &mut DialWindow| {
            let is_free = source.next_dial(failing, now).is_none();
            is_free.then(|| source.note_dial(failing, now)).is_some()
        };
        let [one, other, works] = &mut sources;
        assert!((0..10).all(|_| dial(works, &mut failing)), "its connections count for nobody else");
        assert_eq!([one, other].map(|source| dial(source, &mut failing)), [true, true]);
        assert_eq!(sources.each_mut().map(|source| dial(source, &mut failing)), [false, false, true]);
        assert!(sources.iter().all(|source| source.next_dial(&failing, now + WINDOW).is_none()));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_begin_pauses_that_grow() {
        let mut standing = Standing::default();
        let failed = |standing: &mut Standing| standing.failed("421", 3, 60, Instant::now());
        for _ in 0..5 {
            assert_eq!([failed(&mut standing), failed(&mut standing)], [None, None]);
            assert_eq!(standing.trouble(), Some("421"));
            assert!(!standing.succeeded() && standing.trouble().is_none(), "a message between them");
        }
        assert_eq!([failed(&mut standing), failed(&mut standing)], [None, None]);
        assert_eq!(failed(&mut standing), Some(Pause { secs: 60, pauses: 1, failures: 3 }));
        assert_eq!(failed(&mut standing), None, "one that failed at the same time");
        for expected in [120, 240, 480, 960, 1800, 1800] {
            tokio::time::advance(standing.paused_until().unwrap() - Instant::now()).await;
            assert!(!standing.is_paused(Instant::now()) && standing.is_probed());
            assert_eq!(failed(&mut standing).map(|pause| pause.secs), Some(expected));
        }
        assert!(standing.succeeded() && !standing.is_paused(Instant::now()) && !standing.is_probed());
        assert_eq!(failed(&mut standing), None, "it counts from the beginning");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_failures_and_untried_hosts_begin_a_pause_early() {
        let mut standing = Standing::default();
        assert_eq!(standing.failed("timed out", 100, 60, Instant::now()), None);
        tokio::time::advance(secs(59)).await;
        assert_eq!(standing.failed("timed out", 100, 60, Instant::now()), None);
        tokio::time::advance(secs(1)).await;
        assert!(standing.failed("timed out", 100, 60, Instant::now()).is_some());
        let mut standing = Standing::default();
        assert_eq!(standing.failed_for_now("DNS", 60, Instant::now()).map(|pause| pause.secs), Some(60));
        assert!(!standing.is_forgotten(Instant::now() + secs(3660)));
        assert!(standing.is_forgotten(Instant::now() + secs(3661)));
    }
}
