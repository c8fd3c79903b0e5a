//! The rules of lending: its times, and the homes and shares of limits.

use std::sync::Arc;

use posthaste_units::Rate;

/// The numbers of all shards, ascending: the same on all nodes.
pub type LendingShards = Arc<[u16]>;

/// The number of a limit, by its name. The same in all releases: two nodes must agree on its home.
pub fn limit_key(name: &str) -> u64 {
    // FNV-1a. Two limits with the same number would share their tokens, and send less.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    posthaste_random::mix(name.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
}

/// The place of a limit's home among `shards`.
pub(super) fn home_of(key: u64, shards: &[u16]) -> usize {
    usize::try_from(key % shards.len() as u64).expect("there are fewer than 32,768 shards")
}

/// The burst of one shard that counts by itself. All together have the whole burst, so some may have none. The home has
/// the first token: what it lends is never less, whoever hears it.
pub(super) fn burst_of(rate: Rate, key: u64, part: usize, shards: &[u16], rules: LendingRules) -> u32 {
    let parts = u32::try_from(shards.len()).expect("there are fewer than 32,768 shards");
    let turn = (part + shards.len() - home_of(key, shards)) % shards.len();
    let share = rate.burst() / parts + u32::from(turn < (rate.burst() % parts) as usize);
    if rules.whole_burst { share } else { share.max(1) }
}

/// The rules of lending, each with a switch that breaks it, to show that tests notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LendingRules {
    /// Tokens die.
    pub tokens_die: bool,
    /// They are valid from their request on. Broken: from the answer.
    pub from_request: bool,
    /// A shard begins its share without tokens.
    pub empty_share: bool,
    /// The home keeps the share of a shard that may not hear it.
    pub keeps_share: bool,
    /// What a shard has heard is named by its answers. Broken: any request shows that it hears.
    pub echo: bool,
    /// A shard uses its share long after the home keeps it. Broken: at the same time.
    pub late_share: bool,
    /// A shard waits as long after its start.
    pub waits_at_start: bool,
    /// A shard that hears the home stops using its share.
    pub share_ends: bool,
    /// The shares of a burst add up to the burst. Broken: each is 1 at least.
    pub whole_burst: bool,
    /// A token that comes back counts less the later it comes. Broken: whole.
    pub returned_late: bool,
}

impl LendingRules {
    /// All rules are kept.
    pub const ALL: LendingRules = LendingRules {
        tokens_die: true,
        from_request: true,
        empty_share: true,
        keeps_share: true,
        echo: true,
        late_share: true,
        waits_at_start: true,
        share_ends: true,
        whole_burst: true,
        returned_late: true,
    };
}

/// Validity of a lent token, from the sending of its request, in nanoseconds.
pub const VALID: u64 = 300 * MILLIS;
/// Part of a rate that a home saves beyond the burst: a small burst must last until the next request. With [`VALID`]
/// this makes the additional half second of a window.
pub(super) const BEYOND_BURST: u64 = 200 * MILLIS;
/// A shard hears a home if it names an answer that the home sent within this time.
pub(super) const ECHO: u64 = 1000 * MILLIS;
/// A shard uses its share once it has heard nothing for this time.
pub(super) const ALONE: u64 = 2000 * MILLIS;
/// Interval between two requests to a home.
pub const PACE: u64 = 100 * MILLIS;
/// Interval between requests while no tokens are needed: they show the home that it is heard.
pub(super) const IDLE_PACE: u64 = 300 * MILLIS;
pub(super) const MILLIS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_a_burst_add_up_to_it() {
        let shards = [3, 4, 7];
        for (key, burst) in (0..50).flat_map(|key| (1..9).map(move |burst| (key, burst))) {
            let rate = Rate::new(1, 1, burst).unwrap();
            let shares = (0..3).map(|part| burst_of(rate, key, part, &shards, LendingRules::ALL));
            assert_eq!(shares.sum::<u32>(), burst, "key {key}");
            let of_home = burst_of(rate, key, home_of(key, &shards), &shards, LendingRules::ALL);
            assert!(of_home > 0, "key {key}");
        }
    }

    #[test]
    fn keys_are_the_same_in_all_releases() {
        assert_eq!(limit_key("tenant a"), 0xa0fc_354a_5e25_9d58);
        let shards = [1, 2, 3];
        let mut homes = [0; 3];
        (0..3000).for_each(|number| homes[home_of(limit_key(&format!("tenant {number}")), &shards)] += 1);
        assert!(homes.iter().all(|count| *count > 900), "{homes:?}");
    }
}
