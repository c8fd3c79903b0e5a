//! Shapes of load: sizes, connections, amounts.

use std::num::NonZeroU64;
use std::time::Duration;

use posthaste_loadgen::load::{Arrivals, Pace};
use posthaste_loadgen::values::{PerConnection, Sizes};

use crate::suite::Settings;

/// Shape of the load, in the published size.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub name: String,
    pub size: &'static str,
    pub connections: u32,
    pub per_connection: PerConnection,
    /// Messages to send, or time.
    pub amount: Amount,
    /// Messages a second, in an open loop.
    pub rate: Option<f64>,
    pub mailboxes: u64,
    /// Of each message.
    pub recipients: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Amount {
    Count(u64),
    Time(Duration),
}

/// A new connection for each message.
pub(crate) const ONE: PerConnection = PerConnection::Count(NonZeroU64::MIN);
/// Minimum of a scaled round, so that percentiles are meaningful.
const COUNT_LEAST: u64 = 500;
const TIME_LEAST: Duration = Duration::from_secs(1);
const WARMUP: Duration = Duration::from_millis(500);
/// A rate in messages a second that no server has exceeded here.
const FAST_RATE: f64 = 20_000.0;

/// A shape of messages with one recipient each, in a closed loop.
pub(crate) fn shape(
    name: &str,
    size: &'static str,
    connections: u32,
    per_connection: PerConnection,
    amount: Amount,
    mailboxes: u64,
) -> Shape {
    let name = name.to_owned();
    Shape { name, size, connections, per_connection, amount, rate: None, mailboxes, recipients: 1 }
}

impl Shape {
    /// The load in a sentence, with the amounts that the settings ask for.
    pub fn what(&self, settings: &Settings) -> String {
        let pace = self.pace(settings);
        let amount = match (pace.count, pace.duration) {
            (Some(count), Some(most)) => format!("{count} messages, at most {} s", most.as_secs_f64()),
            (_, time) => format!("{} s", time.unwrap_or_default().as_secs_f64()),
        };
        let order = self.rate.map(|rate| format!(" at {rate} a second (open loop)")).unwrap_or_default();
        let kept = if self.per_connection == ONE { "a new one for each message" } else { "kept" };
        let mailboxes =
            if self.mailboxes == 1 { "one mailbox".into() } else { format!("{} mailboxes", self.mailboxes) };
        format!(
            "{amount} of {} bytes{order} over {} connections, {kept}, to {mailboxes}",
            self.sizes(),
            self.connections
        )
    }

    pub fn sizes(&self) -> Sizes {
        self.size.parse().expect("sizes in the table are right")
    }

    /// Octets that a round writes, about; for a round limited by time, those of a fast server.
    pub fn octets(&self, settings: &Settings) -> u64 {
        let pace = self.pace(settings);
        let seconds = pace.duration.unwrap_or_default().as_secs_f64();
        let messages = pace.count.unwrap_or((pace.rate.unwrap_or(FAST_RATE) * seconds) as u64);
        messages.saturating_mul((self.octets_max() * self.recipients) as u64)
    }

    /// Octets of one message, at most.
    pub fn octets_max(&self) -> usize {
        self.sizes().classes.iter().map(|class| class.1).max().unwrap_or(0)
    }

    /// Percentiles need some messages; a message of many recipients is many deliveries.
    fn count_least(&self) -> u64 {
        (COUNT_LEAST / self.recipients as u64).max(1)
    }

    /// The pace in the size that the settings ask for. A count is limited in time too, because of the slower sides.
    pub fn pace(&self, settings: &Settings) -> Pace {
        let (count, duration) = match self.amount {
            Amount::Count(count) => (Some(settings.count(count, self.count_least())), settings.round_max),
            Amount::Time(time) => (None, settings.time(time, TIME_LEAST).min(settings.round_max)),
        };
        Pace {
            rate: self.rate,
            arrivals: Arrivals::Even,
            count,
            duration: Some(duration),
            warmup: WARMUP.min(duration / 2),
        }
    }
}
