//! Settings of notices to senders, and of copies of double bounces.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use posthaste_notify::dsn::{Wording, WordingError};
use posthaste_smtp::ForwardPath;
use posthaste_spool::Lsn;
use posthaste_units::words::Problem;
use posthaste_units::{Bucket, Rate};
use serde::{Deserialize, Serialize};

/// `[relay.notices]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NoticeSection {
    /// A directory with [your own words](notices.md#your-own-words) for notifications. Not set: those built in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub templates: Option<PathBuf>,
    /// The address that gets copies of double bounces. Empty: none.
    pub double_bounce_to: String,
    /// The highest rate of these copies, in the form of [shaping.md](shaping.md).
    pub double_bounce_rate: Rate,
}

impl Default for NoticeSection {
    fn default() -> Self {
        let double_bounce_rate = Rate::new(20, 3600, 5).expect("a rate in its bounds");
        Self { templates: None, double_bounce_to: String::new(), double_bounce_rate }
    }
}

impl NoticeSection {
    pub(super) fn check(&self) -> Result<(), Problem> {
        let to = &self.double_bounce_to;
        let is_address = |path: ForwardPath| path.address().is_some();
        if to.is_empty() || ForwardPath::parse(&format!("<{to}>")).is_ok_and(is_address) {
            return Ok(());
        }
        let at = vec!["relay".into(), "notices".into(), "double_bounce_to".into()];
        Err(Problem::new(at, format!("`{to}` is not an address")))
    }

    /// Reads the templates for the relay.
    ///
    /// # Errors
    /// See [`WordingError`].
    pub fn read(&self) -> Result<Notices, WordingError> {
        let copies_to = (!self.double_bounce_to.is_empty()).then(|| self.double_bounce_to.as_str().into());
        let wording = self.templates.as_deref().map(Wording::read).transpose()?.unwrap_or_default();
        Ok(Notices { wording: wording.into(), copies_to, copies_rate: self.double_bounce_rate })
    }
}

/// Settings of notices to senders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notices {
    /// Wording of notifications.
    pub wording: Arc<Wording>,
    /// Recipient of copies of double bounces.
    pub copies_to: Option<Arc<str>>,
    /// Highest rate of copies.
    pub copies_rate: Rate,
}

impl Default for Notices {
    fn default() -> Self {
        NoticeSection::default().read().expect("there is no file")
    }
}

/// Settings of notices now in force, and the copies already made.
pub(super) struct NoticesInForce {
    state: Mutex<State>,
    begun: Instant,
}

struct State {
    notices: Notices,
    /// Starts with all its tokens.
    copies: Bucket,
    /// Messages with a counted copy that is not made yet.
    counted: HashSet<Lsn>,
}

impl NoticesInForce {
    pub fn new(notices: Notices) -> Self {
        let copies = Bucket::new(notices.copies_rate, notices.copies_rate.burst(), 0);
        NoticesInForce { state: Mutex::new(State { notices, copies, counted: HashSet::new() }), begun: Instant::now() }
    }

    /// Replaces the settings. Copies already made still count.
    pub fn set(&self, notices: Notices) {
        let mut state = self.state();
        state.copies = state.copies.with_rate(notices.copies_rate, self.now());
        state.notices = notices;
    }

    pub fn wording(&self) -> Arc<Wording> {
        self.state().notices.wording.clone()
    }

    /// The recipient of copies of double bounces.
    pub fn postmaster(&self) -> Option<Arc<str>> {
        self.state().notices.copies_to.clone()
    }

    /// Counts the copy of a message; false if the rate is exceeded. A retried copy counts once.
    pub fn take_copy(&self, message: Lsn) -> bool {
        let mut state = self.state();
        let may_be = state.counted.contains(&message) || state.copies.take(1, self.now()).is_ok();
        if may_be {
            state.counted.insert(message);
        }
        may_be
    }

    /// Notes that the copy of a message is made.
    pub fn copy_made(&self, message: Lsn) {
        self.state().counted.remove(&message);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("how senders are told")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_to_an_address_or_to_nobody() {
        let section = |to: &str| NoticeSection { double_bounce_to: to.to_owned(), ..NoticeSection::default() };
        assert!(section("").check().is_ok() && section("").read().unwrap().copies_to.is_none());
        assert!(section("postmaster@a.example").check().is_ok());
        for bad in ["postmaster", "a@b.example>\r\nx", "@a.example", "<a@b.example>"] {
            let said = format!("{:?}", section(bad).check().unwrap_err());
            assert!(said.contains("is not an address"), "{bad}: {said}");
        }
    }

    #[test]
    fn copies_are_limited_and_a_reload_keeps_their_count() {
        let limited = |rate: &str| Notices { copies_rate: rate.parse().unwrap(), ..Notices::default() };
        let notices = NoticesInForce::new(limited("3/day, burst 3"));
        let mut message = 0;
        let mut take = |times: usize| {
            let takes = |_: &usize| {
                message += 1;
                notices.take_copy(Lsn::new(message))
            };
            (0..times).filter(takes).count()
        };
        assert_eq!(take(10), 3);
        assert!(notices.take_copy(Lsn::new(3)), "it is tried again");
        notices.copy_made(Lsn::new(3));
        assert!(!notices.take_copy(Lsn::new(3)), "it is another");
        notices.set(limited("5/day, burst 5"));
        assert_eq!(take(10), 2, "three of five were used");
    }
}
