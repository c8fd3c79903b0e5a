//! Assigns each message to a source, in proportion to the weights and constant over attempts. Keeps the mail that waits
//! for each source.

use posthaste_random::mix;
use posthaste_spool::Lsn;

use super::recipient::Id;

/// Mail of a queue that waits for one source: first attempts and later ones.
#[derive(Debug)]
pub(super) struct Lane {
    pub serial: u32,
    pub lists: [Id; 2],
    pub ready: Option<u32>,
    /// True if it is in turn in the ready queue.
    pub has_turn: [bool; 2],
    /// True if that turn is parked at a limit.
    pub is_parked: [bool; 2],
    pub weight: u32,
    /// The number of its source's name.
    pub source: u64,
}

/// The lane of a message, by weighted rendezvous hashing: adding or removing a lane moves only its own messages, to or
/// from the others by their weights.
pub(super) fn pick(lanes: &[Lane], message: Lsn) -> usize {
    if lanes.len() == 1 {
        return 0;
    }
    // Of exponential times with the weights as rates, each is the smallest in proportion to its weight.
    let time = |lane: &Lane| {
        let uniform = ((mix(message.get() ^ lane.source) >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
        -uniform.ln() / f64::from(lane.weight)
    };
    let times = lanes.iter().map(time).enumerate();
    times.min_by(|(_, one), (_, other)| one.total_cmp(other)).map_or(0, |(at, _)| at)
}

/// A hash of a source's name, the same in each run.
pub(super) fn number(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| mix(hash ^ u64::from(byte)))
}
