//! Five thousand domains with a mail host each, a few of them slow or dead, and recipients of all fates among them.

use std::net::Ipv4Addr;

use posthaste_dns_stub::Zone;
use posthaste_random::Random;

/// Fate of a recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Accepted at once.
    Good,
    /// Refused permanently.
    Bounced,
    /// Refused temporarily, at each attempt.
    Deferred,
    /// Accepted by a host that takes seconds to answer.
    Slow,
    /// At a domain whose host does not answer or has no listener.
    Dead,
}

pub const KINDS: [Kind; 5] = [Kind::Good, Kind::Bounced, Kind::Deferred, Kind::Slow, Kind::Dead];
pub const DOMAINS: u64 = 5000;
/// One domain of so many is slow, and one dead.
const ODD_ONE_IN: u64 = 50;
/// Share of bounces among the recipients of other domains.
const BOUNCED_PERCENT: u64 = 5;
const DEFERRED_PERCENT: u64 = 10;
/// Number of recipients, used in turn.
const RECIPIENTS: usize = 100_000;
/// Seed, the same in every run.
const SEED: u64 = 16;
/// Address of a host that does not answer.
pub const SILENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);
/// Address of a host that refuses connections.
const CLOSED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 67);

/// Rules of the sink; local parts with `permfail` and `tempfail` order their own reply.
pub const SINK_RULES: &str = "[domain.\"*.slow.example\"]
rcpt = { delay = [\"100ms\", \"500ms\"] }
end-of-data = { delay = [\"1s\", \"3s\"] }
";

/// Addresses, in the order in which messages take them.
pub fn recipients(with_bad: bool) -> Vec<String> {
    let mut random = Random::new(SEED);
    let weights = Weights::new();
    let mut recipients = Vec::with_capacity(RECIPIENTS);
    while recipients.len() < RECIPIENTS {
        let (domain, percent, user) = (weights.draw(&mut random), random.below(100), random.below(100_000));
        let local = match percent {
            _ if is_odd(domain) => "user",
            0..BOUNCED_PERCENT => "permfail",
            percent if percent < BOUNCED_PERCENT + DEFERRED_PERCENT => "tempfail",
            _ => "user",
        };
        if with_bad || (local == "user" && !is_odd(domain)) {
            recipients.push(format!("{local}{user}@{}", name(domain)));
        }
    }
    recipients
}

/// Fate of a recipient by its address.
pub fn kind_of(address: &str) -> Option<Kind> {
    let (local, domain) = address.split_once('@')?;
    Some(match domain {
        domain if domain.ends_with(".slow.example") => Kind::Slow,
        domain if domain.ends_with(".dead.example") => Kind::Dead,
        domain if !domain.ends_with(".good.example") => return None,
        _ if local.starts_with("permfail") => Kind::Bounced,
        _ if local.starts_with("tempfail") => Kind::Deferred,
        _ => Kind::Good,
    })
}

/// All domains and their mail hosts.
pub fn zone() -> Zone {
    (0..DOMAINS).fold(Zone::default(), |zone, domain| {
        let (name, host) = (name(domain), format!("mx.{}", name(domain)));
        let address = match kind_of(&format!("user@{name}")) {
            Some(Kind::Dead) if (domain / ODD_ONE_IN).is_multiple_of(2) => SILENT,
            Some(Kind::Dead) => CLOSED,
            _ => Ipv4Addr::LOCALHOST,
        };
        zone.mx(&name, 10, &host).a(&host, address)
    })
}

fn name(domain: u64) -> String {
    let kind = match domain % ODD_ONE_IN {
        17 => "slow",
        23 => "dead",
        _ => "good",
    };
    format!("d{domain}.{kind}.example")
}

fn is_odd(domain: u64) -> bool {
    matches!(domain % ODD_ONE_IN, 17 | 23)
}

/// Zipf's law, a little flatter at its head: the first tenth of the domains has two thirds of the mail.
struct Weights(Vec<f64>);

impl Weights {
    fn new() -> Self {
        let mut sum = 0.0;
        let add = |rank: u64| {
            sum += 1.0 / (rank + 10) as f64;
            sum
        };
        Self((0..DOMAINS).map(add).collect())
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let all = self.0[self.0.len() - 1];
        let place = random.below(1 << 53) as f64 / (1u64 << 53) as f64 * all;
        self.0.partition_point(|sum| *sum <= place) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_shares_and_domains_are_skewed() {
        let recipients = recipients(true);
        let share = |kind| {
            let of_kind = recipients.iter().filter(|address| kind_of(address) == Some(kind)).count();
            of_kind as f64 * 100.0 / recipients.len() as f64
        };
        let shares = KINDS.map(share);
        assert!((shares.iter().sum::<f64>() - 100.0).abs() < 1e-6, "{shares:?}");
        assert!((4.5..5.5).contains(&shares[1]) && (9.0..11.0).contains(&shares[2]), "{shares:?}");
        assert!(shares[3] > 1.5 && shares[4] > 1.0, "{shares:?}");
        let domain = |address: &String| address.split_once('@').unwrap().1.to_owned();
        let mut counts = std::collections::HashMap::new();
        recipients.iter().for_each(|address| *counts.entry(domain(address)).or_insert(0u64) += 1);
        let mut counts: Vec<u64> = counts.into_values().collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        assert!(counts.len() > 4500, "{} domains", counts.len());
        let head: u64 = counts[..500].iter().sum();
        assert!((60_000..75_000).contains(&head), "{head} of 100,000 to a tenth of the domains");
    }

    #[test]
    fn without_the_bad_all_are_good() {
        assert!(super::recipients(false).iter().all(|address| kind_of(address) == Some(Kind::Good)));
        assert_eq!(kind_of("bench@here.example"), None);
    }
}
