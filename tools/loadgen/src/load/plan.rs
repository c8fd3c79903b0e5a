//! The plan of a run: everything that is decided before the first connection.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use posthaste_random::mix;

use super::arrivals::Pace;
use super::content::Pool;
use super::outages::Outages;
use crate::values::{Address, PerConnection, Protocol, TlsStart, WeightedDomain};

/// Pipelining of commands (RFC 2920).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pipelining {
    /// One command, one reply
    Off,
    /// MAIL, RCPT and DATA in one write
    On,
    /// Also the next message's commands right after the previous message: one round trip for each message
    Ahead,
}

/// Credentials of a client (RFC 4954).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    pub mechanism: AuthMechanism,
    pub user: String,
    pub password: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuthMechanism {
    Plain,
    Login,
}

/// Settings for injection by HTTP.
#[derive(Clone, Default)]
pub struct Injecting {
    /// Sent as `Authorization: Bearer`; without a token the server has to know the client's network.
    pub token: Option<String>,
    /// True if each request has an `Idempotency-Key`, and is repeated until a final answer.
    pub repeats: bool,
}

impl std::fmt::Debug for Injecting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Injecting").field("token", &self.token.is_some()).field("repeats", &self.repeats).finish()
    }
}

/// One server to load.
#[derive(Debug, Clone)]
pub struct Server {
    /// Name in the report. By HTTP also the Host of requests, without its `scheme://`.
    pub name: String,
    pub address: Address,
    pub protocol: Protocol,
    pub tls: TlsStart,
    /// The name that its certificate must carry; needed when `tls` is used.
    pub tls_name: Option<rustls::pki_types::ServerName<'static>>,
}

/// Recipients of the messages.
#[derive(Debug, Clone)]
pub enum Recipients {
    /// These addresses in turn, each named once.
    Listed(Vec<String>),
    /// `user1@domain` to `userN@domain`.
    Made { users: u64, domains: Vec<WeightedDomain> },
}

impl Recipients {
    /// Recipients that one message can have without repetition.
    pub fn distinct(&self) -> usize {
        match self {
            Self::Listed(addresses) => addresses.len(),
            Self::Made { users, .. } => usize::try_from(*users).unwrap_or(usize::MAX),
        }
    }

    /// Appends the address of recipient `index` of `of` of message `number`, always the same one.
    pub(super) fn write(&self, number: u64, index: usize, of: usize, out: &mut Vec<u8>) {
        match self {
            Self::Listed(addresses) => {
                let at = (number as usize).wrapping_mul(of).wrapping_add(index) % addresses.len();
                out.extend_from_slice(addresses[at].as_bytes());
            }
            Self::Made { users, domains } => {
                let draw = mix(number ^ 0x5eed);
                let user = draw.wrapping_add(index as u64) % users + 1;
                let weights: u64 = domains.iter().map(|domain| u64::from(domain.weight)).sum();
                let mut rest = mix(draw.wrapping_add(index as u64)) % weights;
                let domain = domains.iter().find(|domain| {
                    let is_here = rest < u64::from(domain.weight);
                    rest = rest.saturating_sub(u64::from(domain.weight));
                    is_here
                });
                let domain = domain.expect("the draw is below the sum of the weights");
                write!(out, "user{user}@{}", domain.name).expect("a Vec takes everything");
            }
        }
    }
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Marks this run's messages; see [`crate::stamp`].
    pub run: u64,
    /// Loaded in turn, connection by connection.
    pub servers: Vec<Server>,
    pub connections: usize,
    /// Operating system threads that share the connections.
    pub threads: usize,
    pub pace: Pace,
    pub rounds: u32,
    pub per_connection: PerConnection,
    pub pipelining: Pipelining,
    /// BDAT instead of DATA (RFC 3030).
    pub bdat: bool,
    pub sender: String,
    pub recipients: Recipients,
    pub recipients_per_message: usize,
    pub helo: String,
    pub auth: Option<Auth>,
    /// For servers that are loaded by HTTP.
    pub injecting: Injecting,
    pub tls: Option<Arc<rustls::ClientConfig>>,
    pub pool: Arc<Pool>,
    /// For a connection, and for each reply.
    pub timeout: Duration,
    /// Grace time after the end, for messages in flight and for those that an open loop is late with.
    pub drain: Duration,
    /// Time without any connection after which the run ends.
    pub give_up: Duration,
    /// Planned outages, reported by the thread that makes them. Messages without a connection then wait for one.
    pub outages: Option<Arc<Outages>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(recipients: &Recipients, number: u64, of: usize) -> Vec<String> {
        let address = |index| {
            let mut out = Vec::new();
            recipients.write(number, index, of, &mut out);
            String::from_utf8(out).unwrap()
        };
        (0..of).map(address).collect()
    }

    #[test]
    fn no_message_names_a_recipient_twice() {
        let domains = vec!["a.example:2".parse().unwrap(), "b.example".parse().unwrap()];
        let made = Recipients::Made { users: 5, domains };
        let listed = Recipients::Listed((0..5).map(|n| format!("u{n}@x")).collect());
        for recipients in [made, listed] {
            for number in 0..100 {
                let mut all = addresses(&recipients, number, recipients.distinct());
                all.sort();
                all.dedup();
                assert_eq!(all.len(), 5);
            }
        }
    }

    #[test]
    fn domains_are_taken_by_weight() {
        let domains = vec!["a.example:67".parse().unwrap(), "b.example:33".parse().unwrap()];
        let made = Recipients::Made { users: 10, domains };
        let first = (0..10_000).filter(|number| addresses(&made, *number, 1)[0].ends_with("@a.example")).count();
        assert!((6400..7000).contains(&first), "{first} of 10000 with weight 67 %");
    }
}
