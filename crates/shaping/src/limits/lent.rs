//! Limits that several senders share: somebody lends their tokens to each.

use std::sync::Arc;

use posthaste_units::Rate;

/// Lends tokens of shared rate limits to a sender.
pub trait Lender: Send + Sync {
    /// The tokens of a limit, by its name. All senders together keep within its rate.
    fn limit(&self, name: &Arc<str>, rate: Rate) -> Box<dyn Lent>;
}

/// The tokens of a limit that are lent to this sender. Each is there for a short time only.
pub trait Lent: Send + Sync {
    /// Tokens that can be taken now.
    fn available(&self) -> u32;

    /// Takes a token. False if there is none.
    fn take(&self) -> bool;

    /// Notes that a token is reserved, or no longer so: it is renewed until then.
    fn hold(&self, is_held: bool);

    /// Requests `count` tokens. Returns the nanoseconds after which to check again.
    fn want(&self, count: u32) -> u64;
}
