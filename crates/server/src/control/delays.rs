//! Destinations that do not accept their mail: a line for the page, with the reason.

use posthaste_admin::{Attention, Urgency};
use posthaste_units::count;

/// Mail that waits for one destination, without held mail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delay {
    /// Recipients that are not suspended.
    pub free: u64,
    /// Recipients with an attempt, including suspended ones.
    pub deferred: u64,
    /// Age of the oldest.
    pub age_secs: i64,
}

impl Delay {
    /// True if an operator should look: a few old recipients are often misspelt, and many new ones are a mailing.
    pub fn needs_somebody(self) -> bool {
        self.free >= RECIPIENTS_MIN && self.deferred >= self.free / 2 && self.age_secs >= AGE_SECS_MIN
    }

    /// The line of a destination. `why`: its last reply, or the limit that its mail waits for.
    pub fn line(self, domain: &str, why: Option<&str>) -> Attention {
        let (free, age) = (self.free, rough(self.age_secs));
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let what = format!("{free} recipients at {domain} wait, the oldest for {age}{why}");
        let help = format!("posthaste queue explain {domain}");
        Attention::new(Urgency::Warning, &format!("delay {domain}"), what, help).in_queue([("domain", domain)])
    }
}

/// A rounded time in a suitable unit.
pub(crate) fn rough(secs: i64) -> String {
    let minutes = ((secs + 30) / 60).max(1);
    match ((minutes + 30) / 60, minutes) {
        (_, ..120) => count(minutes, "minute"),
        (hours @ ..48, _) => count(hours, "hour"),
        (hours, _) => count((hours + 12) / 24, "day"),
    }
}

/// Minimum recipients of a destination for a line.
const RECIPIENTS_MIN: u64 = 100;
/// Minimum age for a line: greylisting and most outages are shorter.
const AGE_SECS_MIN: i64 = 1800;
/// Maximum lines: often many destinations fail for the same reason.
pub(crate) const DELAYS_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use posthaste_config::Config;
    use posthaste_queue::RecipientKey;
    use posthaste_queue::entry::{Change, HoldReason, QueueEntry, Status, What};

    use super::*;
    use crate::control::overview::delays;
    use crate::control::requests::closed::{ClosedQueue, queued};

    #[test]
    fn held_mail_makes_no_destination_late() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("[storage]\ndata = {:?}\n", dir.path().join("data"));
        let config = Config::parse(Path::new("x"), &text).unwrap();
        let (received, hour_later) = (1_000_000, 1_003_600);
        let (queue, ()) = ClosedQueue::filled(&config, |append| {
            let held = append(QueueEntry::Queued(queued(received, 100)));
            let status = Status { code: 450, enhanced: 4201 };
            let deferred = What::Deferred { attempts: 1, next: 2_000_000, status };
            for what in [deferred, What::Held(HoldReason::Operator)] {
                let changes =
                    (0..100).map(|number| Change { key: RecipientKey { message: held, number }, what }).collect();
                append(QueueEntry::Changes { at: received, changes });
            }
            // A mailing that has just begun.
            append(QueueEntry::Queued(queued(hour_later - 10, 100)));
        });
        let relay = queue.relay();
        let late = delays(std::slice::from_ref(relay), None, relay.wall(hour_later));
        assert!(late.is_empty(), "{late:?}");
    }

    #[test]
    fn much_old_mail_that_was_tried_needs_somebody() {
        let check = |free, deferred, age_secs, expected| {
            let delay = Delay { free, deferred, age_secs };
            assert_eq!(delay.needs_somebody(), expected, "{delay:?}");
        };
        check(100, 50, 1800, true);
        check(99, 99, 86_400, false);
        check(100, 49, 1800, false);
        check(4812, 4812, 1799, false);
        // All is suspended.
        check(0, 4812, 86_400, false);
    }

    #[test]
    fn a_line_says_how_many_wait_and_why_and_leads_to_them() {
        let delay = Delay { free: 4812, deferred: 4812, age_secs: 2280 };
        let line = delay.line("there.example", Some("451 4.7.500 Server busy"));
        assert_eq!(
            line.what,
            "4812 recipients at there.example wait, the oldest for 38 minutes: 451 4.7.500 Server busy"
        );
        assert_eq!(line.help, "posthaste queue explain there.example");
        let old = Delay { age_secs: 18_000, ..delay }.line("there.example", None);
        assert_eq!(old.what, "4812 recipients at there.example wait, the oldest for 5 hours");
    }

    #[test]
    fn times_are_told_in_a_unit_that_suits_them() {
        let check = |secs, expected: &str| assert_eq!(rough(secs), expected, "{secs}");
        check(-5, "1 minute");
        check(89, "1 minute");
        check(7169, "119 minutes");
        check(7170, "2 hours");
        check(4 * 3600 - 60, "4 hours");
        check(47 * 3600, "47 hours");
        check(48 * 3600, "2 days");
        check(7 * 86_400, "7 days");
    }
}
