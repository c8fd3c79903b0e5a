//! Hosts whose TLS fails: under an opportunistic policy they get cleartext for some time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::replies::shortened;

/// Failures by host name. A first failure changes nothing: otherwise an attacker who breaks one handshake would see all
/// mail of the next minutes in the clear.
#[derive(Default)]
pub(super) struct BrokenTls(Mutex<HashMap<Arc<str>, Failures>>);

#[derive(Clone, Copy)]
struct Failures {
    first: Instant,
    /// End of the period without TLS.
    avoided_until: Option<Instant>,
}

impl Failures {
    fn is_over(&self, now: Instant) -> bool {
        self.avoided_until.unwrap_or(self.first + MEMORY) <= now
    }
}

impl BrokenTls {
    /// Notes a failure of TLS. On the second one, at least [`APART`] after the first, TLS is avoided for [`MEMORY`],
    /// and the error is returned. The error is cut like a reply: certificates and alerts are a stranger's text. Beyond
    /// [`HOSTS_MAX`] hosts nothing is noted.
    pub fn failed(&self, host: &Arc<str>, error: &str) -> Option<Arc<str>> {
        let mut hosts = self.0.lock().expect("hosts");
        let now = Instant::now();
        if hosts.len() >= HOSTS_MAX {
            hosts.retain(|_, failures| !failures.is_over(now));
        }
        let has_room = hosts.len() < HOSTS_MAX;
        match hosts.get_mut(host) {
            Some(failures) if failures.is_over(now) => *failures = Failures { first: now, avoided_until: None },
            Some(failures) if failures.avoided_until.is_none() && now - failures.first >= APART => {
                failures.avoided_until = Some(now + MEMORY);
                return Some(shortened(error));
            }
            Some(_) => {}
            None if has_room => {
                hosts.insert(host.clone(), Failures { first: now, avoided_until: None });
            }
            None => {}
        }
        None
    }

    /// Forgets the failures of a host: a session over TLS worked.
    pub fn worked(&self, host: &str) {
        self.0.lock().expect("hosts").remove(host);
    }

    /// True if TLS with the host is avoided now.
    pub fn has(&self, host: &str) -> bool {
        let until = self.0.lock().expect("hosts").get(host).and_then(|failures| failures.avoided_until);
        until.is_some_and(|until| until > Instant::now())
    }
}

/// Lifetime of a first failure, and time without TLS after the second.
pub(super) const MEMORY: Duration = Duration::from_secs(600);
/// Failures closer together count as one.
const APART: Duration = Duration::from_secs(60);
const HOSTS_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    async fn after(secs: u64) {
        tokio::time::advance(Duration::from_secs(secs)).await;
    }

    impl BrokenTls {
        fn is_given_up(&self, host: &Arc<str>) -> bool {
            self.failed(host, "a reason").is_some()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_reason_that_is_told_is_cut() {
        let broken = BrokenTls::default();
        let host = Arc::from("mx.example");
        let error = format!("no name of its certificate matches: {}", "é".repeat(500_000));
        assert_eq!(broken.failed(&host, &error), None);
        after(60).await;
        let told = broken.failed(&host, &error).expect("it is given up");
        assert!(told.len() <= 1000 && told.starts_with("no name of its certificate matches: é"), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn two_failures_a_minute_apart_count_for_ten_minutes() {
        let broken = BrokenTls::default();
        let host = Arc::from("mx.example");
        assert!(!broken.is_given_up(&host) && !broken.has(&host));
        after(59).await;
        assert!(!broken.is_given_up(&host) && !broken.has(&host), "too near");
        after(1).await;
        assert!(broken.is_given_up(&host) && broken.has(&host) && !broken.has("mx2.example"));
        assert!(!broken.is_given_up(&host), "no news");
        after(599).await;
        assert!(broken.has(&host));
        after(1).await;
        assert!(!broken.has(&host) && !broken.is_given_up(&host) && !broken.has(&host), "from the beginning");
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_failure_and_one_before_a_success_do_not_count() {
        let broken = BrokenTls::default();
        let host = Arc::from("mx.example");
        broken.is_given_up(&host);
        after(600).await;
        assert!(!broken.is_given_up(&host));
        after(60).await;
        broken.worked(&host);
        assert!(!broken.is_given_up(&host));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_hosts_is_bounded_and_old_ones_make_room() {
        let broken = BrokenTls::default();
        let host = |number: usize| Arc::from(format!("mx{number}.example"));
        assert!((0..=HOSTS_MAX).all(|number| !broken.is_given_up(&host(number))));
        after(60).await;
        assert!(broken.is_given_up(&host(HOSTS_MAX - 1)) && !broken.is_given_up(&host(HOSTS_MAX)));
        after(540).await;
        broken.is_given_up(&host(HOSTS_MAX));
        after(60).await;
        assert!(broken.is_given_up(&host(HOSTS_MAX)));
    }
}
