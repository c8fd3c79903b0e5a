//! Hosts whose TLS has failed: under an opportunistic policy they are spoken to in the clear, for a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

/// By name, until when.
#[derive(Default)]
pub(super) struct BrokenTls(Mutex<HashMap<Arc<str>, Instant>>);

impl BrokenTls {
    /// The handshake has failed now. Beyond [`HOSTS_MAX`] hosts it is not remembered.
    pub fn add(&self, host: &Arc<str>) {
        let (mut hosts, now) = (self.0.lock().expect("hosts"), Instant::now());
        if hosts.len() >= HOSTS_MAX {
            hosts.retain(|_, until| *until > now);
        }
        if hosts.len() < HOSTS_MAX {
            hosts.insert(host.clone(), now + REMEMBERED);
        }
    }

    /// Whether that is remembered.
    pub fn has(&self, host: &str) -> bool {
        self.0.lock().expect("hosts").get(host).is_some_and(|until| *until > Instant::now())
    }
}

const REMEMBERED: Duration = Duration::from_secs(3600);
const HOSTS_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_broken_handshake_is_remembered_for_an_hour() {
        let (broken, host) = (BrokenTls::default(), Arc::from("mx.example"));
        broken.add(&host);
        tokio::time::advance(Duration::from_secs(3599)).await;
        assert!(broken.has("mx.example") && !broken.has("mx2.example"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!broken.has("mx.example"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_hosts_is_bounded_and_old_ones_make_room() {
        let broken = BrokenTls::default();
        let host = |number: usize| Arc::from(format!("mx{number}.example"));
        (0..=HOSTS_MAX).for_each(|number| broken.add(&host(number)));
        assert!(broken.has(&host(HOSTS_MAX - 1)) && !broken.has(&host(HOSTS_MAX)));
        tokio::time::advance(REMEMBERED).await;
        broken.add(&host(HOSTS_MAX));
        assert!(broken.has(&host(HOSTS_MAX)));
    }
}
